/* reshard.c - each conversion becomes the collectives that perform it.
 *
 *   from               to              collective
 *   sum over a         d split by a    reduce_scatter
 *   sum over a         complete        all_reduce
 *   max over a         complete        all_reduce_max
 *   complete           sum over a      only (a local mask)
 *   d split by a       e split by a    all_to_all
 *   d split by a       whole           all_gather
 *   whole              d split by a    slice (local)
 *
 * Data is reduced before it is gathered, and what can be moved is not gathered
 * first; a move may make place for a reduce_scatter.  A split is a list of
 * atoms, most significant first; gathering and scattering work at its end.  A
 * group numbers its ranks by stride, so one collective takes several atoms only
 * where the split lists them in that order.
 */
#include "passes/passes.h"

typedef struct {
    Module *m;
    FuncId f;
    Loc loc;
    ValueId v;   /* the value so far */
    Layout have; /* its layout */
    Layout want;
} Reshard;

static void step(Reshard *r, Op op, AxisSet axes, char dim, char from)
{
    Attr list[3];
    uint32_t n = 0;
    TypeId type = value_of(r->m, r->v)->type;
    Sym name = value_of(r->m, r->v)->name;
    NodeId node;

    list[n++] = attr_of_axes(AK_AXES, axes);
    if (dim)
        list[n++] = attr_of_int(AK_DIM, dim);
    if (from)
        list[n++] = attr_of_int(AK_FROM_DIM, from);
    node = node_new(r->m, r->f, op, &r->v, 1, attrs_intern(r->m, list, n),
                    &type, 1, r->loc);
    r->v = node_res(node_of(r->m, node), 0);
    value_of(r->m, r->v)->name = name;
    value_of(r->m, r->v)->layout = layout_intern(r->m, &r->have);
}

static uint8_t split_of(const Layout *l, char dim, uint8_t *atoms)
{
    const Split *s = layout_split(l, dim);

    if (!s)
        return 0;
    memcpy(atoms, s->atom, s->n);
    return s->n;
}

/* How many leading atoms two splits of a dimension share. */
static uint8_t shared_prefix(const Layout *a, const Layout *b, char dim)
{
    uint8_t x[IR_MAX_SPLIT], y[IR_MAX_SPLIT];
    uint8_t nx = split_of(a, dim, x), ny = split_of(b, dim, y), n = 0;

    while (n < nx && n < ny && x[n] == y[n])
        n++;
    return n;
}

static AxisSet atoms_from(const Layout *l, char dim, uint8_t first)
{
    uint8_t atoms[IR_MAX_SPLIT];
    uint8_t n = split_of(l, dim, atoms);
    AxisSet set = 0;

    for (uint8_t i = first; i < n; i++)
        set |= 1u << atoms[i];
    return set;
}

/* ---- the steps ----------------------------------------------------------- */

/* The end of the run of atoms from `first` on that one group can number. */
static uint8_t run_end(const Reshard *r, const uint8_t *atoms, uint8_t first,
                       uint8_t n)
{
    const Atom *a = r->m->mesh.atoms.v;
    uint8_t end = (uint8_t)(first + 1);

    while (end < n && a[atoms[end]].stride < a[atoms[end - 1]].stride)
        end++;
    return end;
}

static AxisSet set_of(const uint8_t *atoms, uint8_t from, uint8_t to)
{
    AxisSet set = 0;

    for (uint8_t i = from; i < to; i++)
        set |= 1u << atoms[i];
    return set;
}

/* Extends the split of `dim` to what is wanted, run by run. */
static void extend_split(Reshard *r, Op op, char dim)
{
    uint8_t atoms[IR_MAX_SPLIT];
    uint8_t n = split_of(&r->want, dim, atoms);

    for (uint8_t at = shared_prefix(&r->have, &r->want, dim), to; at < n;
         at = to) {
        AxisSet axes;
        to = run_end(r, atoms, at, n);
        axes = set_of(atoms, at, to);
        layout_set_split(&r->have, dim, atoms, to);
        if (op == OP_REDUCE_SCATTER)
            r->have.partial &= ~axes;
        step(r, op, axes, dim, 0);
    }
}

static bool is_prefix(const Reshard *r, char dim)
{
    const Split *s = layout_split(&r->have, dim);

    return shared_prefix(&r->have, &r->want, dim) == (s ? s->n : 0);
}

static void reduce_scatter(Reshard *r)
{
    for (uint8_t i = 0; i < r->want.nsplit; i++) {
        char dim = r->want.split[i].dim;
        AxisSet rest = atoms_from(&r->want, dim,
                                  shared_prefix(&r->have, &r->want, dim));
        if (rest && is_prefix(r, dim) && !(rest & ~r->have.partial))
            extend_split(r, OP_REDUCE_SCATTER, dim);
    }
}

static void all_reduce(Reshard *r)
{
    AxisSet sum = r->have.partial & ~r->want.partial;
    AxisSet max = r->have.partial_max & ~r->want.partial_max;

    if (sum) {
        r->have.partial &= ~sum;
        step(r, OP_ALL_REDUCE, sum, 0, 0);
    }
    if (max) {
        r->have.partial_max &= ~max;
        step(r, OP_ALL_REDUCE_MAX, max, 0, 0);
    }
}

