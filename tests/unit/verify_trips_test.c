/* verify_trips_test.c - the plan verifier where the number of iterations is
 * data.
 *
 * Four ranks, tp 2 and dp 2.  A number is made, agreed on over tp, and as many
 * iterations run: y += the sum over tp of a product of y.  Meanwhile something
 * is summed over dp.  Each row below leaves out or adds instructions so that
 * the plan is right for some number of iterations only, or for ranks that
 * happen to agree; what must be reported follows from verify_plan_trips.c.
 */
#include "runtime_plan.h"

#include "codegen/verify_plan.h"

#include <setjmp.h>
#include <cmocka.h>

enum {
    X = 64,
    TRIPS = 5,
    N = 0,
    Y = 64,
    Z = 128,
    F = 192,
    OUT = 256,
    FRAME = 320,
    NUMBERS = 384
};
enum { COMPUTE, TP, DP };
enum { E_TP_IN, E_TP_OUT, E_DP_IN, E_DP_OUT, EVENTS };
enum { C_MOST, C_TP, C_DP, C_ALL };
enum { B_N = 1, B_Y = 3, B_F, B_OUT, B_FRAME, B_PRODUCT, B_NUMBERS };

typedef struct {
    const char *name;
    const char *drop;  /* the instruction that is left out, */
    const char *extra; /* and those with "?" that are not */
    const char *code;  /* what is reported; NULL: the plan is right */
} Row;

typedef struct {
    PlanBuilder *b;
    const Row *row;
    uint32_t kernel[4]; /* by number of addresses */
} Ctx;

static void put(Ctx *c, const char *name, PlanInstr in, const PlanOperand *o,
                uint32_t n)
{
    const char *extra = c->row->extra, *drop = c->row->drop;

    if (drop && strcmp(name, drop) == 0)
        return;
    if (name[0] == '?' &&
        (!extra || strncmp(name, extra, strlen(extra)) != 0))
        return;
    plan_emit(c->b, in, o, n);
}

static PlanOperand at(uint64_t address, uint64_t bytes, int access,
                      uint32_t buffer)
{
    PlanOperand o = plan_address(address, bytes, access);

    o.buffer = buffer;
    return o;
}

/* The same wherever it is used. */
static PlanOperand fixed(uint64_t address, int access)
{
    return at(address, X, access, plan_state_buffer(address));
}

static void launch(Ctx *c, const char *name, const PlanOperand *o, uint32_t n)
{
    put(c, name, (PlanInstr){.op = PLAN_LAUNCH, .index = c->kernel[n]}, o, n);
}

static void event(Ctx *c, const char *name, PlanOp op, uint16_t stream,
                  uint32_t index)
{
    put(c, name,
        (PlanInstr){.op = (uint8_t)op, .stream = stream, .index = index}, NULL,
        0);
}

/* In place. */
static void sum(Ctx *c, const char *name, uint16_t stream, uint32_t row,
                PlanOperand o)
{
    PlanOperand list[] = {o, o};

    list[0].access = PLAN_READ;
    list[1].access = PLAN_WRITE;
    put(c, name,
        (PlanInstr){.op = PLAN_COLLECTIVE, .stream = stream, .index = row},
        list, 2);
}

/* ---- segments ------------------------------------------------------------ */

static PlanOperand y_of(int access)
{
    return plan_reg_address(2, 0, X, access);
}

static PlanOperand product_of(int access)
{
    PlanOperand o = plan_reg_address(1, 0, X, access);

    o.buffer = B_PRODUCT;
    return o;
}

static void leaf(Ctx *c)
{
    plan_segment_begin(c->b, "leaf");
    launch(c, "leaf", (PlanOperand[]){fixed(F, PLAN_WRITE)}, 1);
}

