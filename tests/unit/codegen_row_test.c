/* codegen_row_test.c - printed row programs against the reference evaluator.
 *
 * Every program below is built as IR, printed as C, compiled, run with one and
 * with three threads (whose bytes must agree) and compared with eval_func in
 * fp64.  The same programs are printed as CUDA and compiled for a GPU.
 */
#include "codegen_load.h"

#include "codegen/kernels.h"
#include "ir/eval.h"

#include <math.h>

enum { MAX_OPERANDS = 16 };

typedef struct {
    Module *m;
    FuncId f;
} Builder;

typedef struct {
    const char *name;
    void (*build)(Builder *b);
    double limit; /* of the relative L2 distance */
} Program;

/* ---- building ---------------------------------------------------------------------- */

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
        return 301;
    default:
        return 1;
    }
}

static ValueId param(Builder *b, const char *name, const char *dims,
                     DType dtype)
{
    int64_t size[IR_MAX_DIMS];

    for (size_t i = 0; dims[i]; i++)
        size[i] = size_of_dim(dims[i]);
    return func_param(b->m, b->f, type_make(b->m, dtype, dims, size), name);
}

static ValueId one(Builder *b, Op op, ValueId x)
{
    return ir_unary(b->m, b->f, op, x, (Loc){0});
}

static ValueId two(Builder *b, Op op, ValueId x, ValueId y)
{
    return ir_binary(b->m, b->f, op, x, y, (Loc){0});
}

static ValueId number(Builder *b, double x)
{
    return ir_const(b->m, b->f, x, (Loc){0});
}

static ValueId sum(Builder *b, ValueId x, const char *keep)
{
    return ir_sum(b->m, b->f, x, keep, (Loc){0});
}

static ValueId cast(Builder *b, ValueId x, DType dtype)
{
    return ir_cast(b->m, b->f, x, dtype, (Loc){0});
}

static ValueId with_attrs(Builder *b, Op op, ValueId x, Attr *attrs, uint32_t n)
{
    return ir_op(b->m, b->f, op, &x, op_info[op].nargs == 0 ? 0 : 1,
                 attrs_intern(b->m, attrs, n), (Loc){0});
}

static void result(Builder *b, ValueId v)
{
    vec_push(&func_of(b->m, b->f)->results, v);
}

/* ---- programs ----------------------------------------------------------------------- */

