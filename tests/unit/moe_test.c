/* moe_test.c - the expert grid beside the dense one, and what is wrong with a
 * mixture of experts.
 *
 * Groups are those of public reports: MC-56 (NVIDIA/Megatron-LM#1459) and MC-57
 * (NVIDIA/Megatron-LM#5958).
 */
#include "frontend/model.h"
#include "passes/passes.h"
#include "tests/unit/models.h"

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
    t = tensor_find(b.m, sym_intern(b.m->names, "experts.gate"));
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

/* ---- recomputation ------------------------------------------------------- */

/* What a layer keeps for its backward that has slots or experts. */
static uint32_t kept_of_experts(const char *module)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    const char *sets[] = {
        "training.recompute.granularity=selective",
        arena_printf(a, "training.recompute.modules=[%s]", module)};
    Spec *s = spec_parse(a, d, "model", MODEL_M0, sets, 2);
    Module *m = model_build(a, d, s);
    uint32_t n = 0;

    assert_true(pass_run(pass_find("grad"), m, s));
    const Func *f =
        &m->funcs.v[func_find(m, sym_intern(m->names, "layer.fwd")).i];
    for (uint32_t i = 0; i < f->results.n; i++) {
        const Type *t = value_type(m, f->results.v[i]);
        n += type_dim(t, 'c') >= 0 || type_dim(t, 'e') >= 0;
    }
    module_free(m);
    diag_free(d);
    arena_free(a);
    return n;
}

static void experts_are_computed_again(void **state)
{
    (void)state;
    assert_true(kept_of_experts("core_attn") >= 4);
    assert_int_equal(kept_of_experts("moe"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_fold_over_tp_and_cp),
        cmocka_unit_test(experts_on_all_ranks),
        cmocka_unit_test(wrong_experts),
        cmocka_unit_test(experts_are_computed_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
