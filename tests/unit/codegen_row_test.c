/* codegen_row_test.c - printed row programs against the reference evaluator.
 *
 * Every program below is built as IR, printed as C, compiled, run with one and
 * with three threads (whose bytes must agree) and compared with eval_func in
 * fp64.  The same programs are printed as CUDA and compiled for a GPU.
 */
#include "codegen_bench.h"

typedef struct {
    const char *name;
    void (*build)(Bench *b);
    double limit; /* of the relative L2 distance */
} Program;

/* ---- building ----------------------------------------------------------- */

/* Sizes by letter; odd, so that tails of vectors occur. */
static int64_t size_of_dim(char dim)
{
    switch (dim) {
    case 's':
        return 37;
    case 'b':
        return 3;
    case 'h':
        return 200;
    case 'g':
        return 2;
    case 'r':
        return 5;
    case 'd':
        return 24;
    case 'f':
        return 77;
    case 'v':
        return 302;
    default:
        return 1;
    }
}

static ValueId param(Bench *b, const char *name, const char *dims, DType dtype)
{
    int64_t size[IR_MAX_DIMS];

    for (size_t i = 0; dims[i]; i++)
        size[i] = size_of_dim(dims[i]);
    return func_param(b->m, b->f, type_make(b->m, dtype, dims, size), name);
}

static ValueId one(Bench *b, Op op, ValueId x)
{
    return ir_unary(b->m, b->f, op, x, (Loc){0});
}

static ValueId two(Bench *b, Op op, ValueId x, ValueId y)
{
    return ir_binary(b->m, b->f, op, x, y, (Loc){0});
}

static ValueId number(Bench *b, double x)
{
    return ir_const(b->m, b->f, x, (Loc){0});
}

static ValueId sum(Bench *b, ValueId x, const char *keep)
{
    return ir_sum(b->m, b->f, x, keep, (Loc){0});
}

static ValueId cast(Bench *b, ValueId x, DType dtype)
{
    return ir_cast(b->m, b->f, x, dtype, (Loc){0});
}

static ValueId with_attrs(Bench *b, Op op, ValueId x, Attr *attrs, uint32_t n)
{
    return ir_op(b->m, b->f, op, &x, op_info[op].nargs == 0 ? 0 : 1,
                 attrs_intern(b->m, attrs, n), (Loc){0});
}

static void result(Bench *b, ValueId v)
{
    vec_push(&func_of(b->m, b->f)->results, v);
}

/* ---- programs ----------------------------------------------------------- */

static void build_pointwise(Bench *b)
{
    static const Op ops[] = {OP_NEG, OP_EXP,  OP_SIGMOID, OP_TANH,
                             OP_ERF, OP_RELU, OP_STEP};
    ValueId x = param(b, "x", "sbh", DT_F32), y = param(b, "y", "h", DT_F32);
    ValueId z = two(b, OP_MUL, x, x);

    z = two(b, OP_ADD, z, number(b, 0.5));
    for (size_t i = 0; i < MC_LEN(ops); i++)
        result(b, two(b, OP_SUB, one(b, ops[i], x), y));
    result(b, two(b, OP_DIV, one(b, OP_LOG, z), one(b, OP_SQRT, z)));
    result(b, two(b, OP_MUL, one(b, OP_RSQRT, z), one(b, OP_RECIP, z)));
    result(b, two(b, OP_MIN, x, y));
    result(b, two(b, OP_MAX2, x, y));
}

static ValueId rms_inverse(Bench *b, ValueId x)
{
    ValueId squares = sum(b, two(b, OP_MUL, x, x), "sb");
    ValueId mean =
        two(b, OP_MUL, squares, ir_ratio(b->m, b->f, 1, 200, false, (Loc){0}));

    return one(b, OP_RSQRT, two(b, OP_ADD, mean, number(b, 1e-5)));
}

