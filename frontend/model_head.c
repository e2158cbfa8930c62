/* model_head.c - the final norm, logits and cross-entropy.
 *
 * The logits exist one piece of the sequence at a time: the head is a scan
 * over pieces, and each adds its token losses to @loss.
 */
#include "frontend/model_priv.h"

/* Logits of padded vocabulary rows are pushed to -1e30 before the maximum and
 * weigh exactly nothing in the sum. */
static ValueId masked(Model *x, ValueId logits, ValueId in_range)
{
    ValueId out = model_binary(x, OP_SUB, in_range, model_number(x, 1.0));

    return model_binary(x, OP_ADD, logits,
                        model_binary(x, OP_MUL, out, model_number(x, 1e30)));
}

static ValueId vocab_op(Model *x, Op op, const ValueId *args, uint32_t nargs)
{
    Attr list[] = {attr_of_sym(AK_DIMS, sym_intern(x->m->names, "v")),
                   attr_of_int(AK_SIZE, x->v),
                   attr_of_int(AK_LIMIT, x->spec->model.vocab_size)};
    uint32_t n = op == OP_INRANGE ? 3 : 2;

    return ir_op(x->m, x->f, op, args, nargs, attrs_intern(x->m, list, n),
                 x->loc);
}

/* Sum of token losses over this piece, each times its weight in `mask` (0: all
 * 1), times 1/(weight of all targets of the global batch):
 * log sum exp(logits) - logits[label], with a shift that cancels. */
static ValueId cross_entropy(Model *x, ValueId logits, ValueId labels,
                             ValueId mask)
{
    bool padded = x->v != x->spec->model.vocab_size;
    ValueId in_range = {0}, open = logits, top, e, sum, target, loss;

    if (padded) {
        in_range = vocab_op(x, OP_INRANGE, NULL, 0);
        open = masked(x, logits, in_range);
    }
    top = ir_max(x->m, x->f, open, "sb", x->loc);
    e = model_binary(x, OP_EXPSUB, open, top);
    if (padded)
        e = model_binary(x, OP_MUL, e, in_range);
    sum = ir_sum(x->m, x->f, e, "sb", x->loc);
    target =
        model_binary(x, OP_MUL, logits, vocab_op(x, OP_ONEHOT, &labels, 1));
    target = ir_sum(x->m, x->f, target, "sb", x->loc);
    loss =
        model_binary(x, OP_SUB, model_binary(x, OP_LOGADD, sum, top), target);
    loss = model_binary(x, OP_MUL, loss, model_unary(x, OP_VALID, labels));
    if (mask.i)
        loss = model_binary(x, OP_MUL, loss,
                            ir_cast(x->m, x->f, mask, DT_F32, x->loc));
    loss = ir_sum(x->m, x->f, loss, "", x->loc);
    return model_binary(x, OP_MUL, loss, model_host(x, "inv_targets"));
}

static bool is_masked(const Model *x)
{
    return x->spec->data.loss_mask.n > 0;
}

static FuncId build_chunk(Model *x, int64_t chunks, TensorId loss)
{
    FuncId f = model_begin(x, "head.chunk", "model.vocab_size");
    TypeId whole = model_type(x, x->compute, "sbh");
    TypeId ids = model_type(x, DT_I32, "sb");
    TypeId part = type_resized(x->m, whole, 's', x->s / chunks);
    TypeId ids_part = type_resized(x->m, ids, 's', x->s / chunks);
    ValueId n = func_param(x->m, f, part, "x");
    ValueId labels = func_param(x->m, f, ids_part, "labels");
    ValueId mask = {0};
    bool tied = x->spec->model.tie_embeddings;
    ValueId logits =
        model_dot(x, n, model_param(x, tied ? "embed" : "head"), "sbv");

    model_hint(x, n, "residual");
    model_hint(x, labels, "batch");
    if (is_masked(x))
        mask = model_hint(x, func_param(x->m, f, ids_part, "loss_mask"),
                          "batch");
    logits = model_name(x, logits, "logits");
    ir_accum(x->m, f, loss, FIELD_ACC, cross_entropy(x, logits, labels, mask),
             x->loc);
    return f;
}

FuncId model_head(Model *x, TensorId loss)
{
    int64_t chunks = x->spec->derived.head_pieces;
    FuncId chunk = build_chunk(x, chunks, loss);
    FuncId f = model_begin(x, "head", "model.vocab_size");
    ValueId in = func_param(x->m, f, model_type(x, x->compute, "sbh"), "x");
    TypeId ids = model_type(x, DT_I32, "sb");
    Scan scan = {.callee = chunk, .over = 's', .count = chunks};
    ValueId args[3];

    args[1] = func_param(x->m, f, ids, "labels");
    if (is_masked(x))
        args[2] = func_param(x->m, f, ids, "loss_mask");
    model_hint(x, in, "residual");
    args[0] = model_norm(x, in, "norm");
    ir_call(x->m, f, scan, args, is_masked(x) ? "sss" : "ss", "", x->loc);
    return f;
}
