/* faults_test.c - the evaluator catches every kind of compiler bug we can
 * think of.
 *
 * Each row spoils one node of a correct module, as a wrong pass would: a
 * collective left out or done twice, a gradient scaled, a shard swapped, a
 * layer skipped, state read before it is written.  The spoilt module is run in
 * the prime field and compared with the correct one: it must fail to run, or
 * differ.  Rows say at which level, in which function, at which node.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "frontend/model.h"
#include "ir/eval.h"
#include "passes/passes.h"
#include "tests/unit/models.h"

enum { SEED = 11 };

typedef enum {
    DROP,      /* the node disappears; its result becomes its operand */
    TWICE,     /* it runs twice; a result feeds the second */
    SWAP,      /* its first two operands change places */
    SCALE,     /* its operand is doubled */
    OP,        /* it becomes op `arg` */
    INT_ATTR,  /* attribute `key` becomes `arg` */
    AXES_ATTR, /* its axes become those named `text` */
    TENSOR,    /* it works on tensor `text` */
    FIELD,     /* it works on field `arg` */
    VALUE,     /* its `value` becomes arg / 1000 */
    WHAT,      /* its `what` becomes `text` */
    EXCHANGE,  /* it and the next node with the same op change places */
} Kind;

typedef struct {
    const char *name;
    const char *level; /* the last pass run before the fault */
    const char *func;
    Op op;
    uint32_t nth; /* of this op in the function, from 0 */
    Kind kind;
    int64_t arg;
    const char *text;
    AttrKey key;
} Fault;

/* At tp 2, sp, pp 2, dp 2, m 2; model G0 if `func` starts with "g:", with
 * dropout and a window if with "d:".  With "c:" at cp 4, keys gathered in the
 * first layer, heads and a ring in the second.  With "z:" at dp 2, parameters in
 * shards, groups of two layers computed again.  With "o:" what the MLP saves in
 * host memory.  With "e:" experts at ep 2, dp 2. */
