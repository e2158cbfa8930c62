/* simulate_test.c - small plans on a clock, against times worked out by hand.
 *
 * A kernel of n flops takes n picoseconds on the machine here, so K(3) is a
 * kernel of 3 microseconds; starting one takes nothing unless a test says so.
 */
#include "codegen/simulate.h"

#include <setjmp.h>
#include <cmocka.h>

#define US 1e-6

enum { STAGES_MAX = 4, NEAR = 4, FLOATS = 1000 };

static const Hardware machine = {
    .name = "test",
    .memory = 1 << 20,
    .bandwidth = 1e12,
    .host_bandwidth = 1e9,
    .peak = {1e12, 1e12, 1e12},
    .nlinks = 2,
    .links = {{.ranks = NEAR, .bandwidth = 1e9},
              {.ranks = INT64_MAX, .bandwidth = 0.5e9}}};

/* ---- plans -------------------------------------------------------------- */

/* The plan of one of `stages` stages, of `width` ranks each. */
typedef struct {
    PlanBuilder *b;
    uint32_t stage, stages, width;
    uint32_t comm, other; /* streams */
    uint32_t group_pp, next, previous;
} Make;

typedef struct {
    Arena *arena;
    Plan plans[STAGES_MAX];
    PlanClass classes[STAGES_MAX];
    uint32_t n;
} Plans;

static void instr(Make *m, PlanOp op, uint32_t stream, uint32_t index,
                  uint32_t aux, const PlanOperand *o, uint32_t n)
{
    plan_emit(m->b, (PlanInstr){.op = (uint8_t)op, .stream = (uint16_t)stream,
                                .index = index, .aux = aux}, o, n);
}

/* A kernel of so many microseconds. */
static void kernel(Make *m, double us)
{
    PlanOperand o = plan_address(0, 64, PLAN_READ);
    char name[32];

    snprintf(name, sizeof name, "k%g", us);
    instr(m, PLAN_LAUNCH, 0,
          plan_add_kernel_work(m->b, (PlanKernel){.phases = 1, .ptrs = 1,
                                                  .work = {us * 1e6, 0}}, name),
          0, &o, 1);
}

static void event(Make *m, uint32_t stream, uint32_t e)
{
    instr(m, PLAN_EVENT, stream, e, 0, NULL, 0);
}

static void wait_for(Make *m, uint32_t stream, uint32_t e)
{
    instr(m, PLAN_WAIT, stream, e, 0, NULL, 0);
}

static void collective(Make *m, uint32_t stream, PlanCollectiveKind kind,
                       uint32_t group, uint32_t members)
{
    uint64_t part = FLOATS * 4, all = part * members;
    bool gathers = kind == PLAN_ALL_GATHER, every = kind == PLAN_ALL_TO_ALL;
    PlanOperand o[] = {
        plan_address(0, every ? all : part, PLAN_READ),
        plan_address(gathers || every ? 1 << 15 : 0,
                     gathers || every ? all : part, PLAN_WRITE)};

    instr(m, PLAN_COLLECTIVE, stream,
          plan_add_collective(m->b, &(PlanCollective){.kind = kind,
                                                      .group = group,
                                                      .count = FLOATS}),
          0, o, 2);
}

static void message(Make *m, PlanOp op, uint32_t stream, uint32_t peer,
                    uint32_t channel, uint64_t bytes)
{
    PlanOperand o = plan_address(
        0, bytes, op == PLAN_SEND ? PLAN_READ : PLAN_WRITE);

    instr(m, op, stream, peer, channel, &o, 1);
}

static void begin(Make *m)
{
    uint32_t pp = plan_add_atom(m->b, "pp", m->stages, m->width);

    *plan_job(m->b) = (PlanJob){.name = plan_add_text(m->b, "test"),
                                .world = m->stages * m->width};
    *plan_training(m->b) = (PlanTraining){.steps = 1, .global_batch = 1,
                                          .micro_batch = 1, .seq_length = 1,
                                          .microbatches = 1,
                                          .lr = {.max = 1}};
    *plan_data(m->b) = (PlanData){.vocab = 2, .shards = 1, .parts = 1};
    plan_add_memory(m->b, "arena", PLAN_MEMORY_DEVICE, 0, 1 << 17);
    plan_add_member(m->b, pp, m->stage);
    m->group_pp = plan_add_group(m->b, "pp", &pp, 1, NULL, 0);
    m->next = plan_add_peer(m->b, "pp+1", pp, 1);
    m->previous = plan_add_peer(m->b, "pp-1", pp, -1);
    m->comm = plan_add_stream(m->b, "comm", PLAN_STREAM_COMM);
    m->other = plan_add_stream(m->b, "other", PLAN_STREAM_COMM);
    for (int i = 0; i < 4; i++)
        plan_add_event(m->b);
    plan_segment_begin(m->b, "main");
}

