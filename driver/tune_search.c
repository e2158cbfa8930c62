/* tune_search.c - the fastest ways to train that fit, and how they are found.
 *
 * All legal choices get a bound of their memory and an estimate of their time;
 * of those that may fit, the best are sketched in the order of their estimates,
 * so many at a time.  That ends when a round changes nothing among the results,
 * or when the next estimate, at the best ratio of simulated to estimated time
 * seen so far, would not be among them.  Then whole steps are planned, until
 * the first so many have been; small programs with as much work on addresses as
 * a compile spends.  No clock and no number of cores has a part in that, so the
 * same input gives the same result.
 */
#include "driver/tune.h"

#include <stdlib.h>
#include <unistd.h>

enum { KEPT = 256, ROUND = 16, PLANNED_MAX = 96 };

/* Forwards and backwards of all stages together: of a small program; of one
 * that is planned within seconds, if a rank has several chunks, which with so
 * many microbatches wait little less than one; if it has one; of a sketch. */
enum {
    ACTIONS_FEW = 1 << 9,
    ACTIONS_CHUNKS = 1 << 12,
    ACTIONS_WHOLE = 1 << 15,
    ACTIONS_SKETCH = 1 << 13
};

/* ---- by estimate --------------------------------------------------------- */

static bool is_faster(const Candidate *a, const Candidate *b)
{
    if (a->estimate.step < b->estimate.step)
        return true;
    return !(a->estimate.step > b->estimate.step) &&
           a->bound.total < b->bound.total;
}

/* Into its place among the KEPT best. */
static void keep(Search *x, const Candidate *c)
{
    uint32_t i = x->best.n;

    if (i == KEPT && !is_faster(c, &vec_last(&x->best)))
        return;
    if (i < KEPT)
        vec_push(&x->best, *c);
    else
        i--;
    for (; i > 0 && is_faster(c, &x->best.v[i - 1]); i--)
        x->best.v[i] = x->best.v[i - 1];
    x->best.v[i] = *c;
}

static int64_t actions(const Spec *s)
{
    return 2 * s->derived.microbatches * s->parallel.vpp * s->parallel.pp;
}

bool search_is_long(const Spec *s)
{
    int64_t vpp = s->parallel.vpp, pp = s->parallel.pp;
    int64_t most = vpp > 1 ? ACTIONS_CHUNKS : ACTIONS_WHOLE;

    return actions(s) > most ||
           MC_MIN(actions(s), 6 * pp * pp * vpp) > ACTIONS_SKETCH;
}

static void judge(void *to, const Choice *choice, const Spec *s)
{
    Search *x = to;
    Share share = share_of(s);
    Candidate c = {.choice = *choice, .order = x->count.legal,
                   .bound = memory_bound(s, &share)};

    if (c.bound.total > (double)x->memory) {
        x->too_large++;
        return;
    }
    if (search_is_long(s)) {
        x->too_long++;
        return;
    }
    c.estimate = time_estimate(s, &share, s->hardware);
    keep(x, &c);
}

/* ---- by plan ------------------------------------------------------------- */

static int compare_exact(const void *left, const void *right)
{
    const Candidate *a = left, *b = right;
    double s = a->exact.step, t = b->exact.step;

    if (s < t || s > t)
        return s < t ? -1 : 1;
    if (a->exact.total != b->exact.total)
        return a->exact.total < b->exact.total ? -1 : 1;
    return (a->order > b->order) - (a->order < b->order);
}

static void progress(const Search *x)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%llu configurations, %u planned, %u fit\033[K",
                (unsigned long long)x->count.tried, x->planned, x->found.n);
}

static void drop(Search *x, const Exact *e)
{
    reason_count(x->arena, &x->count.reasons, e->reason, e->words);
}

static void order_found(Search *x)
{
    if (x->found.n)
        qsort(x->found.v, x->found.n, sizeof *x->found.v, compare_exact);
}

static Status plan_round(Search *x, Candidate *first, uint32_t n)
{
    const Spec *specs[ROUND];
    Exact exact[ROUND];

    for (uint32_t i = 0; i < n; i++) {
        first[i].spec = space_spec(x->arena, x->diag, x->space,
                                   &first[i].choice);
        mc_assert(first[i].spec);
        specs[i] = first[i].spec;
    }
    diag_clear(x->diag);
    STATUS_TRY(exact_plan(specs, n, PLAN_SKETCH, x->memory, exact));
    for (uint32_t i = 0; i < n; i++) {
        first[i].exact = exact[i];
        if (exact[i].code == CLI_DONE)
            vec_push(&x->found, first[i]);
        else
            drop(x, &exact[i]);
    }
    x->planned += n;
    order_found(x);
    return STATUS_NONE;
}

