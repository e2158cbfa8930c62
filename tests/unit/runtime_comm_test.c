/* runtime_comm_test.c - communication between four real ranks.
 *
 * The test starts itself under mpirun; each rank runs a scenario and exits
 * with 0 if every value is what is worked out by hand in the comments.  Ranks
 * are tp + 2*dp, so tp groups are {0,1} {2,3} and dp groups {0,2} {1,3}.
 */
#include "runtime_plan.h"

#include <setjmp.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include <xxhash.h>

enum { RANKS = 4, N = 1000 };

typedef struct {
    PlanBuilder *b;
    Plan plan;
    Device *device;
    Comm *comm;
    Exec *exec;
    uint32_t rank, tp, dp, all, next, sides[2];
} Rig;

static void require(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "failed: %s\n", what);
    comm_mpi_abort(9);
}

static void succeed(Status s)
{
    require(!s, status_text(s));
}

static void rig_begin(Rig *r)
{
    uint32_t tp, dp, ring;

    r->b = tiny_builder(RANKS, 1 << 16);
    tp = plan_add_atom(r->b, "tp", 2, 1);
    dp = plan_add_atom(r->b, "dp", 2, 2);
    ring = plan_add_atom(r->b, "ring", 4, 1);
    r->tp = plan_add_group(r->b, "tp", &tp, 1, NULL, 0);
    r->dp = plan_add_group(r->b, "dp", &dp, 1, NULL, 0);
    r->all = plan_add_group(r->b, "all", &ring, 1, NULL, 0);
    r->next = plan_add_peer(r->b, "next", ring, 1);
    plan_add_peer(r->b, "previous", ring, -1);
    r->sides[0] = plan_add_stream(r->b, "one", PLAN_STREAM_COMM);
    r->sides[1] = plan_add_stream(r->b, "two", PLAN_STREAM_COMM);
    plan_segment_begin(r->b, "main");
}

static void rig_bind(Rig *r, double patience)
{
    ExecConfig config = {.plan = &r->plan, .driver = &device_cpu};

    r->plan = tiny_load(r->b);
    succeed(device_cpu.open(&(DeviceConfig){&r->plan, NULL, 1}, &r->device));
    succeed(comm_new(&r->plan, r->rank, &comm_mpi, patience, &r->comm));
    config.rank = r->rank;
    config.device = r->device;
    config.comm = r->comm;
    succeed(exec_new(&config, &r->exec));
}

static void rig_end(Rig *r)
{
    exec_free(r->exec);
    comm_free(r->comm);
    device_cpu.close(r->device);
    plan_free(&r->plan);
}

static char *at(const Rig *r, uint64_t address)
{
    return exec_pointer(r->exec, address);
}

static float float_at(const Rig *r, uint64_t address, int i)
{
    float value;

    memcpy(&value, at(r, address) + 4 * i, 4);
    return value;
}

static void set_float(const Rig *r, uint64_t address, int i, float value)
{
    memcpy(at(r, address) + 4 * i, &value, 4);
}

/* 1, 2, 4, 8 */
static float weight(uint32_t rank)
{
    return (float)(1u << rank);
}

static void collective(Rig *r, uint16_t stream, PlanCollective c, uint64_t from,
                       uint64_t from_bytes, uint64_t to, uint64_t to_bytes)
{
    uint32_t row = plan_add_collective(r->b, &c);

    plan_emit(
        r->b,
        (PlanInstr){.op = PLAN_COLLECTIVE, .index = row, .stream = stream},
        (PlanOperand[]){plan_address(from, from_bytes, PLAN_READ),
                        plan_address(to, to_bytes, PLAN_WRITE)},
        2);
}

/* ---- scenario 1: every collective ---------------------------------------- */

