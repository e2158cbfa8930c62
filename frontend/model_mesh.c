/* model_mesh.c - ranks as digits, and who holds which part of a weight.
 *
 * All of a strategy that the model graph knows: the axes of the mesh, the
 * split of each weight, and the layout of the residual stream.  What follows
 * for other values is the business of the pass `layout`.
 */
#include "frontend/model_priv.h"

static uint32_t add_axis(Model *x, const char *name, int64_t size,
                         uint32_t stride)
{
    Sym axis = sym_intern(x->m->names, name);

    if (size > 1)
        mesh_atom(&x->m->mesh, axis, 0, (uint32_t)size, stride, false);
    return stride * (uint32_t)size;
}

/* With fewer KV groups than tp, tp is cut in two: groups are split over the
 * significant part, the queries of one group over the other. */
static uint32_t add_tp(Model *x, int64_t tp)
{
    Sym axis = sym_intern(x->m->names, "tp");
    uint32_t inner = x->g < tp ? (uint32_t)(tp / x->g) : 1;

    if (inner == 1 || x->g == 1)
        return add_axis(x, "tp", tp, 1);
    mesh_atom(&x->m->mesh, axis, 0, (uint32_t)x->g, inner, false);
    mesh_atom(&x->m->mesh, axis, 1, inner, 1, false);
    return (uint32_t)tp;
}

void model_mesh(Model *x)
{
    const Spec *spec = x->spec;
    int64_t pp = spec->parallel.pp;
    uint32_t stride = add_tp(x, spec->parallel.tp);

    stride = add_axis(x, "cp", spec->parallel.cp, stride);
    stride = add_axis(x, "dp", spec->derived.dense_dp, stride);
    add_axis(x, "pp", pp, stride);
    if (spec->model.tie_embeddings && pp > 1)
        add_axis(x, "embed", 2, stride * (uint32_t)(pp - 1));
    x->m->mesh.world = stride * (uint32_t)pp;
}

/* Appends a whole axis to the split of `dim`. */
static void split_over(Model *x, Layout *l, char dim, const char *axis)
{
    uint8_t atoms[IR_MAX_ATOMS];
    const Split *old = layout_split(l, dim);
    uint8_t n = 0;

    for (; old && n < old->n; n++)
        atoms[n] = old->atom[n];
    n = (uint8_t)(n + mesh_axis_atoms(x->m, axis, atoms + n));
    if (n > 0)
        layout_set_split(l, dim, atoms, n);
}

/* Heads: g over as much of tp as there are groups, r over the rest. */
static void split_heads(Model *x, Layout *l, bool queries)
{
    uint8_t atoms[IR_MAX_ATOMS];
    uint8_t n = mesh_axis_atoms(x->m, "tp", atoms);

    if (n == 0)
        return;
    if (x->g == 1) {
        if (queries)
            layout_set_split(l, 'r', atoms, n);
        return;
    }
    layout_set_split(l, 'g', atoms, 1);
    if (n > 1 && queries)
        layout_set_split(l, 'r', atoms + 1, (uint8_t)(n - 1));
}

LayoutId model_weight_layout(Model *x, const char *dims)
{
    Layout l = {0};

    if (strchr(dims, 'g'))
        split_heads(x, &l, strchr(dims, 'r') != NULL);
    if (strchr(dims, 'f'))
        split_over(x, &l, 'f', "tp");
    if (strchr(dims, 'v'))
        split_over(x, &l, 'v', "tp");
    return layout_intern(x->m, &l);
}

/* How a sharded field rests: its first dimension that the replicas divide is
 * split over them too.  A tensor without one stays whole. */
LayoutId model_shard_layout(Model *x, LayoutId use, const Type *t)
{
    Layout l = *layout_of(x->m, use);
    int64_t replicas = x->spec->derived.dense_dp * x->spec->parallel.cp;

    for (uint8_t i = 0; i < t->ndim; i++) {
        if (layout_local(x->m, t, &l, t->dim[i]) % replicas)
            continue;
        split_over(x, &l, t->dim[i], "dp");
        split_over(x, &l, t->dim[i], "cp");
        break;
    }
    return layout_intern(x->m, &l);
}

void model_hints(Model *x)
{
    Layout l = {0};
    NamedLayout batch = {sym_intern(x->m->names, "batch"), {0}};
    NamedLayout residual = {sym_intern(x->m->names, "residual"), {0}};
    NamedLayout total = {sym_intern(x->m->names, "total"), layout_whole(x->m)};

    split_over(x, &l, 'b', "dp");
    split_over(x, &l, 's', "cp");
    batch.layout = layout_intern(x->m, &l);
    vec_push(&x->m->hints, batch);
    if (x->spec->parallel.sp)
        split_over(x, &l, 's', "tp");
    residual.layout = layout_intern(x->m, &l);
    vec_push(&x->m->hints, residual);
    vec_push(&x->m->hints, total);
}
