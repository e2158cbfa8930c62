/* call_cells.c - the rules of `call`, the scan, and of `row`.
 *
 * Seen from outside, an argument or result mapped along a dimension is `count`
 * times the callee's along it, or has a dimension of size `count` that the
 * callee's lacks.  Carries pair up in order: what the k-th carried parameter
 * takes, the k-th carried result gives back.  A call with trips may run fewer
 * iterations than its count, or none: then its carries pass through.
 */
#include "ir/ir_priv.h"

static int list_mode(const Module *m, AttrsId attrs, AttrKey key, uint32_t i)
{
    const Attr *a = attr_find(m, attrs, key);

    if (!a)
        return MODE_WHOLE;
    mc_assert(i < a->as.list.n);
    return (int)m->list.v[a->as.list.first + i];
}

int call_arg_mode(const Module *m, const Node *n, uint32_t i)
{
    return list_mode(m, n->attrs, AK_ARGS, i);
}

int call_res_mode(const Module *m, const Node *n, uint32_t i)
{
    return list_mode(m, n->attrs, AK_RESULTS, i);
}

int call_trips(const Module *m, const Node *n)
{
    for (uint32_t i = 0; i < n->nargs; i++)
        if (call_arg_mode(m, n, i) == MODE_TRIPS)
            return (int)i;
    return -1;
}

char call_mode_letter(int mode)
{
    return mode == MODE_WHOLE   ? '.'
           : mode == MODE_CARRY ? '>'
           : mode == MODE_TRIPS ? '#'
                                : (char)mode;
}

int call_mode_of(char letter)
{
    return letter == '.'   ? MODE_WHOLE
           : letter == '>' ? MODE_CARRY
           : letter == '#' ? MODE_TRIPS
                           : letter;
}

void call_modes(const Module *m, const Node *n, char *out_args,
                char *out_results)
{
    for (uint32_t i = 0; i < n->nargs; i++)
        out_args[i] = call_mode_letter(call_arg_mode(m, n, i));
    for (uint32_t i = 0; i < n->nres; i++)
        out_results[i] = call_mode_letter(call_res_mode(m, n, i));
    out_args[n->nargs] = out_results[n->nres] = '\0';
}

static const Func *callee_of(const Module *m, AttrsId attrs)
{
    FuncId f = attr_func(m, attrs, AK_CALLEE);

    return f.i && f.i < m->funcs.n ? &m->funcs.v[f.i] : NULL;
}

/* Every operand and result has a mode, if the list is given at all. */
static const char *check_modes(Module *m, AttrsId attrs, AttrKey key,
                               uint32_t n)
{
    const Attr *a = attr_find(m, attrs, key);

    if (a && a->as.list.n != n)
        return wrong(m, "`%s` has %u modes for %u values", attr_info[key].name,
                     a->as.list.n, n);
    for (uint32_t i = 0; i < n; i++) {
        int mode = list_mode(m, attrs, key, i);

        if (mode != MODE_WHOLE && mode != MODE_CARRY &&
            (mode != MODE_TRIPS || key != AK_ARGS) &&
            (mode < 'a' || mode > 'z'))
            return wrong(m, "mode %u of `%s` is none", i + 1,
                         attr_info[key].name);
    }
    return NULL;
}

/* At most one operand says how many iterations run; since that may be none, all
 * results are carries. */
static const char *check_trips(Module *m, AttrsId attrs, const Func *f)
{
    uint32_t trips = 0, carries = 0;

    for (uint32_t i = 0; i < f->params.n; i++) {
        const Type *t = value_type(m, f->params.v[i]);

        if (list_mode(m, attrs, AK_ARGS, i) != MODE_TRIPS)
            continue;
        if (t->ndim || t->dtype != DT_F32 || trips++)
            return "its number of trips must be one f32 scalar";
    }
    for (uint32_t i = 0; i < f->results.n; i++)
        carries += list_mode(m, attrs, AK_RESULTS, i) == MODE_CARRY;
    if (trips && attr_int(m, attrs, AK_REVERSE, 0))
        return "runs the first of its iterations, so not in reverse";
    return trips && carries < f->results.n
               ? "may run no iteration, so its results must be carries"
               : NULL;
}

static const char *check_scan(Module *m, AttrsId attrs, uint32_t nargs)
{
    const Func *f = callee_of(m, attrs);
    int64_t over = attr_int(m, attrs, AK_OVER, 'l');
    const char *bad;

    if (!f || f->kind != FUNC_GRAPH)
        return "needs a `callee` that is no row program";
    if (f->params.n != nargs)
        return wrong(m, "its callee takes %u values, not %u", f->params.n,
                     nargs);
    if (attr_int(m, attrs, AK_COUNT, 1) < 1 || over < 'a' || over > 'z')
        return "`count` must be positive and `over` a letter";
    if (attr_int(m, attrs, AK_FIRST, 0) < 0 ||
        attr_int(m, attrs, AK_STEP, 1) < 1)
        return "`first` must not be negative, and `step` positive";
    bad = check_modes(m, attrs, AK_ARGS, nargs);
    bad = bad ? bad : check_modes(m, attrs, AK_RESULTS, f->results.n);
    return bad ? bad : check_trips(m, attrs, f);
}

