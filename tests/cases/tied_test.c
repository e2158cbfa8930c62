/* tied_test.c - one table for the first and the last stage, and a gradient
 * norm that counts every parameter once.
 *
 * From public bug reports: NVIDIA/Megatron-LM#299 and alpa-projects/alpa#324
 * (MC-35, copies that drift apart), NVIDIA/Megatron-LM#844 (MC-36, two
 * reductions in the wrong order), NVIDIA-NeMo/RL#3788 and
 * ROCm/TransformerEngine#715 (MC-37, replicated parameters and the second copy
 * counted again).
 */
#include "cases.h"

#include "frontend/model.h"
#include "ir/eval.h"
#include "passes/passes.h"

#include <math.h>

enum { STEPS = 5 };

/* ---- equal to one rank --------------------------------------------------- */

static void each_equals(const char *base, const char *const *layouts, size_t n)
{
    char sets[512];

    case_train("one", base);
    for (size_t i = 0; i < n; i++) {
        snprintf(sets, sizeof sets, "%s %s", base, layouts[i]);
        case_train("many", sets);
        case_same_run("many", "one", STEPS);
        assert_int_equal(case_shell("rm -rf many many.saved"), 0);
    }
    assert_int_equal(case_shell("rm -rf one one.saved"), 0);
}

/* MC-35, MC-36 */
static void tied_over_stages(void **state)
{
    static const char *const layouts[] = {
        "parallel.pp=2",
        "parallel.pp=4",
        "parallel.pp=2 parallel.vpp=2",
        "parallel.pp=2 parallel.schedule=zb-v", /* one copy, both ends */
        "parallel.pp=2 parallel.tp=2 parallel.sp=true",
        "parallel.pp=2 parallel.dp=2 parallel.sharding=optim",
        "parallel.pp=2 parallel.dp=2 parallel.sharding=optim_grads_params",
    };

    (void)state;
    each_equals("model.tie_embeddings=true", layouts, MC_LEN(layouts));
}

/* MC-37: the norm (about 0.9) is clipped hard, so weights show it too. */
static void clipped_by_the_same_norm(void **state)
{
    static const char *const layouts[] = {
        "parallel.tp=4",
        "parallel.tp=8",
        "parallel.tp=2 parallel.sp=true",
        "parallel.pp=2",
        "parallel.dp=2",
        "parallel.tp=2 parallel.pp=2 parallel.dp=2 parallel.sp=true",
    };

    (void)state;
    each_equals("model.tie_embeddings=true model.qk_norm=true "
                "training.optimizer.clip_grad=0.01",
                layouts, MC_LEN(layouts));
}

/* ---- MC-35: one all-reduce per step -------------------------------------- */

/* All-reduces over the tied copies in one step of a stage. */
static int64_t embed_reductions(json_t *stage)
{
    int64_t n = 0;
    json_t *op;
    size_t i;

    json_array_foreach(case_member(stage, "ops"), i, op) {
        const char *axis = json_string_value(case_member(op, "axis"));
        if (strstr(axis, "embed")) {
            assert_string_equal(json_string_value(case_member(op, "op")),
                                "all_reduce");
            assert_string_equal(json_string_value(case_member(op, "tensor")),
                                "@embed");
            n += json_integer_value(case_member(op, "per_step"));
        }
    }
    return n;
}

static void expect_reductions(const char *sets, int64_t at_the_ends)
{
    json_t *stages = case_inspect("comm", sets), *stage;
    size_t i;

    json_array_foreach(stages, i, stage) {
        bool end = i == 0 || i + 1 == json_array_size(stages);
        assert_int_equal(embed_reductions(stage), end ? at_the_ends : 0);
    }
    json_decref(stages);
}

static void one_reduction_per_step(void **state)
{
    (void)state;
    expect_reductions("model.tie_embeddings=true parallel.pp=2", 1);
    expect_reductions("model.tie_embeddings=true parallel.pp=4", 1);
    expect_reductions("model.tie_embeddings=true parallel.pp=4 parallel.tp=2 "
                      "parallel.dp=2", 1);
    expect_reductions("parallel.pp=4", 0);
    expect_reductions("model.tie_embeddings=true parallel.tp=2", 0);
    expect_reductions("model.tie_embeddings=true parallel.pp=2 "
                      "parallel.schedule=zb-v", 0);
}

/* ---- MC-37: all gradients 1 ---------------------------------------------- */

static bool all_ones(void *user, const Module *m, TensorId t, Field f,
                     uint32_t layer, int64_t index, double *out)
{
    (void)user, (void)m, (void)t, (void)layer, (void)index;
    *out = 1;
    return f == FIELD_M;
}

