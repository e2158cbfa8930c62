/* layout.c - a layout for every value, from those of the weights.
 *
 *   %y = dot %x{s@tp}, %w{f@tp}     →    %x1 = convert %x{s@tp} to {}
 *                                        %y  = dot %x1, %w : {f@tp}
 *
 * Values are visited in order of execution; a callee is laid out at its call.
 * At each node the splits of its operands compete for the atoms of the mesh,
 * dimension by dimension: first what the result will be accumulated into, then
 * the operands, weights before activations, dimensions of the result before
 * contracted ones.  Operands that differ from what was chosen are converted.
 *
 * Partial sums are kept as long as ops are linear in them, so that a gradient
 * is reduced once, where it rests.  A value with a hint takes the hint's layout
 * as soon as it exists; that is the only place where one is imposed.
 */
#include "passes/layout_priv.h"

static const Layout *layout_at(const Module *m, ValueId v)
{
    return layout_of(m, m->values.v[v.i].layout);
}

/* The splits of `l` that a value of type `t` has, and none of its sums. */
static Layout restricted(const Layout *l, const Type *t)
{
    Layout out = {0};

    for (uint8_t i = 0; i < l->nsplit; i++)
        if (type_dim(t, l->split[i].dim) >= 0)
            layout_set_split(&out, l->split[i].dim, l->split[i].atom,
                             l->split[i].n);
    return out;
}

/* ---- conversions --------------------------------------------------------- */

static bool is_generator(const Module *m, ValueId v)
{
    Op op = (Op)m->nodes.v[m->values.v[v.i].def.i].op;

    return (op_info[op].flags & OPF_GENERATOR) != 0;
}

/* A generated value is made again in the layout wanted. */
static ValueId regenerate(Place *p, ValueId v, LayoutId to)
{
    Module *m = p->m;
    ValueMap map = {0};
    NodeId def = value_of(m, v)->def, copy;

    for (uint32_t i = 0; i < node_of(m, def)->nargs; i++) {
        ValueId arg = node_arg(m, node_of(m, def), i);
        Layout l = restricted(layout_of(m, to), value_type(m, arg));
        vmap_set(&map, arg, place_convert(p, arg, layout_intern(m, &l)));
    }
    copy = node_copy(m, p->f, def, &map);
    vmap_free(&map);
    v = node_res(node_of(m, copy), 0);
    value_of(m, v)->layout = to;
    return v;
}

ValueId place_convert(Place *p, ValueId v, LayoutId to)
{
    Module *m = p->m;
    const Value old = *value_of(m, v);
    Conversion c = {v, v, to};
    NodeId n;

    if (old.layout.i == to.i)
        return v;
    for (uint32_t i = 0; i < p->made.n; i++)
        if (p->made.v[i].from.i == v.i && p->made.v[i].layout.i == to.i)
            return p->made.v[i].to;
    if (is_generator(m, v)) {
        c.to = regenerate(p, v, to);
    } else {
        Loc loc = node_of(m, old.def)->loc;
        n = node_new(m, p->f, OP_CONVERT, &v, 1, (AttrsId){0}, &old.type, 1,
                     loc);
        c.to = node_res(node_of(m, n), 0);
        value_of(m, c.to)->layout = to;
        value_of(m, c.to)->name = old.name;
    }
    vec_push(&p->made, c);
    return c.to;
}

/* ---- which atoms split which dimension ----------------------------------- */

typedef struct {
    Layout want;  /* splits chosen so far, over all letters of the node */
    AxisSet used; /* their atoms */
} Choice;

/* Takes what is left of a split: its leading atoms that no other has taken. */
static void take(Place *p, Choice *c, const Split *s)
{
    Split left = *s;

    if (layout_split(&c->want, s->dim))
        return;
    left.n = 0;
    while (left.n < s->n && !(c->used >> s->atom[left.n] & 1))
        left.n++;
    layout_set_split(&c->want, s->dim, s->atom, left.n);
    c->used |= split_axes(&p->m->mesh, &left);
}