static void build_rmsnorm(Bench *b)
{
    ValueId x = param(b, "x", "sbh", DT_F32), w = param(b, "w", "h", DT_F32);
    ValueId inverse = rms_inverse(b, x);

    result(b, two(b, OP_MUL, two(b, OP_MUL, x, inverse), w));
    result(b, inverse);
}

/* dx, and dw summed over all rows. */
static void build_rmsnorm_grad(Bench *b)
{
    ValueId x = param(b, "x", "sbh", DT_F32), w = param(b, "w", "h", DT_F32);
    ValueId dy = param(b, "dy", "sbh", DT_F32);
    ValueId inverse = rms_inverse(b, x);
    ValueId normed = two(b, OP_MUL, x, inverse);
    ValueId wdy = two(b, OP_MUL, dy, w);
    ValueId along = sum(b, two(b, OP_MUL, wdy, normed), "sb");
    ValueId back =
        two(b, OP_MUL, normed, two(b, OP_MUL, along, number(b, 1.0 / 200)));

    result(b, two(b, OP_MUL, two(b, OP_SUB, wdy, back), inverse));
    result(b, two(b, OP_MUL, sum(b, two(b, OP_MUL, dy, normed), "h"),
                  number(b, 3.0)));
}

static void build_layernorm_bf16(Bench *b)
{
    ValueId x = param(b, "x", "sbh", DT_BF16), w = param(b, "w", "h", DT_BF16);
    ValueId n = number(b, 1.0 / 200);
    ValueId mean = two(b, OP_MUL, sum(b, x, "sb"), n);
    ValueId off = two(b, OP_SUB, x, mean);
    ValueId var = two(b, OP_MUL, sum(b, two(b, OP_MUL, off, off), "sb"), n);
    ValueId inverse = one(b, OP_RSQRT, two(b, OP_ADD, var, number(b, 1e-5)));

    result(b,
           cast(b, two(b, OP_MUL, two(b, OP_MUL, off, inverse), w), DT_BF16));
    result(b, mean);
}

static void build_swiglu_grad(Bench *b)
{
    ValueId gate = param(b, "gate", "sbf", DT_F32);
    ValueId up = param(b, "up", "sbf", DT_F32);
    ValueId dy = param(b, "dy", "sbf", DT_BF16);
    ValueId s = one(b, OP_SIGMOID, gate), silu = two(b, OP_MUL, gate, s);
    ValueId ds =
        two(b, OP_MUL, s,
            two(b, OP_ADD, number(b, 1.0), two(b, OP_SUB, gate, silu)));

    result(b, cast(b, two(b, OP_MUL, two(b, OP_MUL, dy, up), ds), DT_BF16));
    result(b, two(b, OP_MUL, dy, silu));
}

static ValueId row_max(Bench *b, ValueId x)
{
    return ir_max(b->m, b->f, x, "sb", (Loc){0});
}

static void build_cross_entropy(Bench *b)
{
    ValueId x = param(b, "x", "sbv", DT_F32), t = param(b, "t", "sb", DT_I32);
    Attr attrs[] = {attr_of_sym(AK_DIMS, sym_intern(b->m->names, "v")),
                    attr_of_int(AK_SIZE, size_of_dim('v'))};
    ValueId hot = with_attrs(b, OP_ONEHOT, t, attrs, 2);
    ValueId top = row_max(b, x), e = two(b, OP_EXPSUB, x, top);
    ValueId z = sum(b, e, "sb"), lse = two(b, OP_LOGADD, z, top);
    ValueId hit = sum(b, two(b, OP_MUL, x, hot), "sb");
    ValueId loss =
        two(b, OP_MUL, two(b, OP_SUB, lse, hit), one(b, OP_VALID, t));

    result(b, sum(b, loss, ""));
    result(b, two(b, OP_SUB, two(b, OP_DIV, e, z), hot));
}

