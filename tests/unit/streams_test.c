/* streams_test.c - events on small modules, tests/golden/streams/x.mir ->
 * x.out, what goes ahead of its iteration, tests/golden/prefetch likewise, and
 * what events are worth: the spans that memplan goes by.
 *
 * Every module must mean the same before and after.  MEGAC_REFRESH=1 writes
 * the .out files anew; review them as a diff.
 */
#include "frontend/model.h"
#include "ir/eval.h"
#include "passes/passes.h"
#include "passes/streams.h"

#include <glob.h>
#include <setjmp.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/unit/models.h"

typedef struct {
    Arena *arena;
    Diag *diag;
    Module *m;
} Rig;

static void must(const Rig *r, bool ok)
{
    if (!ok)
        diag_print(r->diag, stderr);
    assert_true(ok);
}

static Rig rig_open(const char *name, const char *text)
{
    Rig r = {.arena = arena_new()};

    r.diag = diag_new(r.arena);
    r.m = module_parse(r.arena, r.diag, name, text);
    must(&r, r.m != NULL);
    must(&r, module_verify(r.m));
    return r;
}

static void rig_close(Rig *r)
{
    module_free(r->m);
    diag_free(r->diag);
    arena_free(r->arena);
}

typedef bool PassFn(Module *m, const Spec *spec);

static void run_and_compare(const Rig *r, PassFn *pass)
{
    EvalResult *before = eval_run(r->arena, r->m, EVAL_FIELD, 5), *after;

    must(r, before != NULL);
    must(r, pass(r->m, NULL));
    must(r, module_verify(r->m));
    after = eval_run(r->arena, r->m, EVAL_FIELD, 5);
    must(r, after && eval_equal(before, after, r->diag, 0));
}

/* ---- golden files -------------------------------------------------------- */

static void check_file(const char *path, PassFn *pass)
{
    Buf text = {0}, got = {0}, want = {0};
    char out[256];
    Rig r;

    snprintf(out, sizeof out, "%.*s.out", (int)strlen(path) - 4, path);
    assert_true(buf_read_file(&text, path));
    r = rig_open(path, buf_str(&text));
    run_and_compare(&r, pass);
    module_print(r.m, &got);
    if (getenv("MEGAC_REFRESH"))
        assert_true(buf_write_file(&got, out));
    if (!buf_read_file(&want, out))
        fail_msg("%s is missing", out);
    if (strcmp(buf_str(&got), buf_str(&want)) != 0)
        fail_msg("%s: got\n%s", out, buf_str(&got));
    buf_free(&text);
    buf_free(&got);
    buf_free(&want);
    rig_close(&r);
}

static void check_files(const char *pattern, size_t least, PassFn *pass)
{
    glob_t files;

    assert_int_equal(glob(pattern, 0, NULL, &files), 0);
    assert_true(files.gl_pathc >= least);
    for (size_t i = 0; i < files.gl_pathc; i++)
        check_file(files.gl_pathv[i], pass);
    globfree(&files);
}

static void golden_files(void **state)
{
    (void)state;
    check_files(MEGAC_SOURCE_DIR "/tests/golden/streams/*.mir", 9,
                pass_streams);
    check_files(MEGAC_SOURCE_DIR "/tests/golden/prefetch/*.mir", 2,
                pass_prefetch);
}

/* ---- spans --------------------------------------------------------------- */

static const char ordered[] =
    "module {layers=0, microbatches=1, props=[inferred, layout, pipelined]}\n"
    "mesh world=2 {dp=2:1}\n"
    "tensor @x : f32[h=8] {\n    init normal 0.02\n    param f32 {+dp}\n}\n"
    "row @twice(%x : f32[h=8] {}) {\n"
    "    %y = add %x, %x : f32[h=8] {}\n    return %y\n}\n"
    "func @step() {\n"
    "    %x = read {tensor=@x, field=param} : f32[h=8] {+dp}\n"      /* 0 */
    "    event {event=0}\n"                                          /* 1 */
    "    wait !dp {event=0, on=dp}\n"                                /* 2 */
    "    %y = all_reduce !dp %x {axes=dp} : f32[h=8] {}\n"           /* 3 */
    "    event !dp {event=1}\n"                                      /* 4 */
    "    wait {event=1, on=compute}\n"                               /* 5 */
    "    %z = row %y {callee=@twice} : f32[h=8] {}\n"                /* 6 */
    "    %v = all_reduce !dp %x {axes=dp} : f32[h=8] {}\n"           /* 7 */
    "    return\n}\nentry @step\n";

/* From the mark that the collective waits for to the wait for its own mark;
 * to the end if nobody waits. */