static bool in_results(const Module *m, const Node *n, char dim)
{
    for (uint32_t i = 0; i < n->nres; i++)
        if (type_dim(value_type(m, node_res(n, i)), dim) >= 0)
            return true;
    return false;
}

static bool in_operands(const Module *m, const Node *n, char dim)
{
    for (uint32_t i = 0; i < n->nargs; i++)
        if (type_dim(value_type(m, node_arg(m, n, i)), dim) >= 0)
            return true;
    return false;
}

/* A parameter, perhaps gathered from its shares. */
static bool is_weight(const Module *m, ValueId v)
{
    const Node *n = &m->nodes.v[m->values.v[v.i].def.i];

    return n->op == OP_READ ||
           ((n->op == OP_CONVERT || n->op == OP_UNFLATTEN) &&
            is_weight(m, node_arg(m, n, 0)));
}

/* Ops that fill an expert's slots with tokens, or empty them. */
static bool has_slots(const Node *n)
{
    return strchr(op_info[n->op].sig, 'c') != NULL;
}

/* The choice of experts alone says where the tokens of such an op lie: slots
 * filled under one split of the tokens mean nothing under another. */
static bool may_split(const Node *n, uint32_t operand, char dim)
{
    if (op_arg_whole((Op)n->op, operand, dim))
        return false;
    return !has_slots(n) || operand == 0 || !strchr("sbc", dim);
}

static void take_operands(Place *p, const Node *n, Choice *c, bool weights,
                          bool free)
{
    for (uint32_t i = 0; i < n->nargs; i++) {
        ValueId v = node_arg(p->m, n, i);
        const Layout *l = layout_at(p->m, v);
        if (is_weight(p->m, v) != weights || is_generator(p->m, v))
            continue;
        for (uint8_t k = 0; k < l->nsplit; k++)
            if (in_results(p->m, n, l->split[k].dim) == free &&
                may_split(n, i, l->split[k].dim))
                take(p, c, &l->split[k]);
    }
}

/* Dimensions that the op creates are split as the tensor that will take the
 * result in: a table's gradient by rows of the table. */
static void take_goal(Place *p, const Node *n, Choice *c)
{
    uint32_t goal;
    Layout l;

    if (n->nres != 1 || node_res(n, 0).i >= p->goal.n)
        return;
    goal = p->goal.v[node_res(n, 0).i];
    if (goal == 0)
        return;
    l = tensor_layout(p->m, &p->m->tensors.v[goal], FIELD_PARAM);
    for (uint8_t k = 0; k < l.nsplit; k++)
        if (!in_operands(p->m, n, l.split[k].dim) &&
            !op_res_whole((Op)n->op, 0, l.split[k].dim))
            take(p, c, &l.split[k]);
}

static Choice choose(Place *p, const Node *n)
{
    Choice c = {0};

    take_goal(p, n, &c);
    take_operands(p, n, &c, true, true);
    take_operands(p, n, &c, false, true);
    take_operands(p, n, &c, true, false);
    take_operands(p, n, &c, false, false);
    if (has_slots(n))
        layout_set_slots(p->m, &c.want);
    return c;
}

/* ---- partial sums -------------------------------------------------------- */

static char linearity(const Node *n, uint32_t i)
{
    const char *lin = op_info[n->op].linear;
    size_t len = strlen(lin);

    return i < len ? lin[i] : lin[len - 1];
}

AxisSet place_sum(const Module *m, ValueId v)
{
    const Layout *l = layout_at(m, v);

    return l->partial_max ? 0 : l->partial;
}

/* Over which atoms every operand of a jointly linear op can be a partial sum.
 * Sums over different sets are reconciled by masking (the op `only`), scalars
 * too; a complete tensor among them asks for completion instead. */
static AxisSet joint_sum(Place *p, const Node *n)
{
    AxisSet all = 0;

    for (uint32_t i = 0; i < n->nargs; i++) {
        ValueId v = node_arg(p->m, n, i);
        AxisSet sum = place_sum(p->m, v);
        if (sum == 0 && value_type(p->m, v)->ndim > 0)
            return 0;
        all |= sum;
    }
    return all;
}