static Field read_field(const Module *m, const Node *n)
{
    return (Field)attr_int(m, n->attrs, AK_FIELD, FIELD_PARAM);
}

/* What makes gradients and the loss, and what these feed. */
static bool makes_gradients(const Module *m, const Node *n, const bool *gone)
{
    if (n->op == OP_CALL || n->op == OP_SEND || n->op == OP_RECV ||
        n->op == OP_BATCH || n->op == OP_CLEAR ||
        (n->op == OP_READ && (read_field(m, n) == FIELD_GRAD ||
                              read_field(m, n) == FIELD_ACC)))
        return true;
    for (uint32_t i = 0; i < n->nargs; i++)
        if (gone[node_arg(m, n, i).i])
            return true;
    return false;
}

/* Leaves of a main function what comes after the gradients are complete, and
 * has it read first moments, which rest in the same layout, in their place. */
static void cut(Module *m, FuncId f)
{
    bool *gone = calloc(m->values.n, sizeof *gone);
    Func *fn = func_of(m, f);
    uint32_t kept = 0;

    assert_non_null(gone);
    for (uint32_t i = 0; i < fn->body.n; i++) {
        Node *n = node_of(m, fn->body.v[i]);
        if (makes_gradients(m, n, gone)) {
            for (uint32_t r = 0; r < n->nres; r++)
                gone[node_res(n, r).i] = true;
            continue;
        }
        if (n->op == OP_READ && read_field(m, n) == FIELD_GSUM)
            n->attrs = attrs_with(m, n->attrs,
                                  attr_of_int(AK_FIELD, FIELD_M));
        fn->body.v[kept++] = fn->body.v[i];
    }
    fn->body.n = kept;
    free(gone);
}

static double norm_of_ones(const char *const *sets, int n)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    const PassOptions until = {.stop_after = "pipeline"};
    EvalOptions ones = {.kind = EVAL_FP64, .seed = 1, .state = all_ones};
    Spec *spec = spec_load(a, d, "t0.yaml", sets, n);
    Module *m;
    EvalResult *r;
    EvalNum norm = {0};

    assert_non_null(spec);
    m = model_build(a, d, spec);
    assert_true(passes_run(m, spec, &until));
    for (uint32_t i = 0; i < m->entry.n; i++)
        cut(m, m->entry.v[i]);
    r = eval_run_with(a, m, &ones);
    diag_print(d, stderr);
    assert_non_null(r);
    assert_true(eval_get_metric(r, "grad_norm", &norm));
    module_free(m);
    diag_free(d);
    arena_free(a);
    return norm.f;
}

/* sqrt(800) when 800 parameters exist, whatever holds copies of them: the
 * parameters of T0 tied with qk_norm are 96*64 + 64 + 4 * (2*64*64 + 2*32*64 +
 * 3*128*64 + 2*64 + 2*8) = 154,240; untied without, 160,320. */
static void norm_counts_parameters_once(void **state)
{
    static const char *const layouts[][5] = {
        {"parallel.tp=1"},
        {"parallel.tp=4"},
        {"parallel.tp=8"},
        {"parallel.tp=2", "parallel.sp=true"},
        {"parallel.pp=2"},
        {"parallel.pp=4", "parallel.tp=2"},
        {"parallel.dp=2"},
        {"parallel.cp=2", "parallel.cp_comm=a2a"},
        {"parallel.cp=4", "parallel.cp_comm=a2a+p2p",
         "parallel.cp_sizes=[2,2]", "parallel.sharding=optim_grads"},
        {"parallel.dp=2", "parallel.sharding=optim"},
        {"parallel.dp=2", "parallel.sharding=optim_grads", "parallel.pp=2"},
        {"parallel.dp=2", "parallel.sharding=optim_grads_params"},
        {"parallel.tp=2", "parallel.sp=true", "parallel.pp=2",
         "parallel.dp=2"},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(layouts); i++) {
        const char *sets[8] = {"training.optimizer.type=adamw"};
        int n = 1;
        for (int k = 0; k < 5 && layouts[i][k]; k++)
            sets[n++] = layouts[i][k];
        assert_true(norm_of_ones(sets, n) == sqrt(160320));
        sets[n++] = "model.tie_embeddings=true";
        sets[n++] = "model.qk_norm=true";
        assert_true(norm_of_ones(sets, n) == sqrt(154240));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_reduction_per_step),
        cmocka_unit_test(norm_counts_parameters_once),
        cmocka_unit_test(tied_over_stages),
        cmocka_unit_test(clipped_by_the_same_norm),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
