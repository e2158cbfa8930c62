/* check_memory.c - the rules of recomputation and offloading. */
#include "frontend/frontend_priv.h"

static bool is_listed(const SpecChoiceList *list, int module)
{
    for (uint32_t i = 0; i < list->n; i++)
        if (list->v[i] == module)
            return true;
    return false;
}

/* Why a module leaves nothing to offload, or NULL.  Norms and activations of
 * experts follow from their input at little cost, so nothing of them is ever
 * saved. */
static const char *saves_nothing(const Spec *s, int module)
{
    const SpecChoiceList *again = &s->training.recompute.modules;

    if (module == MODULE_NORM || module == MODULE_MOE_ACT)
        return "it is computed again in the backward in any case";
    if (moe_lacks_module(s, (SpecModule)module))
        return "no layer has it";
    if (s->training.recompute.granularity == RECOMPUTE_FULL &&
        s->training.recompute.method == RECOMPUTE_UNIFORM)
        return "the backward computes all layers again";
    if (s->training.recompute.granularity == RECOMPUTE_SELECTIVE &&
        is_listed(again, module))
        return "recompute.modules lists it too";
    return NULL;
}

static void offload_check(Check *c)
{
    const SpecChoiceList *list = &c->spec->training.offload.activations;

    for (uint32_t i = 0; i < list->n; i++) {
        const char *why = saves_nothing(c->spec, list->v[i]);
        if (!why)
            continue;
        check_fail(c, "MC0236", "training.offload.activations",
                   "offload.activations: nothing of %s is saved; %s",
                   spec_module_word((SpecModule)list->v[i]), why);
        check_because(c, "training.recompute.granularity");
    }
}

void memory_check(Check *c)
{
    offload_check(c);
}
