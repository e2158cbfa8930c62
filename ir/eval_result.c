/* eval_result.c - the state after the step as whole logical tensors, and the
 * comparison of two runs.
 *
 * A field's rest layout says where each rank's part belongs.  Ranks that
 * differ in an axis which neither splits the field nor makes it a partial sum
 * are replicas and must agree; the others' parts are put in place and, along
 * partial axes, added.
 */
#include "ir/eval_priv.h"
#include "ir/ir_priv.h"

#include <math.h>

/* ---- assembling ---- */

typedef struct {
    Eval *e;
    TensorId t;
    Field f;
    uint32_t layer, at; /* at: index into state arrays */
    AxisSet distinct; /* axes along which the parts differ */
    bool touched;     /* by anyone; else initial values are taken */
} Part;

static bool numbers_agree(EvalKind kind, EvalNum x, EvalNum y, double tol)
{
    if (kind == EVAL_FIELD)
        return x.residue == y.residue;
    return fabs(x.f - y.f) <= tol;
}

static double largest(const EvalArray *a)
{
    double most = 0;

    for (int64_t i = 0, n = array_elems(a); i < n; i++)
        most = fmax(most, fabs(a->at[i].f));
    return most;
}

static void replicas_report(const Part *p, uint32_t a, uint32_t b, int64_t i)
{
    const Tensor *t = tensor_of(p->e->m, p->t);

    diag_error(p->e->m->diag, t->loc, "MC0754",
               "ranks %u and %u disagree on @%s.%s, layer %u, local element "
               "%lld", a, b, sym_text(p->e->m->names, t->name),
               field_names[p->f], p->layer, (long long)i);
    p->e->failed = true;
}

static void replicas_compare(const Part *p, const EvalRank *a,
                             const EvalRank *b)
{
    EvalKind kind = p->e->opt.kind;
    const EvalArray *x = &a->state[p->at]->a, *y = &b->state[p->at]->a;
    double tol = kind == EVAL_FP64 ? 1e-9 * largest(x) : 0;

    for (int64_t i = 0, n = array_elems(x); i < n; i++)
        if (!numbers_agree(kind, x->at[i], y->at[i], tol)) {
            replicas_report(p, a->id, b->id, i);
            return;
        }
}

/* Adds a rank's part to the whole at its place. */
static void part_place(const Part *p, const EvalRank *r, EvalArray *whole)
{
    const Tensor *t = tensor_of(p->e->m, p->t);
    const EvalArray *part = &r->state[p->at]->a;
    EvalArray all = array_of_type(type_of(p->e->m, tensor_stored(t)));
    int64_t start = state_start(p->e, r->id, p->t, p->f);
    Walk w = walk_of(part);

    walk_add(&w, &all);
    for (; w.more; walk_next(&w)) {
        int64_t at = state_element(p->e, p->t, start + w.off[1]);

        if (at >= 0)
            whole->at[at] = num_add(p->e->opt.kind, whole->at[at],
                                    part->at[w.off[0]]);
    }
}

/* Whether a rank takes part in the assembly; makes untouched state. */
static bool takes_part(const Part *p, EvalRank *r)
{
    if (p->touched ? !r->touched[p->at]
                   : !state_holds(p->e, r, p->t, p->layer))
        return false;
    return *state_slot(p->e, r, p->t, p->f, p->layer) != NULL;
}

static EvalArray part_assemble(const Part *p)
{
    Eval *e = p->e;
    const Mesh *mesh = &e->m->mesh;
    EvalArray whole = array_of_type(
        &e->m->types.v[tensor_of(e->m, p->t)->type.i]);
    uint32_t groups = axes_size(mesh, p->distinct);
    EvalRank **first = arena_array(e->arena, EvalRank *, groups);

    for (uint32_t i = 0; i < e->nranks; i++) {
        EvalRank *r = &e->ranks[i];

        if (!takes_part(p, r))
            continue;
        uint32_t group = axes_index(mesh, p->distinct, r->id);

        if (first[group]) {
            replicas_compare(p, first[group], r);
            continue;
        }
        first[group] = r;
        if (!whole.at)
            whole.at = arena_array(e->arena, EvalNum, array_elems(&whole) + 1);
        part_place(p, r, &whole);
    }
    return whole;
}

