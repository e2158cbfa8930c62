/* packing_test.c - the offset solver against an independent checker.
 *
 * Expected heights are the liveness bound, counted by hand or by the test's
 * own sweep, and the optimum published with the MiniMalloc instances (ASPLOS
 * 2023: all eleven fit into 1 MiB).  Those files are not part of the source:
 * MEGAC_MINIMALLOC_DIR names the folder that holds A.csv to K.csv; without it
 * that test is skipped.
 */
#include "passes/packing.h"

#include <setjmp.h>
#include <stdlib.h>
/* cmocka.h needs the headers above */
#include <cmocka.h>

/* ---- the judge -------------------------------------------------------- */

static bool apart(const PackBuffer *a, const PackBuffer *b)
{
    return a->upper <= b->lower || b->upper <= a->lower ||
           a->offset + a->size <= b->offset || b->offset + b->size <= a->offset;
}

static int by_lower(const void *left, const void *right)
{
    const PackBuffer *a = left, *b = right;
    return (a->lower > b->lower) - (a->lower < b->lower);
}

/* Every pair that is alive together is apart; offsets are aligned; the height
 * is the true one.  Sorts bufs by start. */
static void assert_packed(PackBuffer *bufs, uint32_t n, const PackResult *res)
{
    int64_t height = 0;
    qsort(bufs, n, sizeof *bufs, by_lower);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(bufs[i].offset >= 0);
        assert_true(bufs[i].align < 2 || bufs[i].offset % bufs[i].align == 0);
        height = MC_MAX(height, bufs[i].offset + bufs[i].size);
        for (uint32_t j = i + 1; j < n && bufs[j].lower < bufs[i].upper; j++)
            assert_true(apart(&bufs[i], &bufs[j]));
    }
    assert_int_equal(height, res->height);
    assert_true(res->lower_bound <= height);
}

static PackResult solve(PackBuffer *bufs, uint32_t n, PackOptions options,
                        bool expect)
{
    Arena *a = arena_new();
    PackResult res;
    assert_int_equal(pack_solve(a, bufs, n, &options, &res), expect);
    arena_free(a);
    assert_packed(bufs, n, &res);
    return res;
}

/* ---- small cases, by hand --------------------------------------------- */

static void nothing_takes_no_room(void **state)
{
    (void)state;
    PackBuffer bufs[] = {{.lower = 3, .upper = 3, .size = 8},
                         {.lower = 0, .upper = 9, .size = 0}};
    PackResult res;
    Arena *a = arena_new();
    assert_true(pack_solve(a, bufs, 2, &(PackOptions){0}, &res));
    arena_free(a);
    assert_int_equal(res.height, 0);
    assert_true(res.exact);
}

static void neighbours_in_time_share_bytes(void **state)
{
    (void)state;
    PackBuffer bufs[] = {{.lower = 0, .upper = 2, .size = 64},
                         {.lower = 2, .upper = 4, .size = 64}};
    PackResult res = solve(bufs, 2, (PackOptions){0}, true);
    assert_int_equal(res.height, 64);
    assert_true(res.exact);
}

static void alignment_is_kept(void **state)
{
    (void)state;
    PackBuffer bufs[] = {{.lower = 0, .upper = 2, .size = 24, .align = 16},
                         {.lower = 0, .upper = 2, .size = 16, .align = 64}};
    PackResult res = solve(bufs, 2, (PackOptions){0}, true);
    assert_int_equal(res.height, 40); /* the 16 first, the 24 at 16 */
    assert_int_equal(res.lower_bound, 40);
}

static void too_small_a_capacity_is_told(void **state)
{
    (void)state;
    PackBuffer bufs[] = {{.lower = 0, .upper = 2, .size = 48},
                         {.lower = 1, .upper = 3, .size = 48}};
    PackResult res = solve(bufs, 2, (PackOptions){.capacity = 64}, false);
    assert_int_equal(res.height, 96);
}

/* ---- against every order ---------------------------------------------- */

enum { FEW = 6, ROUNDS = 300 };

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return *seed >> 33;
}

static void random_buffers(uint64_t *seed, PackBuffer *bufs)
{
    for (int i = 0; i < FEW; i++) {
        int64_t lower = (int64_t)(next_random(seed) % 6);
        int64_t length = 1 + (int64_t)(next_random(seed) % 4);
        bufs[i] = (PackBuffer){.lower = lower,
                               .upper = lower + length,
                               .size = 1 + (int64_t)(next_random(seed) % 9),
                               .align = 1 << next_random(seed) % 3};
    }
}