static void add_class(Plans *p, Make *m)
{
    uint32_t *ranks = arena_array(p->arena, uint32_t, m->width);
    Buf bytes = {0};

    plan_write(m->b, &bytes);
    Status s = plan_load(bytes.s, bytes.len, &p->plans[p->n]);
    if (s)
        fail_msg("%s", status_text(s));
    for (uint32_t i = 0; i < m->width; i++)
        ranks[i] = m->stage * m->width + i;
    p->classes[p->n] = (PlanClass){&p->plans[p->n], ranks, m->width};
    p->n++;
    plan_builder_free(m->b);
    buf_free(&bytes);
}

/* A plan of each stage, with what `body` emits. */
static Plans *plans_new(uint32_t stages, uint32_t width,
                        void (*body)(Make *m))
{
    Arena *a = arena_new();
    Plans *p = arena_new_of(a, Plans);

    p->arena = a;
    for (uint32_t i = 0; i < stages; i++) {
        Make m = {plan_builder_new(), i, stages, width, 0, 0, 0, 0, 0};
        begin(&m);
        body(&m);
        add_class(p, &m);
    }
    return p;
}

static void plans_end(Plans *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        plan_free(&p->plans[i]);
    arena_free(p->arena);
}

static void expect(double seconds, double us)
{
    if (seconds < us * US - 1e-12 || seconds > us * US + 1e-12)
        fail_msg("%.6f us instead of %.6f", seconds / US, us);
}

/* What a stage spends its time on adds up to the step. */
static void expect_whole(const SimResult *r)
{
    for (uint32_t i = 0; i < r->nstages; i++) {
        const SimStage *s = &r->stages[i];
        double sum = s->compute + s->launch + s->exposed + s->host + s->bubble;
        expect(sum, r->step / US);
    }
}

/* ---- one rank ----------------------------------------------------------- */

static void one_kernel(Make *m)
{
    kernel(m, 3);
}

static void a_kernel_takes_its_flops(void **state)
{
    Plans *p = plans_new(1, 1, one_kernel);
    Hardware h = machine;

    (void)state;
    h.launch = 2 * US; /* before each kernel */
    SimResult r = simulate(p->arena, p->classes, 1, &h);
    expect(r.step, 5);
    expect(r.stages[0].compute, 3);
    expect(r.stages[0].launch, 2);
    assert_float_equal(r.flops, 3e6, 1e-3);
    h.peak[0] /= 2;
    h.attention = (Curve){1, {1}, {0.25}};
    expect(simulate(p->arena, p->classes, 1, &h).step, 2 + 3 * 2 * 4);
    plans_end(p);
}

/* 128 flops and 192 bytes. */
static void product(Make *m)
{
    PlanGemm g = {.m = 4, .n = 4, .k = 4, .batch = 1, .lda = 4, .ldb = 4,
                  .ldc = 4};
    PlanOperand o[] = {plan_address(0, 64, PLAN_READ),
                       plan_address(64, 64, PLAN_READ),
                       plan_address(128, 64, PLAN_WRITE)};

    instr(m, PLAN_GEMM, 0, plan_add_gemm(m->b, &g), 0, o, 3);
}

static void a_product_takes_flops_or_bytes(void **state)
{
    Plans *p = plans_new(1, 1, product);
    Hardware h = machine;

    (void)state;
    h.peak[0] = 128e3;
    expect(simulate(p->arena, p->classes, 1, &h).step, 1000);
    h.gemm = (Curve){1, {1}, {0.5}};
    expect(simulate(p->arena, p->classes, 1, &h).step, 2000);
    h.bandwidth = 0.5e5;
    expect(simulate(p->arena, p->classes, 1, &h).step, 3840);
    plans_end(p);
}

/* compute  K1 . K5 . . . . wait K1
 * comm       \ all-reduce of 4 ranks, 6 us /        (2 * 3/4 * 4000 bytes) */
static void beside(Make *m)
{
    kernel(m, 1);
    event(m, 0, 0);
    wait_for(m, m->comm, 0);
    collective(m, m->comm, PLAN_ALL_REDUCE, m->group_pp, m->stages);
    event(m, m->comm, 1);
    kernel(m, 5);
    wait_for(m, 0, 1);
    kernel(m, 1);
}

static void streams_overlap(void **state)
{
    Plans *p = plans_new(4, 1, beside);
    SimResult r = simulate(p->arena, p->classes, 4, &machine);

    (void)state;
    expect(r.step, 8);
    expect(r.stages[2].compute, 7);
    expect(r.stages[2].exposed, 1);
    expect(r.stages[2].bubble, 0);
    assert_string_equal(r.stages[2].axis[0].name, "pp");
    expect(r.stages[2].axis[0].busy, 6);
    expect(r.stages[2].axis[0].exposed, 1);
    expect_whole(&r);
    plans_end(p);
}

