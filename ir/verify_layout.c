/* verify_layout.c - layouts by themselves, and the layouts around a node.
 *
 * Once resharded, a node computes its local result from local operands alone.
 * For ops with a signature this comes down to:
 *
 *   - a letter is split alike in all operands and results that have it;
 *   - a letter that a result lacks is summed over: its atoms, and those over
 *     which an operand is a partial sum, are what the result is partial over;
 *   - where a letter is upper-case it is not split, and a result sums over it
 *     if operands split it;
 *   - an operand is partial only where the op is linear in it.
 *
 * State rests in the layout of its field, and values pass into and out of
 * functions unchanged.
 */
#include "ir/ir_priv.h"

/* ---- one layout ---------------------------------------------------------- */

/* Do two atoms share a digit of the rank? */
static bool atoms_overlap(const Atom *a, const Atom *b)
{
    return a->stride < b->stride * b->size && b->stride < a->stride * a->size;
}

/* Counts an atom as used by the layout. */
static const char *use_atom(const Module *m, uint32_t atom, AxisSet *used)
{
    if (atom >= m->mesh.atoms.n)
        return "its layout names an atom that the mesh lacks";
    for (uint32_t i = 0; i < m->mesh.atoms.n; i++)
        if ((*used >> i & 1) &&
            (i == atom || atoms_overlap(&m->mesh.atoms.v[i],
                                        &m->mesh.atoms.v[atom])))
            return wrong(m, "its layout uses axis %s twice",
                         sym_text(m->names, m->mesh.atoms.v[atom].axis));
    *used |= (AxisSet)1 << atom;
    return NULL;
}

static const char *use_atoms(const Module *m, AxisSet set, AxisSet *used)
{
    const char *bad = NULL;

    for (uint32_t i = 0; i < 32 && !bad; i++)
        if (set >> i & 1)
            bad = use_atom(m, i, used);
    return bad;
}

static const char *split_problem(const Module *m, const Type *t, const Split *s,
                                 AxisSet *used)
{
    const char *bad = NULL;

    if (type_dim(t, s->dim) < 0)
        return wrong(m, "its layout splits %c, which it lacks", s->dim);
    for (uint8_t i = 0; i < s->n && !bad; i++)
        bad = use_atom(m, s->atom[i], used);
    if (!bad && type_size(t, s->dim) % split_parts(&m->mesh, s))
        bad = wrong(m, "size %lld of %c does not split into %lld",
                    (long long)type_size(t, s->dim), s->dim,
                    (long long)split_parts(&m->mesh, s));
    return bad;
}

const char *layout_problem(const Module *m, const Type *t, const Layout *l)
{
    AxisSet used = 0;
    const char *bad = NULL;

    for (uint32_t i = 0; i < l->nsplit && !bad; i++)
        bad = split_problem(m, t, &l->split[i], &used);
    bad = bad ? bad : use_atoms(m, l->partial, &used);
    return bad ? bad : use_atoms(m, l->partial_max, &used);
}

/* ---- ops with a signature ------------------------------------------------ */

/* What the values around a node agree on so far, by letter. */
typedef struct {
    const Split *split[26];
    bool seen[26];
} Agreed;

static const Layout *value_layout(const Module *m, ValueId v)
{
    return layout_of(m, m->values.v[v.i].layout);
}

static const char *agree(const Module *m, Agreed *all, const Type *t,
                         const Layout *l)
{
    for (int i = 0; i < t->ndim; i++) {
        int letter = t->dim[i] - 'a';
        const Split *s = layout_split(l, t->dim[i]);

        if (all->seen[letter] && !split_equal(all->split[letter], s))
            return wrong(m, "its values split %c differently", t->dim[i]);
        all->seen[letter] = true;
        all->split[letter] = s;
    }
    return NULL;
}

/* The same for operand or result i, without the letters that are whole there
 * and must be. */
