/* schedule_test.c - pipeline schedules against published numbers.
 *
 * Every schedule goes through the simulator, which finds deadlocks, bubbles
 * and activations in flight; the expected figures come from the papers and the
 * Megatron-LM issues named at each test.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>
#include <math.h>

#include <jansson.h>

#include "passes/passes.h"
#include "tests/unit/models.h"

#define GOLDEN MEGAC_SOURCE_DIR "/tests/golden/schedule/"

static const ScheduleCosts UNIT = {1, 1, 1, 0};

typedef struct {
    Arena *arena;
    Schedule *s;
    ScheduleTimes times;
} Case;

/* The schedule of `m` microbatches, one per sample, on pp * chunks layers. */
static Case case_open(const char *kind, int pp, int vpp, int m, int group)
{
    Case c = {.arena = arena_new()};
    Diag *d = diag_new(c.arena);
    char *sets[6];
    Spec *spec;

    sets[0] = arena_printf(c.arena, "parallel.pp=%d", pp);
    sets[1] = arena_printf(c.arena, "parallel.vpp=%d", vpp);
    sets[2] = arena_printf(c.arena, "training.global_batch_size=%d", m);
    sets[3] = arena_printf(c.arena, "parallel.schedule=%s", kind);
    sets[4] = arena_printf(c.arena, "model.num_layers=%d", pp * vpp);
    sets[5] = arena_printf(c.arena, "parallel.microbatch_group=%d", group);
    spec = spec_parse(c.arena, d, "model", MODEL_T0,
                      (const char *const *)sets, group ? 6 : 5);
    if (!spec)
        diag_print(d, stderr);
    assert_non_null(spec);
    c.s = schedule_make(c.arena, spec);
    diag_free(d);
    return c;
}

static void case_run(Case *c, ScheduleCosts costs)
{
    const char *why = NULL;

    if (!schedule_simulate(c->arena, c->s, costs, &c->times, &why))
        fail_msg("%s", why);
}

static void case_close(Case *c)
{
    schedule_free(c->s);
    arena_free(c->arena);
}

/* Forwards before the first backward of each rank, less the one that pairs up
 * with it. */
static void expect_ahead(const Case *c, const uint32_t *ahead)
{
    for (uint32_t r = 0; r < c->s->pp; r++) {
        uint32_t n = 0;
        while (c->s->ranks[r].v[n].kind == ACTION_F)
            n++;
        assert_int_equal(n - 1, ahead[r]);
    }
}

static void expect_in_flight(const Case *c, const uint32_t *most)
{
    for (uint32_t r = 0; r < c->s->pp; r++)
        assert_int_equal(c->times.in_flight[r], most[r]);
}

/* ---- one chunk per rank -------------------------------------------------- */

/* min(pp-r-1, m) forwards ahead (Narayanan et al. 2021; Megatron-LM#169). */
static void test_warm_up_of_1f1b(void **state)
{
    Case c = case_open("1f1b", 4, 1, 8, 0);

    (void)state;
    expect_ahead(&c, (uint32_t[]){3, 2, 1, 0});
    case_close(&c);
}

/* Bubble (pp-1)/(m+pp-1) of the step for both; activations in flight
 * min(pp-r, m) for 1F1B and m for GPipe. */
static void test_bubble_and_in_flight(void **state)
{
    (void)state;
    for (int pp = 2; pp <= 8; pp++)
        for (int m = 1; m <= 2 * pp; m++) {
            Case all = case_open("gpipe", pp, 1, m, 0);
            Case few = case_open("1f1b", pp, 1, m, 0);
            double bubble = (pp - 1.0) / (m + pp - 1);
            case_run(&all, UNIT);
            case_run(&few, UNIT);
            assert_true(fabs(all.times.bubble - bubble) < 1e-12);
            assert_true(fabs(few.times.bubble - bubble) < 1e-12);
            for (int r = 0; r < pp; r++) {
                assert_int_equal(all.times.in_flight[r], m);
                assert_int_equal(few.times.in_flight[r], MC_MIN(pp - r, m));
            }
            case_close(&all);
            case_close(&few);
        }
}

