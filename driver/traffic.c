/* traffic.c - adds up the communication of a stage's program.
 *
 * Functions are walked once per call and multiplied by how often the call
 * runs, so the cost does not depend on layers or micro-batches that are
 * scanned.
 */
#include "driver/traffic.h"

typedef struct {
    Arena *arena;
    const Module *m;
    Vec(Traffic) rows;
} Walk;

/* ---- one node ------------------------------------------------------------ */

static int64_t node_bytes(const Module *m, const Node *n)
{
    int64_t in = n->nargs ? memplan_value_bytes(m, node_arg(m, n, 0)) : 0;
    int64_t out = n->nres ? memplan_value_bytes(m, n->res) : 0;

    return MC_MAX(in, out);
}

static AxisSet node_axes(const Module *m, const Node *n)
{
    if (n->op == OP_SEND || n->op == OP_RECV)
        return mesh_axis(m, "pp");
    return attr_axes(m, n->attrs, AK_AXES);
}

/* "@q" if the value is read from state, else its name or its hint's. */
static const char *value_text(const Walk *w, ValueId v)
{
    const Value *value = &w->m->values.v[v.i];
    const Node *def = &w->m->nodes.v[value->def.i];

    if (value->def.i && def->op == OP_READ) {
        TensorId t = attr_tensor(w->m, def->attrs, AK_TENSOR);

        return arena_printf(w->arena, "@%s",
                            sym_text(w->m->names, w->m->tensors.v[t.i].name));
    }
    return sym_text(w->m->names, value->name.i ? value->name : value->hint);
}

static const char *node_text(const Walk *w, const Node *n)
{
    const char *text = n->nargs ? value_text(w, node_arg(w->m, n, 0)) : "";

    return *text || !n->nres ? text : value_text(w, n->res);
}

/* ---- the program --------------------------------------------------------- */

static bool alike(const Traffic *a, const Traffic *b)
{
    return a->op == b->op && a->axes == b->axes && a->bytes == b->bytes &&
           !strcmp(a->tensor, b->tensor);
}

static void add(Walk *w, const Node *n, int64_t times)
{
    Traffic row = {(Op)n->op, node_axes(w->m, n), node_bytes(w->m, n), times,
                   node_text(w, n)};

    for (uint32_t i = 0; i < w->rows.n; i++)
        if (alike(&w->rows.v[i], &row)) {
            w->rows.v[i].per_step += times;
            return;
        }
    vec_push(&w->rows, row);
}

/* `ends`: how many of the times are the last iteration of a scan.  What runs
 * only if needed is left out. */
static void walk(Walk *w, FuncId f, int64_t times, int64_t ends)
{
    const Func *func = &w->m->funcs.v[f.i];

    for (uint32_t i = 0; i < func->body.n; i++) {
        const Node *n = &w->m->nodes.v[func->body.v[i].i];

        if (n->op == OP_CALL) {
            Scan scan = call_scan(w->m, n);

            if (call_trips(w->m, n) >= 0)
                continue;
            walk(w, scan.callee, times * scan.count, times);
        } else if (op_info[n->op].flags & OPF_COMM) {
            add(w, n, effects_ahead(w->m, n) ? times - ends : times);
        }
    }
}

const Traffic *traffic_make(Arena *a, const Program *p, uint32_t pp,
                            uint32_t *out_n)
{
    Walk w = {.arena = a, .m = p->m};

    walk(&w, p->m->entry.v[pp], 1, 0);
    Traffic *rows = arena_array(a, Traffic, w.rows.n);
    if (w.rows.n)
        memcpy(rows, w.rows.v, w.rows.n * sizeof *rows);
    *out_n = w.rows.n;
    vec_free(&w.rows);
    return rows;
}

/* The axis of either grid that is exactly these atoms.  Experts move over ep
 * by all-to-all, whatever that axis is called where weights are whole. */
static const char *whole_axis(const Module *m, const Traffic *t)
{
    static const char *const axes[] = {"tp", "cp",  "dp", "pp",
                                       "ep", "etp", "edp"};

    if (t->op == OP_ALL_TO_ALL && t->axes == mesh_axis(m, "ep") &&
        t->axes != mesh_axis(m, "cp"))
        return "ep";
    for (size_t i = 0; i < MC_LEN(axes); i++)
        if (t->axes == mesh_axis(m, axes[i]))
            return axes[i];
    return NULL;
}

/* An axis once, or its pieces each with its number. */
static void atom_text(const Module *m, AxisSet axes, uint32_t i, Buf *out)
{
    const Atom *atom = &m->mesh.atoms.v[i];
    const char *name = sym_text(m->names, atom->axis);
    AxisSet all = mesh_axis(m, name);
    bool whole = !(all & ~axes);

    if (!(axes >> i & 1) || (whole && (all & ((1u << i) - 1))))
        return;
    buf_printf(out, "%s%s", out->len ? "." : "", name);
    if (!whole)
        buf_printf(out, ".%u", atom->part);
}

const char *traffic_axis(Arena *a, const Module *m, const Traffic *t)
{
    const char *whole = whole_axis(m, t);
    Buf text = {0};

    for (uint32_t i = 0; i < m->mesh.atoms.n && !whole; i++)
        atom_text(m, t->axes, i, &text);
    const char *copy = whole ? whole : arena_strdup(a, buf_str(&text));
    buf_free(&text);
    return copy;
}