static ValueId rotate(Bench *b, ValueId x, int64_t rotary, int64_t sign)
{
    Attr attrs[] = {attr_of_int(AK_ROTARY, rotary), attr_of_int(AK_SIGN, sign)};

    return with_attrs(b, OP_ROTATE, x, attrs, 2);
}

static ValueId rope(Bench *b, ValueId x, int64_t rotary, int64_t sign)
{
    ValueId cosine = param(b, "cos", "sd", DT_F32);
    ValueId sine = param(b, "sin", "sd", DT_F32);

    if (sign > 0)
        return two(b, OP_ADD, two(b, OP_MUL, x, cosine),
                   two(b, OP_MUL, rotate(b, x, rotary, 1), sine));
    return two(b, OP_ADD, two(b, OP_MUL, x, cosine),
               rotate(b, two(b, OP_MUL, x, sine), rotary, -1));
}

static void build_rope(Bench *b)
{
    result(b, rope(b, param(b, "q", "sbgrd", DT_F32), 24, 1));
}

static void build_rope_grad_part(Bench *b)
{
    result(b, rope(b, param(b, "k", "sbgd", DT_BF16), 16, -1));
}

/* A norm of each head's channels, then the rotation of what it makes. */
static void build_qk_norm_rope(Bench *b)
{
    ValueId q = param(b, "q", "sbgrd", DT_F32), w = param(b, "w", "d", DT_F32);
    ValueId mean = two(b, OP_MUL, sum(b, two(b, OP_MUL, q, q), "sbgr"),
                       number(b, 1.0 / 24));
    ValueId inverse = one(b, OP_RSQRT, two(b, OP_ADD, mean, number(b, 1e-6)));

    result(b, rope(b, two(b, OP_MUL, two(b, OP_MUL, q, inverse), w), 24, 1));
    result(b, sum(b, q, "d"));
}

static void build_adamw(Bench *b)
{
    ValueId p = param(b, "p", "fh", DT_F32), g = param(b, "g", "fh", DT_F32);
    ValueId m = param(b, "m", "fh", DT_F32), lr = param(b, "lr", "", DT_F32);
    ValueId norm = two(b, OP_ADD, two(b, OP_MUL, lr, lr), number(b, 0.1));
    ValueId scale = two(b, OP_MIN, number(b, 1.0), one(b, OP_RECIP, norm));

    g = two(b, OP_MUL, g, scale);
    m = two(b, OP_ADD, two(b, OP_MUL, m, number(b, 0.9)),
            two(b, OP_MUL, g, number(b, 0.1)));
    p = two(b, OP_SUB, p, two(b, OP_MUL, m, lr));
    result(b, p);
    result(b, m);
    result(b, cast(b, p, DT_BF16));
}

static void build_sums(Bench *b)
{
    ValueId x = param(b, "x", "sbgrd", DT_F32);
    ValueId y = param(b, "y", "sb", DT_F32);

    result(b, sum(b, two(b, OP_MUL, x, x), ""));
    result(b, sum(b, x, "grd"));
    result(b, sum(b, x, "sgr"));
    result(b, sum(b, two(b, OP_MUL, x, y), "bd"));
    result(b, sum(b, y, "b"));
    result(b, ir_max(b->m, b->f, x, "b", (Loc){0}));
    result(b, one(b, OP_SQRT, sum(b, two(b, OP_MUL, y, y), "")));
}

static void build_numbers(Bench *b)
{
    ValueId x = param(b, "x", "", DT_F32), y = param(b, "y", "", DT_F32);

    result(b, two(b, OP_MIN, number(b, 1.0), two(b, OP_DIV, x, y)));
    result(b, ir_ratio(b->m, b->f, 2, 3, true, (Loc){0}));
}