/* Lowest free offset for bufs[order[k]], given those before it. */
static int64_t first_fit(const PackBuffer *bufs, const int *order, int k)
{
    PackBuffer buf = bufs[order[k]];
    for (buf.offset = 0;; buf.offset += buf.align) {
        int i = 0;
        while (i < k && apart(&buf, &bufs[order[i]]))
            i++;
        if (i == k)
            return buf.offset;
    }
}

/* Some order of first-fit placements gives the lowest packing: that of the
 * offsets of such a packing. */
static int64_t lowest_height(PackBuffer *bufs, int *order, int k,
                             int64_t height)
{
    int64_t best = INT64_MAX;
    if (k == FEW)
        return height;
    for (int i = k; i < FEW; i++) {
        int was = order[k];
        order[k] = order[i];
        order[i] = was;
        PackBuffer *buf = &bufs[order[k]];
        buf->offset = first_fit(bufs, order, k);
        int64_t top = MC_MAX(height, buf->offset + buf->size);
        best = MC_MIN(best, lowest_height(bufs, order, k + 1, top));
        order[i] = order[k];
        order[k] = was;
    }
    return best;
}

static void small_cases_are_optimal(void **state)
{
    (void)state;
    uint64_t seed = 1;
    uint32_t above = 0;
    for (int round = 0; round < ROUNDS; round++) {
        PackBuffer bufs[FEW], copy[FEW];
        int order[FEW] = {0, 1, 2, 3, 4, 5};
        random_buffers(&seed, bufs);
        memcpy(copy, bufs, sizeof bufs);
        PackResult res = solve(bufs, FEW, (PackOptions){0}, true);
        assert_true(res.exact);
        assert_int_equal(res.height, lowest_height(copy, order, 0, 0));
        above += res.height > res.lower_bound;
    }
    assert_true(above > 0); /* some optima are not at the bound */
}

static void same_input_same_offsets(void **state)
{
    (void)state;
    uint64_t seed = 7;
    PackBuffer bufs[FEW], copy[FEW];
    random_buffers(&seed, bufs);
    memcpy(copy, bufs, sizeof bufs);
    solve(bufs, FEW, (PackOptions){0}, true);
    solve(copy, FEW, (PackOptions){0}, true);
    assert_memory_equal(bufs, copy, sizeof bufs);
}

/* ---- a pipeline plan -------------------------------------------------- */

enum { STAGES = 8, SAVED = 150, MICROBATCHES = 333 };

/* 1F1B on the first stage: microbatch i runs forward in slot 2i (backward
 * from then on alternates), its activations die in reverse in its backward;
 * both directions use a scratch buffer per step.  Sizes repeat. */
static uint32_t pipeline_plan(PackBuffer *bufs)
{
    uint32_t n = 0;
    int64_t slot = SAVED + 1;
    for (int64_t m = 0; m < MICROBATCHES; m++) {
        int64_t forward = 2 * m * slot;
        int64_t backward = (2 * (m + STAGES) - 1) * slot;
        for (int64_t i = 0; i < SAVED; i++) {
            int64_t size = 512 * (1 + i * i % 7 + (i % 5 == 0 ? 40 : 0));
            bufs[n++] = (PackBuffer){.lower = forward + i,
                                     .upper = backward + SAVED - i,
                                     .size = size};
            bufs[n++] = (PackBuffer){.lower = forward + i,
                                     .upper = forward + i + 2,
                                     .size = 512 * (1 + i % 3)};
        }
    }
    return n;
}

static void pipeline_plan_is_at_the_bound(void **state)
{
    (void)state;
    static PackBuffer bufs[2 * SAVED * MICROBATCHES];
    uint32_t n = pipeline_plan(bufs);
    double start = mc_seconds();
    Arena *a = arena_new();
    PackResult res;
    assert_true(pack_solve(a, bufs, n, &(PackOptions){0}, &res));
    arena_free(a);
    print_message("%u buffers in %.2f s: %lld over %lld\n", n,
                  mc_seconds() - start, (long long)res.height,
                  (long long)res.lower_bound);
    assert_true(res.exact);
    assert_int_equal(res.height, res.lower_bound);
    assert_packed(bufs, n, &res);
}

/* ---- a rectangle in pieces ---------------------------------------------- */

enum { DEPTH = 6, MOST_PIECES = 256, PUZZLES = 20 };

/* Cuts [lower, upper) by `size` bytes in two, through time or through memory,
 * `depth` times over. */
