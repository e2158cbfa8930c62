/* frontend_stages_test.c - layers to stages, the four spellings.
 *
 * The expected splits are those of the Megatron-LM issues named at each test.
 * The table is asked directly, with other numbers than those of the sample.
 * 500 random layout strings are read as megatron-core 0.16.1 reads them
 * (tests/oracle/layouts_megatron.py).
 */
#include <jansson.h>

#include "frontend/frontend_priv.h"
#include "frontend_sample.h"

static void set_split(Spec *s, int64_t layers, int64_t pp, int64_t vpp)
{
    s->model.num_layers = layers;
    s->parallel.pp = pp;
    s->parallel.vpp = vpp;
}

/* Builds the table and compares it with layers per stage; NULL: rejected. */
static void expect_split(Sample *sample, const int64_t *counts)
{
    Check check = {sample->arena, sample->diag, sample->spec, {0}};
    bool ok = stages_build(&check);
    StageTable t = stage_table(sample->spec);
    int64_t layer = 0;

    assert_int_equal(ok, counts != NULL);
    for (uint32_t i = 0; ok && i < t.n; i++) {
        assert_int_equal(t.v[i].num_layers, counts[i]);
        assert_int_equal(t.v[i].first_layer, layer);
        assert_int_equal(t.v[i].pp, i % sample->spec->parallel.pp);
        assert_int_equal(t.v[i].chunk, i / sample->spec->parallel.pp);
        assert_int_equal(t.v[i].has_embedding, i == 0);
        assert_int_equal(t.v[i].has_head, i == t.n - 1);
        layer += counts[i];
    }
    if (ok)
        assert_int_equal(layer, sample->spec->model.num_layers);
}

/* 8 layers, pp 2: vpp 4 gives rank 0 [0][2][4][6], vpp 2 gives [0,1][4,5].
 * (MC-21: NVIDIA/Megatron-LM#513) */
static void interleaved(void **state)
{
    sample_accept(s, "parallel.pp=2");

    (void)state;
    set_split(s.spec, 8, 2, 4);
    expect_split(&s, (int64_t[]){1, 1, 1, 1, 1, 1, 1, 1});
    set_split(s.spec, 8, 2, 2);
    expect_split(&s, (int64_t[]){2, 2, 2, 2});
    assert_int_equal(s.spec->stages.v[2].first_layer, 4);
    sample_free(&s);
}

/* Down the ranks and up again, so that the first rank also has the head. */
static void v_shaped(void **state)
{
    sample_accept(s, "parallel.pp=2", "parallel.schedule=zb-v",
                  "parallel.pp_first_layers=2", "model.num_layers=6");
    static const int64_t rank[] = {0, 1, 1, 0}, layers[] = {1, 2, 2, 1};
    StageTable t = stage_table(s.spec);

    (void)state;
    assert_int_equal(t.n, 4);
    for (uint32_t i = 0; i < t.n; i++) {
        assert_int_equal(t.v[i].pp, rank[i]);
        assert_int_equal(t.v[i].chunk, i / 2);
        assert_int_equal(t.v[i].num_layers, layers[i]);
    }
    assert_true(t.v[3].has_head);
    sample_free(&s);
}

/* 30 layers do not split over 4 stages. (MC-03: NVIDIA/Megatron-LM#1304) */
static void no_layer_is_dropped(void **state)
{
    (void)state;
    sample_reject("num_layers = 30 is not a multiple of pp = 4 (remainder 2)",
                  "model.num_layers=30", "parallel.pp=4");
}

/* 61 layers. (MC-19: NVIDIA/Megatron-LM#1303, #857) */
static void last_stage_given(void **state)
{
    sample_accept(s, "parallel.pp=8", "model.num_layers=61",
                  "parallel.pp_last_layers=5");

    (void)state;
    expect_split(&s, (int64_t[]){8, 8, 8, 8, 8, 8, 8, 5});
    s.spec->parallel.pp_last_layers = 1;
    set_split(s.spec, 61, 16, 1);
    expect_split(&s, (int64_t[]){4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4,
                                 1});
    sample_free(&s);
    sample_reject("num_layers = 61 less pp_first_layers = 0 and "
                  "pp_last_layers = 4 leaves 57 layers for 7 stages",
                  "parallel.pp=8", "model.num_layers=61",
                  "parallel.pp_last_layers=4");
}

