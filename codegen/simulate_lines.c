/* simulate_lines.c - which classes an instruction meets.
 *
 * A class is a stage: its ranks agree in the coordinates of its members' atoms
 * and nothing else.  So a group whose atoms are others has all its members in
 * one class, where everybody is as far as everybody else; and of a group over
 * stages, or of a peer, the classes are known from one rank.  The verifier has
 * proved that the n-th operations of a line belong together.
 */
#include "codegen/simulate_priv.h"

typedef struct {
    Arena *arena;
    SimLines *lines;
    const PlanClass *classes;
    uint32_t n, c;
} Find;

static uint32_t class_of(const Find *f, uint32_t rank)
{
    uint32_t c = 0;

    while (c < f->n && !plan_has_rank(f->classes[c].plan, rank))
        c++;
    mc_assert(c < f->n);
    return c;
}

/* ---- lines -------------------------------------------------------------- */

static SimLine *line_of(Find *f, const uint32_t key[8], const uint32_t *classes,
                        uint32_t n)
{
    SimLine *line;

    for (uint32_t i = 0; i < f->lines->all.n; i++) {
        line = f->lines->all.v[i];
        if (memcmp(line->key, key, sizeof line->key) == 0 && line->n == n &&
            memcmp(line->classes, classes, n * sizeof *classes) == 0)
            return line;
    }
    line = arena_new_of(f->arena, SimLine);
    memcpy(line->key, key, sizeof line->key);
    line->n = n;
    line->classes = classes;
    line->queues = arena_array(f->arena, SimQueue, n);
    vec_push(&f->lines->all, line);
    return line;
}

static uint32_t place_in(const SimLine *line, uint32_t c)
{
    uint32_t i = 0;

    while (line->classes[i] != c)
        i++;
    return i;
}

/* ---- collectives -------------------------------------------------------- */

static const PlanAtom *group_atom(const Plan *p, const PlanGroup *g, uint32_t k)
{
    return &p->atoms.v[p->lists.v[g->atoms.first + k]];
}

static bool tells_classes_apart(const Plan *p, const PlanAtom *atom)
{
    for (uint32_t i = 0; i < p->members.n; i++) {
        const PlanAtom *other = &p->atoms.v[p->members.v[i].atom];
        if (other->stride == atom->stride && other->size == atom->size)
            return true;
    }
    return false;
}

/* Marks the classes of the ranks that differ in the coordinate of one atom. */
static void mark_atom(const Find *f, const PlanGroup *g, uint32_t k, bool *in)
{
    const Plan *p = f->classes[f->c].plan;
    const PlanAtom *atom = group_atom(p, g, k);

    uint32_t rank = f->classes[f->c].ranks[0];
    uint32_t own = plan_coordinate(atom, rank);
    uint32_t n = k == 0 && g->picks.n ? g->picks.n : atom->size;

    in[f->c] = true;
    if (!tells_classes_apart(p, atom))
        return;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at =
            k == 0 && g->picks.n ? p->lists.v[g->picks.first + i] : i;
        in[class_of(f, rank + (at - own) * atom->stride)] = true;
    }
}

static uint32_t text_key(const char *s)
{
    uint32_t key = 0;

    for (; *s; s++)
        key = key * 31 + (unsigned char)*s;
    return key;
}

/* Groups of the same classes differ in strides and sizes, or in the stream
 * that they are used on, or they are the same. */
static SimSide collective_side(Find *f, const PlanInstr *in)
{
    const Plan *p = f->classes[f->c].plan;
    const PlanGroup *g =
        &p->groups.v[p->collectives.v[in->index].group];
    bool *marked = arena_array(f->arena, bool, f->n);
    uint32_t *classes = arena_array(f->arena, uint32_t, f->n), n = 0;
    uint32_t key[8] = {1, g->atoms.n, g->picks.n};

    key[5] = text_key(plan_text(p, p->streams.v[in->stream].name));
    for (uint32_t k = 0; k < g->atoms.n; k++) {
        mark_atom(f, g, k, marked);
        key[3] = key[3] * 31 + group_atom(p, g, k)->stride;
        key[4] = key[4] * 31 + group_atom(p, g, k)->size;
    }
    for (uint32_t c = 0; c < f->n; c++)
        if (marked[c])
            classes[n++] = c;
    if (n < 2)
        return (SimSide){0};
    SimLine *line = line_of(f, key, classes, n);
    return (SimSide){line, place_in(line, f->c)};
}

/* ---- messages ----------------------------------------------------------- */

/* A peer lies a shift away, so the class of who sends to this one follows from
 * the same row, turned round. */
static SimSide message_side(Find *f, const PlanInstr *in)
{
    const Plan *p = f->classes[f->c].plan;
    uint32_t other =
        class_of(f, plan_peer_rank(p, in->index, f->classes[f->c].ranks[0]));
    bool sends = in->op == PLAN_SEND;
    uint32_t *classes = arena_array(f->arena, uint32_t, 2);
    uint32_t key[8] = {2, in->aux};

    classes[0] = sends ? f->c : other;
    classes[1] = sends ? other : f->c;
    return (SimSide){line_of(f, key, classes, 2), sends ? 0 : 1};
}

/* ---- all ---------------------------------------------------------------- */

SimSide *sim_sides(Arena *a, SimLines *lines, const PlanClass *classes,
                   uint32_t n, uint32_t c)
{
    Find f = {a, lines, classes, n, c};
    const Plan *p = classes[c].plan;
    SimSide *sides = arena_array(a, SimSide, p->instrs.n);

    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const PlanInstr *in = &p->instrs.v[i];
        if (in->op == PLAN_COLLECTIVE)
            sides[i] = collective_side(&f, in);
        if (in->op == PLAN_SEND || in->op == PLAN_RECV)
            sides[i] = message_side(&f, in);
    }
    return sides;
}

void sim_lines_free(SimLines *lines)
{
    for (uint32_t i = 0; i < lines->all.n; i++) {
        SimLine *line = lines->all.v[i];
        for (uint32_t k = 0; k < line->n; k++)
            vec_free(&line->queues[k].posts);
    }
    vec_free(&lines->all);
}
