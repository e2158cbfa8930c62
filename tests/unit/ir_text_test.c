/* ir_text_test.c - printing and parsing.
 *
 * tests/golden/ir holds modules in the form that megac prints, written by
 * hand: ops.mir has every op, placed.mir layouts and collectives, decls.mir
 * everything around functions.  Reading and printing each must change nothing.
 */
#include "ir_sample.h"

static const char *const files[] = {"ops.mir", "placed.mir", "decls.mir"};

/* ---- round trips --------------------------------------------------------- */

static void print_again(const char *name)
{
    Buf text = golden_read(name), printed = {0};
    Sample s = sample_parse(buf_str(&text));

    if (!s.m)
        fail_msg("%s: %s", name, sample_errors(&s));
    module_print(s.m, &printed);
    assert_string_equal(buf_str(&printed), buf_str(&text));
    if (!module_verify(s.m))
        fail_msg("%s: %s", name, sample_errors(&s));
    sample_free(&s);
    buf_free(&printed);
    buf_free(&text);
}

static void golden_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(files); i++)
        print_again(files[i]);
}

static void every_op_is_in_a_file(void **state)
{
    Buf text = golden_read("ops.mir");
    Sample s = sample_parse(buf_str(&text));
    bool seen[OP_COUNT] = {false};

    (void)state;
    for (uint32_t i = 1; i < s.m->nodes.n; i++)
        seen[s.m->nodes.v[i].op] = true;
    for (int op = OP_NONE + 1; op < OP_COUNT; op++)
        if (!seen[op])
            fail_msg("no %s in ops.mir", op_info[op].name);
    sample_free(&s);
    buf_free(&text);
}

static void every_op_is_documented(void **state)
{
    const char *slash = strstr(__FILE__, "tests/unit");
    Buf path = {0}, doc = {0};

    (void)state;
    buf_printf(&path, "%.*sdocs/IR.md", (int)(slash - __FILE__), __FILE__);
    assert_true(buf_read_file(&doc, path.s));
    for (int op = OP_NONE + 1; op < OP_COUNT; op++) {
        char name[40];

        snprintf(name, sizeof name, "`%s`", op_info[op].name);
        if (!strstr(doc.s, name))
            fail_msg("docs/IR.md does not describe %s", name);
    }
    buf_free(&path);
    buf_free(&doc);
}

/* ---- what the reader makes of a text ------------------------------------- */

static void decls_are_understood(void **state)
{
    Buf text = golden_read("decls.mir");
    Sample s = sample_parse(buf_str(&text));
    const Tensor *t;

    (void)state;
    assert_non_null(s.m);
    t = tensor_of(s.m, tensor_find(s.m, sym_intern(s.m->names, "wide")));
    assert_true(t->parameter && t->per_layer && t->decay);
    assert_int_equal(t->logical.size[0], 6);
    assert_int_equal(t->init, INIT_NORMAL);
    assert_true(t->init_std == 0.1);
    assert_int_equal(t->field_dtype[FIELD_MASTER], DT_F32);
    assert_false(t->fields >> FIELD_ACC & 1);
    assert_true(t->tied == mesh_axis(s.m, "pp"));
    assert_string_equal(sym_text(s.m->names, t->file.name),
                        "a \"quoted\\ name\".{l}");
    assert_true(t->file.transpose && t->file.fused_rows == 18 &&
                t->file.row_offset == 6);
    assert_int_equal(s.m->stages.n, 2);
    assert_true(s.m->stages.v[1].head && s.m->stages.v[1].first_layer == 2);
    assert_int_equal(s.m->entry.n, 2);
    assert_int_equal(s.m->entry.v[1].i, s.m->stages.v[1].bwd.i);
    assert_true(s.m->mesh.atoms.v[6].expert);
    assert_true(s.m->props & PROP_OPTIMIZER);
    sample_free(&s);
    buf_free(&text);
}

static const char small[] = "mesh world=2 {tp=2:1}\n"
                            "; comments and spaces only separate\n"
                            "func @f(%x:f32[s=4,h=8]{s@tp},%x.7:f32){\n"
                            "  %9=exp %x:f32[s=4,h=8]{s@tp}#here\n"
                            "  %x.3=mul %9,%x.7:f32[s=4,h=8]\n"
                            "  return %x.3,%9 } ; end\n";

