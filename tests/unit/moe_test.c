/* moe_test.c - the expert grid beside the dense one, and what is wrong with a
 * mixture of experts.
 *
 * Groups are those of public reports: MC-56 (NVIDIA/Megatron-LM#1459) and MC-57
 * (NVIDIA/Megatron-LM#5958).
 */
#include "frontend/model.h"
#include "ir/eval.h"
#include "passes/passes.h"
#include "tests/unit/models.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

typedef struct {
    Arena *a;
    Diag *d;
    Module *m; /* NULL: rejected */
} Built;

static Built build(const char *const *sets, int n)
{
    Built b = {.a = arena_new()};
    Spec *s;

    b.d = diag_new(b.a);
    s = spec_parse(b.a, b.d, "model", MODEL_M0, sets, n);
    if (s)
        b.m = model_build(b.a, b.d, s);
    return b;
}

static void drop(Built *b)
{
    if (b->m)
        module_free(b->m);
    diag_free(b->d);
    arena_free(b->a);
}

/* ---- groups -------------------------------------------------------------- */

/* The groups of an axis as text: "0,1 2,3". */
static void expect_groups(const Module *m, const char *axis, const char *want)
{
    AxisSet set = mesh_axis(m, axis);
    uint32_t size = axes_size(&m->mesh, set), members[64];
    Buf text = {0};

    for (uint32_t rank = 0; rank < m->mesh.world; rank++) {
        axes_members(&m->mesh, set, rank, members);
        if (members[0] != rank)
            continue;
        for (uint32_t i = 0; i < size; i++)
            buf_printf(&text, "%s%u",
                       i          ? ","
                       : text.len ? " "
                                  : "",
                       members[i]);
    }
    assert_string_equal(buf_str(&text), want);
    buf_free(&text);
}

/* tp 2, cp 2, dp 2, pp 2: dense groups as ever. */
static void expect_dense(const Module *m)
{
    expect_groups(m, "tp", "0,1 2,3 4,5 6,7 8,9 10,11 12,13 14,15");
    expect_groups(m, "cp", "0,2 1,3 4,6 5,7 8,10 9,11 12,14 13,15");
    expect_groups(m, "dp", "0,4 1,5 2,6 3,7 8,12 9,13 10,14 11,15");
    expect_groups(m, "pp", "0,8 1,9 2,10 3,11 4,12 5,13 6,14 7,15");
}

static void experts_fold_over_tp_and_cp(void **state)
{
    const char *sets[] = {"parallel.world_size=16", "parallel.tp=2",
                          "parallel.sp=true",       "parallel.cp=2",
                          "parallel.cp_comm=a2a",   "parallel.pp=2",
                          "parallel.ep=2",          "parallel.etp=1"};
    Built b = build(sets, 8);

    (void)state;
    assert_non_null(b.m);
    expect_dense(b.m);
    expect_groups(b.m, "ep", "0,1 2,3 4,5 6,7 8,9 10,11 12,13 14,15");
    expect_groups(b.m, "edp", "0,2,4,6 1,3,5,7 8,10,12,14 9,11,13,15");
    drop(&b);
    sets[7] = "parallel.etp=2";
    b = build(sets, 8);
    assert_non_null(b.m);
    expect_dense(b.m);
    expect_groups(b.m, "etp", "0,1 2,3 4,5 6,7 8,9 10,11 12,13 14,15");
    expect_groups(b.m, "ep", "0,2 1,3 4,6 5,7 8,10 9,11 12,14 13,15");
    expect_groups(b.m, "edp", "0,4 1,5 2,6 3,7 8,12 9,13 10,14 11,15");
    drop(&b);
}

/* All 32 ranks hold other experts, eight each; their gradients are complete. */
static void experts_on_all_ranks(void **state)
{
    const char *sets[] = {"parallel.world_size=32", "parallel.ep=32",
                          "model.moe.num_experts=256", "model.moe.top_k=8",
                          "training.global_batch_size=32"};
    Built b = build(sets, 5);
    Layout l;
    TensorId t;

    (void)state;
    assert_non_null(b.m);
    assert_int_equal(axes_size(&b.m->mesh, mesh_axis(b.m, "ep")), 32);
    assert_int_equal(mesh_axis(b.m, "edp"), 0);
    t = tensor_find(b.m, sym_intern(b.m->names, "experts.gate_up"));
    l = *layout_of(b.m, tensor_of(b.m, t)->rest[FIELD_PARAM]);
    assert_int_equal(
        layout_local(b.m, type_of(b.m, tensor_of(b.m, t)->type), &l, 'e'), 8);
    drop(&b);
}