/* Values that do not depend on the rows of the others. */
static void build_mixed_shapes(Bench *b)
{
    ValueId x = param(b, "x", "sbh", DT_F32), w = param(b, "w", "h", DT_F32);
    ValueId y = param(b, "y", "sb", DT_F32), z = param(b, "z", "", DT_F32);
    Attr attrs[] = {attr_of_sym(AK_DIMS, sym_intern(b->m->names, "h")),
                    attr_of_int(AK_SIZE, size_of_dim('h')),
                    attr_of_int(AK_LIMIT, 150)};
    ValueId below = with_attrs(b, OP_INRANGE, (ValueId){0}, attrs, 3);

    result(b, two(b, OP_MUL, x, y));
    result(b, two(b, OP_ADD, w, w));
    result(b, two(b, OP_MUL, y, z));
    result(b, two(b, OP_MUL, z, z));
    result(b, two(b, OP_MUL, x, below));
}

static const Program PROGRAMS[] = {
    {"pointwise", build_pointwise, 1e-6},
    {"rmsnorm", build_rmsnorm, 1e-6},
    {"rmsnorm_grad", build_rmsnorm_grad, 1e-6},
    {"layernorm_bf16", build_layernorm_bf16, 5e-3},
    {"swiglu_grad", build_swiglu_grad, 5e-3},
    {"cross_entropy", build_cross_entropy, 1e-6},
    {"rope", build_rope, 1e-6},
    {"rope_grad_part", build_rope_grad_part, 1e-6},
    {"qk_norm_rope", build_qk_norm_rope, 1e-6},
    {"adamw", build_adamw, 5e-3},
    {"sums", build_sums, 2e-6},
    {"numbers", build_numbers, 1e-6},
    {"mixed_shapes", build_mixed_shapes, 1e-6},
};

static void bench_make(Bench *w, const Program *p, Buf *text)
{
    bench_open(w, p->name, FUNC_ROW);
    p->build(w);
    assert_null(row_refusal(w->m, w->f));
    row_print(w->m, w->f, p->name, NULL, text, &w->info);
}

static void test_programs(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(PROGRAMS); i++) {
        const Program *p = &PROGRAMS[i];
        Buf text = {0};
        Bench w;
        void *so;
        bench_make(&w, p, &text);
        operands_make(&w);
        so = load_text(p->name, text.s);
        check_threads(&w, so, p->name);
        check_results(&w, p->name, p->limit, text.s);
        dlclose(so);
        buf_free(&text);
        bench_close(&w);
    }
}

/* All programs again, for a GPU; skipped without the CUDA toolkit. */
static void test_programs_compile_for_cuda(void **state)
{
    CodeUnit units[MC_LEN(PROGRAMS)];
    Buf texts[MC_LEN(PROGRAMS)] = {{0}}, cubins[MC_LEN(PROGRAMS)] = {{0}};
    Bench w[MC_LEN(PROGRAMS)];
    bool ok;

    (void)state;
    if (!have_nvrtc())
        skip();
    for (size_t i = 0; i < MC_LEN(PROGRAMS); i++) {
        bench_make(&w[i], &PROGRAMS[i], &texts[i]);
        units[i] = (CodeUnit){PROGRAMS[i].name, texts[i].s};
    }
    ok = codegen_cuda_build(units, MC_LEN(PROGRAMS), "sm_90a", 2, w[0].diag,
                            (Loc){0}, cubins);
    diag_print(w[0].diag, stderr);
    assert_true(ok);
    for (size_t i = 0; i < MC_LEN(PROGRAMS); i++) {
        buf_free(&texts[i]);
        buf_free(&cubins[i]);
        bench_close(&w[i]);
    }
}

/* ---- accumulation ----------------------------------------------------------
 */

static TensorId state_like(Bench *b, ValueId v, const char *name)
{
    Tensor t = {.name = sym_intern(b->m->names, name),
                .type = value_of(b->m, v)->type,
                .fields = 1u << FIELD_GRAD};

    t.logical = *value_type(b->m, v);
    t.field_dtype[FIELD_GRAD] = DT_F32;
    return tensor_new(b->m, &t);
}