static AxisSet distinct_axes(const Eval *e, LayoutId l)
{
    if (!l.i || !(e->m->props & PROP_LAYOUT))
        return 0;
    return layout_split_axes(&e->m->mesh, layout_of(e->m, l)) |
           layout_of(e->m, l)->partial;
}

static void field_assemble(Eval *e, TensorId t, Field f, EvalArray *out)
{
    const Tensor *tensor = tensor_of(e->m, t);
    uint32_t first = e->state_of[t.i * FIELD_COUNT + f];
    Part p = {.e = e, .t = t, .f = f,
              .distinct = distinct_axes(e, tensor->rest[f])};

    /* Either copy of a tied table has its own part of the gradient. */
    if (f == FIELD_GRAD && e->m->props & PROP_PIPELINED)
        p.distinct |= tensor->tied;

    for (; p.layer < (tensor->per_layer ? e->m->nlayers : 1); p.layer++) {
        p.at = first + p.layer;
        if (!tensor_in_layer(e->m, t, p.layer))
            continue;
        p.touched = false;
        for (uint32_t i = 0; i < e->nranks; i++)
            p.touched |= e->ranks[i].touched[p.at];
        out[p.at] = part_assemble(&p);
    }
}

/* All ranks that report a metric report the same. */
static void metrics_collect(Eval *e, EvalResult *out)
{
    Vec(EvalMetric) all = {0};

    for (uint32_t i = 0; i < e->nranks; i++)
        for (uint32_t k = 0; k < e->ranks[i].metrics.n; k++) {
            EvalMetric *metric = &e->ranks[i].metrics.v[k];
            uint32_t at = 0;

            while (at < all.n && all.v[at].what.i != metric->what.i)
                at++;
            if (at == all.n) {
                vec_push(&all, *metric);
                continue;
            }
            if (numbers_agree(e->opt.kind, all.v[at].value, metric->value,
                              1e-9 * fabs(metric->value.f)))
                continue;
            diag_error(e->m->diag, (Loc){0}, "MC0754",
                       "rank %u reports another `%s` than the others",
                       e->ranks[i].id, sym_text(e->m->names, metric->what));
            e->failed = true;
        }
    EvalMetric *kept = arena_array(e->arena, EvalMetric, all.n + 1);

    if (all.n)
        memcpy(kept, all.v, sizeof *kept * all.n);
    out->metrics = kept;
    out->nmetrics = all.n;
    vec_free(&all);
}

EvalResult *result_assemble(Eval *e)
{
    EvalResult *result = arena_new_of(e->arena, EvalResult);

    result->m = e->m;
    result->ntensors = e->m->tensors.n;
    result->kind = e->opt.kind;
    result->state_of = e->state_of;
    result->state = arena_array(e->arena, EvalArray, e->nstate + 1);
    for (uint32_t t = 1; t < e->m->tensors.n; t++)
        for (uint32_t f = 0; f < FIELD_COUNT; f++)
            if (e->m->tensors.v[t].fields >> f & 1)
                field_assemble(e, (TensorId){t}, (Field)f, result->state);
    metrics_collect(e, result);
    return e->failed ? NULL : result;
}

/* ---- asking ---- */

bool eval_get_metric(const EvalResult *r, const char *what, EvalNum *out)
{
    for (uint32_t i = 0; i < r->nmetrics; i++)
        if (!strcmp(sym_text(r->m->names, r->metrics[i].what), what)) {
            *out = r->metrics[i].value;
            return true;
        }
    return false;
}

