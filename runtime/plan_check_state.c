/* plan_check_state.c - checks what a plan says about training, data and state.
 *
 * A field is right if its dimensions can be split as it says and its part lies
 * in one memory for every layer; a tensor if its fields and dimensions follow
 * those of the one before, and its export fits into the exported shape.
 */
#include "runtime/plan_check_priv.h"

/* ---- training and data --------------------------------------------------- */

static bool check_growth(PlanCheck *c, const PlanTraining *t)
{
    const BatchRampup *r = &t->rampup;

    return plan_must(c, r->full == t->global_batch && r->start > 0 &&
                            r->start <= r->full && r->samples >= 0 &&
                            r->samples < INT64_MAX / 4 &&
                            r->full < INT64_MAX / 4,
                     "wrong rampup") &&
           plan_must(c, r->start == r->full ||
                            (r->increment > 0 &&
                             (r->full - r->start) % r->increment == 0),
                     "increments do not lead to the global batch") &&
           plan_must(c, t->eval_interval >= 0 && t->eval_steps >= 0,
                     "wrong evaluation") &&
           plan_must(c, t->scaled <= 1 && t->loss_scale >= 0 &&
                            t->loss_scale < 1e38,
                     "wrong loss_scale");
}

static bool check_saving(PlanCheck *c, const PlanTraining *t)
{
    return plan_must(c, t->save_interval >= 0 && t->save_keep >= 0 &&
                            t->save_async <= 1,
                     "wrong checkpoints") &&
           plan_must_text(c, t->save_dir, "save_dir") &&
           plan_must_text(c, t->fixed, "fixed");
}

bool plan_check_training(PlanCheck *c, const PlanTraining *t)
{
    int64_t tokens;

    return plan_must(c, t->steps >= 0, "steps is negative") &&
           plan_must_positive(c, t->global_batch, "global_batch") &&
           plan_must_positive(c, t->micro_batch, "micro_batch") &&
           plan_must_positive(c, t->seq_length, "seq_length") &&
           plan_must_positive(c, t->microbatches, "microbatches") &&
           plan_must(c,
                     !__builtin_mul_overflow(t->micro_batch, t->seq_length,
                                             &tokens) &&
                         tokens < (int64_t)1 << PLAN_EXTENT_BITS,
                     "a microbatch is too large") &&
           plan_must(c, t->optimizer <= PLAN_SGD, "optimizer is %u",
                     t->optimizer) &&
           plan_must(c,
                     (uint32_t)t->lr.style <= LR_WSD &&
                         (uint32_t)t->lr.wsd_style <= WSD_MINUS_SQRT,
                     "unknown schedule") &&
           plan_must_finite(c, t->lr.max, "lr") &&
           check_growth(c, t) && plan_must_finite(c, t->beta1, "beta1") &&
           plan_must_finite(c, t->beta2, "beta2") &&
           plan_must_text(c, t->metrics, "metrics") && check_saving(c, t);
}

bool plan_check_source(PlanCheck *c, const PlanSource *s)
{
    return plan_must_text(c, s->path, "path") &&
           plan_must_text(c, s->mask, "mask") &&
           plan_must_finite(c, s->weight, "weight");
}

static bool check_part(PlanCheck *c, const PlanData *d)
{
    int64_t seq = c->p->training.v->seq_length;

    return plan_must(c, d->parts > 0, "no parts") &&
           plan_must_row(c, d->part, c->p->exprs.n, "part") &&
           plan_must(c,
                     c->exprs[d->part].low >= 0 &&
                         c->exprs[d->part].high < d->parts,
                     "part is not below parts") &&
           plan_must(c, d->parts == 1 || seq % (2 * (int64_t)d->parts) == 0,
                     "the sequence does not divide into parts");
}

