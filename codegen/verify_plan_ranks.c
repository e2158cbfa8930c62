/* verify_plan_ranks.c - who talks to whom, for whole classes at a time.
 *
 * All ranks of a class execute the same instructions, so they may stand for
 * each other if whom they talk to looks the same from each of them: that the
 * other end of a peer is always in the same class, and that the members of a
 * group are always from the same set of classes.  Both are looked up for every
 * rank here; from then on only classes are compared.
 *
 * The result is lines: queues in which the n-th instruction of one class must
 * meet the n-th of the others.
 */
#include "codegen/verify_plan_priv.h"

static const uint32_t NO_ROW = UINT32_MAX;

/* ---- every rank once ---------------------------------------------------- */

static bool take_rank(Verify *v, uint32_t c, uint32_t rank)
{
    if (rank >= v->world || !plan_has_rank(v->classes[c].plan, rank)) {
        diag_error(v->diag, (Loc){0}, "MC0701",
                   "rank %u is given the plan of class %u, which is not for it",
                   rank, c);
        return false;
    }
    if (v->class_of[rank] != NO_ROW) {
        diag_error(v->diag, (Loc){0}, "MC0701", "rank %u has two plans", rank);
        return false;
    }
    v->class_of[rank] = c;
    return true;
}

bool verify_ranks(Verify *v)
{
    memset(v->class_of, 0xff, sizeof *v->class_of * v->world);
    for (uint32_t c = 0; c < v->n; c++)
        for (uint32_t i = 0; i < v->classes[c].n; i++)
            if (!take_rank(v, c, v->classes[c].ranks[i]))
                return false;
    for (uint32_t rank = 0; rank < v->world; rank++) {
        if (v->class_of[rank] != NO_ROW)
            continue;
        diag_error(v->diag, (Loc){0}, "MC0701", "rank %u has no plan", rank);
        return false;
    }
    return true;
}

/* ---- groups ------------------------------------------------------------- */

static bool same_list(const Plan *p, PlanRange x, const Plan *q, PlanRange y)
{
    return x.n == y.n && memcmp(p->lists.v + x.first, q->lists.v + y.first,
                                sizeof(uint32_t) * x.n) == 0;
}

static bool same_atoms(const Plan *p, PlanRange x, const Plan *q, PlanRange y)
{
    for (uint32_t i = 0; i < x.n && x.n == y.n; i++) {
        const PlanAtom *a = &p->atoms.v[p->lists.v[x.first + i]];
        const PlanAtom *b = &q->atoms.v[q->lists.v[y.first + i]];
        if (a->size != b->size || a->stride != b->stride)
            return false;
    }
    return x.n == y.n;
}

/* The row of a group, whichever plan it comes from. */
static uint32_t group_find(Verify *v, const Plan *p, uint32_t row)
{
    const PlanGroup *g = &p->groups.v[row];
    for (uint32_t i = 0; i < v->groups.n; i++) {
        const Group *known = &v->groups.v[i];
        const PlanGroup *h = &known->plan->groups.v[known->row];
        if (same_atoms(p, g->atoms, known->plan, h->atoms) &&
            same_list(p, g->picks, known->plan, h->picks))
            return i;
    }
    vec_push(&v->groups,
             ((Group){p, row, arena_array(v->arena, uint32_t, v->world)}));
    return v->groups.n - 1;
}

/* The first member of the group of `rank`; NO_ROW if it is in none. */
static uint32_t first_member(const Plan *p, uint32_t row, uint32_t rank)
{
    const PlanGroup *g = &p->groups.v[row];
    bool inside = g->picks.n == 0;
    uint32_t first = rank;
    for (uint32_t k = 0; k < g->atoms.n; k++) {
        const PlanAtom *a = &p->atoms.v[p->lists.v[g->atoms.first + k]];
        uint32_t own = plan_coordinate(a, rank);
        first -= own * a->stride;
        if (k > 0 || g->picks.n == 0)
            continue;
        first += p->lists.v[g->picks.first] * a->stride;
        for (uint32_t i = 0; i < g->picks.n; i++)
            inside |= p->lists.v[g->picks.first + i] == own;
    }
    return inside ? first : NO_ROW;
}

static uint32_t set_find(Verify *v, const bool *in, uint32_t n)
{
    ClassSet set = {0, arena_array(v->arena, uint32_t, n)};
    for (uint32_t c = 0; c < v->n; c++)
        if (in[c])
            set.classes[set.n++] = c;
    for (uint32_t i = 1; i < v->sets.n; i++)
        if (v->sets.v[i].n == n && memcmp(v->sets.v[i].classes, set.classes,
                                          sizeof(uint32_t) * n) == 0)
            return i;
    vec_push(&v->sets, set);
    return v->sets.n - 1;
}

/* The classes of the group that begins at rank `first`; 0 if its members do
 * not agree that they form it. */