static const Fault faults[] = {
    {"reduce-scatter of attention left out", "reshard", "layer.fwd",
     OP_REDUCE_SCATTER, 0, OP, OP_SLICE, NULL, 0},
    {"reduce-scatter of the MLP left out", "reshard", "layer.fwd",
     OP_REDUCE_SCATTER, 1, OP, OP_SLICE, NULL, 0},
    {"reduce-scatter in the backward left out", "reshard", "layer.bwd",
     OP_REDUCE_SCATTER, 0, OP, OP_SLICE, NULL, 0},
    {"sum of exponentials not reduced", "reshard", "head.chunk", OP_ALL_REDUCE,
     0, DROP, 0, NULL, 0},
    {"target logit not reduced", "reshard", "head.chunk", OP_ALL_REDUCE, 1,
     DROP, 0, NULL, 0},
    {"sum of exponentials reduced twice", "reshard", "head.chunk",
     OP_ALL_REDUCE, 0, TWICE, 0, NULL, 0},
    {"reduced as a maximum", "reshard", "head.chunk", OP_ALL_REDUCE, 0, OP,
     OP_ALL_REDUCE_MAX, NULL, 0},
    {"gathered over the wrong axis", "reshard", "layer.fwd", OP_ALL_GATHER, 0,
     AXES_ATTR, 0, "dp", 0},
    {"weight gradient not reduced over dp", "reshard", "step", OP_ALL_REDUCE,
     0, DROP, 0, NULL, 0},
    {"weight gradient reduced twice", "reshard", "step", OP_ALL_REDUCE, 0,
     TWICE, 0, NULL, 0},
    {"norm gradient reduced over dp, not tp", "reshard", "step", OP_ALL_REDUCE,
     1, AXES_ATTR, 0, "dp", 0},
    {"weight gradient reduced over tp", "reshard", "step", OP_ALL_REDUCE, 0,
     AXES_ATTR, 0, "tp", 0},
    {"replicated parameter counted per tp rank", "reshard", "step", OP_ONLY, 0,
     DROP, 0, NULL, 0},
    {"norm counts only one tp rank's part", "reshard", "step", OP_ALL_REDUCE,
     9, DROP, 0, NULL, 0},
    {"gradient scaled by tp", "optimizer", "layer.bwd", OP_ACCUM, 0, SCALE, 0,
     NULL, 0},
    {"gradient accumulated twice", "optimizer", "layer.bwd", OP_ACCUM, 3,
     TWICE, 0, NULL, 0},
    {"gradient not accumulated", "optimizer", "layer.bwd", OP_ACCUM, 1, DROP,
     0, NULL, 0},
    {"gradient added to another tensor", "optimizer", "layer.bwd", OP_ACCUM, 2,
     TENSOR, 0, "norm1", 0},
    {"gradients not cleared", "optimizer", "step", OP_CLEAR, 3, DROP, 0, NULL,
     0},
    {"loss not divided by the number of targets", "optimizer", "head.chunk",
     OP_HOST, 0, WHAT, 0, "lr", 0},
    {"optimizer uses gradients that are not reduced", "reshard", "step",
     OP_READ, 10, FIELD, FIELD_GRAD, NULL, 0},
    {"update not written", "optimizer", "step", OP_WRITE, 11, DROP, 0, NULL,
     0},
    {"update adds instead of subtracting", "optimizer", "step", OP_SUB, 0, OP,
     OP_ADD, NULL, 0},
    {"clipping that only enlarges", "optimizer", "step", OP_MIN, 0, OP,
     OP_MAX2, NULL, 0},
    {"division the wrong way round", "optimizer", "step", OP_DIV, 0, SWAP, 0,
     NULL, 0},
    {"a layer left out", "optimizer", "micro", OP_CALL, 1, INT_ATTR, 1, NULL,
     AK_COUNT},
    {"layers numbered from one", "stage", "stage0.fwd", OP_CALL, 1, INT_ATTR,
     1, NULL, AK_FIRST},
    {"backward over the layers not reversed", "optimizer", "micro", OP_CALL, 3,
     INT_ATTR, 0, NULL, AK_REVERSE},
    {"stage backward on the wrong layers", "stage", "stage1.bwd", OP_CALL, 0,
     INT_ATTR, 0, NULL, AK_FIRST},
    {"saved values passed in the wrong order", "optimizer", "layer.bwd",
     OP_ATTENTION_GRAD, 0, SWAP, 0, NULL, 0},
    {"key and value confused", "optimizer", "layer.fwd", OP_PART, 1, INT_ATTR,
     3, NULL, AK_FIRST},
    {"gate taken for up", "optimizer", "layer.fwd", OP_PART, 3, INT_ATTR, 1,
     NULL, AK_FIRST},
    {"gradients of gate and up joined the wrong way round", "optimizer",
     "layer.bwd", OP_JOIN, 0, SWAP, 0, NULL, 0},
    {"value turned like queries", "optimizer", "layer.fwd", OP_INRANGE, 0,
     INT_ATTR, 4, NULL, AK_LIMIT},
    {"causal mask lost in the backward", "optimizer", "layer.bwd",
     OP_ATTENTION_GRAD, 0, INT_ATTR, 0, NULL, AK_CAUSAL},
    {"rotation not transposed in the backward", "optimizer", "layer.bwd",
     OP_ROTATE, 0, INT_ATTR, 1, NULL, AK_SIGN},
    {"cosine for sine", "optimizer", "layer.fwd", OP_ROPE_TABLE, 1, WHAT, 0,
     "cos", 0},
    {"another epsilon", "optimizer", "layer.fwd", OP_CONST, 1, VALUE, 2, NULL,
     0},
    {"microbatch read twice", "pipeline", "main.1", OP_BATCH, 1, INT_ATTR, 0,
     NULL, AK_MICROBATCH},
    {"labels where tokens belong", "pipeline", "main.0", OP_BATCH, 0, WHAT, 0,
     "labels", 0},
    {"message not sent", "pipeline", "main.0", OP_SEND, 0, DROP, 0, NULL, 0},
    {"message sent twice", "pipeline", "main.0", OP_SEND, 0, TWICE, 0, NULL,
     0},
    {"messages in the wrong order", "pipeline", "main.0", OP_SEND, 0, EXCHANGE,
     0, NULL, 0},
    {"message to the wrong channel", "pipeline", "main.0", OP_SEND, 0,
     INT_ATTR, 7, NULL, AK_TAG},
    {"norm not summed over stages", "pipeline", "main.0", OP_ALL_REDUCE, 8,
     DROP, 0, NULL, 0},
    {"backwards in the wrong order", "pipeline", "main.0", OP_CALL, 2,
     EXCHANGE, 0, NULL, 0},
    {"tied table's copies not summed", "pipeline", "g:main.0", OP_ALL_REDUCE,
     0, AXES_ATTR, 0, "dp", 0},
    {"bias added before the reduction", "reshard", "g:layer.fwd",
     OP_REDUCE_SCATTER, 0, TWICE, 0, NULL, 0},
    {"position table's gradient of one tp rank", "reshard", "g:step",
     OP_ALL_REDUCE, 1, AXES_ATTR, 0, "dp", 0},
    {"decay of another strength", "optimizer", "g:step", OP_CONST, 5, VALUE,
     77, NULL, 0},
    {"draws of another microbatch", "pipeline", "d:main.1", OP_CALL, 0,
     INT_ATTR, 1, NULL, AK_FIRST},
    {"no key to draw by on a stage", "pipeline", "d:main.1", OP_WRITE, 0, DROP,
     0, NULL, 0},
    {"draws of another dropout in the backward", "optimizer", "d:layer.bwd",
     OP_DROPOUT, 0, INT_ATTR, 1, NULL, AK_DRAW},
    {"other weights dropped in the backward", "optimizer", "d:layer.bwd",
     OP_ATTENTION_GRAD, 0, INT_ATTR, 0, NULL, AK_DRAW},
    {"dropout undone in the backward", "optimizer", "d:layer.bwd", OP_DROPOUT,
     1, DROP, 0, NULL, 0},
    {"dropped twice", "optimizer", "d:layer.fwd", OP_DROPOUT, 0, TWICE, 0,
     NULL, 0},
    {"layers that draw alike", "stage", "d:stage1.fwd", OP_CALL, 0, INT_ATTR,
     0, NULL, AK_FIRST},
    {"a wider window in the backward", "optimizer", "d:layer.bwd",
     OP_ATTENTION_GRAD, 0, INT_ATTR, 3, NULL, AK_WINDOW},
    {"second moment without its square", "optimizer", "g:step", OP_SQRT, 1, OP,
     OP_NEG, NULL, 0},
    {"gradients of gathered keys not summed", "reshard", "c:layer.0.bwd",
     OP_REDUCE_SCATTER, 0, OP, OP_SLICE, NULL, 0},
    {"gathered keys in another order", "optimizer", "c:layer.0.fwd",
     OP_ATTENTION, 0, INT_ATTR, 1, NULL, AK_ZIGZAG},
    {"RoPE of where tokens are stored", "optimizer", "c:layer.1.fwd",
     OP_ROPE_TABLE, 0, INT_ATTR, 1, NULL, AK_ZIGZAG},
    {"keys that stay", "reshard", "c:layer.1.fwd", OP_SHIFT, 0, DROP, 0, NULL,
     0},
    {"values that travel twice", "reshard", "c:layer.1.fwd", OP_SHIFT, 1, TWICE,
     0, NULL, 0},
    {"a step with keys of another part", "reshard", "c:layer.1.fwd",
     OP_ATTENTION_STEP, 1, INT_ATTR, 0, NULL, AK_SHIFT},
    {"a ring of other parts", "reshard", "c:layer.1.fwd", OP_ATTENTION_STEP, 1,
     INT_ATTR, 4, NULL, AK_PARTS},
    {"a backward step with keys of another part", "reshard", "c:layer.1.bwd",
     OP_ATTENTION_STEP_GRAD, 1, INT_ATTR, 0, NULL, AK_SHIFT},
    {"gradients of keys that do not come home", "reshard", "c:layer.1.bwd",
     OP_SHIFT, 4, DROP, 0, NULL, 0},
    {"heads exchanged with all of cp", "reshard", "c:layer.1.fwd",
     OP_ALL_TO_ALL, 0, AXES_ATTR, 0, "cp", 0},
    {"weight gradients not reduced over cp", "reshard", "c:step",
     OP_ALL_REDUCE, 1, DROP, 0, NULL, 0},
    {"weights of the layer after next", "prefetch", "z:layer.plain.ahead",
     OP_READ, 0, INT_ATTR, 2, NULL, AK_NEXT},
    {"weights of the layer before, forward", "prefetch", "z:layer.fwd.ahead",
     OP_READ, 1, INT_ATTR, -1, NULL, AK_NEXT},
    {"weights of the layer above, backward", "prefetch", "z:layer.bwd.ahead",
     OP_READ, 2, INT_ATTR, 1, NULL, AK_NEXT},
    {"the last layer's weights for the first", "prefetch", "z:layers.2.fwd",
     OP_CALL, 0, INT_ATTR, 1, NULL, AK_FIRST},
    {"the first layer's weights for the last, backward", "prefetch",
     "z:layers.2.bwd", OP_CALL, 2, INT_ATTR, 0, NULL, AK_FIRST},
    {"weights that stay in shards", "prefetch", "z:layer.fwd.ahead",
     OP_ALL_GATHER, 1, DROP, 0, NULL, 0},
    {"what another layer saved", "prefetch", "o:layer.bwd.ahead", OP_FETCH, 0,
     INT_ATTR, 1, NULL, AK_NEXT},
    {"what the first layer saved for the last", "prefetch", "o:stage0.bwd",
     OP_FETCH, 0, INT_ATTR, 0, NULL, AK_FIRST},
    {"groups that overlap", "optimizer", "z:micro", OP_CALL, 1, INT_ATTR, 1,
     NULL, AK_STEP},
    {"groups from the second layer on", "optimizer", "z:layers.2.fwd", OP_CALL,
     0, INT_ATTR, 1, NULL, AK_FIRST},
    {"scattered gradients added twice", "reshard", "z:layer.bwd", OP_ACCUM, 0,
     TWICE, 0, NULL, 0},
    {"rounds that ranks do not agree on", "reshard", "e:layer.fwd",
     OP_ALL_REDUCE_MAX, 0, DROP, 0, NULL, 0},
    {"rounds that only some ranks agree on", "reshard", "e:layer.fwd",
     OP_ALL_REDUCE_MAX, 0, AXES_ATTR, 0, "edp", 0},
    {"the first round once more", "grad", "e:layer.fwd", OP_INDEX, 0, INT_ATTR,
     0, NULL, AK_FIRST},
    {"a round left out, backward", "grad", "e:layer.bwd", OP_INDEX, 0,
     INT_ATTR, 2, NULL, AK_FIRST},
    {"too few rounds", "grad", "e:layer.fwd", OP_ROUNDS, 0, INT_ATTR, 64, NULL,
     AK_SIZE},
    {"rounds that take more than there is room for", "grad",
     "e:layer.round.fwd", OP_TURN, 0, INT_ATTR, 4, NULL, AK_SIZE},
    {"gradients of a round not accumulated", "reshard", "e:layer.round.bwd",
     OP_ACCUM, 1, DROP, 0, NULL, 0},
    {"sums over rounds that start anew", "grad", "e:layer.round.bwd", OP_ADD,
     0, SCALE, 0, NULL, 0},
};