/* Absent (at == NULL) if a later pass added the tensor. */
static EvalArray padded(const EvalResult *r, TensorId t, Field f,
                        uint32_t layer)
{
    if (t.i >= r->ntensors)
        return (EvalArray){0};
    return r->state[r->state_of[t.i * FIELD_COUNT + f] + layer];
}

bool eval_get_tensor(const EvalResult *r, TensorId t, Field f, uint32_t layer,
                     EvalArray *out)
{
    EvalArray whole = padded(r, t, f, layer);
    EvalArray cut = array_of_type(eval_logical(r->m, t));

    if (!whole.at)
        return false;
    cut.at = arena_array(r->m->arena, EvalNum, array_elems(&cut) + 1);
    Walk w = walk_of(&cut);

    walk_add(&w, &whole);
    for (; w.more; walk_next(&w))
        cut.at[w.off[0]] = whole.at[w.off[1]];
    *out = cut;
    return true;
}

/* ---- comparing ---- */

/* What is compared: a tensor, or what lies beside others in one. */
typedef struct {
    TensorId t;
    const TensorPart *part; /* NULL: the tensor */
} Entry;

static uint32_t entry_count(const Tensor *t)
{
    return MC_MAX(t->nparts, 1u);
}

static Entry entry_at(const Module *m, TensorId t, uint32_t i)
{
    const Tensor *tensor = &m->tensors.v[t.i];

    return (Entry){t, tensor->nparts ? &tensor->part[i] : NULL};
}

static const char *entry_name(const Module *m, Entry e)
{
    return sym_text(m->names,
                    e.part ? e.part->name : m->tensors.v[e.t.i].name);
}

static Entry entry_find(const Module *m, const char *name)
{
    for (uint32_t i = 1; i < m->tensors.n; i++)
        for (uint32_t k = 0; k < entry_count(&m->tensors.v[i]); k++) {
            Entry e = entry_at(m, (TensorId){i}, k);
            if (!strcmp(entry_name(m, e), name))
                return e;
        }
    return (Entry){{0}, NULL};
}

static bool entry_get(const EvalResult *r, Entry e, Field f, uint32_t layer,
                      EvalArray *out)
{
    EvalArray whole;
    Type part;

    if (!e.part)
        return eval_get_tensor(r, e.t, f, layer, out);
    if (!eval_get_tensor(r, e.t, f, layer, &whole))
        return false;
    part = type_part(eval_logical(r->m, e.t), e.part->at);
    *out = array_of_type(&part);
    out->at = arena_array(r->m->arena, EvalNum, array_elems(out) + 1);
    array_part(&whole, e.part->at, out);
    return true;
}

typedef struct {
    double error; /* relative to the tensor's largest element; field: 0, 1 */
    Entry entry;  /* in module a */
    Field f;
    uint32_t layer;
    int64_t index;
    EvalNum x, y;
    uint32_t tensors; /* fields of layers that differ at all */
} Worst;

static void arrays_compare(const EvalResult *r, const EvalArray *x,
                           const EvalArray *y, double tol, Worst here,
                           Worst *worst)
{
    double scale = 0;

    if (r->kind == EVAL_FP64)
        /* A gradient that is zero in exact arithmetic (of keys, if a token sees
         * only itself) has the noise of terms that are not. */
        scale = fmax(fmax(largest(x), largest(y)), 1e-4);
    for (int64_t i = 0, n = array_elems(x); i < n; i++) {
        double error = r->kind == EVAL_FP64
                           ? fabs(x->at[i].f - y->at[i].f) / scale
                           : x->at[i].residue != y->at[i].residue;

        if (!(error <= here.error)) { /* NaN is an error too */
            here.error = isnan(error) ? INFINITY : error;
            here.index = i;
            here.x = x->at[i];
            here.y = y->at[i];
        }
    }
    here.tensors = worst->tensors + (here.error > tol);
    if (here.error > worst->error)
        *worst = here;
    worst->tensors = here.tensors;
}

static void number_print(EvalKind kind, EvalNum x, Buf *out)
{
    if (kind == EVAL_FIELD)
        buf_printf(out, "%llu", (unsigned long long)x.residue);
    else
        buf_printf(out, "%.17g", x.f);
}

