/* driver_groups_test.c - process groups against published examples.
 *
 * The 16-rank grids are those of facebookresearch/fairscale#1189 (MC-11, dense)
 * and NVIDIA/Megatron-LM#1459 (MC-56, experts folded over tp and cp); the one
 * with tp 2, pp 4 is the example in Megatron's parallel_state.py.  500 random
 * grids are those of megatron-core 0.16.1 (tests/oracle/groups_megatron.py);
 * the mesh of a module must have the same groups.
 */
#include "driver/groups.h"

#include "frontend/model.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/unit/models.h"

#define GOLDEN MEGAC_SOURCE_DIR "/tests/golden/groups.json"

static const GroupFamily *family(const GroupFamily *f, uint32_t n,
                                 const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(f[i].name, name))
            return &f[i];
    fail_msg("no family %s", name);
    return NULL;
}

/* "[0,1][2,3]" */
static void print_family(const GroupFamily *f, Buf *out)
{
    for (uint32_t i = 0; i < f->groups; i++)
        for (uint32_t k = 0; k < f->size; k++)
            buf_printf(out, "%s%u%s", k ? "" : "[", f->ranks[i * f->size + k],
                       k + 1 < f->size ? "," : "]");
}

static void expect(const GroupSizes *s, const char *name, const char *text)
{
    Arena *a = arena_new();
    Buf b = {0};
    uint32_t n;
    GroupFamily *all = groups_make(a, s, &n);

    print_family(family(all, n, name), &b);
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

/* cp 4 in rings of 2 beside tp 2, as create_hierarchical_groups of megatron-core
 * cuts each group: neighbours first, then every second. */
static void test_cut_groups(void **state)
{
    GroupSizes s = {2, 4, 1, 1, 2, 1, 4, "tp-cp-ep-dp-pp"};
    Arena *a = arena_new();
    uint32_t n;
    GroupFamily *all = groups_make(a, &s, &n), cut[2];
    Buf text = {0};

    (void)state;
    groups_cut(a, family(all, n, "cp"), 2, cut);
    for (int i = 0; i < 2; i++) {
        buf_printf(&text, " %s", cut[i].name);
        print_family(&cut[i], &text);
    }
    assert_string_equal(buf_str(&text), " cp_a2a[0,2][4,6][1,3][5,7]"
                                        " cp_p2p[0,4][2,6][1,5][3,7]");
    buf_free(&text);
    arena_free(a);
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

        for (uint32_t i = 0; i + 2 < n; i++) {
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

/* ---- Megatron's ---------------------------------------------------------- */

static uint32_t size_of(const json_t *grid, const char *axis)
{
    return (uint32_t)json_integer_value(json_object_get(grid, axis));
}

static GroupSizes sizes_of(const json_t *grid)
{
    return (GroupSizes){
        size_of(grid, "tp"), size_of(grid, "cp"), size_of(grid, "dp"),
        size_of(grid, "pp"), size_of(grid, "etp"), size_of(grid, "ep"),
        size_of(grid, "edp"),
        json_string_value(json_object_get(grid, "order"))};
}

/* FNV-1a of the family's text. */
static uint32_t family_hash(const GroupFamily *f)
{
    uint32_t hash = 0x811c9dc5;
    Buf text = {0};

    print_family(f, &text);
    for (size_t i = 0; i < text.len; i++)
        hash = (hash ^ (uint8_t)text.s[i]) * 0x01000193;
    buf_free(&text);
    return hash;
}

static void test_groups_are_megatrons(void **state)
{
    json_t *grids = json_load_file(GOLDEN, 0, NULL), *grid, *hash;
    const char *name;
    size_t i;

    (void)state;
    assert_int_equal(json_array_size(grids), 500);
    json_array_foreach(grids, i, grid) {
        GroupSizes s = sizes_of(grid);
        Arena *a = arena_new();
        uint32_t n;
        GroupFamily *all = groups_make(a, &s, &n);
        json_t *expected = json_object_get(grid, "groups");

        assert_int_equal(json_object_size(expected), n);
        json_object_foreach(expected, name, hash)
            if (family_hash(family(all, n, name)) !=
                strtoul(json_string_value(hash), NULL, 16))
                fail_msg("family %s of grid %zu", name, i);
        arena_free(a);
    }
    json_decref(grids);
}

/* ---- the mesh ------------------------------------------------------------ */

/* A model that these degrees divide. */
static Spec *spec_of(Arena *a, Diag *d, const GroupSizes *s)
{
    const char *sets[] = {
        "model.num_query_groups=144", "model.num_attention_heads=144",
        "model.ffn_hidden_size=144", "model.moe.num_experts=840",
        "model.moe.ffn_hidden_size=144", "training.seq_length=288",
        "parallel.sp=true", "model.tie_embeddings=true",
        arena_printf(a, "model.num_layers=%u", s->pp),
        arena_printf(a, "training.global_batch_size=%u", s->dp),
        arena_printf(a, "parallel={tp: %u, cp: %u, pp: %u, etp: %u, ep: %u, "
                     "world_size: %u, order: %s, sp: true}",
                     s->tp, s->cp, s->pp, s->etp, s->ep,
                     s->tp * s->cp * s->pp * s->dp, s->order)};

    return spec_parse(a, d, "model", MODEL_T0, sets, MC_LEN(sets));
}

/* Each group of the family as the mesh numbers it. */
static void expect_axis(const Module *m, const GroupFamily *f, const char *axis)
{
    AxisSet set = mesh_axis(m, axis);
    uint32_t ranks[96];

    assert_int_equal(axes_size(&m->mesh, set), f->size);
    for (uint32_t i = 0; i < f->groups; i++)
        for (uint32_t k = 0; k < f->size; k++) {
            const uint32_t *group = &f->ranks[i * f->size];
            axes_members(&m->mesh, set, group[k], ranks);
            assert_memory_equal(ranks, group, f->size * sizeof *ranks);
            assert_int_equal(axes_index(&m->mesh, set, group[k]), k);
        }
}

static bool expect_mesh(const GroupSizes *s)
{
    static const char *const axes[] = {"tp", "cp",  "dp",  "pp",
                                       "ep", "etp", "edp", "embed"};
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Spec *spec = spec_of(a, d, s);
    Module *m = spec ? model_build(a, d, spec) : NULL;
    uint32_t n;
    GroupFamily *all = groups_make(a, s, &n);

    for (size_t i = 0; m && i < MC_LEN(axes); i++)
        expect_axis(m, family(all, n, axes[i]), axes[i]);
    if (m)
        module_free(m);
    diag_free(d);
    arena_free(a);
    return m != NULL;
}

/* Where our grids have common pieces, that is. */
static void test_mesh_has_the_same_groups(void **state)
{
    json_t *grids = json_load_file(GOLDEN, 0, NULL), *grid;
    uint32_t compared = 0;
    size_t i;

    (void)state;
    json_array_foreach(grids, i, grid) {
        GroupSizes s = sizes_of(grid);
        compared += expect_mesh(&s);
    }
    assert_true(compared > 400);
    json_decref(grids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense_groups_of_16),
        cmocka_unit_test(test_cut_groups),
        cmocka_unit_test(test_groups_of_tp2_pp4),
        cmocka_unit_test(test_experts_folded_over_tp_and_cp),
        cmocka_unit_test(test_one_expert_group_of_32),
        cmocka_unit_test(test_families_partition_the_world),
        cmocka_unit_test(test_groups_are_megatrons),
        cmocka_unit_test(test_mesh_has_the_same_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
