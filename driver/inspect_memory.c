/* inspect_memory.c - the arena of each stage, byte by byte. */
#include "driver/views.h"

#include <inttypes.h>

/* The classes of a MemReport, in the order in which they are shown. */
static const struct {
    const char *name;
    size_t offset;
} classes[] = {
    {"params", offsetof(MemReport, params)},
    {"grads", offsetof(MemReport, grads)},
    {"optimizer", offsetof(MemReport, optimizer)},
    {"activations", offsetof(MemReport, activations)},
    {"workspace", offsetof(MemReport, workspace)},
    {"comm", offsetof(MemReport, comm)},
    {"total", offsetof(MemReport, total)},
    {"host", offsetof(MemReport, host)}, /* no part of the total */
};

static int64_t bytes_of(const MemReport *r, uint32_t class)
{
    int64_t bytes;

    memcpy(&bytes, (const char *)r + classes[class].offset, sizeof bytes);
    return bytes;
}

json_t *view_memory_json(const View *v)
{
    json_t *list = json_array();

    for (uint32_t pp = 0; pp < v->program->mem->npp; pp++) {
        const MemReport *r = &v->program->mem->report[pp];
        json_t *bytes = json_object();

        for (uint32_t i = 0; i < MC_LEN(classes); i++)
            json_object_set_new(bytes, classes[i].name,
                                json_integer(bytes_of(r, i)));
        json_array_append_new(
            list, json_pack("{si so sI sI si}", "pp", (int)pp, "bytes", bytes,
                            "lower_bound", (json_int_t)r->lower_bound,
                            "host_lower_bound",
                            (json_int_t)r->host_lower_bound, "in_flight",
                            (int)r->in_flight));
    }
    return list;
}

void view_memory_text(const View *v, FILE *to)
{
    fputs("pp", to);
    for (uint32_t i = 0; i < MC_LEN(classes); i++)
        fprintf(to, " %15s", classes[i].name);
    fputs("  lower bound  in flight\n", to);
    for (uint32_t pp = 0; pp < v->program->mem->npp; pp++) {
        const MemReport *r = &v->program->mem->report[pp];

        fprintf(to, "%2u", pp);
        for (uint32_t i = 0; i < MC_LEN(classes); i++)
            fprintf(to, " %15" PRId64, bytes_of(r, i));
        fprintf(to, "  %" PRId64 "  %u\n", r->lower_bound, r->in_flight);
    }
}
