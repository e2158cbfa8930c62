/* memplan_share.c - which values need no memory of their own.
 *
 *     %w = read {tensor=@q}          the tensor itself, if unchanged until the
 *                                    last use of %w
 *     return %y                      the caller's memory, from the start
 *     write %p {tensor=@q}           %p is made in the tensor, if nobody
 *                                    wants the old contents any more
 *     %y = all_reduce %x             %x's memory, if %x ends here
 *     %q = part %qkv                 %qkv's memory
 *     %w = unflatten %lines          the memory of the lines
 *
 * Each is an optimisation of a copy: a value that fails the test gets a buffer
 * and emit copies.  The delicate case is a carried result: it has the memory
 * of the parameter it replaces in the next iteration, so it may only be made
 * there when that parameter has been used for the last time.
 */
#include "passes/memplan_priv.h"

#include "passes/streams.h"

typedef struct {
    Planner *p;
    FuncId f;
    const Func *func;
} Share;

uint32_t value_root(Planner *p, ValueId v)
{
    uint32_t i = v.i;

    while (p->parent[i] != i)
        i = p->parent[i] = p->parent[p->parent[i]];
    return i;
}

static const Node *node_at(const Share *s, uint32_t pos)
{
    return &s->p->m->nodes.v[s->func->body.v[pos].i];
}

/* Position of the node that defines a value; -1 for a parameter. */
static int32_t value_def(const Share *s, ValueId v)
{
    return s->p->def[v.i];
}

/* ---- lifetimes ----------------------------------------------------------- */

static void value_begin(Planner *p, ValueId v, int32_t def, int32_t begin,
                        int32_t done)
{
    p->parent[v.i] = v.i;
    p->def[v.i] = def;
    p->first[v.i] = begin;
    p->last[v.i] = done;
    p->out->place[v.i] = (MemPlace){0};
}

/* What reads a part reads what it is a part of. */
static void value_use(Planner *p, ValueId v, int32_t done)
{
    const Node *n = &p->m->nodes.v[p->m->values.v[v.i].def.i];

    p->last[v.i] = MC_MAX(p->last[v.i], done);
    if (n->op == OP_PART || n->op == OP_UNFLATTEN)
        value_use(p, node_arg(p->m, n, 0), done);
}

static uint32_t times_used(const Module *m, const Node *n, ValueId v)
{
    uint32_t times = 0;

    for (uint32_t i = 0; i < n->nargs; i++)
        times += node_arg(m, n, i).i == v.i;
    return times;
}

/* Whether v can be made where its lines lie: here, for nobody else. */
static bool is_front(const Share *s, ValueId v)
{
    uint32_t times = 0;

    for (uint32_t pos = 0; pos < s->func->body.n; pos++)
        times += times_used(s->p->m, node_at(s, pos), v);
    for (uint32_t i = 0; i < s->func->results.n; i++)
        times += s->func->results.v[i].i == v.i;
    return times == 1 && value_def(s, v) >= 0 && s->p->parent[v.i] == v.i;
}

/* Views share memory: a part that of the whole, what is unflattened that of the
 * lines; operands of a join, and what is flattened, that of the result, which
 * so exists since they do. */
static void view_begin(const Share *s, const Node *n)
{
    Planner *p = s->p;
    bool whole = n->op == OP_JOIN ||
                 (n->op == OP_FLATTEN && is_front(s, node_arg(p->m, n, 0)));

    if (n->op == OP_PART || n->op == OP_UNFLATTEN)
        p->parent[n->res.i] = node_arg(p->m, n, 0).i;
    for (uint32_t i = 0; whole && i < n->nargs; i++) {
        ValueId v = node_arg(p->m, n, i);

        p->parent[v.i] = n->res.i;
        p->first[n->res.i] = MC_MIN(p->first[n->res.i], p->first[v.i]);
    }
}

static void lifetimes(Share *s)
{
    Planner *p = s->p;
    const Func *func = s->func;

    for (uint32_t i = 0; i < func->params.n; i++) {
        value_begin(p, func->params.v[i], -1, -1, -1);
        p->out->place[func->params.v[i].i] =
            (MemPlace){.base = MEM_PARAM, .index = i};
    }
    for (uint32_t pos = 0; pos < func->body.n; pos++) {
        const Node *n = node_at(s, pos);
        for (uint32_t i = 0; i < n->nargs; i++)
            value_use(p, node_arg(p->m, n, i), p->done[pos]);
        for (uint32_t i = 0; i < n->nres; i++)
            value_begin(p, node_res(n, i), (int32_t)pos, p->begin[pos],
                        p->done[pos]);
        view_begin(s, n);
    }
    /* A returned parameter is copied on entry, anything else at the end. */
    for (uint32_t i = 0; i < func->results.n; i++)
        if (value_def(s, func->results.v[i]) >= 0)
            value_use(p, func->results.v[i], (int32_t)func->body.n);
}