/* The atoms over which operand i may stay a partial sum, and the result with
 * it.  Of separately linear operands, one. */
static AxisSet kept_sum(Place *p, const Node *n, uint32_t i, AxisSet used)
{
    AxisSet sum = place_sum(p->m, node_arg(p->m, n, i));
    char lin = linearity(n, i);

    if (lin == 'j')
        sum = joint_sum(p, n);
    if (lin == '-' || (sum & used))
        return 0;
    for (uint32_t k = 0; lin == 's' && k < n->nargs; k++)
        if (k != i && place_sum(p->m, node_arg(p->m, n, k)))
            return 0;
    return sum;
}

/* ---- nodes with a signature ---------------------------------------------- */

void place_set_arg(Place *p, NodeId id, uint32_t i, ValueId v)
{
    p->m->args.v[node_of(p->m, id)->arg + i] = v;
}

/* What of the chosen splits operand, or result, i has. */
static Layout split_part(const Node *n, const Layout *want, const Type *t,
                         uint32_t i, bool (*whole)(Op, uint32_t, char))
{
    Layout out = restricted(want, t);

    for (uint8_t k = 0; k < t->ndim; k++)
        if (whole((Op)n->op, i, t->dim[k]))
            layout_set_split(&out, t->dim[k], NULL, 0);
    return out;
}

static AxisSet contracted(const Module *m, const Node *n, uint32_t result,
                          const Layout *want)
{
    const Type *t = value_type(m, node_res(n, result));
    AxisSet out = 0;

    for (uint8_t i = 0; i < want->nsplit; i++)
        if (!type_covers(t, want->split[i].dim) ||
            op_res_whole((Op)n->op, result, want->split[i].dim))
            out |= split_axes(&m->mesh, &want->split[i]);
    return out;
}

static void lay_results(Place *p, const Node *n, const Layout *want,
                        AxisSet sum)
{
    bool maximum = op_info[n->op].sig[0] == '^';

    for (uint32_t i = 0; i < n->nres; i++) {
        const Type *t = value_type(p->m, node_res(n, i));
        Layout l = split_part(n, want, t, i, op_res_whole);
        AxisSet inner = contracted(p->m, n, i, want);
        if (op_info[n->op].flags & OPF_STAGE)
            inner |= mesh_stage(p->m);
        l.partial = sum | (maximum ? 0 : inner);
        l.partial_max = maximum ? inner : 0;
        value_of(p->m, node_res(n, i))->layout = layout_intern(p->m, &l);
    }
}

static void lay_by_signature(Place *p, NodeId id)
{
    const Node n = *node_of(p->m, id);
    Choice c = choose(p, &n);
    AxisSet sums = 0, kept[8];
    mc_assert(n.nargs <= MC_LEN(kept));

    for (uint32_t i = 0; i < n.nargs; i++) {
        kept[i] = kept_sum(p, &n, i, c.used);
        sums |= kept[i];
    }
    for (uint32_t i = 0; i < n.nargs; i++) {
        ValueId v = node_arg(p->m, &n, i);
        Layout l =
            split_part(&n, &c.want, value_type(p->m, v), i, op_arg_whole);
        l.partial = kept[i];
        place_set_arg(p, id, i, place_convert(p, v, layout_intern(p->m, &l)));
    }
    lay_results(p, node_of(p->m, id), &c.want, sums);
}

/* ---- calls --------------------------------------------------------------- */

/* The layout that a value's hint names, for the dimensions it has; 0: none. */
static LayoutId hint_layout(Module *m, ValueId v)
{
    Sym hint = value_of(m, v)->hint;
    Layout l;

    for (uint32_t i = 0; i < m->hints.n; i++) {
        if (m->hints.v[i].name.i != hint.i)
            continue;
        l = restricted(layout_of(m, m->hints.v[i].layout), value_type(m, v));
        l.partial = layout_of(m, m->hints.v[i].layout)->partial;
        return layout_intern(m, &l);
    }
    return (LayoutId){0};
}

