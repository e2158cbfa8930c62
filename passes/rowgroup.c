/* rowgroup.c - which nodes can be one row program.
 *
 * A row program runs over rows; the dimensions of a group's values fall into
 * outer ones, which number the rows, and inner ones, which lie within a row.
 *
 *     x[s,b,h]                     outer: s, b      inner: h
 *     t = sum (mul x x) -> [s,b]   a reduction of the row: phase 1 may use it
 *     y = mul x (rsqrt t)
 *     d = sum (mul y x) -> [h]     over rows: late, only after all of them
 *
 * A reduction whose result meets the reduced dimension again must lie within a
 * row; if there is none, the last dimension makes the row.  All reductions
 * within a row take all of its dimensions, and what depends on a reduction
 * over rows is pointwise.
 */
#include "passes/rowgroup.h"

enum { MAX_DIMS = 12 };

typedef struct {
    ValueId id;
    const Node *def;  /* NULL: an operand of the group */
    uint32_t dims, removed; /* letters; reduced on the way to this value */
    uint32_t phase;   /* reductions of the row on the longest way to it */
    bool late, rotated;
} Member;

typedef struct {
    const Module *m;
    Vec(Member) values;
    int64_t size[26]; /* by letter; 0: not seen */
    char order[MAX_DIMS + 1]; /* as memory lies: of the widest value first */
    uint32_t ndims, inner;
} Group;

/* ---- letters ------------------------------------------------------------ */

static uint32_t bit(char letter)
{
    return 1u << (letter - 'a');
}

static int64_t local_size(const Module *m, ValueId v, char letter)
{
    LayoutId l = m->values.v[v.i].layout;

    return l.i ? layout_local(m, value_type(m, v), layout_of(m, l), letter)
               : type_size(value_type(m, v), letter);
}

uint32_t rowgroup_dims(const Module *m, ValueId v)
{
    const Type *t = value_type(m, v);
    uint32_t dims = 0;

    for (int d = 0; d < t->ndim; d++)
        if (local_size(m, v, t->dim[d]) > 1)
            dims |= bit(t->dim[d]);
    return dims;
}

uint32_t rowgroup_space(const Module *m, const Node *n)
{
    uint32_t dims = 0;

    for (uint32_t i = 0; i < n->nargs; i++)
        dims |= rowgroup_dims(m, node_arg(m, n, i));
    for (uint32_t i = 0; i < n->nres; i++)
        dims |= rowgroup_dims(m, node_res(n, i));
    return dims;
}

/* ---- collecting --------------------------------------------------------- */

static Member *member_find(Group *g, ValueId v)
{
    for (uint32_t i = 0; i < g->values.n; i++)
        if (g->values.v[i].id.i == v.i)
            return &g->values.v[i];
    return NULL;
}

static void member_add(Group *g, ValueId v, const Node *def)
{
    if (!member_find(g, v))
        vec_push(&g->values, ((Member){.id = v, .def = def,
                                       .dims = rowgroup_dims(g->m, v)}));
}

static void members_collect(Group *g, const NodeId *node, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const Node *def = &g->m->nodes.v[node[i].i];

        for (uint32_t k = 0; k < def->nargs; k++)
            member_add(g, node_arg(g->m, def, k), NULL);
        for (uint32_t k = 0; k < def->nres; k++)
            member_add(g, node_res(def, k), def);
    }
}

/* Adds the letters of v; false if one has another size elsewhere. */
static bool letters_add(Group *g, ValueId v)
{
    const Type *t = value_type(g->m, v);

    for (int d = 0; d < t->ndim; d++) {
        int64_t size = local_size(g->m, v, t->dim[d]);
        int64_t *known = &g->size[t->dim[d] - 'a'];

        if (*known && *known != size)
            return false;
        if (!*known && size > 1 && g->ndims < MAX_DIMS)
            g->order[g->ndims++] = t->dim[d];
        *known = size;
    }
    return true;
}

static bool letters_collect(Group *g)
{
    uint32_t widest = 0;
    bool agree = true;

    for (uint32_t i = 1; i < g->values.n; i++)
        if (value_type(g->m, g->values.v[i].id)->ndim >
            value_type(g->m, g->values.v[widest].id)->ndim)
            widest = i;
    if (g->values.n)
        agree = letters_add(g, g->values.v[widest].id);
    for (uint32_t i = 0; i < g->values.n; i++)
        agree = agree && letters_add(g, g->values.v[i].id);
    return agree;
}

