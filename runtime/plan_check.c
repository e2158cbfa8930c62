/* plan_check.c - refuses a damaged plan before anything uses it.
 *
 * One function per table looks at one row; the first fault is kept in `c` with
 * the table, row and field it was found in, and ends the walk.  Tables are
 * visited in an order in which rows only depend on checked ones.  Training,
 * data and state are looked at in plan_check_state.c, instructions, which need
 * the values of registers, in plan_check_code.c.  Cost is linear in the size of
 * the plan.
 */
#include "runtime/plan_check_priv.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_WORLD = 1 << 24, MAX_EVENTS = 1 << 20 };

/* ---- helpers, also for plan_check_code.c --------------------------------- */

bool plan_must(PlanCheck *c, bool ok, const char *fmt, ...)
{
    char what[200];
    va_list ap;

    if (ok || c->failed)
        return !c->failed;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    c->failed = status_make(STATUS_INPUT, "damaged plan: %s[%u]: %s", c->table,
                            c->row, what);
    return false;
}

bool plan_must_row(PlanCheck *c, uint32_t i, uint32_t n, const char *field)
{
    return plan_must(c, i < n, "%s %u is not below %u", field, i, n);
}

bool plan_must_range(PlanCheck *c, PlanRange r, uint32_t n, const char *field)
{
    return plan_must(c, r.first <= n && r.n <= n - r.first,
                     "%s %u+%u passes the end %u", field, r.first, r.n, n);
}

bool plan_must_follow(PlanCheck *c, PlanRange r, uint32_t n, uint32_t *next,
                      const char *field)
{
    if (!plan_must_range(c, r, n, field) ||
        !plan_must(c, r.first == *next, "%s start at %u, not %u", field,
                   r.first, *next))
        return false;
    *next += r.n;
    return true;
}

bool plan_must_text(PlanCheck *c, PlanStr s, const char *field)
{
    return plan_must_row(c, s, c->p->strings.n, field);
}

bool plan_must_positive(PlanCheck *c, int64_t value, const char *field)
{
    return plan_must(c, value > 0 && value < (int64_t)1 << PLAN_EXTENT_BITS,
                     "%s is %lld", field, (long long)value);
}

bool plan_must_finite(PlanCheck *c, double value, const char *field)
{
    return plan_must(c, value - value == 0, "%s is not a number", field);
}

bool plan_must_address(PlanCheck *c, int64_t low, int64_t high, uint64_t bytes)
{
    for (uint32_t i = 0; i < c->p->memories.n; i++) {
        const PlanMemory *m = &c->p->memories.v[i];
        int64_t start = (int64_t)m->start;
        int64_t end = start + (int64_t)m->bytes;
        if (low >= start && low <= end)
            return plan_must(c, high <= end && bytes <= (uint64_t)(end - high),
                             "address %lld with %llu bytes passes the end of "
                             "memory %u, %lld",
                             (long long)high, (unsigned long long)bytes, i,
                             (long long)end);
    }
    return plan_must(c, false, "address %lld lies in no memory",
                     (long long)low);
}

/* ---- the job and the mesh ------------------------------------------------ */

static bool check_strings(PlanCheck *c)
{
    const char *s = c->p->strings.v;

    return plan_must(c, s[0] == '\0' && s[c->p->strings.n - 1] == '\0',
                     "the texts do not begin and end with a NUL");
}

static bool check_job(PlanCheck *c, const PlanJob *j)
{
    return plan_must_text(c, j->name, "name") &&
           plan_must_text(c, j->version, "version") &&
           plan_must_text(c, j->class_name, "class_name") &&
           plan_must(c, j->world > 0 && j->world <= MAX_WORLD, "world is %u",
                     j->world) &&
           plan_must(c, j->events <= MAX_EVENTS, "events is %u", j->events) &&
           plan_must_row(c, j->reporter, c->p->exprs.n, "reporter") &&
           plan_must(c, j->has_reporter <= 1, "has_reporter is no flag");
}

static bool check_program(PlanCheck *c, const PlanProgram *x)
{
    return plan_must_row(c, x->kind, PLAN_EVALUATE + 1, "kind") &&
           plan_must_row(c, x->segment, c->p->segments.n, "segment") &&
           plan_must(c, c->p->segments.v[x->segment].regs.n == 0,
                     "a program has registers") &&
           plan_must(c, x->microbatches > 0 &&
                            x->microbatches <= c->p->training.v->microbatches,
                     "wrong number of microbatches") &&
           plan_must(c, c->row || (x->kind == PLAN_TRAIN &&
                                   x->microbatches ==
                                       c->p->training.v->microbatches),
                     "the first must train with the whole batch");
}

