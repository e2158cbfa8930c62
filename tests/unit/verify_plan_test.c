/* verify_plan_test.c - the plan verifier: right plans pass, wrong ones do not.
 *
 * The plan of plan_pipeline.h is right by construction, as its comments argue.
 * Each row of the table below breaks it in one place; what must be reported
 * follows from the definitions in verify_plan.h.  A mutation that leaves a
 * right plan would be no mutation: there is none in the table.
 */
#include "plan_pipeline.h"

#include <setjmp.h>
#include <stdlib.h>
/* cmocka.h needs the headers above */
#include <cmocka.h>

static const uint32_t ranks[STAGES][4] = {{0, 1, 2, 3}, {4, 5, 6, 7}};

typedef struct {
    bool ok;
    char *text; /* what was reported; free */
    size_t length;
    PlanVerifyStats stats;
} Verdict;

static Verdict verdict_of(const PlanClass *classes, uint32_t n)
{
    Verdict v = {0};
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    FILE *to = open_memstream(&v.text, &v.length);
    v.ok = plan_verify(d, classes, n, &v.stats);
    diag_print(d, to);
    fclose(to);
    diag_free(d);
    arena_free(a);
    return v;
}

static Verdict verdict(const Mutation *m)
{
    Plan plans[STAGES];
    PlanClass classes[STAGES];
    for (int stage = 0; stage < STAGES; stage++) {
        plans[stage] = pipeline_plan(stage, m);
        classes[stage] = (PlanClass){&plans[stage], ranks[stage], 4};
    }
    Verdict v = verdict_of(classes, STAGES);
    for (int stage = 0; stage < STAGES; stage++)
        plan_free(&plans[stage]);
    return v;
}

/* ---- the right plan ----------------------------------------------------- */

static void right_plan_passes(void **state)
{
    (void)state;
    Verdict v = verdict(NULL);
    if (!v.ok)
        print_message("%s", v.text);
    assert_true(v.ok);
    assert_string_equal(v.text, "");
    /* Two stages, 4 microbatches, 2 layers, both directions: 32 tp sums; and
     * dp sum, emb sum, norm sum, square sum, inf max, gather each. */
    assert_int_equal(v.stats.collectives, 32 + 12);
    assert_int_equal(v.stats.messages, 8);
    /* Stage 0 reads its tokens at an address that depends on tp. */
    assert_int_equal(v.stats.variants, 3);
    free(v.text);
}

/* ---- wrong plans -------------------------------------------------------- */

