/* emit_tables.c - what a plan says about the job: sizes, data, tensors.
 *
 * A tensor is described once per stage that holds it, with where each field
 * lies, how it is split, and how it is saved.  Of the ranks with equal parts
 * the one whose coordinates along the other axes are all 0 saves it; of two
 * stages with a tied tensor, the earlier.
 */
#include "codegen/emit_priv.h"

/* ---- the job ------------------------------------------------------------- */

/* Where the head is, the loss is known: there all metrics are reported. */
static bool is_reporter(const Emit *e)
{
    for (uint32_t i = 0; i < e->m->stages.n; i++)
        if (e->m->stages.v[i].head)
            return e->m->stages.v[i].pp == e->pp;
    return e->pp == 0;
}

/* 0 on the one rank whose coordinates outside `used` and the pipeline's axis
 * are all 0. */
static uint32_t first_of(Emit *e, AxisSet used)
{
    const Mesh *mesh = &e->m->mesh;
    AxisSet stage = mesh_axis(e->m, "pp") | mesh_axis(e->m, "embed");
    PlanTerm terms[IR_MAX_ATOMS];
    uint32_t n = 0;

    for (uint32_t i = 0; i < mesh->atoms.n; i++)
        if (!((used | stage) >> i & 1) && !mesh->atoms.v[i].expert)
            terms[n++] = (PlanTerm){.atom = e->atom[i], .factor = 1};
    return plan_add_expr(e->b, 0, terms, n);
}

static void job_fill(Emit *e)
{
    PlanJob *job = plan_job(e->b);
    const char *name = arena_printf(e->arena, "pp%u", e->pp);

    job->name = plan_add_text(e->b, e->spec->model.name);
    job->version = plan_add_text(e->b, MEGAC_VERSION);
    job->class_name = plan_add_text(e->b, name);
    job->world = MC_MAX(e->m->mesh.world, 1);
    job->reporter = first_of(e, 0);
    job->has_reporter = is_reporter(e);
}

static int64_t total_params(const Module *m)
{
    int64_t total = 0;

    for (uint32_t i = 1; i < m->tensors.n; i++) {
        const Tensor *t = &m->tensors.v[i];
        if (t->parameter)
            total += type_elems(&t->logical) *
                     tensor_layers(m, (TensorId){i}, 0, m->nlayers);
    }
    return total;
}

static uint32_t text_or_none(Emit *e, const char *text)
{
    return text ? plan_add_text(e->b, text) : PLAN_NONE;
}

static void saving_fill(Emit *e, PlanTraining *t)
{
    Buf fixed = {0};

    t->save_dir = text_or_none(e, e->spec->training.checkpoint.dir);
    if (!t->save_dir)
        return;
    spec_print_fixed(e->spec, &fixed);
    t->fixed = plan_add_text(e->b, buf_str(&fixed));
    t->save_interval = e->spec->training.checkpoint.interval;
    t->save_keep = e->spec->training.checkpoint.keep;
    t->save_async = e->spec->training.checkpoint.async;
    buf_free(&fixed);
}

static void training_fill(Emit *e)
{
    static const uint32_t kinds[] = {[OPT_ADAMW] = PLAN_ADAMW,
                                     [OPT_ADAM] = PLAN_ADAM,
                                     [OPT_SGD] = PLAN_SGD};
    PlanTraining *t = plan_training(e->b);
    const Spec *s = e->spec;

    t->steps = s->training.steps;
    t->global_batch = s->training.global_batch_size;
    t->micro_batch = s->training.micro_batch_size;
    t->seq_length = s->training.seq_length;
    t->microbatches = s->derived.microbatches;
    t->total_params = total_params(e->m);
    t->seed = (uint64_t)s->training.seed;
    t->beta1 = s->training.optimizer.beta1;
    t->beta2 = s->training.optimizer.beta2;
    t->eps = s->training.optimizer.eps;
    t->weight_decay = s->training.optimizer.weight_decay;
    t->clip_grad = s->training.optimizer.clip_grad;
    t->lr = spec_lr(s);
    t->rampup = spec_rampup(s);
    t->eval_interval = s->training.eval.interval;
    t->eval_steps = s->training.eval.steps;
    t->scaled = s->training.precision == PREC_FP16;
    t->loss_scale = s->training.loss_scale;
    t->momentum = s->training.optimizer.momentum;
    t->optimizer = kinds[s->training.optimizer.type];
    t->log_interval = (uint32_t)s->training.log.interval;
    t->metrics = text_or_none(e, s->training.log.jsonl);
    saving_fill(e, t);
}

/* ---- data ---------------------------------------------------------------- */

