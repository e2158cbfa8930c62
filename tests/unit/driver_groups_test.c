/* driver_groups_test.c - process groups against published examples.
 *
 * The 16-rank grids are those of facebookresearch/fairscale#1189 (MC-11, dense)
 * and NVIDIA/Megatron-LM#1459 (MC-56, experts folded over tp and cp); the one
 * with tp 2, pp 4 is the example in Megatron's parallel_state.py.
 */
#include "driver/groups.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static const GroupFamily *family(const GroupFamily *f, uint32_t n,
                                 const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(f[i].name, name))
            return &f[i];
    fail_msg("no family %s", name);
    return NULL;
}

/* Writes a family as "[0,1][2,3]" and compares. */
static void expect(const GroupSizes *s, const char *name, const char *text)
{
    Arena *a = arena_new();
    Buf b = {0};
    uint32_t n;
    GroupFamily *all = groups_make(a, s, &n);
    const GroupFamily *f = family(all, n, name);

    for (uint32_t i = 0; i < f->groups; i++)
        for (uint32_t k = 0; k < f->size; k++)
            buf_printf(&b, "%s%u%s", k ? "" : "[", f->ranks[i * f->size + k],
                       k + 1 < f->size ? "," : "]");
    assert_string_equal(buf_str(&b), text);
    buf_free(&b);
    arena_free(a);
}

static void test_dense_groups_of_16(void **state)
{
    GroupSizes s = {2, 2, 2, 2, 2, 1, 4, "tp-cp-dp-pp"};

    (void)state;
    expect(&s, "tp", "[0,1][2,3][4,5][6,7][8,9][10,11][12,13][14,15]");
    expect(&s, "cp", "[0,2][1,3][4,6][5,7][8,10][9,11][12,14][13,15]");
    expect(&s, "dp", "[0,4][1,5][2,6][3,7][8,12][9,13][10,14][11,15]");
    expect(&s, "pp", "[0,8][1,9][2,10][3,11][4,12][5,13][6,14][7,15]");
    expect(&s, "dp_cp", "[0,2,4,6][1,3,5,7][8,10,12,14][9,11,13,15]");
    expect(&s, "tp_pp", "[0,1,8,9][2,3,10,11][4,5,12,13][6,7,14,15]");
    expect(&s, "embed", "[0,8][1,9][2,10][3,11][4,12][5,13][6,14][7,15]");
}

static void test_groups_of_tp2_pp4(void **state)
{
    GroupSizes s = {2, 1, 2, 4, 2, 1, 2, "tp-cp-ep-dp-pp"};

    (void)state;
    expect(&s, "dp", "[0,2][1,3][4,6][5,7][8,10][9,11][12,14][13,15]");
    expect(&s, "pp", "[0,4,8,12][1,5,9,13][2,6,10,14][3,7,11,15]");
    expect(&s, "embed", "[0,12][1,13][2,14][3,15]");
}

static void test_experts_folded_over_tp_and_cp(void **state)
{
    GroupSizes s = {2, 2, 2, 2, 1, 2, 4, "tp-cp-ep-dp-pp"};

    (void)state;
    expect(&s, "ep", "[0,1][2,3][4,5][6,7][8,9][10,11][12,13][14,15]");
    expect(&s, "edp", "[0,2,4,6][1,3,5,7][8,10,12,14][9,11,13,15]");
    s.etp = s.edp = 2;
    expect(&s, "etp", "[0,1][2,3][4,5][6,7][8,9][10,11][12,13][14,15]");
    expect(&s, "ep", "[0,2][1,3][4,6][5,7][8,10][9,11][12,14][13,15]");
    expect(&s, "edp", "[0,4][1,5][2,6][3,7][8,12][9,13][10,14][11,15]");
}

/* (MC-57: NVIDIA/Megatron-LM#5958) */
static void test_one_expert_group_of_32(void **state)
{
    GroupSizes s = {1, 16, 2, 1, 1, 32, 1, "tp-cp-ep-dp-pp"};
    Arena *a = arena_new();
    uint32_t n;
    GroupFamily *all = groups_make(a, &s, &n);

    (void)state;
    assert_int_equal(family(all, n, "ep")->groups, 1);
    assert_int_equal(family(all, n, "ep")->size, 32);
    assert_int_equal(family(all, n, "edp")->size, 1);
    assert_int_equal(family(all, n, "dp_cp")->size, 32);
    arena_free(a);
}

/* In any order of the axes every rank is in exactly one group. */
static void test_families_partition_the_world(void **state)
{
    static const char *const orders[] = {"tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp",
                                         "pp-dp-ep-cp-tp", "dp-tp"};

    (void)state;
    for (uint32_t o = 0; o < MC_LEN(orders); o++) {
        GroupSizes s = {2, 3, 4, 5, 4, 2, 3, orders[o]};
        Arena *a = arena_new();
        uint32_t n;
        GroupFamily *all = groups_make(a, &s, &n);

        for (uint32_t i = 0; i + 1 < n; i++) {
            bool seen[120] = {false};
            assert_int_equal(all[i].groups * all[i].size, 120);
            for (uint32_t k = 0; k < 120; k++) {
                assert_in_range(all[i].ranks[k], 0, 119);
                assert_false(seen[all[i].ranks[k]]);
                seen[all[i].ranks[k]] = true;
            }
        }
        arena_free(a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense_groups_of_16),
        cmocka_unit_test(test_groups_of_tp2_pp4),
        cmocka_unit_test(test_experts_folded_over_tp_and_cp),
        cmocka_unit_test(test_one_expert_group_of_32),
        cmocka_unit_test(test_families_partition_the_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