static void test_simulator_finds_deadlock_and_loss(void **state)
{
    Case c = case_open("1f1b", 2, 1, 2, 0);
    Action *list = c.s->ranks[0].v, first = list[0];
    const char *why = NULL;

    (void)state;
    list[0] = list[2];
    list[2] = first;
    assert_false(schedule_simulate(c.arena, c.s, UNIT, &c.times, &why));
    assert_non_null(strstr(why, "waits for ever"));
    case_close(&c);
    c = case_open("1f1b", 2, 1, 2, 0);
    c.s->ranks[0].n--;
    assert_false(schedule_simulate(c.arena, c.s, UNIT, &c.times, &why));
    assert_non_null(strstr(why, "never finishes"));
    case_close(&c);
}

/* ---- interleaved --------------------------------------------------------- */

/* 2(pp-r-1) + (vpp-1) pp (Megatron-LM#169, #675). */
static void test_warm_up_of_interleaved(void **state)
{
    Case two = case_open("interleaved", 4, 2, 8, 0);
    Case three = case_open("interleaved", 4, 3, 8, 0);
    Case capped = case_open("interleaved", 4, 2, 4, 0);

    (void)state;
    expect_ahead(&two, (uint32_t[]){10, 8, 6, 4});
    expect_ahead(&three, (uint32_t[]){14, 12, 10, 8});
    /* 2 * 4 forwards is all there is on rank 0. */
    expect_ahead(&capped, (uint32_t[]){7, 7, 6, 4});
    case_close(&two);
    case_close(&three);
    case_close(&capped);
}

/* Bubble (pp-1)/vpp of a microbatch's F and B (Narayanan et al. 2021, 2.2);
 * [11,9,7,5] chunks in flight (sail-sg/zero-bubble-pipeline-parallelism#8). */
static void test_interleaved_bubble_and_in_flight(void **state)
{
    Case c = case_open("interleaved", 4, 2, 8, 0);

    (void)state;
    case_run(&c, UNIT);
    expect_in_flight(&c, (uint32_t[]){11, 9, 7, 5});
    case_close(&c);
    for (int pp = 2; pp <= 6; pp++)
        for (int vpp = 2; vpp <= 4; vpp++)
            for (int m = pp; m <= 4 * pp; m += pp) {
                c = case_open("interleaved", pp, vpp, m, 0);
                case_run(&c, UNIT);
                assert_true(fabs(c.times.idle - (pp - 1) * (1 + 2)) < 1e-12);
                assert_true(fabs(c.times.makespan -
                                 (vpp * m + pp - 1) * 3) < 1e-12);
                case_close(&c);
            }
}

/* Megatron's own example: pp 2, vpp 2, groups of 3, 5 microbatches run
 * 0 1 2 0 1 2 3 4 3 4 through chunks 0 0 0 1 1 1 0 0 1 1. */
static void test_groups_with_a_shorter_last(void **state)
{
    static const uint32_t mb[] = {0, 1, 2, 0, 1, 2, 3, 4, 3, 4};
    static const uint32_t chunk[] = {0, 0, 0, 1, 1, 1, 0, 0, 1, 1};
    Case c = case_open("interleaved", 2, 2, 5, 3);
    uint32_t f = 0, b = 0;

    (void)state;
    case_run(&c, UNIT);
    for (uint32_t i = 0; i < c.s->ranks[1].n; i++) {
        const Action *a = &c.s->ranks[1].v[i];
        bool forward = a->kind == ACTION_F;
        uint32_t at = forward ? f++ : b++;
        assert_int_equal(a->microbatch, mb[at]);
        assert_int_equal(a->chunk, forward ? chunk[at] : 1 - chunk[at]);
    }
    case_close(&c);
}

/* ---- the judges ---------------------------------------------------------- */