static const Mutation mutations[] = {
    /* collectives */
    {"collectives of different kinds swapped", 0, "norm sum", AFTER, "inf max",
     0, 0, "MC0703"},
    {"collectives of the same kind swapped", 0, "norm sum", AFTER, "square sum",
     0, 0, "MC0703"},
    {"a collective left out on one stage", 0, "emb sum", DROP, NULL, 0, 0,
     "MC0703"},
    {"a collective issued twice on one stage", 1, "emb sum", TWICE, NULL, 0, 0,
     "MC0703"},
    {"a wrong count", 0, "emb sum", INDEX, NULL, 0, C_EMB_SHORT, "MC0703"},
    {"a wrong type", 1, "emb sum", INDEX, NULL, 0, C_EMB_BF16, "MC0703"},
    {"a wrong reduction", 0, "emb sum", INDEX, NULL, 0, C_EMB_MAX, "MC0703"},
    {"a wrong kind", 1, "emb sum", INDEX, NULL, 0, C_EMB_BROADCAST, "MC0703"},
    {"different roots", STAGES, "emb sum", INDEX_BY_STAGE, NULL, 0,
     C_EMB_BROADCAST, "MC0703"},
    {"another group", 0, "emb sum", INDEX, NULL, 0, C_EMB_OVER_DP, "MC0703"},
    {"a group that lacks an axis on one stage", 0, NULL, ATOMS, NULL, 0, 0,
     "MC0703"},
    {"a group without some of its ranks", 1, NULL, PICKS, NULL, 0, 0, "MC0702"},
    /* messages */
    {"a message not sent", 0, "send x3", DROP, NULL, 0, 0, "MC0704"},
    {"a message not received", 1, "recv x3", DROP, NULL, 0, 0, "MC0708"},
    {"a last message not received", 0, "recv d3", DROP, NULL, 0, 0, "MC0708"},
    {"a message sent twice", 1, "send d1", TWICE, NULL, 0, 0, "MC0704"},
    {"a message received twice", 1, "recv x0", TWICE, NULL, 0, 0, "MC0704"},
    {"a message received twice at a time", 1, "recv x1", TWICE, NULL, 0, 0,
     "MC0706"},
    {"a wrong channel of a send", 0, "send x1", CHANNEL, NULL, 0, 1, "MC0704"},
    {"a wrong channel of a receive", 0, "recv d0", CHANNEL, NULL, 0, 5,
     "MC0704"},
    {"a wrong receiver", 0, "send x2", INDEX, NULL, 0, P_DP, "MC0704"},
    {"a wrong sender", 0, "recv d1", INDEX, NULL, 0, P_TP, "MC0704"},
    {"a message sent too short", 0, "send x0", BYTES, NULL, 0, -64, "MC0704"},
    {"a message sent too long", 0, "send x2", BYTES, NULL, 0, 64, "MC0707"},
    {"a message received too short", 1, "recv x0", BYTES, NULL, 0, -64,
     "MC0707"},
    {"messages sent in another order", 0, "send x1", AFTER, "send x2", 0, 0,
     "MC0704"},
    {"a message on a stream of its own", 1, "send d3", STREAM, NULL, 0, DP,
     "MC0706"},
    /* circles */
    {"opposite messages one after the other", STAGES, "recv", UNJOIN, NULL, 0,
     0, "MC0705"},
    {"a collective after one that others wait with", 0, "emb sum", AFTER,
     "norm sum", 0, 0, "MC0705"},
    /* streams and events */
    {"no mark before the tp sum", STAGES, "mark tp in", DROP, NULL, 0, 0,
     "MC0710"},
    {"no wait before the tp sum", STAGES, "wait tp in", DROP, NULL, 0, 0,
     "MC0706"},
    {"no mark after the tp sum", 1, "mark tp out", DROP, NULL, 0, 0, "MC0710"},
    {"no wait after the tp sum", 1, "wait tp out", DROP, NULL, 0, 0, "MC0706"},
    {"a mark before the work it should cover", 0, "product", AFTER,
     "mark tp in", 0, 0, "MC0706"},
    {"a wait before its mark", 0, "mark pp in", AFTER, "wait pp in", 0, 0,
     "MC0710"},
    {"a wait for another event", 0, "wait tp in", INDEX, NULL, 0, E_SPARE,
     "MC0710"},
    {"a mark of another event", 0, "mark tp in", INDEX, NULL, 0, E_SPARE,
     "MC0710"},
    {"a wait on another stream", 0, "wait tp in", STREAM, NULL, 0, DP,
     "MC0706"},
    {"a mark of another stream", 0, "mark tp in", STREAM, NULL, 0, PP,
     "MC0706"},
    {"no wait before sending", 0, "wait pp in", DROP, NULL, 0, 0, "MC0706"},
    {"no wait after receiving", 1, "wait pp out", DROP, NULL, 0, 0, "MC0706"},
    {"no wait before the dp sum", 0, "wait dp in", DROP, NULL, 0, 0, "MC0706"},
    {"no wait after the dp sum", 0, "wait dp out", DROP, NULL, 0, 0, "MC0706"},
    {"a collective on another stream", 0, "dp sum", STREAM, NULL, 0, TP,
     "MC0706"},
    {"a blocking collective on a free stream", 1, "norm sum", STREAM, NULL, 0,
     TP, "MC0706"},
    {"a receive that nobody waits for", 1, "recv x1", AFTER, "wait pp out", 0,
     0, "MC0706"},
    /* bytes */
    {"a result over an operand", STAGES, "product", OFFSET, NULL, 2, -64,
     "MC0709"},
    {"a result beside its buffer", STAGES, "product", OFFSET, NULL, 2, 64,
     "MC0707"},
    {"an operand beside its buffer", 0, "norm", OFFSET, NULL, 0, 64, "MC0707"},
    {"the weights of the next layer", 0, "product", OFFSET, NULL, 1, W_BYTES,
     "MC0708"},
    {"a register for another", STAGES, "add", BASE, NULL, 0, 3, "MC0707"},
    {"a kernel left out", STAGES, "norm", DROP, NULL, 0, 0, "MC0707"},
    {"a kernel too early", 0, "forward 1", AFTER, "send x1", 0, 0, "MC0707"},
    {"gradients used before they come", 0, "recv d0", AFTER, "backward 0", 0, 0,
     "MC0707"},
    {"gradients not cleared", 0, "zero grads", DROP, NULL, 0, 0, "MC0707"},
    {"tied gradients not cleared", 1, "zero emb grads", DROP, NULL, 0, 0,
     "MC0707"},
    {"the loss not cleared", 1, "zero loss", DROP, NULL, 0, 0, "MC0707"},
    {"gradients half cleared", 1, "zero grads", BYTES, NULL, 0, -W_BYTES,
     "MC0707"},
    {"cleared beside the gradients", 1, "zero grads", OFFSET, NULL, 0, 64,
     "MC0707"},
    {"a second rank clears beside the gradients", 1, "zero grads", EXPR, NULL,
     0, 1, "MC0707"},
    {"a second rank calls with another frame", 1, "forward 0", EXPR, NULL, 1, 1,
     "MC0707"},
    {"no batch", 0, "load", DROP, NULL, 0, 0, "MC0707"},
    {"a learning rate too late", 0, "lr", AFTER, "update", 0, 0, "MC0707"},
    {"a layer less", 0, "forward 1", COUNT, NULL, 0, -1, "MC0707"},
    {"a layer more", 1, "forward 1", COUNT, NULL, 0, 1, "MC0708"},
    {"a backward layer more", 0, "backward 2", COUNT, NULL, 0, 1, "MC0708"},
    {"a wrong stride of inputs", 0, "forward 1", STRIDE, NULL, 1, 64, "MC0707"},
    {"no stride of outputs", 0, "forward 1", STRIDE, NULL, 2, -X, "MC0707"},
    {"a wrong stride of weights", 1, "backward 0", STRIDE, NULL, 3, 64,
     "MC0708"},
    {"a wrong stride of gradients", 1, "backward 0", STRIDE, NULL, 4, W_BYTES,
     "MC0708"},
    {"a frame over activations", 0, "forward 2", OFFSET, NULL, 0, ACTS - FRAME,
     "MC0708"},
    {"a frame over the weights", 0, "forward 2", OFFSET, NULL, 0, -FRAME,
     "MC0709"},
    {"sent from another slot", 0, "send x1", OFFSET, NULL, 0, -1024, "MC0708"},
    {"received into another slot", 1, "recv x3", OFFSET, NULL, 0, -1024,
     "MC0708"},
    {"received over what is still needed", 0, "recv d1", OFFSET, NULL, 0,
     ACTS - DY, "MC0708"},
    {"a part beside its buffer, on odd ranks only", 0, "embed", OFFSET, NULL, 0,
     32, "MC0707"},
    {"moments of another tensor", 0, "update", OFFSET, NULL, 2, W_BYTES,
     "MC0708"},
    {"a kernel writes over a parameter", 1, "part", OFFSET, NULL, 1,
     EMB - PART + 64, "MC0709"},
    {"a sum of other bytes", STAGES, "tp sum", OFFSET, NULL, 0, -X, "MC0708"},
    {"a sum shifted against itself", STAGES, "tp sum", OFFSET, NULL, 1, 64,
     "MC0709"},
    {"a gather over its own source", 0, "gather", OFFSET, NULL, 1, -64,
     "MC0709"},
};

