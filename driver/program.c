/* program.c - spec → model graph → passes → addresses. */
#include "driver/program.h"

#include "codegen/emit.h"
#include "frontend/model.h"

static bool build(const Input *in, const PassOptions *options, uint64_t work,
                  Program *out)
{
    out->m = model_build(in->arena, in->diag, in->spec);
    if (!passes_run(out->m, in->spec, options))
        return false;
    if (out->m->props & PROP_STREAMS) {
        MemRules rules = emit_rules(emit_dialect(in->spec));

        rules.work = work;
        out->mem = memplan_make(in->arena, out->m, &rules);
    }
    return true;
}

CliExit program_build(const Input *in, const PassOptions *options,
                      Program *out)
{
    *out = (Program){0};
    return build(in, options, 0, out) ? CLI_DONE : CLI_INPUT;
}

CliExit program_sketch(const Input *in, Program *out)
{
    static const PassOptions all_passes;

    *out = (Program){0};
    return build(in, &all_passes, 1, out) ? CLI_DONE : CLI_INPUT;
}

void program_free(Program *p)
{
    if (p->m)
        module_free(p->m);
    *p = (Program){0};
}
