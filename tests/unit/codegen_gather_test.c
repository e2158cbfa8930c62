/* codegen_gather_test.c - embedding, position tables and rotary angles against
 * the evaluator, whole and as rank 1's half of a mesh of two.
 */
#include "codegen_bench.h"

typedef struct {
    const char *name;
    Op op;
    const char *args[2], *result; /* dimensions */
    DType types[2];
    const char *scaling; /* rope_table */
    char split;          /* the dimension that the two ranks share, or 0 */
} Case;

static int64_t size_of_dim(char dim)
{
    switch (dim) {
    case 's':
        return 26;
    case 'b':
        return 3;
    case 'h':
        return 45;
    case 'v':
        return 40;
    case 'p':
        return 60;
    default:
        return 1;
    }
}

/* ---- one node ----------------------------------------------------------- */

static ValueId make_param(Bench *w, const char *dims, DType t, const char *name)
{
    int64_t size[IR_MAX_DIMS];

    for (size_t i = 0; dims[i]; i++)
        size[i] = size_of_dim(dims[i]);
    return func_param(w->m, w->f, type_make(w->m, t, dims, size), name);
}

static AttrsId make_attrs(Bench *w, const Case *c)
{
    bool table = c->op == OP_ROPE_TABLE;
    int64_t created = c->op == OP_EMBED_GRAD  ? size_of_dim('v')
                      : c->op == OP_ROWS_GRAD ? size_of_dim('p')
                                              : size_of_dim('s');
    Attr attrs[] = {
        attr_of_int(AK_SIZE, created),
        attr_of_int(AK_CHANNELS, 24),
        attr_of_int(AK_ROTARY, 16),
        attr_of_float(AK_BASE, 500.0),
        attr_of_float(AK_FACTOR, 8.0),
        attr_of_float(AK_LOW, 1.0),
        attr_of_float(AK_HIGH, 4.0),
        attr_of_int(AK_ORIGINAL, 64),
        attr_of_sym(AK_WHAT, sym_intern(w->m->names, c->args[0])),
        attr_of_sym(AK_SCALING,
                    sym_intern(w->m->names, c->scaling ? c->scaling : "none")),
    };

    return attrs_intern(w->m, attrs, table ? MC_LEN(attrs) : 1);
}

/* Splits dimension c->split of every value that has it over the two ranks. */
static void split_value(Bench *w, const Case *c, ValueId v)
{
    uint8_t atom =
        mesh_atom(&w->m->mesh, sym_intern(w->m->names, "tp"), 0, 2, 1, false);
    Layout l = {0};

    w->m->props |= PROP_LAYOUT;
    if (type_dim(value_type(w->m, v), c->split) >= 0)
        layout_set_split(&l, c->split, &atom, 1);
    value_of(w->m, v)->layout = layout_intern(w->m, &l);
}

static NodeId make_node(Bench *w, const Case *c)
{
    ValueId args[2], res;
    uint32_t n = c->op == OP_ROPE_TABLE ? 0 : c->args[1] ? 2 : 1;

    for (uint32_t i = 0; i < n; i++)
        args[i] = make_param(w, c->args[i], c->types[i], i ? "y" : "x");
    res = ir_op(w->m, w->f, c->op, args, n, make_attrs(w, c), (Loc){0});
    assert_true(res.i != 0);
    vec_push(&func_of(w->m, w->f)->results, res);
    for (uint32_t i = 0; i < n && c->split; i++)
        split_value(w, c, args[i]);
    if (c->split)
        split_value(w, c, res);
    return vec_last(&func_of(w->m, w->f)->body);
}

/* Tokens that repeat, and some that lie in another rank's part. */
static void set_tokens(Bench *w, const Case *c)
{
    size_t n = (size_t)(size_of_dim('s') * size_of_dim('b'));
    uint64_t seed = 3;

    if (c->op != OP_EMBED && c->op != OP_EMBED_GRAD)
        return;
    for (size_t i = 0; i < n; i++) {
        int32_t token = (int32_t)((random_unit(&seed) + 1.0f) * 20.0f);
        ((int32_t *)w->ptr[0])[i] = token;
        w->args[0].at[i].f = token;
    }
}