static const char *agree_part(const Module *m, Agreed *all, const Node *n,
                              uint32_t i, bool result)
{
    ValueId v = result ? node_res(n, i) : node_arg(m, n, i);
    Type t = *value_type(m, v);
    uint8_t kept = 0;

    for (uint8_t k = 0; k < t.ndim; k++) {
        bool whole = result ? op_res_whole((Op)n->op, i, t.dim[k])
                            : op_arg_whole((Op)n->op, i, t.dim[k]);
        if (whole && layout_split(value_layout(m, v), t.dim[k]))
            return wrong(m, "%c must be whole on a rank", t.dim[k]);
        if (!whole)
            t.dim[kept++] = t.dim[k];
    }
    t.ndim = kept;
    return agree(m, all, &t, value_layout(m, v));
}

static bool is_maximum(const Node *n)
{
    return op_info[n->op].sig[0] == '^';
}

static char linearity(const Node *n, uint32_t i)
{
    const char *linear = op_info[n->op].linear;
    size_t last = strlen(linear) - 1;

    return linear[MC_MIN(i, last)];
}

/* The atoms over which operands are partial sums; they must be allowed to. */
static const char *gather_partial(const Module *m, const Node *n, AxisSet *out)
{
    AxisSet joint = 0, single = 0;
    bool first = true;

    for (uint32_t i = 0; i < n->nargs; i++) {
        const Layout *l = value_layout(m, node_arg(m, n, i));
        char kind = linearity(n, i);

        if (l->partial_max && !is_maximum(n))
            return wrong(m, "operand %u is only a partial maximum", i + 1);
        if (l->partial && (kind == '-' || (kind == 's' && single)))
            return wrong(m, "operand %u is only a partial sum", i + 1);
        if (kind == 'j' && !first && l->partial != joint)
            return "its operands are partial sums over different axes";
        joint = kind == 'j' ? l->partial : joint;
        first = first && kind != 'j';
        single |= kind == 's' ? l->partial : 0;
    }
    *out = joint | single;
    return NULL;
}

/* Atoms of the letters that the operands have and `t` lacks. */
static AxisSet summed_atoms(const Module *m, const Agreed *operands,
                            const Type *t)
{
    AxisSet set = 0;

    for (int i = 0; i < 26; i++)
        if (operands->split[i] && !type_covers(t, (char)('a' + i)))
            set |= split_axes(&m->mesh, operands->split[i]);
    return set;
}

/* … or that result k has whole. */
static AxisSet summed_in_result(const Module *m, const Agreed *operands,
                                const Node *n, uint32_t k)
{
    AxisSet set = summed_atoms(m, operands, value_type(m, node_res(n, k)));

    for (int i = 0; i < 26; i++)
        if (operands->split[i] &&
            op_res_whole((Op)n->op, k, (char)('a' + i)))
            set |= split_axes(&m->mesh, operands->split[i]);
    return set;
}

static const char *check_result(const Module *m, const Node *n, uint32_t k,
                                const Agreed *operands, AxisSet partial)
{
    ValueId res = node_res(n, k);
    const Layout *l = value_layout(m, res);
    AxisSet summed = summed_in_result(m, operands, n, k);
    AxisSet max = 0;

    if (is_maximum(n)) {
        max = summed | value_layout(m, node_arg(m, n, 0))->partial_max;
        max |= op_info[n->op].flags & OPF_STAGE ? mesh_stage(m) : 0;
        summed = 0;
    }
    if (l->partial != (partial | summed))
        return wrong(m, "result %u is a partial sum over other axes", k + 1);
    if (l->partial_max != max)
        return wrong(m, "result %u is a partial maximum over other axes",
                     k + 1);
    return NULL;
}

/* Slots lie where the tokens lie that fill them. */
static const char *check_slots(const Module *m, const Agreed *all)
{
    Layout l = {0};

    if (!all->seen['c' - 'a'] || !all->seen['s' - 'a'])
        return NULL;
    for (const char *dim = "sb"; *dim; dim++)
        if (all->split[*dim - 'a'])
            layout_set_split(&l, *dim, all->split[*dim - 'a']->atom,
                             all->split[*dim - 'a']->n);
    layout_set_slots(m, &l);
    return split_equal(all->split['c' - 'a'], layout_split(&l, 'c'))
               ? NULL
               : "its slots are not split as its tokens";
}