/* An element, a column sum and a number, as results or accumulated. */
static void build_three(Bench *b, bool accumulate)
{
    ValueId x = param(b, "x", "sbh", DT_F32), v[3];

    v[0] = one(b, OP_EXP, x);
    v[1] = sum(b, x, "h");
    v[2] = sum(b, two(b, OP_MUL, x, x), "");
    for (int i = 0; i < 3; i++)
        if (accumulate)
            ir_accum(b->m, b->f,
                     state_like(b, v[i], (char[]){'t', (char)('0' + i), 0}),
                     FIELD_GRAD, v[i], (Loc){0});
        else
            result(b, v[i]);
}

static void build_three_results(Bench *b)
{
    build_three(b, false);
}

/* Accumulating into ones gives the results plus one. */
static void test_accumulate(void **state)
{
    const Program p = {"three", build_three_results, 1e-6};
    Buf text = {0}, adding = {0};
    Bench w, sink;
    void *so;

    (void)state;
    bench_make(&w, &p, &text);
    operands_make(&w);
    bench_open(&sink, "three", FUNC_ROW);
    build_three(&sink, true);
    row_print(sink.m, sink.f, "three", NULL, &adding, &sink.info);
    assert_int_equal(sink.info.nptr, w.info.nptr);
    so = load_text("three", adding.s);
    for (int i = 1; i <= 3; i++)
        for (size_t k = 0; k < w.bytes[i] / 4; k++)
            ((float *)w.ptr[i])[k] = 1.0f;
    launch(&w, so, "three", 3);
    for (int i = 1; i <= 3; i++)
        for (size_t k = 0; k < w.bytes[i] / 4; k++)
            ((float *)w.ptr[i])[k] -= 1.0f;
    check_results(&w, "three", 1e-6, adding.s);
    dlclose(so);
    buf_free(&text);
    buf_free(&adding);
    bench_close(&sink);
    bench_close(&w);
}

/* ---- a share of the vocabulary
 * ------------------------------------------------ */

static AxisSet pair_axis(Bench *b)
{
    return 1u << mesh_atom(&b->m->mesh, sym_intern(b->m->names, "tp"), 0, 2, 1,
                           false);
}

/* Halves dimension v of every value that has it. */
static void split_all(Bench *b)
{
    uint8_t atom = 0; /* the only one, of pair_axis */
    Layout l = {0};

    layout_set_split(&l, 'v', &atom, 1);
    for (uint32_t i = 1; i < b->m->values.n; i++)
        b->m->values.v[i].layout =
            type_dim(value_type(b->m, (ValueId){i}), 'v') < 0
                ? layout_whole(b->m)
                : layout_intern(b->m, &l);
    b->m->props |= PROP_LAYOUT;
}

/* Label picking, padding mask, and a value that only the first rank keeps. */
static void build_vocabulary_share(Bench *b)
{
    ValueId x = param(b, "x", "sbv", DT_F32), t = param(b, "t", "sb", DT_I32);
    Sym v = sym_intern(b->m->names, "v");
    Attr hot[] = {attr_of_sym(AK_DIMS, v),
                  attr_of_int(AK_SIZE, size_of_dim('v'))};
    Attr below[] = {hot[0], hot[1], attr_of_int(AK_LIMIT, 250)};
    Attr axes[] = {attr_of_axes(AK_AXES, pair_axis(b))};
    ValueId real = with_attrs(b, OP_INRANGE, (ValueId){0}, below, 3);

    result(b, two(b, OP_MUL, x, with_attrs(b, OP_ONEHOT, t, hot, 2)));
    result(b, two(b, OP_MUL, x, real));
    result(b, with_attrs(b, OP_ONLY, x, axes, 1));
    split_all(b);
}

