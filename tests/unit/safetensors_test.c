/* safetensors_test.c - sets of tensors in several files, and what fits a model.
 *
 * Sizes are counted by hand; the names of parts and the keys of an index are
 * those of huggingface_hub's split_torch_state_dict_into_shards, which
 * transformers' save_pretrained writes.
 */
#include "runtime/plan.h"
#include "runtime/safetensors.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>

static char folder[] = "/tmp/megac_safe_XXXXXX";

static int enter(void **state)
{
    (void)state;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int leave(void **state)
{
    char command[64];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return chdir("/") == 0 && system(command) == 0 ? 0 : -1;
}

static void work(const char *command)
{
    assert_int_equal(system(command), 0);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void refused(Status s, const char *message)
{
    assert_int_equal(status_code(s), STATUS_INPUT);
    if (!strstr(status_text(s), message))
        fail_msg("'%s' lacks '%s'", status_text(s), message);
    status_drop(s);
}

/* ---- making sets --------------------------------------------------------- */

typedef struct {
    const char *name;
    int64_t rows, columns;
    float value; /* of all elements */
} Row;

static SafeSet make_set(const Row *rows, uint32_t n)
{
    SafeSet set = {.v = calloc(n, sizeof(SafeTensor)), .n = n};

    for (uint32_t i = 0; i < n; i++)
        set.v[i] = (SafeTensor){.name = strdup(rows[i].name),
                                .rows = rows[i].rows,
                                .columns = rows[i].columns};
    return set;
}

static void write_values(const SafeSet *set, const Row *row)
{
    const SafeTensor *t = safe_find(set, row->name);
    const char *path = set->part[t->part].name;
    int fd = open(path, O_WRONLY);

    for (uint64_t at = t->begin; at < t->end; at += 4)
        assert_null(safe_write(path, fd, (const char *)&row->value, 4, at));
    close(fd);
}

/* Leaves the set's files in the folder. */
static SafeSet write_set(const Row *rows, uint32_t n, const char *stem,
                         uint64_t part_bytes)
{
    SafeSet set = make_set(rows, n);

    assert_null(safe_layout(&set, stem, part_bytes));
    for (uint32_t i = 0; i < set.nparts; i++)
        assert_null(safe_create(set.part[i].name, &set.part[i]));
    for (uint32_t i = 0; i < n; i++)
        write_values(&set, &rows[i]);
    if (set.nparts > 1)
        assert_null(safe_write_index(&set, ".", stem));
    return set;
}

static void check_values(const SafeSet *set, const Row *row)
{
    const SafeTensor *t = safe_find(set, row->name);

    assert_non_null(t);
    assert_int_equal(t->rows, row->rows);
    assert_int_equal(t->columns, row->columns);
    for (uint64_t at = 0; at < t->end - t->begin; at += 4)
        assert_memory_equal(safe_bytes(set, t) + at, &row->value, 4);
}

/* ---- parts --------------------------------------------------------------- */

/* 160, 40, 200 and 8 bytes. */
static const Row four[] = {
    {"a", 10, 4, 1}, {"b", 10, 0, 2}, {"c", 5, 10, 3}, {"d", 2, 1, 4}};

/* a and b fill 200 bytes to the last one; c is larger than a part may be, and
 * has one of its own. */
static void parts_are_full_but_not_over(void **state)
{
    static const uint32_t at_most[] = {200, 199, 7, 408, 407, 0};
    static const uint32_t part[][4] = {{0, 0, 1, 2}, {0, 1, 2, 3},
                                       {0, 1, 2, 3}, {0, 0, 0, 0},
                                       {0, 0, 0, 1}, {0, 0, 0, 0}};

    (void)state;
    for (size_t i = 0; i < MC_LEN(at_most); i++) {
        SafeSet set = make_set(four, 4);
        assert_null(safe_layout(&set, "model", at_most[i]));
        assert_int_equal(set.nparts, part[i][3] + 1);
        for (int t = 0; t < 4; t++)
            assert_int_equal(set.v[t].part, part[i][t]);
        safe_close(&set);
    }
}

static void sets_come_back(void **state)
{
    static const uint64_t at_most[] = {0, 200, 50};
    static const char *const opened[] = {
        "model.safetensors", "model.safetensors.index.json", "."};

    (void)state;
    for (size_t i = 0; i < MC_LEN(at_most); i++) {
        SafeSet written, set;
        work("rm -f *");
        written = write_set(four, 4, "model", at_most[i]);
        for (size_t k = i ? 1 : 0; k < MC_LEN(opened); k += i ? 1 : 2) {
            assert_null(safe_open(opened[k], &set));
            assert_int_equal(set.n, 4);
            assert_int_equal(safe_total(&set), 408);
            for (int t = 0; t < 4; t++)
                check_values(&set, &four[t]);
            safe_close(&set);
        }
        safe_close(&written);
    }
}

static void an_index_is_that_of_transformers(void **state)
{
    static const char expected[] =
        "{\"metadata\": {\"total_size\": 408}, \"weight_map\": {"
        "\"a\": \"model-00001-of-00003.safetensors\","
        "\"b\": \"model-00001-of-00003.safetensors\","
        "\"c\": \"model-00002-of-00003.safetensors\","
        "\"d\": \"model-00003-of-00003.safetensors\"}}";
    SafeSet set;
    json_t *json, *wanted = json_loads(expected, 0, NULL);

    (void)state;
    work("rm -f *");
    set = write_set(four, 4, "model", 200);
    json = json_load_file("model.safetensors.index.json", 0, NULL);
    assert_non_null(wanted);
    assert_int_equal(json_equal(json, wanted), 1);
    json_decref(json);
    json_decref(wanted);
    safe_close(&set);
}

/* ---- copies -------------------------------------------------------------- */

/* Leaves a vector of `n` numbers as a copy in another type. */
static Status copy_as(uint32_t dtype, const float *v, int64_t n)
{
    SafeSet set = make_set(&(Row){"v", n, 0, 0}, 1);
    SafeCopy how = {.dir = ".", .stem = "copy", .dtype = dtype};
    Status s;
    int fd;

    work("rm -f *");
    assert_null(safe_layout(&set, "model", 0));
    assert_null(safe_create(set.part[0].name, &set.part[0]));
    fd = open(set.part[0].name, O_WRONLY);
    assert_null(safe_write(set.part[0].name, fd, (const char *)v,
                           (size_t)n * 4, set.v[0].begin));
    close(fd);
    safe_close(&set);
    assert_null(safe_open(".", &set));
    s = safe_copy(&set, &how);
    safe_close(&set);
    return s;
}

/* IEEE 754: 1, the largest half, and 1 + 2^-11, which ties to 1; bfloat16 has
 * 8 bits of it. */
static void copies_change_types(void **state)
{
    static const float from[] = {1.0f, 65504.0f, 1.00048828125f, -2.0f};
    static const uint16_t half[] = {0x3c00, 0x7bff, 0x3c00, 0xc000};
    static const uint16_t brain[] = {0x3f80, 0x4780, 0x3f80, 0xc000};
    SafeSet set;

    (void)state;
    assert_null(copy_as(PLAN_F16, from, 4));
    assert_null(safe_open("copy.safetensors", &set));
    assert_int_equal(set.v[0].dtype, PLAN_F16);
    assert_memory_equal(safe_bytes(&set, set.v), half, sizeof half);
    safe_close(&set);
    assert_null(copy_as(PLAN_BF16, from, 4));
    assert_null(safe_open("copy.safetensors", &set));
    assert_memory_equal(safe_bytes(&set, set.v), brain, sizeof brain);
    safe_close(&set);
}

static void what_a_type_cannot_hold_is_refused(void **state)
{
    const float large[] = {1.0f, 70000.0f};
    const float none[] = {1.0f, 1.0f / 0.0f};

    (void)state;
    refused(copy_as(PLAN_F16, large, 2), "tensor v has 70000, which is too "
                                         "large for f16");
    assert_null(copy_as(PLAN_BF16, large, 2));
    assert_null(copy_as(PLAN_F16, none, 2));
}

/* More numbers than are converted at a time. */
static void long_tensors_are_whole(void **state)
{
    enum { N = 600001 };
    float *v = malloc(N * sizeof *v);
    SafeSet set;

    (void)state;
    assert_non_null(v);
    for (int i = 0; i < N; i++)
        v[i] = (float)(i % 251);
    assert_null(copy_as(PLAN_BF16, v, N));
    assert_null(safe_open("copy.safetensors", &set));
    assert_int_equal(safe_total(&set), 2 * N);
    for (int i = 0; i < N; i++)
        assert_true(plan_fetch(PLAN_BF16, safe_bytes(&set, set.v), i) == v[i]);
    safe_close(&set);
    free(v);
}

/* ---- damaged sets -------------------------------------------------------- */

#define MAP(entries) "{\"weight_map\": {" entries "}}"
#define A "\"a\": \"a.safetensors\""
#define B "\"b\": \"b.safetensors\""

/* a.safetensors has a, b.safetensors b, both.safetensors a and b. */
static void an_index_must_be_true(void **state)
{
    static const struct {
        const char *index, *message;
    } rows[] = {
        {"{", "x.json:1: "},
        {"[]", "no weight_map"},
        {"{}", "no weight_map"},
        {MAP(""), "no weight_map"},
        {"{\"weight_map\": [\"a.safetensors\"]}", "no weight_map"},
        {MAP("\"a\": 1"), "a is in no file"},
        {MAP("\"a\": \"\""), "a is in no file"},
        {MAP("\"a\": \"../a.safetensors\""), "a is in ../a.safetensors, which "
                                             "is no file of this folder"},
        {MAP("\"a\": \"/etc/passwd\""), "no file of this folder"},
        {MAP("\"a\": \"..\""), "no file of this folder"},
        {MAP(A ", \"c\": \"gone.safetensors\""),
         "a part of x.json: gone.safetensors: No such file"},
        {MAP(A ", \"c\": \"a.safetensors\""), "c is not in a.safetensors"},
        {MAP("\"a\": \"both.safetensors\""),
         "does not list b, which is in both.safetensors"},
        {MAP(A ", \"b\": \"both.safetensors\""),
         "a is listed in a.safetensors, but also in both.safetensors"},
        {MAP(A ", \"a\": \"b.safetensors\""), "duplicate object key"},
        {MAP("\"a\": \"x.json\""), "its header is longer than the file"},
        {"{\"metadata\": {\"total_size\": 199}, \"weight_map\": {" A ", " B
         "}}",
         "total_size is not the size of its tensors, 200 bytes"},
        {"{\"metadata\": {\"total_size\": \"200\"}, \"weight_map\": {" A ", " B
         "}}",
         "total_size is not"},
    };
    SafeSet set, a, b, both;

    (void)state;
    work("rm -f *");
    a = write_set(four, 1, "a", 0);
    b = write_set(four + 1, 1, "b", 0);
    both = write_set(four, 2, "both", 0);
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        write_text("x.json", rows[i].index);
        refused(safe_open("x.json", &set), rows[i].message);
    }
    write_text("x.json", "{\"metadata\": {\"total_size\": 200, \"more\": 1},"
                         "\"weight_map\": {" A ", " B "}}");
    assert_null(safe_open("x.json", &set));
    safe_close(&set);
    safe_close(&a);
    safe_close(&b);
    safe_close(&both);
}

static void a_folder_has_one_set(void **state)
{
    SafeSet set, written;

    (void)state;
    work("rm -f *");
    refused(safe_open(".", &set), "neither model.safetensors nor "
                                  "model.safetensors.index.json is there");
    written = write_set(four, 4, "model", 200);
    write_text("model.safetensors", "");
    refused(safe_open(".", &set), "both model.safetensors and "
                                  "model.safetensors.index.json are there");
    refused(safe_open_in(".", "exp_avg", &set),
            "neither exp_avg.safetensors nor");
    safe_close(&written);
}

/* ---- models -------------------------------------------------------------- */

/* What fits a set of `rows` to the model. */
static Status fit(const Row *rows, uint32_t n, const Row *model, uint32_t m)
{
    SafeSet written, set, of = make_set(model, m);
    Status s;

    work("rm -f *");
    written = write_set(rows, n, "model", 0);
    assert_null(safe_layout(&of, "model", 0));
    assert_null(safe_open(".", &set));
    s = safe_fit(&set, &of);
    if (!s) {
        assert_int_equal(set.n, m);
        for (uint32_t i = 0; i < m; i++)
            check_values(&set, &model[i]);
    }
    safe_close(&set);
    safe_close(&of);
    safe_close(&written);
    return s;
}

static const Row tied[] = {{"model.embed_tokens.weight", 10, 4, 1},
                           {"model.norm.weight", 4, 0, 2}};
static const Row untied[] = {{"lm_head.weight", 10, 4, 1},
                             {"model.embed_tokens.weight", 10, 4, 1},
                             {"model.norm.weight", 4, 0, 2}};

/* The head that the file has too much must be the table, to the bit: a head of
 * -0 beside a table of 0 is another. */
static void a_redundant_head_is_the_table(void **state)
{
    Row other[] = {untied[0], untied[1], untied[2]};

    (void)state;
    assert_null(fit(tied, 2, tied, 2));
    assert_null(fit(untied, 3, tied, 2));
    assert_null(fit(untied, 3, untied, 3));
    other[0].value = 0.5f;
    refused(fit(other, 3, tied, 2),
            "lm_head.weight and model.embed_tokens.weight are not the same, "
            "but the model has one tensor for both (model.tie_embeddings: "
            "true)");
    other[0].value = -0.0f;
    other[1].value = 0.0f;
    refused(fit(other, 3, tied, 2), "are not the same");
    other[0] = (Row){"lm_head.weight", 4, 10, 0};
    refused(fit(other, 3, tied, 2), "are not the same");
}

static void a_missing_head_names_the_key(void **state)
{
    (void)state;
    refused(fit(tied, 2, untied, 3), "has no tensor lm_head.weight (with "
                                     "model.tie_embeddings: true");
}

static void names_are_listed(void **state)
{
    static const Row many[] = {{"a", 1, 0, 0}, {"b", 1, 0, 0}, {"c", 1, 0, 0},
                               {"d", 1, 0, 0}, {"e", 1, 0, 0}, {"f", 1, 0, 0}};

    (void)state;
    refused(fit(many, 6, many, 1), "the model has no tensor b, c, d, e and 1 "
                                   "more");
    refused(fit(many, 3, many, 6), "has no tensor d, e, f");
    refused(fit(four, 4, many, 4), "tensor a is [10, 4], the model needs [1]");
}

/* As gpt2 on huggingface.co: no prefix, and its masks. */
static void old_gpt2_files_fit(void **state)
{
    static const Row file[] = {{"h.0.attn.bias", 1, 0, 9},
                               {"h.0.attn.c_attn.bias", 6, 0, 1},
                               {"h.0.attn.masked_bias", 1, 0, 9},
                               {"ln_f.weight", 4, 0, 2},
                               {"wte.weight", 10, 4, 3}};
    static const Row model[] = {{"transformer.h.0.attn.c_attn.bias", 6, 0, 1},
                                {"transformer.ln_f.weight", 4, 0, 2},
                                {"transformer.wte.weight", 10, 4, 3}};
    static const Row head[] = {{"lm_head.weight", 10, 4, 2},
                               {"wte.weight", 10, 4, 3}};

    (void)state;
    assert_null(fit(file, 5, model, 3));
    refused(fit(head, 2, model + 2, 1),
            "lm_head.weight and transformer.wte.weight are not the same");
    refused(fit(file, 4, model, 3), "has no tensor transformer.wte.weight");
}

static void frequencies_are_no_parameters(void **state)
{
    static const Row file[] = {
        {"model.embed_tokens.weight", 10, 4, 1},
        {"model.layers.0.self_attn.rotary_emb.inv_freq", 4, 0, 5},
        {"model.norm.weight", 4, 0, 2},
        {"model.rotary_emb.inv_freq", 4, 0, 5}};

    (void)state;
    assert_null(fit(file, 4, tied, 2));
}

/* As GLM-4.5-Air on huggingface.co: behind layer 45, the last of the model,
 * layer 46 predicts the next token but one. */
static const Row further[] = {
    {"model.layers.45.input_layernorm.weight", 4, 0, 1},
    {"model.layers.46.eh_proj.weight", 4, 8, 2},
    {"model.layers.46.enorm.weight", 4, 0, 3},
    {"model.layers.46.shared_head.norm.weight", 4, 0, 4},
    {"model.norm.weight", 4, 0, 5}};

static void a_layer_for_further_tokens_is_left_out(void **state)
{
    const Row plain[] = {further[0], further[2], further[4]};
    const Row model[] = {further[0], further[4]};

    (void)state;
    assert_null(fit(further, 5, model, 2));
    assert_null(fit(further, 5, further, 5));
    refused(fit(plain, 3, model, 2),
            "the model has no tensor model.layers.46.enorm.weight");
    refused(fit(further, 5, plain, 3),
            "the model has no tensor model.layers.46.eh_proj.weight, "
            "model.layers.46.shared_head.norm.weight");
}

static void write_file(const char *path, const char *header)
{
    uint64_t n = strlen(header);
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    fwrite(&n, sizeof n, 1, f);
    fputs(header, f);
    assert_int_equal(fclose(f), 0);
}

/* It has no bytes, where a vector of a million has four million. */
static void a_matrix_without_columns_is_no_vector(void **state)
{
    SafeSet set, model = make_set(&(Row){"a", 1000000, 0, 0}, 1);
    SafeCopy how = {.dir = ".", .stem = "copy", .dtype = PLAN_DTYPES};

    (void)state;
    write_file("x.safetensors", "{\"a\":{\"dtype\":\"F32\",\"shape\":"
                                "[1000000,0],\"data_offsets\":[0,0]}}");
    assert_null(safe_open("x.safetensors", &set));
    refused(safe_copy(&set, &how), "tensor a is no vector or matrix");
    refused(safe_fit(&set, &model), "tensor a is no vector or matrix, the "
                                    "model needs [1000000]");
    safe_close(&set);
    safe_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_full_but_not_over),
        cmocka_unit_test(sets_come_back),
        cmocka_unit_test(an_index_is_that_of_transformers),
        cmocka_unit_test(copies_change_types),
        cmocka_unit_test(what_a_type_cannot_hold_is_refused),
        cmocka_unit_test(long_tensors_are_whole),
        cmocka_unit_test(an_index_must_be_true),
        cmocka_unit_test(a_folder_has_one_set),
        cmocka_unit_test(a_redundant_head_is_the_table),
        cmocka_unit_test(a_missing_head_names_the_key),
        cmocka_unit_test(names_are_listed),
        cmocka_unit_test(old_gpt2_files_fit),
        cmocka_unit_test(frequencies_are_no_parameters),
        cmocka_unit_test(a_layer_for_further_tokens_is_left_out),
        cmocka_unit_test(a_matrix_without_columns_is_no_vector),
    };

    return cmocka_run_group_tests(tests, enter, leave);
}