/* ---- several ranks ------------------------------------------------------ */

/* Stage i comes after i + 1 us; all leave 2 * 1/2 * 4000 bytes later. */
static void skewed(Make *m)
{
    kernel(m, m->stage + 1);
    collective(m, 0, PLAN_ALL_REDUCE, m->group_pp, m->stages);
    kernel(m, 1);
}

static void a_collective_waits_for_all(void **state)
{
    Plans *p = plans_new(2, 1, skewed);
    SimResult r = simulate(p->arena, p->classes, 2, &machine);

    (void)state;
    expect(r.step, 2 + 4 + 1);
    expect(r.stages[0].bubble, 1);
    expect(r.stages[0].exposed, 4);
    expect(r.stages[1].bubble, 0);
    assert_int_equal(r.busiest, 1);
    expect_whole(&r);
    plans_end(p);
}

/* All of stage 1's ranks sum something up before both stages do. */
static void meets_twice(Make *m)
{
    uint32_t tp = plan_add_atom(m->b, "tp", m->width, 1);
    uint32_t pp = plan_add_atom(m->b, "pp", m->stages, m->width);

    if (m->stage == 1)
        collective(m, 0, PLAN_ALL_REDUCE,
                   plan_add_group(m->b, "tp", &tp, 1, NULL, 0), m->width);
    collective(m, 0, PLAN_ALL_REDUCE,
               plan_add_group(m->b, "embed", &pp, 1, NULL, 0), m->stages);
}

/* How long a kind of communication takes; 0: there is none. */
static double busy(const SimStage *s, const char *axis)
{
    for (uint32_t i = 0; i < s->naxes; i++)
        if (strcmp(s->axis[i].name, axis) == 0)
            return s->axis[i].busy;
    return 0;
}

/* Plans number their kinds of communication each for itself.  2 * 1/2 * 4000
 * bytes, near. */
static void kinds_keep_their_names(void **state)
{
    Plans *p = plans_new(2, 2, meets_twice);
    SimResult r = simulate(p->arena, p->classes, 2, &machine);

    (void)state;
    expect(busy(&r.stages[0], "embed"), 4);
    expect(busy(&r.stages[1], "embed"), 4);
    expect(busy(&r.stages[0], "tp"), 0);
    expect(busy(&r.stages[1], "tp"), 4);
    expect_whole(&r);
    plans_end(p);
}

/* A message of 1000 bytes takes 1 us, and 2 us of latency. */
static void pass_on(Make *m)
{
    if (m->stage == 0) {
        kernel(m, 3);
        message(m, PLAN_SEND, 0, m->next, 0, 1000);
    } else {
        message(m, PLAN_RECV, 0, m->previous, 0, 1000);
        kernel(m, 1);
    }
}

static void a_message_waits_for_its_sender(void **state)
{
    Plans *p = plans_new(2, 1, pass_on);
    Hardware h = machine;

    (void)state;
    h.links[0].latency = 2 * US;
    SimResult r = simulate(p->arena, p->classes, 2, &h);
    expect(r.step, 3 + 3 + 1);
    expect(r.stages[1].bubble, 3);
    expect(r.stages[1].exposed, 3);
    expect(r.stages[0].bubble, 1); /* at the end */
    expect_whole(&r);
    plans_end(p);
}

/* ---- a pipeline --------------------------------------------------------- */

enum { MICROBATCHES = 8 };

static void stage_forward(Make *m)
{
    if (m->stage > 0) {
        message(m, PLAN_RECV, m->comm, m->previous, 0, 4);
        event(m, m->comm, 0);
        wait_for(m, 0, 0);
    }
    kernel(m, 1);
    if (m->stage + 1 < m->stages) {
        event(m, 0, 1);
        wait_for(m, m->other, 1);
        message(m, PLAN_SEND, m->other, m->next, 0, 4);
    }
}

static void stage_backward(Make *m)
{
    if (m->stage + 1 < m->stages) {
        message(m, PLAN_RECV, m->comm, m->next, 1, 4);
        event(m, m->comm, 2);
        wait_for(m, 0, 2);
    }
    kernel(m, 2);
    if (m->stage > 0) {
        event(m, 0, 3);
        wait_for(m, m->other, 3);
        message(m, PLAN_SEND, m->other, m->previous, 1, 4);
    }
}