static void round_extras(Ctx *c)
{
    PlanOperand trips = plan_reg_address(2, 0, 4, PLAN_READ);

    event(c, "?loose mark", PLAN_EVENT, COMPUTE, E_TP_IN);
    event(c, "?loose wait", PLAN_WAIT, TP, E_TP_IN);
    sum(c, "?loose sum", TP, C_TP, y_of(0));
    sum(c, "?wide", COMPUTE, C_ALL, y_of(0));
    launch(c, "?fresh write", (PlanOperand[]){fixed(OUT, PLAN_WRITE)}, 1);
    launch(c, "?moving",
           (PlanOperand[]){plan_reg_address(3, 0, 4, PLAN_WRITE)}, 1);
    launch(c, "?clobber", (PlanOperand[]){fixed(F, PLAN_WRITE)}, 1);
    event(c, "?inner wait", PLAN_WAIT, COMPUTE, E_DP_OUT);
    event(c, "?busy wait", PLAN_WAIT, COMPUTE, E_DP_OUT);
    launch(c, "?busy write", (PlanOperand[]){fixed(Z, PLAN_WRITE)}, 1);
    put(c, "?metric",
        (PlanInstr){.op = PLAN_HOST, .index = PLAN_HOST_METRIC},
        (PlanOperand[]){plan_reg_address(2, 0, 4, PLAN_READ)}, 1);
    put(c, "?nested",
        (PlanInstr){
            .op = PLAN_CALL, .index = 0, .aux = 2, .flags = PLAN_TRIPS},
        &trips, 1);
}

static void round_segment(Ctx *c)
{
    plan_segment_begin(c->b, "round");
    plan_add_reg(c->b, PLAN_ADDRESS, "frame");
    plan_add_reg(c->b, PLAN_ADDRESS, "y");
    plan_add_reg(c->b, PLAN_ADDRESS, "number");
    launch(c, "product",
           (PlanOperand[]){y_of(PLAN_READ), product_of(PLAN_WRITE),
                           plan_reg_address(3, 0, 4, PLAN_READ)},
           3);
    event(c, "mark tp in", PLAN_EVENT, COMPUTE, E_TP_IN);
    event(c, "wait tp in", PLAN_WAIT, TP, E_TP_IN);
    sum(c, "tp sum", TP, C_TP, product_of(0));
    event(c, "mark tp out", PLAN_EVENT, TP, E_TP_OUT);
    event(c, "wait tp out", PLAN_WAIT, COMPUTE, E_TP_OUT);
    launch(c, "add",
           (PlanOperand[]){y_of(PLAN_READ), product_of(PLAN_READ),
                           y_of(PLAN_WRITE)},
           3);
    round_extras(c);
}

static void call_rounds(Ctx *c)
{
    PlanOperand args[] = {at(N, 4, PLAN_READ, B_N),
                          at(FRAME, X, PLAN_READ | PLAN_WRITE, B_FRAME),
                          at(Y, X, PLAN_READ | PLAN_WRITE, B_Y),
                          at(NUMBERS, 4 * TRIPS, PLAN_READ, B_NUMBERS)};

    args[3].stride = 4;

    put(c, "rounds",
        (PlanInstr){
            .op = PLAN_CALL, .index = 1, .aux = TRIPS, .flags = PLAN_TRIPS},
        args, 4);
}