/* The least by which an estimate was too long. */
static double best_ratio(const Search *x)
{
    double best = 1e300;

    for (uint32_t i = 0; i < x->found.n; i++)
        best = MC_MIN(best,
                      x->found.v[i].exact.step / x->found.v[i].estimate.step);
    return best;
}

static bool is_settled(const Search *x, const Candidate *next)
{
    return x->found.n >= x->top &&
           next->estimate.step * best_ratio(x) >=
               x->found.v[x->top - 1].exact.step;
}

/* Which choices are the first `top`, as one number. */
static uint64_t first_mark(const Search *x)
{
    uint64_t mark = x->found.n < x->top;

    for (uint32_t i = 0; i < MC_MIN(x->top, x->found.n); i++)
        mark = mark * UINT64_C(0x9e3779b97f4a7c15) + x->found.v[i].order;
    return mark;
}

static Status plan_best(Search *x)
{
    uint64_t before = 0, now = 1;

    while (x->planned < MC_MIN(x->best.n, PLANNED_MAX) &&
           !is_settled(x, &x->best.v[x->planned]) &&
           (now != before || x->found.n < x->top)) {
        uint32_t n = MC_MIN(x->best.n - x->planned, ROUND);
        progress(x);
        STATUS_TRY(plan_round(x, &x->best.v[x->planned], n));
        before = now;
        now = first_mark(x);
    }
    return STATUS_NONE;
}

/* ---- more effort for the first ------------------------------------------ */

/* Takes out what does not fit after all. */
static void sift_found(Search *x)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < x->found.n; i++)
        if (x->found.v[i].exact.code == CLI_DONE)
            x->found.v[kept++] = x->found.v[i];
        else
            drop(x, &x->found.v[i].exact);
    x->found.n = kept;
    order_found(x);
}

/* Addresses that cannot be lower need no further work, and those of long
 * programs would take up to a minute to become a little lower. */
static bool deserves(const Candidate *c, PlanEffort effort)
{
    if (c->exact.effort >= effort)
        return false;
    return effort < PLAN_COMPILE ||
           (actions(c->spec) <= ACTIONS_FEW && !c->exact.lowest);
}

/* Plans with more effort what of the first was planned with less; how many
 * those were. */
static Status replan(Search *x, PlanEffort effort, uint32_t *out_done)
{
    const Spec *specs[TUNE_TOP_MAX] = {NULL};
    uint32_t at[TUNE_TOP_MAX], done = 0;
    Exact exact[TUNE_TOP_MAX];

    for (uint32_t i = 0; i < MC_MIN(x->top, x->found.n); i++)
        if (deserves(&x->found.v[i], effort)) {
            at[done] = i;
            specs[done++] = x->found.v[i].spec;
        }
    *out_done = done;
    STATUS_TRY(exact_plan(specs, done, effort, x->memory, exact));
    for (uint32_t i = 0; i < done; i++)
        x->found.v[at[i]].exact = exact[i];
    sift_found(x);
    return STATUS_NONE;
}

static Status plan_first(Search *x)
{
    uint32_t steps, compiles;

    do {
        progress(x);
        STATUS_TRY(replan(x, PLAN_STEP, &steps));
        STATUS_TRY(replan(x, PLAN_COMPILE, &compiles));
    } while (steps + compiles > 0);
    return STATUS_NONE;
}

/* ---- all ----------------------------------------------------------------- */

Status search_run(Search *x)
{
    double start = mc_seconds();

    space_walk(x->arena, x->diag, x->space, &x->count, judge, x);
    x->seconds_asked = mc_seconds() - start;
    STATUS_TRY(plan_best(x));
    x->seconds_sketched = mc_seconds() - start - x->seconds_asked;
    STATUS_TRY(plan_first(x));
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    x->seconds_planned =
        mc_seconds() - start - x->seconds_asked - x->seconds_sketched;
    return STATUS_NONE;
}

void search_free(Search *x)
{
    vec_free(&x->best);
    vec_free(&x->found);
    vec_free(&x->count.reasons);
}

Status search_own(Search *x, Candidate *out, bool *out_legal)
{
    Candidate c = {.choice = space_own(x->space)};

    c.spec = space_spec(x->arena, x->diag, x->space, &c.choice);
    *out_legal = c.spec != NULL;
    if (c.spec)
        STATUS_TRY(exact_plan(&c.spec, 1, PLAN_STEP, x->memory, &c.exact));
    *out = c;
    return STATUS_NONE;
}