/* The first argument that is cut along a dimension decides that dimension's
 * split for all arguments that are. */
static const Split *cut_split(const Place *p, const Node *n, int mode)
{
    for (uint32_t i = 0; i < n->nargs; i++)
        if (call_arg_mode(p->m, n, i) == mode)
            return layout_split(layout_at(p->m, node_arg(p->m, n, i)),
                                (char)mode);
    return NULL;
}

static bool as_much(const Module *m, const Type *t, LayoutId a, LayoutId b)
{
    return layout_local_elems(m, t, layout_of(m, a)) ==
           layout_local_elems(m, t, layout_of(m, b));
}

/* As its hint says; but an element of what was stacked comes as it was stacked
 * if a rank has as much of it. */
static void lay_param(Place *p, const Node *n, uint32_t i, ValueId param)
{
    Module *m = p->m;
    int mode = call_arg_mode(m, n, i);
    const Type *t = value_type(m, param);
    LayoutId named = hint_layout(m, param), given;
    Layout l = restricted(layout_at(m, node_arg(m, n, i)), t);

    if (mode > MODE_CARRY && type_dim(t, (char)mode) >= 0) {
        const Split *s = cut_split(p, n, mode);
        layout_set_split(&l, (char)mode, s ? s->atom : NULL, s ? s->n : 0);
        value_of(m, param)->layout = layout_intern(m, &l);
        return;
    }
    given = layout_intern(m, &l);
    if (named.i && mode > MODE_CARRY && as_much(m, t, given, named)) {
        value_of(m, param)->hint = (Sym){0};
        named = given;
    }
    value_of(m, param)->layout = named.i ? named : given;
}

static void lay_function(Place *outer, FuncId f, const Node *call);

static void lay_call(Place *p, NodeId id)
{
    Module *m = p->m;
    const Node n = *node_of(m, id);
    FuncId callee = call_scan(m, &n).callee;

    if (!p->done[callee.i]) {
        for (uint32_t i = 0; i < n.nargs; i++)
            lay_param(p, &n, i, func_of(m, callee)->params.v[i]);
        lay_function(p, callee, &n);
    }
    for (uint32_t i = 0; i < n.nargs; i++) {
        LayoutId l = value_of(m, func_of(m, callee)->params.v[i])->layout;
        place_set_arg(p, id, i, place_convert(p, node_arg(m, &n, i), l));
    }
    for (uint32_t i = 0; i < n.nres; i++)
        value_of(m, node_res(&n, i))->layout =
            value_of(m, func_of(m, callee)->results.v[i])->layout;
}

/* ---- one function -------------------------------------------------------- */

static void lay_node(Place *p, NodeId id)
{
    const Node n = *node_of(p->m, id);

    switch (n.op) {
    case OP_READ: case OP_WRITE: case OP_CLEAR:
        place_state(p, id);
        break;
    case OP_ACCUM:
        place_accum(p, id);
        break;
    case OP_CALL:
        lay_call(p, id);
        break;
    default:
        lay_by_signature(p, id);
        break;
    }
}

/* Gives a hinted value its layout; later uses see the converted one. */
static void impose_hint(Place *p, ValueId v)
{
    Sym hint = value_of(p->m, v)->hint;
    LayoutId named = hint_layout(p->m, v);
    ValueId c;

    if (named.i == 0 || named.i == value_of(p->m, v)->layout.i)
        return;
    c = place_convert(p, v, named);
    value_of(p->m, v)->hint = (Sym){0};
    value_of(p->m, c)->hint = hint;
    vmap_set(&p->now, v, c);
}