static void expect_tables(const Case *c, json_t *expected)
{
    json_t *ahead = json_object_get(expected, "ahead");
    json_t *mb = json_object_get(expected, "microbatch");
    json_t *chunk = json_object_get(expected, "chunk");

    for (uint32_t r = 0; r < c->s->pp; r++) {
        json_int_t total = c->s->microbatches * c->s->chunks;
        json_int_t pair = json_integer_value(json_array_get(ahead, r)) + 1;
        uint32_t first = 0, f = 0;
        while (c->s->ranks[r].v[first].kind == ACTION_F)
            first++;
        assert_int_equal(first, MC_MIN(pair, total));
        for (uint32_t i = 0; i < c->s->ranks[r].n; i++) {
            const Action *a = &c->s->ranks[r].v[i];
            if (a->kind != ACTION_F)
                continue;
            assert_int_equal(a->microbatch,
                             json_integer_value(json_array_get(mb, f)));
            assert_int_equal(a->chunk,
                             json_integer_value(json_array_get(chunk, f++)));
        }
    }
}

/* 500 interleaved schedules as megatron-core 0.16.1 makes them
 * (tests/oracle/schedule_megatron.py). */
static void test_interleaved_is_megatrons(void **state)
{
    json_t *cases = json_load_file(GOLDEN "interleaved.json", 0, NULL);
    json_t *expected;
    size_t i;

    (void)state;
    assert_int_equal(json_array_size(cases), 500);
    json_array_foreach(cases, i, expected) {
        Case c = case_open(
            "interleaved",
            (int)json_integer_value(json_object_get(expected, "pp")),
            (int)json_integer_value(json_object_get(expected, "vpp")),
            (int)json_integer_value(json_object_get(expected, "m")),
            (int)json_integer_value(json_object_get(expected, "group")));
        case_run(&c, UNIT);
        expect_tables(&c, expected);
        case_close(&c);
    }
    json_decref(cases);
}

static void expect_same_actions(const Case *a, const Case *b)
{
    for (uint32_t r = 0; r < a->s->pp; r++) {
        assert_int_equal(a->s->ranks[r].n, b->s->ranks[r].n);
        for (uint32_t i = 0; i < a->s->ranks[r].n; i++) {
            const Action *x = &a->s->ranks[r].v[i], *y = &b->s->ranks[r].v[i];
            assert_int_equal(x->kind, y->kind);
            assert_int_equal(x->chunk, y->chunk);
            assert_int_equal(x->microbatch, y->microbatch);
            assert_int_equal(x->beside, y->beside);
        }
    }
}

/* Reads a schedule that PyTorch wrote and compares it with what we make. */
static void expect_pytorchs(const char *kind, int pp, int vpp, int m,
                            const char *text)
{
    char path[] = "/tmp/megac-schedule-XXXXXX.csv";
    FILE *f = fdopen(mkstemps(path, 4), "w");

    fputs(text, f);
    fclose(f);
    Case ours = case_open(kind, pp, vpp, m, 0);
    Case theirs = case_open(path, pp, vpp, m, 0);
    unlink(path);
    case_run(&theirs, UNIT);
    expect_same_actions(&ours, &theirs);
    case_close(&ours);
    case_close(&theirs);
}

/* (tests/oracle/schedule_torch.py) */
static void test_pytorch_makes_the_same(void **state)
{
    int pp, vpp, m, read, count = 0;
    Buf text = {0};
    char kind[32];

    (void)state;
    assert_true(buf_read_file(&text, GOLDEN "torch.txt"));
    for (char *at = text.s, *end; at; at = end) {
        assert_int_equal(sscanf(at, "# %31s %d %d %d%n", kind, &pp, &vpp, &m,
                                &read), 4);
        at += read + 1;
        end = strchr(at, '#');
        if (end)
            end[-1] = '\0';
        expect_pytorchs(kind, pp, vpp, m, at);
        if (end)
            end[-1] = '\n';
        count++;
    }
    assert_int_equal(count, 40 + 20 + 27);
    buf_free(&text);
}

/* ---- what cannot run ----------------------------------------------------- */

static void expect_rejected(const char *message, int m, int group)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    char *text = NULL;
    size_t length;
    FILE *to = open_memstream(&text, &length);
    const char *sets[] = {"parallel.pp=4", "parallel.vpp=2",
                          "model.num_layers=8",
                          arena_printf(a, "training.global_batch_size=%d", m),
                          arena_printf(a, "parallel.microbatch_group=%d",
                                       group)};

    assert_null(spec_parse(a, d, "model", MODEL_T0, sets, group ? 5 : 4));
    diag_print(d, to);
    fclose(to);
    if (!strstr(text, message))
        fail_msg("`%s` is not in\n%s", message, text);
    free(text);
    diag_free(d);
    arena_free(a);
}

