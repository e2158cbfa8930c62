/* passes_test.c - every pass on every layout, verified by execution; gradients
 * against finite differences.
 *
 * The judge is the reference evaluator: fp64 within rounding, the prime field
 * exactly.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "frontend/model.h"
#include "ir/eval.h"
#include "passes/passes.h"
#include "tests/unit/models.h"

/* The sanitizers take ten times as long, and look at the passes, not at the
 * layouts: they see every third. */
#ifdef __SANITIZE_ADDRESS__
enum { EVERY = 3 };
#else
enum { EVERY = 1 };
#endif

static const uint64_t SEED = 7;
static const double STEP = 1e-3, SMALL_STEP = 1e-5; /* of differences */

/* ---- equivalence --------------------------------------------------------- */

static void check_layout(const char *text, const char *const *sets)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    const PassOptions options = {.verify_each = true};
    Spec *spec = spec_parse(a, d, "model", text, sets, layout_length(sets));
    Module *m;
    bool ok;

    if (!spec)
        diag_print(d, stderr);
    assert_non_null(spec);
    spec = spec_shrink(a, spec);
    m = model_build(a, d, spec);
    ok = module_verify(m) && passes_run(m, spec, &options);
    diag_print(d, stderr);
    assert_true(ok);
    module_free(m);
    diag_free(d);
    arena_free(a);
}

static void test_llama_keeps_meaning(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(LAYOUTS); i += EVERY)
        check_layout(MODEL_T0, LAYOUTS[i]);
}

static void test_gpt2_keeps_meaning(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(LAYOUTS); i += EVERY)
        check_layout(MODEL_G0, LAYOUTS[i]);
}

static void test_experts_keep_meaning(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(EXPERT_LAYOUTS); i += EVERY)
        check_layout(MODEL_M0, EXPERT_LAYOUTS[i]);
}

static void test_mixed_layers_keep_meaning(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(MIXED_LAYOUTS); i += EVERY)
        check_layout(MODEL_M0, MIXED_LAYOUTS[i]);
}

/* ---- context parallelism ------------------------------------------------- */

static EvalResult *gradients_of(Arena *a, Diag *d, const char *text,
                                const char *const *sets, int n, Module **out)
{
    Spec *spec = spec_parse(a, d, "model", text, sets, n);

    if (!spec)
        diag_print(d, stderr);
    assert_non_null(spec);
    *out = model_build(a, d, spec);
    assert_true(pass_run(pass_find("grad"), *out, spec));
    return eval_run(a, *out, EVAL_FIELD, SEED);
}

/* Another order of the sequence in memory, tokens, labels, positions and the
 * causal mask with it, changes no gradient and no loss. */
static void check_storage_order(const char *text, const char *cp)
{
    const char *sets[] = {cp, "parallel.cp_comm=a2a"};
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Module *plain, *parts;
    EvalResult *x = gradients_of(a, d, text, NULL, 0, &plain);
    EvalResult *y = gradients_of(a, d, text, sets, 2, &parts);

    assert_true(x && y && eval_equal(x, y, d, 0));
    module_free(plain);
    module_free(parts);
    diag_free(d);
    arena_free(a);
}

static void test_storage_order(void **state)
{
    (void)state;
    check_storage_order(MODEL_T0, "parallel.cp=2");
    check_storage_order(MODEL_T0, "parallel.cp=4");
    check_storage_order(MODEL_G0, "parallel.cp=4");
}

/* ---- finite differences -------------------------------------------------- */

/* One element of one parameter, moved by `by`. */
typedef struct {
    TensorId tensor;
    uint32_t layer;
    int64_t index;
    double value, by;
} Nudge;

static bool nudged(void *user, const Module *m, TensorId t, Field f,
                   uint32_t layer, int64_t index, double *out)
{
    const Nudge *n = user;

    (void)m;
    if (f != FIELD_PARAM || t.i != n->tensor.i || layer != n->layer ||
        index != n->index)
        return false;
    *out = n->value + n->by;
    return true;
}

/* All that was added to one loss, in all layers. */
static double sum_of(const Module *m, const EvalResult *r, const char *name)
{
    TensorId t = tensor_find(m, sym_intern(m->names, name));
    uint32_t layers = t.i && m->tensors.v[t.i].per_layer ? m->nlayers : 1;
    double sum = 0;
    EvalArray value;

    for (uint32_t l = 0; l < layers; l++)
        if (t.i && eval_get_tensor(r, t, FIELD_ACC, l, &value))
            sum += value.at->f;
    return sum;
}

static double loss_of(Arena *a, Module *m, Nudge *n)
{
    EvalOptions o = {.kind = EVAL_FP64, .seed = SEED, .user = n,
                     .state = nudged};
    EvalResult *r = eval_run_with(a, m, &o);

    assert_non_null(r);
    return sum_of(m, r, "loss") + sum_of(m, r, "aux_loss") +
           sum_of(m, r, "z_loss");
}