/* ---- spoiling ------------------------------------------------------------ */

static bool find_node(Module *m, FuncId f, Op op, uint32_t nth, uint32_t *out)
{
    for (uint32_t i = 0; i < func_of(m, f)->body.n; i++)
        if (node_of(m, func_of(m, f)->body.v[i])->op == op && nth-- == 0) {
            *out = i;
            return true;
        }
    return false;
}

static void remove_node(Func *fn, uint32_t at)
{
    for (uint32_t i = at; i + 1 < fn->body.n; i++)
        fn->body.v[i] = fn->body.v[i + 1];
    fn->body.n--;
}

static void insert_node(Func *fn, uint32_t at, NodeId id)
{
    vec_push(&fn->body, id);
    for (uint32_t i = fn->body.n - 1; i > at; i--)
        fn->body.v[i] = fn->body.v[i - 1];
    fn->body.v[at] = id;
}

static void drop(Module *m, FuncId f, uint32_t at)
{
    const Node n = *node_of(m, func_of(m, f)->body.v[at]);
    ValueMap map = {0};

    if (n.nres && n.nargs)
        vmap_set(&map, node_res(&n, 0), node_arg(m, &n, 0));
    remove_node(func_of(m, f), at);
    func_substitute(m, f, &map);
    vmap_free(&map);
}