static void plan_collectives(Rig *r)
{
    uint64_t n = 4 * N;

    collective(
        r, 0,
        (PlanCollective){.kind = PLAN_ALL_REDUCE, .group = r->tp, .count = N},
        0, n, 4096, n);
    collective(r, 0,
               (PlanCollective){.kind = PLAN_ALL_REDUCE,
                                .group = r->dp,
                                .reduce = PLAN_MAX,
                                .count = N},
               0, n, 8192, n);
    collective(
        r, 0,
        (PlanCollective){.kind = PLAN_ALL_GATHER, .group = r->dp, .count = 10},
        0, 40, 12288, 80);
    collective(r, 0,
               (PlanCollective){
                   .kind = PLAN_REDUCE_SCATTER, .group = r->all, .count = 10},
               0, 160, 12544, 40);
    collective(
        r, 0,
        (PlanCollective){.kind = PLAN_ALL_TO_ALL, .group = r->all, .count = 2},
        0, 32, 12800, 32);
    collective(
        r, 0,
        (PlanCollective){
            .kind = PLAN_BROADCAST, .group = r->all, .root = 2, .count = 5},
        0, 20, 13056, 20);
    collective(
        r, 0,
        (PlanCollective){.kind = PLAN_SHIFT, .group = r->all, .count = N}, 0,
        n, 20480, n);
    collective(r, 0,
               (PlanCollective){.kind = PLAN_ALL_REDUCE,
                                .group = r->all,
                                .dtype = PLAN_BF16,
                                .count = 3},
               16384, 6, 16384, 6);
    collective(r, 0,
               (PlanCollective){.kind = PLAN_ALL_REDUCE,
                                .group = r->all,
                                .dtype = PLAN_F16,
                                .count = 3},
               16448, 6, 16448, 6);
}

static void check_collectives(const Rig *r)
{
    static const float tp_sum[] = {3, 3, 12, 12}, dp_max[] = {4, 8, 4, 8};
    uint32_t k = r->rank;
    uint16_t half;

    for (int i = 0; i < N; i++) {
        require(float_at(r, 4096, i) == tp_sum[k] * (float)i, "all_reduce sum");
        require(float_at(r, 8192, i) == dp_max[k] * (float)i, "all_reduce max");
    }
    /* members of dp are k%2 and k%2+2 */
    require(float_at(r, 12288, 3) == weight(k % 2) * 3, "all_gather first");
    require(float_at(r, 12288, 13) == weight(k % 2 + 2) * 3, "all_gather last");
    /* part k of the sum 15 i */
    require(float_at(r, 12544, 1) == 15.0f * (float)(10 * k + 1),
            "reduce_scatter");
    /* from rank s: its elements 2k, 2k+1 */
    for (uint32_t s = 0; s < RANKS; s++)
        require(float_at(r, 12800, (int)(2 * s + 1)) ==
                    weight(s) * (float)(2 * k + 1),
                "all_to_all");
    require(float_at(r, 13056, 4) == 4 * 4.0f, "broadcast");
    require(float_at(r, 20480, 7) == weight((k + RANKS - 1) % RANKS) * 7.0f,
            "shift");
    /* bf16 1 + 2 + 4 + 8 = 15 = 0x4170 */
    memcpy(&half, at(r, 16384) + 4, 2);
    require(half == 0x4170, "bf16 sum");
    memcpy(&half, at(r, 16448) + 4, 2); /* f16 15 = 1.875 2^3 */
    require(half == 0x4b80, "f16 sum");
}

static void every_collective(Rig *r)
{
    rig_begin(r);
    plan_collectives(r);
    rig_bind(r, 20);
    for (int i = 0; i < N; i++)
        set_float(r, 0, i, weight(r->rank) * (float)i);
    for (int i = 0; i < 3; i++) {
        float value = weight(r->rank);
        uint32_t bits;
        memcpy(&bits, &value, 4);
        uint16_t half = (uint16_t)(bits >> 16);
        memcpy(at(r, 16384) + 2 * i, &half, 2);
        half = (uint16_t)(0x3c00 + (r->rank << 10)); /* 2^rank */
        memcpy(at(r, 16448) + 2 * i, &half, 2);
    }
    succeed(exec_step(r->exec));
    check_collectives(r);
    rig_end(r);
}

/* ---- scenario 2: a reduce-scatter into its own source, a gather in place - */

