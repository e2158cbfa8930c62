/* inspect_test.c - stages, schedules and learning rates, as `inspect` tells
 * them before a run.
 *
 * From public bug reports: NVIDIA/Megatron-LM#1303 (MC-19, where layers go when
 * the last stage is given), #513 and #1584 (MC-21, MC-22, which are a chunk's),
 * #169 and #675 (MC-23, how many forwards come first),
 * areal-project/AReaL#1289 (MC-45, an end taken for a length).
 */
#include "cases.h"

#include <math.h>

/* ---- MC-19, MC-21, MC-22 ------------------------------------------------- */

/* Layers of each stage in the order in which data flows through them: chunk 0
 * of every rank, then chunk 1. */
static void expect_stages(const char *sets, size_t pp, const int *layers,
                          size_t n, int64_t all)
{
    json_t *stages = case_inspect("layout", sets), *stage;
    int64_t next = 0;
    size_t i;

    assert_int_equal(json_array_size(stages), n);
    json_array_foreach(stages, i, stage) {
        json_t *held = case_member(stage, "layers"), *layer;
        size_t k;
        assert_int_equal(json_integer_value(case_member(stage, "pp")), i % pp);
        assert_int_equal(json_integer_value(case_member(stage, "chunk")),
                         i / pp);
        assert_int_equal(json_array_size(held), layers[i]);
        json_array_foreach(held, k, layer)
            assert_int_equal(json_integer_value(layer), next++);
        assert_int_equal(json_is_true(case_member(stage, "embedding")), i == 0);
        assert_int_equal(json_is_true(case_member(stage, "head")), i + 1 == n);
    }
    assert_int_equal(next, all);
    json_decref(stages);
}

static void layers_of_61(void **state)
{
    (void)state;
    expect_stages("model.num_layers=61 parallel.pp=8 "
                  "parallel.pp_last_layers=5",
                  8, (int[]){8, 8, 8, 8, 8, 8, 8, 5}, 8, 61);
    expect_stages("model.num_layers=61 parallel.pp=16 "
                  "parallel.pp_last_layers=1",
                  16, (int[]){4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1},
                  16, 61);
}

/* Rank 0 holds [0][2][4][6] with four chunks, [0,1][4,5] with two; of 22 layers
 * with 4 on the last rank, its chunks hold [9,10] and [20,21]. */
static void layers_of_chunks(void **state)
{
    (void)state;
    expect_stages("model.num_layers=8 parallel.pp=2 parallel.vpp=4", 2,
                  (int[]){1, 1, 1, 1, 1, 1, 1, 1}, 8, 8);
    expect_stages("model.num_layers=8 parallel.pp=2 parallel.vpp=2", 2,
                  (int[]){2, 2, 2, 2}, 4, 8);
    expect_stages("model.num_layers=22 parallel.pp=4 parallel.vpp=2 "
                  "parallel.pp_last_layers=4",
                  4, (int[]){3, 3, 3, 2, 3, 3, 3, 2}, 8, 22);
}

/* ---- MC-23 --------------------------------------------------------------- */

static const char *action_kind(json_t *stage, size_t i)
{
    json_t *action = json_array_get(case_member(stage, "actions"), i);

    return json_string_value(json_array_get(action, 0));
}

/* Forwards before the first one that a backward follows at once, on each of
 * four ranks; every rank runs m forwards and as many backwards. */
static void expect_warm_up(const char *sets, size_t m, const size_t *expected)
{
    json_t *stages = case_inspect("schedule", sets), *stage;
    size_t i;

    assert_int_equal(json_array_size(stages), 4);
    json_array_foreach(stages, i, stage) {
        size_t ahead = 0;
        while (strcmp(action_kind(stage, ahead + 1), "F") == 0)
            ahead++;
        assert_int_equal(ahead, expected[i]);
        assert_int_equal(json_array_size(case_member(stage, "actions")), 2 * m);
    }
    json_decref(stages);
}

static void forwards_ahead(void **state)
{
    (void)state;
    expect_warm_up("parallel.pp=4", 8, (size_t[]){3, 2, 1, 0});
    expect_warm_up("parallel.pp=4 training.global_batch_size=2", 2,
                   (size_t[]){1, 1, 1, 0});
    expect_warm_up("parallel.pp=4 parallel.schedule=gpipe", 8,
                   (size_t[]){7, 7, 7, 7});
    expect_warm_up("model.num_layers=8 parallel.pp=4 parallel.vpp=2", 16,
                   (size_t[]){10, 8, 6, 4});
}

/* ---- MC-45 --------------------------------------------------------------- */

static const char cosine[] =
    "training.steps=220 training.optimizer.lr=1e-3 "
    "training.lr_schedule.style=cosine training.lr_schedule.warmup_steps=22";

static double rate_at(json_t *curve, size_t step)
{
    json_t *point = json_array_get(curve, step);

    assert_int_equal(json_integer_value(json_array_get(point, 0)), step);
    return json_number_value(json_array_get(point, 1));
}

/* By hand: 1e-3/2 * (1 + cos(pi * 176/198)) = 3.0154e-5 at 198. */
static void the_end_is_absolute(void **state)
{
    static const struct {
        size_t step;
        double rate;
    } points[] = {{0, 0}, {11, 5e-4}, {22, 1e-3}, {121, 5e-4},
                  {198, 3.0154e-5}, {220, 0}};
    char sets[256];
    json_t *curve = case_inspect("lr", cosine);

    (void)state;
    for (size_t i = 0; i < MC_LEN(points); i++)
        assert_true(fabs(rate_at(curve, points[i].step) - points[i].rate) <
                    1e-9);
    json_decref(curve);
    snprintf(sets, sizeof sets, "%s training.lr_schedule.decay_steps=198",
             cosine);
    assert_int_equal(case_shell(
        "$MEGAC inspect t0.yaml lr $(for s in %s; do echo --set $s; done)",
        sets), 0);
    assert_true(case_printed("minimum reached 22 steps before the end"));
    curve = case_inspect("lr", sets);
    for (size_t step = 198; step <= 220; step++)
        assert_true(rate_at(curve, step) == 0);
    json_decref(curve);
}

/* The k-th update, from 0, uses the rate of step k: the first does nothing
 * under warm-up. */
static void a_run_follows_the_curve(void **state)
{
    (void)state;
    case_compile("out", "training.lr_schedule.warmup_steps=4");
    case_run("out", "--save-step 0 --to before");
    case_run("out", "--save-step 1 --to after");
    case_same_file("before/weights.safetensors", "after/weights.safetensors",
                   0);
    for (int i = 1; i <= 5; i++)
        assert_true(fabs(case_metric("out", i, "lr") - 0.025 * (i - 1)) < 1e-8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_of_61),
        cmocka_unit_test(layers_of_chunks),
        cmocka_unit_test(forwards_ahead),
        cmocka_unit_test(the_end_is_absolute),
        cmocka_unit_test(a_run_follows_the_curve),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