static void wrong_plans_fail(void **state)
{
    (void)state;
    uint32_t missed = 0;
    for (uint32_t i = 0; i < MC_LEN(mutations); i++) {
        const Mutation *m = &mutations[i];
        Verdict v = verdict(m);
        bool witness = strstr(v.text, "rank ") != NULL;
        bool caught = !v.ok && strstr(v.text, m->code) && witness;
        if (!caught)
            print_message("%s: %s\n%s\n", m->name,
                          v.ok ? "accepted" : "other reason", v.text);
        missed += !caught;
        free(v.text);
    }
    assert_int_equal(missed, 0);
}

/* ---- ranks and classes --------------------------------------------------- */

/* The right plans, given to these ranks. */
static void given_to(const uint32_t *first, uint32_t nfirst,
                     const uint32_t *second, uint32_t nsecond,
                     const char *expected)
{
    Plan plans[STAGES] = {pipeline_plan(0, NULL), pipeline_plan(1, NULL)};
    PlanClass classes[] = {{&plans[0], first, nfirst},
                           {&plans[1], second, nsecond}};
    Verdict v = verdict_of(classes, 2);
    assert_false(v.ok);
    assert_non_null(strstr(v.text, expected));
    free(v.text);
    plan_free(&plans[0]);
    plan_free(&plans[1]);
}

