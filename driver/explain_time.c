/* explain_time.c - a predicted step: how long, of what, and what would help.
 *
 * Shown are the parts of the step on a rank of the stage that computes
 * longest; they add up to it.  Advice names the largest part that is not
 * computing, if it is more than WORTH of the step.
 */
#include "driver/explain_time.h"

static const double WORTH = 0.05;

static const SimStage *busiest(const Prediction *p)
{
    return &p->sim.stages[p->sim.busiest];
}

/* ---- text ---------------------------------------------------------------- */

static void put_part(const char *what, double seconds, double step)
{
    printf("  %-20s %12.3f ms %6.1f %%\n", what, 1e3 * seconds,
           100 * seconds / step);
}

static void put_axis(const SimStage *stage, uint32_t i, double step)
{
    char what[64];

    if (stage->axis[i].busy <= 0)
        return;
    snprintf(what, sizeof what, "waits for %s", stage->axis[i].name);
    printf("  %-20s %12.3f ms %6.1f %%  of %.3f ms that it takes\n", what,
           1e3 * stage->axis[i].exposed, 100 * stage->axis[i].exposed / step,
           1e3 * stage->axis[i].busy);
}

void explain_time(const Spec *s, const Prediction *p)
{
    const SimStage *stage = busiest(p);
    double step = p->sim.step, ranks = (double)s->parallel.world_size;

    printf("\npredicted step on %s: %.4f s\n", s->hardware->name, step);
    printf("  %.0f tokens/s, %.1f per GPU; %.1f TFLOP/s per GPU, MFU %.1f %%\n",
           p->tokens_per_s, p->tokens_per_s_per_gpu,
           1e-12 * p->flops / step / ranks, 100 * p->mfu);
    printf("  a rank of stage %u, which computes longest:\n", p->sim.busiest);
    put_part("computes", stage->compute, step);
    put_part("launches", stage->launch, step);
    for (uint32_t i = 0; i < stage->naxes; i++)
        put_axis(stage, i, step);
    put_part("waits for others", stage->bubble, step);
}

/* ---- advice -------------------------------------------------------------- */

/* The kind of communication that compute waits for longest. */
static uint32_t worst_axis(const SimStage *stage)
{
    uint32_t worst = 0;

    for (uint32_t i = 1; i < stage->naxes; i++)
        if (stage->axis[i].exposed > stage->axis[worst].exposed)
            worst = i;
    return worst;
}

static const char *axis_advice(const Spec *s, const char *axis)
{
    if (strcmp(axis, "pp") == 0)
        return s->parallel.overlap.p2p ? "parallel.vpp: fewer messages"
                                       : "parallel.overlap.p2p: beside compute";
    if (strcmp(axis, "host") == 0)
        return "training.offload: less of it";
    if (strcmp(axis, "tp") == 0)
        return "parallel.tp: a smaller one communicates less";
    if (strcmp(axis, "ep") == 0)
        return "parallel.ep: a smaller one sends fewer tokens away";
    if (strstr(axis, "dp"))
        return "training.global_batch_size: more micro-batches between\n"
               "    reductions";
    return NULL;
}

void explain_time_advice(const Spec *s, const Prediction *p)
{
    const SimStage *stage = busiest(p);
    uint32_t worst = worst_axis(stage);
    const char *advice = axis_advice(s, stage->axis[worst].name);

    if (stage->bubble > WORTH * p->sim.step && s->parallel.pp > 1)
        puts("  training.global_batch_size: with more micro-batches, and\n"
             "    parallel.vpp: with more chunks, the pipeline waits less");
    if (advice && stage->axis[worst].exposed > WORTH * p->sim.step)
        printf("  %s\n", advice);
}

/* ---- JSON ---------------------------------------------------------------- */

static json_t *axes_json(const SimStage *stage)
{
    json_t *axes = json_object();

    for (uint32_t i = 0; i < stage->naxes; i++)
        if (stage->axis[i].busy > 0)
            json_object_set_new(axes, stage->axis[i].name,
                                json_pack("{sf sf}", "busy_s",
                                          stage->axis[i].busy, "exposed_s",
                                          stage->axis[i].exposed));
    return axes;
}

static json_t *stage_json(const SimStage *s, uint32_t pp)
{
    return json_pack("{si sf sf sf sf sf so}", "pp", (int)pp, "compute_s",
                     s->compute, "launch_s", s->launch, "exposed_s", s->exposed,
                     "host_s", s->host, "bubble_s", s->bubble, "axes",
                     axes_json(s));
}

void explain_time_json(json_t *out, const Prediction *p)
{
    json_t *stages = json_array();

    for (uint32_t i = 0; i < p->sim.nstages; i++)
        json_array_append_new(stages, stage_json(&p->sim.stages[i], i));
    json_object_set_new(out, "step_time_s", json_real(p->sim.step));
    json_object_set_new(out, "tokens_per_s", json_real(p->tokens_per_s));
    json_object_set_new(out, "tokens_per_s_per_gpu",
                        json_real(p->tokens_per_s_per_gpu));
    json_object_set_new(out, "mfu", json_real(p->mfu));
    json_object_set_new(out, "model_flops", json_real(p->flops));
    json_object_set_new(out, "computed_flops", json_real(p->sim.flops));
    json_object_set_new(out, "stages", stages);
}
