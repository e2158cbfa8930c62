/* verify_plan.c - the proof that the plans of a run fit together.
 *
 * In four parts, each of which relies on the ones before:
 *
 *   bytes   every class alone: no races, nothing read that was not written
 *   ranks   groups and peers look the same from all ranks of a class, so a
 *           class may stand for its ranks
 *   order   what meets, collectives and messages, agrees on all sides
 *   waits   the whole step can be played to its end
 *
 * The cost follows the instructions of the classes, not the number of ranks.
 */
#include "codegen/codegen_priv.h"
#include "codegen/verify_plan_priv.h"

#include <unistd.h>

void verify_note(Verify *v, uint32_t class_index, const Step *step)
{
    const PlanClass *of = &v->classes[class_index];
    diag_note(v->diag, (Loc){0}, "%s",
              verify_walk_text(v->arena, of->plan, v->program, of->ranks[0],
                               step->number));
}

static bool worlds_agree(Verify *v)
{
    for (uint32_t c = 0; c < v->n; c++) {
        uint32_t world = v->classes[c].plan->job.v->world;
        uint32_t programs = v->classes[c].plan->programs.n;
        if (world == v->world && programs == v->classes[0].plan->programs.n)
            continue;
        if (world == v->world)
            diag_error(v->diag, (Loc){0}, "MC0701",
                       "class %u has %u programs, class 0 %u", c, programs,
                       v->classes[0].plan->programs.n);
        else
            diag_error(v->diag, (Loc){0}, "MC0701",
                       "class %u is for %u ranks, class 0 for %u", c, world,
                       v->world);
        return false;
    }
    return true;
}

/* ---- classes side by side ------------------------------------------------ */

typedef struct {
    Verify *v;
    bool *ok;               /* by class */
    PlanVerifyStats *stats; /* by class */
} Alone;

/* With an arena and messages of its own. */
static void class_verify(void *state, uint32_t c)
{
    Alone *all = state;
    Verify v = *all->v;

    v.arena = arena_new();
    v.diag = diag_new(v.arena);
    v.stats = (PlanVerifyStats){0};
    all->ok[c] = verify_bytes(&v, c);
    all->stats[c] = v.stats;
    diag_free(v.diag);
    arena_free(v.arena);
}

/* A class with a fault is walked again, to say what it is. */
static bool classes_verify(Verify *v)
{
    uint32_t threads = (uint32_t)MC_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L);
    Alone all = {v, arena_array(v->arena, bool, v->n),
                 arena_array(v->arena, PlanVerifyStats, v->n)};

    codegen_parallel(v->n, threads, class_verify, &all);
    for (uint32_t c = 0; c < v->n; c++) {
        if (!all.ok[c]) {
            v->traces[c].n = 0;
            return verify_bytes(v, c);
        }
        v->stats.instrs += all.stats[c].instrs;
        v->stats.variants += all.stats[c].variants;
    }
    return true;
}

static bool verify_all(Verify *v)
{
    if (!worlds_agree(v) || !verify_ranks(v) || !classes_verify(v))
        return false;
    return verify_lines(v) && verify_order(v) && verify_waits(v);
}

static void verify_free(Verify *v)
{
    for (uint32_t c = 0; c < v->n; c++)
        vec_free(&v->traces[c]);
    for (uint32_t i = 0; i < v->lines.n; i++)
        for (uint32_t k = 0; k < v->lines.v[i].nclasses; k++)
            vec_free(&v->lines.v[i].steps[k]);
    vec_free(&v->lines);
    vec_free(&v->groups);
    vec_free(&v->sets);
    arena_free(v->arena);
}

static bool verify_program(Diag *d, const PlanClass *classes, uint32_t n,
                           uint32_t program, PlanVerifyStats *out)
{
    Verify v = {.diag = d, .arena = arena_new(), .classes = classes, .n = n,
                .program = program};
    v.world = n > 0 ? classes[0].plan->job.v->world : 0;
    v.class_of = arena_array(v.arena, uint32_t, v.world);
    v.traces = arena_array(v.arena, Trace, n);
    bool ok = verify_all(&v);
    *out = v.stats;
    verify_free(&v);
    return ok;
}

bool plan_verify(Diag *d, const PlanClass *classes, uint32_t n,
                 PlanVerifyStats *out)
{
    uint32_t programs = n > 0 ? classes[0].plan->programs.n : 1;
    bool ok = verify_program(d, classes, n, 0, out);

    for (uint32_t i = 1; ok && i < programs; i++) {
        PlanVerifyStats other;
        ok = verify_program(d, classes, n, i, &other);
    }
    return ok;
}