/* ---- what is wrong ------------------------------------------------------- */

static void expect_rejected(const char *message, const char *const *sets)
{
    Built b = build(sets, layout_length(sets));
    char *text = NULL;
    size_t n;
    FILE *to = open_memstream(&text, &n);

    assert_null(b.m);
    assert_non_null(to);
    diag_print(b.d, to);
    fclose(to);
    if (!strstr(text, message))
        fail_msg("not \"%s\" but %s", message, text);
    free(text);
    drop(&b);
}

static void wrong_experts(void **state)
{
    static const struct {
        const char *message, *sets[6];
    } rows[] = {
        {"tp = 2 with ep = 2 needs sp", {"parallel.tp=2", "parallel.ep=2"}},
        {"num_experts = 8 is not a multiple of parallel.ep = 16",
         {"parallel.ep=16", "training.global_batch_size=16"}},
        {"layer_freq lists 3 layers, but num_layers = 4",
         {"model.moe.layer_freq=[0,1,1]"}},
        {"0 (dense) or 1 (experts)", {"model.moe.layer_freq=[0,1,2,1]"}},
        {"no layer with experts", {"model.moe.layer_freq=[0,0,0,0]"}},
        {"top_k = 9 is more than num_experts = 8", {"model.moe.top_k=9"}},
        {"top_k = 1 and softmax after top-k", {"model.moe.top_k=1"}},
        {"num_groups = 3 with group_top_k = 1",
         {"model.moe.num_groups=3", "model.moe.group_top_k=1"}},
        {"have no common pieces",
         {"parallel.tp=2", "parallel.sp=true", "parallel.etp=1",
          "parallel.ep=3", "parallel.world_size=6", "model.moe.num_experts=9"}},
        {"no layer has the module mlp",
         {"training.recompute.granularity=selective",
          "training.recompute.modules=[mlp]"}},
        {"no layer has the module shared_experts",
         {"training.recompute.granularity=selective",
          "training.recompute.modules=[moe, shared_experts]"}},
        {"expert_bias needs scores", {"model.moe.expert_bias=true"}},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++)
        expect_rejected(rows[i].message, rows[i].sets);
}

/* ---- weights of the router ----------------------------------------------- */

static bool is_named(const Module *m, ValueId v, const char *name)
{
    return strcmp(sym_text(m->names, m->values.v[v.i].name), name) == 0;
}

/* Copies what leads from the logits to a value into `f`. */
static ValueId copied(Module *m, FuncId f, ValueId v, ValueMap *map)
{
    NodeId def = value_of(m, v)->def;

    if (vmap_get(map, v).i != v.i)
        return vmap_get(map, v);
    if (is_named(m, v, "logits")) {
        vmap_set(map, v, func_param(m, f, value_of(m, v)->type, "logits"));
        return vmap_get(map, v);
    }
    for (uint32_t i = 0; i < node_of(m, def)->nargs; i++)
        copied(m, f, node_arg(m, node_of(m, def), i), map);
    node_copy(m, f, def, map);
    return vmap_get(map, v);
}

/* From logits to the weights with which experts are combined. */
static FuncId router_only(Module *m)
{
    FuncId layer = func_find(m, sym_intern(m->names, "layer"));
    FuncId f = func_new(m, "router", FUNC_GRAPH, (Loc){0});
    ValueMap map = {0};

    for (uint32_t i = 0; i < func_of(m, layer)->body.n; i++) {
        const Node *n = node_of(m, func_of(m, layer)->body.v[i]);
        if (n->op != OP_COMBINE)
            continue;
        ValueId weight = copied(m, f, node_arg(m, n, 1), &map);
        vec_push(&func_of(m, f)->results, weight);
    }
    vmap_free(&map);
    return f;
}

