/* frontend_configs_test.c - every file of configs/ is a complete
 * specification, has the published size, and shrinks to a legal one.
 */
#include "frontend/model.h"

#include <glob.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static const char *root_path(Arena *a, const char *name)
{
    const char *slash = strstr(__FILE__, "tests/unit");

    return arena_printf(a, "%.*s%s", (int)(slash - __FILE__), __FILE__, name);
}

/* ---- sizes -------------------------------------------------------------- */

/* Without padding. */
static int64_t model_params(Arena *a, Diag *d, const Spec *s)
{
    Module *m = model_build(a, d, s);
    int64_t total = 0;

    for (uint32_t i = 1; i < m->tensors.n; i++) {
        const Tensor *t = &m->tensors.v[i];
        if (t->parameter)
            total += type_elems(&t->logical) *
                     tensor_layers(m, (TensorId){i}, 0, m->nlayers);
    }
    module_free(m);
    return total;
}

/* Published totals (model cards and safetensors indices on Hugging Face;
 * GPT-3 has only "175B": 174.6e9 follows from table 2.1 of its paper). */
static void published_sizes(void **state)
{
    static const struct {
        const char *name;
        int64_t params;
    } rows[] = {{"gpt2-124m", 124439808},      {"gpt2-1558m", 1557611200},
                {"gpt3-175b", 174604259328},   {"llama3-8b", 8030261248},
                {"llama3-70b", 70553706496},   {"llama3-405b", 405853388800},
                {"llama3.2-1b", 1235814400},   {"qwen2.5-0.5b", 494032768},
                {"qwen2.5-7b", 7615616512},    {"mixtral-8x7b", 46702792704},
                {"mixtral-8x22b", 140620634112},
                {"qwen3-30b-a3b", 30532122624},
                {"qwen3-235b-a22b", 235093634560},
                {"deepseek-moe-16b", 16375728128}};

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        Arena *a = arena_new();
        Diag *d = diag_new(a);
        const char *name =
            arena_printf(a, "configs/models/%s.yaml", rows[i].name);
        Spec *s = spec_load(a, d, root_path(a, name), NULL, 0);
        assert_non_null(s);
        assert_string_equal(s->model.name, rows[i].name);
        assert_int_equal(model_params(a, d, s), rows[i].params);
        diag_free(d);
        arena_free(a);
    }
}

/* ---- shrinking ---------------------------------------------------------- */

static void expect_same_shape(const Spec *s, const Spec *small)
{
    assert_int_equal(small->parallel.tp, s->parallel.tp);
    assert_int_equal(small->parallel.pp, s->parallel.pp);
    assert_int_equal(small->parallel.dp, s->parallel.dp);
    assert_int_equal(small->parallel.sp, s->parallel.sp);
    assert_int_equal(small->parallel.world_size, s->parallel.world_size);
    assert_int_equal(small->stages.n, s->stages.n);
    assert_int_equal(small->derived.microbatches,
                     MC_MIN(s->derived.microbatches, 4));
    assert_int_equal(small->derived.padded_vocab > small->model.vocab_size,
                     s->derived.padded_vocab > s->model.vocab_size);
    assert_int_equal(
        small->model.num_attention_heads > small->model.num_query_groups,
        s->model.num_attention_heads > s->model.num_query_groups);
    assert_true(small->model.hidden_size <= 8);
    assert_true(small->model.num_layers <=
                (s->layers.nkinds > 1 ? 4 : 2) * s->stages.n);
    assert_int_equal(small->layers.nkinds, s->layers.nkinds);
}

/* The shrunken twin must itself be accepted when written out. */
static void expect_shrinks(Arena *a, Diag *d, const Spec *s)
{
    const Spec *small = spec_shrink(a, s);
    Buf text = {0};

    expect_same_shape(s, small);
    spec_print(small, &text);
    if (!spec_parse(a, d, "small", buf_str(&text), NULL, 0)) {
        diag_print(d, stderr);
        fail();
    }
    buf_free(&text);
}

static void all_files_load_and_shrink(void **state)
{
    Arena *a = arena_new();
    glob_t files;

    (void)state;
    assert_int_equal(glob(root_path(a, "configs/models/*.yaml"), 0, NULL,
                          &files), 0);
    assert_int_equal(glob(root_path(a, "configs/examples/*.yaml"),
                          GLOB_APPEND, NULL, &files), 0);
    assert_true(files.gl_pathc >= 11);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        Diag *d = diag_new(a);
        Spec *s = spec_load(a, d, files.gl_pathv[i], NULL, 0);
        if (!s)
            fail_msg("%s", files.gl_pathv[i]);
        expect_shrinks(a, d, s);
        diag_free(d);
    }
    globfree(&files);
    arena_free(a);
}

/* Groups below tp, odd head ratios, partial rotation. */
static void shrinks_odd_shapes(void **state)
{
    static const char *const rows[][6] = {
        {"parallel.tp=8", "parallel.sp=true", "model.num_query_groups=2"},
        {"model.rope.percent=0.25"},
        {"model.num_attention_heads=24", "model.num_query_groups=8",
         "parallel.tp=2"},
        {"model.num_attention_heads=24", "model.num_query_groups=24",
         "parallel.tp=8"},
        {"parallel.dp=16", "training.micro_batch_size=4"},
        {"model.num_layers=13", "parallel.pp=4", "parallel.pp_last_layers=1"},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        Arena *a = arena_new();
        Diag *d = diag_new(a);
        const char *sets[8] = {"model.vocab_size=50257",
                               "training.global_batch_size=128"};
        int n = 2;
        for (int j = 0; j < 6 && rows[i][j]; j++)
            sets[n++] = rows[i][j];
        Spec *s = spec_load(a, d, root_path(a, "configs/models/llama3-8b.yaml"),
                            sets, n);
        if (!s) {
            diag_print(d, stderr);
            fail();
        }
        expect_shrinks(a, d, s);
        diag_free(d);
        arena_free(a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_sizes),
        cmocka_unit_test(all_files_load_and_shrink),
        cmocka_unit_test(shrinks_odd_shapes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
