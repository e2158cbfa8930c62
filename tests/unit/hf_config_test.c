/* hf_config_test.c - config.json is written so that it reads back, for the
 * family whose weights have the names that megac gives them.
 *
 * Families of tests/oracle/X.yaml are those whose classes of transformers load
 * the weights of X there (tests/oracle/oracle.py).
 */
#include "frontend/hf.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>
#include <jansson.h>

typedef struct {
    Arena *arena;
    Diag *diag;
} Work;

static Work work_begin(void)
{
    Work w = {.arena = arena_new()};

    w.diag = diag_new(w.arena);
    return w;
}

static void work_end(Work *w)
{
    diag_free(w->diag);
    arena_free(w->arena);
}

static Spec *load(Work *w, const char *name, const char *set)
{
    const char *path = arena_printf(w->arena, "%s/%s.yaml", MEGAC_SOURCE_DIR,
                                    name);
    Spec *s = spec_load(w->arena, w->diag, path, &set, set ? 1 : 0);

    if (!s)
        diag_print(w->diag, stderr);
    assert_non_null(s);
    return s;
}

/* The caller's. */
static json_t *written(Work *w, const Spec *s)
{
    Buf text = {0};
    json_t *config = NULL;

    if (hf_config_write(w->arena, w->diag, s, "float32", &text))
        config = json_loadb(text.s, text.len, JSON_REJECT_DUPLICATES, NULL);
    else
        diag_print(w->diag, stderr);
    assert_non_null(config);
    buf_free(&text);
    return config;
}

static void expect_type(const char *name, const char *set, const char *type)
{
    Work w = work_begin();
    json_t *config = written(&w, load(&w, name, set));

    assert_string_equal(json_string_value(json_object_get(config,
                                                          "model_type")),
                        type);
    json_decref(config);
    work_end(&w);
}

static void families_by_what_they_are(void **state)
{
    static const char *const rows[][2] = {
        {"llama", "llama"},         {"llama3", "llama"},
        {"mistral", "mistral"},     {"qwen2", "qwen2"},
        {"qwen3", "qwen3"},         {"gpt2", "gpt2"},
        {"gpt2drop", "gpt2"},       {"mixtral", "mixtral"},
        {"qwen2moe", "qwen2_moe"},  {"qwen3moe", "qwen3_moe"},
        {"qwen3moe_raw", "qwen3_moe"}, {"dots1", "dots1"},
        {"glm4moe", "glm4_moe"},    {"stablelm", "stablelm"},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        char name[64];
        snprintf(name, sizeof name, "tests/oracle/%s", rows[i][0]);
        expect_type(name, NULL, rows[i][1]);
    }
    expect_type("configs/models/deepseek-moe-16b", NULL, "deepseek");
    expect_type("configs/models/llama3-70b", "model={qkv_bias: true, "
                "linear_bias: true}", "llama");
    expect_type("configs/models/llama3-70b", "model={normalization: layernorm, "
                "rope: {percent: 0.25}}", "stablelm");
    expect_type("configs/models/llama3-70b", "model.rope.percent=0.5",
                "glm4_moe"); /* all of whose layers may be dense */
    expect_type("configs/models/qwen3-30b-a3b", "model.moe={score: sigmoid, "
                "expert_bias: true, shared_ffn_hidden_size: 768}", "dots1");
    expect_type("configs/models/qwen3-30b-a3b", "model={rope: {percent: 0.5}, "
                "qkv_bias: true, moe: {score: sigmoid, expert_bias: true, "
                "shared_ffn_hidden_size: 768}}", "glm4_moe");
    expect_type("configs/models/llama3-70b", "model.qkv_bias=true", "qwen2");
    expect_type("configs/models/qwen2.5-7b", "model.sliding_window=64",
                "qwen2");
}

/* Written out once by hand from tests/oracle/llama3.yaml. */
static void every_value_is_written(void **state)
{
    static const char expected[] =
        "{'model_type': 'llama', 'architectures': ['LlamaForCausalLM'],"
        "'torch_dtype': 'float32', 'bos_token_id': null, 'eos_token_id': null,"
        "'vocab_size': 96, 'hidden_size': 64, 'intermediate_size': 128,"
        "'num_hidden_layers': 4, 'num_attention_heads': 8,"
        "'num_key_value_heads': 2, 'head_dim': 8,"
        "'max_position_embeddings': 64, 'rms_norm_eps': 1e-5,"
        "'hidden_act': 'silu', 'attention_bias': false, 'mlp_bias': false,"
        "'tie_word_embeddings': true, 'initializer_range': 0.02,"
        "'attention_dropout': 0.0, 'rope_theta': 500.0,"
        "'rope_scaling': {'rope_type': 'llama3', 'factor': 8.0,"
        "'low_freq_factor': 1.0, 'high_freq_factor': 4.0,"
        "'original_max_position_embeddings': 16}}";
    Work w = work_begin();
    json_t *config = written(&w, load(&w, "tests/oracle/llama3", NULL));
    char *text = arena_strdup(w.arena, expected);
    json_t *wanted;

    (void)state;
    for (char *c = text; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    wanted = json_loads(text, 0, NULL);
    assert_non_null(wanted);
    if (!json_equal(config, wanted))
        fail_msg("%s", json_dumps(config, JSON_INDENT(1)));
    json_decref(wanted);
    json_decref(config);
    work_end(&w);
}

static void models_of_no_family(void **state)
{
    static const char *const sets[] = {
        "model.position_embedding=none", "model.activation=relu2",
        "model.linear_bias=true",
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(sets); i++) {
        Work w = work_begin();
        Spec *s = load(&w, "tests/oracle/llama", sets[i]);
        Buf text = {0};
        assert_false(hf_config_write(w.arena, w.diag, s, "float32", &text));
        assert_int_equal(text.len, 0);
        assert_int_equal(diag_errors(w.diag), 1);
        work_end(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_by_what_they_are),
        cmocka_unit_test(every_value_is_written),
        cmocka_unit_test(models_of_no_family),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