static uint32_t last_layer(const Module *m, TensorId t)
{
    uint32_t layer = m->tensors.v[t.i].per_layer ? m->nlayers - 1 : 0;

    while (!tensor_in_layer(m, t, layer))
        layer--;
    return layer;
}

/* A few elements of each parameter, in its last layer: the central difference
 * of fourth order, (8(f1 - f-1) - (f2 - f-2)) / 12h. */
static void check_tensor(Arena *a, Module *m, const EvalResult *r, TensorId t,
                         double h)
{
    const Tensor *tensor = tensor_of(m, t);
    uint32_t layer = last_layer(m, t);
    int64_t elems = type_elems(&tensor->logical);
    EvalArray grad, param;

    assert_true(eval_get_tensor(r, t, FIELD_GRAD, layer, &grad));
    assert_true(eval_get_tensor(r, t, FIELD_PARAM, layer, &param));
    for (int k = 0; k < 3; k++) {
        int64_t i = (elems - 1) * k / 2;
        Nudge n = {t, layer, i, param.at[i].f, 0};
        double f[4];
        static const double step[] = {-2, -1, 1, 2};
        for (int j = 0; j < 4; j++) {
            n.by = step[j] * h;
            f[j] = loss_of(a, m, &n);
        }
        double slope = (8 * (f[2] - f[1]) - (f[3] - f[0])) / (12 * h);
        if (fabs(slope - grad.at[i].f) > 1e-8 + 1e-6 * fabs(slope))
            fail_msg("%s[%lld]: %.12g by differences, %.12g by grad",
                     sym_text(m->names, tensor->name), (long long)i, slope,
                     grad.at[i].f);
    }
}

static void check_gradients(const char *text, const char *const *sets, int n,
                            double h)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Spec *spec = spec_parse(a, d, "model", text, sets, n);
    Module *m;
    EvalResult *r;

    assert_non_null(spec);
    spec = spec_shrink(a, spec);
    m = model_build(a, d, spec);
    assert_true(pass_run(pass_find("grad"), m, spec));
    r = eval_run(a, m, EVAL_FP64, SEED);
    assert_non_null(r);
    for (uint32_t i = 1; i < m->tensors.n; i++)
        if (m->tensors.v[i].parameter)
            check_tensor(a, m, r, (TensorId){i}, h);
    module_free(m);
    diag_free(d);
    arena_free(a);
}

static void test_gradients(void **state)
{
    static const char *const qk[] = {"model.qk_norm=true",
                                     "model.qkv_bias=true"};
    static const char *const erf[] = {"model.activation=geglu"};
    static const char *const relu[] = {"model.activation=relu2"};
    static const char *const drop[] = {"model.hidden_dropout=0.2",
                                       "model.attention_dropout=0.3",
                                       "model.sliding_window=3"};

    (void)state;
    check_gradients(MODEL_T0, NULL, 0, STEP);
    check_gradients(MODEL_T0, qk, 2, STEP);
    check_gradients(MODEL_T0, erf, 1, STEP);
    check_gradients(MODEL_G0, NULL, 0, STEP);
    check_gradients(MODEL_G0, relu, 1, SMALL_STEP); /* no kink in between */
    check_gradients(MODEL_G0, drop, 3, STEP);
}

/* With smaller steps, so that no token changes its experts. */
static void test_gradients_of_experts(void **state)
{
    static const char *const sigmoid[] = {
        "model.moe.score=sigmoid", "model.moe.num_groups=4",
        "model.moe.group_top_k=2", "model.moe.z_loss_coeff=0.1"};
    static const char *const all[] = {"model.moe.pre_softmax=true",
                                      "model.moe.shared_ffn_hidden_size=64",
                                      "model.moe.shared_gate=true",
                                      "model.moe.scaling_factor=2.5"};
    static const char *const mixed[] = {"model.moe.layer_freq=[1,0,1,0]"};
    static const char *const biased[] = {"model.linear_bias=true",
                                         "training.micro_batch_size=2",
                                         "parallel.dp=2"};

    (void)state;
    check_gradients(MODEL_M0, NULL, 0, SMALL_STEP);
    check_gradients(MODEL_M0, sigmoid, 4, SMALL_STEP);
    check_gradients(MODEL_M0, all, 4, SMALL_STEP);
    check_gradients(MODEL_M0, mixed, 1, SMALL_STEP);
    check_gradients(MODEL_M0, biased, 3, SMALL_STEP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama_keeps_meaning),
        cmocka_unit_test(test_gpt2_keeps_meaning),
        cmocka_unit_test(test_experts_keep_meaning),
        cmocka_unit_test(test_mixed_layers_keep_meaning),
        cmocka_unit_test(test_storage_order),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_gradients_of_experts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