static void main_segment(Ctx *c)
{
    plan_segment_begin(c->b, "main");
    launch(c, "count", (PlanOperand[]){at(N, 4, PLAN_WRITE, B_N)}, 1);
    sum(c, "agree", COMPUTE, C_MOST, at(N, 4, 0, B_N));
    launch(c, "?count again", (PlanOperand[]){at(N, 4, PLAN_WRITE, B_N)}, 1);
    launch(c, "numbers",
           (PlanOperand[]){at(NUMBERS, 4 * TRIPS - 4, PLAN_WRITE, B_NUMBERS)},
           1);
    launch(c, "last number",
           (PlanOperand[]){at(NUMBERS + 4 * TRIPS - 4, 4, PLAN_WRITE,
                              B_NUMBERS)},
           1);
    launch(c, "y", (PlanOperand[]){at(Y, X, PLAN_WRITE, B_Y)}, 1);
    launch(c, "z", (PlanOperand[]){fixed(Z, PLAN_WRITE)}, 1);
    launch(c, "f", (PlanOperand[]){at(F, X, PLAN_WRITE, B_F)}, 1);
    event(c, "mark dp in", PLAN_EVENT, COMPUTE, E_DP_IN);
    event(c, "wait dp in", PLAN_WAIT, DP, E_DP_IN);
    sum(c, "dp sum", DP, C_DP, fixed(Z, 0));
    event(c, "mark dp out", PLAN_EVENT, DP, E_DP_OUT);
    call_rounds(c);
    event(c, "?late wait", PLAN_WAIT, COMPUTE, E_TP_OUT);
    launch(c, "?fresh read", (PlanOperand[]){fixed(OUT, PLAN_READ)}, 1);
    launch(c, "?clobbered",
           (PlanOperand[]){at(F, X, PLAN_READ, B_F)}, 1);
    event(c, "wait dp out", PLAN_WAIT, COMPUTE, E_DP_OUT);
    launch(c, "use",
           (PlanOperand[]){at(Y, X, PLAN_READ, B_Y), fixed(Z, PLAN_READ),
                           at(OUT, X, PLAN_WRITE, B_OUT)},
           3);
}

/* ---- the plan ------------------------------------------------------------ */

static uint32_t group(Ctx *c, const char *name, const uint32_t *atoms,
                      uint32_t n)
{
    return plan_add_group(c->b, name, atoms, n, NULL, 0);
}

static void tables(Ctx *c)
{
    uint32_t atoms[] = {plan_add_atom(c->b, "dp", 2, 2),
                        plan_add_atom(c->b, "tp", 2, 1)};
    uint32_t dp = group(c, "dp", atoms, 1), tp = group(c, "tp", atoms + 1, 1);
    uint32_t all = group(c, "all", atoms, 2);
    PlanCollective rows[] = {
        [C_MOST] = {.reduce = PLAN_MAX, .group = tp, .count = 1},
        [C_TP] = {.group = tp, .count = X / 4},
        [C_DP] = {.group = dp, .count = X / 4},
        [C_ALL] = {.group = all, .count = X / 4}};

    plan_add_stream(c->b, "tp", PLAN_STREAM_COMM);
    plan_add_stream(c->b, "dp", PLAN_STREAM_COMM);
    for (uint32_t i = 0; i < EVENTS; i++)
        plan_add_event(c->b);
    for (uint32_t i = 0; i < MC_LEN(rows); i++)
        plan_add_collective(c->b, &rows[i]);
    for (uint32_t i = 1; i < 4; i++) {
        char name[8];

        snprintf(name, sizeof name, "k%u", i);
        c->kernel[i] = plan_add_kernel(c->b, name, 1, false, i, 0);
    }
}

static bool verdict(const Row *row, Buf *out)
{
    static const uint32_t ranks[] = {0, 1, 2, 3};
    Ctx c = {.b = tiny_builder(4, 4096), .row = row};
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    PlanVerifyStats stats;
    char *text = NULL;
    size_t length;
    FILE *to = open_memstream(&text, &length);
    Plan p;
    bool ok;

    tables(&c);
    leaf(&c);
    round_segment(&c);
    main_segment(&c);
    p = tiny_load(c.b);
    ok = plan_verify(d, &(PlanClass){&p, ranks, 4}, 1, &stats);
    diag_print(d, to);
    fclose(to);
    buf_puts(out, text);
    free(text);
    plan_free(&p);
    diag_free(d);
    arena_free(a);
    return ok;
}

