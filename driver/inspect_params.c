/* inspect_params.c - every parameter and where it lives.
 *
 * Names and shapes are those of the files that `--save-step` writes; counts
 * are logical, without padding, and a tied table is one parameter.  What a
 * rank holds includes padding.
 */
#include "driver/views.h"

#include <inttypes.h>

/* One parameter of one layer: a tensor, or a part of one. */
typedef struct {
    const Tensor *tensor;
    const TensorPart *part; /* or NULL */
    int64_t layer;          /* -1: of no layer */
} Row;

typedef Vec(Row) Rows;

/* ---- which --------------------------------------------------------------- */

static void list_layers(const Module *m, TensorId id, const TensorPart *part,
                        Rows *out)
{
    const Tensor *t = &m->tensors.v[id.i];

    for (uint32_t l = 0; l < m->nlayers; l++) {
        if (tensor_in_layer(m, id, l))
            vec_push(out, ((Row){t, part, t->per_layer ? (int64_t)l : -1}));
        if (!t->per_layer)
            break;
    }
}

static Rows list_rows(const Module *m)
{
    Rows rows = {0};

    for (uint32_t i = 1; i < m->tensors.n; i++) {
        const Tensor *t = &m->tensors.v[i];

        if (t->parameter && t->nparts == 0)
            list_layers(m, (TensorId){i}, NULL, &rows);
        for (uint32_t k = 0; t->parameter && k < t->nparts; k++)
            list_layers(m, (TensorId){i}, &t->part[k], &rows);
    }
    return rows;
}

static const Export *file_of(const Row *row)
{
    return row->part ? &row->part->file : &row->tensor->file;
}

static int64_t count(const Row *row)
{
    Type part;

    if (!row->part)
        return type_elems(&row->tensor->logical);
    part = type_part(&row->tensor->logical, row->part->at);
    return type_elems(&part);
}

static int64_t total(const Rows *rows)
{
    int64_t sum = 0;

    for (uint32_t i = 0; i < rows->n; i++)
        sum += count(&rows->v[i]);
    return sum;
}

/* The name in files, with the layer's number in place of {l}. */
static const char *name_of(const View *v, const Row *row)
{
    const char *name = sym_text(v->program->m->names, file_of(row)->name);
    const char *mark = strstr(name, "{l}");

    if (!mark)
        return name;
    return arena_printf(v->in->arena, "%.*s%" PRId64 "%s", (int)(mark - name),
                        name, row->layer, mark + 3);
}

/* Of what lies flat, how the model uses it, and over which replicas its lines,
 * n, are split. */
static LayoutId param_layout(Module *m, const Tensor *t)
{
    Layout l = tensor_layout(m, t, FIELD_PARAM);
    const Split *n = layout_split(layout_of(m, t->rest[FIELD_PARAM]), 'n');
    uint8_t atoms[IR_MAX_ATOMS], used;

    used = layout_atoms(type_of(m, t->type), &l, atoms);
    if (n && n->n > used)
        layout_set_split(&l, 'n', n->atom + used, (uint8_t)(n->n - used));
    return layout_intern(m, &l);
}

const char *view_param_layout(const View *v, const Tensor *t)
{
    Buf text = {0};

    layout_print(v->program->m, param_layout(v->program->m, t), &text);
    const char *copy = arena_strdup(v->in->arena, buf_str(&text));
    buf_free(&text);
    return copy;
}

/* ---- what a rank holds --------------------------------------------------- */

/* Elements of all parameters on the ranks of one stage. */
static int64_t held(const View *v, uint32_t pp)
{
    const Module *m = v->program->m;
    int64_t sum = 0;

    for (uint32_t i = 1; i < m->tensors.n; i++) {
        const Tensor *t = &m->tensors.v[i];
        const Layout *rest = layout_of(m, t->rest[FIELD_PARAM]);
        const MemState *s;

        if (!t->parameter)
            continue;
        s = memplan_state(v->program->mem, pp, (TensorId){i}, FIELD_PARAM);
        sum += s->slots *
               layout_local_elems(m, type_of(m, tensor_stored(t)), rest);
    }
    return sum;
}

static uint32_t stage_of(const Module *m, uint32_t rank)
{
    AxisSet pp = mesh_axis(m, "pp");

    return pp ? axes_index(&m->mesh, pp, rank) : 0;
}

/* ---- printing ------------------------------------------------------------ */

static json_t *shape_json(const Export *e)
{
    if (!e->cols)
        return json_pack("[I]", (json_int_t)e->rows);
    return json_pack("[II]", (json_int_t)(e->transpose ? e->cols : e->rows),
                     (json_int_t)(e->transpose ? e->rows : e->cols));
}

static json_t *row_json(const View *v, const Row *row)
{
    const Tensor *t = row->tensor;
    json_t *layer = row->layer < 0 ? json_null() : json_integer(row->layer);

    return json_pack("{ss ss so ss sI so}", "name", name_of(v, row), "tensor",
                     sym_text(v->program->m->names,
                              row->part ? row->part->name : t->name),
                     "shape", shape_json(file_of(row)), "layout",
                     view_param_layout(v, t), "count", (json_int_t)count(row),
                     "layer", layer);
}

json_t *view_params_json(const View *v)
{
    const Module *m = v->program->m;
    Rows rows = list_rows(m);
    json_t *tensors = json_array(), *ranks = json_array();

    for (uint32_t i = 0; i < rows.n; i++)
        json_array_append_new(tensors, row_json(v, &rows.v[i]));
    for (uint32_t r = 0; r < m->mesh.world; r++)
        json_array_append_new(ranks, json_integer(held(v, stage_of(m, r))));
    json_int_t n = (json_int_t)total(&rows);
    vec_free(&rows);
    return json_pack("{sI sI so so}", "total", n, "unique", n, "by_tensor",
                     tensors, "by_rank", ranks);
}

void view_params_text(const View *v, FILE *to)
{
    Rows rows = list_rows(v->program->m);

    for (uint32_t i = 0; i < rows.n; i++)
        fprintf(to, "%-56s %12" PRId64 "  %s\n", name_of(v, &rows.v[i]),
                count(&rows.v[i]), view_param_layout(v, rows.v[i].tensor));
    fprintf(to, "%-56s %12" PRId64 "\n", "total", total(&rows));
    for (uint32_t pp = 0; pp < v->program->mem->npp; pp++)
        fprintf(to, "held by each rank of stage %-29u %12" PRId64 "\n", pp,
                held(v, pp));
    vec_free(&rows);
}