static void test_vocabulary_share(void **state)
{
    const Program p = {"share", build_vocabulary_share, 1e-7};
    Buf text = {0};
    Bench w;
    void *so;

    (void)state;
    bench_make(&w, &p, &text);
    /* the first row of the vocabulary, for two ops, and the flag */
    assert_int_equal(w.info.nimm, 2);
    so = load_text("share", text.s);
    operands_make(&w);
    for (w.rank = 0; w.rank < 2; w.rank++) {
        starts_set(&w);
        launch(&w, so, "share", 2);
        check_results(&w, "share", 1e-7, text.s);
    }
    dlclose(so);
    buf_free(&text);
    bench_close(&w);
}

/* ---- what cannot be one kernel, what may share memory ------------------- */

/* A column reduction whose result meets the rows again. */
static void build_column_then_rows(Bench *b)
{
    ValueId x = param(b, "x", "sbh", DT_F32);
    ValueId total = sum(b, sum(b, x, "h"), "");

    result(b, total);
}

static void build_two_rotations(Bench *b)
{
    result(b, rotate(b, rotate(b, param(b, "x", "sd", DT_F32), 24, 1), 24, 1));
}

static void build_rows_disagree(Bench *b)
{
    ValueId x = param(b, "x", "sgrd", DT_F32);
    ValueId y = two(b, OP_SUB, x, sum(b, x, "sgr"));

    result(b, two(b, OP_SUB, y, sum(b, y, "sg")));
}

static void test_refusals(void **state)
{
    void (*const builds[])(Bench *) = {
        build_column_then_rows, build_two_rotations, build_rows_disagree};

    (void)state;
    for (size_t i = 0; i < MC_LEN(builds); i++) {
        Bench w;
        bench_open(&w, "refused", FUNC_ROW);
        builds[i](&w);
        assert_non_null(row_refusal(w.m, w.f));
        bench_close(&w);
    }
}

static bool in_place(void (*build)(Bench *), uint32_t arg, uint32_t res)
{
    Bench w;
    bool ok;

    bench_open(&w, "placed", FUNC_ROW);
    build(&w);
    ok = row_in_place(w.m, w.f, arg, res);
    bench_close(&w);
    return ok;
}

static void test_in_place(void **state)
{
    (void)state;
    assert_true(in_place(build_adamw, 0, 0));         /* p -> p */
    assert_true(in_place(build_adamw, 2, 1));         /* m -> m */
    assert_false(in_place(build_adamw, 0, 2));        /* f32 into bf16 */
    assert_true(in_place(build_rmsnorm, 0, 0));       /* x -> y, x read last */
    assert_true(in_place(build_rmsnorm_grad, 2, 0));  /* dy -> dx */
    assert_false(in_place(build_rope, 0, 0));         /* reads the other half */
    assert_false(in_place(build_mixed_shapes, 1, 1)); /* w -> 2w, read by all */
    assert_false(in_place(build_sums, 1, 3));         /* other dimensions */
}

/* AdamW where the new parameter and moment lie where the old ones were. */
static void test_in_place_runs(void **state)
{
    const Program p = {"adamw", build_adamw, 5e-3};
    Buf text = {0};
    Bench w;
    void *so, *own[2];

    (void)state;
    bench_make(&w, &p, &text);
    operands_make(&w);
    so = load_text("adamw_in_place", text.s);
    own[0] = w.ptr[4];
    own[1] = w.ptr[5];
    w.ptr[4] = w.ptr[0];
    w.ptr[5] = w.ptr[2];
    launch(&w, so, "adamw", 2);
    check_results(&w, p.name, p.limit, text.s);
    w.ptr[4] = own[0];
    w.ptr[5] = own[1];
    dlclose(so);
    buf_free(&text);
    bench_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_programs),
        cmocka_unit_test(test_programs_compile_for_cuda),
        cmocka_unit_test(test_accumulate),
        cmocka_unit_test(test_vocabulary_share),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_in_place_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