static const Row rows[] = {
    {"right", NULL, NULL, NULL},
    {"ranks that do not agree", "agree", NULL, "MC0711"},
    {"a number made anew when all agreed", NULL, "?count again", "MC0711"},
    {"ranks of dp that do not agree", NULL, "?wide", "MC0711"},
    {"work that goes on", NULL, "?loose", "MC0711"},
    {"a host op that may not run", NULL, "?metric", "MC0711"},
    {"a write that moves", NULL, "?moving", "MC0711"},
    {"a last iteration that reads what is not there", "last number", NULL,
     "MC0707"},
    {"a call within a call", NULL, "?nested", "MC0711"},
    {"a wait for a mark that may not be", NULL, "?late wait", "MC0710"},
    {"bytes that may not be there", NULL, "?fresh", "MC0708"},
    {"bytes that may be overwritten", NULL, "?clobber", "MC0708"},
    {"a wait that may not be", "wait dp out", "?inner wait", "MC0706"},
    {"a write that relies on such a wait", NULL, "?busy", "MC0706"},
    {"a sum that nobody waits for", "wait tp out", NULL, "MC0706"},
};

static void holds_for_any_number(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        Buf text = {0};
        bool ok = verdict(&rows[i], &text);

        if (ok != !rows[i].code ||
            (rows[i].code && !strstr(buf_str(&text), rows[i].code)))
            fail_msg("%s: %s", rows[i].name, buf_str(&text));
        buf_free(&text);
    }
}

/* ---- two plans ----------------------------------------------------------- */

/* One side of two: both agree on two numbers, then call by each of them, side 1
 * in another order if `swapped`; inside, both sides sum. */
static Plan side_plan(uint32_t side, bool swapped)
{
    static const Row right = {"right", NULL, NULL, NULL};
    Ctx c = {.b = tiny_builder(2, 4096), .row = &right};
    uint32_t atom = plan_add_atom(c.b, "side", 2, 1);
    uint32_t both = group(&c, "both", &atom, 1);
    PlanCollective most = {.reduce = PLAN_MAX, .group = both, .count = 1};
    PlanCollective add = {.group = both, .count = X / 4};
    PlanOperand y = plan_reg_address(1, 0, X, 0);

    plan_add_member(c.b, atom, side);
    plan_add_collective(c.b, &most);
    plan_add_collective(c.b, &add);
    c.kernel[1] = plan_add_kernel(c.b, "k1", 1, false, 1, 0);
    plan_segment_begin(c.b, "round");
    plan_add_reg(c.b, PLAN_ADDRESS, "y");
    sum(&c, "sum", COMPUTE, 1, y);
    plan_segment_begin(c.b, "main");
    launch(&c, "y", (PlanOperand[]){at(Y, X, PLAN_WRITE, B_Y)}, 1);
    for (uint32_t i = 0; i < 2; i++) {
        launch(&c, "n", (PlanOperand[]){at(4 * i, 4, PLAN_WRITE, 1 + i)}, 1);
        sum(&c, "agree", COMPUTE, 0, at(4 * i, 4, 0, 1 + i));
    }
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t n = side && swapped ? 1 - i : i;
        PlanOperand args[] = {at(4 * n, 4, PLAN_READ, 1 + n),
                              at(Y, X, PLAN_READ | PLAN_WRITE, B_Y)};

        put(&c, "call",
            (PlanInstr){.op = PLAN_CALL, .aux = TRIPS, .flags = PLAN_TRIPS},
            args, 2);
    }
    return tiny_load(c.b);
}

static bool sides_fit(bool swapped)
{
    static const uint32_t ranks[] = {0, 1};
    Plan p[] = {side_plan(0, swapped), side_plan(1, swapped)};
    PlanClass classes[] = {{&p[0], &ranks[0], 1}, {&p[1], &ranks[1], 1}};
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    PlanVerifyStats stats;
    bool ok = plan_verify(d, classes, 2, &stats);

    for (int i = 0; i < 2; i++)
        plan_free(&p[i]);
    diag_free(d);
    arena_free(a);
    return ok;
}

/* What meets must be decided by the same number, or it meets by chance. */
static void sides_decide_alike(void **state)
{
    (void)state;
    assert_true(sides_fit(false));
    assert_false(sides_fit(true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holds_for_any_number),
        cmocka_unit_test(sides_decide_alike),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
