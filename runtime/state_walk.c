/* state_walk.c - the local part of a tensor in the order of its export.
 *
 * The exported tensor is a matrix whose rows are made of some dimensions and
 * its columns of the others, perhaps transposed.  Visiting the dimensions in
 * the order in which they appear there makes runs along the last of them lie
 * side by side in the file, whatever the split.
 *
 *     local q [g,r,d,h] -> c_attn [h, 3h] transposed: visit h, g, r, d;
 *     a run is d; its elements are h apart in the local part.
 *
 * Of a buffer that ranks share out a run is cut to what is held.
 */
#include "runtime/state.h"

typedef struct {
    int64_t n, first; /* valid local indices; the first one's logical index */
    int64_t local;    /* step in the local part */
    int64_t file;     /* step in the exported tensor */
} Axis;

uint32_t state_slots(const PlanTensor *t)
{
    return t->layers.n ? t->layers.n : 1;
}

Status state_slot_name(const State *s, const PlanTensor *t, PlanStr pattern,
                       uint32_t slot, char *out, size_t cap)
{
    uint32_t layer = t->layers.n ? s->plan->lists.v[t->layers.first + slot] : 0;

    if (plan_layer_name(plan_text(s->plan, pattern), layer, out, cap))
        return STATUS_NONE;
    return status_make(STATUS_INPUT, "the tensor name %s is too long",
                       plan_text(s->plan, pattern));
}

Status state_export_name(const State *s, const PlanTensor *t, uint32_t slot,
                         uint32_t part, char *out, size_t cap)
{
    char pattern[STATE_NAME_BYTES];

    STATUS_TRY(state_slot_name(s, t, t->export_name, slot, pattern,
                               sizeof pattern));
    if (plan_part_name(pattern, part, out, cap))
        return STATUS_NONE;
    return status_make(STATUS_INPUT, "the tensor name %s is too long", pattern);
}

/* The step in the exported tensor when a row or column number grows by 1. */
static int64_t export_step(const PlanTensor *t, bool row)
{
    int64_t width = MC_MAX(t->columns, 1);

    return row != (bool)t->transpose ? width : 1;
}

/* Axes in the plan's order of dimensions. */
static void describe_axes(const State *s, const PlanTensor *t,
                          const PlanPart *part, Axis *axes)
{
    int64_t weight[2] = {1, 1}; /* of columns, of rows */

    for (uint32_t d = t->dims.n; d-- > 0;) {
        int64_t logical = s->plan->dims.v[t->dims.first + d].logical;
        bool row = d < t->row_dims;
        axes[d].n = MC_MIN(logical - part->start[d], part->size[d]);
        axes[d].first = part->start[d];
        axes[d].local = part->step[d];
        axes[d].file = weight[row] * export_step(t, row);
        weight[row] *= logical;
    }
}

/* Leaves only index `part` of the first dimension, which is a tensor of its
 * own. */
static void choose_part(Axis *axis, int64_t part, int64_t *out_local)
{
    int64_t index = part - axis->first;

    *out_local = index * axis->local;
    axis->n = index >= 0 && index < axis->n ? 1 : 0;
    axis->first = 0;
}

/* Rows first, or columns first if transposed. */
static void order_axes(const PlanTensor *t, const Axis *axes, Axis *out)
{
    uint32_t n = t->dims.n, first = t->transpose ? t->row_dims : 0;

    for (uint32_t i = 0; i < n; i++)
        out[i] = axes[(first + i) % n];
}

/* The run that starts at the local indices `i` of all axes but the last. */
static StateRun run_at(const PlanTensor *t, const Axis *axes, uint32_t n,
                       const int64_t *i)
{
    StateRun run = {.at = t->row_offset * MC_MAX(t->columns, 1) +
                          t->column_offset,
                    .n = axes[n - 1].n,
                    .stride = axes[n - 1].local};

    for (uint32_t d = 0; d < n; d++) {
        int64_t index = d + 1 < n ? i[d] : 0;
        run.at += (axes[d].first + index) * axes[d].file;
        run.local += index * axes[d].local;
    }
    return run;
}

/* Leaves of a run what is held; false: nothing. */
static bool cut_run(const PlanPart *part, const Axis *last, StateRun *run)
{
    int64_t from, to;

    plan_part_clip(part, run->local, run->n, run->stride, &from, &to);
    run->at += from * last->file;
    run->local += from * run->stride;
    run->n = to - from;
    return run->n > 0;
}

static bool next_index(const Axis *axes, uint32_t n, int64_t *i)
{
    for (uint32_t d = n - 1; d-- > 0;) {
        if (++i[d] < axes[d].n)
            return true;
        i[d] = 0;
    }
    return false;
}

Status state_walk(const State *s, const PlanTensor *t, const PlanField *f,
                  uint32_t part,
                  Status (*fn)(void *self, const StateRun *run), void *self)
{
    Axis plain[PLAN_MAX_DIMS], axes[PLAN_MAX_DIMS];
    int64_t i[PLAN_MAX_DIMS] = {0};
    uint32_t n = t->dims.n;
    int64_t local = 0;
    PlanPart held;

    if (n == 0)
        return STATUS_NONE;
    plan_field_part(s->plan, t, f, s->rank, &held);
    describe_axes(s, t, &held, plain);
    if (plan_export_parts(s->plan, t) > 1)
        choose_part(&plain[0], part, &local);
    order_axes(t, plain, axes);
    for (uint32_t d = 0; d < n; d++)
        if (axes[d].n <= 0)
            return STATUS_NONE;
    do {
        StateRun run = run_at(t, axes, n, i);
        run.local += held.first + local;
        if (cut_run(&held, &axes[n - 1], &run))
            STATUS_TRY(fn(self, &run));
    } while (next_index(axes, n, i));
    return STATUS_NONE;
}