static void in_place(Rig *r)
{
    PlanTerm own = {0};
    PlanOperand part[2];
    uint32_t scatter, gather, expr;

    rig_begin(r);
    own.atom = plan_add_atom(r->b, "ring", 4, 1);
    own.factor = 40;
    expr = plan_add_expr(r->b, 0, &own, 1);
    scatter = plan_add_collective(
        r->b, &(PlanCollective){
                  .kind = PLAN_REDUCE_SCATTER, .group = r->all, .count = 10});
    gather = plan_add_collective(
        r->b, &(PlanCollective){
                  .kind = PLAN_ALL_GATHER, .group = r->all, .count = 10});
    part[0] = plan_address(0, 160, PLAN_READ);
    part[1] = plan_address(0, 40, PLAN_WRITE);
    part[1].expr = expr;
    plan_emit(r->b, (PlanInstr){.op = PLAN_COLLECTIVE, .index = scatter}, part,
              2);
    part[0] = plan_address(0, 40, PLAN_READ);
    part[0].expr = expr;
    part[1] = plan_address(0, 160, PLAN_WRITE);
    plan_emit(r->b, (PlanInstr){.op = PLAN_COLLECTIVE, .index = gather}, part,
              2);
    rig_bind(r, 20);
    for (int i = 0; i < 40; i++)
        set_float(r, 0, i, weight(r->rank) * (float)i);
    succeed(exec_step(r->exec));
    for (int i = 0; i < 40; i++)
        require(float_at(r, 0, i) == 15.0f * (float)i, "sum in place");
    rig_end(r);
}

/* ---- scenario 3: messages both ways, two streams, events ----------------- */

static void message(Rig *r, PlanOp op, uint32_t peer, uint32_t channel,
                    uint16_t stream, uint8_t flags, uint64_t address,
                    uint64_t bytes)
{
    plan_emit(r->b,
              (PlanInstr){.op = (uint8_t)op,
                          .index = peer,
                          .aux = channel,
                          .stream = stream,
                          .flags = flags},
              (PlanOperand[]){plan_address(
                  address, bytes, op == PLAN_SEND ? PLAN_READ : PLAN_WRITE)},
              1);
}

static void event(Rig *r, PlanOp op, uint32_t number, uint32_t stream)
{
    plan_emit(r->b,
              (PlanInstr){.op = (uint8_t)op,
                          .index = number,
                          .stream = (uint16_t)stream},
              NULL, 0);
}

/* Every rank first sends 16 KiB round the ring, too much to be buffered, then
 * receives, on one stream: only PLAN_JOIN keeps that from blocking.  Meanwhile
 * the other stream waits for the first and passes on what has arrived. */
static void ring(Rig *r)
{
    uint32_t arrived, passed, previous;
    uint16_t one, two;

    rig_begin(r);
    arrived = plan_add_event(r->b);
    passed = plan_add_event(r->b);
    previous = r->next + 1;
    one = (uint16_t)r->sides[0];
    two = (uint16_t)r->sides[1];
    message(r, PLAN_SEND, r->next, 1, one, 0, 0, 16384);
    message(r, PLAN_RECV, previous, 1, one, PLAN_JOIN, 16384, 16384);
    event(r, PLAN_EVENT, arrived, one);
    event(r, PLAN_WAIT, arrived, two);
    message(r, PLAN_SEND, r->next, 2, two, 0, 16384, 16384);
    message(r, PLAN_RECV, previous, 2, two, PLAN_JOIN, 32768, 16384);
    event(r, PLAN_EVENT, passed, two);
    event(r, PLAN_WAIT, passed, 0);
    plan_emit(r->b, (PlanInstr){.op = PLAN_COPY},
              (PlanOperand[]){plan_address(49152, 16384, PLAN_WRITE),
                              plan_address(32768, 16384, PLAN_READ)},
              2);
    rig_bind(r, 20);
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < 4096; i++)
            set_float(r, 0, i, weight(r->rank) + (float)step);
        succeed(exec_step(r->exec));
        require(float_at(r, 16384, 4095) ==
                    weight((r->rank + 3) % 4) + (float)step,
                "one hop");
        require(float_at(r, 49152, 4095) ==
                    weight((r->rank + 2) % 4) + (float)step,
                "two hops");
    }
    rig_end(r);
}

/* ---- scenario 4: two streams used in opposite orders by the ranks -------- */

static void opposite_orders(Rig *r)
{
    PlanCollective c = {.kind = PLAN_ALL_REDUCE, .count = N};

    rig_begin(r);
    c.group = r->all;
    for (int i = 0; i < 2; i++) {
        int side = i ^ (int)(r->rank & 1);
        uint64_t from = side ? 8192 : 0;
        collective(r, (uint16_t)r->sides[side], c, from, 4 * N, from, 4 * N);
    }
    rig_bind(r, 20);
    for (int i = 0; i < N; i++) {
        set_float(r, 0, i, weight(r->rank));
        set_float(r, 8192, i, 2 * weight(r->rank));
    }
    succeed(exec_step(r->exec));
    require(float_at(r, 0, N - 1) == 15.0f, "first stream");
    require(float_at(r, 8192, N - 1) == 30.0f, "second stream");
    rig_end(r);
}