static void find_goals(Place *p, const Func *fn)
{
    const Module *m = p->m;

    for (uint32_t i = 0; i < fn->body.n; i++) {
        const Node *n = &m->nodes.v[fn->body.v[i].i];
        if (n->op != OP_ACCUM)
            continue;
        ValueId v = node_arg(m, n, 0);
        while (p->goal.n <= v.i)
            vec_push(&p->goal, 0);
        p->goal.v[v.i] = attr_tensor(m, n->attrs, AK_TENSOR).i;
    }
}

static LayoutId completed(Module *m, LayoutId l)
{
    Layout whole = *layout_of(m, l);

    whole.partial = whole.partial_max = 0;
    return layout_intern(m, &whole);
}

/* What a value is converted to, if all uses are one conversion and a rank holds
 * as much of it then; otherwise itself. */
static ValueId converted(const Place *p, ValueId v)
{
    Module *m = p->m;
    const Func *f = func_of(m, p->f);
    ValueId to = v;

    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *n = &m->nodes.v[f->body.v[i].i];

        for (uint32_t k = 0; k < n->nargs; k++) {
            if (node_arg(m, n, k).i != v.i)
                continue;
            if (n->op != OP_CONVERT || to.i != v.i)
                return v;
            to = n->res;
        }
    }
    if (as_much(m, value_type(m, v), value_of(m, to)->layout,
                value_of(m, v)->layout))
        return to;
    return v;
}

/* Carried results come back in the layout of the parameter they feed; other
 * results are complete, and as they are used: what is saved of slots that
 * travel is saved where they arrive. */
static void settle_results(Place *p, const Node *call)
{
    Module *m = p->m;
    uint32_t carry = 0;

    for (uint32_t i = 0; i < func_of(m, p->f)->results.n; i++) {
        ValueId v = vmap_get(&p->now, func_of(m, p->f)->results.v[i]);
        LayoutId to;

        if (call && call_res_mode(m, call, i) == MODE_CARRY) {
            while (call_arg_mode(m, call, carry) != MODE_CARRY)
                carry++;
            to = value_of(m, func_of(m, p->f)->params.v[carry++])->layout;
        } else {
            v = call ? converted(p, v) : v;
            to = completed(m, value_of(m, v)->layout);
        }
        v = place_convert(p, v, to);
        func_of(m, p->f)->results.v[i] = v;
    }
}

static void lay_function(Place *outer, FuncId f, const Node *call)
{
    Module *m = outer->m;
    Place p = {.m = m, .done = outer->done, .grad_rests = outer->grad_rests,
               .f = f};
    Func old = *func_of(m, f);

    p.done[f.i] = true;
    find_goals(&p, &old);
    memset(&func_of(m, f)->body, 0, sizeof old.body);
    for (uint32_t i = 0; i < old.params.n; i++)
        impose_hint(&p, old.params.v[i]);
    for (uint32_t i = 0; i < old.body.n; i++) {
        NodeId id = old.body.v[i];
        for (uint32_t k = 0; k < node_of(m, id)->nargs; k++)
            place_set_arg(&p, id, k,
                    vmap_get(&p.now, node_arg(m, node_of(m, id), k)));
        lay_node(&p, id);
        vec_push(&func_of(m, f)->body, id);
        if (node_of(m, id)->op == OP_READ)
            place_gather(&p, id);
        for (uint32_t k = 0; k < node_of(m, id)->nres; k++)
            impose_hint(&p, node_res(node_of(m, id), k));
    }
    settle_results(&p, call);
    vec_free(&old.body);
    vmap_free(&p.now);
    vec_free(&p.made);
    vec_free(&p.goal);
}

bool pass_layout(Module *m, const Spec *spec)
{
    FuncId entry = m->entry.v[0];
    Place p = {.m = m,
               .done = arena_array(m->arena, bool, m->funcs.n),
               .grad_rests = arena_array(m->arena, bool, m->tensors.n)};

    (void)spec;
    for (uint32_t i = 0; i < func_of(m, entry)->params.n; i++) {
        ValueId v = func_of(m, entry)->params.v[i];
        value_of(m, v)->layout = hint_layout(m, v);
    }
    lay_function(&p, entry, NULL);
    clean_dead(m);
    return true;
}