static const char *check_signature(const Module *m, const Node *n)
{
    Agreed all = {0}, operands;
    AxisSet partial = 0;
    const char *bad = NULL;

    for (uint32_t i = 0; i < n->nargs && !bad; i++)
        bad = agree_part(m, &all, n, i, false);
    operands = all;
    for (uint32_t i = 0; i < n->nres && !bad; i++)
        bad = agree_part(m, &all, n, i, true);
    bad = bad ? bad : check_slots(m, &all);
    bad = bad ? bad : gather_partial(m, n, &partial);
    for (uint32_t i = 0; i < n->nres && !bad; i++)
        bad = check_result(m, n, i, &operands, partial);
    return bad;
}

/* ---- several products in one node ---------------------------------------- */

/* The sum of x and y over what `type` lacks, laid out as `l`. */
static const char *check_product(const Module *m, ValueId x, ValueId y,
                                 const Type *type, const Layout *l)
{
    const Layout *a = value_layout(m, x), *b = value_layout(m, y);
    Agreed all = {0}, operands;
    const char *bad = agree(m, &all, value_type(m, x), a);

    bad = bad ? bad : agree(m, &all, value_type(m, y), b);
    operands = all;
    bad = bad ? bad : agree(m, &all, type, l);
    if (bad)
        return bad;
    if ((a->partial && b->partial) || a->partial_max || b->partial_max)
        return "both operands of a product are only partial";
    return l->partial == (summed_atoms(m, &operands, type) | a->partial |
                          b->partial) &&
                   !l->partial_max
               ? NULL
               : "a product is a partial sum over other axes";
}

static const char *check_dots(const Module *m, const Node *n, uint32_t i)
{
    return check_product(m, node_arg(m, n, 0), node_arg(m, n, i + 1),
                         value_type(m, node_res(n, i)),
                         value_layout(m, node_res(n, i)));
}

static const char *check_dots_sum(const Module *m, const Node *n, uint32_t i)
{
    return check_product(m, node_arg(m, n, i), node_arg(m, n, n->nargs / 2 + i),
                         value_type(m, n->res), value_layout(m, n->res));
}

static const char *check_dots_accum(const Module *m, const Node *n, uint32_t i)
{
    const Attr *list = attr_find(m, n->attrs, AK_TENSORS);
    const Tensor *t = &m->tensors.v[m->list.v[list->as.list.first + i]];
    Layout grad = tensor_layout(m, t, FIELD_GRAD);

    if (flat_is_shared(m, t, FIELD_GRAD))
        return "adds to a gradient of which a rank has a share";
    return check_product(m, node_arg(m, n, i), node_arg(m, n, n->nargs - 1u),
                         type_of(m, t->type), &grad);
}

static const char *check_products(const Module *m, const Node *n)
{
    uint32_t count = n->op == OP_DOTS       ? n->nres
                     : n->op == OP_DOTS_SUM ? n->nargs / 2u
                                            : n->nargs - 1u;
    const char *bad = n->op == OP_DOTS ? epilogue_layout_problem(m, n) : NULL;

    for (uint32_t i = 0; i < count && !bad; i++)
        bad = n->op == OP_DOTS       ? check_dots(m, n, i)
              : n->op == OP_DOTS_SUM ? check_dots_sum(m, n, i)
                                     : check_dots_accum(m, n, i);
    return bad;
}

/* ---- state and calls ----------------------------------------------------- */

static const char *check_rest(const Module *m, const Node *n)
{
    const Tensor *t = &m->tensors.v[attr_tensor(m, n->attrs, AK_TENSOR).i];
    Field f = (Field)attr_int(m, n->attrs, AK_FIELD, 0);
    ValueId v = n->op == OP_READ ? n->res : node_arg(m, n, 0);
    bool shaped = t->flat.i && !attr_int(m, n->attrs, AK_FLAT, 0);
    Layout rest =
        shaped ? tensor_layout(m, t, f) : *layout_of(m, t->rest[f]);

    if (shaped && flat_is_shared(m, t, f))
        return "takes for whole what a rank has a share of";
    return layout_equal(value_layout(m, v), &rest)
               ? NULL
               : "its layout is not that in which the field rests";
}