static void twice(Module *m, FuncId f, uint32_t at)
{
    NodeId id = func_of(m, f)->body.v[at], copy;
    const Node n = *node_of(m, id);
    ValueMap map = {0}, later = {0};

    if (n.nres && n.nargs)
        vmap_set(&map, node_arg(m, &n, 0), node_res(&n, 0));
    copy = node_copy(m, f, id, &map);
    func_of(m, f)->body.n--;
    if (n.nres) {
        vmap_set(&later, node_res(&n, 0), node_res(node_of(m, copy), 0));
        func_substitute(m, f, &later);
        m->args.v[node_of(m, copy)->arg] = node_res(&n, 0);
    }
    insert_node(func_of(m, f), at + 1, copy);
    vmap_free(&map);
    vmap_free(&later);
}

static void scale(Module *m, FuncId f, uint32_t at)
{
    NodeId id = func_of(m, f)->body.v[at];
    ValueId x = node_arg(m, node_of(m, id), 0), y;
    NodeId doubled;

    y = ir_binary(m, f, OP_ADD, x, x, (Loc){0});
    doubled = vec_last(&func_of(m, f)->body);
    func_of(m, f)->body.n--;
    insert_node(func_of(m, f), at, doubled);
    m->args.v[node_of(m, id)->arg] = y;
}