/* Either a plan or a rejection in the user's words, with a fix
 * (NVIDIA-NeMo/Speech#14288, pytorch#129597). */
static void test_odd_numbers_of_microbatches(void **state)
{
    (void)state;
    expect_rejected("the last of a step's 6 would have 2, less than pp = 4", 6,
                    0);
    expect_rejected("help: microbatch_group = 6 runs all in one group", 6, 0);
    expect_rejected("the last of a step's 10 would have 2", 10, 0);
    expect_rejected("groups of 4 microbatches, but a step has 3", 3, 0);
    expect_rejected("a step needs at least pp = 4 microbatches", 3, 0);
    expect_rejected("microbatch_group = 3 is less than pp = 4", 8, 3);
    for (int m = 4; m <= 24; m++)
        for (int group = 4; group <= m; group++) {
            if (m % group && m % group < 4)
                continue;
            Case c = case_open("interleaved", 4, 2, m, group);
            case_run(&c, UNIT);
            case_close(&c);
        }
}

/* ---- files --------------------------------------------------------------- */

/* Writes `text` as the schedule of two ranks and two microbatches. */
static Spec *spec_with_file(Arena *a, Diag *d, const char *text)
{
    char path[] = "/tmp/megac-schedule-XXXXXX.csv";
    const char *sets[] = {"parallel.pp=2", "training.global_batch_size=2",
                          NULL};
    FILE *f = fdopen(mkstemps(path, 4), "w");
    Spec *spec;

    fputs(text, f);
    fclose(f);
    sets[2] = arena_printf(a, "parallel.schedule=%s", path);
    spec = spec_parse(a, d, "model", MODEL_T0, sets, 3);
    unlink(path);
    return spec;
}

static void expect_bad_file(const char *text, const char *message)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    char *printed = NULL;
    size_t length;
    FILE *to = open_memstream(&printed, &length);

    assert_null(spec_with_file(a, d, text));
    diag_print(d, to);
    fclose(to);
    if (!strstr(printed, message))
        fail_msg("`%s` is not in\n%s", message, printed);
    free(printed);
    diag_free(d);
    arena_free(a);
}

static void test_bad_files(void **state)
{
    static const char right[] = "0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1\n";
    Arena *a = arena_new();
    Diag *d = diag_new(a);

    (void)state;
    assert_non_null(spec_with_file(a, d, right));
    diag_free(d);
    arena_free(a);
    expect_bad_file("0F0,0F1,0X0,0B1\n,1F0,1B0,1F1,1B1\n",
                    "row 1: `0X0` is no action");
    expect_bad_file("0F0,0SEND_F0\n1F0\n", "`0SEND_F0` is no action");
    expect_bad_file("0F0,(0F1;0B0)\n1F0\n", "`(0F1;0B0)` is no action");
    expect_bad_file("0F0,(0B0;0F1)OVERLAP_F_B\n1F0\n", "is no action");
    expect_bad_file("0F0,0F1,0B0,0B1\n", "fewer rows than pp = 2");
    expect_bad_file("0F0\n1F0\n2F0\n", "more rows than pp = 2");
    expect_bad_file("0F0,1F0\n1F1\n", "stage 1 is in rows 1 and 2");
    expect_bad_file("0F0,2F0\n1F0\n", "the same number of stages");
    expect_bad_file("0F0,0F1,0B0,0B1\n,1F0,1B0,1F1\n",
                    "stage 1 does not finish microbatch 1");
    expect_bad_file("0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1,1W1\n",
                    "stage 1 repeats microbatch 1");
    expect_bad_file("0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1,1F2\n",
                    "does not have, microbatch 2");
}

/* ---- two-part backwards -------------------------------------------------- */

static Case case_timed(const char *kind, int pp, int vpp, int m)
{
    Case c = case_open(kind, pp, vpp, m, 0);

    case_run(&c, UNIT);
    assert_true(schedule_splits(c.s));
    return c;
}

/* Every microbatch's F, B and W of every chunk is run, also where there are
 * fewer than the pipeline would like. */