/* The type outside of a value that is `inner` inside and mapped along `dim`.
 * 0: there is none. */
static TypeId stacked(Module *m, TypeId inner, char dim, int64_t count)
{
    const Type *t = type_of(m, inner);
    int64_t size;

    if (type_dim(t, dim) < 0)
        return t->ndim < IR_MAX_DIMS ? type_with_first(m, inner, dim, count)
                                     : (TypeId){0};
    if (__builtin_mul_overflow(type_size(t, dim), count, &size))
        return (TypeId){0};
    return type_resized(m, inner, dim, size);
}

/* Is `outer` cut along `dim` into `count` values of type `inner`?  A dimension
 * that disappears may stand anywhere in the operand. */
static bool cuts_into(Module *m, TypeId outer, TypeId inner, char dim,
                      int64_t count)
{
    if (type_dim(type_of(m, inner), dim) >= 0)
        return stacked(m, inner, dim, count).i == outer.i;
    return type_dim(type_of(m, outer), dim) >= 0 &&
           type_size(type_of(m, outer), dim) == count &&
           type_without(m, outer, dim).i == inner.i;
}

static const char *check_args(Module *m, const Func *f, const ValueId *args,
                              AttrsId attrs)
{
    int64_t count = attr_int(m, attrs, AK_COUNT, 1);

    for (uint32_t i = 0; i < f->params.n; i++) {
        TypeId outer = value_of(m, args[i])->type;
        TypeId inner = value_of(m, f->params.v[i])->type;
        int mode = list_mode(m, attrs, AK_ARGS, i);
        bool fits = mode <= MODE_TRIPS
                        ? outer.i == inner.i
                        : cuts_into(m, outer, inner, (char)mode, count);

        if (!fits)
            return wrong(m, "operand %u, a %s, does not give parameter %s",
                         i + 1, type_text(m, outer), type_text(m, inner));
    }
    return NULL;
}

/* Type of the next carried value at or after *at in `values`; 0: no more. */
static TypeId next_carry(Module *m, const ValueId *values, uint32_t n,
                         AttrsId attrs, AttrKey key, uint32_t *at)
{
    while (*at < n) {
        uint32_t i = (*at)++;

        if (list_mode(m, attrs, key, i) == MODE_CARRY)
            return value_of(m, values[i])->type;
    }
    return (TypeId){0};
}

static const char *check_carries(Module *m, const Func *f, AttrsId attrs)
{
    uint32_t param = 0, result = 0;
    TypeId in, out;

    do {
        in = next_carry(m, f->params.v, f->params.n, attrs, AK_ARGS, &param);
        out = next_carry(m, f->results.v, f->results.n, attrs, AK_RESULTS,
                         &result);
        if (in.i != out.i)
            return "its carried parameters and results do not pair up";
    } while (in.i);
    return NULL;
}

static const char *infer_results(Module *m, const Func *f, AttrsId attrs,
                                 TypeId *out)
{
    int64_t count = attr_int(m, attrs, AK_COUNT, 1);

    for (uint32_t i = 0; i < f->results.n; i++) {
        TypeId inner = value_of(m, f->results.v[i])->type;
        int mode = list_mode(m, attrs, AK_RESULTS, i);

        if (mode == MODE_WHOLE && count != 1)
            return wrong(m, "result %u is whole, but `count` is not 1", i + 1);
        out[i] = mode == MODE_WHOLE || mode == MODE_CARRY
                     ? inner
                     : stacked(m, inner, (char)mode, count);
        if (!out[i].i)
            return wrong(m, "result %u cannot be stacked", i + 1);
    }
    return NULL;
}

const char *infer_call(Module *m, Op op, const ValueId *args, uint32_t nargs,
                       AttrsId attrs, TypeId *out)
{
    const char *bad = check_scan(m, attrs, nargs);
    const Func *f = callee_of(m, attrs);

    (void)op;
    bad = bad ? bad : check_args(m, f, args, attrs);
    bad = bad ? bad : check_carries(m, f, attrs);
    return bad ? bad : infer_results(m, f, attrs, out);
}

const char *infer_row(Module *m, Op op, const ValueId *args, uint32_t nargs,
                      AttrsId attrs, TypeId *out)
{
    const Func *f = callee_of(m, attrs);

    (void)op;
    if (!f || f->kind != FUNC_ROW)
        return "needs a `callee` that is a row program";
    if (f->params.n != nargs)
        return wrong(m, "its callee takes %u values, not %u", f->params.n,
                     nargs);
    for (uint32_t i = 0; i < nargs; i++)
        if (value_of(m, args[i])->type.i != value_of(m, f->params.v[i])->type.i)
            return wrong(m, "operand %u does not have its parameter's type",
                         i + 1);
    for (uint32_t i = 0; i < f->results.n; i++)
        out[i] = value_of(m, f->results.v[i])->type;
    return NULL;
}