static void check_case(const Case *c)
{
    Buf text = {0};
    Bench w;
    NodeId n;
    void *so;

    bench_open(&w, c->name, FUNC_GRAPH);
    w.rank = c->split ? 1 : 0;
    n = make_node(&w, c);
    gather_print(w.m, n, c->name, false, &text, &w.info);
    operands_make(&w);
    set_tokens(&w, c);
    starts_set(&w);
    so = load_text(c->name, text.s);
    check_threads(&w, so, c->name);
    check_results(&w, c->name, 1e-7, text.s);
    dlclose(so);
    buf_free(&text);
    bench_close(&w);
}

/* ---- tests -------------------------------------------------------------- */

static const Case CASES[] = {
    {"embed", OP_EMBED, {"sb", "vh"}, "sbh", {DT_I32, DT_BF16}, NULL, 0},
    {"embed_part", OP_EMBED, {"sb", "vh"}, "sbh", {DT_I32, DT_F32}, NULL, 'v'},
    {"embed_grad",
     OP_EMBED_GRAD,
     {"sb", "sbh"},
     "vh",
     {DT_I32, DT_F32},
     NULL,
     0},
    {"embed_grad_part",
     OP_EMBED_GRAD,
     {"sb", "sbh"},
     "vh",
     {DT_I32, DT_BF16},
     NULL,
     'v'},
    {"rows", OP_ROWS, {"ph", NULL}, "sh", {DT_F32, 0}, NULL, 0},
    {"rows_part", OP_ROWS, {"ph", NULL}, "sh", {DT_BF16, 0}, NULL, 's'},
    {"rows_grad", OP_ROWS_GRAD, {"sh", NULL}, "ph", {DT_F32, 0}, NULL, 0},
    {"rows_grad_part",
     OP_ROWS_GRAD,
     {"sh", NULL},
     "ph",
     {DT_F32, 0},
     NULL,
     's'},
    {"cosines", OP_ROPE_TABLE, {"cos", NULL}, "sd", {0, 0}, "none", 0},
    {"sines", OP_ROPE_TABLE, {"sin", NULL}, "sd", {0, 0}, "linear", 0},
    {"sines_part", OP_ROPE_TABLE, {"sin", NULL}, "sd", {0, 0}, "llama3", 's'},
};

static void test_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(CASES); i++)
        check_case(&CASES[i]);
}

/* Accumulating adds to what is there: twice the gradient after two runs. */
static void test_accumulate(void **state)
{
    const Case *c = &CASES[2];
    Buf text = {0};
    Bench w;
    void *so;

    (void)state;
    bench_open(&w, c->name, FUNC_GRAPH);
    gather_print(w.m, make_node(&w, c), c->name, true, &text, &w.info);
    operands_make(&w);
    set_tokens(&w, c);
    memset(w.ptr[2], 0, w.bytes[2]);
    so = load_text("embed_accumulate", text.s);
    launch(&w, so, c->name, 2);
    check_results(&w, c->name, 1e-6, text.s);
    launch(&w, so, c->name, 3);
    for (size_t i = 0; i < w.bytes[2] / 4; i++)
        ((float *)w.ptr[2])[i] *= 0.5f;
    check_results(&w, c->name, 1e-6, text.s);
    dlclose(so);
    buf_free(&text);
    bench_close(&w);
}

static void test_compile_for_cuda(void **state)
{
    Bench w[MC_LEN(CASES)];
    Buf texts[MC_LEN(CASES)] = {{0}}, cubins[MC_LEN(CASES)] = {{0}};
    CodeUnit units[MC_LEN(CASES)];
    bool ok;

    (void)state;
    if (!have_nvrtc())
        skip();
    for (size_t i = 0; i < MC_LEN(CASES); i++) {
        bench_open(&w[i], CASES[i].name, FUNC_GRAPH);
        gather_print(w[i].m, make_node(&w[i], &CASES[i]), CASES[i].name, false,
                     &texts[i], &w[i].info);
        units[i] = (CodeUnit){CASES[i].name, texts[i].s};
    }
    ok = codegen_cuda_build(units, MC_LEN(CASES), "sm_80", 2, w[0].diag,
                            (Loc){0}, cubins);
    diag_print(w[0].diag, stderr);
    assert_true(ok);
    for (size_t i = 0; i < MC_LEN(CASES); i++) {
        buf_free(&texts[i]);
        buf_free(&cubins[i]);
        bench_close(&w[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_accumulate),
        cmocka_unit_test(test_compile_for_cuda),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
