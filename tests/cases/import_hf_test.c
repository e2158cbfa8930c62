/* import_hf_test.c - `megac import --hf`: config.json as transformers reads it.
 *
 * From public bug reports: EricLBuehler/candle-vllm#167,
 * ServiceNow/Fast-LLM#153, flagos-ai/FlagScale#35 (MC-14, what a family does
 * though its config.json does not say so), huggingface/transformers#30552,
 * PaddlePaddle/PaddleFleet#599, NVIDIA/TensorRT-LLM#1758 (MC-63, which layers
 * have experts), NVIDIA/Megatron-LM#1256 (MC-52, dropout that is on by
 * default).  Sizes are those of the model cards and safetensors indices on
 * Hugging Face; tests/data/hf/ has what those models publish as config.json.
 */
#include "cases.h"

#include "frontend/hf.h"
#include "frontend/model.h"

#include <unistd.h>

/* ---- a configuration in memory ------------------------------------------- */

typedef struct {
    Arena *arena;
    Diag *diag;
    Spec *spec;
} Imported;

/* JSON with ' for ". */
static Imported import_text(const char *text)
{
    Imported im = {.arena = arena_new()};
    char *json = arena_strdup(im.arena, text);

    for (char *c = json; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    im.diag = diag_new(im.arena);
    im.spec = hf_config_parse(im.arena, im.diag, "config.json", json,
                              strlen(json), NULL, 0);
    if (!im.spec)
        diag_print(im.diag, stdout);
    return im;
}

static void import_free(Imported *im)
{
    diag_free(im->diag);
    arena_free(im->arena);
}

/* As a file, through the program; it must fail and say so. */
static void rejected(const char *text, const char *message)
{
    case_shell("tr \"'\" '\"' >config.json <<'END'\n%s\nEND", text);
    assert_int_equal(case_shell("$MEGAC import --hf . -o made.yaml"), 1);
    assert_true(case_printed(message));
    assert_int_not_equal(access("made.yaml", F_OK), 0);
}

/* ---- published models ---------------------------------------------------- */

/* Imports a folder of tests/data/hf into NAME.yaml. */
static void import_published(const char *name)
{
    if (case_shell("$MEGAC import --hf " MEGAC_SOURCE_DIR
                   "/tests/data/hf/%s -o %s.yaml", name, name))
        fail_msg("%s: %s", name, case_output());
}

static double total_of(const char *file)
{
    json_t *view;
    double total;

    assert_int_equal(case_shell("$MEGAC inspect %s params --json", file), 0);
    view = json_loads(case_output(), 0, NULL);
    total = (double)json_integer_value(case_member(view, "total"));
    json_decref(view);
    return total;
}

static void published_models_have_their_size(void **state)
{
    static const struct {
        const char *name;
        double total;
    } rows[] = {
        {"llama2-7b", 6738415616.},     {"llama3-8b", 8030261248.},
        {"llama3.2-1b", 1235814400.},   {"mistral-7b", 7241732096.},
        {"qwen2.5-0.5b", 494032768.},   {"qwen2.5-7b", 7615616512.},
        {"qwen3-0.6b", 596049920.},     {"gpt2-124m", 124439808.},
        {"gpt2-1558m", 1557611200.},    {"mixtral-8x7b", 46702792704.},
        {"mixtral-8x22b", 140620634112.},
        {"qwen3-30b-a3b", 30532122624.},
        {"qwen3-235b-a22b", 235093634560.},
        {"qwen1.5-moe-a2.7b", 14315784192.},
        {"deepseek-moe-16b", 16375728128.},
        {"glm-4.5-air", 106852251264.},
        {"stablelm-3b-4e1t", 2795443200.},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        char file[64];
        import_published(rows[i].name);
        snprintf(file, sizeof file, "%s.yaml", rows[i].name);
        if (total_of(file) != rows[i].total)
            fail_msg("%s: %.0f", rows[i].name, total_of(file));
    }
}

/* The model block of the normal form, but for its name. */
static char *model_block(const Spec *s)
{
    Buf text = {0};
    char *block, *end;

    spec_print(s, &text);
    end = strstr(buf_str(&text), "parallel:");
    assert_non_null(end);
    *end = '\0';
    block = strdup(strstr(buf_str(&text), "num_layers:"));
    buf_free(&text);
    return block;
}

/* megac's own file of a model, and what config.json of it says besides:
 * dropout, and the width of dense layers that the model does not have. */
static void published_models_are_those_of_configs(void **state)
{
    static const struct {
        const char *name, *besides[2];
    } rows[] = {
        {"llama3-8b", {0}},
        {"llama3.2-1b", {0}},
        {"qwen2.5-0.5b", {0}},
        {"qwen2.5-7b", {0}},
        {"mixtral-8x7b", {0}},
        {"mixtral-8x22b", {0}},
        {"deepseek-moe-16b", {0}},
        {"qwen3-30b-a3b", {"model.ffn_hidden_size=6144"}},
        {"qwen3-235b-a22b", {"model.ffn_hidden_size=12288"}},
        {"gpt2-124m",
         {"model.attention_dropout=0.1", "model.hidden_dropout=0.1"}},
        {"gpt2-1558m",
         {"model.attention_dropout=0.1", "model.hidden_dropout=0.1"}},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        Arena *a = arena_new();
        Diag *d = diag_new(a);
        int n = !rows[i].besides[0] ? 0 : !rows[i].besides[1] ? 1 : 2;
        Spec *ours = spec_load(a, d,
                               arena_printf(a, "%s/configs/models/%s.yaml",
                                            MEGAC_SOURCE_DIR, rows[i].name),
                               rows[i].besides, n);
        Spec *theirs = hf_config_load(
            a, d,
            arena_printf(a, "%s/tests/data/hf/%s", MEGAC_SOURCE_DIR,
                         rows[i].name),
            NULL, 0);
        assert_non_null(ours);
        assert_non_null(theirs);
        char *left = model_block(theirs), *right = model_block(ours);
        assert_string_equal(left, right);
        assert_string_equal(theirs->model.name, rows[i].name);
        free(left);
        free(right);
        diag_free(d);
        arena_free(a);
    }
}

/* ---- drawn configurations ------------------------------------------------ */

/* Every parameter that transformers counts, and no padding. */
static int64_t count_parameters(Imported *im)
{
    Module *m = model_build(im->arena, im->diag, im->spec);
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

static void expect_number(json_t *facts, const char *name, double got)
{
    json_t *wanted = json_object_get(facts, name);

    if (wanted && json_number_value(wanted) != got)
        fail_msg("%s is %.17g, not %.17g", name, got,
                 json_number_value(wanted));
}

static void expect_bool(json_t *facts, const char *name, bool got)
{
    json_t *wanted = json_object_get(facts, name);

    if (wanted && json_is_true(wanted) != got)
        fail_msg("%s is %d", name, got);
}

static void expect_facts(Imported *im, json_t *facts)
{
    const Spec *s = im->spec;
    json_t *experts = json_object_get(facts, "experts");

    expect_number(facts, "total", (double)count_parameters(im));
    expect_number(facts, "window", (double)s->model.sliding_window);
    expect_number(facts, "eps", s->model.norm_epsilon);
    expect_number(facts, "attention_dropout", s->model.attention_dropout);
    expect_number(facts, "hidden_dropout", s->model.hidden_dropout);
    expect_bool(facts, "tied", s->model.tie_embeddings);
    expect_bool(facts, "q_bias", s->model.qkv_bias);
    expect_bool(facts, "o_bias", s->model.linear_bias);
    for (size_t l = 0; l < json_array_size(experts); l++)
        assert_int_equal(spec_layer(s, (int64_t)l)->experts,
                         json_is_true(json_array_get(experts, l)));
}

/* tests/oracle/hf_configs.py: a window that some layers have is rejected. */
static void drawn_configurations_mean_what_transformers_reads(void **state)
{
    json_t *golden = json_load_file(
        MEGAC_SOURCE_DIR "/tests/data/hf/drawn.json", 0, NULL);
    json_t *rows = json_object_get(golden, "rows"), *row;
    size_t i;

    (void)state;
    assert_true(json_array_size(rows) > 50);
    json_array_foreach(rows, i, row) {
        json_t *facts = json_object_get(row, "facts");
        json_t *window = json_object_get(facts, "window");
        char *text = json_dumps(json_object_get(row, "config"), 0);
        Imported im = import_text(text);
        if (json_is_null(window))
            assert_null(im.spec);
        else if (!im.spec)
            fail_msg("%s", text);
        else
            expect_facts(&im, facts);
        import_free(&im);
        free(text);
    }
    json_decref(golden);
}

/* ---- what config.json leaves out (MC-14) --------------------------------- */

#define QWEN2_SMALL                                                            \
    "'model_type': 'qwen2', 'hidden_size': 896, 'num_attention_heads': 14, "   \
    "'num_key_value_heads': 2, 'intermediate_size': 4864, "                    \
    "'num_hidden_layers': 24, 'vocab_size': 151936, "                          \
    "'tie_word_embeddings': true"

static void qwen2_has_biases_on_q_k_v(void **state)
{
    (void)state;
    assert_int_equal(case_shell("tr \"'\" '\"' >config.json <<'END'\n{"
                                QWEN2_SMALL "}\nEND\n"
                                "$MEGAC import --hf config.json -o q.yaml"), 0);
    assert_true(total_of("q.yaml") == 494032768.);
    assert_true(case_printed("layers.0.self_attn.q_proj.bias") ||
                case_printed("self_attn.q_proj.bias"));
    assert_null(strstr(case_output(), "o_proj.bias"));
    assert_null(strstr(case_output(), "up_proj.bias"));
}

static void llama_has_no_biases(void **state)
{
    Imported im = import_text(
        "{'model_type': 'llama', 'hidden_size': 512, 'num_attention_heads': 8, "
        "'num_hidden_layers': 2, 'intermediate_size': 1024, "
        "'vocab_size': 128}");

    (void)state;
    assert_non_null(im.spec);
    assert_false(im.spec->model.qkv_bias);
    assert_false(im.spec->model.linear_bias);
    assert_false(im.spec->model.tie_embeddings);
    assert_int_equal(im.spec->model.num_query_groups, 8);
    assert_int_equal(im.spec->model.kv_channels, 64);
    import_free(&im);
}

static void unknown_families_are_rejected(void **state)
{
    (void)state;
    rejected("{'model_type': 'mamba2', 'hidden_size': 512}",
             "config.json:1:16: error: model_type \"mamba2\" cannot be "
             "imported");
    assert_true(case_printed("llama, mistral, qwen2, qwen3, gpt2, mixtral, "
                             "qwen2_moe, qwen3_moe, deepseek, dots1, "
                             "glm4_moe, stablelm"));
    rejected("{'hidden_size': 512}", "model_type is required");
    rejected("{" QWEN2_SMALL ",\n'architectures': "
             "['Qwen2ForSequenceClassification']}",
             "architecture \"Qwen2ForSequenceClassification\" cannot be");
    assert_true(case_printed("Qwen2ForCausalLM"));
}

/* ---- layers with experts (MC-63) ----------------------------------------- */

/* "010101" for experts in every second layer. */
static void expect_experts(const char *text, const char *expected)
{
    Imported im = import_text(text);

    assert_non_null(im.spec);
    assert_int_equal(im.spec->model.num_layers, strlen(expected));
    for (size_t l = 0; expected[l]; l++)
        assert_int_equal(spec_layer(im.spec, (int64_t)l)->experts,
                         expected[l] == '1');
    import_free(&im);
}

#define QWEN_MOE "{'model_type': 'qwen2_moe', 'num_hidden_layers': 6, "
#define DEEPSEEK                                                               \
    "{'model_type': 'deepseek', 'num_hidden_layers': 6, "                      \
    "'n_routed_experts': 8, 'num_experts_per_tok': 2, "

static void layers_with_experts(void **state)
{
    (void)state;
    expect_experts(QWEN_MOE "'decoder_sparse_step': 2, "
                            "'mlp_only_layers': []}", "010101");
    expect_experts(QWEN_MOE "'decoder_sparse_step': 2, "
                            "'mlp_only_layers': [3]}", "010001");
    expect_experts(QWEN_MOE "'mlp_only_layers': [0, 5]}", "011110");
    expect_experts(DEEPSEEK "'first_k_dense_replace': 1, "
                            "'moe_layer_freq': 1}", "011111");
    expect_experts(DEEPSEEK "'first_k_dense_replace': 1, "
                            "'moe_layer_freq': 2}", "001010");
    expect_experts("{'model_type': 'mixtral', 'num_hidden_layers': 3}", "111");
    expect_experts("{'model_type': 'deepseek', 'num_hidden_layers': 3}", "000");
    rejected(QWEN_MOE "'mlp_only_layers': [6]}",
             "mlp_only_layers = 6: a layer from 0 to 5 is expected");
}

static void weights_of_experts(void **state)
{
    Imported im = import_text(DEEPSEEK "'n_shared_experts': 3, "
                                       "'moe_intermediate_size': 100, "
                                       "'norm_topk_prob': true}");

    (void)state;
    assert_non_null(im.spec);
    assert_int_equal(im.spec->model.moe.shared_ffn_hidden_size, 300);
    assert_false(im.spec->model.moe.shared_gate);
    assert_false(im.spec->model.moe.pre_softmax);
    import_free(&im);
    im = import_text("{'model_type': 'qwen2_moe'}");
    assert_non_null(im.spec);
    assert_int_equal(im.spec->model.moe.shared_ffn_hidden_size, 5632);
    assert_true(im.spec->model.moe.shared_gate);
    assert_true(im.spec->model.moe.pre_softmax);
    assert_true(im.spec->model.qkv_bias);
    import_free(&im);
}

/* Sigmoids are normalised; groups are chosen by their two best experts. */
static void sigmoid_routers(void **state)
{
    Imported im = import_text(
        "{'model_type': 'dots1', 'n_routed_experts': 16, 'n_group': 4, "
        "'topk_group': 2, 'num_experts_per_tok': 4, 'n_shared_experts': 1, "
        "'norm_topk_prob': true, 'routed_scaling_factor': 2.5}");

    (void)state;
    assert_non_null(im.spec);
    assert_int_equal(im.spec->model.moe.score, MOE_SIGMOID);
    assert_int_equal(im.spec->model.moe.num_groups, 4);
    assert_int_equal(im.spec->model.moe.group_top_k, 2);
    assert_true(im.spec->model.moe.expert_bias);
    assert_true(im.spec->model.moe.scaling_factor == 2.5);
    import_free(&im);
    rejected("{'model_type': 'glm4_moe', 'n_group': 4, 'topk_group': 1}",
             "topk_group = 1: only half of num_experts_per_tok = 8");
    rejected("{'model_type': 'glm4_moe', 'norm_topk_prob': false}",
             "norm_topk_prob = false: only true can be expressed");
    rejected("{'model_type': 'glm4_moe', 'n_shared_experts': 0}",
             "n_shared_experts = 0: at least 1 is expected");
}

/* ---- dropout (MC-52) ----------------------------------------------------- */

/* GPT-2 drops a tenth unless its config.json says otherwise. */
static void dropout_by_default(void **state)
{
    Imported im = import_text("{'model_type': 'gpt2'}");

    (void)state;
    assert_non_null(im.spec);
    assert_true(im.spec->model.hidden_dropout == 0.1);
    assert_true(im.spec->model.attention_dropout == 0.1);
    import_free(&im);
    im = import_text("{'model_type': 'gpt2', 'resid_pdrop': 0, "
                     "'embd_pdrop': 0.0, 'attn_pdrop': 0.0}");
    assert_non_null(im.spec);
    assert_true(im.spec->model.hidden_dropout == 0);
    import_free(&im);
    rejected("{'model_type': 'gpt2', 'resid_pdrop': 0.0}",
             "embd_pdrop = 0.1: the same share as of residual sums");
}

/* ---- names --------------------------------------------------------------- */

/* A folder's name is the model's, also where YAML has another meaning of it;
 * not if it is no UTF-8. */
static void any_folder_is_a_name(void **state)
{
    static const struct {
        const char *folder, *name;
    } rows[] = {{"null", "\"null\""}, {"~", "\"~\""}, {"n\xff", "model"}};

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        char want[64];
        snprintf(want, sizeof want, "name: %s", rows[i].name);
        assert_int_equal(
            case_shell("mkdir './%s' && cp " MEGAC_SOURCE_DIR
                       "/tests/data/hf/gpt2-124m/config.json './%s' && "
                       "$MEGAC import --hf './%s' -o name.yaml && "
                       "$MEGAC inspect name.yaml lr && grep name: name.yaml",
                       rows[i].folder, rows[i].folder, rows[i].folder), 0);
        if (!case_printed(want))
            fail_msg("%s", case_output());
    }
}

/* ---- windows ------------------------------------------------------------- */

static void expect_window(const char *text, int64_t window)
{
    Imported im = import_text(text);

    assert_non_null(im.spec);
    assert_int_equal(im.spec->model.sliding_window, window);
    import_free(&im);
}

static void sliding_windows(void **state)
{
    (void)state;
    expect_window("{'model_type': 'mistral'}", 4096);
    expect_window("{'model_type': 'mistral', 'sliding_window': null}", 0);
    expect_window("{'model_type': 'mixtral'}", 0);
    expect_window("{'model_type': 'qwen2', 'sliding_window': 128}", 0);
    expect_window("{'model_type': 'qwen2', 'sliding_window': 128, "
                  "'use_sliding_window': true, 'max_window_layers': 0}", 128);
    expect_window("{'model_type': 'qwen2', 'sliding_window': 128, "
                  "'use_sliding_window': true, 'max_window_layers': 32}", 0);
    rejected("{'model_type': 'qwen2', 'sliding_window': 128, "
             "'use_sliding_window': true, 'max_window_layers': 31}",
             "max_window_layers = 31: all 32 layers see the same window");
    rejected("{'model_type': 'qwen2', 'num_hidden_layers': 2, 'layer_types': "
             "['full_attention', 'sliding_attention']}",
             "layer_types = \"sliding_attention\": all layers are");
    rejected("{'model_type': 'qwen2', 'num_hidden_layers': 3, 'layer_types': "
             "['full_attention', 'full_attention']}",
             "layer_types = […]: 2 of 3 layers");
    rejected("{'model_type': 'qwen2', 'num_hidden_layers': 1, "
             "'sliding_window': null, 'layer_types': ['sliding_attention']}",
             "sliding_window must be an integer, not null");
    rejected("{'model_type': 'qwen3', 'num_hidden_layers': 1, "
             "'use_sliding_window': false, 'layer_types': "
             "['sliding_attention']}",
             "use_sliding_window = false: layer_types says otherwise");
    expect_window("{'model_type': 'qwen3', 'num_hidden_layers': 1, "
                  "'use_sliding_window': true, 'sliding_window': 64, "
                  "'layer_types': ['sliding_attention']}", 64);
    rejected("{'model_type': 'mistral', 'sliding_window': 0}",
             "sliding_window = 0: at least 1 is expected");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_models_have_their_size),
        cmocka_unit_test(published_models_are_those_of_configs),
        cmocka_unit_test(drawn_configurations_mean_what_transformers_reads),
        cmocka_unit_test(qwen2_has_biases_on_q_k_v),
        cmocka_unit_test(llama_has_no_biases),
        cmocka_unit_test(unknown_families_are_rejected),
        cmocka_unit_test(layers_with_experts),
        cmocka_unit_test(weights_of_experts),
        cmocka_unit_test(sigmoid_routers),
        cmocka_unit_test(dropout_by_default),
        cmocka_unit_test(any_folder_is_a_name),
        cmocka_unit_test(sliding_windows),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
