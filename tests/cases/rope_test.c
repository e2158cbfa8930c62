/* rope_test.c - rotary frequencies, from the YAML, or a config.json of Hugging
 * Face's, to the table of the model.
 *
 * Cosine and sine of position 1 give back the frequency of each pair.  Expected
 * are the numbers of public bug reports about scaling that was read and then
 * ignored: NVIDIA/Megatron-LM#6305, NVIDIA-NeMo/Megatron-Bridge#5097,
 * ggml-org/llama.cpp#24820, huggingface/nanotron#188 (MC-12).
 */
#include "cases.h"

#include "frontend/hf.h"
#include "frontend/model.h"
#include "ir/eval.h"
#include "passes/passes.h"

#include <math.h>

enum { MAX_CHANNELS = 128 };

/* The model's first table of this kind. */
static NodeId find_table(const Module *m, const char *what)
{
    for (uint32_t i = 1; i < m->nodes.n; i++) {
        const Node *n = &m->nodes.v[i];
        if (n->op == OP_ROPE_TABLE &&
            !strcmp(sym_text(m->names, attr_sym(m, n->attrs, AK_WHAT)), what))
            return (NodeId){i};
    }
    fail_msg("no table");
    return (NodeId){0};
}

/* Adds a copy of it to `probe`, as a result. */
static void add_table(Module *m, FuncId probe, const char *what)
{
    ValueMap none = {0};
    NodeId copy = node_copy(m, probe, find_table(m, what), &none);

    vec_push(&func_of(m, probe)->results, node_res(node_of(m, copy), 0));
    vmap_free(&none);
}

/* The frequencies of all pairs of `channels`. */
static void spec_frequencies(Arena *a, Diag *d, const Spec *spec, int channels,
                             double *out)
{
    EvalArray tables[2];
    FuncId probe;
    Module *m = model_build(a, d, spec);

    probe = func_new(m, "probe", FUNC_GRAPH, (Loc){0});
    add_table(m, probe, "cos");
    add_table(m, probe, "sin");
    assert_true(eval_func(a, m, probe, &(EvalOptions){.kind = EVAL_FP64}, 0,
                          NULL, tables));
    for (int i = 0; i < channels / 2; i++)
        out[i] = atan2(tables[1].at[channels + i].f,
                       tables[0].at[channels + i].f);
    module_free(m);
}

/* Of t0.yaml with changes. */
static void changed_frequencies(const SpecChanges *changes, int channels,
                                double *out)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Spec *spec = spec_load_changed(a, d, "t0.yaml", changes);

    assert_non_null(spec);
    spec_frequencies(a, d, spec, channels, out);
    diag_free(d);
    arena_free(a);
}

static void frequencies(const char *const *sets, uint32_t n, int channels,
                        double *out)
{
    changed_frequencies(&(SpecChanges){.sets = sets, .nsets = n}, channels,
                        out);
}

static void expect(double got, double expected)
{
    if (!(fabs(got / expected - 1) < 1e-5))
        fail_msg("%.9g, not %.9g", got, expected);
}

/* 64 channels, factor 32: [14] as it was, [15] to [17] blended, from [18] on
 * divided by the factor. */
static void llama3_of_64_channels(void **state)
{
    static const char *const sets[] = {
        "model.kv_channels=64", "model.rope.base=500000",
        "model.rope.scaling={type: llama3, factor: 32}"};
    double plain[MAX_CHANNELS], scaled[MAX_CHANNELS];

    (void)state;
    frequencies(sets, 2, 64, plain);
    frequencies(sets, 3, 64, scaled);
    expect(plain[14], 3.21145e-3);
    expect(plain[15], 2.13110e-3);
    expect(plain[16], 1.41421e-3);
    expect(plain[17], 9.38474e-4);
    expect(plain[18], 6.22772e-4);
    for (int i = 0; i <= 14; i++)
        expect(scaled[i], plain[i]);
    expect(scaled[15], 1.29055e-3);
    expect(scaled[16], 4.29557e-4);
    expect(scaled[17], 9.70829e-5);
    expect(scaled[18], 1.94616e-5);
    for (int i = 18; i < 32; i++)
        expect(scaled[i], plain[i] / 32);
}

