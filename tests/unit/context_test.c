/* context_test.c - what context parallelism says to whom, and when.
 *
 * Sizes are worked out beside the tests from the model of models.h: 32 tokens,
 * one sequence, 4 groups of 2 queries, 8 channels of 4 bytes, 4 layers and 4
 * microbatches.  How often a ring sends: Liu et al. 2023, section 3: keys and
 * values cp - 1 times, and in the backward once more their gradients, which
 * have to come home.  All-to-all: Jacobs et al. 2023 (DeepSpeed-Ulysses),
 * section 3.1; here the backward also moves o again, which the forward keeps
 * only as the output projection wants it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "driver/traffic.h"
#include "tests/unit/models.h"

enum { RUNS = 4 * 4 }; /* layers, microbatches */
enum { QUERIES = 8 * 4 * 2 * 8 * 4, KEYS = 8 * 4 * 8 * 4 }; /* of 8 tokens */

typedef struct {
    Input in;
    Program p;
} Compiled;

static Compiled compile(const char *const *sets, int n)
{
    Arena *a = arena_new();
    const PassOptions options = {0};
    Compiled c = {.in = {.arena = a, .diag = diag_new(a)}};

    c.in.spec = spec_parse(a, c.in.diag, "model", MODEL_T0, sets, n);
    if (!c.in.spec)
        diag_print(c.in.diag, stderr);
    assert_non_null(c.in.spec);
    assert_int_equal(program_build(&c.in, &options, &c.p), CLI_DONE);
    return c;
}

static void drop(Compiled *c)
{
    Arena *a = c->in.arena;

    program_free(&c->p);
    diag_free(c->in.diag);
    arena_free(a);
}

/* ---- how much ------------------------------------------------------------ */

/* How often a rank's step runs an op on `bytes` with `rank` 0's group. */
static int64_t count(const Compiled *c, Op op, int64_t bytes, const char *group)
{
    uint32_t n, members[64];
    const Traffic *t = traffic_make(c->in.arena, &c->p, 0, &n);
    int64_t runs = 0;

    for (uint32_t i = 0; i < n; i++) {
        const Mesh *mesh = &c->p.m->mesh;
        Buf text = {0};
        axes_members(mesh, t[i].axes, 0, members);
        for (uint32_t k = 0; k < axes_size(mesh, t[i].axes); k++)
            buf_printf(&text, "%s%u", k ? "," : "", members[k]);
        if (t[i].op == op && t[i].bytes == bytes &&
            !strcmp(buf_str(&text), group))
            runs += t[i].per_step;
        buf_free(&text);
    }
    return runs;
}

/* … and on any number of bytes. */
static int64_t count_all(const Compiled *c, Op op)
{
    uint32_t n;
    const Traffic *t = traffic_make(c->in.arena, &c->p, 0, &n);
    int64_t runs = 0;

    for (uint32_t i = 0; i < n; i++)
        runs += t[i].op == op ? t[i].per_step : 0;
    return runs;
}

static void a_ring_sends_keys_to_the_next(void **state)
{
    const char *sets[] = {"parallel.cp=4"};
    Compiled c = compile(sets, 1);
    int64_t forward = 2 * 3, backward = 2 * 3 + 2 * 4;

    (void)state;
    assert_int_equal(count(&c, OP_SHIFT, KEYS, "0,1,2,3"),
                     RUNS * (forward + backward));
    assert_int_equal(count_all(&c, OP_SHIFT), RUNS * (forward + backward));
    assert_int_equal(count_all(&c, OP_ALL_TO_ALL), 0);
    assert_int_equal(count_all(&c, OP_ALL_GATHER), 0);
    drop(&c);
}

/* K and V whole, forward and again backward; their gradients scattered. */
static void keys_are_gathered(void **state)
{
    const char *sets[] = {"parallel.cp=4", "parallel.cp_comm=all_gather"};
    Compiled c = compile(sets, 2);

    (void)state;
    assert_int_equal(count(&c, OP_ALL_GATHER, 4 * KEYS, "0,1,2,3"), RUNS * 4);
    assert_int_equal(count(&c, OP_REDUCE_SCATTER, 4 * KEYS, "0,1,2,3"),
                     RUNS * 2);
    assert_int_equal(count_all(&c, OP_ALL_GATHER), RUNS * 4);
    assert_int_equal(count_all(&c, OP_REDUCE_SCATTER), RUNS * 2);
    assert_int_equal(count_all(&c, OP_SHIFT), 0);
    drop(&c);
}

