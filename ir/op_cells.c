/* op_cells.c - the op table, and the check that every node passes.
 *
 * op_info is ops.def with its first columns filled in.  The cells live in
 * infer_cells.c (result types), verify_cells.c (the rest of the rules),
 * call_cells.c (both, for calls) and flops_cells.c.  A node is right if its
 * operands, attributes and results pass op_check and its verify cell;
 * building and verifying share this, so they cannot disagree.
 */
#include "ir/ir_priv.h"

const OpInfo op_info[OP_COUNT] = {
    [OP_NONE] = {.name = "none", .sig = "", .linear = "-"},
#define OP(NAME, text, nargs_, nres_, sig_, linear_, flags_, verify_cell,      \
           infer_cell, flops_cell, ...)                                        \
    [OP_##NAME] = {                                                            \
        .name = text,                                                          \
        .nargs = nargs_,                                                       \
        .nres = nres_,                                                         \
        .sig = sig_,                                                           \
        .linear = linear_,                                                     \
        .flags = flags_,                                                       \
        .verify = verify_##verify_cell,                                        \
        .infer = infer_##infer_cell,                                           \
        .flops = flops_##flops_cell,                                           \
    },
#include "ir/ops.def"
#undef OP
};

Op op_find(const char *name)
{
    for (int op = OP_NONE + 1; op < OP_COUNT; op++)
        if (!strcmp(op_info[op].name, name))
            return (Op)op;
    return OP_NONE;
}

/* The i-th of the parts that commas separate. */
static bool part_has(const char *part, uint32_t i, char letter)
{
    for (; i; i--) {
        part = strchr(part, ',');
        if (!part)
            return false;
        part++;
    }
    return memchr(part, letter, strcspn(part, ",-")) != NULL;
}

bool op_arg_whole(Op op, uint32_t i, char dim)
{
    return part_has(op_info[op].sig, i, (char)(dim - 'a' + 'A'));
}

bool op_res_whole(Op op, uint32_t i, char dim)
{
    const char *results = strstr(op_info[op].sig, "->");

    return results && part_has(results + 2, i, (char)(dim - 'a' + 'A'));
}

int op_results(const Module *m, Op op, AttrsId attrs)
{
    FuncId callee = attr_func(m, attrs, AK_CALLEE);
    const Attr *each = attr_find(m, attrs, AK_EACH);

    if (op_info[op].nres >= 0)
        return op_info[op].nres;
    if (op == OP_DOTS)
        return each ? (int)each->as.list.n : -1;
    return callee.i ? (int)m->funcs.v[callee.i].results.n : -1;
}

const char *op_check(Module *m, Op op, const ValueId *args, uint32_t nargs,
                     AttrsId attrs, TypeId *out)
{
    const OpInfo *info = &op_info[op];

    if (info->nargs >= 0 && (uint32_t)info->nargs != nargs)
        return wrong(m, "takes %d operands, not %u", info->nargs, nargs);
    for (uint32_t i = 0; i < nargs; i++)
        if (!args[i].i || args[i].i >= m->values.n)
            return wrong(m, "operand %u does not exist", i + 1);
    return info->infer(m, op, args, nargs, attrs, out);
}

static const char *check_results(Module *m, const Node *n, const TypeId *types)
{
    for (uint32_t i = 0; i < n->nres; i++) {
        TypeId got = value_of(m, node_res(n, i))->type;

        if (types[i].i && types[i].i != got.i)
            return wrong(m, "result %u must be %s, not %s", i + 1,
                         type_text(m, types[i]), type_text(m, got));
    }
    return NULL;
}

const char *node_check(Module *m, const Node *n)
{
    Op op = (Op)n->op;
    int nres = op_results(m, op, n->attrs);
    const ValueId *args = n->nargs ? &m->args.v[n->arg] : NULL;
    TypeId *types;
    const char *bad;

    if (nres < 0)
        return "its number of results is unknown: no `callee` or `each`";
    if (nres != n->nres)
        return wrong(m, "has %d results, not %u", nres, n->nres);
    types = arena_array(m->arena, TypeId, nres + 1);
    bad = op_check(m, op, args, n->nargs, n->attrs, types);
    if (!bad)
        bad = check_results(m, n, types);
    return bad ? bad : op_info[op].verify(m, n);
}
