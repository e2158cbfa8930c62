/* state_replicas.c - whether ranks that hold the same part of the same state
 * hold the same bits.
 *
 * Every rank says of each part it holds what it is and a hash of its bytes;
 * all see what all say.  Sorted, lines about the same part lie side by side
 * and must agree.  Gradients are left out: before their reduction they are
 * addends, not copies.
 *
 *     model.layers.3.self_attn.q_proj.weight param at 0,0,0,0 <tab> hash rank 2
 */
#include "runtime/comm.h"
#include "runtime/state.h"

#include <stdlib.h>
#include <xxhash.h>

enum { NAME_MAX_BYTES = 512 };

/* ---- saying -------------------------------------------------------------- */

static uint64_t hash_of(const char *bytes, const PlanPart *part, size_t each)
{
    uint64_t hash = 0;

    for (int64_t i = 0; i < part->runs; i++) {
        int64_t local = part->first + i * part->gap, from, to;

        plan_part_clip(part, local, part->run, 1, &from, &to);
        if (from < to)
            hash = XXH3_64bits_withSeed(bytes +
                                            (local + from) * (int64_t)each,
                                        (size_t)(to - from) * each, hash);
    }
    return hash;
}

static Status say_slot(const State *s, const PlanTensor *t, const PlanField *f,
                       uint32_t slot, FILE *to)
{
    const char *bytes =
        s->pointer(s->self, f->address + slot * f->layer_stride);
    char name[NAME_MAX_BYTES];
    PlanPart part;

    STATUS_TRY(state_slot_name(s, t, t->name, slot, name, sizeof name));
    plan_field_part(s->plan, t, f, s->rank, &part);
    fprintf(to, "%s %s at ", name, plan_field_name(f->kind));
    for (uint32_t d = 0; d < part.ndims; d++)
        fprintf(to, "%s%lld", d ? "," : "", (long long)part.start[d]);
    if (f->share.n)
        fprintf(to, " from %lld", -(long long)part.first);
    fprintf(to, "\t%016llx rank %u\n",
            (unsigned long long)hash_of(bytes, &part,
                                        plan_dtype_bytes(f->dtype)),
            s->rank);
    return STATUS_NONE;
}

static Status say_tensor(const State *s, const PlanTensor *t, FILE *to)
{
    for (uint32_t i = 0; i < t->fields.n; i++) {
        const PlanField *f = &s->plan->fields.v[t->fields.first + i];
        for (uint32_t slot = 0; slot < state_slots(t); slot++)
            if (f->kind != PLAN_FIELD_GRAD)
                STATUS_TRY(say_slot(s, t, f, slot, to));
    }
    return STATUS_NONE;
}

static Status say_all(const State *s, char **out)
{
    size_t n;
    FILE *to = open_memstream(out, &n);
    Status failed = STATUS_NONE;

    if (!to)
        return status_make(STATUS_SYSTEM, "no memory to compare replicas");
    for (uint32_t i = 0; !failed && i < s->plan->tensors.n; i++)
        failed = say_tensor(s, &s->plan->tensors.v[i], to);
    if (fclose(to) != 0 && !failed)
        failed = status_make(STATUS_SYSTEM, "no memory to compare replicas");
    return failed;
}

/* ---- comparing ----------------------------------------------------------- */

static int by_text(const void *x, const void *y)
{
    return strcmp(*(char *const *)x, *(char *const *)y);
}

/* Two neighbours: about the same part, but with another hash? */
static Status compare(const char *a, const char *b)
{
    size_t part = strcspn(a, "\t"), hash = part + strcspn(a + part, " ");

    if (strncmp(a, b, part + 1) != 0 || strncmp(a, b, hash) == 0)
        return STATUS_NONE;
    return status_make(STATUS_RUN, "%.*s differs between%s and%s", (int)part, a,
                       a + hash, b + hash);
}

static Status compare_lines(char *text)
{
    Vec(char *) lines = {0};
    Status failed = STATUS_NONE;
    char *line;

    while ((line = strsep(&text, "\n")))
        if (*line)
            vec_push(&lines, line);
    if (lines.n)
        qsort(lines.v, lines.n, sizeof *lines.v, by_text);
    for (uint32_t i = 0; !failed && i + 1 < lines.n; i++)
        failed = compare(lines.v[i], lines.v[i + 1]);
    vec_free(&lines);
    return failed;
}

Status state_compare_replicas(const State *s)
{
    char *own = NULL, *all = NULL;
    Status failed = say_all(s, &own);

    if (!failed)
        failed = comm_mpi_gather(own, &all);
    if (!failed)
        failed = compare_lines(all);
    free(own);
    free(all);
    return failed;
}