/* Logits 2, 1, 0, -1 for every token. */
static void expect_weights(const char *const *sets, int n, const double *want)
{
    Built b = build(sets, n);
    FuncId f = router_only(b.m);
    const Type *t = value_type(b.m, func_of(b.m, f)->params.v[0]);
    EvalArray in = {.ndim = 3}, out;
    EvalOptions o = {.kind = EVAL_FP64};

    for (int d = 0; d < 3; d++) {
        in.dim[d] = t->dim[d];
        in.size[d] = t->size[d];
    }
    in.at = arena_array(b.a, EvalNum, type_elems(t));
    for (int64_t i = 0; i < type_elems(t); i++)
        in.at[i].f = 2.0 - (double)(i % 4);
    assert_true(eval_func(b.a, b.m, f, &o, 0, &in, &out));
    for (int64_t i = 0; i < type_elems(t); i++)
        if (fabs(out.at[i].f - want[i % 4]) > 1e-6)
            fail_msg("weight %g, not %g", out.at[i].f, want[i % 4]);
    drop(&b);
}

/* MC-64 (QwenLM/Qwen3#687): of the softmax of all logits as they are, or of
 * those chosen; whatever ep. */
static void weights_of_experts(void **state)
{
    static const double raw[] = {0.643914, 0.236883, 0, 0};
    static const double normalised[] = {0.731059, 0.268941, 0, 0};
    static const char *const sets[] = {"model.moe.num_experts=4",
                                       "model.moe.pre_softmax=true",
                                       "parallel.ep=2"};

    (void)state;
    expect_weights(sets, 1, normalised);
    expect_weights(sets, 2, raw);
    expect_weights(sets, 3, raw);
}

/* ---- recomputation ------------------------------------------------------- */

/* What a layer keeps for its backward that has slots or experts: how many
 * values, and how many elements in slots. */
typedef struct {
    uint32_t values;
    int64_t slots;
} Kept;

static Kept kept(const char *const *sets, int n)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Spec *s = spec_parse(a, d, "model", MODEL_M0, sets, n);
    Module *m = model_build(a, d, s);
    Kept k = {0};

    assert_true(pass_run(pass_find("grad"), m, s));
    const Func *f =
        &m->funcs.v[func_find(m, sym_intern(m->names, "layer.fwd")).i];
    for (uint32_t i = 0; i < f->results.n; i++) {
        const Type *t = value_type(m, f->results.v[i]);
        bool slots = type_dim(t, 'c') >= 0 && type_dim(t, 'e') == 0;
        k.values += slots || type_dim(t, 'e') >= 0;
        k.slots += slots && t->ndim > 2 ? type_elems(t) : 0;
    }
    module_free(m);
    diag_free(d);
    arena_free(a);
    return k;
}

static uint32_t kept_of_experts(const char *module)
{
    char set[64];
    const char *sets[] = {"training.recompute.granularity=selective", set};

    snprintf(set, sizeof set, "training.recompute.modules=[%s]", module);
    return kept(sets, 2).values;
}

static void experts_are_computed_again(void **state)
{
    (void)state;
    assert_true(kept_of_experts("core_attn") >= 4);
    assert_int_equal(kept_of_experts("moe"), 0);
}

/* MC-72 (NVIDIA/Megatron-LM#1784): activations of experts follow top_k,
 * whatever the number of experts: with room for an even load only, and without
 * dropping, a quarter more. */
static void activations_follow_top_k(void **state)
{
    const char *sets[] = {"model.moe.top_k=2", "model.moe.num_experts=8",
                          "model.moe.capacity_factor=1"};

    int64_t slots = 0, even = 0;

    (void)state;
    for (int n = 3; n >= 2; n--) {

        sets[0] = "model.moe.top_k=2";
        sets[1] = "model.moe.num_experts=8";
        slots = kept(sets, n).slots;
        even = n == 3 ? slots : even;
        assert_true(slots > 0);
        sets[0] = "model.moe.top_k=4";
        assert_int_equal(kept(sets, n).slots, 2 * slots);
        sets[0] = "model.moe.top_k=2";
        sets[1] = "model.moe.num_experts=16";
        assert_int_equal(kept(sets, n).slots, slots);
    }
    assert_int_equal(4 * slots, 5 * even);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_fold_over_tp_and_cp),
        cmocka_unit_test(experts_on_all_ranks),
        cmocka_unit_test(wrong_experts),
        cmocka_unit_test(weights_of_experts),
        cmocka_unit_test(experts_are_computed_again),
        cmocka_unit_test(activations_follow_top_k),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
