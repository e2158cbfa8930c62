/* ir_mesh_test.c - ranks, groups and what a rank holds.
 *
 * The groups of 16 ranks at tp 2, pp 4 are those in the docstring of
 * initialize_model_parallel in Megatron-LM's core/parallel_state.py; the rest
 * is worked out by hand.
 */
#include "ir_sample.h"

static Sample mesh_of(const char *atoms)
{
    Sample s = sample_parse(atoms);

    assert_non_null(s.m);
    return s;
}

static void expect_group(const Sample *s, const char *axis, uint32_t rank,
                         uint32_t n, const uint32_t *want)
{
    AxisSet set = mesh_axis(s->m, axis);
    uint32_t got[16];

    assert_int_equal(axes_size(&s->m->mesh, set), n);
    axes_members(&s->m->mesh, set, rank, got);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(got[i], want[i]);
        assert_int_equal(axes_index(&s->m->mesh, set, want[i]), i);
    }
}

static void groups_as_in_megatron(void **state)
{
    Sample s = mesh_of("mesh world=16 {tp=2:1 dp=2:2 pp=4:4}");

    (void)state;
    expect_group(&s, "tp", 0, 2, (uint32_t[]){0, 1});
    expect_group(&s, "tp", 13, 2, (uint32_t[]){12, 13});
    expect_group(&s, "dp", 0, 2, (uint32_t[]){0, 2});
    expect_group(&s, "dp", 7, 2, (uint32_t[]){5, 7});
    expect_group(&s, "dp", 12, 2, (uint32_t[]){12, 14});
    expect_group(&s, "pp", 0, 4, (uint32_t[]){0, 4, 8, 12});
    expect_group(&s, "pp", 10, 4, (uint32_t[]){2, 6, 10, 14});
    expect_group(&s, "pp", 3, 4, (uint32_t[]){3, 7, 11, 15});
    sample_free(&s);
}

/* The least significant digit runs fastest, whatever the order of atoms. */
static void groups_over_several_axes(void **state)
{
    Sample s = mesh_of("mesh world=16 {tp=2:1 dp=2:2 pp=4:4}");
    AxisSet set = mesh_axis(s.m, "pp") | mesh_axis(s.m, "tp");
    const uint32_t want[] = {2, 3, 6, 7, 10, 11, 14, 15};
    uint32_t got[8];

    (void)state;
    assert_int_equal(axes_size(&s.m->mesh, set), 8);
    axes_members(&s.m->mesh, set, 11, got);
    assert_memory_equal(got, want, sizeof want);
    assert_int_equal(axes_index(&s.m->mesh, set, 11), 5);
    assert_int_equal(axes_size(&s.m->mesh, 0), 1);
    sample_free(&s);
}

/* tp 8 cut for 2 KV groups: rank 5 is half 1, quarter 1 of it. */
static void parts_of_an_axis(void **state)
{
    Sample s = mesh_of("mesh world=8 {tp.0=2:4 tp.1=4:1}");
    uint8_t atoms[IR_MAX_ATOMS];

    (void)state;
    assert_int_equal(mesh_axis_atoms(s.m, "tp", atoms), 2);
    assert_int_equal(atom_coord(&s.m->mesh.atoms.v[atoms[0]], 5), 1);
    assert_int_equal(atom_coord(&s.m->mesh.atoms.v[atoms[1]], 5), 1);
    assert_int_equal(atom_coord(&s.m->mesh.atoms.v[atoms[1]], 3), 3);
    assert_int_equal(mesh_axis(s.m, "dp"), 0);
    expect_group(&s, "tp", 6, 8, (uint32_t[]){0, 1, 2, 3, 4, 5, 6, 7});
    sample_free(&s);
}