/* 22 layers, pp 4, vpp 2, last 4: 3 layers per chunk, 2 on the last rank.
 * (MC-22: NVIDIA/Megatron-LM#1584) */
static void last_stage_with_chunks(void **state)
{
    sample_accept(s, "parallel.pp=4", "model.num_layers=22",
                  "parallel.pp_last_layers=4");

    (void)state;
    set_split(s.spec, 22, 4, 2);
    expect_split(&s, (int64_t[]){3, 3, 3, 2, 3, 3, 3, 2});
    s.spec->parallel.pp_last_layers = 3;
    expect_split(&s, NULL);
    sample_free(&s);
}

static void first_and_last(void **state)
{
    sample_accept(s, "parallel.pp=2", "model.num_layers=4",
                  "parallel.pp_first_layers=1", "parallel.pp_last_layers=3");

    (void)state;
    expect_split(&s, (int64_t[]){1, 3});
    set_split(s.spec, 10, 4, 1);
    expect_split(&s, (int64_t[]){1, 3, 3, 3});
    s.spec->parallel.pp_last_layers = 0;
    expect_split(&s, (int64_t[]){1, 3, 3, 3});
    set_split(s.spec, 1, 4, 1);
    expect_split(&s, NULL);
    sample_free(&s);
}

/* (6 + 2) / 4 = 2 units per stage. (MC-28: pytorch/torchtitan#1041) */
static void counting_the_ends(void **state)
{
    sample_accept(s, "parallel.pp=4", "model.num_layers=6",
                  "parallel.account_for_embedding=true",
                  "parallel.account_for_loss=true");

    (void)state;
    expect_split(&s, (int64_t[]){1, 2, 2, 1});
    sample_free(&s);
    sample_reject("num_layers = 7 plus 2 for embedding and loss = 9 is not a "
                  "multiple of pp = 4",
                  "parallel.pp=4", "model.num_layers=7",
                  "parallel.account_for_embedding=true",
                  "parallel.account_for_loss=true");
}

/* Stages of only the embedding or the head; empty ones only where the layout
 * says so, and none on a rank that would hold nothing. */
static void without_layers(void **state)
{
    sample_accept(s, "parallel.pp=8", "model.num_layers=6",
                  "parallel.account_for_embedding=true",
                  "parallel.account_for_loss=true");

    (void)state;
    expect_split(&s, (int64_t[]){0, 1, 1, 1, 1, 1, 1, 0});
    sample_free(&s);
    sample_accept(t, "parallel.pp=2", "parallel.pp_layout=\"Ett|tt||L\"");
    expect_split(&t, (int64_t[]){2, 2, 0, 0});
    sample_free(&t);
    sample_reject("stage 1 (chunk 0) would hold nothing", "parallel.pp=3",
                  "parallel.pp_layout=\"Ettt||tL\"");
}

static void layout_text(void **state)
{
    sample_accept(s, "model.num_layers=8", "parallel.pp=4",
                  "parallel.pp_layout=\"Et|tt|(t)*2|t*3 L\"");

    (void)state;
    expect_split(&s, (int64_t[]){1, 2, 2, 3});
    s.spec->parallel.pp_layout = "E(t|)*7,tL";
    expect_split(&s, (int64_t[]){1, 1, 1, 1, 1, 1, 1, 1});
    assert_int_equal(s.spec->parallel.vpp, 2);
    sample_free(&s);
}

static void layout_list(void **state)
{
    sample_accept(s, "model.num_layers=8", "parallel.pp=4",
                  "parallel.pp_layout=[1, 2, 2, 3]");

    (void)state;
    expect_split(&s, (int64_t[]){1, 2, 2, 3});
    assert_string_equal(s.spec->parallel.pp_layout, "Et*1|t*2|t*2|t*3L");
    sample_free(&s);
}