/* ---- who may overwrite whom ---------------------------------------------- */

int memplan_carry_result(const Module *m, const Node *call, uint32_t arg)
{
    uint32_t nth = 0;

    for (uint32_t i = 0; i < arg; i++)
        nth += call_arg_mode(m, call, i) == MODE_CARRY;
    for (uint32_t r = 0; r < call->nres; r++)
        if (call_res_mode(m, call, r) == MODE_CARRY && nth-- == 0)
            return (int)r;
    return -1;
}

/* Whether a product does nothing but add to its residual, in f32. */
static bool only_adds(const Module *m, const Node *n, uint32_t arg)
{
    Epilogue e = node_epilogue(m, n);

    return n->op == OP_DOTS && n->nres == 1 && e.residual && !e.bias &&
           !e.activation && arg + 1u == n->nargs &&
           value_type(m, n->res)->dtype == DT_F32;
}

bool node_may_share(const Planner *p, const Node *n, uint32_t arg, uint32_t res)
{
    ValueId v = node_arg(p->m, n, arg);

    if (memplan_value_bytes(p->m, v) !=
        memplan_value_bytes(p->m, node_res(n, res)))
        return false;
    if (n->op == OP_ALL_REDUCE || n->op == OP_ALL_REDUCE_MAX)
        return true;
    if (n->op == OP_CALL)
        return call_arg_mode(p->m, n, arg) == MODE_CARRY &&
               times_used(p->m, n, v) == 1 &&
               memplan_carry_result(p->m, n, arg) == (int)res;
    if (times_used(p->m, n, v) != 1)
        return false;
    return only_adds(p->m, n, arg) ||
           (n->op == OP_ROW && p->rules->in_place(p->m, n, arg, res));
}

/* Whether the node that makes `made` uses `old` and may write over it. */
static bool may_overwrite(const Share *s, ValueId made, ValueId old)
{
    const Node *n = node_at(s, (uint32_t)value_def(s, made));
    bool may = times_used(s->p->m, n, old) > 0;

    for (uint32_t i = 0; i < n->nargs; i++)
        if (node_arg(s->p->m, n, i).i == old.i)
            may &= node_may_share(s->p, n, i, made.i - n->res.i);
    return may;
}

/* Whether `old` is used for the last time before `made` is made, or while it
 * is made in a way that allows to overwrite it. */
static bool is_over(const Share *s, ValueId old, ValueId made)
{
    int32_t last = s->p->last[old.i];

    return last < s->p->first[made.i] ||
           (last == s->p->done[value_def(s, made)] &&
            may_overwrite(s, made, old));
}

/* ---- state --------------------------------------------------------------- */

static bool same_state(const Share *s, MemPlace place, TensorId t, Field f)
{
    return place.base == MEM_STATE && place.index == t.i &&
           place.field == effect_field(s->p->m, t, f);
}

static const StateUse *state_use(const Share *s, uint32_t pos, TensorId t,
                                 Field f)
{
    return effects_find(s->p->m, s->p->fx->node[s->func->body.v[pos].i], t, f);
}

static bool field_fits(const Share *s, ValueId v, TensorId t, Field f)
{
    const Tensor *tensor = &s->p->m->tensors.v[t.i];

    return value_type(s->p->m, v)->dtype == tensor->field_dtype[f];
}

/* Whether a write leaves alone what `v` names: it writes `v` itself back, or
 * what is made of `v` in place and is there already. */
static bool writes_back(const Share *s, const Node *n, ValueId v)
{
    ValueId made;

    if (n->op != OP_WRITE)
        return false;
    made = node_arg(s->p->m, n, 0);
    return made.i == v.i ||
           (value_def(s, made) >= 0 && may_overwrite(s, made, v) &&
            memplan_same_place(s->p->out->place[made.i],
                               s->p->out->place[v.i]));
}

/* Nothing changes the field in (from, to] while `v` is used. */
static bool state_rests(const Share *s, ValueId v, TensorId t, Field f,
                        int32_t from, int32_t to)
{
    for (int32_t pos = from + 1; pos <= to && pos < (int32_t)s->func->body.n;
         pos++) {
        const StateUse *use = state_use(s, (uint32_t)pos, t, f);
        if (use && use->writes && !writes_back(s, node_at(s, (uint32_t)pos), v))
            return false;
    }
    return true;
}

