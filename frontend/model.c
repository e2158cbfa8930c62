/* model.c - from a Spec to the forward program of one training step.
 *
 * Each kind of block is one function, however many layers the model has:
 *
 *   step(tokens[m,s,b], labels)   scan over microbatches of
 *     micro(tokens[s,b], labels)  embed, scans over layers of `layer`, head
 *       head                      final norm, scan over token chunks of
 *         head.chunk              logits and cross-entropy, which adds to @loss
 *
 * Everything pointwise is spelled in primitives; what is fused into one kernel
 * is decided later.  Parallelism enters in two places only: the mesh, and the
 * layouts of weights and of the hint `residual`.  All sizes are logical; b is
 * the microbatch of all replicas together.
 */
#include "frontend/model_priv.h"

#include "base/dropout.h"

static FuncId build_embed(Model *x)
{
    FuncId f = model_begin(x, "embed", "model.vocab_size");
    ValueId tokens = func_param(x->m, f, model_type(x, DT_I32, "sb"), "tokens");
    ValueId args[2] = {tokens, model_param(x, "embed")};
    ValueId y = ir_op(x->m, f, OP_EMBED, args, 2, (AttrsId){0}, x->loc);

    model_hint(x, y, "residual");
    if (x->spec->model.position_embedding == PE_LEARNED) {
        Attr size = attr_of_int(AK_SIZE, x->s);
        model_at(x, "model.position_embedding");
        ValueId table = model_param(x, "positions");
        ValueId rows = ir_op(
            x->m, f, OP_ROWS, &table, 1,
            model_positions(x, attrs_intern(x->m, &size, 1)), x->loc);
        y = model_hint(x, model_round(x, model_binary(x, OP_ADD, y, rows)),
                       "residual");
    }
    if (x->spec->model.hidden_dropout > 0) {
        model_at(x, "model.hidden_dropout");
        y = model_dropout(x, y, x->spec->model.hidden_dropout, DROP_EMBEDDING);
        y = model_hint(x, model_round(x, y), "residual");
    }
    model_result(x, y);
    return f;
}

/* tokens, labels, and with them how much each label counts if that differs. */
static uint32_t batch_params(Model *x, FuncId f, TypeId type, ValueId *out)
{
    uint32_t n = x->spec->data.loss_mask.n ? 3 : 2;
    static const char *const names[] = {"tokens", "labels", "loss_mask"};

    for (uint32_t i = 0; i < n; i++)
        out[i] = func_param(x->m, f, type, names[i]);
    return n;
}

/* One function per kind. */
static FuncId *build_layers(Model *x)
{
    FuncId *layers = arena_array(x->m->arena, FuncId, x->spec->layers.nkinds);

    for (; x->kind < x->spec->layers.nkinds; x->kind++)
        layers[x->kind] = model_layer(x);
    x->kind = 0;
    return layers;
}

/* `count` layers of one kind, one after the other: what is computed again as a
 * whole, from the input of its first. */
static FuncId build_group(Model *x, FuncId layer, int64_t count)
{
    const char *of = sym_text(x->m->names, func_of(x->m, layer)->name);
    const char *name =
        arena_printf(x->m->arena, "%ss.%lld", of, (long long)count);
    FuncId f = func_find(x->m, sym_intern(x->m->names, name));
    Scan scan = {.callee = layer, .over = 'l', .count = count};
    ValueId in;
    NodeId n;

    if (f.i)
        return f;
    f = model_begin(x, name, "model.num_layers");
    in = func_param(x->m, f, model_type(x, x->compute, "sbh"), "x");
    model_hint(x, in, "residual");
    n = ir_call(x->m, f, scan, &in, ">", ">", x->loc);
    model_result(x, model_name(x, node_res(node_of(x->m, n), 0), "y"));
    return f;
}

/* Layers `first` to `end` of one kind.  Groups are counted anew in each stage,
 * and its last one may be smaller. */
static ValueId scan_run(Model *x, FuncId micro, FuncId layer, int64_t first,
                        int64_t end, ValueId y)
{
    int64_t size = spec_layer(x->spec, first)->group;

    while (first < end) {
        int64_t left = MC_MIN(end, spec_stage_end(x->spec, first)) - first;
        Scan scan = {.callee = layer, .over = 'l', .first = first};
        NodeId n;
        scan.step = MC_MIN(size, left);
        scan.count = size > 1 ? left / scan.step : end - first;
        if (size > 1)
            scan.callee = build_group(x, layer, scan.step);
        x->f = micro;
        n = ir_call(x->m, micro, scan, &y, ">", ">", x->loc);
        y = node_res(node_of(x->m, n), 0);
        first += scan.count * MC_MAX(scan.step, 1);
    }
    return y;
}

/* A scan over each run of layers of one kind, one after the other. */
static ValueId scan_layers(Model *x, const FuncId *layers, ValueId y)
{
    const uint8_t *of = x->spec->layers.of;
    FuncId micro = x->f;

    for (int64_t first = 0, end; first < x->layers; first = end) {
        for (end = first; end < x->layers && of[end] == of[first]; end++)
            ;
        y = scan_run(x, micro, layers[of[first]], first, end, y);
    }
    return y;
}

