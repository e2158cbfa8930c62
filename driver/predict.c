/* predict.c - a program's plans on the hardware that the spec names.
 *
 * The time is the simulator's; everything else is that time and the spec.
 */
#include "driver/predict.h"

#include "codegen/emit.h"

static double peak_of(const Spec *s)
{
    HardwareType type = s->training.precision == PREC_BF16   ? HARDWARE_BF16
                        : s->training.precision == PREC_FP16 ? HARDWARE_FP16
                                                             : HARDWARE_FP32;

    return s->hardware->peak[type];
}

Prediction predict_plans(Arena *a, const Spec *s, const PlanSet *set)
{
    Prediction p = {.sim = simulate(a, set->classes, set->n, s->hardware),
                    .flops = spec_flops(s)};
    double ranks = (double)s->parallel.world_size;

    p.tokens_per_s = (double)spec_tokens(s) / p.sim.step;
    p.tokens_per_s_per_gpu = p.tokens_per_s / ranks;
    p.mfu = p.flops / (p.sim.step * ranks * peak_of(s));
    return p;
}

CliExit predict(const Input *in, const Program *p, Prediction *out)
{
    EmitInput input = {p->m, p->mem, in->spec};
    EmitOutput emitted = {0};
    PlanSet set = {0};
    CliExit code = CLI_INPUT;

    if (emit_plans(in->arena, &input, &emitted))
        code = plans_make(in->arena, p->m, &emitted, &set);
    if (code == CLI_DONE)
        *out = predict_plans(in->arena, in->spec, &set);
    plans_free(&set);
    emit_free(&emitted);
    return code;
}
