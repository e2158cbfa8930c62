/* pipeline.c - one program per pipeline rank.
 *
 *   step                      main.0                  main.1
 *     scan micro        →       y.0 = stage0.fwd        x.0 = recv
 *     optimizer                 send y.0                d.0, s = stage1.fwd x.0
 *                               y.1 = stage0.fwd        dx.0 = stage1.bwd d.0
 *                               …                       send dx.0 …
 *                               optimizer of its own    optimizer of its own
 *                               tensors                 tensors
 *
 * A rank runs the actions of its schedule in order (pipeline_action.c), and of
 * the rest of the step what concerns its own tensors (pipeline_step.c).
 *
 * Programs besides the step (see Module.programs) come from the same parts: a
 * step of fewer microbatches follows a schedule of its own, an evaluation runs
 * the forwards and copies what the loss needs.
 */
#include "passes/pipeline_priv.h"

/* ---- one program --------------------------------------------------------- */

/* main.0, eval.0; of a step with 4 microbatches, main.0.m4. */
static const char *main_name(const Pipe *p)
{
    const char *kind = p->schedule->forward ? "eval" : "main";

    if (p->schedule->forward || p->schedule->microbatches == p->m->microbatches)
        return arena_printf(p->m->arena, "%s.%u", kind, p->pp);
    return arena_printf(p->m->arena, "%s.%u.m%u", kind, p->pp,
                        p->schedule->microbatches);
}

static FuncId build_main(Pipe *p)
{
    Func step = *func_of(p->m, p->step);

    p->main = func_new(p->m, main_name(p), FUNC_GRAPH, step.loc);
    for (uint32_t i = 0; i < step.body.n; i++) {
        if (node_of(p->m, step.body.v[i])->op == OP_CALL)
            pipeline_actions(p);
        else if (!p->wanted || p->wanted[step.body.v[i].i])
            pipeline_copy_node(p, step.body.v[i]);
    }
    return p->main;
}

static void value_range(Pipe *p)
{
    const Func *micro = func_of(p->m, p->micro);
    uint32_t end = 0;

    p->base = UINT32_MAX;
    for (uint32_t i = 0; i < micro->body.n; i++) {
        const Node *n = node_of(p->m, micro->body.v[i]);
        if (n->nres == 0)
            continue;
        p->base = MC_MIN(p->base, n->res.i);
        end = MC_MAX(end, n->res.i + n->nres);
    }
    p->count = end - p->base;
}

static FuncId rank_program(Module *m, const Spec *spec,
                           const Schedule *schedule, const ScheduleTimes *times,
                           uint32_t pp, Forward *forward)
{
    Arena *scratch = arena_new();
    Pipe p = {.m = m, .schedule = schedule, .times = times, .pp = pp,
              .overlap = spec->parallel.overlap.p2p, .step = m->entry.v[0]};
    uint32_t mbs = schedule->microbatches;
    FuncId main;

    p.micro = func_find(m, sym_intern(m->names, "micro"));
    value_range(&p);
    p.held = arena_array(scratch, bool, m->tensors.n);
    p.local = arena_array(scratch, ValueId, (size_t)mbs * p.count);
    p.batch = arena_array(scratch, ValueId,
                          (size_t)mbs * func_of(m, p.micro)->params.n);
    pipeline_hold(&p);
    p.forward = schedule->forward ? forward : NULL;
    if (p.forward)
        p.wanted = pipeline_loss_nodes(scratch, m, p.step);
    main = build_main(&p);
    vmap_free(&p.map);
    vec_free(&p.arrivals);
    arena_free(scratch);
    return main;
}

/* ---- the pass ------------------------------------------------------------ */

typedef Vec(FuncId) Mains;

/* One program for each pipeline rank; false if its schedule does not end. */
static bool add_programs(Module *m, const Spec *spec,
                         const SideProgram *program, Mains *mains)
{
    static const ScheduleCosts unit = {1, 1, 1, 0};
    Arena *scratch = arena_new();
    Spec of = *spec;
    Forward *forward = forward_new(scratch, m);
    Schedule *schedule;
    ScheduleTimes times;
    const char *why = NULL;
    bool ends;

    of.derived.microbatches = program->microbatches;
    schedule = schedule_make(scratch, &of);
    if (program->forward)
        schedule_keep_forward(schedule);
    ends = schedule_simulate(scratch, schedule, unit, &times, &why);
    for (uint32_t pp = 0; ends && pp < schedule->pp; pp++)
        vec_push(mains, rank_program(m, spec, schedule, &times, pp, forward));
    if (!ends)
        diag_error(m->diag, spec_loc(spec, "parallel.schedule"), "MC0235",
                   "the schedule cannot be carried out: %s", why);
    schedule_free(schedule);
    forward_free(forward);
    arena_free(scratch);
    return ends;
}

/* Programs for every rank take the place of the step. */
bool pass_pipeline(Module *m, const Spec *spec)
{
    const SideProgram step = {m->microbatches, false};
    Mains mains = {0};
    bool ok = add_programs(m, spec, &step, &mains);

    for (uint32_t k = 0; ok && k < m->programs.n; k++)
        ok = add_programs(m, spec, &m->programs.v[k], &mains);
    m->entry.n = ok ? 0 : m->entry.n;
    for (uint32_t i = 0; ok && i < mains.n; i++)
        vec_push(&m->entry, mains.v[i]);
    vec_free(&mains);
    if (ok)
        clean_dead(m);
    return ok;
}