static void exchange(Module *m, FuncId f, uint32_t at)
{
    Func *fn = func_of(m, f);
    Op op = (Op)node_of(m, fn->body.v[at])->op;

    for (uint32_t i = at + 1; i < fn->body.n; i++)
        if (node_of(m, fn->body.v[i])->op == op) {
            NodeId swap = fn->body.v[at];
            fn->body.v[at] = fn->body.v[i];
            fn->body.v[i] = swap;
            return;
        }
}

static void set_attr(Module *m, FuncId f, uint32_t at, Attr attr)
{
    NodeId id = func_of(m, f)->body.v[at];
    AttrsId attrs = attrs_with(m, node_of(m, id)->attrs, attr);

    node_of(m, id)->attrs = attrs;
}

static Attr changed_attr(Module *m, const Fault *x)
{
    Sym text = sym_intern(m->names, x->text ? x->text : "");

    switch (x->kind) {
    case AXES_ATTR: return attr_of_axes(AK_AXES, mesh_axis(m, x->text));
    case TENSOR: return attr_of_tensor(AK_TENSOR, tensor_find(m, text));
    case FIELD: return attr_of_int(AK_FIELD, x->arg);
    case VALUE: return attr_of_float(AK_VALUE, (double)x->arg / 1000);
    case WHAT: return attr_of_sym(AK_WHAT, text);
    default: return attr_of_int(x->key, x->arg);
    }
}

static void swap_args(Module *m, const Node *n)
{
    ValueId first = m->args.v[n->arg];

    m->args.v[n->arg] = m->args.v[n->arg + 1];
    m->args.v[n->arg + 1] = first;
}

