/* parse.c - the textual form read back into a module.
 *
 * Two passes over the text: the first reads every declaration and makes the
 * functions, skipping their insides, so that a call may name a function that
 * stands further down; the second reads parameters and bodies.  Types stand in
 * the text, so nothing is inferred; module_verify judges what came out.
 * A node's place is its line in the text.
 */
#include "ir/parse_priv.h"


/* ---- values -------------------------------------------------------------- */

static ValueId *name_slot(Parser *p, Sym name)
{
    while (p->by_name.n <= name.i)
        vec_push(&p->by_name, (ValueId){0});
    return &p->by_name.v[name.i];
}

/* Gives a value its name; the text tells values of one name apart, %x.2. */
static void bind(Parser *p, Sym name, ValueId v)
{
    ValueId *slot = name_slot(p, name);

    if (slot->i >= p->first_value)
        lex_fail(p, "MC0603", "%%%s is defined twice",
                 sym_text(p->m->names, name));
    *slot = v;
    value_of(p->m, v)->name = name_base(p->m->names, name);
}

static ValueId parse_use(Parser *p)
{
    ValueId v = {0};

    if (p->kind == TOK_VALUE)
        v = *name_slot(p, sym_intern(p->m->names, buf_str(&p->text)));
    if (!v.i || v.i < p->first_value)
        lex_fail(p, "MC0602", "expected a value that is defined above");
    lex_next(p);
    return v;
}

/* Uses separated by commas, appended to the parser's list. */
static void parse_uses(Parser *p)
{
    p->uses.n = 0;
    if (p->kind != TOK_VALUE)
        return;
    do {
        ValueId v = parse_use(p);

        vec_push(&p->uses, v);
    } while (lex_take(p, ',') && p->uses.n < IR_MAX_VALUES);
}

/* Type, layout and hint: what stands behind a colon. */
static Value parse_value_type(Parser *p)
{
    Value v = {.type = parse_type(p)};

    v.layout = parse_layout(p);
    if (p->kind == TOK_HINT)
        v.hint = lex_name(p, TOK_HINT);
    return v;
}

/* ---- nodes --------------------------------------------------------------- */

/* %a, %b = */
static void parse_result_names(Parser *p)
{
    p->names.n = 0;
    if (p->kind != TOK_VALUE)
        return;
    do {
        Sym name = lex_name(p, TOK_VALUE);

        vec_push(&p->names, name);
    } while (lex_take(p, ',') && p->names.n < IR_MAX_VALUES);
    lex_expect(p, '=');
}

static void parse_result_types(Parser *p)
{
    p->types.n = 0;
    p->results.n = 0;
    if (!p->names.n)
        return;
    lex_expect(p, ':');
    do {
        Value v = parse_value_type(p);

        vec_push(&p->results, v);
        vec_push(&p->types, v.type);
    } while (lex_take(p, ',') && p->results.n < IR_MAX_VALUES);
    if (p->results.n != p->names.n)
        lex_fail(p, "MC0604", "%u results, but %u types", p->names.n,
                 p->results.n);
}

static Op parse_op(Parser *p)
{
    Op op = p->kind == TOK_WORD ? op_find(buf_str(&p->text)) : OP_NONE;

    if (op == OP_NONE)
        lex_fail(p, "MC0602", "expected an op, not `%s`", buf_str(&p->text));
    lex_next(p);
    return op;
}

static void place_results(Parser *p, NodeId id)
{
    for (uint32_t i = 0; i < p->results.n; i++) {
        ValueId v = node_res(node_of(p->m, id), i);

        value_of(p->m, v)->layout = p->results.v[i].layout;
        value_of(p->m, v)->hint = p->results.v[i].hint;
        bind(p, p->names.v[i], v);
    }
}