/* The same by Megatron's flags, whose factor was read and then ignored. */
static void llama3_by_flags(void **state)
{
    static const char *const flags[] = {
        "--kv-channels", "64", "--use-rope-scaling", "--rope-scaling-factor",
        "32", "--rotary-base", "500000"};
    double scaled[MAX_CHANNELS];

    (void)state;
    changed_frequencies(
        &(SpecChanges){.flags = flags, .nflags = MC_LEN(flags)}, 64, scaled);
    expect(scaled[14], 3.21145e-3);
    expect(scaled[15], 1.29055e-3);
    expect(scaled[16], 4.29557e-4);
    expect(scaled[17], 9.70829e-5);
    expect(scaled[18], 1.94616e-5);
}

/* 128 channels, factor 8: up to [28] as it was, from [35] on an eighth. */
static void llama3_of_128_channels(void **state)
{
    static const char *const sets[] = {
        "model.kv_channels=128", "model.rope.base=500000",
        "model.rope.scaling={type: llama3, factor: 8}"};
    double plain[MAX_CHANNELS], scaled[MAX_CHANNELS];

    (void)state;
    frequencies(sets, 2, 128, plain);
    frequencies(sets, 3, 128, scaled);
    for (int i = 0; i <= 28; i++)
        expect(scaled[i], plain[i]);
    for (int i = 29; i <= 34; i++)
        assert_true(scaled[i] < plain[i] * 0.9999 &&
                    scaled[i] > plain[i] / 8 * 1.0001);
    for (int i = 35; i < 64; i++)
        expect(scaled[i], plain[i] / 8);
}

static void linear(void **state)
{
    static const char *const sets[] = {
        "model.kv_channels=64", "model.rope.scaling={type: linear, factor: 8}"};
    double plain[MAX_CHANNELS], scaled[MAX_CHANNELS];

    (void)state;
    frequencies(sets, 1, 64, plain);
    frequencies(sets, 2, 64, scaled);
    expect(plain[31], 1.33352e-4); /* 10000^(-31/32) */
    for (int i = 0; i < 32; i++)
        expect(scaled[i], plain[i] / 8);
}

static void unknown_kind(void **state)
{
    (void)state;
    assert_int_equal(case_shell("$MEGAC compile t0.yaml --set "
                                "'model.rope.scaling={type: mystery}'"), 1);
    assert_true(case_printed("has no choice `mystery`"));
}

/* ---- imported ------------------------------------------------------------ */

/* A LLaMA of 8 heads whose config.json says this of its positions, with ' for
 * "; NULL if it is rejected. */
static Spec *import(Arena *a, Diag *d, int hidden, const char *positions)
{
    char *text = arena_printf(
        a,
        "{'model_type': 'llama', 'hidden_size': %d, 'num_attention_heads': 8, "
        "'num_hidden_layers': 2, 'intermediate_size': 1024, 'vocab_size': 128, "
        "%s}",
        hidden, positions);

    for (char *c = text; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    return hf_config_parse(a, d, "config.json", text, strlen(text), NULL, 0);
}

static void imported_frequencies(int hidden, const char *positions,
                                 double *out)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Spec *spec = import(a, d, hidden, positions);

    assert_non_null(spec);
    spec_frequencies(a, d, spec, hidden / 8, out);
    diag_free(d);
    arena_free(a);
}

#define LLAMA3_OF(factor)                                                      \
    "'factor': " factor ", 'low_freq_factor': 1.0, 'high_freq_factor': 4.0, "  \
    "'original_max_position_embeddings': 8192}"

static void imported_llama3(void **state)
{
    double plain[MAX_CHANNELS], scaled[MAX_CHANNELS];

    (void)state;
    imported_frequencies(512, "'rope_theta': 500000.0", plain);
    imported_frequencies(512, "'rope_theta': 500000.0, 'rope_scaling': "
                         "{'rope_type': 'llama3', " LLAMA3_OF("32.0"), scaled);
    expect(scaled[14], 3.21145e-3);
    expect(scaled[15], 1.29055e-3);
    expect(scaled[16], 4.29557e-4);
    expect(scaled[17], 9.70829e-5);
    expect(scaled[18], 1.94616e-5);
    for (int i = 18; i < 32; i++)
        expect(scaled[i], plain[i] / 32);
    imported_frequencies(1024, "'rope_theta': 500000.0", plain);
    imported_frequencies(1024, "'rope_theta': 500000.0, 'rope_scaling': "
                         "{'rope_type': 'llama3', " LLAMA3_OF("8.0"), scaled);
    for (int i = 0; i < 64; i++)
        if (i <= 28 || i >= 35)
            expect(scaled[i], i <= 28 ? plain[i] : plain[i] / 8);
}