static MemPlace state_place(const Share *s, TensorId t, Field f, bool adds)
{
    return (MemPlace){.base = MEM_STATE, .field = effect_field(s->p->m, t, f),
                      .index = t.i, .adds = adds};
}

/* At first every read names its field; that may let writes happen in place,
 * and only then is it clear which reads see their field unchanged. */
static void home_read(Share *s, const Node *n)
{
    Field f;
    TensorId t = effects_target(s->p->m, n, &f);

    if (s->p->m->tensors.v[t.i].host >> f & 1)
        return; /* it is fetched */
    s->p->out->place[n->res.i] = state_place(s, t, f, false);
    s->p->out->place[n->res.i].next =
        (int8_t)attr_int(s->p->m, n->attrs, AK_NEXT, 0);
}

static void check_read(Share *s, const Node *n)
{
    Field f;
    TensorId t = effects_target(s->p->m, n, &f);

    if (s->p->out->place[n->res.i].base == MEM_STATE &&
        !state_rests(s, n->res, t, f, value_def(s, n->res),
                     s->p->last[n->res.i]))
        s->p->out->place[n->res.i] = (MemPlace){0};
}

/* Every value read from the field before is over when `v` is made. */
static bool readers_over(const Share *s, ValueId v, TensorId t, Field f)
{
    for (int32_t pos = 0; pos < value_def(s, v); pos++) {
        const Node *n = node_at(s, (uint32_t)pos);
        for (uint32_t i = 0; i < n->nres; i++) {
            ValueId old = node_res(n, i);
            if (same_state(s, s->p->out->place[old.i], t, f) &&
                !is_over(s, old, v))
                return false;
        }
    }
    return true;
}

/* Between its making and its writing nobody else uses the field. */
static bool state_unused(const Share *s, TensorId t, Field f, int32_t from,
                         int32_t to)
{
    for (int32_t pos = from; pos < to; pos++)
        if (state_use(s, (uint32_t)pos, t, f))
            return false;
    return true;
}

static void home_written(Share *s, const Node *n, int32_t pos)
{
    Field f;
    TensorId t = effects_target(s->p->m, n, &f);
    ValueId v = node_arg(s->p->m, n, 0);
    MemPlace *place = &s->p->out->place[v.i];

    if (place->base != MEM_NONE || !field_fits(s, v, t, f) ||
        (s->p->m->tensors.v[t.i].host >> f & 1) ||
        !state_unused(s, t, f, value_def(s, v), pos) ||
        !readers_over(s, v, t, f) ||
        !state_rests(s, v, t, f, pos, s->p->last[v.i]))
        return;
    *place = state_place(s, t, f, false);
}

/* ---- sums made in place -------------------------------------------------- */

bool memplan_accumulates(const Module *m, const Node *n, TensorId *out_tensor,
                         Field *out_field)
{
    const Func *f;

    if (n->op == OP_ROW) {
        f = &m->funcs.v[attr_func(m, n->attrs, AK_CALLEE).i];
        if (f->body.n != 1 || n->nargs != 1)
            return false;
        n = &m->nodes.v[f->body.v[0].i];
    }
    if (n->op != OP_ACCUM)
        return false;
    *out_tensor = effects_target(m, n, out_field);
    return true;
}

/* Ops that can add to their result instead of overwriting it. */
static bool can_add(const Share *s, ValueId v, TensorId t, Field f)
{
    const Node *n = node_at(s, (uint32_t)value_def(s, v));

    if (n->op == OP_DOT || n->op == OP_DOT_FILLED)
        return s->p->m->tensors.v[t.i].field_dtype[f] == DT_F32;
    return (n->op == OP_EMBED_GRAD || n->op == OP_ROWS_GRAD) &&
           field_fits(s, v, t, f);
}

static uint32_t times_used_before(const Share *s, ValueId v, int32_t end)
{
    uint32_t times = 0;

    for (int32_t pos = value_def(s, v) + 1; pos < end; pos++)
        times += times_used(s->p->m, node_at(s, (uint32_t)pos), v);
    return times;
}

/* %g = dot … ; accum %g {tensor=@q}: the product adds to the gradient. */
static void home_added(Share *s, const Node *n, int32_t pos)
{
    TensorId t;
    Field f;
    ValueId v;

    if (!memplan_accumulates(s->p->m, n, &t, &f))
        return;
    v = node_arg(s->p->m, n, 0);
    if (value_def(s, v) < 0 || s->p->out->place[v.i].base != MEM_NONE ||
        s->p->last[v.i] != s->p->done[pos] || times_used_before(s, v, pos) ||
        !can_add(s, v, t, f) || !state_unused(s, t, f, value_def(s, v), pos) ||
        !readers_over(s, v, t, f))
        return;
    s->p->out->place[v.i] = state_place(s, t, f, true);
}

