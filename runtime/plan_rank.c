/* plan_rank.c - what a class's plan means on one rank.
 *
 * A rank number is a mixed-radix number; an atom (size, stride) is one of its
 * digits or a part of one.  Everything rank-dependent in a plan is computed
 * from such digits here.  The plan has been checked: no index is tested again.
 */
#include "runtime/plan.h"

uint32_t plan_coordinate(const PlanAtom *a, uint32_t rank)
{
    return rank / a->stride % a->size;
}

int64_t plan_expr_value(const Plan *p, uint32_t expr, uint32_t rank)
{
    const PlanExpr *e = &p->exprs.v[expr];
    const PlanTerm *t = p->terms.v + e->terms.first;
    int64_t value = e->constant;

    for (uint32_t i = 0; i < e->terms.n; i++)
        value += plan_coordinate(&p->atoms.v[t[i].atom], rank) * t[i].factor;
    return value;
}

bool plan_has_rank(const Plan *p, uint32_t rank)
{
    if (rank >= p->job.v->world)
        return false;
    for (uint32_t i = 0; i < p->members.n; i++) {
        const PlanMember *m = &p->members.v[i];
        if (plan_coordinate(&p->atoms.v[m->atom], rank) != m->value)
            return false;
    }
    return true;
}

uint32_t plan_peer_rank(const Plan *p, uint32_t peer, uint32_t rank)
{
    const PlanPeer *row = &p->peers.v[peer];
    const PlanAtom *a = &p->atoms.v[row->atom];
    uint32_t own = plan_coordinate(a, rank);
    int64_t size = a->size;
    int64_t other = (((int64_t)own + row->shift) % size + size) % size;

    return rank - own * a->stride + (uint32_t)other * a->stride;
}

/* Coordinate number `i` of the group's atom `k` (0 is the first). */
static uint32_t member_coordinate(const Plan *p, const PlanGroup *g, uint32_t k,
                                  uint32_t i)
{
    if (k == 0 && g->picks.n)
        return p->lists.v[g->picks.first + i];
    return i;
}

uint32_t plan_group_ranks(const Plan *p, uint32_t group, uint32_t rank,
                          uint32_t *ranks, uint32_t cap, uint32_t *out_own)
{
    const PlanGroup *g = &p->groups.v[group];
    const uint32_t *atoms = p->lists.v + g->atoms.first;
    uint32_t base = rank, size = 1;

    for (uint32_t k = 0; k < g->atoms.n; k++) {
        const PlanAtom *a = &p->atoms.v[atoms[k]];
        base -= plan_coordinate(a, rank) * a->stride;
        size *= k == 0 && g->picks.n ? g->picks.n : a->size;
    }
    *out_own = UINT32_MAX;
    for (uint32_t i = 0; i < size; i++) {
        uint32_t member = base, rest = i;
        for (uint32_t k = g->atoms.n; k-- > 0;) {
            const PlanAtom *a = &p->atoms.v[atoms[k]];
            uint32_t n = k == 0 && g->picks.n ? g->picks.n : a->size;
            member += member_coordinate(p, g, k, rest % n) * a->stride;
            rest /= n;
        }
        if (member == rank)
            *out_own = i;
        if (i < cap)
            ranks[i] = member;
    }
    return size;
}

/* Where the part lies in what of its buffer is held. */
static void part_place(const Plan *p, const PlanField *f, uint32_t rank,
                       PlanPart *out)
{
    int64_t share = 0;

    for (uint32_t k = 0; k < f->share.n; k++) {
        const PlanAtom *a = &p->atoms.v[p->lists.v[f->share.first + k]];
        share = share * a->size + plan_coordinate(a, rank);
    }
    out->first = (int64_t)(f->inside / plan_dtype_bytes(f->dtype)) -
                 share * f->held;
    out->held = f->held ? f->held : INT64_MAX;
}

void plan_part_clip(const PlanPart *p, int64_t local, int64_t n, int64_t step,
                    int64_t *out_from, int64_t *out_to)
{
    int64_t room = p->held - local;

    *out_from = local < 0 ? MC_MIN((step - 1 - local) / step, n) : 0;
    *out_to = room <= 0 ? 0 : MC_MIN((room - 1) / step + 1, n);
    *out_to = MC_MAX(*out_from, *out_to);
}

/* Dense, but for the pitch of the first dimension. */
static void part_steps(const PlanField *f, PlanPart *out)
{
    int64_t each = (int64_t)plan_dtype_bytes(f->dtype), step = 1;

    for (uint32_t d = out->ndims; d-- > 0;) {
        out->step[d] = step;
        step *= out->size[d];
    }
    out->runs = 1;
    out->run = out->gap = out->elements;
    if (!f->pitch || out->ndims == 0)
        return;
    out->step[0] = out->gap = (int64_t)f->pitch / each;
    out->runs = out->size[0];
    out->run = out->elements / out->runs;
}

void plan_field_part(const Plan *p, const PlanTensor *t, const PlanField *f,
                     uint32_t rank, PlanPart *out)
{
    *out = (PlanPart){.ndims = t->dims.n, .elements = 1};
    for (uint32_t d = 0; d < t->dims.n; d++) {
        const PlanSplit *split = &p->splits.v[f->splits + d];
        int64_t size = p->dims.v[t->dims.first + d].padded;
        int64_t start = 0;
        for (uint32_t k = 0; k < split->n; k++) {
            uint32_t atom = p->lists.v[split->first + k];
            size /= p->atoms.v[atom].size;
            start += plan_coordinate(&p->atoms.v[atom], rank) * size;
        }
        out->size[d] = size;
        out->start[d] = start;
        out->elements *= size;
    }
    part_steps(f, out);
    part_place(p, f, rank, out);
}

const PlanField *plan_tensor_field(const Plan *p, const PlanTensor *t,
                                   PlanFieldKind kind)
{
    for (uint32_t i = 0; i < t->fields.n; i++)
        if (p->fields.v[t->fields.first + i].kind == kind)
            return &p->fields.v[t->fields.first + i];
    return NULL;
}

static bool name_fill(const char *pattern, const char *mark, uint32_t number,
                      char *out, size_t cap)
{
    const char *at = strstr(pattern, mark);
    int n;

    if (at)
        n = snprintf(out, cap, "%.*s%u%s", (int)(at - pattern), pattern, number,
                     at + strlen(mark));
    else
        n = snprintf(out, cap, "%s", pattern);
    return n >= 0 && (size_t)n < cap;
}

bool plan_layer_name(const char *pattern, uint32_t layer, char *out, size_t cap)
{
    return name_fill(pattern, "{l}", layer, out, cap);
}

bool plan_part_name(const char *pattern, uint32_t part, char *out, size_t cap)
{
    return name_fill(pattern, "{e}", part, out, cap);
}

int64_t plan_export_parts(const Plan *p, const PlanTensor *t)
{
    bool parts = t->export_name && t->dims.n > 0 &&
                 strstr(plan_text(p, t->export_name), "{e}");

    return parts ? p->dims.v[t->dims.first].logical : 1;
}
