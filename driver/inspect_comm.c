/* inspect_comm.c - what each stage's ranks say to others in one step. */
#include "driver/traffic.h"
#include "driver/views.h"

#include <inttypes.h>

/* The ranks that talk to the stage's first rank. */
static json_t *group_json(const View *v, AxisSet axes, uint32_t pp)
{
    const Mesh *mesh = &v->program->m->mesh;
    AxisSet stages = mesh_axis(v->program->m, "pp");
    uint32_t n = axes_size(mesh, axes), rank = 0;
    uint32_t *ranks = arena_array(v->in->arena, uint32_t, n);
    json_t *list = json_array();

    while (stages && axes_index(mesh, stages, rank) != pp)
        rank++;
    axes_members(mesh, axes, rank, ranks);
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ranks[i]));
    return list;
}

static const char *axis_of(const View *v, const Traffic *t)
{
    return traffic_axis(v->in->arena, v->program->m, t);
}

static json_t *ops_json(const View *v, const Traffic *t, uint32_t n,
                        uint32_t pp)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(
            list,
            json_pack("{ss so ss sI sI ss}", "op", op_info[t[i].op].name,
                      "group", group_json(v, t[i].axes, pp), "axis",
                      axis_of(v, &t[i]), "bytes", (json_int_t)t[i].bytes,
                      "per_step", (json_int_t)t[i].per_step, "tensor",
                      t[i].tensor));
    return list;
}

/* Bytes of a step by axis. */
static json_t *totals_json(const View *v, const Traffic *t, uint32_t n)
{
    json_t *totals = json_object();

    for (uint32_t i = 0; i < n; i++) {
        const char *axis = axis_of(v, &t[i]);
        json_int_t sum = json_integer_value(json_object_get(totals, axis));

        json_object_set_new(totals, axis,
                            json_integer(sum + t[i].bytes * t[i].per_step));
    }
    return totals;
}

json_t *view_comm_json(const View *v)
{
    json_t *list = json_array();

    for (uint32_t pp = 0; pp < v->program->mem->npp; pp++) {
        uint32_t n;
        const Traffic *t = traffic_make(v->in->arena, v->program, pp, &n);

        json_array_append_new(list,
                              json_pack("{si so so}", "pp", (int)pp, "ops",
                                        ops_json(v, t, n, pp), "totals",
                                        totals_json(v, t, n)));
    }
    return list;
}

static void totals_text(const View *v, const Traffic *t, uint32_t n, FILE *to)
{
    json_t *totals = totals_json(v, t, n), *value;
    const char *axis;

    json_object_foreach(totals, axis, value)
        fprintf(to, "  total over %-6s %41" JSON_INTEGER_FORMAT "\n", axis,
                json_integer_value(value));
    json_decref(totals);
}

void view_comm_text(const View *v, FILE *to)
{
    for (uint32_t pp = 0; pp < v->program->mem->npp; pp++) {
        uint32_t n;
        const Traffic *t = traffic_make(v->in->arena, v->program, pp, &n);

        fprintf(to, "stage %u\n  %-16s %-6s %12s %12s %12s\n", pp, "op",
                "axis", "bytes", "per step", "product");
        for (uint32_t i = 0; i < n; i++)
            fprintf(to, "  %-16s %-6s %12" PRId64 " %12" PRId64 " %12" PRId64
                        "  %s\n",
                    op_info[t[i].op].name, axis_of(v, &t[i]), t[i].bytes,
                    t[i].per_step, t[i].bytes * t[i].per_step, t[i].tensor);
        totals_text(v, t, n, to);
    }
}