static void build_pointwise(Builder *b)
{
    static const Op ops[] = {OP_NEG,  OP_EXP, OP_SIGMOID, OP_TANH,
                             OP_ERF,  OP_RELU, OP_STEP};
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

static ValueId rms_inverse(Builder *b, ValueId x)
{
    ValueId squares = sum(b, two(b, OP_MUL, x, x), "sb");
    ValueId mean = two(b, OP_MUL, squares, ir_ratio(b->m, b->f, 1, 200, false,
                                                    (Loc){0}));

    return one(b, OP_RSQRT, two(b, OP_ADD, mean, number(b, 1e-5)));
}

static void build_rmsnorm(Builder *b)
{
    ValueId x = param(b, "x", "sbh", DT_F32), w = param(b, "w", "h", DT_F32);
    ValueId inverse = rms_inverse(b, x);

    result(b, two(b, OP_MUL, two(b, OP_MUL, x, inverse), w));
    result(b, inverse);
}

/* dx, and dw summed over all rows. */
static void build_rmsnorm_grad(Builder *b)
{
    ValueId x = param(b, "x", "sbh", DT_F32), w = param(b, "w", "h", DT_F32);
    ValueId dy = param(b, "dy", "sbh", DT_F32);
    ValueId inverse = rms_inverse(b, x);
    ValueId normed = two(b, OP_MUL, x, inverse);
    ValueId wdy = two(b, OP_MUL, dy, w);
    ValueId along = sum(b, two(b, OP_MUL, wdy, normed), "sb");
    ValueId back = two(b, OP_MUL, normed,
                       two(b, OP_MUL, along, number(b, 1.0 / 200)));

    result(b, two(b, OP_MUL, two(b, OP_SUB, wdy, back), inverse));
    result(b, two(b, OP_MUL, sum(b, two(b, OP_MUL, dy, normed), "h"),
                  number(b, 3.0)));
}

static void build_layernorm_bf16(Builder *b)
{
    ValueId x = param(b, "x", "sbh", DT_BF16), w = param(b, "w", "h", DT_BF16);
    ValueId n = number(b, 1.0 / 200);
    ValueId mean = two(b, OP_MUL, sum(b, x, "sb"), n);
    ValueId off = two(b, OP_SUB, x, mean);
    ValueId var = two(b, OP_MUL, sum(b, two(b, OP_MUL, off, off), "sb"), n);
    ValueId inverse = one(b, OP_RSQRT, two(b, OP_ADD, var, number(b, 1e-5)));

    result(b, cast(b, two(b, OP_MUL, two(b, OP_MUL, off, inverse), w),
                   DT_BF16));
    result(b, mean);
}

static void build_swiglu_grad(Builder *b)
{
    ValueId gate = param(b, "gate", "sbf", DT_F32);
    ValueId up = param(b, "up", "sbf", DT_F32);
    ValueId dy = param(b, "dy", "sbf", DT_BF16);
    ValueId s = one(b, OP_SIGMOID, gate), silu = two(b, OP_MUL, gate, s);
    ValueId ds = two(b, OP_MUL, s,
                     two(b, OP_ADD, number(b, 1.0),
                         two(b, OP_SUB, gate, silu)));

    result(b, cast(b, two(b, OP_MUL, two(b, OP_MUL, dy, up), ds), DT_BF16));
    result(b, two(b, OP_MUL, dy, silu));
}

static ValueId row_max(Builder *b, ValueId x)
{
    return ir_max(b->m, b->f, x, "sb", (Loc){0});
}

static void build_cross_entropy(Builder *b)
{
    ValueId x = param(b, "x", "sbv", DT_F32), t = param(b, "t", "sb", DT_I32);
    Attr attrs[] = {attr_of_sym(AK_DIMS, sym_intern(b->m->names, "v")),
                    attr_of_int(AK_SIZE, size_of_dim('v'))};
    ValueId hot = with_attrs(b, OP_ONEHOT, t, attrs, 2);
    ValueId top = row_max(b, x), e = two(b, OP_EXPSUB, x, top);
    ValueId z = sum(b, e, "sb"), lse = two(b, OP_LOGADD, z, top);
    ValueId hit = sum(b, two(b, OP_MUL, x, hot), "sb");
    ValueId loss = two(b, OP_MUL, two(b, OP_SUB, lse, hit), one(b, OP_VALID, t));

    result(b, sum(b, loss, ""));
    result(b, two(b, OP_SUB, two(b, OP_DIV, e, z), hot));
}

static ValueId rotate(Builder *b, ValueId x, int64_t rotary, int64_t sign)
{
    Attr attrs[] = {attr_of_int(AK_ROTARY, rotary), attr_of_int(AK_SIGN, sign)};

    return with_attrs(b, OP_ROTATE, x, attrs, 2);
}

static ValueId rope(Builder *b, ValueId x, int64_t rotary, int64_t sign)
{
    ValueId cosine = param(b, "cos", "sd", DT_F32);
    ValueId sine = param(b, "sin", "sd", DT_F32);

    if (sign > 0)
        return two(b, OP_ADD, two(b, OP_MUL, x, cosine),
                   two(b, OP_MUL, rotate(b, x, rotary, 1), sine));
    return two(b, OP_ADD, two(b, OP_MUL, x, cosine),
               rotate(b, two(b, OP_MUL, x, sine), rotary, -1));
}

static void build_rope(Builder *b)
{
    result(b, rope(b, param(b, "q", "sbgrd", DT_F32), 24, 1));
}

static void build_rope_grad_part(Builder *b)
{
    result(b, rope(b, param(b, "k", "sbgd", DT_BF16), 16, -1));
}

/* A norm of each head's channels, then the rotation of what it makes. */
static void build_qk_norm_rope(Builder *b)
{
    ValueId q = param(b, "q", "sbgrd", DT_F32), w = param(b, "w", "d", DT_F32);
    ValueId mean = two(b, OP_MUL, sum(b, two(b, OP_MUL, q, q), "sbgr"),
                       number(b, 1.0 / 24));
    ValueId inverse = one(b, OP_RSQRT, two(b, OP_ADD, mean, number(b, 1e-6)));

    result(b, rope(b, two(b, OP_MUL, two(b, OP_MUL, q, inverse), w), 24, 1));
    result(b, sum(b, q, "d"));
}

static void build_adamw(Builder *b)
{
    ValueId p = param(b, "p", "fh", DT_F32), g = param(b, "g", "fh", DT_F32);
    ValueId m = param(b, "m", "fh", DT_F32), lr = param(b, "lr", "", DT_F32);
    ValueId scale = two(b, OP_MIN, number(b, 1.0), one(b, OP_RECIP,
                        two(b, OP_ADD, two(b, OP_MUL, lr, lr), number(b, 0.1))));

    g = two(b, OP_MUL, g, scale);
    m = two(b, OP_ADD, two(b, OP_MUL, m, number(b, 0.9)),
            two(b, OP_MUL, g, number(b, 0.1)));
    p = two(b, OP_SUB, p, two(b, OP_MUL, m, lr));
    result(b, p);
    result(b, m);
    result(b, cast(b, p, DT_BF16));
}

static void build_sums(Builder *b)
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

static void build_numbers(Builder *b)
{
    ValueId x = param(b, "x", "", DT_F32), y = param(b, "y", "", DT_F32);

    result(b, two(b, OP_MIN, number(b, 1.0), two(b, OP_DIV, x, y)));
    result(b, ir_ratio(b->m, b->f, 2, 3, true, (Loc){0}));
}

/* Values that do not depend on the rows of the others. */
static void build_mixed_shapes(Builder *b)
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

/* ---- running -------------------------------------------------------------------------- */

typedef struct {
    Arena *arena;
    Diag *diag;
    Builder b;
    KernelInfo info;
    void *ptr[MAX_OPERANDS];
    size_t bytes[MAX_OPERANDS];
    EvalArray want[MAX_OPERANDS], args[MAX_OPERANDS];
} Bench;

static double element(const void *p, DType t, size_t i)
{
    uint32_t u;
    float f;

    if (t == DT_I32)
        return (double)((const int32_t *)p)[i];
    if (t == DT_F32)
        return (double)((const float *)p)[i];
    u = (uint32_t)((const uint16_t *)p)[i] << 16;
    memcpy(&f, &u, sizeof f);
    return (double)f;
}

static void fill(void *p, DType t, size_t i, float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    if (t == DT_I32)
        ((int32_t *)p)[i] = (int32_t)(x * 200.0f);
    else if (t == DT_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = (uint16_t)(u >> 16);
}

static EvalArray array_like(Arena *a, const Type *t)
{
    EvalArray x = {.ndim = t->ndim};

    memcpy(x.dim, t->dim, sizeof x.dim);
    memcpy(x.size, t->size, sizeof x.size);
    x.at = arena_array(a, EvalNum, type_elems(t));
    return x;
}

static void operands_make(Bench *w)
{
    const Func *f = func_of(w->b.m, w->b.f);
    uint64_t seed = 7;
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->params.n + f->results.n; i++, n++) {
        bool input = i < f->params.n;
        ValueId v = input ? f->params.v[i] : f->results.v[i - f->params.n];
        const Type *t = value_type(w->b.m, v);
        size_t elems = (size_t)type_elems(t);
        w->bytes[n] = elems * (size_t)dtype_bytes(t->dtype);
        w->ptr[n] = malloc(w->bytes[n]);
        if (input)
            w->args[i] = array_like(w->arena, t);
        for (size_t k = 0; input && k < elems; k++) {
            fill(w->ptr[n], t->dtype, k, random_unit(&seed));
            w->args[i].at[k].f = element(w->ptr[n], t->dtype, k);
        }
    }
    if (w->info.workspace)
        w->ptr[n] = malloc((size_t)w->info.workspace);
}

static void bench_make(Bench *w, const Program *p, Dialect dialect, Buf *text)
{
    *w = (Bench){.arena = arena_new()};
    w->diag = diag_new(w->arena);
    w->b.m = module_new(w->arena, w->diag);
    w->b.f = func_new(w->b.m, p->name, FUNC_ROW, (Loc){0});
    p->build(&w->b);
    assert_null(row_refusal(w->b.m, w->b.f));
    row_print(w->b.m, w->b.f, p->name, dialect, NULL, text, &w->info);
}

static void bench_free(Bench *w)
{
    for (int i = 0; i < MAX_OPERANDS; i++)
        free(w->ptr[i]);
    module_free(w->b.m);
    diag_free(w->diag);
    arena_free(w->arena);
}

static void launch(Bench *w, void *so, const char *name, int nthreads)
{
    char second[64];

    kernel_run(kernel_find(so, name), w->ptr, NULL, nthreads);
    if (w->info.phases == 1)
        return;
    snprintf(second, sizeof second, "%s_2", name);
    kernel_run(kernel_find(so, second), w->ptr, NULL, nthreads);
}

static double distance(const Bench *w, uint32_t res)
{
    const Func *f = func_of(w->b.m, w->b.f);
    const Type *t = value_type(w->b.m, f->results.v[res]);
    const void *got = w->ptr[f->params.n + res];
    double off = 0.0, size = 1e-30;

    for (size_t i = 0; i < (size_t)type_elems(t); i++) {
        double want = w->want[res].at[i].f, x = element(got, t->dtype, i);
        off += (x - want) * (x - want);
        size += want * want;
    }
    return sqrt(off / size);
}

static void check_results(Bench *w, const Program *p, const char *text)
{
    const Func *f = func_of(w->b.m, w->b.f);
    const EvalOptions fp64 = {.kind = EVAL_FP64};

    assert_true(eval_func(w->arena, w->b.m, w->b.f, &fp64, 0, w->args,
                          w->want));
    for (uint32_t i = 0; i < f->results.n; i++) {
        double off = distance(w, i);
        if (!(off <= p->limit))
            print_error("%s: result %u is off by %g\n%s\n", p->name, i, off,
                        text);
        assert_true(off <= p->limit);
    }
}

/* The results of one thread and of three are the same bytes. */
static void check_threads(Bench *w, void *so, const char *name)
{
    const Func *f = func_of(w->b.m, w->b.f);
    void *first[MAX_OPERANDS];

    launch(w, so, name, 1);
    for (uint32_t i = 0; i < f->results.n; i++) {
        uint32_t k = f->params.n + i;
        first[i] = memcpy(malloc(w->bytes[k]), w->ptr[k], w->bytes[k]);
        memset(w->ptr[k], 0x7f, w->bytes[k]);
    }
    launch(w, so, name, 3);
    for (uint32_t i = 0; i < f->results.n; i++) {
        uint32_t k = f->params.n + i;
        assert_memory_equal(first[i], w->ptr[k], w->bytes[k]);
        free(first[i]);
    }
}

static void test_programs(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(PROGRAMS); i++) {
        const Program *p = &PROGRAMS[i];
        Buf text = {0};
        Bench w;
        void *so;
        bench_make(&w, p, DIALECT_CPU, &text);
        operands_make(&w);
        so = load_text(p->name, text.s);
        check_threads(&w, so, p->name);
        check_results(&w, p, text.s);
        dlclose(so);
        buf_free(&text);
        bench_free(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
