/* join.c - what lies side by side in one value or tensor: the dimension j.
 *
 *     %qkv [s,b,g,j=4,d]      j 0 1   q [s,b,g,r=2,d]
 *                             j 2     k [s,b,g,d]
 *                             j 3     v [s,b,g,d]
 *
 * Weights that share an operand are one tensor, so one product serves them all.
 * `part` takes the indices of one of them out of the product, `join` is its
 * transpose.  A part of several indices names them r, a part of one drops j.
 * j is whole on every rank.
 */
#include "ir/ir_priv.h"

Span part_span(const Module *m, const Node *n)
{
    return (Span){attr_int(m, n->attrs, AK_FIRST, 0),
                  attr_int(m, n->attrs, AK_SIZE, 1),
                  (char)attr_int(m, n->attrs, AK_DIM, 0)};
}

/* How many indices an operand of `join` fills. */
static int64_t join_size(const Type *t, const char *dims)
{
    return type_dim(t, 'r') >= 0 && !strchr(dims, 'r') ? type_size(t, 'r') : 1;
}

Span join_span(const Module *m, const Node *n, uint32_t i)
{
    const char *dims = sym_text(m->names, attr_sym(m, n->attrs, AK_DIMS));
    const Type *t = value_type(m, node_arg(m, n, i));
    Span s = {.n = join_size(t, dims)};

    if (type_dim(t, 'r') >= 0 && !strchr(dims, 'r'))
        s.dim = 'r';
    for (uint32_t k = 0; k < i; k++)
        s.first += join_size(value_type(m, node_arg(m, n, k)), dims);
    return s;
}

Type type_part(const Type *t, Span s)
{
    Type out = {.dtype = t->dtype};

    for (int d = 0; d < t->ndim; d++) {
        if (t->dim[d] == 'j' && !s.dim)
            continue;
        out.dim[out.ndim] = t->dim[d] == 'j' ? s.dim : t->dim[d];
        out.size[out.ndim++] = t->dim[d] == 'j' ? s.n : t->size[d];
    }
    return out;
}

/* ---- cells --------------------------------------------------------------- */

const char *infer_part(Module *m, Op op, const ValueId *args, uint32_t nargs,
                       AttrsId attrs, TypeId *out)
{
    const Type *t = value_type(m, args[0]);
    Span s = part_span(m, &(Node){.attrs = attrs});
    Type part;

    (void)op, (void)nargs;
    if (type_dim(t, 'j') < 0)
        return "its operand needs the dimension j";
    if (s.dim ? s.dim != 'r' || type_dim(t, 'r') >= 0 : s.n != 1)
        return "indices of j are named r, or are one";
    if (s.first < 0 || s.n < 1 || s.n > type_size(t, 'j') ||
        s.first > type_size(t, 'j') - s.n)
        return "j has not so many indices";
    part = type_part(t, s);
    *out = type_intern(m, &part);
    return NULL;
}

/* Whether t has, in order, the letters of `dims` with r or nothing for j. */
static bool joins(const Type *t, const char *dims)
{
    int at = 0;

    for (const char *c = dims; *c; c++) {
        if (*c == 'j' && (at == t->ndim || t->dim[at] != 'r'))
            continue;
        if (at == t->ndim || t->dim[at] != (*c == 'j' ? 'r' : *c))
            return false;
        at++;
    }
    return at == t->ndim;
}

/* The sizes of `dims`, all operands having the same. */
static const char *join_sizes(Module *m, const ValueId *args, uint32_t nargs,
                              const char *dims, int64_t *out_size)
{
    const Type *first = value_type(m, args[0]);

    for (size_t d = 0; dims[d]; d++)
        out_size[d] = dims[d] == 'j' ? 0 : type_size(first, dims[d]);
    for (uint32_t i = 0; i < nargs; i++) {
        const Type *t = value_type(m, args[i]);

        if (!joins(t, dims) || t->dtype != first->dtype)
            return wrong(m, "operand %u does not fit in", i + 1);
        for (size_t d = 0; dims[d]; d++) {
            if (dims[d] == 'j')
                out_size[d] += join_size(t, dims);
            else if (out_size[d] != type_size(t, dims[d]))
                return wrong(m, "the operands' sizes of %c differ", dims[d]);
        }
    }
    return NULL;
}

const char *infer_join(Module *m, Op op, const ValueId *args, uint32_t nargs,
                       AttrsId attrs, TypeId *out)
{
    const Attr *a = attr_find(m, attrs, AK_DIMS);
    const char *dims = a ? sym_text(m->names, a->as.sym) : "";
    int64_t size[IR_MAX_DIMS];
    const char *bad;

    (void)op;
    if (!dims_legal(dims) || !strchr(dims, 'j') || strchr(dims, 'r'))
        return "needs legal `dims` with j, without r";
    if (nargs < 1)
        return "needs operands";
    bad = join_sizes(m, args, nargs, dims, size);
    if (!bad)
        *out = type_make(m, value_type(m, args[0])->dtype, dims, size);
    return bad;
}