static void test_few_microbatches(void **state)
{
    (void)state;
    for (int pp = 2; pp <= 5; pp++)
        for (int m = 1; m <= 12; m++) {
            Case h1 = case_timed("zb-h1", pp, 1, m);
            Case v = case_timed("zb-v", pp, 2, m);
            case_close(&h1);
            case_close(&v);
        }
}

static void expect_in_flight_of_all(const Case *c, int most)
{
    for (uint32_t r = 0; r < c->s->pp; r++)
        assert_int_equal(c->times.in_flight[r], most);
}

/* (p-1)(F+B-W) and p microbatches on every rank (Qi et al. 2023, table 2). */
static void test_zb_h1(void **state)
{
    (void)state;
    for (int pp = 2; pp <= 8; pp++)
        for (int m = 2 * pp - 1; m <= 3 * pp; m++) {
            Case c = case_timed("zb-h1", pp, 1, m);
            assert_true(fabs(c.times.idle - (pp - 1) * (1 + 1 - 1)) < 1e-12);
            expect_in_flight_of_all(&c, pp);
            case_close(&c);
        }
}

/* Nothing, and 2p chunks of half a stage (Qi et al. 2024, 4). */
static void test_zb_v(void **state)
{
    (void)state;
    for (int pp = 2; pp <= 8; pp++)
        for (int m = 2 * pp; m <= 3 * pp; m++) {
            Case c = case_timed("zb-v", pp, 2, m);
            assert_true(c.times.idle < 1e-12);
            expect_in_flight_of_all(&c, 2 * pp);
            case_close(&c);
        }
}

/* How long the rank that works least waits in a whole step. */
static double waited(const Case *c, double both)
{
    double least = c->times.makespan;

    for (uint32_t r = 0; r < c->s->pp; r++) {
        double busy = 0;
        for (uint32_t i = 0; i < c->s->ranks[r].n; i++) {
            bool beside = c->s->ranks[r].v[i].beside;
            busy += beside ? both : 1;
            i += beside ? 2 : 0;
        }
        least = MC_MIN(least, busy);
    }
    return c->times.makespan - least;
}

/* (PP/2-1)(F&B + B - 3W) and PP+1 chunks for PP = 2p stages, where B is a whole
 * backward and F&B both at once (DeepSeek-AI, DualPipe: README.md).  Where
 * forward and backward are run in turn, the forward is sent before the backward
 * begins, and ranks wait for less. */
static void test_dualpipe_v(void **state)
{
    static const ScheduleCosts together = {1, 1, 1, 3};
    static const ScheduleCosts faster = {1, 1, 1, 2.5};

    (void)state;
    for (int pp = 2; pp <= 8; pp++)
        for (int m = 2 * pp; m <= 3 * pp; m++) {
            Case c = case_timed("dualpipe-v", pp, 2, m);
            assert_true(c.times.idle <= (pp - 1) * (3 + 2 - 3));
            expect_in_flight_of_all(&c, 2 * pp + 1);
            case_run(&c, together);
            assert_true(fabs(c.times.idle - (pp - 1) * (3 + 2 - 3)) < 1e-9);
            assert_true(fabs(c.times.makespan -
                             (6 * m + (pp - 1) * (3 + 2 - 3))) < 1e-9);
            case_run(&c, faster);
            assert_true(fabs(waited(&c, 2.5) - (pp - 1) * (2.5 + 2 - 3)) < 1e-9);
            case_close(&c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warm_up_of_1f1b),
        cmocka_unit_test(test_bubble_and_in_flight),
        cmocka_unit_test(test_simulator_finds_deadlock_and_loss),
        cmocka_unit_test(test_warm_up_of_interleaved),
        cmocka_unit_test(test_interleaved_bubble_and_in_flight),
        cmocka_unit_test(test_groups_with_a_shorter_last),
        cmocka_unit_test(test_odd_numbers_of_microbatches),
        cmocka_unit_test(test_interleaved_is_megatrons),
        cmocka_unit_test(test_pytorch_makes_the_same),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_zb_h1),
        cmocka_unit_test(test_zb_v),
        cmocka_unit_test(test_dualpipe_v),
        cmocka_unit_test(test_few_microbatches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