static void imported_linear(void **state)
{
    double plain[MAX_CHANNELS], scaled[MAX_CHANNELS];

    (void)state;
    imported_frequencies(512, "'rope_theta': 500000.0", plain);
    imported_frequencies(512, "'rope_theta': 500000.0, 'rope_scaling': "
                         "{'type': 'linear', 'factor': 8.0}", scaled);
    for (int i = 0; i < 32; i++)
        expect(scaled[i], plain[i] / 8);
}

/* The model's text; the caller's. */
static Buf imported_model(const char *positions)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Spec *spec = import(a, d, 512, positions);
    Buf text = {0};
    Module *m;

    assert_non_null(spec);
    m = model_build(a, d, spec);
    module_print(m, &text);
    module_free(m);
    diag_free(d);
    arena_free(a);
    return text;
}

static void both_schemas_are_one_model(void **state)
{
    Buf old = imported_model("'rope_theta': 500000.0, 'rope_scaling': "
                             "{'rope_type': 'llama3', " LLAMA3_OF("32.0"));
    Buf new = imported_model("'rope_parameters': {'rope_theta': 500000.0, "
                             "'rope_type': 'llama3', " LLAMA3_OF("32.0"));
    Buf other = imported_model("'rope_parameters': {'rope_theta': 500000.0, "
                               "'rope_type': 'llama3', " LLAMA3_OF("16.0"));

    (void)state;
    assert_string_equal(buf_str(&old), buf_str(&new));
    assert_string_not_equal(buf_str(&old), buf_str(&other));
    buf_free(&old);
    buf_free(&new);
    buf_free(&other);
}

static void imported_unknown_kind(void **state)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);

    (void)state;
    assert_null(import(a, d, 512, "'rope_scaling': {'type': 'mystery', "
                                  "'factor': 2.0}"));
    assert_int_equal(diag_errors(d), 1);
    diag_free(d);
    arena_free(a);
}

/* The inv_freq of transformers, of tests/oracle/hf_configs.py's draws. */
static void drawn_frequencies(void **state)
{
    json_t *drawn =
        json_load_file(MEGAC_SOURCE_DIR "/tests/data/hf/drawn.json", 0, NULL);
    json_t *rows = json_object_get(drawn, "rows"), *row;
    size_t i, compared = 0;

    (void)state;
    json_array_foreach(rows, i, row) {
        json_t *wanted = json_object_get(json_object_get(row, "facts"),
                                         "inv_freq");
        int pairs = (int)json_array_size(wanted);
        char *text = json_dumps(json_object_get(row, "config"), 0);
        double got[MAX_CHANNELS];
        Arena *a = arena_new();
        Diag *d = diag_new(a);
        Spec *spec = hf_config_parse(a, d, "config.json", text, strlen(text),
                                     NULL, 0);
        if (spec && wanted) {
            assert_int_equal(spec->derived.rotary_dim, 2 * pairs);
            spec_frequencies(a, d, spec, (int)spec->model.kv_channels, got);
        }
        for (int p = 0; spec && p < pairs; p++, compared++)
            expect(got[p], json_number_value(json_array_get(wanted,
                                                            (size_t)p)));
        free(text);
        diag_free(d);
        arena_free(a);
    }
    assert_true(compared > 300);
    json_decref(drawn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama3_of_64_channels),
        cmocka_unit_test(llama3_by_flags),
        cmocka_unit_test(llama3_of_128_channels),
        cmocka_unit_test(linear),
        cmocka_unit_test(unknown_kind),
        cmocka_unit_test(imported_llama3),
        cmocka_unit_test(imported_linear),
        cmocka_unit_test(both_schemas_are_one_model),
        cmocka_unit_test(imported_unknown_kind),
        cmocka_unit_test(drawn_frequencies),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