static void spans_reach_from_mark_to_wait(void **state)
{
    Rig r = rig_open("t.mir", ordered);
    int32_t begin[8], done[8];

    (void)state;
    streams_extents(r.m, r.m->entry.v[0], begin, done);
    assert_int_equal(begin[3], 1);
    assert_int_equal(done[3], 5);
    assert_int_equal(begin[6], 6);
    assert_int_equal(done[6], 6);
    assert_int_equal(begin[7], 1);
    assert_int_equal(done[7], 8);
    rig_close(&r);
}

/* ---- turned off ---------------------------------------------------------- */

static bool is_product(const Node *n)
{
    return n->op == OP_DOT || n->op == OP_DOTS || n->op == OP_DOT_FILLED ||
           n->op == OP_DOTS_SUM || n->op == OP_DOTS_ACCUM || n->op == OP_CALL;
}

/* What communicates on streams `from` to `to`, and the products and calls that
 * lie within its spans. */
typedef struct {
    uint32_t messages, products;
} Beside;

static void count_beside(const Module *m, FuncId f, Stream from, Stream to,
                         Beside *out)
{
    const Func *func = &m->funcs.v[f.i];
    int32_t *begin = arena_array(m->arena, int32_t, func->body.n);
    int32_t *done = arena_array(m->arena, int32_t, func->body.n);

    streams_extents(m, f, begin, done);
    for (uint32_t i = 0; i < func->body.n; i++) {
        const Node *n = &m->nodes.v[func->body.v[i].i];
        if (!(op_info[n->op].flags & OPF_COMM) || n->stream < from ||
            n->stream > to)
            continue;
        out->messages++;
        for (int32_t k = begin[i] + 1; k < done[i]; k++)
            out->products += is_product(&m->nodes.v[func->body.v[k].i]);
    }
}

static Beside beside_compute(const char *text, const char *const *sets, int n,
                             Stream from, Stream to)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Spec *spec = spec_parse(a, d, "model", text, sets, n);
    const PassOptions options = {0};
    Beside all = {0};
    Module *m;

    assert_non_null(spec);
    m = model_build(a, d, spec);
    assert_true(passes_run(m, spec, &options));
    for (uint32_t f = 1; f < m->funcs.n; f++)
        if (m->funcs.v[f].kind == FUNC_GRAPH)
            count_beside(m, (FuncId){f}, from, to, &all);
    module_free(m);
    diag_free(d);
    arena_free(a);
    return all;
}

/* The last of the sets turns it off. */
static void overlap_can_be_turned_off(void **state)
{
    const char *tp[] = {"parallel.tp=2", "parallel.sp=true",
                        "parallel.overlap.tp=false"};
    const char *ep[] = {"parallel.ep=2", "model.moe.shared_ffn_hidden_size=64",
                        "parallel.overlap.ep=false"};
    const char *gather[] = {"parallel.ep=2", "model.moe.dispatcher=allgather",
                            "parallel.overlap.ep=false"};

    (void)state;
    assert_true(
        beside_compute(MODEL_T0, tp, 2, STREAM_TP, STREAM_TP).products > 0);
    assert_int_equal(
        beside_compute(MODEL_T0, tp, 3, STREAM_TP, STREAM_TP).messages, 0);
    assert_true(
        beside_compute(MODEL_M0, ep, 2, STREAM_EP, STREAM_EP).products > 0);
    assert_int_equal(
        beside_compute(MODEL_M0, ep, 3, STREAM_EP, STREAM_EP).messages, 0);
    assert_true(
        beside_compute(MODEL_M0, gather, 2, STREAM_EP, STREAM_EP).products > 0);
    assert_int_equal(
        beside_compute(MODEL_M0, gather, 3, STREAM_EP, STREAM_EP).messages, 0);
}

/* Messages of the pipeline keep lines of their own, but nothing is computed
 * while they travel. */
static void messages_can_be_waited_for(void **state)
{
    static const char *const schedules[] = {"1f1b", "zb-v", "dualpipe-v"};

    (void)state;
    for (size_t i = 0; i < MC_LEN(schedules); i++) {
        char set[64];
        const char *sets[] = {"parallel.pp=2", set,
                              "parallel.overlap.p2p=false"};
        Beside on, off;
        snprintf(set, sizeof set, "parallel.schedule=%s", schedules[i]);
        on = beside_compute(MODEL_T0, sets, 2, STREAM_SEND_FWD,
                            STREAM_RECV_BWD);
        off = beside_compute(MODEL_T0, sets, 3, STREAM_SEND_FWD,
                             STREAM_RECV_BWD);
        assert_int_equal(on.messages, off.messages);
        assert_true(on.products > 0);
        assert_int_equal(off.products, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overlap_can_be_turned_off),
        cmocka_unit_test(messages_can_be_waited_for),
        cmocka_unit_test(golden_files),
        cmocka_unit_test(spans_reach_from_mark_to_wait),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
