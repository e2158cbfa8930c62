/* inspect_tensors.c - which tokens a rank works on, and the layouts of the
 * values that have a name in the model.
 *
 * A rank owns the rows of a micro-batch and the positions of the sequence that
 * the layout of the residual stream gives it.
 */
#include "driver/views.h"

typedef struct {
    int64_t row, rows, position, positions;
} Tokens;

static const Layout *layout_named(const Module *m, const char *name)
{
    for (uint32_t i = 0; i < m->hints.n; i++)
        if (!strcmp(sym_text(m->names, m->hints.v[i].name), name))
            return layout_of(m, m->hints.v[i].layout);
    return layout_of(m, layout_whole((Module *)m));
}

static Tokens tokens_of(const View *v, uint32_t rank)
{
    Module *m = v->program->m;
    const Spec *s = v->in->spec;
    const int64_t size[] = {s->training.seq_length,
                            s->training.micro_batch_size * s->derived.dense_dp};
    TypeId t = type_make(m, DT_I32, "sb", size);
    const Type *type = type_of(m, t);
    const Layout *l = layout_named(m, "residual");

    return (Tokens){layout_start(m, type, l, 'b', rank),
                    layout_local(m, type, l, 'b'),
                    layout_start(m, type, l, 's', rank),
                    layout_local(m, type, l, 's')};
}

static const char *text_of(const View *v, LayoutId l)
{
    Buf text = {0};

    layout_print(v->program->m, l, &text);
    const char *copy = arena_strdup(v->in->arena, buf_str(&text));
    buf_free(&text);
    return copy;
}

/* ---- printing ------------------------------------------------------------ */

static json_t *tokens_json(uint32_t rank, Tokens t)
{
    return json_pack("{si s[II] s[II]}", "rank", (int)rank, "rows",
                     (json_int_t)t.row, (json_int_t)(t.row + t.rows),
                     "positions", (json_int_t)t.position,
                     (json_int_t)(t.position + t.positions));
}

/* Adds "name": "layout" for the named values and for the parameters. */
static void add_layouts(const View *v, json_t *o)
{
    const Module *m = v->program->m;

    for (uint32_t i = 0; i < m->hints.n; i++)
        json_object_set_new(o, sym_text(m->names, m->hints.v[i].name),
                            json_string(text_of(v, m->hints.v[i].layout)));
    for (uint32_t i = 1; i < m->tensors.n; i++)
        if (m->tensors.v[i].parameter)
            json_object_set_new(
                o, arena_printf(v->in->arena, "@%s",
                                sym_text(m->names, m->tensors.v[i].name)),
                json_string(text_of(v, m->tensors.v[i].rest[FIELD_PARAM])));
}

json_t *view_tensors_json(const View *v)
{
    json_t *tokens = json_array(), *layouts = json_object();

    for (uint32_t r = 0; r < v->program->m->mesh.world; r++)
        json_array_append_new(tokens, tokens_json(r, tokens_of(v, r)));
    add_layouts(v, layouts);
    return json_pack("{so so}", "tokens", tokens, "layouts", layouts);
}

void view_tensors_text(const View *v, FILE *to)
{
    json_t *layouts = json_object(), *value;
    const char *name;

    for (uint32_t r = 0; r < v->program->m->mesh.world; r++) {
        Tokens t = tokens_of(v, r);

        fprintf(to, "rank %u: rows %lld to %lld, positions %lld to %lld\n", r,
                (long long)t.row, (long long)(t.row + t.rows - 1),
                (long long)t.position,
                (long long)(t.position + t.positions - 1));
    }
    add_layouts(v, layouts);
    json_object_foreach(layouts, name, value)
        fprintf(to, "%-20s %s\n", name, json_string_value(value));
    json_decref(layouts);
}