/* q, k, v together, and so their gradients; o, and o and do in the backward. */
static void heads_go_to_their_ranks(void **state)
{
    const char *sets[] = {"parallel.cp=4", "parallel.cp_comm=a2a"};
    Compiled c = compile(sets, 2);

    (void)state;
    assert_int_equal(count(&c, OP_ALL_TO_ALL, QUERIES + 2 * KEYS, "0,1,2,3"),
                     RUNS * 2);
    assert_int_equal(count(&c, OP_ALL_TO_ALL, QUERIES, "0,1,2,3"), RUNS * 3);
    assert_int_equal(count_all(&c, OP_ALL_TO_ALL), RUNS * 5);
    assert_int_equal(count_all(&c, OP_ALL_GATHER), 0);
    drop(&c);
}

/* Heads between neighbours; then each has twice the tokens and half the heads,
 * and a ring of two. */
static void heads_first_then_a_ring(void **state)
{
    const char *sets[] = {"parallel.cp=4", "parallel.cp_comm=a2a+p2p",
                          "parallel.cp_sizes=[2, 2]"};
    Compiled c = compile(sets, 3);
    int64_t forward = 2 * 1, backward = 2 * 1 + 2 * 2;

    (void)state;
    assert_int_equal(count(&c, OP_ALL_TO_ALL, QUERIES + 2 * KEYS, "0,1"),
                     RUNS * 2);
    assert_int_equal(count(&c, OP_ALL_TO_ALL, QUERIES, "0,1"), RUNS * 3);
    assert_int_equal(count(&c, OP_SHIFT, KEYS, "0,2"),
                     RUNS * (forward + backward));
    assert_int_equal(count_all(&c, OP_ALL_TO_ALL), RUNS * 5);
    assert_int_equal(count_all(&c, OP_SHIFT), RUNS * (forward + backward));
    drop(&c);
}

/* ---- when ---------------------------------------------------------------- */

static const Node *node_at(const Module *m, const Func *f, uint32_t i)
{
    return &m->nodes.v[f->body.v[i].i];
}

static bool is_step(const Node *n)
{
    return n->op == OP_ATTENTION_STEP || n->op == OP_ATTENTION_STEP_GRAD;
}

/* Where compute waits for the operation at `at` of another stream; 0: it does
 * not. */
static uint32_t waited_for(const Module *m, const Func *f, uint32_t at)
{
    int64_t event = -1;

    for (uint32_t i = at + 1; i < f->body.n; i++) {
        const Node *n = node_at(m, f, i);
        int64_t which = attr_int(m, n->attrs, AK_EVENT, -1);
        if (event < 0 && n->op == OP_EVENT && n->stream == STREAM_CP)
            event = which;
        else if (n->op == OP_WAIT && n->stream == STREAM_COMPUTE &&
                 event >= 0 && which == event)
            return i;
    }
    return 0;
}

/* The step before the one at `at`; its own place if there is none. */
static uint32_t step_before(const Module *m, const Func *f, uint32_t at)
{
    uint32_t i = at;

    while (i--)
        if (is_step(node_at(m, f, i)))
            return i;
    return at;
}

/* The keys of all steps but the first arrive beside the step before: they are
 * sent for on a stream of their own before it, and waited for after it. */
static uint32_t steps_overlapped(const Module *m, const Func *f)
{
    uint32_t steps = 0;

    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *n = node_at(m, f, i);
        uint32_t before = step_before(m, f, i), sent = 0;
        if (!is_step(n) || before == i)
            continue;
        while (node_at(m, f, sent)->res.i != node_arg(m, n, 1).i)
            sent++;
        assert_int_equal(node_at(m, f, sent)->op, OP_SHIFT);
        assert_int_equal(node_at(m, f, sent)->stream, STREAM_CP);
        assert_true(sent < before && before < waited_for(m, f, sent));
        assert_true(waited_for(m, f, sent) < i);
        steps++;
    }
    return steps;
}

static void check_overlap(const char *const *sets, int n, uint32_t parts)
{
    Compiled c = compile(sets, n);
    uint32_t steps = 0;

    for (uint32_t i = 1; i < c.p.m->funcs.n; i++)
        steps += steps_overlapped(c.p.m, &c.p.m->funcs.v[i]);
    assert_int_equal(steps, 2 * (parts - 1)); /* forward and backward */
    drop(&c);
}

static void keys_travel_beside_the_step_before(void **state)
{
    const char *ring[] = {"parallel.cp=4"};
    const char *both[] = {"parallel.cp=8", "parallel.cp_comm=a2a+p2p",
                          "parallel.cp_sizes=[2, 4]"};

    (void)state;
    check_overlap(ring, 1, 4);
    check_overlap(both, 3, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_sends_keys_to_the_next),
        cmocka_unit_test(keys_are_gathered),
        cmocka_unit_test(heads_go_to_their_ranks),
        cmocka_unit_test(heads_first_then_a_ring),
        cmocka_unit_test(keys_travel_beside_the_step_before),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