/* n is split as the dimensions of the other value are, one after another. */
static const char *check_flat(const Module *m, const Node *n)
{
    ValueId arg = node_arg(m, n, 0);
    bool flattens = n->op == OP_FLATTEN;
    const Layout *lines = value_layout(m, flattens ? n->res : arg);
    const Type *type = value_type(m, flattens ? arg : n->res);
    const Layout *other = value_layout(m, flattens ? arg : n->res);
    Layout want = {.partial = other->partial};
    uint8_t atoms[IR_MAX_ATOMS], count = layout_atoms(type, other, atoms);

    layout_set_split(&want, 'n', atoms, count);
    return layout_equal(lines, &want) ? NULL
                                      : "its lines are not split as the value";
}

/* What communicates inside a call meets the same of other ranks, so all of them
 * must run as many iterations: the number is complete on each. */
static bool trips_agree(const Module *m, const Node *n)
{
    int i = n->op == OP_CALL ? call_trips(m, n) : -1;
    const Layout *l;

    if (i < 0)
        return true;
    l = value_layout(m, node_arg(m, n, (uint32_t)i));
    return !l->partial && !l->partial_max;
}

/* A mapped dimension that disappears inside must not be split outside, so
 * layouts agree whatever the mode. */
static const char *check_callee(const Module *m, const Node *n)
{
    const Func *f = &m->funcs.v[attr_func(m, n->attrs, AK_CALLEE).i];

    if (!trips_agree(m, n))
        return "ranks do not agree on its number of trips";
    for (uint32_t i = 0; i < n->nargs; i++) {
        LayoutId inner = m->values.v[f->params.v[i].i].layout;

        if (inner.i && m->values.v[node_arg(m, n, i).i].layout.i != inner.i)
            return wrong(m, "operand %u is not laid out as its parameter",
                         i + 1);
    }
    for (uint32_t i = 0; i < n->nres; i++) {
        LayoutId inner = m->values.v[f->results.v[i].i].layout;

        if (inner.i && m->values.v[node_res(n, i).i].layout.i != inner.i)
            return wrong(m, "result %u is not laid out as its callee's", i + 1);
    }
    return NULL;
}

/* A rank's part is exactly what goes to the next. */
static const char *check_shift(const Module *m, const Node *n)
{
    const Split *s = layout_split(value_layout(m, n->res),
                                  (char)attr_int(m, n->attrs, AK_DIM, 0));

    return s && split_axes(&m->mesh, s) == attr_axes(m, n->attrs, AK_AXES)
               ? check_signature(m, n)
               : "its dimension is not split over its axes";
}

/* Values inside a row program need no layouts. */
static bool has_layouts(const Module *m, const Node *n)
{
    for (uint32_t i = 0; i < n->nargs; i++)
        if (!m->values.v[node_arg(m, n, i).i].layout.i)
            return false;
    for (uint32_t i = 0; i < n->nres; i++)
        if (!m->values.v[node_res(n, i).i].layout.i)
            return false;
    return true;
}

const char *node_layout_problem(const Module *m, const Node *n)
{
    if (!has_layouts(m, n))
        return NULL;
    switch ((Op)n->op) {
    case OP_CALL:
    case OP_ROW:
        return check_callee(m, n);
    case OP_READ:
    case OP_WRITE:
    case OP_ACCUM:
        return check_rest(m, n);
    case OP_FLATTEN:
    case OP_UNFLATTEN:
        return check_flat(m, n);
    case OP_DOTS:
    case OP_DOTS_SUM:
    case OP_DOTS_ACCUM:
        return check_products(m, n);
    case OP_ALL_REDUCE:
    case OP_ALL_REDUCE_MAX:
    case OP_ALL_GATHER:
    case OP_REDUCE_SCATTER:
    case OP_ALL_TO_ALL:
    case OP_SLICE:
    case OP_ONLY:
        return comm_layout_problem(m, n);
    case OP_SHIFT:
        return check_shift(m, n);
    case OP_CONVERT:
        return "is left over: `reshard` turns it into collectives";
    default:
        return *op_info[n->op].sig ? check_signature(m, n) : NULL;
    }
}
