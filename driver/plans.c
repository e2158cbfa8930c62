/* plans.c - the plan of every class, as it was emitted, or from a folder that
 * `megac compile` wrote: the manifest says which ranks form a class, the
 * executable of its first rank carries the plan.
 */
#include "driver/plans.h"

#include "runtime/payload.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

/* Loads the next plan of the set. */
static Status set_add(PlanSet *set, const void *bytes, size_t n,
                      const uint32_t *ranks, uint32_t ranks_n)
{
    Plan *plan = &set->plans[set->n];

    STATUS_TRY(plan_load(bytes, n, plan));
    set->classes[set->n++] = (PlanClass){plan, ranks, ranks_n};
    return STATUS_NONE;
}

void plans_free(PlanSet *set)
{
    for (uint32_t i = 0; i < set->n; i++)
        plan_free(&set->plans[i]);
    *set = (PlanSet){0};
}

static Status damaged(const char *dir, const char *what)
{
    return status_make(STATUS_INPUT, "%s/manifest.json: %s", dir, what);
}

static uint32_t *ranks_of_class(Arena *a, const json_t *class, uint32_t *out_n)
{
    const json_t *list = json_object_get(class, "ranks");
    uint32_t *ranks = arena_array(a, uint32_t, json_array_size(list));
    size_t i;
    json_t *item;

    json_array_foreach(list, i, item)
        ranks[i] = (uint32_t)json_integer_value(item);
    *out_n = (uint32_t)json_array_size(list);
    return ranks;
}

static Status add_class(Arena *a, const char *dir, const json_t *class,
                        PlanSet *set)
{
    uint32_t n, *ranks = ranks_of_class(a, class, &n);
    Payload payload = {0};

    if (n == 0)
        return damaged(dir, "a class without ranks");
    const char *path = arena_printf(a, "%s/rank-%05" PRIu32, dir, ranks[0]);
    STATUS_TRY(payload_read(path, &payload));
    Status status = payload.plan
                        ? set_add(set, payload.plan, payload.plan_bytes, ranks,
                                  n)
                        : status_make(STATUS_INPUT, "no plan");
    free(payload.plan);
    return status_in(status, "%s", path);
}

static Status add_classes(Arena *a, const char *dir, const json_t *manifest,
                          PlanSet *out)
{
    const json_t *list = json_object_get(manifest, "classes");
    json_t *class;
    size_t i;

    if (json_array_size(list) == 0)
        return damaged(dir, "no classes");
    out->plans = arena_array(a, Plan, json_array_size(list));
    out->classes = arena_array(a, PlanClass, json_array_size(list));
    json_array_foreach(list, i, class)
        STATUS_TRY(add_class(a, dir, class, out));
    return STATUS_NONE;
}

Status plans_read(Arena *a, const char *dir, PlanSet *out)
{
    json_error_t error;
    json_t *manifest = json_load_file(
        arena_printf(a, "%s/manifest.json", dir), 0, &error);

    *out = (PlanSet){0};
    if (!manifest)
        return damaged(dir, error.text);
    Status status = add_classes(a, dir, manifest, out);
    json_decref(manifest);
    return status;
}

/* ---- from the compiler --------------------------------------------------- */

/* The ranks of one pipeline stage, ascending. */
static const uint32_t *ranks_of_stage(Arena *a, const Module *m, uint32_t pp,
                                      uint32_t *out_n)
{
    AxisSet axis = mesh_axis(m, "pp");
    uint32_t *ranks = arena_array(a, uint32_t, m->mesh.world);

    *out_n = 0;
    for (uint32_t r = 0; r < m->mesh.world; r++)
        if (axes_index(&m->mesh, axis, r) == pp)
            ranks[(*out_n)++] = r;
    return ranks;
}

CliExit plans_make(Arena *a, const Module *m, const EmitOutput *out,
                   PlanSet *set)
{
    *set = (PlanSet){.plans = arena_array(a, Plan, out->n),
                     .classes = arena_array(a, PlanClass, out->n)};
    for (uint32_t i = 0; i < out->n; i++) {
        uint32_t n;
        const uint32_t *ranks = ranks_of_stage(a, m, i, &n);
        Status s = set_add(set, out->plans[i].s, out->plans[i].len, ranks, n);
        if (s) {
            cli_failed(s);
            return CLI_BUG;
        }
    }
    return CLI_DONE;
}
