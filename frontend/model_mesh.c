/* model_mesh.c - ranks as digits, and who holds which part of a weight.
 *
 * All of a strategy that the model graph knows: the axes of the mesh, the
 * split of each weight, and the layout of the residual stream.  What follows
 * for other values is the business of the pass `layout`.
 */
#include "frontend/model_priv.h"

/* How many ranks share one KV group: the queries of a group are split over
 * them, and K and V are whole there. */
static uint32_t group_ranks(const Model *x)
{
    return x->g < x->spec->parallel.tp ? (uint32_t)(x->spec->parallel.tp / x->g)
                                       : 1;
}

bool model_joins_heads(const Model *x, const char *hint)
{
    for (uint32_t i = 0; hint && i < x->m->hints.n; i++) {
        const NamedLayout *l = &x->m->hints.v[i];
        if (!strcmp(sym_text(x->m->names, l->name), hint) &&
            layout_split(layout_of(x->m, l->layout), 'r'))
            return false;
    }
    return group_ranks(x) == 1;
}

/* Rings leave keys as they are, and make them travel.  What gathers them has
 * their gradients summed before anything else. */
const char *model_attention_hint(SpecCpComm comm)
{
    static const char *const hints[] = {[CP_ALL_GATHER] = "heads",
                                        [CP_A2A] = "attention",
                                        [CP_A2A_P2P] = "attention_ring"};

    return hints[comm];
}

AxisSet model_ring(const Model *x, SpecCpComm comm)
{
    uint8_t atoms[IR_MAX_ATOMS], n = mesh_axis_atoms(x->m, "cp", atoms);
    int64_t first = spec_grid(x->spec, false).stride[GRID_CP] *
                    spec_cp_split(x->spec, comm).heads;
    AxisSet ring = 0;

    if (spec_cp_split(x->spec, comm).ring == 1)
        return 0;
    for (uint8_t i = 0; i < n; i++)
        if (x->m->mesh.atoms.v[atoms[i]].stride >= first)
            ring |= (AxisSet)1 << atoms[i];
    return ring;
}

static uint32_t expert_tp(const Model *x)
{
    const Spec *s = x->spec;

    return (uint32_t)(s->parallel.etp ? s->parallel.etp : s->parallel.tp);
}

/* The largest border below `top` at which an axis that starts at `stride` is
 * cut into atoms. */
static uint32_t cut_below(const Model *x, uint32_t top, uint32_t stride)
{
    int64_t cuts[SPEC_BORDERS];
    uint32_t n = spec_borders(x->spec, cuts), low = stride;

    for (uint32_t i = 0; i < n; i++)
        if (cuts[i] < top && cuts[i] > low)
            low = (uint32_t)cuts[i];
    return low;
}

static void add_axis(Model *x, const Grid *g, GridAxis i)
{
    Sym axis = sym_intern(x->m->names, grid_names[i]);
    uint32_t stride = (uint32_t)g->stride[i], part = 0;
    uint32_t end = stride * (uint32_t)g->size[i];

    for (uint32_t top = end, low; top > stride; top = low) {
        low = cut_below(x, top, stride);
        mesh_atom(&x->m->mesh, axis, part++, top / low, low, false);
    }
}

/* The same ranks once more, for the weights of experts. */
static void add_expert_grid(Model *x)
{
    static const char *const names[] = {
        [GRID_TP] = "etp", [GRID_EP] = "ep", [GRID_DP] = "edp"};
    Grid g = spec_grid(x->spec, true);

    for (size_t i = 0; i < MC_LEN(names); i++)
        if (names[i] && g.size[i] > 1)
            mesh_atom(&x->m->mesh, sym_intern(x->m->names, names[i]), 0,
                      (uint32_t)g.size[i], (uint32_t)g.stride[i], true);
}

/* Whether the head is not on the rank of the embedding. */
static bool head_is_elsewhere(const Spec *spec)
{
    StageTable table = stage_table(spec);

    return table.v[table.n - 1].pp != table.v[0].pp;
}

void model_mesh(Model *x)
{
    static const GridAxis dense[] = {GRID_TP, GRID_CP, GRID_DP, GRID_PP};
    const Spec *spec = x->spec;
    Grid g = spec_grid(spec, false);

    for (size_t i = 0; i < MC_LEN(dense); i++)
        add_axis(x, &g, dense[i]);
    if (spec->model.tie_embeddings && head_is_elsewhere(spec))
        mesh_ends(&x->m->mesh, sym_intern(x->m->names, "embed"),
                  (uint32_t)g.size[GRID_PP], (uint32_t)g.stride[GRID_PP]);
    x->m->mesh.world = (uint32_t)spec->parallel.world_size;
    if (spec->model.moe.num_experts)
        add_expert_grid(x);
}