bool plan_check_data(PlanCheck *c, const PlanData *d)
{
    const PlanTraining *t = c->p->training.v;
    int64_t batch;

    return plan_must(c, d->kind <= PLAN_DATA_INDEXED, "kind is %u", d->kind) &&
           plan_must_text(c, d->split, "split") &&
           plan_must(c, d->masked <= 1, "masked is no flag") &&
           plan_must(c, d->valid <= 1, "valid is no flag") &&
           plan_must_range(c, d->sources, c->p->sources.n, "sources") &&
           plan_must(c, d->kind == PLAN_DATA_SYNTHETIC || d->sources.n,
                     "no sources") &&
           plan_must_positive(c, d->vocab, "vocab") &&
           plan_must_row(c, d->shard, c->p->exprs.n, "shard") &&
           plan_must(c,
                     c->exprs[d->shard].low >= 0 &&
                         c->exprs[d->shard].high < d->shards,
                     "shard is not below shards") &&
           check_part(c, d) &&
           plan_must(
               c,
               !__builtin_mul_overflow(t->micro_batch, t->microbatches,
                                       &batch) &&
                   !__builtin_mul_overflow(batch, (int64_t)d->shards, &batch) &&
                   batch == t->global_batch,
               "the microbatches do not make up the global batch");
}

/* ---- state --------------------------------------------------------------- */

bool plan_check_dim(PlanCheck *c, const PlanDim *d)
{
    return plan_must_text(c, d->name, "name") &&
           plan_must_positive(c, d->logical, "logical") &&
           plan_must_positive(c, d->padded, "padded") &&
           plan_must(c, d->padded >= d->logical, "padded is below logical");
}

bool plan_check_split(PlanCheck *c, const PlanSplit *s)
{
    int64_t size;

    return plan_must_atoms(c, *s, &size);
}

bool plan_check_field(PlanCheck *c, const PlanField *f)
{
    int64_t shares;

    return plan_must(c, f->kind < PLAN_FIELDS, "kind is %u", f->kind) &&
           plan_must(c, f->dtype <= PLAN_F16, "dtype is %u", f->dtype) &&
           plan_must_atoms(c, f->share, &shares) &&
           plan_must(c,
                     f->held >= 0 &&
                         f->held < ((int64_t)1 << PLAN_EXTENT_BITS) / shares,
                     "held is %lld", (long long)f->held) &&
           plan_must(c, f->held || !f->share.n, "a share of nothing") &&
           plan_must_row(c, f->owner, c->p->exprs.n, "owner");
}

static bool field_elements(PlanCheck *c, const PlanTensor *t,
                           const PlanField *f, int64_t *out)
{
    *out = 1;
    for (uint32_t d = 0; d < t->dims.n; d++) {
        int64_t padded = c->p->dims.v[t->dims.first + d].padded, parts;
        if (!plan_must_atoms(c, c->p->splits.v[f->splits + d], &parts) ||
            !plan_must(c, padded % parts == 0,
                       "dimension %u of size %lld in %lld parts", d,
                       (long long)padded, (long long)parts) ||
            !plan_must(c,
                       !__builtin_mul_overflow(*out, padded / parts, out) &&
                           *out < (int64_t)1 << PLAN_EXTENT_BITS,
                       "too large"))
            return false;
    }
    return true;
}

/* From the first byte of a slot to behind its last, gaps between its runs
 * included. */
static bool dense_bytes(PlanCheck *c, const PlanTensor *t, const PlanField *f,
                        int64_t elements, uint64_t *out)
{
    uint64_t each = plan_dtype_bytes(f->dtype), run;
    int64_t parts = 1, first = 1;

    *out = run = (uint64_t)elements * each;
    if (!f->pitch)
        return true;
    if (!plan_must(c, t->dims.n > 1, "a pitch needs two dimensions") ||
        !plan_must_atoms(c, c->p->splits.v[f->splits], &parts))
        return false;
    first = c->p->dims.v[t->dims.first].padded / parts;
    run /= (uint64_t)first;
    *out = (uint64_t)(first - 1) * f->pitch + run;
    return plan_must(c,
                     f->pitch % each == 0 && f->pitch >= run &&
                         f->pitch < ((uint64_t)1 << PLAN_EXTENT_BITS) /
                                        (uint64_t)first,
                     "wrong pitch");
}

/* The bytes of one slot's buffer that are of this tensor, or before it. */
static bool field_bytes(PlanCheck *c, const PlanTensor *t, const PlanField *f,
                        int64_t elements, uint64_t *out)
{
    uint64_t each = plan_dtype_bytes(f->dtype);

    if (!dense_bytes(c, t, f, elements, out) ||
        !plan_must(c,
                   f->inside % each == 0 &&
                       f->inside < (uint64_t)1 << PLAN_EXTENT_BITS,
                   "wrong place in its buffer"))
        return false;
    *out = f->held ? (uint64_t)f->held * each : *out + f->inside;
    return true;
}

