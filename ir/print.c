/* print.c - a module as text, the same text for the same module.
 *
 *   module {layers=4, microbatches=2, props=[inferred, grad]}
 *   mesh world=4 {tp=2:1 dp=2:2}
 *   layout #residual {b@dp s@tp}
 *   tensor @norm : bf16[h=64] { … }
 *   func @layer.fwd(%x : bf16[s=32, b=2, h=64] {b@dp s@tp} #residual) {
 *       %w = read {tensor=@norm, field=param} : bf16[h=64] {}
 *       %y = mul %x, %w : f32[s=32, b=2, h=64] {b@dp s@tp}
 *       return %y
 *   }
 *   stage {pp=0, chunk=0, first=0, layers=4, embedding, head}
 *   entry @step
 *
 * Values are numbered per function, in the order of their definitions: %x is
 * the first of its name, %x.2 the second; values without a name are %1, %2 …
 * README.md has the grammar, parse.c reads it back.
 */
#include "ir/ir_priv.h"

/* What each value is called: numbers[value - first] counts from 1 among the
 * values of the same base name in its function. */
typedef struct {
    const Module *m;
    Buf *out;
    uint32_t first; /* of the function's values */
    Vec(uint32_t) numbers;
    Vec(uint32_t) seen; /* by base name, of the function at hand */
} Printer;

/* ---- value names --------------------------------------------------------- */

static void grow_zeros(Printer *p, uint32_t numbers, uint32_t seen)
{
    while (p->numbers.n < numbers)
        vec_push(&p->numbers, 0);
    while (p->seen.n < seen)
        vec_push(&p->seen, 0);
}

static Sym base_of(const Printer *p, ValueId v)
{
    return name_base(p->m->names, p->m->values.v[v.i].name);
}

static void number_value(Printer *p, ValueId v)
{
    Sym base = base_of(p, v);

    grow_zeros(p, v.i - p->first + 1, base.i + 1);
    p->numbers.v[v.i - p->first] = ++p->seen.v[base.i];
}

static uint32_t first_value(const Module *m, const Func *f)
{
    uint32_t first = UINT32_MAX;

    for (uint32_t i = 0; i < f->params.n; i++)
        first = MC_MIN(first, f->params.v[i].i);
    for (uint32_t i = 0; i < f->body.n; i++)
        if (m->nodes.v[f->body.v[i].i].nres)
            first = MC_MIN(first, m->nodes.v[f->body.v[i].i].res.i);
    return first;
}

static void number_func(Printer *p, const Func *f)
{
    for (uint32_t i = 0; i < p->seen.n; i++)
        p->seen.v[i] = 0;
    p->numbers.n = 0;
    p->first = first_value(p->m, f);
    for (uint32_t i = 0; i < f->params.n; i++)
        number_value(p, f->params.v[i]);
    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *n = &p->m->nodes.v[f->body.v[i].i];

        for (uint32_t k = 0; k < n->nres; k++)
            number_value(p, node_res(n, k));
    }
}

static void print_name(Printer *p, ValueId v)
{
    uint32_t at = v.i - p->first;
    uint32_t number = at < p->numbers.n ? p->numbers.v[at] : 0;
    Sym base = v.i < p->m->values.n ? base_of(p, v) : (Sym){0};

    if (!base.i && !number)
        buf_printf(p->out, "%%?%u", v.i);
    else if (!base.i)
        buf_printf(p->out, "%%%u", number);
    else if (number <= 1)
        buf_printf(p->out, "%%%s", sym_text(p->m->names, base));
    else
        buf_printf(p->out, "%%%s.%u", sym_text(p->m->names, base), number);
}

/* ---- nodes --------------------------------------------------------------- */

static void print_value_type(Printer *p, ValueId v)
{
    const Value *value = &p->m->values.v[v.i];

    type_print(p->m, value->type, p->out);
    if (value->layout.i) {
        buf_puts(p->out, " ");
        layout_print(p->m, value->layout, p->out);
    }
    if (value->hint.i)
        buf_printf(p->out, " #%s", sym_text(p->m->names, value->hint));
}

static void print_node(Printer *p, const Node *n)
{
    for (uint32_t i = 0; i < n->nres; i++) {
        buf_puts(p->out, i ? ", " : "");
        print_name(p, node_res(n, i));
    }
    buf_printf(p->out, "%s%s", n->nres ? " = " : "", op_info[n->op].name);
    if (n->stream)
        buf_printf(p->out, " !%s", stream_names[n->stream]);
    for (uint32_t i = 0; i < n->nargs; i++) {
        buf_puts(p->out, i ? ", " : " ");
        print_name(p, node_arg(p->m, n, i));
    }
    if (n->attrs.i)
        buf_puts(p->out, " ");
    attrs_print(p->m, n->attrs, p->out);
    for (uint32_t i = 0; i < n->nres; i++) {
        buf_puts(p->out, i ? ", " : " : ");
        print_value_type(p, node_res(n, i));
    }
}

/* ---- functions ----------------------------------------------------------- */

static void print_params(Printer *p, const Func *f)
{
    bool lines = f->params.n > 1;

    for (uint32_t i = 0; i < f->params.n; i++) {
        buf_puts(p->out, i ? "," : "");
        buf_puts(p->out, lines ? "\n    " : "");
        print_name(p, f->params.v[i]);
        buf_puts(p->out, " : ");
        print_value_type(p, f->params.v[i]);
    }
    buf_puts(p->out, lines ? "\n" : "");
}

static void print_func(Printer *p, const Func *f)
{
    number_func(p, f);
    buf_printf(p->out, "%s @%s(", f->kind == FUNC_ROW ? "row" : "func",
               sym_text(p->m->names, f->name));
    print_params(p, f);
    buf_puts(p->out, ") {\n");
    for (uint32_t i = 0; i < f->body.n; i++) {
        buf_puts(p->out, "    ");
        print_node(p, &p->m->nodes.v[f->body.v[i].i]);
        buf_puts(p->out, "\n");
    }
    buf_puts(p->out, "    return");
    for (uint32_t i = 0; i < f->results.n; i++) {
        buf_puts(p->out, i ? ", " : " ");
        print_name(p, f->results.v[i]);
    }
    buf_puts(p->out, "\n}\n");
}

/* ---- public -------------------------------------------------------------- */

static void printer_free(Printer *p)
{
    vec_free(&p->numbers);
    vec_free(&p->seen);
}

void module_print(const Module *m, Buf *out)
{
    Printer p = {.m = m, .out = out};

    decls_print(m, out);
    for (uint32_t i = 1; i < m->funcs.n; i++) {
        buf_puts(out, "\n");
        print_func(&p, &m->funcs.v[i]);
    }
    stages_print(m, out);
    printer_free(&p);
}

void func_print(const Module *m, FuncId f, Buf *out)
{
    Printer p = {.m = m, .out = out};

    print_func(&p, &m->funcs.v[f.i]);
    printer_free(&p);
}

/* The function whose body holds the node; 0 if it was dropped from all. */
static FuncId owner_of(const Module *m, NodeId n)
{
    for (uint32_t f = 1; f < m->funcs.n; f++)
        for (uint32_t i = 0; i < m->funcs.v[f].body.n; i++)
            if (m->funcs.v[f].body.v[i].i == n.i)
                return (FuncId){f};
    return (FuncId){0};
}

void node_print(const Module *m, NodeId n, Buf *out)
{
    Printer p = {.m = m, .out = out};
    FuncId f = owner_of(m, n);

    if (f.i)
        number_func(&p, &m->funcs.v[f.i]);
    print_node(&p, &m->nodes.v[n.i]);
    printer_free(&p);
}