static uint32_t cut(uint64_t *seed, PackBuffer *bufs, PackBuffer whole,
                    int depth)
{
    PackBuffer rest = whole;
    int64_t length = whole.upper - whole.lower;
    bool time = next_random(seed) % 2;
    if (depth == 0 || length < 4 || whole.size < 256) {
        *bufs = whole;
        return 1;
    }
    if (time)
        whole.upper = rest.lower = whole.lower + 1 +
                                   (int64_t)next_random(seed) % (length - 1);
    else
        whole.size =
            64 + (int64_t)next_random(seed) % (whole.size / 64 - 1) * 64;
    if (!time)
        rest.size -= whole.size;
    uint32_t n = cut(seed, bufs, whole, depth - 1);
    return n + cut(seed, bufs + n, rest, depth - 1);
}

/* Nothing may be wasted anywhere.  All that one unit of work buys is best
 * fit. */
static void a_rectangle_is_put_together(void **state)
{
    (void)state;
    uint32_t fit = 0;
    for (uint64_t i = 1; i <= PUZZLES; i++) {
        PackBuffer bufs[MOST_PIECES], whole = {.upper = 100, .size = 64 * 500};
        uint64_t seed = i;
        uint32_t n = cut(&seed, bufs, whole, DEPTH);
        PackResult res = solve(bufs, n, (PackOptions){.work = 1}, true);
        assert_int_equal(res.lower_bound, whole.size);
        fit += res.height == whole.size;
        res = solve(bufs, n, (PackOptions){0}, true);
        assert_int_equal(res.height, whole.size);
    }
    assert_true(fit < PUZZLES / 2);
}

/* ---- MiniMalloc ------------------------------------------------------- */

static uint32_t read_instance(const char *path, PackBuffer *bufs, uint32_t most)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char line[128];
    uint32_t n = 0;
    while (fgets(line, sizeof line, file)) {
        long long lower, upper, size;
        if (sscanf(line, "%*d,%lld,%lld,%lld", &lower, &upper, &size) != 3)
            continue;
        assert_true(n < most);
        bufs[n++] = (PackBuffer){.lower = lower, .upper = upper, .size = size};
    }
    fclose(file);
    return n;
}

/* The step function of a stage under zb-h1, with sizes in powers of two and
 * frames in between: exact search alone gives up on it. */
static void zero_bubble_is_at_the_bound(void **state)
{
    (void)state;
    static PackBuffer bufs[256];
    uint32_t n = read_instance(
        MEGAC_SOURCE_DIR "/tests/unit/packing_zb_h1.csv", bufs, MC_LEN(bufs));
    PackResult res = solve(bufs, n, (PackOptions){.work = 100000000}, true);
    assert_int_equal(n, 190);
    assert_int_equal(res.height, res.lower_bound);
}

/* Published optimum: 1 MiB, which is the liveness bound of all but C, D, J. */
static void minimalloc_is_solved(void **state)
{
    (void)state;
    const char *dir = getenv("MEGAC_MINIMALLOC_DIR");
    if (!dir) {
        print_message("skipped: MEGAC_MINIMALLOC_DIR is not set\n");
        skip();
    }
    static PackBuffer bufs[512];
    PackOptions options = {.capacity = 1 << 20, .work = UINT64_C(20000000000)};
    double begin = mc_seconds();
    for (char name = 'A'; name <= 'K'; name++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%c.csv", dir, name);
        uint32_t n = read_instance(path, bufs, MC_LEN(bufs));
        double start = mc_seconds();
        PackResult res = solve(bufs, n, options, true);
        print_message("%c: %u buffers, %lld over %lld, %.2f s\n", name, n,
                      (long long)res.height, (long long)res.lower_bound,
                      mc_seconds() - start);
        assert_true(res.height <= 1 << 20);
    }
    assert_true(mc_seconds() - begin < 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_takes_no_room),
        cmocka_unit_test(neighbours_in_time_share_bytes),
        cmocka_unit_test(alignment_is_kept),
        cmocka_unit_test(too_small_a_capacity_is_told),
        cmocka_unit_test(small_cases_are_optimal),
        cmocka_unit_test(same_input_same_offsets),
        cmocka_unit_test(pipeline_plan_is_at_the_bound),
        cmocka_unit_test(a_rectangle_is_put_together),
        cmocka_unit_test(zero_bubble_is_at_the_bound),
        cmocka_unit_test(minimalloc_is_solved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