/* Values of one name are numbered by their order, nameless ones as well. */
static void names_become_canonical(void **state)
{
    Sample s = sample_parse(small);
    Buf out = {0};

    (void)state;
    assert_non_null(s.m);
    func_print(s.m, (FuncId){1}, &out);
    assert_string_equal(buf_str(&out),
                        "func @f(\n"
                        "    %x : f32[s=4, h=8] {s@tp},\n"
                        "    %x.2 : f32\n"
                        ") {\n"
                        "    %1 = exp %x : f32[s=4, h=8] {s@tp} #here\n"
                        "    %x.3 = mul %1, %x.2 : f32[s=4, h=8]\n"
                        "    return %x.3, %1\n"
                        "}\n");
    buf_free(&out);
    sample_free(&s);
}

static void nodes_keep_their_place(void **state)
{
    Sample s = sample_parse(small);

    (void)state;
    assert_string_equal(
        diag_loc_text(s.diag, node_of(s.m, (NodeId){2})->loc), "t.mir:5:3");
    sample_free(&s);
}

static void numbers_survive(void **state)
{
    static const double numbers[] = {0.1,       1e-300, 1.0 / 3, 5e-324,
                                     0.1 + 0.2, -2.5,   16777217, 0.0};
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Module *m = module_new(a, d), *again;
    FuncId f = func_new(m, "f", FUNC_GRAPH, (Loc){0});
    Buf out = {0};

    (void)state;
    for (size_t i = 0; i < MC_LEN(numbers); i++)
        ir_const(m, f, numbers[i], (Loc){0});
    module_print(m, &out);
    again = module_parse(a, d, "t.mir", buf_str(&out));
    assert_non_null(again);
    for (uint32_t i = 0; i < MC_LEN(numbers); i++)
        assert_true(attr_float(again, again->nodes.v[i + 1].attrs, AK_VALUE,
                               -1) == numbers[i]);
    buf_free(&out);
    module_free(again);
    module_free(m);
    diag_free(d);
    arena_free(a);
}

/* ---- rejected texts ------------------------------------------------------ */

/* Each body stands on line 3 of a function with %x : f32[s=4] and %t : i32. */
static const struct {
    const char *line, *error;
} bad_lines[] = {
    {"%y = exq %x : f32[s=4]",
     "3:6: error: expected an op, not `exq` [MC0602]"},
    {"%y = exp %z : f32[s=4]",
     "3:10: error: expected a value that is defined above [MC0602]"},
    {"%x = exp %x : f32[s=4]", "%x is defined twice [MC0603]"},
    {"%y = exp %x f32[s=4]", "3:13: error: expected `:` [MC0601]"},
    {"%y = exp %x : f33[s=4]", "expected a type such as f32"},
    {"%y = exp %x : f32[s=0]", "3:21: error: must be from 1 to"},
    {"%y = exp %x : f32[s=4, s=4]", "up to 8 dimensions, each once [MC0604]"},
    {"%y = exp %x : f32[S=4]", "expected the letter of a dimension"},
    {"%y = exp %x : f32[s=1_000_000_000, b=1_000_000_000]",
     "the type is too large"},
    {"%y = exp %x : f32[s=4] {s@pp}", "`pp` are no axes of the mesh [MC0602]"},
    {"%y = exp %x : f32[s=4] {s@tp.2}", "`tp.2` are no axes"},
    {"%y = exp %x : f32[s=4] {s@tp.tp}", "`tp.tp` are no axes"},
    {"%y = exp %x : f32[s=4] {s@tp s@tp}", "s is split twice"},
    {"%y = exp %x : f32[s=4] {s tp}", "expected @ and the axes"},
    {"%y, %z = exp %x : f32[s=4]", "2 results, but 1 types [MC0604]"},
    {"%y = exp !fast %x : f32[s=4]", "expected the name of a stream"},
    {"%y = exp %x {colour=3} : f32[s=4]", "`colour` is no attribute [MC0602]"},
    {"%y = exp %x {dim=s, dim=s} : f32[s=4]", "`dim` is given twice [MC0603]"},
    {"%y = exp %x {dims=sb, what=} : f32[s=4]", "expected a word"},
    {"%y = exp %x {args=\"A\"} : f32[s=4]", "modes are `.`, `>`, `#` and letters"},
    {"%y = exp %x {count=two} : f32[s=4]", "expected a whole number"},
    {"%y = exp %x {value=two} : f32[s=4]", "expected a number"},
    {"%y = read {tensor=@w} : f32", "expected the name of a tensor [MC0602]"},
    {"%y = call {callee=@g} : f32", "expected the name of a function [MC0602]"},
    {"%y = exp %x {what=\"a} : f32[s=4]", "the string does not end [MC0601]"},
    {"%y = exp %x {what=\"\\n\"} : f32[s=4]", "a string knows"},
    {"% = exp %x : f32[s=4]", "3:1: error: a name must follow"},
    {"$", "3:1: error: expected an op"},
};