/* Each data set with the mask in the same place, if any. */
static void sources_fill(Emit *e, PlanData *d, const SpecDataList *list,
                         const SpecTextList *masks)
{
    static const uint32_t kinds[] = {[DATA_PREFIX] = PLAN_DATA_INDEXED,
                                     [DATA_SYNTHETIC] = PLAN_DATA_SYNTHETIC,
                                     [DATA_TEXT] = PLAN_DATA_TEXT};

    d->kind = list->n ? kinds[list->v[0].kind] : PLAN_DATA_SYNTHETIC;
    for (uint32_t i = 0; i < list->n; i++)
        if (list->v[i].path)
            plan_add_source(e->b, list->v[i].path,
                            i < masks->n ? masks->v[i] : NULL,
                            list->v[i].weight);
}

/* The validation part of the training data, or data of its own. */
static void valid_fill(Emit *e)
{
    const SpecDataList *valid = &e->spec->data.valid;
    PlanData *d = plan_add_valid(e->b);

    d->valid = 1;
    if (valid->n)
        sources_fill(e, d, valid, &(SpecTextList){NULL, 0});
    else
        sources_fill(e, d, &e->spec->data.train, &e->spec->data.loss_mask);
}

static void data_fill(Emit *e)
{
    PlanData *d = plan_data(e->b);
    uint8_t atoms[IR_MAX_ATOMS];
    uint32_t n = mesh_axis_atoms(e->m, "dp", atoms);

    d->vocab = e->spec->model.vocab_size;
    d->split = text_or_none(e, e->spec->data.split);
    d->shard = emit_digits(e, atoms, n, 1);
    d->shards = axes_size(&e->m->mesh, mesh_axis(e->m, "dp"));
    n = mesh_axis_atoms(e->m, "cp", atoms);
    d->part = emit_digits(e, atoms, n, 1);
    d->parts = axes_size(&e->m->mesh, mesh_axis(e->m, "cp"));
    sources_fill(e, d, &e->spec->data.train, &e->spec->data.loss_mask);
    if (e->spec->training.eval.interval)
        valid_fill(e);
}

void emit_job(Emit *e)
{
    job_fill(e);
    training_fill(e);
    data_fill(e);
}

/* ---- tensors ------------------------------------------------------------- */

static const struct {
    Field field;
    uint32_t kind;
} FIELD_KINDS[] = {{FIELD_PARAM, PLAN_FIELD_PARAM},
                   {FIELD_MASTER, PLAN_FIELD_MASTER},
                   {FIELD_GRAD, PLAN_FIELD_GRAD},
                   {FIELD_M, PLAN_FIELD_M},
                   {FIELD_V, PLAN_FIELD_V}};

static const uint32_t INITS[] = {[INIT_NONE] = PLAN_INIT_ZEROS,
                                 [INIT_NORMAL] = PLAN_INIT_NORMAL,
                                 [INIT_ZEROS] = PLAN_INIT_ZEROS,
                                 [INIT_ONES] = PLAN_INIT_ONES};

static bool held_before(const Emit *e, TensorId t)
{
    for (uint32_t pp = 0; pp < e->pp; pp++)
        if (memplan_state(e->mem, pp, t, FIELD_PARAM)->slots)
            return true;
    return false;
}

static PlanSplit dim_split(Emit *e, const Layout *l, char dim)
{
    const Split *s = layout_split(l, dim);
    uint32_t atoms[IR_MAX_SPLIT];

    for (uint32_t i = 0; s && i < s->n; i++)
        atoms[i] = e->atom[s->atom[i]];
    return plan_add_list(e->b, atoms, s ? s->n : 0);
}

/* What is in the gradient's memory when it is looked at is the complete one. */
static LayoutId field_layout(const Tensor *t, Field f)
{
    if (f == FIELD_GRAD && t->fields >> FIELD_GSUM & 1)
        return t->rest[FIELD_GSUM];
    return t->rest[f];
}

/* Where a part begins in a field, and how far apart indices of the dimension
 * before j are.  At most one dimension comes before j. */
static void field_inside(const Emit *e, const Type *type, const Layout *l,
                         const Span *at, PlanField *out)
{
    uint64_t below = plan_dtype_bytes(out->dtype);
    int j = type_dim(type, 'j');

    mc_assert(j <= 1);
    for (int d = j + 1; d < type->ndim; d++)
        below *= (uint64_t)layout_local(e->m, type, l, type->dim[d]);
    out->inside = (uint64_t)at->first * below;
    if (j == 1)
        out->pitch = (uint64_t)type->size[j] * below;
}

/* What a rank holds of lines: its share, if replicas share them out. */
static void field_share(Emit *e, const Tensor *t, LayoutId rest, PlanField *out)
{
    uint32_t atoms[IR_MAX_SPLIT], n = 0;
    uint8_t used[IR_MAX_ATOMS];
    const Split *s = layout_split(layout_of(e->m, rest), 'n');
    uint8_t first = layout_atoms(type_of(e->m, t->type),
                                 layout_of(e->m, t->use), used);

    if (!t->flat.i)
        return;
    for (uint8_t i = first; s && i < s->n; i++)
        atoms[n++] = e->atom[s->atom[i]];
    out->held = layout_local_elems(e->m, type_of(e->m, t->flat),
                                   layout_of(e->m, rest));
    out->share = plan_add_list(e->b, atoms, n);
}

