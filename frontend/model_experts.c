/* model_experts.c - tokens to the experts they chose, and back.
 *
 *   rows = dispatch(kept, n)                [e,c,h]: c slots per expert
 *   y    = combine(kept, weight, mlp(rows))
 *
 * Where ranks hold different experts, `dispatch` leaves all experts' blocks of
 * the rank's own tokens and a layout asks for all tokens' blocks of the rank's
 * own experts: the all-to-all is a conversion.
 *
 * With a capacity factor, tokens for which their expert has no slot are
 * dropped.  Without, none is ever, whatever the router does: experts take
 * tokens in rounds, in each as many as are theirs when the load is even, and a
 * quarter more.  The first round always runs.  Whether others do is data:
 *
 *   more = rounds(choice)                   complete on all ranks of a stage
 *   y    = call @round y, n, choice, weight, 1 2 3 …, more
 *
 * They are all one function, and nothing of them is saved, so memory does not
 * depend on what the router does.
 */
#include "frontend/model_priv.h"

#include <math.h>

typedef struct {
    Model *x;
    const Spec *spec;
} Experts;

/* ---- slots --------------------------------------------------------------- */

/* Into how many parts ranks cut s and b: an expert's capacity is for the tokens
 * of one rank, whatever the layout. */
static int64_t sequence_parts(const Spec *s)
{
    return s->parallel.cp * (s->parallel.sp ? s->parallel.tp : 1);
}

static int64_t token_parts(const Spec *s)
{
    return sequence_parts(s) * s->derived.dense_dp;
}

static int64_t rank_tokens(const Experts *r)
{
    return r->x->s * r->x->b / token_parts(r->spec);
}

/* A round's slots are for a quarter more than an even load: enough for the
 * fullest expert of a router that has learned balance, so that further rounds
 * are rare, and little memory more. */
static const double ROUND_SLACK = 1.25;

/* Slots of an expert for the tokens of one rank in one round: ceil(tokens k /
 * experts * factor) (Fedus et al. 2021, section 2.1), or all of them. */
static int64_t capacity(const Experts *r)
{
    const Spec *s = r->spec;
    double factor = s->model.moe.capacity_factor;
    double even = (double)(rank_tokens(r) * s->model.moe.top_k) /
                  (double)s->model.moe.num_experts;
    double slots = ceil(even * (factor == 0.0 ? ROUND_SLACK : factor));

    return MC_MAX((int64_t)MC_MIN(slots, (double)rank_tokens(r)), 1);
}

/* The rounds that run only if an expert has so many tokens. */
static int64_t further_rounds(const Experts *r)
{
    return (rank_tokens(r) - 1) / capacity(r);
}

/* What tells an op which tokens share an expert's slots. */
static AttrsId slot_attrs(const Experts *r)
{
    Attr list[] = {attr_of_int(AK_SIZE, capacity(r)),
                   attr_of_int(AK_S_PARTS, sequence_parts(r->spec)),
                   attr_of_int(AK_B_PARTS, r->spec->derived.dense_dp)};

    return attrs_intern(r->x->m, list, MC_LEN(list));
}

/* ---- one round ----------------------------------------------------------- */

/* The value where the dispatcher wants it: gathered over the experts' ranks,
 * or where it is. */
static ValueId at_dispatcher(Experts *r, ValueId v)
{
    Model *x = r->x;

    if (r->spec->parallel.ep == 1 ||
        r->spec->model.moe.dispatcher == MOE_ALLTOALL)
        return v;
    return model_hint(x, model_unary(x, OP_COPY, v), "gathered");
}

/* How many of an expert's slots are in use, of each rank's tokens: a number for
 * what the products run over, and no more. */
static ValueId filled(Experts *r, ValueId choice)
{
    Model *x = r->x;
    Attr list[] = {attr_of_int(AK_SIZE, token_parts(r->spec)),
                   attr_of_int(AK_LIMIT, capacity(r))};
    ValueId n = ir_op(x->m, x->f, OP_FILLED, &choice, 1,
                      attrs_intern(x->m, list, 2), x->loc);

    return model_hint(x, model_name(x, n, "filled"), "slots");
}

/* What the experts make of the tokens that are kept. */
static ValueId serve(Experts *r, ValueId kept, ValueId weight, ValueId n)
{
    Model *x = r->x;
    ValueId choice = at_dispatcher(r, kept);
    ValueId out[] = {choice, choice, at_dispatcher(r, n)};
    ValueId back[] = {choice, at_dispatcher(r, weight), {0}};
    Attr slots = attr_of_int(AK_SIZE, capacity(r) * token_parts(r->spec));
    ValueId rows;

    model_at(x, "model.moe.dispatcher");
    rows = ir_op(x->m, x->f, OP_DISPATCH, out, 3, attrs_intern(x->m, &slots, 1),
                 x->loc);
    rows = model_hint(x, model_name(x, rows, "rows"), "slots");
    x->f_ = r->spec->model.moe.ffn_hidden_size;
    back[2] = model_mlp(x, rows, "experts.", filled(r, choice), "slots");
    x->f_ = r->spec->model.ffn_hidden_size;
    model_at(x, "model.moe.dispatcher");
    return model_hint(
        x, ir_op(x->m, x->f, OP_COMBINE, back, 3, (AttrsId){0}, x->loc),
        "residual");
}