/* One forward, one backward. */
static void one_f_one_b(Make *m)
{
    uint32_t ahead = m->stages - 1 - m->stage;

    for (uint32_t i = 0; i < ahead; i++)
        stage_forward(m);
    for (uint32_t i = 0; i < MICROBATCHES; i++) {
        if (i + ahead < MICROBATCHES)
            stage_forward(m);
        stage_backward(m);
    }
}

static Hardware without_messages(void)
{
    Hardware h = machine;

    h.links[0].bandwidth = h.links[1].bandwidth = 1e30;
    return h;
}

/* (m + p - 1)(F + B) in all, of which (p - 1)(F + B) are bubble on each stage:
 * arXiv 2104.04473, section 2.2. */
static void a_pipeline_has_its_bubble(void **state)
{
    Plans *p = plans_new(4, 1, one_f_one_b);
    Hardware h = without_messages();
    SimResult r = simulate(p->arena, p->classes, 4, &h);

    (void)state;
    expect(r.step, (MICROBATCHES + 3) * 3);
    for (uint32_t i = 0; i < 4; i++) {
        expect(r.stages[i].compute, MICROBATCHES * 3);
        expect(r.stages[i].bubble, 3 * 3);
    }
    expect_whole(&r);
    plans_end(p);
}

/* The order in which classes are given changes nothing, nor does a second
 * time. */
static void the_same_every_time(void **state)
{
    Plans *p = plans_new(4, 1, one_f_one_b);
    PlanClass turned[4];

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        turned[i] = p->classes[3 - i];
    SimResult a = simulate(p->arena, p->classes, 4, &machine);
    SimResult b = simulate(p->arena, p->classes, 4, &machine);
    SimResult c = simulate(p->arena, turned, 4, &machine);
    assert_true(a.step == b.step && a.step == c.step);
    for (uint32_t i = 0; i < 4; i++)
        assert_true(a.stages[i].bubble == b.stages[i].bubble &&
                    a.stages[i].bubble == c.stages[3 - i].bubble);
    plans_end(p);
}

/* ---- links -------------------------------------------------------------- */

static PlanCollectiveKind tried;
static uint32_t tried_size, tried_stride;

static void try_collective(Make *m)
{
    uint32_t atom = plan_add_atom(m->b, "x", tried_size, tried_stride);

    collective(m, 0, tried, plan_add_group(m->b, "x", &atom, 1, NULL, 0),
               tried_size);
}

/* Ranks 0 to 3, 4 to 7, … are near: 1e9 bytes a second; from one four to
 * another 0.5e9 for each rank, so as many times that as a group has ranks in
 * each four.  A part is 4000 bytes. */
static void links_carry_what_they_can(void **state)
{
    static const struct {
        PlanCollectiveKind kind;
        uint32_t size, stride;
        double us;
    } rows[] = {
        {PLAN_ALL_REDUCE, 4, 1, 6},      /* 2 * 3/4 parts, near */
        {PLAN_ALL_REDUCE, 8, 1, 7},      /* 2 * 7/8 parts; far is 4 * 0.5e9 */
        {PLAN_ALL_REDUCE, 2, 8, 8},      /* 1 part, far: 0.5e9 */
        {PLAN_ALL_REDUCE, 4, 2, 6},      /* 2 * 3/4 parts, far is 2 * 0.5e9 */
        {PLAN_ALL_GATHER, 4, 1, 12},     /* 3 parts, near */
        {PLAN_ALL_GATHER, 2, 4, 8},      /* 1 part, far */
        {PLAN_ALL_TO_ALL, 4, 1, 12},     /* 3 parts, near */
        {PLAN_ALL_TO_ALL, 8, 1, 32},     /* 4 parts, far */
        {PLAN_SHIFT, 4, 1, 4},           /* 1 part, near */
        {PLAN_SHIFT, 8, 1, 8},           /* 1 part, far at its border */
        {PLAN_ALL_REDUCE, 3, 1, 2 * 2.0 / 3 * 8}, /* some lie on a border */
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        tried = rows[i].kind;
        tried_size = rows[i].size;
        tried_stride = rows[i].stride;
        Plans *p = plans_new(1, tried_size * tried_stride, try_collective);
        SimResult r = simulate(p->arena, p->classes, 1, &machine);
        expect(r.step, rows[i].us);
        expect(r.stages[0].exposed, rows[i].us);
        plans_end(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_takes_its_flops),
        cmocka_unit_test(a_product_takes_flops_or_bytes),
        cmocka_unit_test(streams_overlap),
        cmocka_unit_test(a_collective_waits_for_all),
        cmocka_unit_test(kinds_keep_their_names),
        cmocka_unit_test(a_message_waits_for_its_sender),
        cmocka_unit_test(a_pipeline_has_its_bubble),
        cmocka_unit_test(the_same_every_time),
        cmocka_unit_test(links_carry_what_they_can),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