static void every_rank_has_one_plan(void **state)
{
    (void)state;
    given_to(ranks[0], 4, ranks[1], 3, "rank 7 has no plan");
    given_to(ranks[0], 4, (uint32_t[]){4, 5, 6, 6}, 4, "rank 6 has two plans");
    given_to((uint32_t[]){0, 1, 2, 3, 4}, 5, ranks[1], 4,
             "rank 4 is given the plan of class 0");
}

/* Each stage as two classes of two ranks: the groups now cross classes. */
static void classes_may_be_split(void **state)
{
    (void)state;
    Plan plans[STAGES] = {pipeline_plan(0, NULL), pipeline_plan(1, NULL)};
    PlanClass classes[] = {{&plans[0], (uint32_t[]){0, 1}, 2},
                           {&plans[0], (uint32_t[]){2, 3}, 2},
                           {&plans[1], (uint32_t[]){4, 5}, 2},
                           {&plans[1], (uint32_t[]){6, 7}, 2}};
    Verdict v = verdict_of(classes, 4);
    if (!v.ok)
        print_message("%s", v.text);
    assert_true(v.ok);
    free(v.text);
    /* By tp and dp mixed, a class's ranks no longer see the same. */
    classes[0].ranks = (uint32_t[]){0, 1};
    classes[2].ranks = (uint32_t[]){4, 6};
    classes[3].ranks = (uint32_t[]){5, 7};
    v = verdict_of(classes, 4);
    assert_false(v.ok);
    assert_non_null(strstr(v.text, "MC0702"));
    free(v.text);
    plan_free(&plans[0]);
    plan_free(&plans[1]);
}

/* ---- 16,384 ranks -------------------------------------------------------- */

enum {
    DEPTH = 16,   /* stages */
    WIDE = 1024,  /* ranks of a stage: tp 8, dp 128 */
    KERNELS = 46, /* of a layer */
    DEEP = 32,    /* layers of a stage */
    MICROBATCHES = 64
};

/* A layer is a chain of kernels through its frame, and a sum over tp. */
static uint32_t big_layer(Ctx *c)
{
    uint32_t segment = plan_segment_begin(c->b, "layer");
    plan_add_reg(c->b, PLAN_ADDRESS, "frame");
    plan_add_reg(c->b, PLAN_ADDRESS, "x");
    for (uint32_t i = 0; i < KERNELS; i++) {
        PlanOperand from =
            i ? reg(1, X * i, X, PLAN_READ, i) : reg(2, 0, X, PLAN_READ, 0);
        launch(c, "kernel",
               (PlanOperand[]){from, reg(1, X * (i + 1), X, PLAN_WRITE, i + 1)},
               2);
    }
    fence(c, "in", "in", COMPUTE, TP, E_TP_IN);
    collective(c, "sum", TP, 0, 0, reg(1, X * KERNELS, X, PLAN_READ, KERNELS),
               reg(1, X * KERNELS, X, PLAN_WRITE, KERNELS));
    fence(c, "out", "out", TP, COMPUTE, E_TP_OUT);
    launch(c, "last",
           (PlanOperand[]){reg(1, X * KERNELS, X, PLAN_READ, KERNELS),
                           reg(2, 0, X, PLAN_WRITE, 0)},
           2);
    return segment;
}

