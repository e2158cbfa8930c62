/* inspect_tensors.c - which tokens a rank works on, and the layouts of the
 * values that have a name in the model.
 *
 * A rank owns the rows of a micro-batch and the positions of the sequence that
 * the layout of the residual stream gives it; under context parallelism these
 * are several runs.
 */
#include "driver/views.h"

#include "base/zigzag.h"

/* From first up to, but not including, end. */
typedef struct {
    int64_t first, end;
} Run;

typedef struct {
    Run rows;
    Vec(Run) positions;
} Tokens;

static const Layout *layout_named(const Module *m, const char *name)
{
    for (uint32_t i = 0; i < m->hints.n; i++)
        if (!strcmp(sym_text(m->names, m->hints.v[i].name), name))
            return layout_of(m, m->hints.v[i].layout);
    return layout_of(m, layout_whole((Module *)m));
}

static Run run_of(Module *m, const Type *type, const Layout *l, char dim,
                  uint32_t rank)
{
    int64_t first = layout_start(m, type, l, dim, rank);

    return (Run){first, first + layout_local(m, type, l, dim)};
}

/* The positions of what is stored at the indices of a run. */
static void add_positions(Tokens *t, const Spec *s, Run stored)
{
    for (int64_t i = stored.first; i < stored.end; i++) {
        int64_t at = zigzag_position(s->training.seq_length, s->parallel.cp, i);
        if (t->positions.n && vec_last(&t->positions).end == at)
            vec_last(&t->positions).end++;
        else
            vec_push(&t->positions, ((Run){at, at + 1}));
    }
}

/* Its positions are the caller's to free. */
static Tokens tokens_of(const View *v, uint32_t rank)
{
    Module *m = v->program->m;
    const Spec *s = v->in->spec;
    const int64_t size[] = {s->training.seq_length,
                            s->training.micro_batch_size * s->derived.dense_dp};
    TypeId t = type_make(m, DT_I32, "sb", size);
    const Layout *l = layout_named(m, "residual");
    Tokens out = {.rows = run_of(m, type_of(m, t), l, 'b', rank)};

    add_positions(&out, s, run_of(m, type_of(m, t), l, 's', rank));
    return out;
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

static json_t *run_json(Run r)
{
    return json_pack("[II]", (json_int_t)r.first, (json_int_t)r.end);
}

/* One run is printed as such, several as a list. */
static json_t *positions_json(const Tokens *t)
{
    json_t *list;

    if (t->positions.n == 1)
        return run_json(t->positions.v[0]);
    list = json_array();
    for (uint32_t i = 0; i < t->positions.n; i++)
        json_array_append_new(list, run_json(t->positions.v[i]));
    return list;
}

static json_t *tokens_json(const View *v, uint32_t rank)
{
    Tokens t = tokens_of(v, rank);
    json_t *o = json_pack("{si so so}", "rank", (int)rank, "rows",
                          run_json(t.rows), "positions", positions_json(&t));

    vec_free(&t.positions);
    return o;
}

static void print_tokens(const View *v, uint32_t rank, FILE *to)
{
    Tokens t = tokens_of(v, rank);

    fprintf(to, "rank %u: rows %lld to %lld, positions", rank,
            (long long)t.rows.first, (long long)(t.rows.end - 1));
    for (uint32_t i = 0; i < t.positions.n; i++)
        fprintf(to, "%s %lld to %lld", i ? "," : "",
                (long long)t.positions.v[i].first,
                (long long)(t.positions.v[i].end - 1));
    fputc('\n', to);
    vec_free(&t.positions);
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
                json_string(view_param_layout(v, &m->tensors.v[i])));
}

json_t *view_tensors_json(const View *v)
{
    json_t *tokens = json_array(), *layouts = json_object();

    for (uint32_t r = 0; r < v->program->m->mesh.world; r++)
        json_array_append_new(tokens, tokens_json(v, r));
    add_layouts(v, layouts);
    return json_pack("{so so}", "tokens", tokens, "layouts", layouts);
}

void view_tensors_text(const View *v, FILE *to)
{
    json_t *layouts = json_object(), *value;
    const char *name;

    for (uint32_t r = 0; r < v->program->m->mesh.world; r++)
        print_tokens(v, r, to);
    add_layouts(v, layouts);
    json_object_foreach(layouts, name, value)
        fprintf(to, "%-20s %s\n", name, json_string_value(value));
    json_decref(layouts);
}