static void split_further(Layout *l, char dim, const uint8_t *more, uint8_t n)
{
    uint8_t atoms[2 * IR_MAX_ATOMS];
    const Split *old = layout_split(l, dim);
    uint8_t had = old ? old->n : 0;

    for (uint8_t i = 0; i < had; i++)
        atoms[i] = old->atom[i];
    for (uint8_t i = 0; i < n; i++)
        atoms[had + i] = more[i];
    if (n > 0)
        layout_set_split(l, dim, atoms, (uint8_t)(had + n));
}

/* Appends a whole axis to the split of `dim`. */
static void split_over(Model *x, Layout *l, char dim, const char *axis)
{
    uint8_t atoms[IR_MAX_ATOMS];

    split_further(l, dim, atoms, mesh_axis_atoms(x->m, axis, atoms));
}

static uint32_t stride_of(const Model *x, GridAxis axis)
{
    return (uint32_t)spec_grid(x->spec, false).stride[axis];
}

/* Heads: g over as much of tp as there are groups, r over the rest. */
static void split_heads(Model *x, Layout *l, bool queries)
{
    uint8_t atoms[IR_MAX_ATOMS], n = mesh_axis_atoms(x->m, "tp", atoms);
    uint8_t groups = 0;

    while (groups < n && x->m->mesh.atoms.v[atoms[groups]].stride >=
                             stride_of(x, GRID_TP) * group_ranks(x))
        groups++;
    layout_set_split(l, 'g', atoms, groups);
    if (queries)
        layout_set_split(l, 'r', atoms + groups, (uint8_t)(n - groups));
}

/* The same for the ranks of cp that have heads of their own: groups as far as
 * there are some left; the sequence stays split over the others. */
static void split_heads_over_cp(Model *x, Layout *l, SpecCpComm comm)
{
    uint8_t atoms[IR_MAX_ATOMS], n = mesh_axis_atoms(x->m, "cp", atoms);
    AxisSet in_ring = model_ring(x, comm);
    uint8_t ring = 0, groups;

    while (ring < n && (in_ring >> atoms[ring] & 1))
        ring++;
    groups = ring;
    while (groups < n && x->m->mesh.atoms.v[atoms[groups]].stride >=
                             spec_group_border(x->spec, comm))
        groups++;
    layout_set_split(l, 's', atoms, ring);
    split_further(l, 'g', atoms + ring, (uint8_t)(groups - ring));
    split_further(l, 'r', atoms + groups, (uint8_t)(n - groups));
}

LayoutId model_weight_layout(Model *x, const char *dims, bool expert)
{
    Layout l = {0};

    if (expert)
        split_over(x, &l, 'e', "ep");
    if (strchr(dims, 'g'))
        split_heads(x, &l, strchr(dims, 'r') != NULL);
    if (strchr(dims, 'f'))
        split_over(x, &l, 'f', expert ? "etp" : "tp");
    if (strchr(dims, 'v'))
        split_over(x, &l, 'v', "tp");
    return layout_intern(x->m, &l);
}

/* ---- shares of replicas -------------------------------------------------- */

/* Of dense weights the ranks of dp and cp, of experts' those of edp; the
 * slowest axis first, so that one group numbers them. */
static uint8_t replica_atoms(const Model *x, bool expert, uint8_t *out)
{
    bool dp_slower = stride_of(x, GRID_DP) > stride_of(x, GRID_CP);
    uint8_t n;

    if (expert)
        return mesh_axis_atoms(x->m, "edp", out);
    n = mesh_axis_atoms(x->m, dp_slower ? "dp" : "cp", out);
    return (uint8_t)(n + mesh_axis_atoms(x->m, dp_slower ? "cp" : "dp",
                                         out + n));
}

/* The lines of a share: kernels work on them side by side, so that a few
 * hundred elements are enough.  A width that divides the share needs no
 * padding. */
static int64_t line_width(int64_t share)
{
    enum { MOST = 1024, LEAST = 256 };
    int64_t width = MC_MIN(share, MOST);

    while (share % width)
        width--;
    return width >= LEAST || width == share ? width : MOST;
}

static TypeId flat_type(Model *x, const Tensor *t, int64_t replicas)
{
    const Type *type = type_of(x->m, t->type);
    int64_t row = layout_local_elems(x->m, type, layout_of(x->m, t->use));
    int64_t parts = type_elems(type) / row;
    int64_t share = (row + replicas - 1) / replicas, width = line_width(share);
    int64_t size[] = {parts * replicas * ((share + width - 1) / width), width};

    return type_make(x->m, type->dtype, "nw", size);
}