static bool check_tensor_field(PlanCheck *c, const PlanTensor *t,
                               const PlanField *f)
{
    uint64_t limit = (uint64_t)1 << PLAN_EXTENT_BITS;
    uint64_t slots = t->layers.n ? t->layers.n : 1;
    int64_t elements, last;
    uint64_t bytes;

    if (!plan_must(c, f->splits == c->next_split, "splits out of order") ||
        !plan_must_range(c, (PlanRange){f->splits, t->dims.n}, c->p->splits.n,
                         "splits") ||
        !field_elements(c, t, f, &elements) ||
        !field_bytes(c, t, f, elements, &bytes) ||
        !plan_must(c,
                   f->address < limit && f->layer_stride < limit,
                   "wrong address"))
        return false;
    c->next_split += t->dims.n;
    if (__builtin_mul_overflow((int64_t)f->layer_stride, (int64_t)slots - 1,
                               &last) ||
        __builtin_add_overflow(last, (int64_t)f->address, &last))
        return plan_must(c, false, "overflow");
    return plan_must_address(c, (int64_t)f->address, last, bytes);
}

static bool check_export(PlanCheck *c, const PlanTensor *t)
{
    int64_t rows = 1, columns = 1, height, width, bottom, right;
    uint32_t first = 0;

    if (t->export_name == PLAN_NONE)
        return true;
    if (strstr(plan_text(c->p, t->export_name), "{e}")) {
        if (!plan_must(c, t->row_dims > 1, "an export in parts needs rows"))
            return false;
        first = 1;
    }
    for (uint32_t d = first; d < t->dims.n; d++) {
        int64_t *side = d < t->row_dims ? &rows : &columns;
        if (__builtin_mul_overflow(
                *side, c->p->dims.v[t->dims.first + d].logical, side))
            return plan_must(c, false, "overflow");
    }
    height = t->transpose ? columns : rows;
    width = t->transpose ? rows : columns;
    if (!plan_must(c,
                   t->columns <= 1 || (t->transpose ? t->row_dims > 0
                                                    : t->row_dims < t->dims.n),
                   "an export with columns needs a dimension along its rows"))
        return false;
    return plan_must(
        c,
        t->row_dims <= t->dims.n && t->transpose <= 1 && t->row_offset >= 0 &&
            t->column_offset >= 0 &&
            !__builtin_add_overflow(t->row_offset, height, &bottom) &&
            !__builtin_add_overflow(t->column_offset, width, &right) &&
            bottom <= t->rows && right <= MC_MAX(t->columns, 1) &&
            t->rows < (int64_t)1 << PLAN_EXTENT_BITS &&
            t->columns < (int64_t)1 << 32,
        "wrong export shape");
}

static bool check_layers(PlanCheck *c, const PlanTensor *t)
{
    bool pattern = strstr(plan_text(c->p, t->name), "{l}") != NULL;

    return plan_must_range(c, t->layers, c->p->lists.n, "layers") &&
           plan_must(c, pattern == (t->layers.n > 0),
                     "the name and the layers do not agree");
}

bool plan_check_tensor(PlanCheck *c, const PlanTensor *t)
{
    if (!plan_must_text(c, t->name, "name") ||
        !plan_must_text(c, t->export_name, "export_name") ||
        !plan_must(c, t->init <= PLAN_INIT_NORMAL, "init is %u", t->init) ||
        !plan_must_finite(c, t->init_std, "init_std") ||
        !plan_must_follow(c, t->dims, c->p->dims.n, &c->next_dim, "dims") ||
        !plan_must(c, t->dims.n <= PLAN_MAX_DIMS, "too many dimensions") ||
        !plan_must_follow(c, t->fields, c->p->fields.n, &c->next_field,
                          "fields") ||
        !check_layers(c, t) || !check_export(c, t))
        return false;
    for (uint32_t i = 0, seen = 0; i < t->fields.n; i++) {
        const PlanField *f = &c->p->fields.v[t->fields.first + i];
        if (!plan_must(c, !(seen & 1u << f->kind), "field twice") ||
            !check_tensor_field(c, t, f))
            return false;
        seen |= 1u << f->kind;
    }
    return true;
}
