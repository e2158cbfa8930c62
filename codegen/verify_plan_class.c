/* verify_plan_class.c - all ranks of a class: is every byte what it should be?
 *
 * They differ in addresses only where an operand has an expression of the rank.
 * If they only read there, one walk reads for all of them: what it proves holds
 * for each.  If not, or if that finds a fault, which may be nobody's, each
 * different set of addresses is walked once.
 */
#include "codegen/verify_plan_priv.h"

#include <stdlib.h>

/* ---- all at a time ------------------------------------------------------ */

/* The least and the greatest value of every expression. */
static void extremes(const PlanClass *of, int64_t *low, int64_t *high)
{
    const Plan *p = of->plan;

    for (uint32_t i = 0; i < p->exprs.n; i++) {
        low[i] = high[i] = plan_expr_value(p, i, of->ranks[0]);
        for (uint32_t r = 1; p->exprs.v[i].terms.n && r < of->n; r++) {
            int64_t value = plan_expr_value(p, i, of->ranks[r]);
            low[i] = MC_MIN(low[i], value);
            high[i] = MC_MAX(high[i], value);
        }
    }
}

/* Whether ranks differ at most in what the instruction reads: no such address
 * is written, and none handed to a call. */
static bool only_read(const Plan *p, const PlanInstr *in,
                      const uint64_t *spread)
{
    for (uint32_t i = 0; i < in->operands.n; i++) {
        uint32_t o = in->operands.first + i;
        if (spread[o] &&
            (in->op == PLAN_CALL || (p->operands.v[o].access & PLAN_WRITE)))
            return false;
    }
    return true;
}

/* False if ranks differ in more than where they read. */
static bool reach_of(const PlanClass *of, Arena *a, Reach *out)
{
    const Plan *p = of->plan;
    int64_t *low = arena_array(a, int64_t, p->exprs.n);
    int64_t *high = arena_array(a, int64_t, p->exprs.n);

    extremes(of, low, high);
    *out = (Reach){arena_array(a, int64_t, p->operands.n),
                   arena_array(a, uint64_t, p->operands.n)};
    for (uint32_t i = 0; i < p->operands.n; i++) {
        const PlanOperand *o = &p->operands.v[i];
        out->low[i] = o->offset + low[o->expr];
        out->spread[i] = (uint64_t)(high[o->expr] - low[o->expr]);
    }
    for (uint32_t i = 0; i < p->instrs.n; i++)
        if (!only_read(p, &p->instrs.v[i], out->spread))
            return false;
    return true;
}

/* ---- one by one --------------------------------------------------------- */

typedef struct {
    uint64_t hash;
    uint32_t rank;
} Variant;

static int variant_compare(const void *left, const void *right)
{
    const Variant *a = left, *b = right;
    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

/* The expressions that addresses depend on; returns how many. */
static uint32_t address_exprs(const Plan *p, Arena *a, uint32_t *out)
{
    bool *used = arena_array(a, bool, p->exprs.n);
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->operands.n; i++) {
        const PlanOperand *o = &p->operands.v[i];
        if (o->kind != PLAN_ADDRESS || used[o->expr] ||
            p->exprs.v[o->expr].terms.n == 0)
            continue;
        used[o->expr] = true;
        out[n++] = o->expr;
    }
    return n;
}

static uint64_t addresses_hash(const Plan *p, const uint32_t *exprs, uint32_t n,
                               uint32_t rank)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < n; i++) {
        hash ^= (uint64_t)plan_expr_value(p, exprs[i], rank);
        hash *= UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return hash;
}

/* Ranks with different addresses, the lowest of each; *out_n of them. */
static Variant *variants_of(const PlanClass *of, Arena *a, uint32_t *out_n)
{
    uint32_t *exprs = arena_array(a, uint32_t, of->plan->exprs.n);
    uint32_t nexprs = address_exprs(of->plan, a, exprs), n = 0;
    Variant *list = arena_array(a, Variant, of->n);
    for (uint32_t i = 0; i < of->n; i++)
        list[i] =
            (Variant){addresses_hash(of->plan, exprs, nexprs, of->ranks[i]),
                      of->ranks[i]};
    qsort(list, of->n, sizeof *list, variant_compare);
    for (uint32_t i = 0; i < of->n; i++)
        if (i == 0 || list[i].hash != list[i - 1].hash)
            list[n++] = list[i];
    *out_n = n;
    return list;
}

/* What fails here is reported by whoever looks at each rank. */
static bool verify_together(Verify *v, const PlanClass *of, Trace *trace)
{
    Diag *diag = v->diag;
    PlanVerifyStats stats = v->stats;
    Reach reach;
    bool ok;

    if (!reach_of(of, v->arena, &reach))
        return false;
    v->diag = diag_new(v->arena);
    ok = verify_rank(v, of, of->ranks[0], &reach, trace);
    diag_free(v->diag);
    v->diag = diag;
    if (!ok) {
        v->stats = stats;
        trace->n = 0;
    }
    return ok;
}

bool verify_bytes(Verify *v, uint32_t class_index)
{
    const PlanClass *of = &v->classes[class_index];
    uint32_t n;
    Variant *variants = variants_of(of, v->arena, &n);
    Trace *trace = &v->traces[class_index];

    v->stats.variants += n;
    if (n > 1 && verify_together(v, of, trace))
        return true;
    for (uint32_t i = 0; i < n; i++)
        if (!verify_rank(v, of, variants[i].rank, &(Reach){0},
                         i == 0 ? trace : NULL))
            return false;
    return true;
}