static void field_emit(Emit *e, TensorId id, const TensorPart *part, Field f,
                       uint32_t kind)
{
    const Tensor *t = &e->m->tensors.v[id.i];
    bool summed = f == FIELD_GRAD && t->fields >> FIELD_GSUM & 1;
    const MemState *s =
        memplan_state(e->mem, e->pp, id, summed ? FIELD_GSUM : f);
    const Type *type = type_of(e->m, t->type);
    PlanField field = {.kind = kind,
                       .dtype = emit_dtype(t->field_dtype[f]),
                       .address = emit_state_address(e, s),
                       .layer_stride = (uint64_t)s->layer_stride};
    LayoutId rest = field_layout(t, f);
    PlanSplit splits[IR_MAX_DIMS];
    const Layout *l;

    if (!s->slots)
        return;
    l = layout_of(e->m, t->flat.i ? t->use : rest);
    for (int d = 0, n = 0; d < type->ndim; d++)
        if (type->dim[d] != 'j' || (part && part->at.dim))
            splits[n++] = dim_split(e, l, type->dim[d]);
    if (part)
        field_inside(e, type, l, &part->at, &field);
    field_share(e, t, rest, &field);
    field.owner =
        held_before(e, id) && !t->per_layer
            ? plan_add_expr(e->b, 1, NULL, 0)
            : first_of(e, layout_split_axes(&e->m->mesh,
                                            layout_of(e->m, rest)));
    plan_add_field(e->b, &field, splits);
}

static void export_fill(Emit *e, const Export *x, const Type *logical,
                        PlanTensor *out)
{
    int64_t rows = 1;

    out->export_name = plan_add_text(e->b, sym_text(e->m->names, x->name));
    if (strstr(sym_text(e->m->names, x->name), "{e}"))
        out->row_dims = 1;
    while (rows < x->rows && out->row_dims < logical->ndim)
        rows *= logical->size[out->row_dims++];
    if (x->cols == 0)
        out->row_dims = logical->ndim;
    out->transpose = x->transpose;
    out->rows = x->transpose ? x->cols : x->fused_rows;
    out->columns = x->transpose ? x->fused_rows : x->cols;
    out->row_offset = x->transpose ? 0 : x->row_offset;
    out->column_offset = x->transpose ? x->row_offset : 0;
}

/* Global numbers of the layers of which a tensor is held, by slot. */
static PlanRange layers_list(Emit *e, TensorId t)
{
    uint32_t *list = arena_array(e->arena, uint32_t, e->m->nlayers);
    uint32_t n = 0;

    for (uint32_t i = 0; i < e->m->stages.n; i++) {
        const PipeStage *s = &e->m->stages.v[i];
        for (uint32_t l = s->first_layer; l < s->first_layer + s->nlayers; l++)
            if ((s->pp == e->pp || e->mem->npp == 1) &&
                tensor_in_layer(e->m, t, l))
                list[n++] = l;
    }
    return plan_add_list(e->b, list, n);
}

/* A tensor, or one of the parts that lie side by side in it. */
static void tensor_emit(Emit *e, TensorId id, const TensorPart *part)
{
    const Tensor *t = &e->m->tensors.v[id.i];
    const Export *file = part ? &part->file : &t->file;
    const char *name = sym_text(e->m->names, part ? part->name : t->name);
    Type padded = *type_of(e->m, t->type), logical = t->logical;
    PlanTensor row = {.init = INITS[t->init], .init_std = t->init_std};

    if (part) {
        padded = type_part(&padded, part->at);
        logical = type_part(&logical, part->at);
    }
    row.name = plan_add_text(
        e->b,
        t->per_layer ? arena_printf(e->arena, "layers.{l}.%s", name) : name);
    if (t->per_layer)
        row.layers = layers_list(e, id);
    if (file->name.i)
        export_fill(e, file, &logical, &row);
    plan_add_tensor(e->b, &row);
    for (int d = 0; d < padded.ndim; d++)
        plan_add_dim(e->b, (const char[]){padded.dim[d], '\0'},
                     logical.size[d], padded.size[d]);
    for (size_t i = 0; i < MC_LEN(FIELD_KINDS); i++)
        field_emit(e, id, part, FIELD_KINDS[i].field, FIELD_KINDS[i].kind);
}

void emit_tensors(Emit *e)
{
    for (uint32_t i = 1; i < e->m->tensors.n; i++) {
        const Tensor *t = &e->m->tensors.v[i];

        if (!t->parameter ||
            !memplan_state(e->mem, e->pp, (TensorId){i}, FIELD_PARAM)->slots)
            continue;
        if (t->nparts == 0)
            tensor_emit(e, (TensorId){i}, NULL);
        for (uint32_t k = 0; k < t->nparts; k++)
            tensor_emit(e, (TensorId){i}, &t->part[k]);
    }
}
