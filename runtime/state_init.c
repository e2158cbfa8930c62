/* state_init.c - the model before the first step.
 *
 * A field is filled row by row (a row is all of the last dimension that this
 * rank holds).  The logical coordinates of a row follow from its place in the
 * local part; rows and ends of rows beyond the logical size are padding and
 * become zeros.  Of what ranks share out, nobody draws more than it holds.
 */
#include "runtime/state.h"

#include <math.h>

enum { CHUNK = 1024 }; /* normal numbers drawn at a time */

/* ---- filling ------------------------------------------------------------- */

typedef struct {
    const PlanDim *dims;
    PlanPart part;
    uint32_t dtype;
    PlanInit init;
    float scale;
    uint64_t key;
    char *to;
} Filling;

/* Where local row `row` begins in the logical tensor, or -1 if it is padding;
 * `out_valid` is how much of it is not. */
static int64_t row_start(const Filling *f, int64_t row, int64_t *out_valid)
{
    uint32_t last = f->part.ndims - 1;
    int64_t logical = f->dims[last].logical - f->part.start[last];
    int64_t at = f->part.start[last], weight = f->dims[last].logical;

    for (uint32_t d = last; d-- > 0;) {
        int64_t i = f->part.start[d] + row % f->part.size[d];
        if (i >= f->dims[d].logical)
            return -1;
        at += i * weight;
        weight *= f->dims[d].logical;
        row /= f->part.size[d];
    }
    *out_valid = MC_MAX(MC_MIN(logical, f->part.size[last]), 0);
    return *out_valid ? at : -1;
}

static void fill_normal(const Filling *f, char *to, int64_t at, int64_t n)
{
    double x[CHUNK];

    for (int64_t done = 0; done < n; done += CHUNK) {
        int64_t now = MC_MIN(n - done, CHUNK);
        philox_normals(f->key, (uint64_t)(at + done), now, x);
        for (int64_t i = 0; i < now; i++)
            plan_store(f->dtype, to, done + i,
                        (float)(x[i] * (double)f->scale));
    }
}

/* Elements [from, to) of a row lie at `bytes`; the row begins at `at` in the
 * logical tensor (-1: it is padding) and has `valid` elements there. */
static void fill_run(const Filling *f, char *bytes, int64_t from, int64_t to,
                     int64_t at, int64_t valid)
{
    int64_t n = MC_MIN(to, valid) - from;

    memset(bytes, 0, (size_t)(to - from) * plan_dtype_bytes(f->dtype));
    if (at < 0 || n <= 0 || f->init == PLAN_INIT_ZEROS)
        return;
    if (f->init == PLAN_INIT_NORMAL)
        fill_normal(f, bytes, at + from, n);
    else
        for (int64_t i = 0; i < n; i++)
            plan_store(f->dtype, bytes, i, 1.0f);
}

static void fill_row(const Filling *f, int64_t row)
{
    int64_t size = f->part.size[f->part.ndims - 1], valid = 0;
    int64_t run = row * size / f->part.run, from, to;
    int64_t local = f->part.first + run * f->part.gap +
                    row * size % f->part.run;
    int64_t at = row_start(f, row, &valid);

    plan_part_clip(&f->part, local, size, 1, &from, &to);
    if (from < to)
        fill_run(f,
                 f->to + (local + from) * (int64_t)plan_dtype_bytes(f->dtype),
                 from, to, at, valid);
}

static void fill(const Filling *f)
{
    int64_t rows = f->part.elements / f->part.size[f->part.ndims - 1];

#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++)
        fill_row(f, row);
}

static Status fill_slot(const State *s, const PlanTensor *t,
                        const PlanField *field, uint32_t slot, uint64_t seed)
{
    bool weight =
        field->kind == PLAN_FIELD_PARAM || field->kind == PLAN_FIELD_MASTER;
    Filling f = {.dims = s->plan->dims.v + t->dims.first,
                 .dtype = field->dtype,
                 .scale = (float)t->init_std,
                 .init = weight ? (PlanInit)t->init : PLAN_INIT_ZEROS};
    char name[512];

    STATUS_TRY(state_slot_name(s, t, t->name, slot, name, sizeof name));
    plan_field_part(s->plan, t, field, s->rank, &f.part);
    f.key = philox_tensor_key(name, seed);
    f.to = s->pointer(s->self, field->address + slot * field->layer_stride);
    if (field->held && !field->inside) /* what comes first in the buffer */
        memset(f.to, 0, (size_t)field->held * plan_dtype_bytes(field->dtype));
    if (f.part.ndims)
        fill(&f);
    else
        memset(f.to, 0, plan_dtype_bytes(field->dtype));
    return STATUS_NONE;
}

Status state_init(const State *s, uint64_t seed)
{
    for (uint32_t i = 0; i < s->plan->tensors.n; i++) {
        const PlanTensor *t = &s->plan->tensors.v[i];
        for (uint32_t k = 0; k < t->fields.n; k++)
            for (uint32_t slot = 0; slot < state_slots(t); slot++)
                STATUS_TRY(fill_slot(
                    s, t, &s->plan->fields.v[t->fields.first + k], slot, seed));
    }
    return STATUS_NONE;
}