static bool check_memory(PlanCheck *c, const PlanMemory *m)
{
    const PlanMemory *before = m - 1;
    uint64_t from = c->row ? before->start + before->bytes : 0;
    uint64_t limit = (uint64_t)1 << PLAN_EXTENT_BITS;

    return plan_must_text(c, m->name, "name") &&
           plan_must(c, m->kind <= PLAN_MEMORY_HOST, "kind is %u", m->kind) &&
           plan_must(c,
                     m->start >= from && m->start < limit && m->bytes < limit,
                     "wrong extent") &&
           plan_must(c, c->row || m->start == 0, "the arena must start at 0");
}

static bool check_atom(PlanCheck *c, const PlanAtom *a)
{
    uint64_t span = (uint64_t)a->size * a->stride;

    return plan_must_text(c, a->name, "name") &&
           plan_must(c, span > 0 && c->p->job.v->world % span == 0,
                     "size %u and stride %u do not divide the world", a->size,
                     a->stride);
}

static bool check_member(PlanCheck *c, const PlanMember *m)
{
    return plan_must_row(c, m->atom, c->p->atoms.n, "atom") &&
           plan_must_row(c, m->value, c->p->atoms.v[m->atom].size, "value");
}

static bool check_term(PlanCheck *c, const PlanTerm *t)
{
    return plan_must_row(c, t->atom, c->p->atoms.n, "atom");
}

/* Records the smallest and largest value over all ranks. */
static bool check_expr(PlanCheck *c, const PlanExpr *e)
{
    PlanSpan *span = &c->exprs[c->row];

    if (!plan_must_range(c, e->terms, c->p->terms.n, "terms") ||
        !plan_must(c, e->terms.n <= 64, "too many terms") ||
        !plan_must(c, c->row || (e->terms.n == 0 && e->constant == 0),
                   "the first must be 0"))
        return false;
    *span = (PlanSpan){e->constant, e->constant};
    for (uint32_t i = 0; i < e->terms.n; i++) {
        const PlanTerm *t = &c->p->terms.v[e->terms.first + i];
        int64_t last = c->p->atoms.v[t->atom].size - 1, reach;
        int64_t *bound = t->factor < 0 ? &span->low : &span->high;
        if (!plan_must(c,
                       !__builtin_mul_overflow(last, t->factor, &reach) &&
                           !__builtin_add_overflow(*bound, reach, bound),
                       "overflow"))
            return false;
    }
    return true;
}

/* Two pieces of the mesh must not share a digit. */
static bool atoms_disjoint(const PlanAtom *a, const PlanAtom *b)
{
    uint64_t a_end = (uint64_t)a->size * a->stride;
    uint64_t b_end = (uint64_t)b->size * b->stride;

    return a->size == 1 || b->size == 1 || b->stride % a_end == 0 ||
           a->stride % b_end == 0;
}

bool plan_must_atoms(PlanCheck *c, PlanRange r, int64_t *out_size)
{
    const Plan *p = c->p;

    if (!plan_must_range(c, r, p->lists.n, "atoms") ||
        !plan_must(c, r.n <= 32, "too many atoms"))
        return false;
    *out_size = 1;
    for (uint32_t i = 0; i < r.n; i++) {
        uint32_t atom = p->lists.v[r.first + i];
        if (!plan_must_row(c, atom, p->atoms.n, "atom"))
            return false;
        for (uint32_t j = 0; j < i; j++)
            if (!plan_must(c,
                           atoms_disjoint(&p->atoms.v[atom],
                                          &p->atoms.v[p->lists.v[r.first + j]]),
                           "atoms overlap"))
                return false;
        *out_size *= p->atoms.v[atom].size;
        if (!plan_must(c, *out_size <= PLAN_MAX_GROUP, "too many members"))
            return false;
    }
    return true;
}

static bool check_group(PlanCheck *c, const PlanGroup *g)
{
    const uint32_t *list = c->p->lists.v;
    int64_t size;

    if (!plan_must_text(c, g->name, "name") ||
        !plan_must_atoms(c, g->atoms, &size) ||
        !plan_must_range(c, g->picks, c->p->lists.n, "picks") ||
        !plan_must(c, !g->picks.n || g->atoms.n, "picks without an atom"))
        return false;
    for (uint32_t i = 0; i < g->picks.n; i++) {
        const uint32_t *pick = list + g->picks.first + i;
        uint32_t atom = list[g->atoms.first];
        if (!plan_must_row(c, *pick, c->p->atoms.v[atom].size, "pick") ||
            !plan_must(c, i == 0 || pick[0] > pick[-1], "unordered picks"))
            return false;
    }
    return true;
}