static void big_main(Ctx *c, uint32_t layer)
{
    enum { X_AT = 65536 };
    plan_segment_begin(c->b, "main");
    put(c, "x", (PlanInstr){.op = PLAN_FILL},
        (PlanOperand[]){at(X_AT, X, PLAN_WRITE, 1)}, 1);
    for (uint32_t m = 0; m < MICROBATCHES; m++) {
        PlanOperand to = at(X_AT, X, PLAN_WRITE, 1);
        PlanOperand from = at(X_AT, X, PLAN_READ, 1);
        fence(c, "to pp", "to pp", COMPUTE, PP, E_PP_IN);
        if (c->stage > 0)
            put(c, "recv", (PlanInstr){.op = PLAN_RECV, .stream = PP}, &to, 1);
        fence(c, "of pp", "of pp", PP, COMPUTE, E_PP_OUT);
        put(c, "layers",
            (PlanInstr){.op = PLAN_CALL, .index = layer, .aux = DEEP},
            (PlanOperand[]){plan_address(0, 0, PLAN_READ), from}, 2);
        fence(c, "to pp", "to pp", COMPUTE, PP, E_DP_IN);
        if (c->stage + 1 < DEPTH)
            put(c, "send",
                (PlanInstr){.op = PLAN_SEND, .stream = PP, .index = 1}, &from,
                1);
    }
}

static Plan big_plan(int stage)
{
    PlanBuilder *b = plan_builder_new();
    Ctx c = {.b = b, .stage = stage};
    Buf out = {0};
    Plan p;
    plan_job(b)->world = DEPTH * WIDE;
    *plan_training(b) = (PlanTraining){.global_batch = 4,
                                       .micro_batch = 1,
                                       .seq_length = 16,
                                       .microbatches = 4};
    *plan_data(b) = (PlanData){.vocab = 256, .shards = 1, .parts = 1};
    plan_add_memory(b, "arena", PLAN_MEMORY_DEVICE, 0, 1 << 20);
    uint32_t tp = plan_add_atom(b, "tp", 8, 1);
    uint32_t pp = plan_add_atom(b, "pp", DEPTH, WIDE);
    plan_add_member(b, pp, (uint32_t)stage);
    plan_add_collective(
        b, &(PlanCollective){.group = plan_add_group(b, "tp", &tp, 1, NULL, 0),
                             .count = 64});
    plan_add_peer(b, "from", pp, -1);
    plan_add_peer(b, "to", pp, 1);
    plan_add_stream(b, "tp", PLAN_STREAM_COMM);
    plan_add_stream(b, "pp", PLAN_STREAM_COMM);
    for (uint32_t i = 0; i < EVENTS; i++)
        plan_add_event(b);
    c.kernel[2] = plan_add_kernel(b, "k2", 1, false, 2, 0);
    big_main(&c, big_layer(&c));
    plan_write(b, &out);
    plan_builder_free(b);
    Status s = plan_load(out.s, out.len, &p);
    if (s)
        mc_bug(__FILE__, __LINE__, "%s", status_text(s));
    buf_free(&out);
    return p;
}

/* 16 classes of 110,000 instructions: within a second on the CPU of an
 * idle machine; the limit leaves room for sanitizers and neighbours. */
static void big_plans_are_quick(void **state)
{
    (void)state;
    static uint32_t all[DEPTH * WIDE];
    Plan plans[DEPTH];
    PlanClass classes[DEPTH];
    for (uint32_t i = 0; i < DEPTH * WIDE; i++)
        all[i] = i;
    for (int i = 0; i < DEPTH; i++) {
        plans[i] = big_plan(i);
        classes[i] = (PlanClass){&plans[i], all + i * WIDE, WIDE};
    }
    double start = mc_seconds();
    Verdict v = verdict_of(classes, DEPTH);
    double seconds = mc_seconds() - start;
    print_message("%s%llu instructions in %.2f s\n", v.text,
                  (unsigned long long)v.stats.instrs, seconds);
    assert_true(v.ok);
    assert_true(v.stats.instrs > UINT64_C(100000) * DEPTH);
    assert_true(seconds < 20);
    free(v.text);
    for (int i = 0; i < DEPTH; i++)
        plan_free(&plans[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_plan_passes),
        cmocka_unit_test(wrong_plans_fail),
        cmocka_unit_test(every_rank_has_one_plan),
        cmocka_unit_test(classes_may_be_split),
        cmocka_unit_test(big_plans_are_quick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