static void layout_faults(void **state)
{
    static const struct {
        const char *layout, *message;
    } rows[] = {
        {"tt|ttL", "must begin with its only E"},
        {"Ett|tt", "end with its only L"},
        {"EtE|ttL", "its only E"},
        {"Ettt|ttL", "the layout has 5 layers, but num_layers = 4"},
        {"Et|t|ttL", "3 stages, not a multiple of pp = 2"},
        {"Ett|(ttL", "a missing `)` at character 9"},
        {"Ett)|ttL", "a `)` too many at character 4"},
        {"Ett|tx", "an unknown letter at character 6"},
        {"Ett|t,m|tL", "no MTP layer exists"},
        {"Et*0|ttL", "a bad number of repetitions"},
        {"E(((((((((t)))))))))|L", "groups nested too deeply"},
        {"E((((t*99999)*99999)*99999)*99999)|L", "repetitions"},
        {"Ettt|t|L", "3 stages"},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        char set[128];
        snprintf(set, sizeof set, "parallel.pp_layout=\"%s\"", rows[i].layout);
        sample_reject(rows[i].message, "parallel.pp=2", set);
    }
}

/* Layers of each stage as Megatron counts them; NULL where it rejects the
 * layout, or where a rank would hold nothing, which only we reject. */
static const int64_t *expected_counts(Arena *a, const json_t *row, int64_t pp)
{
    const json_t *layers = json_object_get(row, "layers");
    size_t n = json_array_size(layers);
    int64_t *counts = arena_array(a, int64_t, n + 1);
    int64_t *held = arena_array(a, int64_t, pp);

    held[0] = held[pp - 1] = 1;
    for (size_t i = 0; i < n; i++) {
        counts[i] = json_integer_value(json_array_get(layers, i));
        held[(int64_t)i % pp] += counts[i];
    }
    for (int64_t rank = 0; rank < pp; rank++)
        if (n == 0 || held[rank] == 0)
            return NULL;
    return counts;
}

static void layouts_are_megatrons(void **state)
{
    json_t *rows = json_load_file(MEGAC_SOURCE_DIR
                                  "/tests/golden/layouts.json", 0, NULL);
    json_t *row;
    size_t i, accepted = 0;

    (void)state;
    assert_int_equal(json_array_size(rows), 500);
    json_array_foreach(rows, i, row) {
        int64_t pp = json_integer_value(json_object_get(row, "pp"));
        sample_accept(s, "parallel.pp=2");
        const int64_t *counts = expected_counts(s.arena, row, pp);

        set_split(s.spec,
                  json_integer_value(json_object_get(row, "num_layers")), pp,
                  1);
        s.spec->parallel.pp_layout =
            json_string_value(json_object_get(row, "layout"));
        expect_split(&s, counts);
        accepted += counts != NULL;
        sample_free(&s);
    }
    assert_true(accepted > 250);
    json_decref(rows);
}

static void spellings_exclude_each_other(void **state)
{
    (void)state;
    sample_reject("pp_first_layers and account_for_loss exclude each other",
                  "parallel.pp=2", "parallel.pp_first_layers=2",
                  "parallel.account_for_loss=true");
    sample_reject("pp_last_layers and pp_layout exclude each other",
                  "parallel.pp=2", "parallel.pp_last_layers=2",
                  "parallel.pp_layout=\"Ett|ttL\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interleaved),
        cmocka_unit_test(v_shaped),
        cmocka_unit_test(no_layer_is_dropped),
        cmocka_unit_test(last_stage_given),
        cmocka_unit_test(last_stage_with_chunks),
        cmocka_unit_test(first_and_last),
        cmocka_unit_test(counting_the_ends),
        cmocka_unit_test(without_layers),
        cmocka_unit_test(layout_text),
        cmocka_unit_test(layout_list),
        cmocka_unit_test(layout_faults),
        cmocka_unit_test(layouts_are_megatrons),
        cmocka_unit_test(spellings_exclude_each_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