int64_t plan_check_group_size(const Plan *p, uint32_t group)
{
    const PlanGroup *g = &p->groups.v[group];
    int64_t size = 1;

    for (uint32_t i = 0; i < g->atoms.n; i++) {
        uint32_t atom = p->lists.v[g->atoms.first + i];
        size *= i == 0 && g->picks.n ? g->picks.n : p->atoms.v[atom].size;
    }
    return size;
}

static bool check_peer(PlanCheck *c, const PlanPeer *peer)
{
    return plan_must_text(c, peer->name, "name") &&
           plan_must_row(c, peer->atom, c->p->atoms.n, "atom");
}

static bool check_stream(PlanCheck *c, const PlanStream *s)
{
    return plan_must_text(c, s->name, "name") &&
           plan_must(c,
                     s->kind <= PLAN_STREAM_COPY &&
                         (s->kind == PLAN_STREAM_COMPUTE) == (c->row == 0),
                     "kind is %u", s->kind);
}

static bool check_place(PlanCheck *c, const PlanPlace *place)
{
    return plan_must_text(c, place->file, "file") &&
           plan_must_text(c, place->op, "op") &&
           plan_must_text(c, place->tensor, "tensor");
}

/* ---- what instructions refer to ------------------------------------------ */

static bool check_kernel(PlanCheck *c, const PlanKernel *k)
{
    return plan_must_text(c, k->symbol, "symbol") &&
           plan_must(c, k->symbol != PLAN_NONE, "no symbol") &&
           plan_must(c, k->phases == 1 || k->phases == 2, "phases is %u",
                     k->phases) &&
           plan_must(c, k->serial <= 1, "serial is no flag") &&
           plan_must(c, k->ptrs <= PLAN_MAX_ARGS && k->imms <= PLAN_MAX_ARGS,
                     "too many arguments") &&
           plan_must(c, k->dtype < PLAN_DTYPES, "no such type") &&
           plan_must(c, k->work.flops >= 0 && k->work.bytes >= 0 &&
                            isfinite(k->work.flops + k->work.bytes),
                     "no amount of work");
}

static bool must_gemm_types(PlanCheck *c, const PlanGemm *g)
{
    return plan_must(c,
                     g->type_a == g->type_b && g->type_a <= PLAN_F16 &&
                         (g->type_c == PLAN_F32 || g->type_c == g->type_a) &&
                         (g->type_bias == PLAN_F32 ||
                          g->type_bias == g->type_a),
                     "no such product of types") &&
           plan_must(c,
                     g->trans_a <= 1 && g->trans_b <= 1 && g->accumulate <= 1 &&
                         g->bias <= 1 && g->residual <= 1,
                     "no flag") &&
           plan_must(c, g->activation < PLAN_ACTIVATIONS, "no activation") &&
           plan_must(c, !g->residual || !g->accumulate,
                     "a residual beside what C holds");
}

static bool must_gemm_parts(PlanCheck *c, const PlanGemm *g)
{
    int64_t slots = g->filled == PLAN_ROWS_FILLED ? g->m : g->k;

    if (g->filled == PLAN_ALL_FILLED)
        return true;
    return plan_must(c, g->filled < PLAN_FILLINGS, "no filling") &&
           plan_must(c, g->parts > 0 && slots % g->parts == 0,
                     "parts do not divide the slots") &&
           plan_must(c, !g->bias && !g->residual && !g->activation,
                     "counted slots with more to do");
}

static bool check_gemm(PlanCheck *c, const PlanGemm *g)
{
    return must_gemm_types(c, g) && plan_must_positive(c, g->m, "m") &&
           plan_must_positive(c, g->n, "n") &&
           plan_must_positive(c, g->k, "k") &&
           plan_must_positive(c, g->batch, "batch") &&
           plan_must(c, g->lda >= (g->trans_a ? g->m : g->k),
                     "lda too small") &&
           plan_must(c, g->ldb >= (g->trans_b ? g->k : g->n),
                     "ldb too small") &&
           plan_must(c, g->ldc >= g->n, "ldc too small") &&
           plan_must(c,
                     g->stride_a >= 0 && g->stride_b >= 0 && g->stride_c >= 0,
                     "negative stride") &&
           must_gemm_parts(c, g);
}