static void spoil(Module *m, FuncId f, uint32_t at, const Fault *x)
{
    Node *n = node_of(m, func_of(m, f)->body.v[at]);

    switch (x->kind) {
    case DROP: drop(m, f, at); break;
    case TWICE: twice(m, f, at); break;
    case SWAP: swap_args(m, n); break;
    case SCALE: scale(m, f, at); break;
    case OP: n->op = (uint16_t)x->arg; break;
    case EXCHANGE: exchange(m, f, at); break;
    default: set_attr(m, f, at, changed_attr(m, x)); break;
    }
}

/* ---- judging ------------------------------------------------------------- */

static Module *module_at(Arena *a, Diag *d, const char *level, char kind)
{
    static const char *const grid[] = {
        "parallel.tp=2", "parallel.sp=true", "parallel.pp=2", "parallel.dp=2",
        "model.num_layers=4", DROPOUT, "model.sliding_window=2"};
    static const char *const context[] = {
        "parallel.cp=4", "parallel.cp_comm=[all_gather, a2a+p2p]",
        "parallel.cp_sizes=[2, 2]", "model.num_layers=2"};
    static const char *const shards[] = {
        "parallel.dp=2", "parallel.sharding=optim_grads_params",
        "training.recompute={granularity: full, num_layers: 2}"};
    static const char *const offload[] = {
        "training.offload.activations=[mlp]"};
    static const char *const experts[] = {"parallel.ep=2", "parallel.dp=2",
                                          "model.num_layers=2"};
    Spec *spec = kind == 'c' ? spec_parse(a, d, "model", MODEL_T0, context, 4)
                 : kind == 'e' ? spec_parse(a, d, "model", MODEL_M0, experts, 3)
                 : kind == 'z' ? spec_parse(a, d, "model", MODEL_T0, shards, 3)
                 : kind == 'o' ? spec_parse(a, d, "model", MODEL_T0, offload, 1)
                             : spec_parse(a, d, "model",
                                          kind == 'g' ? MODEL_G0 : MODEL_T0,
                                          grid,
                                          kind == 'd' ? MC_LEN(grid) : 5);
    Module *m;

    assert_non_null(spec);
    spec = spec_shrink(a, spec);
    m = model_build(a, d, spec);
    for (uint32_t i = 0; i < passes_count; i++) {
        assert_true(pass_run(&passes[i], m, spec));
        if (strcmp(passes[i].name, level) == 0)
            break;
    }
    return m;
}

/* Whether the spoilt module fails to run or computes something else. */
static bool caught(const Fault *x)
{
    char kind = x->func[1] == ':' ? x->func[0] : 't';
    const char *name = kind == 't' ? x->func : x->func + 2;
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Module *good = module_at(a, d, x->level, kind);
    Module *bad = module_at(a, d, x->level, kind);
    FuncId f = func_find(bad, sym_intern(bad->names, name));
    EvalResult *right, *wrong;
    uint32_t at = 0;
    bool found;

    assert_int_not_equal(f.i, 0);
    if (!find_node(bad, f, x->op, x->nth, &at))
        fail_msg("%s: no such node in %s", x->name, name);
    spoil(bad, f, at, x);
    right = eval_run(a, good, EVAL_FIELD, SEED);
    assert_non_null(right);
    wrong = eval_run(a, bad, EVAL_FIELD, SEED);
    found = !wrong || !eval_equal(right, wrong, d, 0.0);
    module_free(good);
    module_free(bad);
    diag_free(d);
    arena_free(a);
    return found;
}

static void test_every_fault_is_caught(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(faults); i++)
        if (!caught(&faults[i]))
            fail_msg("not caught: %s", faults[i].name);
}

/* What changes nothing is not reported. */
static void test_harmless_changes_pass(void **state)
{
    static const Fault same[] = {
        {"factors swapped", "reshard", "layer.fwd", OP_MUL, 2, SWAP, 0, NULL,
         0},
        {"clears in another order", "pipeline", "main.0", OP_CLEAR, 0,
         EXCHANGE, 0, NULL, 0},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(same); i++)
        if (caught(&same[i]))
            fail_msg("reported: %s", same[i].name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_fault_is_caught),
        cmocka_unit_test(test_harmless_changes_pass),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