/* How lines are split over what splits the tensor, and over replicas. */
static LayoutId flat_layout(Model *x, const Tensor *t, const uint8_t *replicas,
                            uint8_t n)
{
    uint8_t atoms[2 * IR_MAX_ATOMS];
    uint8_t used = layout_atoms(type_of(x->m, t->type),
                                layout_of(x->m, t->use), atoms);
    Layout l = {0};

    memcpy(atoms + used, replicas, n);
    layout_set_split(&l, 'n', atoms, (uint8_t)(used + n));
    return layout_intern(x->m, &l);
}

LayoutId model_flatten(Model *x, Tensor *t, LayoutId use,
                       LayoutId *out_share)
{
    uint8_t atoms[IR_MAX_ATOMS];
    uint8_t n = replica_atoms(x, t->expert, atoms);
    int64_t replicas = 1;

    *out_share = use;
    for (uint8_t i = 0; i < n; i++)
        replicas *= x->m->mesh.atoms.v[atoms[i]].size;
    if (replicas == 1)
        return use;
    t->use = use;
    t->flat = flat_type(x, t, replicas);
    *out_share = flat_layout(x, t, atoms, n);
    return flat_layout(x, t, atoms, 0);
}

static void add_hint(Model *x, const char *name, const Layout *l)
{
    NamedLayout hint = {sym_intern(x->m->names, name), layout_intern(x->m, l)};

    vec_push(&x->m->hints, hint);
}

/* `l` without what ranks of one expert, or of different ones, tell apart. */
static Layout without_experts(Model *x, const Layout *l)
{
    AxisSet experts = mesh_axis(x->m, "ep") | mesh_axis(x->m, "etp");
    Layout out = *l;

    for (uint8_t i = 0; i < l->nsplit; i++) {
        Split s = l->split[i];
        uint8_t n = 0;
        for (uint8_t k = 0; k < s.n; k++)
            if (!(experts >> s.atom[k] & 1))
                s.atom[n++] = s.atom[k];
        layout_set_split(&out, s.dim, s.atom, n);
    }
    return out;
}

/* `slots`: rows where their experts are, split over what splits tokens but not
 * experts; `gathered`: tokens that all ranks of an expert grid see.  Where
 * tokens are whole over etp, the experts' results are partial sums there, which
 * are best left so until they are back at their tokens: no hint. */
static void expert_hints(Model *x, const Layout *residual)
{
    Layout gathered = without_experts(x, residual), slots = *residual;
    uint8_t c[IR_MAX_SPLIT], n = 0;
    AxisSet ep = mesh_axis(x->m, "ep");

    split_over(x, &gathered, 'e', "ep");
    add_hint(x, "gathered", &gathered);
    if (!x->spec->parallel.sp && expert_tp(x) > 1)
        return;
    if (x->spec->model.moe.dispatcher == MOE_ALLGATHER)
        slots = gathered;
    layout_set_slots(x->m, &slots);
    for (const Split *s = layout_split(&slots, 'c'); s && n < s->n; n++) {
        if (ep >> s->atom[n] & 1)
            break;
        c[n] = s->atom[n];
    }
    slots = (Layout){0};
    layout_set_split(&slots, 'c', c, n);
    split_over(x, &slots, 'e', "ep");
    add_hint(x, "slots", &slots);
}

/* What attention works on where cp splits heads. */
static void attention_hint(Model *x, SpecCpComm comm)
{
    Layout l = {0};

    if (!spec_uses_cp_comm(x->spec, comm))
        return;
    split_over(x, &l, 'b', "dp");
    split_heads(x, &l, true);
    split_heads_over_cp(x, &l, comm);
    add_hint(x, model_attention_hint(comm), &l);
}

/* Heads as projections make and take them. */
static void head_hints(Model *x, const Layout *batch)
{
    Layout heads = *batch;

    if (x->spec->parallel.cp == 1)
        return;
    split_heads(x, &heads, true);
    add_hint(x, "heads", &heads);
    attention_hint(x, CP_A2A);
    attention_hint(x, CP_A2A_P2P);
}

void model_hints(Model *x)
{
    Layout l = {0};

    split_over(x, &l, 'b', "dp");
    split_over(x, &l, 's', "cp");
    add_hint(x, "batch", &l);
    head_hints(x, &l);
    if (x->spec->parallel.sp)
        split_over(x, &l, 's', "tp");
    add_hint(x, "residual", &l);
    add_hint(x, "total", &(Layout){0});
    add_hint(x, "highest", &(Layout){0});
    if (x->spec->model.moe.num_experts)
        expert_hints(x, &l);
}