/* ---- with dropping ------------------------------------------------------- */

/* Without the tokens for which their expert has no slot. */
static ValueId fitting(Experts *r, ValueId choice, ValueId weight)
{
    Model *x = r->x;
    bool probs = r->spec->model.moe.drop_policy == MOE_DROP_PROBS;
    ValueId args[] = {choice, weight};

    model_at(x, "model.moe.capacity_factor");
    return model_name(
        x,
        ir_op(x->m, x->f, OP_FIT, args, 2,
              attrs_with(x->m, slot_attrs(r),
                         attr_of_int(AK_BY_SCORE, probs)),
              x->loc),
        "kept");
}

/* ---- without ------------------------------------------------------------- */

static ValueId turn(Experts *r, ValueId choice, ValueId round)
{
    Model *x = r->x;
    ValueId args[] = {choice, round};

    return model_name(
        x, ir_op(x->m, x->f, OP_TURN, args, 2, slot_attrs(r), x->loc), "kept");
}

static ValueId like_param(Experts *r, FuncId f, ValueId v, const char *name)
{
    Model *x = r->x;
    ValueId p = func_param(x->m, f, value_of(x->m, v)->type, name);

    value_of(x->m, p)->hint = value_of(x->m, v)->hint;
    return p;
}

/* y and what the experts make of the tokens of one round. */
static FuncId round_function(Experts *r, ValueId y, ValueId n, ValueId choice,
                             ValueId weight)
{
    Model *x = r->x;
    FuncId layer = x->f, f;
    const char *of = sym_text(x->m->names, func_of(x->m, layer)->name);
    TypeId scalar = model_type(x, DT_F32, "");
    ValueId number, more;

    f = model_begin(x, arena_printf(x->m->arena, "%s.round", of),
                    "model.moe.num_experts");
    y = like_param(r, f, y, "y");
    n = like_param(r, f, n, "n");
    choice = like_param(r, f, choice, "choice");
    weight = like_param(r, f, weight, "weight");
    number = func_param(x->m, f, scalar, "round");
    func_param(x->m, f, scalar, "more");
    more = serve(r, turn(r, choice, number), weight, n);
    y = model_round(x, model_binary(x, OP_ADD, y, more));
    model_result(x, model_hint(x, model_name(x, y, "y"), "residual"));
    x->f = layer;
    return f;
}

/* 1, 2, … : the numbers of the further rounds. */
static ValueId round_numbers(Experts *r)
{
    Model *x = r->x;
    Attr list[] = {attr_of_sym(AK_DIMS, sym_intern(x->m->names, "t")),
                   attr_of_int(AK_SIZE, further_rounds(r)),
                   attr_of_int(AK_FIRST, 1)};

    return ir_op(x->m, x->f, OP_INDEX, NULL, 0, attrs_intern(x->m, list, 3),
                 x->loc);
}

/* Adds to y, what the first round made, what further ones do. */
static ValueId further(Experts *r, ValueId y, ValueId n, ValueId choice,
                       ValueId weight)
{
    Model *x = r->x;
    Scan scan = {.callee = round_function(r, y, n, choice, weight),
                 .over = 't',
                 .count = further_rounds(r)};
    ValueId more = ir_op(x->m, x->f, OP_ROUNDS, &choice, 1, slot_attrs(r),
                         model_at(x, "model.moe.num_experts"));
    ValueId args[] = {y, n, choice, weight, round_numbers(r),
                      model_name(x, more, "more")};
    NodeId call = ir_call(x->m, x->f, scan, args, ">...t#", ">", x->loc);

    return model_hint(
        x, model_name(x, node_res(node_of(x->m, call), 0), "y"), "residual");
}

ValueId model_experts(Model *x, ValueId choice, ValueId weight, ValueId n)
{
    Experts r = {.x = x, .spec = x->spec};
    ValueId y;

    if (r.spec->model.moe.capacity_factor != 0.0)
        return serve(&r, fitting(&r, choice, weight), weight, n);
    if (further_rounds(&r) == 0)
        return serve(&r, choice, weight, n);
    y = serve(&r, turn(&r, choice, model_number(x, 0)), weight, n);
    return further(&r, y, n, choice, weight);
}
