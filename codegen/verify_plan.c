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
#include "codegen/verify_plan_priv.h"

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

static bool verify_all(Verify *v)
{
    if (!worlds_agree(v) || !verify_ranks(v))
        return false;
    for (uint32_t c = 0; c < v->n; c++)
        if (!verify_bytes(v, c))
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
