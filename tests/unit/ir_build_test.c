/* ir_build_test.c - interned types and attributes, building, scans, flops. */
#include "ir_sample.h"

static int open_module(void **state)
{
    Sample *s = calloc(1, sizeof *s);

    *s = sample_parse("func @f() { return }");
    *state = s;
    return s->m == NULL;
}

static int close_module(void **state)
{
    sample_free(*state);
    free(*state);
    return 0;
}

static const Loc nowhere = {0};
static const FuncId f = {1};

static ValueId param(Module *m, DType dtype, const char *dims,
                     const int64_t *size)
{
    return func_param(m, f, type_make(m, dtype, dims, size), "x");
}

static void expect_type(const Module *m, TypeId t, const char *want)
{
    Buf got = {0};

    type_print(m, t, &got);
    assert_string_equal(buf_str(&got), want);
    buf_free(&got);
}

/* ---- types and attributes ------------------------------------------------ */

static void types(void **state)
{
    Module *m = ((Sample *)*state)->m;
    TypeId t = type_make(m, DT_BF16, "sbh", (int64_t[]){8, 2, 4});

    assert_int_equal(t.i,
                     type_make(m, DT_BF16, "sbh", (int64_t[]){8, 2, 4}).i);
    assert_int_not_equal(t.i,
                         type_make(m, DT_BF16, "shb", (int64_t[]){8, 2, 4}).i);
    assert_int_equal(type_elems(type_of(m, t)), 64);
    assert_int_equal(type_dim(type_of(m, t), 'h'), 2);
    assert_int_equal(type_dim(type_of(m, t), 'l'), -1);
    assert_int_equal(type_size(type_of(m, t), 'l'), 1);
    expect_type(m, type_without(m, t, 'b'), "bf16[s=8, h=4]");
    expect_type(m, type_with_first(m, t, 'l', 3), "bf16[l=3, s=8, b=2, h=4]");
    expect_type(m, type_resized(m, t, 's', 2), "bf16[s=2, b=2, h=4]");
    expect_type(m, type_as(m, t, DT_F32), "f32[s=8, b=2, h=4]");
    expect_type(m, type_make(m, DT_I32, "", NULL), "i32");
    assert_int_equal(type_without(m, type_with_first(m, t, 'l', 3), 'l').i,
                     t.i);
    assert_int_equal(dtype_bytes(DT_BF16), 2);
}

static void attributes(void **state)
{
    Module *m = ((Sample *)*state)->m;
    Attr one[] = {attr_of_int(AK_SIZE, 3), attr_of_float(AK_BASE, 1e4)};
    Attr two[] = {attr_of_float(AK_BASE, 1e4), attr_of_int(AK_SIZE, 3)};
    AttrsId a = attrs_intern(m, one, 2), b;
    const int64_t modes[] = {MODE_CARRY, 'l', MODE_WHOLE};

    assert_int_equal(a.i, attrs_intern(m, two, 2).i);
    assert_int_equal(attr_int(m, a, AK_SIZE, 0), 3);
    assert_true(attr_float(m, a, AK_BASE, 0) == 1e4);
    assert_int_equal(attr_int(m, a, AK_LIMIT, 7), 7);
    assert_null(attr_find(m, (AttrsId){0}, AK_SIZE));
    b = attrs_with(m, a, attr_of_int(AK_SIZE, 4));
    assert_int_equal(attr_int(m, b, AK_SIZE, 0), 4);
    assert_int_equal(attr_int(m, a, AK_SIZE, 0), 3);
    assert_int_equal(attrs_with(m, b, attr_of_int(AK_SIZE, 3)).i, a.i);
    one[0] = attr_of_list(m, AK_ARGS, modes, 3);
    two[0] = attr_of_list(m, AK_ARGS, modes, 3);
    assert_int_equal(attrs_intern(m, one, 1).i, attrs_intern(m, two, 1).i);
    assert_int_equal(attrs_intern(m, one, 0).i, 0);
}

/* ---- building ------------------------------------------------------------ */

static void results_are_inferred(void **state)
{
    Module *m = ((Sample *)*state)->m;
    ValueId x = param(m, DT_BF16, "sbh", (int64_t[]){8, 2, 4});
    ValueId w = param(m, DT_BF16, "fh", (int64_t[]){6, 4});
    ValueId row = param(m, DT_F32, "h", (int64_t[]){4});
    ValueId y = ir_dot(m, f, x, w, "sbf", DT_BF16, nowhere);

    expect_type(m, value_of(m, y)->type, "bf16[s=8, b=2, f=6]");
    y = ir_binary(m, f, OP_MUL, row, x, nowhere);
    expect_type(m, value_of(m, y)->type, "f32[s=8, b=2, h=4]");
    y = ir_sum(m, f, x, "hs", nowhere);
    expect_type(m, value_of(m, y)->type, "f32[s=8, h=4]");
    y = ir_max(m, f, x, "", nowhere);
    expect_type(m, value_of(m, y)->type, "f32");
    assert_int_equal(ir_cast(m, f, x, DT_BF16, nowhere).i, x.i);
    assert_int_equal(ir_sum(m, f, row, "h", nowhere).i, row.i);
    assert_int_not_equal(ir_sum(m, f, w, "fh", nowhere).i, w.i);
}

