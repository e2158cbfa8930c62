/* frontend_schema_test.c - schema.def against itself, and what is printed
 * from it: normal form, JSON Schema, docs/SCHEMA.md.
 */
#include "frontend/frontend_priv.h"
#include "frontend_sample.h"

#include <jansson.h>

static void rows_are_sound(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < schema_num_keys; i++) {
        const Key *key = &schema_keys[i];
        assert_ptr_equal(schema_key(key->path), key);
        assert_non_null(schema_section(key->section));
        assert_true(key->offset < sizeof(Spec));
        assert_string_equal(path_name(key->path), key->name);
        assert_true(strlen(key->help) > 0);
        assert_int_equal(key->options != NULL,
                         key->kind == KIND_CHOICE ||
                             key->kind == KIND_CHOICE_LIST);
    }
}

/* A default must itself be a legal value. */
static void defaults_are_legal(void **state)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Spec *s = arena_new_of(a, Spec);

    (void)state;
    for (uint32_t i = 0; i < schema_num_keys; i++) {
        const Key *key = &schema_keys[i];
        if (!key->fallback)
            continue;
        if (!value_set_default(a, d, key, (Loc){0}, s))
            fail_msg("%s", key->path);
        assert_true(value_is_default(a, d, key, s));
    }
    diag_free(d);
    arena_free(a);
}

/* Every name leads to its key and to no other, in the key's own block. */
static void names_resolve(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < schema_num_keys; i++) {
        const Key *key = &schema_keys[i];
        const char *cursor = key->names;
        Spelling s, found;
        char name[128];
        assert_ptr_equal(schema_resolve(key->section, key->name, &found), key);
        while (spelling_next(&cursor, &s)) {
            snprintf(name, sizeof name, "%.*s", s.len, s.text);
            if (!s.hint && schema_resolve(key->section, name, &found) != key)
                fail_msg("%s does not lead to %s", name, key->path);
            if (s.word) {
                snprintf(name, sizeof name, "%.*s", s.word_len, s.word);
                assert_true(key->kind == KIND_TEXT ||
                            option_find(key->options, name));
            }
        }
    }
}

static void words_are_unique(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < schema_num_keys; i++)
        for (const Option *o = schema_keys[i].options; o && o->words; o++) {
            char word[64];
            snprintf(word, sizeof word, "%.*s", (int)strcspn(o->words, " "),
                     o->words);
            assert_ptr_equal(option_find(schema_keys[i].options, word), o);
        }
}

/* ---- the normal form ---------------------------------------------------- */

static void expect_round_trip(const char *const *sets)
{
    Sample s = sample_parse_text(sample_text, sets);
    Buf first = {0}, second = {0};
    Sample again;

    if (!s.spec)
        fail_msg("%s", s.shown);
    spec_print(s.spec, &first);
    again = sample_parse_text(buf_str(&first), (const char *const[]){NULL});
    if (!again.spec)
        fail_msg("%s\n%s", again.shown, buf_str(&first));
    assert_string_equal(again.shown, "");
    spec_print(again.spec, &second);
    assert_string_equal(buf_str(&first), buf_str(&second));
    for (uint32_t i = 0; i < schema_num_keys; i++)
        if (schema_keys[i].kind == KIND_FLOAT)
            assert_memory_equal(key_value(&schema_keys[i], s.spec),
                                key_value(&schema_keys[i], again.spec),
                                sizeof(double));
    assert_memory_equal(&s.spec->derived, &again.spec->derived,
                        sizeof(SpecDerived));
    buf_free(&first);
    buf_free(&second);
    sample_free(&s);
    sample_free(&again);
}

static void print_and_parse(void **state)
{
    static const char *const rows[][4] = {
        {NULL},
        {"parallel.tp=2", "parallel.sp=true", "parallel.pp=2"},
        {"training.optimizer.lr=0.1234567890123456789", "model.init_std=1e-7"},
        {"model.name=\"a: b # \\\"q\\\" \\\\ $${X}\\n\""},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++)
        expect_round_trip(rows[i]);
}

/* ---- the descriptions --------------------------------------------------- */

static void json_knows_every_key(void **state)
{
    Buf text = {0};
    json_t *root;

    (void)state;
    schema_json(&text);
    root = json_loads(buf_str(&text), 0, NULL);
    assert_non_null(root);
    for (uint32_t i = 0; i < schema_num_keys; i++) {
        char path[128], *part, *rest = path;
        json_t *at = root;
        snprintf(path, sizeof path, "%s", schema_keys[i].path);
        while ((part = strsep(&rest, ".")))
            at = json_object_get(json_object_get(at, "properties"), part);
        if (!json_object_get(at, "description"))
            fail_msg("%s", schema_keys[i].path);
    }
    json_decref(root);
    buf_free(&text);
}

/* The page is generated; MEGAC_REFRESH=1 writes it anew. */
static void page_is_current(void **state)
{
    Buf path = {0}, want = {0}, have = {0};
    const char *slash = strstr(__FILE__, "tests/unit");

    (void)state;
    buf_printf(&path, "%.*sdocs/SCHEMA.md", (int)(slash - __FILE__), __FILE__);
    schema_markdown(&want);
    if (getenv("MEGAC_REFRESH"))
        assert_true(buf_write_file(&want, buf_str(&path)));
    assert_true(buf_read_file(&have, buf_str(&path)));
    assert_string_equal(buf_str(&have), buf_str(&want));
    buf_free(&path);
    buf_free(&want);
    buf_free(&have);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_sound),
        cmocka_unit_test(defaults_are_legal),
        cmocka_unit_test(names_resolve),
        cmocka_unit_test(words_are_unique),
        cmocka_unit_test(print_and_parse),
        cmocka_unit_test(json_knows_every_key),
        cmocka_unit_test(page_is_current),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