static bool values_report(Diag *d, EvalKind kind, EvalNum x, EvalNum y,
                          const char *where)
{
    Buf text = {0};

    number_print(kind, x, &text);
    buf_puts(&text, " and ");
    number_print(kind, y, &text);
    diag_error(d, (Loc){0}, "MC0755", "%s: %s", where, buf_str(&text));
    buf_free(&text);
    return false;
}

static bool worst_report(const EvalResult *ra, Diag *d, const Worst *w)
{
    char *where = arena_printf(
        ra->m->arena, "the runs differ in %u tensors; most in @%s.%s, layer "
        "%u, element %lld", w->tensors,
        entry_name(ra->m, w->entry), field_names[w->f], w->layer,
        (long long)w->index);

    return values_report(d, ra->kind, w->x, w->y, where);
}

static bool metrics_equal(const EvalResult *ra, const EvalResult *rb, Diag *d,
                          double tol)
{
    for (uint32_t i = 0; i < ra->nmetrics; i++) {
        const char *what = sym_text(ra->m->names, ra->metrics[i].what);
        EvalNum x = ra->metrics[i].value, y = {0};
        double scale = fmax(fabs(x.f), 1e-30);

        if (eval_get_metric(rb, what, &y) &&
            numbers_agree(ra->kind, x, y,
                          ra->kind == EVAL_FP64 ? tol * scale : 0))
            continue;
        return values_report(d, ra->kind, x, y,
                             arena_printf(ra->m->arena,
                                          "the runs differ in metric %s",
                                          what));
    }
    return true;
}

/* Compares one field of all layers; false if only one run has it. */
static bool field_compare(const EvalResult *ra, const EvalResult *rb,
                          Entry eb, double tol, Worst here, Worst *worst)
{
    const Tensor *t = tensor_of(ra->m, here.entry.t);

    for (; here.layer < (t->per_layer ? ra->m->nlayers : 1); here.layer++) {
        EvalArray x, y;
        bool in_a = entry_get(ra, here.entry, here.f, here.layer, &x);
        bool in_b = entry_get(rb, eb, here.f, here.layer, &y);

        if (in_a != in_b || (in_a && !array_same_shape(&x, &y)))
            return false;
        if (in_a)
            arrays_compare(ra, &x, &y, tol, here, worst);
    }
    return true;
}

static bool entry_compare(const EvalResult *ra, const EvalResult *rb, Entry ea,
                          Diag *d, double tol, Worst *worst)
{
    const char *name = entry_name(ra->m, ea);
    Entry eb = entry_find(rb->m, name);

    for (uint32_t f = 0; eb.t.i && f < FIELD_COUNT; f++) {
        Worst here = {.entry = ea, .f = (Field)f};

        if (!(ra->m->tensors.v[ea.t.i].fields >> f & 1) ||
            field_compare(ra, rb, eb, tol, here, worst))
            continue;
        diag_error(d, (Loc){0}, "MC0755",
                   "the runs do not both have @%s.%s in one shape", name,
                   field_names[f]);
        return false;
    }
    if (!eb.t.i)
        diag_error(d, (Loc){0}, "MC0755", "one module lacks @%s", name);
    return eb.t.i != 0;
}

bool eval_equal(const EvalResult *ra, const EvalResult *rb, Diag *d, double tol)
{
    const Module *m = ra->m;
    Worst worst = {0};

    for (uint32_t i = 1; i < m->tensors.n; i++)
        for (uint32_t k = 0; k < entry_count(&m->tensors.v[i]); k++)
            if (!entry_compare(ra, rb, entry_at(m, (TensorId){i}, k), d, tol,
                               &worst))
                return false;
    if (worst.error > (ra->kind == EVAL_FP64 ? tol : 0))
        return worst_report(ra, d, &worst);
    return metrics_equal(ra, rb, d, tol);
}
