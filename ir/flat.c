/* flat.c - tensors that lie in memory as lines [n, w].
 *
 *     w [h=3, f=4] {f@tp}, over two ranks of tp and three replicas
 *
 *         tp 0             lines                  tp 1           lines
 *         | 0  1 |    | 0 1 |  replica 0          | 2  3 |    | 2  3 |
 *         | 4  5 |    | 4 5 |  replica 1          | 6  7 |    | 6  7 |
 *         | 8  9 |    | 8 9 |  replica 2          |10 11 |    |10 11 |
 *
 * Whatever the sizes of its dimensions, a tensor can so be shared out evenly:
 * zeros fill up the last line.  n is split as the tensor is where it is used,
 * the atoms of all dimensions one after another, then over replicas; to gather
 * and to scatter is to move whole runs of lines.
 *
 * `flatten` and `unflatten` go between the lines that a rank needs and what it
 * computes with: the same elements in the same order.
 */
#include "ir/ir_priv.h"

TypeId tensor_stored(const Tensor *t)
{
    return t->flat.i ? t->flat : t->type;
}

Layout tensor_layout(const Module *m, const Tensor *t, Field f)
{
    Layout l = *layout_of(m, t->rest[f]);
    Layout use = *layout_of(m, t->use);

    if (!t->flat.i)
        return l;
    use.partial = l.partial;
    return use;
}

bool flat_is_shared(const Module *m, const Tensor *t, Field f)
{
    uint8_t atoms[IR_MAX_ATOMS];
    const Split *n = layout_split(layout_of(m, t->rest[f]), 'n');

    return t->flat.i && n &&
           n->n > layout_atoms(type_of(m, t->type), layout_of(m, t->use),
                               atoms);
}

LayoutId flat_gathered(Module *m, const Tensor *t, LayoutId rest)
{
    uint8_t atoms[IR_MAX_ATOMS];
    uint8_t n =
        layout_atoms(type_of(m, t->type), layout_of(m, t->use), atoms);
    Layout l = *layout_of(m, rest);

    layout_set_split(&l, 'n', atoms, n);
    return layout_intern(m, &l);
}

/* Takes the number of a part of dimension `dim` from that of a rank's part of
 * the tensor, in which later dimensions are less significant. */
static int64_t take_part(const Module *m, const Layout *use, char dim,
                         int64_t *part)
{
    int64_t parts = split_parts(&m->mesh, layout_split(use, dim));
    int64_t i = *part % parts;

    *part /= parts;
    return i;
}

int64_t flat_index(const Module *m, const Tensor *t, int64_t i)
{
    const Type *type = type_of(m, t->type);
    const Layout *use = layout_of(m, t->use);
    int64_t elems = layout_local_elems(m, type, use);
    int64_t row = type_elems(type_of(m, t->flat)) / (type_elems(type) / elems);
    int64_t part = i / row, rest = i % row, index = 0, weight = 1;

    if (rest >= elems)
        return -1;
    for (int d = type->ndim - 1; d >= 0; d--) {
        int64_t size = layout_local(m, type, use, type->dim[d]);
        int64_t first = take_part(m, use, type->dim[d], &part) * size;

        index += (first + rest % size) * weight;
        rest /= size;
        weight *= type->size[d];
    }
    return index;
}

ValueId flat_source(const Module *m, ValueId v)
{
    const Node *n = &m->nodes.v[m->values.v[v.i].def.i];

    return n->op == OP_UNFLATTEN ? node_arg(m, n, 0) : v;
}

/* ---- cells --------------------------------------------------------------- */

/* The node states its type itself: lines do not say what they are. */
const char *infer_flat(Module *m, Op op, const ValueId *args, uint32_t nargs,
                       AttrsId attrs, TypeId *out)
{
    (void)m, (void)op, (void)args, (void)nargs, (void)attrs;
    *out = (TypeId){0};
    return NULL;
}

const char *verify_flat(Module *m, const Node *n)
{
    ValueId arg = node_arg(m, n, 0);
    const Type *lines = value_type(m, n->op == OP_FLATTEN ? n->res : arg);
    const Type *other = value_type(m, n->op == OP_FLATTEN ? arg : n->res);

    if (lines->ndim != 2 || lines->dim[0] != 'n' || lines->dim[1] != 'w' ||
        type_elems(lines) < type_elems(other))
        return "needs lines [n, w] with room for the value";
    return lines->dtype == other->dtype ? NULL
                                        : "its operand is of another dtype";
}
