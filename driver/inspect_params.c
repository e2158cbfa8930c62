/* inspect_params.c - every parameter and where it lives.
 *
 * Names and shapes are those of the files that `--save-step` writes; counts
 * are logical, without padding, and a tied table is one parameter.  What a
 * rank holds includes padding.
 */
#include "driver/params.h"
#include "driver/views.h"

#include <inttypes.h>

static int64_t total(const Params *params)
{
    int64_t sum = 0;

    for (uint32_t i = 0; i < params->n; i++)
        sum += param_count(&params->v[i]);
    return sum;
}

/* ---- where it lives ------------------------------------------------------ */

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

static json_t *row_json(const View *v, const Param *row)
{
    const Tensor *t = row->tensor;
    json_t *layer = row->layer < 0 ? json_null() : json_integer(row->layer);

    return json_pack("{ss ss so ss sI so}", "name", param_name(v->in->arena, v->program->m, row), "tensor",
                     sym_text(v->program->m->names,
                              row->part ? row->part->name : t->name),
                     "shape", shape_json(param_file(row)), "layout",
                     view_param_layout(v, t), "count", (json_int_t)param_count(row),
                     "layer", layer);
}

json_t *view_params_json(const View *v)
{
    const Module *m = v->program->m;
    Params rows = params_list(m);
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
    Params rows = params_list(v->program->m);

    for (uint32_t i = 0; i < rows.n; i++)
        fprintf(to, "%-56s %12" PRId64 "  %s\n", param_name(v->in->arena, v->program->m, &rows.v[i]),
                param_count(&rows.v[i]), view_param_layout(v, rows.v[i].tensor));
    fprintf(to, "%-56s %12" PRId64 "\n", "total", total(&rows));
    for (uint32_t pp = 0; pp < v->program->mem->npp; pp++)
        fprintf(to, "held by each rank of stage %-29u %12" PRId64 "\n", pp,
                held(v, pp));
    vec_free(&rows);
}