static void parse_node(Parser *p, FuncId f)
{
    Loc loc = lex_loc(p);
    int stream = STREAM_COMPUTE;
    AttrsId attrs;
    NodeId id;
    Op op;

    parse_result_names(p);
    op = parse_op(p);
    if (lex_take(p, '!'))
        stream = parse_choice(p, stream_names, STREAM_COUNT, "a stream");
    parse_uses(p);
    attrs = parse_attrs(p);
    parse_result_types(p);
    if (p->failed)
        return;
    id = node_new(p->m, f, op, p->uses.v, p->uses.n, attrs, p->types.v,
                  p->types.n, loc);
    node_of(p->m, id)->stream = (uint16_t)stream;
    place_results(p, id);
}

/* ---- functions ----------------------------------------------------------- */

static void parse_param(Parser *p, FuncId f)
{
    Sym name = lex_name(p, TOK_VALUE);
    Value v;
    ValueId id;

    lex_expect(p, ':');
    v = parse_value_type(p);
    if (p->failed)
        return;
    id = func_param(p->m, f, v.type, NULL);
    value_of(p->m, id)->layout = v.layout;
    value_of(p->m, id)->hint = v.hint;
    bind(p, name, id);
}

static void parse_func(Parser *p, FuncId f)
{
    p->first_value = p->m->values.n;
    lex_expect(p, '(');
    if (!lex_is(p, ')'))
        do
            parse_param(p, f);
        while (lex_take(p, ','));
    lex_expect(p, ')');
    lex_expect(p, '{');
    while (p->kind != TOK_END && !lex_is_word(p, "return"))
        parse_node(p, f);
    lex_expect_word(p, "return");
    parse_uses(p);
    for (uint32_t i = 0; i < p->uses.n; i++)
        vec_push(&func_of(p->m, f)->results, p->uses.v[i]);
    lex_expect(p, '}');
}

/* ---- the module ---------------------------------------------------------- */

/* From a function's parameters to behind its closing brace.  What is not
 * there is missed by the second pass. */
static void skip_func(Parser *p)
{
    unsigned depth = 0;

    while (p->kind != TOK_END && !lex_is(p, ')'))
        lex_next(p);
    lex_take(p, ')');
    if (!lex_is(p, '{'))
        return;
    do {
        depth += lex_is(p, '{');
        depth -= lex_is(p, '}');
        lex_next(p);
    } while (p->kind != TOK_END && depth);
}

/* func @name( … */
static void declare_func(Parser *p, FuncKind kind)
{
    Loc loc = lex_loc(p);
    Sym name;

    lex_next(p);
    name = lex_name(p, TOK_GLOBAL);
    if (!p->failed && func_find(p->m, name).i)
        lex_fail(p, "MC0603", "there is a function of that name already");
    if (p->failed)
        return;
    func_new(p->m, sym_text(p->m->names, name), kind, loc);
    vec_push(&p->bodies, p->start);
    skip_func(p);
}

static void parse_declarations(Parser *p)
{
    while (p->kind != TOK_END)
        if (lex_is_word(p, "func"))
            declare_func(p, FUNC_GRAPH);
        else if (lex_is_word(p, "row"))
            declare_func(p, FUNC_ROW);
        else if (!parse_decl(p) && !parse_tail(p))
            lex_fail(p, "MC0601", "expected a declaration");
}

static void parse_functions(Parser *p)
{
    for (uint32_t i = 0; i < p->bodies.n && !p->failed; i++) {
        lex_rewind(p, p->bodies.v[i]);
        parse_func(p, (FuncId){i + 1});
    }
}

static void parser_free(Parser *p)
{
    buf_free(&p->text);
    vec_free(&p->by_name);
    vec_free(&p->uses);
    vec_free(&p->names);
    vec_free(&p->types);
    vec_free(&p->results);
    vec_free(&p->bodies);
}

Module *module_parse(Arena *a, Diag *d, const char *name, const char *text)
{
    Module *m = module_new(a, d);
    Parser p = {.m = m,
                .source = diag_source(d, name, text),
                .place = {text, 1, 1}};
    bool failed;

    lex_next(&p);
    parse_declarations(&p);
    parse_functions(&p);
    failed = p.failed;
    parser_free(&p);
    if (!failed)
        return m;
    module_free(m);
    return NULL;
}