static bool check_collective(PlanCheck *c, const PlanCollective *k)
{
    return plan_must(c, k->kind < PLAN_COLLECTIVES, "kind is %u", k->kind) &&
           plan_must(c, k->reduce <= PLAN_MAX, "reduce is %u", k->reduce) &&
           plan_must(c, k->dtype < PLAN_DTYPES,
                     "dtype is %u", k->dtype) &&
           plan_must_row(c, k->group, c->p->groups.n, "group") &&
           plan_must(c, k->root < plan_check_group_size(c->p, k->group),
                     "root is no member") &&
           plan_must(c, k->count > 0 && k->count <= INT32_MAX, "count is %lld",
                     (long long)k->count);
}

static bool check_reg(PlanCheck *c, const PlanReg *r)
{
    return plan_must(c, r->kind <= PLAN_INTEGER, "kind is %u", r->kind) &&
           plan_must_text(c, r->name, "name");
}

static bool check_segment(PlanCheck *c, const PlanSegment *s)
{
    return plan_must_text(c, s->name, "name") &&
           plan_must_follow(c, s->instrs, c->p->instrs.n, &c->next_instr,
                            "instructions") &&
           plan_must_follow(c, s->regs, c->p->regs.n, &c->next_reg,
                            "registers") &&
           plan_must(c, s->regs.n <= PLAN_MAX_ARGS, "too many registers");
}

static bool check_instr(PlanCheck *c, const PlanInstr *in)
{
    return plan_must(c, in->op < PLAN_OPS, "op is %u", in->op) &&
           plan_must_follow(c, in->operands, c->p->operands.n, &c->next_operand,
                            "operands") &&
           plan_must_row(c, in->stream, c->p->streams.n, "stream") &&
           plan_must_row(c, in->place, c->p->places.n, "place");
}

static bool check_operand(PlanCheck *c, const PlanOperand *o)
{
    return plan_must(c, o->kind <= PLAN_INTEGER, "kind is %u", o->kind) &&
           plan_must(c, o->access <= (PLAN_READ | PLAN_WRITE), "access is %u",
                     o->access) &&
           plan_must_row(c, o->expr, c->p->exprs.n, "expr") &&
           plan_must(c, o->bytes < (uint64_t)1 << PLAN_EXTENT_BITS,
                     "too large");
}

/* ---- the walk ------------------------------------------------------------ */

/* Checks every row of a table with `check`. */
#define EACH(table_, check)                                                    \
    for (c->table = #table_, c->row = 0; c->row < c->p->table_.n; c->row++)    \
        if (!check(c, &c->p->table_.v[c->row]))                                \
            return;

/* Every part has found its owner. */
static bool check_complete(PlanCheck *c)
{
    const Plan *p = c->p;

    c->table = "tensors, segments";
    return plan_must(
        c,
        c->next_dim == p->dims.n && c->next_field == p->fields.n &&
            c->next_split == p->splits.n && c->next_instr == p->instrs.n &&
            c->next_reg == p->regs.n && c->next_operand == p->operands.n,
        "rows that belong to nothing");
}

static void check_tables(PlanCheck *c)
{
    c->table = "strings";
    if (!check_strings(c))
        return;
    EACH(job, check_job)
    EACH(memories, check_memory)
    EACH(atoms, check_atom)
    EACH(members, check_member)
    EACH(terms, check_term)
    EACH(exprs, check_expr)
    EACH(groups, check_group)
    EACH(peers, check_peer)
    EACH(streams, check_stream)
    EACH(places, check_place)
    EACH(training, plan_check_training)
    EACH(sources, plan_check_source)
    EACH(data, plan_check_data)
    EACH(dims, plan_check_dim)
    EACH(splits, plan_check_split)
    EACH(fields, plan_check_field)
    EACH(tensors, plan_check_tensor)
    EACH(kernels, check_kernel)
    EACH(gemms, check_gemm)
    EACH(collectives, check_collective)
    EACH(regs, check_reg)
    EACH(segments, check_segment)
    EACH(programs, check_program)
    EACH(instrs, check_instr)
    EACH(operands, check_operand)
    if (check_complete(c))
        plan_check_code(c);
}

Status plan_check(const Plan *p)
{
    PlanCheck c = {.p = p};

    c.exprs = calloc(p->exprs.n, sizeof *c.exprs);
    c.regs = calloc((size_t)p->regs.n + 1, sizeof *c.regs);
    c.segments = calloc(p->segments.n, sizeof *c.segments);
    if (c.exprs && c.regs && c.segments)
        check_tables(&c);
    else
        c.failed = status_make(STATUS_SYSTEM, "no memory to check the plan");
    free(c.exprs);
    free(c.regs);
    free(c.segments);
    return c.failed;
}