static uint32_t group_classes(Verify *v, const Plan *p, uint32_t row,
                              uint32_t first)
{
    uint32_t *ranks = arena_array(v->arena, uint32_t, v->world), own, n = 0;
    bool *in = arena_array(v->arena, bool, v->n);
    uint32_t size = plan_group_ranks(p, row, first, ranks, v->world, &own);
    for (uint32_t i = 0; i < size; i++) {
        if (i >= v->world || ranks[i] >= v->world ||
            first_member(p, row, ranks[i]) != first)
            return 0;
        n += !in[v->class_of[ranks[i]]];
        in[v->class_of[ranks[i]]] = true;
    }
    return set_find(v, in, n);
}

/* The set of classes in the group of a class's ranks, or 0 after reporting
 * that they differ. */
static uint32_t class_group(Verify *v, uint32_t c, uint32_t row, uint32_t group)
{
    const PlanClass *of = &v->classes[c];
    uint32_t set = 0;
    for (uint32_t i = 0; i < of->n; i++) {
        uint32_t first = first_member(of->plan, row, of->ranks[i]);
        uint32_t *known =
            first < v->world ? &v->groups.v[group].members[first] : NULL;
        if (known && *known == 0)
            *known = group_classes(v, of->plan, row, first);
        if (known && *known != 0 && (i == 0 || *known == set)) {
            set = *known;
            continue;
        }
        diag_error(v->diag, (Loc){0}, "MC0702",
                   "rank %u does not find itself and its class in group %s",
                   of->ranks[i],
                   plan_text(of->plan, of->plan->groups.v[row].name));
        return 0;
    }
    return set;
}

/* ---- lines of collectives ------------------------------------------------ */

static uint32_t line_add(Verify *v, Line line)
{
    line.steps = arena_alloc(v->arena, sizeof *line.steps * line.nclasses);
    vec_push(&v->lines, line);
    return v->lines.n - 1;
}

static uint32_t collective_line(Verify *v, uint32_t group, const char *stream,
                                const ClassSet *set)
{
    for (uint32_t i = 0; i < v->lines.n; i++) {
        const Line *line = &v->lines.v[i];
        if (line->group == group && line->classes == set->classes &&
            strcmp(line->name, stream) == 0)
            return i;
    }
    return line_add(v, (Line){.group = group,
                              .name = stream,
                              .nclasses = set->n,
                              .classes = set->classes});
}

/* `sets` remembers the classes in each group of the plan. */
static uint32_t line_of_collective(Verify *v, uint32_t c, const Step *step,
                                   uint32_t *sets)
{
    const Plan *p = v->classes[c].plan;
    uint32_t row = p->collectives.v[p->instrs.v[step->instr].index].group;
    uint32_t group = group_find(v, p, row);
    if (sets[row] == 0)
        sets[row] = class_group(v, c, row, group);
    if (sets[row] == 0)
        return NO_ROW;
    return collective_line(v, group,
                           plan_text(p, p->streams.v[step->stream].name),
                           &v->sets.v[sets[row]]);
}

/* ---- lines of messages --------------------------------------------------- */

/* The class at the other end of a peer, the same for all ranks of class c. */
static uint32_t peer_class(Verify *v, uint32_t c, uint32_t peer)
{
    const PlanClass *of = &v->classes[c];
    uint32_t other = NO_ROW;
    for (uint32_t i = 0; i < of->n; i++) {
        uint32_t rank = plan_peer_rank(of->plan, peer, of->ranks[i]);
        uint32_t found = rank < v->world ? v->class_of[rank] : NO_ROW;
        if (found == NO_ROW || (i > 0 && found != other)) {
            diag_error(v->diag, (Loc){0}, "MC0702",
                       "the peer %s of rank %u is rank %u, which is none or of "
                       "another class than for the ranks before",
                       plan_text(of->plan, of->plan->peers.v[peer].name),
                       of->ranks[i], rank);
            return NO_ROW;
        }
        other = found;
    }
    return other;
}

/* The rank of class c whose peer is `rank`, or NO_ROW. */
static uint32_t rank_with_peer(const Verify *v, uint32_t c, uint32_t peer,
                               uint32_t rank)
{
    const PlanClass *of = &v->classes[c];
    for (uint32_t i = 0; i < of->n; i++)
        if (plan_peer_rank(of->plan, peer, of->ranks[i]) == rank)
            return of->ranks[i];
    return NO_ROW;
}

static uint32_t message_line(Verify *v, uint32_t from, uint32_t to,
                             uint32_t target, uint32_t channel)
{
    for (uint32_t i = 0; i < v->lines.n; i++) {
        const Line *line = &v->lines.v[i];
        if (line->group == NO_ROW && line->classes[0] == from &&
            line->classes[1] == to && line->target == target &&
            line->channel == channel)
            return i;
    }
    uint32_t *classes = arena_array(v->arena, uint32_t, 2);
    classes[0] = from;
    classes[1] = to;
    return line_add(v, (Line){.group = NO_ROW,
                              .channel = channel,
                              .peer = {NO_ROW, NO_ROW},
                              .target = target,
                              .nclasses = 2,
                              .classes = classes});
}

