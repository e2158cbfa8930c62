/* inspect_comm.c - what each stage's ranks say to others in one step.
 *
 * Walks the program of the stage, multiplying by how often each call runs, and
 * adds up what is alike.  `bytes` is the whole buffer of one execution on one
 * rank: all parts of a gather or scatter, one message of a send.
 */
#include "driver/views.h"

#include <inttypes.h>

typedef struct {
    Op op;
    AxisSet axes; /* 0: a message between stages */
    int64_t bytes, per_step;
    const char *tensor;
} Row;

typedef struct {
    const View *view;
    const Module *m;
    Vec(Row) rows;
} Walk;

/* ---- one node ------------------------------------------------------------ */

static int64_t node_bytes(const Module *m, const Node *n)
{
    int64_t in = n->nargs ? memplan_value_bytes(m, node_arg(m, n, 0)) : 0;
    int64_t out = n->nres ? memplan_value_bytes(m, n->res) : 0;

    return MC_MAX(in, out);
}

/* "@q.grad" if the value is read from state, else its name or its hint's. */
static const char *value_text(const Walk *w, ValueId v)
{
    const Value *value = &w->m->values.v[v.i];
    const Node *def = &w->m->nodes.v[value->def.i];

    if (value->def.i && def->op == OP_READ) {
        TensorId t = attr_tensor(w->m, def->attrs, AK_TENSOR);
        return arena_printf(w->view->in->arena, "@%s",
                            sym_text(w->m->names, w->m->tensors.v[t.i].name));
    }
    return sym_text(w->m->names, value->name.i ? value->name : value->hint);
}

static const char *node_text(const Walk *w, const Node *n)
{
    const char *text = n->nargs ? value_text(w, node_arg(w->m, n, 0)) : "";

    return *text || !n->nres ? text : value_text(w, n->res);
}

static void add(Walk *w, const Node *n, int64_t times)
{
    Row row = {(Op)n->op, attr_axes(w->m, n->attrs, AK_AXES),
               node_bytes(w->m, n), times, node_text(w, n)};

    for (uint32_t i = 0; i < w->rows.n; i++) {
        Row *r = &w->rows.v[i];

        if (r->op == row.op && r->axes == row.axes && r->bytes == row.bytes &&
            !strcmp(r->tensor, row.tensor)) {
            r->per_step += times;
            return;
        }
    }
    vec_push(&w->rows, row);
}

static void walk(Walk *w, FuncId f, int64_t times)
{
    const Func *func = &w->m->funcs.v[f.i];

    for (uint32_t i = 0; i < func->body.n; i++) {
        const Node *n = &w->m->nodes.v[func->body.v[i].i];

        if (n->op == OP_CALL) {
            Scan scan = call_scan(w->m, n);
            walk(w, scan.callee, times * scan.count);
        } else if (op_info[n->op].flags & OPF_COMM) {
            add(w, n, times);
        }
    }
}

static Walk walk_stage(const View *v, uint32_t pp)
{
    Walk w = {.view = v, .m = v->program->m};

    walk(&w, w.m->entry.v[pp], 1);
    return w;
}

/* ---- groups -------------------------------------------------------------- */

static const char *axis_text(const Walk *w, AxisSet axes)
{
    Buf text = {0};

    for (uint32_t i = 0; i < w->m->mesh.atoms.n; i++)
        if (axes >> i & 1)
            buf_printf(&text, "%s%s", text.len ? "." : "",
                       sym_text(w->m->names, w->m->mesh.atoms.v[i].axis));
    const char *copy = arena_strdup(w->view->in->arena,
                                    axes ? buf_str(&text) : "pp");
    buf_free(&text);
    return copy;
}

/* The ranks that talk to the stage's first rank. */
static json_t *group_json(const Walk *w, AxisSet axes, uint32_t pp)
{
    AxisSet stage = mesh_axis(w->m, "pp");
    uint32_t n = axes_size(&w->m->mesh, axes ? axes : stage), rank = 0;
    uint32_t *ranks = arena_array(w->view->in->arena, uint32_t, n);
    json_t *list = json_array();

    while (stage && axes_index(&w->m->mesh, stage, rank) != pp)
        rank++;
    axes_members(&w->m->mesh, axes ? axes : stage, rank, ranks);
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ranks[i]));
    return list;
}

/* ---- printing ------------------------------------------------------------ */

static json_t *ops_json(const Walk *w, uint32_t pp)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < w->rows.n; i++) {
        const Row *r = &w->rows.v[i];

        json_array_append_new(
            list, json_pack("{ss so ss sI sI ss}", "op", op_info[r->op].name,
                            "group", group_json(w, r->axes, pp), "axis",
                            axis_text(w, r->axes), "bytes",
                            (json_int_t)r->bytes, "per_step",
                            (json_int_t)r->per_step, "tensor", r->tensor));
    }
    return list;
}

/* Bytes of a step by axis. */
static json_t *totals_json(const Walk *w)
{
    json_t *totals = json_object();

    for (uint32_t i = 0; i < w->rows.n; i++) {
        const Row *r = &w->rows.v[i];
        const char *axis = axis_text(w, r->axes);
        json_int_t sum = json_integer_value(json_object_get(totals, axis));

        json_object_set_new(totals, axis,
                            json_integer(sum + r->bytes * r->per_step));
    }
    return totals;
}

json_t *view_comm_json(const View *v)
{
    json_t *list = json_array();

    for (uint32_t pp = 0; pp < v->program->mem->npp; pp++) {
        Walk w = walk_stage(v, pp);

        json_array_append_new(list, json_pack("{si so so}", "pp", (int)pp,
                                              "ops", ops_json(&w, pp),
                                              "totals", totals_json(&w)));
        vec_free(&w.rows);
    }
    return list;
}

static void totals_text(const Walk *w, FILE *to)
{
    json_t *totals = totals_json(w), *value;
    const char *axis;

    json_object_foreach(totals, axis, value)
        fprintf(to, "  total over %-6s %41" JSON_INTEGER_FORMAT "\n", axis,
                json_integer_value(value));
    json_decref(totals);
}

void view_comm_text(const View *v, FILE *to)
{
    for (uint32_t pp = 0; pp < v->program->mem->npp; pp++) {
        Walk w = walk_stage(v, pp);

        fprintf(to, "stage %u\n  %-16s %-6s %12s %12s %12s\n", pp, "op",
                "axis", "bytes", "per step", "product");
        for (uint32_t i = 0; i < w.rows.n; i++) {
            const Row *r = &w.rows.v[i];

            fprintf(to, "  %-16s %-6s %12" PRId64 " %12" PRId64 " %12" PRId64
                        "  %s\n",
                    op_info[r->op].name, axis_text(&w, r->axes), r->bytes,
                    r->per_step, r->bytes * r->per_step, r->tensor);
        }
        totals_text(&w, to);
        vec_free(&w.rows);
    }
}