/* How many atoms, from `at` on in the split of `from`, the split of `to` wants
 * next, in that order, and one group can number. */
static uint8_t wanted_run(const Reshard *r, char from, uint8_t at, char to)
{
    uint8_t have[IR_MAX_SPLIT], want[IR_MAX_SPLIT];
    uint8_t nhave = split_of(&r->have, from, have);
    uint8_t nwant = split_of(&r->want, to, want);
    uint8_t same = shared_prefix(&r->have, &r->want, to), n = 0;
    uint8_t end = same < nwant ? run_end(r, want, same, nwant) : same;

    if (from == to || !is_prefix(r, to))
        return 0;
    while (at + n < nhave && same + n < end && have[at + n] == want[same + n])
        n++;
    return n;
}

/* Moves the last `n` atoms of one dimension's split to another's end. */
static void move_split(Reshard *r, char from, char to, uint8_t n)
{
    uint8_t have[IR_MAX_SPLIT], want[IR_MAX_SPLIT];
    uint8_t left = (uint8_t)(split_of(&r->have, from, have) - n);
    uint8_t at = shared_prefix(&r->have, &r->want, to);
    AxisSet moved = set_of(have, left, (uint8_t)(left + n));

    split_of(&r->want, to, want);
    layout_set_split(&r->have, from, have, left);
    layout_set_split(&r->have, to, want, (uint8_t)(at + n));
    step(r, OP_ALL_TO_ALL, moved, to, from);
}

/* Shortens the split of `dim` to `keep` atoms, run by run from its end. */
static void shorten_split(Reshard *r, char dim, uint8_t keep)
{
    uint8_t atoms[IR_MAX_SPLIT];
    uint8_t n = split_of(&r->have, dim, atoms);

    while (n > keep) {
        uint8_t from = (uint8_t)(n - 1);
        while (from > keep && run_end(r, atoms, (uint8_t)(from - 1), n) == n)
            from--;
        layout_set_split(&r->have, dim, atoms, from);
        step(r, OP_ALL_GATHER, set_of(atoms, from, n), dim, 0);
        n = from;
    }
}

/* One move of atoms that another dimension wants: of the last ones of a split,
 * or (`buried`) of others, once those behind have been gathered. */
static bool move_one(Reshard *r, bool buried)
{
    const Layout before = r->have;

    for (uint8_t i = 0; i < before.nsplit; i++)
        for (uint8_t k = 0; k < r->want.nsplit; k++) {
            const Split *s = &before.split[i];
            char to = r->want.split[k].dim;
            uint8_t at = shared_prefix(&r->have, &r->want, s->dim), n = 0;
            while (at < s->n && !(n = wanted_run(r, s->dim, at, to)))
                at++;
            if (n == 0 || (at + n < s->n && !buried))
                continue;
            shorten_split(r, s->dim, (uint8_t)(at + n));
            move_split(r, s->dim, to, n);
            return true;
        }
    return false;
}

static void all_to_all(Reshard *r)
{
    while (move_one(r, false) || move_one(r, true))
        ;
}

static void all_gather(Reshard *r)
{
    const Layout before = r->have;

    for (uint8_t i = 0; i < before.nsplit; i++) {
        char dim = before.split[i].dim;
        shorten_split(r, dim, shared_prefix(&r->have, &r->want, dim));
    }
}

static void slice(Reshard *r)
{
    for (uint8_t i = 0; i < r->want.nsplit; i++)
        extend_split(r, OP_SLICE, r->want.split[i].dim);
}

static void mask(Reshard *r)
{
    AxisSet more = r->want.partial & ~r->have.partial;

    if (more == 0)
        return;
    r->have.partial |= more;
    step(r, OP_ONLY, more, 0, 0);
}

static ValueId lower(Module *m, FuncId f, const Node *convert)
{
    Reshard r = {.m = m, .f = f, .loc = convert->loc,
                 .v = node_arg(m, convert, 0)};
    ValueId to = node_res(convert, 0);

    r.have = *layout_of(m, value_of(m, r.v)->layout);
    r.want = *layout_of(m, value_of(m, to)->layout);
    reduce_scatter(&r);
    all_to_all(&r);
    reduce_scatter(&r);
    all_reduce(&r);
    all_gather(&r);
    slice(&r);
    mask(&r);
    mc_assert(layout_intern(m, &r.have).i == value_of(m, to)->layout.i);
    value_of(m, r.v)->hint = value_of(m, to)->hint;
    return r.v;
}

static bool reshard_node(void *self, FuncId f, NodeId id, ValueMap *map)
{
    Module *m = self;
    const Node n = *node_of(m, id);

    if (n.op == OP_CONVERT)
        vmap_set(map, node_res(&n, 0), lower(m, f, &n));
    if (n.op == OP_COPY) /* all it had was a hint of its own */
        vmap_set(map, node_res(&n, 0), node_arg(m, &n, 0));
    return n.op == OP_CONVERT || n.op == OP_COPY;
}

bool pass_reshard(Module *m, const Spec *spec)
{
    (void)spec;
    for (uint32_t i = 1; i < m->funcs.n; i++)
        if (m->funcs.v[i].kind == FUNC_GRAPH)
            func_rebuild(m, (FuncId){i}, reshard_node, m);
    clean_cse(m);
    clean_dead(m);
    return true;
}