/* ---- scenario 5: the same bits everywhere, every time -------------------- */

static unsigned long long hash(const Rig *r, uint64_t address, size_t words)
{
    return XXH3_64bits(at(r, address), 4 * words);
}

/* Sums of random numbers, whose rounding shows the order of addition. */
static void same_bits(Rig *r)
{
    enum { SMALL = 37, LARGE = 8000, BF16 = 5000 };
    char own[64], *all, first[64] = "";

    rig_begin(r);
    collective(r, 0,
               (PlanCollective){
                   .kind = PLAN_ALL_REDUCE, .group = r->all, .count = SMALL},
               0, 4 * SMALL, 0, 4 * SMALL);
    collective(r, 0,
               (PlanCollective){
                   .kind = PLAN_ALL_REDUCE, .group = r->all, .count = LARGE},
               256, 4 * LARGE, 256, 4 * LARGE);
    collective(r, 0,
               (PlanCollective){.kind = PLAN_ALL_REDUCE,
                                .dtype = PLAN_BF16,
                                .group = r->all,
                                .count = BF16},
               32768, 2 * BF16, 32768, 2 * BF16);
    rig_bind(r, 20);
    for (int time = 0; time < 3; time++) {
        srand(r->rank);
        for (int i = 0; i < 8192; i++)
            set_float(r, 0, i, (float)rand() / 1e6f);
        for (int i = 0; i < BF16; i++) /* a random fraction, exponent 127 */
            memcpy(at(r, 32768) + 2 * i,
                   &(uint16_t){(uint16_t)(0x3f80 | (rand() & 0x7f))}, 2);
        succeed(exec_step(r->exec));
        snprintf(own, sizeof own, "%016llx%016llx%016llx\n", hash(r, 0, SMALL),
                 hash(r, 256, LARGE), hash(r, 32768, BF16 / 2));
        succeed(comm_mpi_gather(own, &all));
        for (int k = 0; k < RANKS; k++)
            require(strncmp(all + 49 * k, all, 49) == 0, "equal replicas");
        require(time == 0 || strcmp(own, first) == 0, "equal runs");
        strcpy(first, own);
        free(all);
    }
    rig_end(r);
}

/* ---- scenario 6: nobody sends -------------------------------------------- */

static void stuck(Rig *r)
{
    Status s;

    rig_begin(r);
    message(r, PLAN_RECV, r->next, 1, 0, 0, 0, 64);
    rig_bind(r, 1);
    s = exec_step(r->exec);
    require(status_code(s) == STATUS_RUN, "a stuck receive fails");
    require(strstr(status_text(s), "no answer for 1 s in recv"),
            status_text(s));
    comm_mpi_abort(7);
}

static void (*const scenarios[])(Rig *) = {every_collective, in_place,  ring,
                                           opposite_orders,  same_bits, stuck};

static int be_rank(const char *which)
{
    Rig r = {0};
    uint32_t world;

    succeed(comm_mpi_start(&r.rank, &world));
    require(world == RANKS, "four ranks");
    scenarios[which[0] - '0'](&r);
    comm_mpi_stop();
    return 0;
}

/* ---- under cmocka -------------------------------------------------------- */

static int run_ranks(int scenario)
{
    char command[512], self[256];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    assert_true(n > 0);
    self[n] = '\0';
    snprintf(command, sizeof command,
             "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
             "LSAN_OPTIONS=detect_leaks=0 timeout 60 mpirun --oversubscribe "
             "--bind-to none -n %d %s %d%s",
             RANKS, self, scenario, scenario == 5 ? " 2>/dev/null" : "");
    return WEXITSTATUS(system(command));
}

static void collectives_compute(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(0), 0);
}

static void buffers_may_overlap(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(1), 0);
}

static void messages_cross(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2), 0);
}

static void streams_are_independent(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3), 0);
}

static void sums_are_deterministic(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(4), 0);
}

static void stuck_ranks_end(void **state)
{
    double start = mc_seconds();

    (void)state;
    assert_int_equal(run_ranks(5), 7);
    assert_true(mc_seconds() - start < 10);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_compute),
        cmocka_unit_test(buffers_may_overlap),
        cmocka_unit_test(messages_cross),
        cmocka_unit_test(streams_are_independent),
        cmocka_unit_test(sums_are_deterministic),
        cmocka_unit_test(stuck_ranks_end),
    };

    if (argc > 1)
        return be_rank(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