static void scans(void **state)
{
    Module *m = ((Sample *)*state)->m;
    FuncId body = func_new(m, "body", FUNC_GRAPH, nowhere);
    TypeId t = type_make(m, DT_F32, "s", (int64_t[]){4});
    ValueId x = func_param(m, body, t, "x"), y = func_param(m, body, t, "y");
    ValueId z = ir_binary(m, body, OP_ADD, x, y, nowhere), args[2];
    Scan scan = {body, 'l', 3, 5, true, 1}, read;
    const Node *n;

    vec_push(&func_of(m, body)->results, z);
    vec_push(&func_of(m, body)->results, z);
    args[0] = param(m, DT_F32, "s", (int64_t[]){4});
    args[1] = param(m, DT_F32, "s", (int64_t[]){20});
    n = node_of(m, ir_call(m, f, scan, args, ">s", ">l", nowhere));
    expect_type(m, value_of(m, node_res(n, 0))->type, "f32[s=4]");
    expect_type(m, value_of(m, node_res(n, 1))->type, "f32[l=5, s=4]");
    read = call_scan(m, n);
    assert_int_equal(read.callee.i, body.i);
    assert_true(read.over == 'l' && read.first == 3 && read.count == 5 &&
                read.reverse);
    assert_int_equal(call_arg_mode(m, n, 0), MODE_CARRY);
    assert_int_equal(call_arg_mode(m, n, 1), 's');
    assert_int_equal(call_res_mode(m, n, 1), 'l');
    /* five times one addition of four elements */
    assert_true(op_info[OP_CALL].flops(m, n) == 20);
}

/* ---- flops --------------------------------------------------------------- */

/* One layer of a GPT with h = 64, s = 32, b = 2: 24 b s h^2 in its GEMMs and
 * 4 b s^2 h in attention forward (Narayanan et al. 2021, appendix), halved
 * where the mask is causal; behind a window of w, a query sees w keys, and the
 * first w see half of them. */
static void flops_of_a_layer(void **state)
{
    static const char text[] =
        "func @f(%x : bf16[s=32, b=2, h=64], %w : bf16[g=8, r=1, d=8, h=64],\n"
        "  %k : bf16[g=8, d=8, h=64], %up : bf16[f=256, h=64]) {\n"
        "%q = dot %x, %w {dims=sbgrd, dtype=f32}"
        " : f32[s=32, b=2, g=8, r=1, d=8]\n"
        "%c = dot %x, %k {dims=sbgd, dtype=f32} : f32[s=32, b=2, g=8, d=8]\n"
        "%v = dot %x, %k {dims=sbgd, dtype=f32} : f32[s=32, b=2, g=8, d=8]\n"
        "%o, %l = attention %q, %c, %v"
        " : f32[s=32, b=2, g=8, r=1, d=8], f32[s=32, b=2, g=8, r=1]\n"
        "%y = dot %o, %w {dims=sbh, dtype=f32} : f32[s=32, b=2, h=64]\n"
        "%u = dot %y, %up {dims=sbf, dtype=f32} : f32[s=32, b=2, f=256]\n"
        "%z = dot %u, %up {dims=sbh, dtype=f32} : f32[s=32, b=2, h=64]\n"
        "return %z }\n";
    const double b = 2, seq = 32, h = 64;
    Sample s = sample_parse(text);
    double gemms = 0, attention = 0;
    Node causal;

    (void)state;
    assert_true(s.m && module_verify(s.m));
    for (uint32_t i = 1; i < s.m->nodes.n; i++) {
        const Node *n = node_of(s.m, (NodeId){i});

        *(n->op == OP_DOT ? &gemms : &attention) +=
            op_info[n->op].flops(s.m, n);
    }
    assert_true(gemms == 24 * b * seq * h * h);
    assert_true(attention == 4 * b * seq * seq * h);
    causal = *node_of(s.m, (NodeId){4});
    causal.attrs = attrs_with(s.m, causal.attrs, attr_of_int(AK_CAUSAL, 1));
    assert_true(op_info[causal.op].flops(s.m, &causal) == attention / 2);
    causal.attrs = attrs_with(s.m, causal.attrs, attr_of_int(AK_WINDOW, 4));
    assert_true(op_info[causal.op].flops(s.m, &causal) ==
                4 * b * (4 * seq - 4 * 4 / 2) * h);
    sample_free(&s);
}

/* Every fused form costs what its parts do. */
static void flops_of_fused_forms(void **state)
{
    Buf text = golden_read("ops.mir");
    Sample s = sample_parse(buf_str(&text));
    const double product = 2 * 6 * 2 * 4 * 8; /* s b h f */
    double want[OP_COUNT] = {[OP_DOT] = product,
                             [OP_DOTS_SUM] = 2 * product,
                             [OP_DOTS_ACCUM] = 2 * product,
                             [OP_SUM] = 6 * 2 * 4, [OP_EXP] = 6 * 2 * 4,
                             [OP_ROW] = 6 * 2 * 4};

    (void)state;
    for (uint32_t i = 1; i < s.m->nodes.n; i++) {
        const Node *n = node_of(s.m, (NodeId){i});

        want[OP_DOTS] = n->nres * product;
        if (want[n->op] > 0)
            assert_true(op_info[n->op].flops(s.m, n) == want[n->op]);
    }
    sample_free(&s);
    buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(types, open_module, close_module),
        cmocka_unit_test_setup_teardown(attributes, open_module, close_module),
        cmocka_unit_test_setup_teardown(results_are_inferred, open_module,
                                        close_module),
        cmocka_unit_test_setup_teardown(scans, open_module, close_module),
        cmocka_unit_test(flops_of_a_layer),
        cmocka_unit_test(flops_of_fused_forms),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