static const char *const bad_modules[][2] = {
    {"mesh world=2 {tp=2:1} mesh world=2 {dp=2:1}", "there is a mesh already"},
    {"mesh world=2 {tp.1=2:1}", "parts of an axis stand together"},
    {"mesh world=8 {tp=2:1 dp=2:2 tp.1=2:4}", "parts of an axis"},
    {"mesh world=2 {tp=0:1}", "must be from 1 to"},
    {"mesh world=2 {tp=1000000:1000000}", "too many ranks [MC0604]"},
    {"mesh world=2 {2=2:1}", "expected an axis"},
    {"module {layers=2, props=[]}", "expected `microbatches`"},
    {"module {layers=2, microbatches=1, props=[fast]}",
     "expected the name of a property"},
    {"tensor @w : f32 {} tensor @w : f32 {}", "a tensor of that name already"},
    {"tensor @w : f32 {colour}", "expected the name of a field or property"},
    {"tensor @w : f32 {file name}", "expected a string"},
    {"tensor @w : f32 {init often}", "expected the name of an initialisation"},
    {"func @f() { return } func @f() { return }",
     "a function of that name already [MC0603]"},
    {"func @f() {", "expected `return`"},
    {"func @f(", "expected a value"},
    {"func f() { return }", "expected a name with @"},
    {"entry @f", "expected the name of a function"},
    {"stage {pp=0, chunk=0, first=0, layers=1, fast}", "does not have that"},
    {"graph @f", "1:1: error: expected a declaration [MC0601]"},
};

static void reject(const char *text, const char *error)
{
    Sample s = sample_parse(text);

    if (s.m)
        fail_msg("accepted: %s", text);
    if (!strstr(sample_errors(&s), error))
        fail_msg("%s: got %s", error, sample_errors(&s));
    sample_free(&s);
}

static void bad_text_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(bad_lines); i++) {
        Buf text = {0};

        buf_printf(&text,
                   "mesh world=4 {tp.0=2:2 tp.1=2:1}\n"
                   "func @f(%%x : f32[s=4], %%t : i32) {\n%s\nreturn }\n",
                   bad_lines[i].line);
        reject(text.s, bad_lines[i].error);
        buf_free(&text);
    }
    for (size_t i = 0; i < MC_LEN(bad_modules); i++)
        reject(bad_modules[i][0], bad_modules[i][1]);
}

/* Any prefix of a module is an error or a module, never a crash. */
static void truncated_text(void **state)
{
    Buf text = golden_read("placed.mir");

    (void)state;
    for (size_t len = 0; len < text.len; len += 7) {
        Arena *a = arena_new();
        char *part = arena_strndup(a, text.s, len);
        Sample s = sample_parse(part);

        assert_int_equal(s.m == NULL, diag_errors(s.diag) > 0);
        sample_free(&s);
        arena_free(a);
    }
    buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_files),
        cmocka_unit_test(every_op_is_in_a_file),
        cmocka_unit_test(every_op_is_documented),
        cmocka_unit_test(decls_are_understood),
        cmocka_unit_test(names_become_canonical),
        cmocka_unit_test(nodes_keep_their_place),
        cmocka_unit_test(numbers_survive),
        cmocka_unit_test(bad_text_is_named),
        cmocka_unit_test(truncated_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