/* ---- rows --------------------------------------------------------------- */

static bool is_reduction(const Member *v)
{
    return v->def && (v->def->op == OP_SUM || v->def->op == OP_MAX);
}

static const Member *operand(Group *g, const Member *v, uint32_t i)
{
    return member_find(g, node_arg(g->m, v->def, i));
}

static uint32_t reduced(Group *g, const Member *v)
{
    return operand(g, v, 0)->dims & ~v->dims;
}

/* The letters that must lie within a row. */
static uint32_t inner_required(Group *g)
{
    uint32_t inner = 0;

    for (uint32_t i = 0; i < g->values.n; i++) {
        Member *v = &g->values.v[i];

        for (uint32_t k = 0; v->def && k < v->def->nargs; k++)
            v->removed |= operand(g, v, k)->removed;
        inner |= v->removed & v->dims;
        if (is_reduction(v))
            v->removed |= reduced(g, v);
        if (v->def && v->def->op == OP_ROTATE && g->size['d' - 'a'] > 1)
            inner |= bit('d');
    }
    return inner;
}

static void inner_choose(Group *g)
{
    g->inner = inner_required(g);
    if (!g->inner && g->ndims)
        g->inner = bit(g->order[g->ndims - 1]);
}

/* The last of the inner letters. */
static char fastest(const Group *g)
{
    for (uint32_t i = g->ndims; i-- > 0;)
        if (g->inner & bit(g->order[i]))
            return g->order[i];
    return 0;
}

/* ---- what cannot be ----------------------------------------------------- */

static bool is_column(Group *g, const Member *v)
{
    return is_reduction(v) && (reduced(g, v) & ~g->inner);
}

static void member_place(Group *g, Member *v)
{
    bool row = is_reduction(v) && reduced(g, v) && !is_column(g, v);

    v->rotated = v->def->op == OP_ROTATE;
    v->late = is_column(g, v);
    for (uint32_t k = 0; k < v->def->nargs; k++) {
        const Member *arg = operand(g, v, k);

        v->phase = MC_MAX(v->phase, arg->phase);
        v->late = v->late || arg->late;
        v->rotated = v->rotated || arg->rotated;
    }
    v->phase += row;
    v->rotated = v->rotated && !row;
}

static const char *late_refusal(Group *g, const Member *v)
{
    if (is_reduction(v) || v->def->op == OP_ROTATE)
        return "a reduction of what was reduced over rows";
    for (uint32_t k = 0; k < v->def->nargs; k++)
        if (!operand(g, v, k)->late && operand(g, v, k)->phase)
            return "a sum over rows meets a value of a row";
    return NULL;
}

static const char *member_refusal(Group *g, const Member *v)
{
    bool rotate = v->def->op == OP_ROTATE && v->dims;

    if (is_reduction(v) && reduced(g, v) && !is_column(g, v) &&
        reduced(g, v) != g->inner)
        return "reductions of a row over different dimensions";
    if (rotate && operand(g, v, 0)->rotated)
        return "a rotation of a rotation";
    if (rotate && fastest(g) != 'd')
        return "a rotation along another dimension than the row's fastest";
    if (is_column(g, v) && operand(g, v, 0)->late)
        return "a reduction of what was reduced over rows";
    return v->late && !is_column(g, v) ? late_refusal(g, v) : NULL;
}

static const char *group_refusal(Group *g)
{
    const char *why = NULL;

    if (!letters_collect(g))
        return "a dimension of two sizes";
    inner_choose(g);
    for (uint32_t i = 0; i < g->values.n && !why; i++)
        if (g->values.v[i].def) {
            member_place(g, &g->values.v[i]);
            why = member_refusal(g, &g->values.v[i]);
        }
    return why;
}

const char *rowgroup_refusal(const Module *m, const NodeId *node, uint32_t n)
{
    Group g = {.m = m};
    const char *why;

    for (uint32_t i = 0; i < n; i++)
        if (!(op_info[m->nodes.v[node[i].i].op].flags & OPF_ROW))
            return "an op that is no part of row programs";
    members_collect(&g, node, n);
    why = group_refusal(&g);
    vec_free(&g.values);
    return why;
}
