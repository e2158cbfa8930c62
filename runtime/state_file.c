/* state_file.c - which tensors there are in all, and loading them.
 *
 * All ranks agree on the layout of files by gathering the names and shapes of
 * what they own.  Loading compares a set with these first, and then copies
 * what is held.  state_walk.c knows which elements go where, so layouts do not
 * matter here.
 */
#include "runtime/state_priv.h"

#include "runtime/comm.h"

#include <stdlib.h>

const PlanField *state_owned_field(const State *s, const PlanTensor *t,
                                   PlanFieldKind kind)
{
    const PlanField *f = NULL;

    if (kind == PLAN_FIELD_PARAM)
        f = plan_tensor_field(s->plan, t, PLAN_FIELD_MASTER);
    if (!f)
        f = plan_tensor_field(s->plan, t, kind);
    if (!t->export_name || !f || plan_expr_value(s->plan, f->owner, s->rank))
        return NULL;
    return f;
}

char *state_slot_pointer(const State *s, const PlanField *f, uint32_t slot)
{
    return s->pointer(s->self, f->address + slot * f->layer_stride);
}

/* ---- agreeing on the layout ---------------------------------------------- */

/* "rows columns name\n" of each owned tensor. */
static void list_slot(const State *s, const PlanTensor *t, uint32_t slot,
                      FILE *to)
{
    char name[STATE_NAME_BYTES];

    for (uint32_t part = 0; part < plan_export_parts(s->plan, t); part++) {
        Status failed =
            state_export_name(s, t, slot, part, name, sizeof name);
        if (!failed)
            fprintf(to, "%lld %lld %s\n", (long long)t->rows,
                    (long long)t->columns, name);
        status_drop(failed);
    }
}

static void list_tensor(const State *s, const PlanTensor *t, FILE *to)
{
    for (uint32_t slot = 0; slot < state_slots(t); slot++)
        list_slot(s, t, slot, to);
}

static Status list_owned(const State *s, PlanFieldKind kind, char **out)
{
    size_t n;
    FILE *to = open_memstream(out, &n);

    if (!to)
        return status_make(STATUS_SYSTEM, "no memory for a list of tensors");
    for (uint32_t i = 0; i < s->plan->tensors.n; i++) {
        const PlanTensor *t = &s->plan->tensors.v[i];
        if (state_owned_field(s, t, kind))
            list_tensor(s, t, to);
    }
    if (fclose(to) == 0)
        return STATUS_NONE;
    free(*out);
    *out = NULL;
    return status_make(STATUS_SYSTEM, "no memory for a list of tensors");
}

static Status parse_line(char *line, SafeTensor *out)
{
    long long rows, columns;
    int at = 0;

    if (sscanf(line, "%lld %lld %n", &rows, &columns, &at) != 2 || !at)
        return status_make(STATUS_RUN, "a rank sent a damaged list of tensors");
    *out = (SafeTensor){
        .name = strdup(line + at), .rows = rows, .columns = columns};
    return out->name ? STATUS_NONE
                     : status_make(STATUS_SYSTEM, "no memory for a name");
}

static Status parse_list(char *text, SafeSet *out)
{
    size_t lines = 0;
    char *rest = text, *line;

    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    out->v = calloc(lines + 1, sizeof *out->v);
    if (!out->v)
        return status_make(STATUS_SYSTEM, "no memory for a list of tensors");
    while ((line = strsep(&rest, "\n")) && *line) {
        STATUS_TRY(parse_line(line, &out->v[out->n]));
        out->n++;
    }
    return STATUS_NONE;
}

Status state_agree(const State *s, PlanFieldKind kind, const char *stem,
                   uint64_t part_bytes, SafeSet *f)
{
    char *own = NULL, *all = NULL;
    Status failed = list_owned(s, kind, &own);

    if (!failed)
        failed = comm_mpi_gather(own, &all);
    if (!failed)
        failed = parse_list(all, f);
    if (!failed)
        failed = safe_layout(f, stem, part_bytes);
    free(own);
    free(all);
    return failed;
}

/* ---- loading ------------------------------------------------------------- */

typedef struct {
    const char *from;
    uint32_t from_dtype, dtype;
    char *to;
} Reader;

static Status read_run(void *self, const StateRun *run)
{
    const Reader *r = self;

    if (r->dtype == PLAN_F32 && r->from_dtype == PLAN_F32 && run->stride == 1)
        memcpy(r->to + run->local * 4, r->from + run->at * 4,
               (size_t)run->n * 4);
    else
        for (int64_t i = 0; i < run->n; i++)
            plan_store(r->dtype, r->to, run->local + i * run->stride,
                       plan_fetch(r->from_dtype, r->from, run->at + i));
    return STATUS_NONE;
}

static Status load_part(const State *s, const PlanTensor *t,
                        const PlanField *field, const SafeSet *from,
                        uint32_t slot, uint32_t part)
{
    char name[STATE_NAME_BYTES];
    const SafeTensor *found;
    Reader r = {.dtype = field->dtype,
                .to = state_slot_pointer(s, field, slot)};

    STATUS_TRY(state_export_name(s, t, slot, part, name, sizeof name));
    found = safe_find(from, name);
    r.from = safe_bytes(from, found);
    r.from_dtype = found->dtype;
    return state_walk(s, t, field, part, read_run, &r);
}

static Status load_field(const State *s, const PlanTensor *t,
                         const PlanField *field, const SafeSet *from)
{
    for (uint32_t slot = 0; slot < state_slots(t); slot++)
        for (uint32_t part = 0; part < plan_export_parts(s->plan, t); part++)
            STATUS_TRY(load_part(s, t, field, from, slot, part));
    return STATUS_NONE;
}

/* Weights are all copies of them. */
static bool is_of(const PlanField *field, PlanFieldKind kind)
{
    return field->kind == kind ||
           (kind == PLAN_FIELD_PARAM && field->kind == PLAN_FIELD_MASTER);
}

static Status load_tensor(const State *s, const PlanTensor *t,
                          const SafeSet *from, PlanFieldKind kind)
{
    for (uint32_t i = 0; t->export_name && i < t->fields.n; i++) {
        const PlanField *field = &s->plan->fields.v[t->fields.first + i];
        if (is_of(field, kind))
            STATUS_TRY(load_field(s, t, field, from));
    }
    return STATUS_NONE;
}

static Status load_all(const State *s, const SafeSet *from, PlanFieldKind kind)
{
    for (uint32_t i = 0; i < s->plan->tensors.n; i++)
        STATUS_TRY(load_tensor(s, &s->plan->tensors.v[i], from, kind));
    return STATUS_NONE;
}

Status state_load(const State *s, SafeSet *set, PlanFieldKind kind)
{
    SafeSet model = {0};
    Status failed = state_agree(s, kind, "model", 0, &model);

    if (!failed)
        failed = safe_fit(set, &model);
    if (!failed)
        failed = load_all(s, set, kind);
    safe_close(&model);
    return failed;
}
