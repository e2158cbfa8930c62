/* fuse_test.c - fusion of small modules, tests/golden/fuse/x.mir -> x.out, and
 * of whole models.
 *
 * Every module must mean the same before and after, exactly, in the prime
 * field.  MEGAC_REFRESH=1 writes the .out files anew; review them as a diff.
 */
#include "codegen/kernels.h"
#include "frontend/model.h"
#include "ir/eval.h"
#include "passes/passes.h"

#include <glob.h>
#include <setjmp.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

static int enter_folder(void **state)
{
    char path[512];
    const char *slash = strstr(__FILE__, "tests/unit");

    (void)state;
    snprintf(path, sizeof path, "%.*s", (int)(slash - __FILE__), __FILE__);
    return chdir(*path ? path : ".");
}

/* ---- what holds after fusion -------------------------------------------- */

static bool is_attention(const Module *m, NodeId n)
{
    Op op = (Op)m->nodes.v[n.i].op;

    return op == OP_ATTENTION || op == OP_ATTENTION_GRAD ||
           op == OP_ATTENTION_STEP || op == OP_ATTENTION_STEP_GRAD;
}

/* Attention alone reads parts where they lie and writes what joins them. */
static bool is_view(const Module *m, const Func *f, const Node *n)
{
    bool only = n->op == OP_PART;

    if (n->op == OP_JOIN)
        return is_attention(m, m->values.v[node_arg(m, n, 0).i].def);
    for (uint32_t i = 0; only && i < f->body.n; i++) {
        const Node *user = &m->nodes.v[f->body.v[i].i];

        for (uint32_t k = 0; k < user->nargs; k++)
            only &= node_arg(m, user, k).i != n->res.i ||
                    (k < 3 && is_attention(m, f->body.v[i]));
    }
    return only;
}

static void each_op_is_fused(const Module *m)
{
    for (uint32_t f = 1; f < m->funcs.n; f++)
        for (uint32_t i = 0; i < m->funcs.v[f].body.n; i++) {
            const Node *n = &m->nodes.v[m->funcs.v[f].body.v[i].i];
            Op op = (Op)n->op;

            if (m->funcs.v[f].kind == FUNC_GRAPH && op != OP_CONST &&
                (op_info[op].flags & OPF_ROW) &&
                !is_view(m, &m->funcs.v[f], n))
                fail_msg("%s is left in @%s", op_info[op].name,
                         sym_text(m->names, m->funcs.v[f].name));
        }
}

static void each_program_is_a_kernel(const Module *m)
{
    for (uint32_t f = 1; f < m->funcs.n; f++) {
        const char *why = NULL;

        if (m->funcs.v[f].kind == FUNC_ROW && m->funcs.v[f].body.n)
            why = row_refusal(m, (FuncId){f});
        if (why)
            fail_msg("@%s: %s", sym_text(m->names, m->funcs.v[f].name), why);
    }
}

static void fuse_and_compare(Arena *a, Module *m, const Spec *spec)
{
    EvalResult *before = eval_run(a, m, EVAL_FIELD, 5), *after;
    bool same;

    if (!before)
        diag_print(m->diag, stderr);
    assert_non_null(before);
    assert_true(pass_fuse(m, spec));
    if (!module_verify(m))
        diag_print(m->diag, stderr);
    assert_int_equal(diag_errors(m->diag), 0);
    after = eval_run(a, m, EVAL_FIELD, 5);
    same = after && eval_equal(before, after, m->diag, 0);
    if (!same)
        diag_print(m->diag, stderr);
    assert_true(same);
    each_op_is_fused(m);
    each_program_is_a_kernel(m);
}

/* ---- small modules ------------------------------------------------------ */

static void check_file(const char *path)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    char *out = arena_printf(a, "%.*s.out", (int)strlen(path) - 4, path);
    Buf text = {0}, got = {0}, want = {0};
    Module *m;

    assert_true(buf_read_file(&text, path));
    m = module_parse(a, d, path, buf_str(&text));
    if (!m)
        diag_print(d, stderr);
    assert_non_null(m);
    fuse_and_compare(a, m, NULL);
    module_print(m, &got);
    if (getenv("MEGAC_REFRESH"))
        assert_true(buf_write_file(&got, out));
    if (!buf_read_file(&want, out))
        fail_msg("%s is missing", out);
    if (strcmp(buf_str(&got), buf_str(&want)) != 0)
        fail_msg("%s: got\n%s", out, buf_str(&got));
    buf_free(&text);
    buf_free(&got);
    buf_free(&want);
    module_free(m);
    diag_free(d);
    arena_free(a);
}

static void golden_files(void **state)
{
    glob_t files;

    (void)state;
    assert_int_equal(glob("tests/golden/fuse/*.mir", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++)
        check_file(files.gl_pathv[i]);
    globfree(&files);
}

/* ---- whole models ------------------------------------------------------- */

static void check_model(const char *path, const char *const *sets, int nsets)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Spec *spec = spec_load(a, d, path, sets, nsets);
    PassOptions to_pipeline = {.stop_after = "pipeline"};
    Module *m;

    if (!spec)
        diag_print(d, stderr);
    assert_non_null(spec);
    spec = spec_shrink(a, spec);
    m = model_build(a, d, spec);
    m->props |= PROP_INFERRED;
    assert_true(passes_run(m, spec, &to_pipeline));
    fuse_and_compare(a, m, spec);
    module_free(m);
    diag_free(d);
    arena_free(a);
}

#define MODEL(path, ...)                                                       \
    check_model(path, (const char *const[]){__VA_ARGS__},                      \
                (int)(sizeof((const char *const[]){__VA_ARGS__}) /             \
                      sizeof(char *)))

static void models_mean_the_same(void **state)
{
    (void)state;
    MODEL("configs/examples/demo.yaml", "parallel.tp=2", "parallel.sp=true",
          "parallel.pp=2", "parallel.dp=2", "training.precision=bf16");
    MODEL("configs/examples/demo.yaml", "parallel.tp=1", "parallel.sp=false",
          "parallel.pp=1", "model.qk_norm=true", "training.precision=fp32");
    MODEL("configs/models/gpt2-124m.yaml", "parallel.tp=2", "parallel.pp=2");
    MODEL("configs/models/qwen2.5-0.5b.yaml", "parallel.tp=2",
          "parallel.sp=true", "training.precision=fp32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_files),
        cmocka_unit_test(models_mean_the_same),
    };

    return cmocka_run_group_tests(tests, enter_folder, NULL);
}