/* ---- results ------------------------------------------------------------- */

/* The parameter that result `r` replaces in some caller's scan, or none. */
static int32_t carried_param(const Share *s, uint32_t r)
{
    int32_t *carry = s->p->carry[s->f.i];

    return carry ? carry[r] : -1;
}

/* A product adds to what its result replaces only if it does so in all calls.
 */
static bool may_add(const Share *s, uint32_t r, ValueId param)
{
    ValueId v = s->func->results.v[r];
    const Node *n = node_at(s, (uint32_t)value_def(s, v));
    const int32_t *carried = s->p->out->carried[s->f.i];

    return n->op != OP_DOTS || times_used(s->p->m, n, param) == 0 ||
           carried[r] >= 0;
}

static void home_result(Share *s, uint32_t r)
{
    ValueId v = s->func->results.v[r];
    int32_t param = carried_param(s, r);

    if (s->p->out->place[v.i].base != MEM_NONE)
        return;
    if (param < 0 || (is_over(s, s->func->params.v[param], v) &&
                      may_add(s, r, s->func->params.v[param])))
        s->p->out->place[v.i] = (MemPlace){.base = MEM_RESULT, .index = r};
}

/* ---- sharing a buffer ---------------------------------------------------- */

/* Whether memory that `place` stands for is free from position `from` on. */
static bool place_free_from(const Share *s, MemPlace place, int32_t from)
{
    int32_t param;

    if (place.base == MEM_NONE)
        return true;
    if (place.base != MEM_RESULT)
        return false;
    param = carried_param(s, place.index);
    return param < 0 || s->p->last[s->func->params.v[param].i] < from;
}

static bool share_try(Share *s, const Node *n, uint32_t arg, uint32_t res,
                      int32_t pos)
{
    Planner *p = s->p;
    uint32_t old = value_root(p, node_arg(p->m, n, arg));
    uint32_t made = value_root(p, node_res(n, res));

    if (old == made || p->host[old] != p->host[made] ||
        p->out->place[old].base != MEM_NONE ||
        p->last[old] != p->done[pos] ||
        (p->last[made] == p->done[pos] && n->op != OP_CALL) ||
        !node_may_share(p, n, arg, res) ||
        memplan_value_bytes(p->m, (ValueId){old}) <
            memplan_value_bytes(p->m, (ValueId){made}) ||
        !place_free_from(s, p->out->place[made], p->first[old]))
        return false;
    p->out->place[old] = p->out->place[made];
    p->parent[made] = old;
    p->last[old] = p->last[made];
    return true;
}

static void share_node(Share *s, const Node *n, int32_t pos)
{
    for (uint32_t res = 0; res < n->nres; res++)
        for (uint32_t arg = 0; arg < n->nargs; arg++)
            if (share_try(s, n, arg, res, pos))
                break;
}

/* A read that gets memory of its own is one reader of the field less, but a
 * write that relied on it stays where it is: readers only had to be over. */
static void reads_check(Share *s)
{
    for (uint32_t pos = 0; pos < s->func->body.n; pos++)
        if (node_at(s, pos)->op == OP_READ)
            check_read(s, node_at(s, pos));
}

typedef void HomeFn(Share *s, const Node *n, int32_t pos);

static void each_node(Share *s, HomeFn *fn)
{
    for (uint32_t pos = 0; pos < s->func->body.n; pos++)
        fn(s, node_at(s, pos), (int32_t)pos);
}

static void home_node_read(Share *s, const Node *n, int32_t pos)
{
    (void)pos;
    if (n->op == OP_READ)
        home_read(s, n);
}

static void home_node_written(Share *s, const Node *n, int32_t pos)
{
    if (n->op == OP_WRITE)
        home_written(s, n, pos);
}

void share_plan(Planner *p, FuncId f)
{
    const Func *func = &p->m->funcs.v[f.i];
    Share s = {p, f, func};

    p->begin = arena_array(p->arena, int32_t, func->body.n);
    p->done = arena_array(p->arena, int32_t, func->body.n);
    streams_extents(p->m, f, p->begin, p->done);
    lifetimes(&s);
    each_node(&s, home_node_read);
    for (uint32_t r = 0; r < func->results.n; r++)
        home_result(&s, r);
    each_node(&s, home_node_written);
    reads_check(&s);
    each_node(&s, home_added);
    each_node(&s, share_node);
}