static void an_atom_is_found_again(void **state)
{
    Sample s = mesh_of("mesh world=4 {tp=2:1}");
    Sym tp = sym_intern(s.m->names, "tp"), dp = sym_intern(s.m->names, "dp");

    (void)state;
    assert_int_equal(mesh_atom(&s.m->mesh, tp, 0, 2, 1, false), 0);
    assert_int_equal(mesh_atom(&s.m->mesh, dp, 0, 2, 2, false), 1);
    assert_int_equal(mesh_atom(&s.m->mesh, dp, 0, 2, 2, false), 1);
    assert_int_equal(s.m->mesh.atoms.n, 2);
    sample_free(&s);
}

/* ---- layouts ------------------------------------------------------------- */

/* s is cut by cp into halves, each by tp into quarters: ranks 0 to 7 (tp
 * fastest) hold s from 0, 4, … 28. */
static void what_a_rank_holds(void **state)
{
    Sample s = mesh_of("mesh world=16 {tp=4:1 cp=2:4 dp=2:8}\n"
                       "layout #x {b@dp s@cp.tp}\n"
                       "layout #y {s@tp.cp}\n");
    TypeId t = type_make(s.m, DT_F32, "sbh", (int64_t[]){32, 4, 16});
    const Type *type = type_of(s.m, t);
    const Layout *x = layout_of(s.m, s.m->hints.v[0].layout);
    const Layout *y = layout_of(s.m, s.m->hints.v[1].layout);

    (void)state;
    assert_int_equal(layout_local(s.m, type, x, 's'), 4);
    assert_int_equal(layout_local(s.m, type, x, 'b'), 2);
    assert_int_equal(layout_local(s.m, type, x, 'h'), 16);
    assert_int_equal(layout_local(s.m, type, x, 'q'), 1);
    assert_int_equal(layout_local_elems(s.m, type, x), 4 * 2 * 16);
    for (uint32_t rank = 0; rank < 8; rank++)
        assert_int_equal(layout_start(s.m, type, x, 's', rank), 4 * rank);
    assert_int_equal(layout_start(s.m, type, x, 'b', 7), 0);
    assert_int_equal(layout_start(s.m, type, x, 'b', 8), 2);
    assert_int_equal(layout_start(s.m, type, x, 'h', 15), 0);
    assert_int_equal(layout_start(s.m, type, y, 's', 1), 8);
    assert_int_equal(layout_start(s.m, type, y, 's', 4), 4);
    sample_free(&s);
}

static void layouts_are_interned(void **state)
{
    Sample s = mesh_of("mesh world=4 {tp=2:1 dp=2:2}");
    Layout one = {0}, two = {0};

    (void)state;
    layout_set_split(&one, 's', (uint8_t[]){0}, 1);
    layout_set_split(&one, 'b', (uint8_t[]){1}, 1);
    layout_set_split(&two, 'b', (uint8_t[]){1}, 1);
    layout_set_split(&two, 'h', (uint8_t[]){0}, 1);
    layout_set_split(&two, 's', (uint8_t[]){0}, 1);
    layout_set_split(&two, 'h', NULL, 0);
    assert_int_equal(layout_intern(s.m, &one).i, layout_intern(s.m, &two).i);
    two.partial = 1;
    assert_int_not_equal(layout_intern(s.m, &one).i,
                         layout_intern(s.m, &two).i);
    two.partial = 0;
    two.partial_max = 1;
    assert_int_not_equal(layout_intern(s.m, &one).i,
                         layout_intern(s.m, &two).i);
    assert_true(layout_whole(s.m).i != 0);
    assert_int_equal(layout_whole(s.m).i, layout_whole(s.m).i);
    assert_int_equal(layout_split_axes(&s.m->mesh, &one), 3);
    assert_int_equal(split_parts(&s.m->mesh, NULL), 1);
    sample_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_as_in_megatron),
        cmocka_unit_test(groups_over_several_axes),
        cmocka_unit_test(parts_of_an_axis),
        cmocka_unit_test(an_atom_is_found_again),
        cmocka_unit_test(what_a_rank_holds),
        cmocka_unit_test(layouts_are_interned),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