static FuncId build_micro(Model *x, TensorId loss)
{
    FuncId embed = build_embed(x);
    FuncId *layers = build_layers(x);
    FuncId head = model_head(x, loss);
    FuncId f = model_begin(x, "micro", "training.micro_batch_size");
    ValueId args[3];
    uint32_t nargs = batch_params(x, f, model_type(x, DT_I32, "sb"), args);
    Scan once = {.callee = embed, .count = 1};
    NodeId n = ir_call(x->m, f, once, args, ".", ".", x->loc);

    args[0] = scan_layers(x, layers, node_res(node_of(x->m, n), 0));
    once.callee = head;
    ir_call(x->m, f, once, args, nargs == 3 ? "..." : "..", "", x->loc);
    return f;
}

/* What makes the draws of this step its own. */
static void draw_key(Model *x)
{
    TypeId scalar = model_type(x, DT_F32, "");
    Attr what = attr_of_sym(AK_WHAT, sym_intern(x->m->names, "draws"));
    NodeId n = node_new(x->m, x->f, OP_HOST, NULL, 0,
                        attrs_intern(x->m, &what, 1), &scalar, 1, x->loc);

    ir_write(x->m, x->f, model_key(x), FIELD_PARAM,
             node_res(node_of(x->m, n), 0), x->loc);
}

static FuncId build_step(Model *x, FuncId micro)
{
    FuncId f = model_begin(x, "step", "training.global_batch_size");
    TypeId ids = model_type(x, DT_I32, "sb");
    TypeId all = type_with_first(x->m, ids, 'm', x->m->microbatches);
    Scan scan = {
        .callee = micro, .over = 'm', .count = x->m->microbatches};
    ValueId args[3];
    uint32_t nargs = batch_params(x, f, all, args);

    for (uint32_t i = 0; i < nargs; i++)
        model_hint(x, args[i], "batch");
    if (tensor_find(x->m, sym_intern(x->m->names, "draws")).i)
        draw_key(x);
    ir_call(x->m, f, scan, args, nargs == 3 ? "mmm" : "mm", "", x->loc);
    return f;
}

static void build_stages(Model *x)
{
    StageTable table = x->spec->stages;

    for (uint32_t i = 0; i < table.n; i++) {
        const Stage *s = &table.v[i];
        PipeStage row = {0};
        row.pp = (uint32_t)s->pp;
        row.chunk = (uint32_t)s->chunk;
        row.first_layer = (uint32_t)s->first_layer;
        row.nlayers = (uint32_t)s->num_layers;
        row.embedding = s->has_embedding;
        row.head = s->has_head;
        vec_push(&x->m->stages, row);
    }
}

static Model model_sizes(Module *m, const Spec *spec)
{
    Model x = {0};

    x.m = m;
    x.spec = spec;
    x.compute = spec->training.precision == PREC_FP32   ? DT_F32
                : spec->training.precision == PREC_FP16 ? DT_F16
                                                        : DT_BF16;
    x.gpt2 = spec->model.position_embedding == PE_LEARNED;
    x.s = spec->training.seq_length;
    x.b = spec->training.micro_batch_size * spec->derived.dense_dp;
    x.h = spec->model.hidden_size;
    x.g = spec->model.num_query_groups;
    x.r = spec->model.num_attention_heads / spec->model.num_query_groups;
    x.d = spec->model.kv_channels;
    x.f_ = spec->model.ffn_hidden_size;
    x.v = spec->derived.padded_vocab;
    x.p = spec->model.max_position_embeddings;
    x.layers = spec->model.num_layers;
    return x;
}

/* The steps of smaller batches while it grows, and the evaluation. */
static void build_programs(Model *x)
{
    const Spec *spec = x->spec;
    BatchRampup r = spec_rampup(spec);
    int64_t m = x->m->microbatches;

    for (int64_t i = 0; i + 1 < batch_sizes(&r); i++)
        vec_push(&x->m->programs,
                 ((SideProgram){(uint32_t)(m * batch_size(&r, i) / r.full),
                                false}));
    if (spec->training.eval.interval)
        vec_push(&x->m->programs, ((SideProgram){(uint32_t)m, true}));
}

Module *model_build(Arena *a, Diag *d, const Spec *spec)
{
    Module *m = module_new(a, d);
    Model x = model_sizes(m, spec);
    TensorId loss;

    m->nlayers = (uint32_t)x.layers;
    m->microbatches = (uint32_t)spec->derived.microbatches;
    model_mesh(&x);
    model_hints(&x);
    build_stages(&x);
    loss = model_metric(&x, "loss", "", false);
    vec_push(&m->entry, build_step(&x, build_micro(&x, loss)));
    model_kinds(&x);
    build_programs(&x);
    m->props = PROP_INFERRED;
    return m;
}
