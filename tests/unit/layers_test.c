/* layers_test.c - which layer is of which kind, and what a kind costs.
 *
 * Patterns are Megatron-LM's (moe_layer_freq: an integer N stands for layers
 * 0, N, 2N, …; else a list, perhaps as Python's expression) and those that
 * transformers spells decoder_sparse_step, mlp_only_layers and
 * first_k_dense_replace (MC-63: huggingface/transformers#30552).
 */
#include "frontend/model.h"
#include "tests/unit/models.h"

#include <setjmp.h>
#include <cmocka.h>

typedef struct {
    Arena *a;
    Diag *d;
    Spec *s; /* NULL: rejected */
} Read;

static Read read_spec(int64_t layers, const char *freq)
{
    Read r = {.a = arena_new()};
    const char *sets[2];

    r.d = diag_new(r.a);
    sets[0] = arena_printf(r.a, "model.num_layers=%lld", (long long)layers);
    sets[1] = arena_printf(r.a, "model.moe.moe_layer_freq=%s", freq);
    r.s = spec_parse(r.a, r.d, "model", MODEL_M0, sets, 2);
    return r;
}

static void drop(Read *r)
{
    diag_free(r->d);
    arena_free(r->a);
}

static void expect_pattern(const char *freq, const char *want)
{
    Read r = read_spec((int64_t)strlen(want), freq);

    if (!r.s)
        diag_print(r.d, stderr);
    assert_non_null(r.s);
    for (int64_t l = 0; want[l]; l++)
        assert_int_equal(spec_layer(r.s, l)->experts, want[l] == '1');
    drop(&r);
}

static void patterns(void **state)
{
    (void)state;
    expect_pattern("1", "1111");
    expect_pattern("2", "101010");
    expect_pattern("3", "1001001");
    expect_pattern("[0, 1, 1, 0]", "0110");
    expect_pattern("([0]*1+[1]*27)", "0111111111111111111111111111");
    expect_pattern("'[0]*3+[1]*5'", "00011111");
    expect_pattern("([0,1]*3)", "010101");
    expect_pattern("(([0]+[1]*2)*2+[0])", "0110110");
    /* decoder_sparse_step 2; the same with mlp_only_layers [3] */
    expect_pattern("([0,1]*3)", "010101");
    expect_pattern("[0,1,0,0,0,1]", "010001");
}

static void what_is_no_list(void **state)
{
    static const char *const rows[] = {
        "([0]*3",    "'[0]*-1'",        "'[1]*9999999999'", "'[0,]'",
        "([0]+)",    "'[0]*3 and [1]'", "'[1]*70000'",      "1.5",
        "([0]*3+1)", "'[0 1 1 1]'",     "0",
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        Read r = read_spec(4, rows[i]);
        if (r.s)
            fail_msg("%s was accepted", rows[i]);
        drop(&r);
    }
}

/* ---- in the model graph -------------------------------------------------- */

static TensorId tensor_named(const Module *m, const char *name)
{
    TensorId t = tensor_find(m, sym_intern(m->names, name));

    assert_true(t.i);
    return t;
}

static void tensors_are_of_their_kind(void **state)
{
    Read r = read_spec(4, "[0,1,1,0]");
    Module *m = model_build(r.a, r.d, r.s);
    TensorId q = tensor_named(m, "qkv"), router = tensor_named(m, "router");
    TensorId up = tensor_named(m, "gate_up");

    (void)state;
    for (uint32_t l = 0; l < 4; l++) {
        bool experts = l == 1 || l == 2;
        assert_true(tensor_in_layer(m, q, l));
        assert_int_equal(tensor_in_layer(m, router, l), experts);
        assert_int_equal(tensor_in_layer(m, up, l), !experts);
    }
    assert_int_equal(tensor_layers(m, q, 0, 4), 4);
    assert_int_equal(tensor_layers(m, router, 0, 4), 2);
    assert_int_equal(tensor_layers(m, up, 1, 3), 1);
    module_free(m);
    drop(&r);
}

/* Functions follow from kinds, not from layers. */
static void a_kind_is_one_function(void **state)
{
    Read few = read_spec(4, "2"), many = read_spec(64, "2");
    Module *a = model_build(few.a, few.d, few.s);
    Module *b = model_build(many.a, many.d, many.s);

    (void)state;
    assert_int_equal(few.s->layers.nkinds, 2);
    assert_int_equal(a->funcs.n, b->funcs.n);
    module_free(a);
    module_free(b);
    drop(&few);
    drop(&many);
}

/* The twin for --verify-each keeps all kinds, and few layers. */
static void the_twin_keeps_kinds(void **state)
{
    Read r = read_spec(60, "([0]*3+[1,0]*24+[1]*9)");
    const Spec *small = spec_shrink(r.a, r.s);

    (void)state;
    assert_int_equal(small->layers.nkinds, 2);
    assert_true(small->model.num_layers <= 8);
    assert_false(spec_layer(small, 0)->experts);
    assert_true(spec_layer(small, small->model.num_layers - 1)->experts);
    drop(&r);
}

/* What is not built is rejected by name. */
static void too_many_runs(void **state)
{
    Read fits = read_spec(64, "2"), not = read_spec(66, "2");

    (void)state;
    assert_non_null(fits.s);
    assert_null(not.s);
    drop(&fits);
    drop(&not);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns),
        cmocka_unit_test(what_is_no_list),
        cmocka_unit_test(tensors_are_of_their_kind),
        cmocka_unit_test(a_kind_is_one_function),
        cmocka_unit_test(the_twin_keeps_kinds),
        cmocka_unit_test(too_many_runs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