/* All messages of one side of a line use one stream and one peer: otherwise
 * their order would not be certain. */
static bool join_line(Verify *v, uint32_t c, const Step *step, uint32_t i)
{
    Line *line = &v->lines.v[i];
    const Plan *p = v->classes[c].plan;
    uint32_t side = step->op == PLAN_RECV;
    uint32_t peer = p->instrs.v[step->instr].index;
    if (line->peer[side] == NO_ROW)
        line->peer[side] = peer;
    const uint32_t *first = line->steps[side].v;
    if (line->peer[side] == peer &&
        (!first || v->traces[c].v[*first].stream == step->stream))
        return true;
    diag_error(v->diag, (Loc){0}, "MC0704",
               "messages of one channel have no certain order");
    if (first)
        verify_note(v, c, &v->traces[c].v[*first]);
    verify_note(v, c, step);
    return false;
}

/* The same for all instructions with a peer, so looked up once per row. */
typedef struct {
    bool known;
    uint32_t other;  /* class at the other end */
    uint32_t target; /* whom the other's first rank would send to */
} PeerEnd;

static bool peer_end(Verify *v, uint32_t c, uint32_t peer, PeerEnd *end)
{
    if (end->known)
        return true;
    end->other = peer_class(v, c, peer);
    if (end->other == NO_ROW)
        return false;
    end->target = rank_with_peer(v, c, peer, v->classes[end->other].ranks[0]);
    end->known = true;
    return true;
}

static uint32_t line_of_message(Verify *v, uint32_t c, const Step *step,
                                PeerEnd *ends)
{
    const PlanClass *of = &v->classes[c];
    const PlanInstr *in = &of->plan->instrs.v[step->instr];
    const PeerEnd *end = &ends[in->index];
    uint32_t line;
    if (!peer_end(v, c, in->index, &ends[in->index]))
        return NO_ROW;
    if (step->op == PLAN_SEND)
        line = message_line(v, c, end->other,
                            plan_peer_rank(of->plan, in->index, of->ranks[0]),
                            in->aux);
    else
        line = message_line(v, end->other, c, end->target, in->aux);
    return join_line(v, c, step, line) ? line : NO_ROW;
}

/* ---- all traces ---------------------------------------------------------- */

static uint32_t class_place(const Line *line, uint32_t c, const Step *step)
{
    uint32_t i = 0;
    if (line->group == NO_ROW)
        return step->op == PLAN_RECV;
    while (line->classes[i] != c)
        i++;
    return i;
}

/* What was found out about the rows of a class's plan, 0 is nothing. */
typedef struct {
    uint32_t *line_of; /* by instruction: row of lines + 1 */
    uint32_t *sets;    /* by group */
    PeerEnd *ends;     /* by peer */
} Known;

static uint32_t line_of_step(Verify *v, uint32_t c, const Step *step,
                             const Known *known)
{
    uint32_t *line = &known->line_of[step->instr];
    if (*line == 0)
        *line = 1 + (step->op == PLAN_COLLECTIVE
                         ? line_of_collective(v, c, step, known->sets)
                         : line_of_message(v, c, step, known->ends));
    return *line - 1;
}

/* Puts a step into its line; false after reporting that it has none. */
static bool sort_step(Verify *v, uint32_t c, uint32_t index, const Known *known)
{
    Step *step = &v->traces[c].v[index];
    bool collective = step->op == PLAN_COLLECTIVE;
    if (!collective && step->op != PLAN_SEND && step->op != PLAN_RECV)
        return true;
    step->line = line_of_step(v, c, step, known);
    if (step->line == NO_ROW)
        return false;
    Line *line = &v->lines.v[step->line];
    uint32_t place = class_place(line, c, step);
    step->nth = line->steps[place].n;
    vec_push(&line->steps[place], index);
    v->stats.collectives += collective;
    v->stats.messages += step->op == PLAN_SEND;
    return true;
}

bool verify_lines(Verify *v)
{
    vec_push(&v->sets, ((ClassSet){0}));
    for (uint32_t c = 0; c < v->n; c++) {
        const Plan *p = v->classes[c].plan;
        Known known = {arena_array(v->arena, uint32_t, p->instrs.n),
                       arena_array(v->arena, uint32_t, p->groups.n),
                       arena_array(v->arena, PeerEnd, p->peers.n)};
        for (uint32_t i = 0; i < v->traces[c].n; i++)
            if (!sort_step(v, c, i, &known))
                return false;
    }
    return true;
}
