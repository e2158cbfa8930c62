/* shard_test.c - what sharded data parallelism holds and moves.
 *
 * The bytes are worked out by hand beside each test; that a step moves every
 * gradient and, under ZeRO-3, every parameter twice (forward and backward) is
 * section 7 of Rajbhandari et al. 2020.
 */
#include "emit_bench.h"

/* Per layer q, k, v and proj 32*32 each, gate, up and down 48*32 each and two
 * norms of 32; embedding and head 48*32 each, one norm. */
enum { LAYERS = 4, MICROBATCHES = 2, DP = 8 };
enum {
    LAYER = 4 * 32 * 32 + 3 * 48 * 32 + 2 * 32,
    REST = 2 * 48 * 32 + 32,
    PARAMS = REST + LAYERS * LAYER
};

static const char llama[] =
    "version: 1\n"
    "model: {num_layers: 4, hidden_size: 32, num_attention_heads: 8,\n"
    "  num_query_groups: 8, ffn_hidden_size: 48, vocab_size: 48,\n"
    "  vocab_divisor: 16}\n"
    "training: {seq_length: 16, micro_batch_size: 1, global_batch_size: 16,\n"
    "  precision: fp32}\n";

static void open_zero(EmitBench *b, const char *sharding, const char *more)
{
    const char *sets[] = {"parallel.dp=8", sharding, more, NULL};

    emit_open_spec(b, llama, sets);
    emit_load(b);
}

/* ---- what is held -------------------------------------------------------- */

static void expect_state(const char *sharding, int64_t params, int64_t grads,
                         int64_t optimizer)
{
    EmitBench b;

    open_zero(&b, sharding, NULL);
    assert_int_equal(b.mem->report[0].params, params);
    assert_int_equal(b.mem->report[0].grads, grads);
    assert_int_equal(b.mem->report[0].optimizer, optimizer);
    emit_close(&b);
}

/* 4 bytes each of parameters and gradients, 8 of Adam's moments.  ZeRO-1 also
 * holds its eighth of the complete gradient beside the sum it is made of. */
static void each_rank_holds_its_eighth(void **state)
{
    enum { P = 4 * PARAMS };

    (void)state;
    expect_state("parallel.sharding=no_shard", P, P, 2 * P);
    expect_state("parallel.sharding=optim", P, P + P / DP, 2 * P / DP);
    expect_state("parallel.sharding=optim_grads", P, P / DP, 2 * P / DP);
    expect_state("parallel.sharding=optim_grads_params", P / DP, P / DP,
                 2 * P / DP);
}

/* Rounded up to a whole number of elements on each of three ranks. */
#define THIRD(n) (((n) + 2) / 3)

/* Of most sizes here 3 is no divisor.  Weights that share an operand are shared
 * out as one. */
static void three_ranks_hold_a_third(void **state)
{
    enum {
        QKV = THIRD(3 * 32 * 32), PROJ = THIRD(32 * 32), NORM = THIRD(32),
        GATE_UP = THIRD(2 * 48 * 32), DOWN = THIRD(48 * 32),
        TABLE = THIRD(48 * 32),
        SHARE = 2 * TABLE + NORM +
                LAYERS * (QKV + PROJ + GATE_UP + DOWN + 2 * NORM)
    };
    EmitBench b;

    (void)state;
    emit_open_spec(&b, llama,
                   (const char *[]){"parallel.dp=3",
                                    "training.global_batch_size=6",
                                    "parallel.sharding=optim_grads_params",
                                    NULL});
    emit_load(&b);
    assert_int_equal(b.mem->report[0].params, 4 * SHARE);
    assert_int_equal(b.mem->report[0].grads, 4 * SHARE);
    assert_int_equal(b.mem->report[0].optimizer, 2 * 4 * SHARE);
    emit_close(&b);
}

/* A third of a table of 67 tokens and 62 numbers each is 1,385 = 5 * 277, of 71
 * tokens 1,468 = 2 * 734 (rounded up), of 73 tokens 1,509 = 3 * 503.  Of 76
 * tokens it is 1,571, a prime: two lines of 1,024, padded. */
static void lines_divide_a_share(void **state)
{
    static const int64_t rows[][4] = {/* tokens, share, n, w */
                                      {67, 1385, 15, 277},
                                      {71, 1468, 6, 734},
                                      {73, 1509, 9, 503},
                                      {76, 1571, 6, 1024}};

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        char vocabulary[40];
        EmitBench b;
        const Type *t;
        snprintf(vocabulary, sizeof vocabulary, "model.vocab_size=%d",
                 (int)rows[i][0]);
        emit_open_spec(
            &b, llama,
            (const char *[]){"parallel.dp=3", "training.global_batch_size=6",
                             "parallel.sharding=optim", vocabulary,
                             "model={hidden_size: 62, kv_channels: 8, "
                             "vocab_divisor: 1}",
                             NULL});
        t = type_of(b.m, tensor_of(b.m, tensor_find(b.m, sym_intern(
                             b.m->names, "embed")))->flat);
        assert_int_equal((rows[i][0] * 62 + 2) / 3, rows[i][1]);
        assert_int_equal(type_size(t, 'n'), rows[i][2]);
        assert_int_equal(type_size(t, 'w'), rows[i][3]);
        emit_close(&b);
    }
}

/* Bytes of the memory in a frame that holds gathered weights. */
static int64_t gathered_in_frame(const EmitBench *b, ValueId v)
{
    return b->mem->place[v.i].base == MEM_FRAME
               ? memplan_value_bytes(b->m, v) : 0;
}

/* Forward and backward: a layer's weights come in as carries, and the next
 * one's are gathered in the frame. */
static void two_layers_are_gathered(void **state)
{
    static const char *const names[] = {"layer.fwd.ahead", "layer.bwd.ahead"};
    EmitBench b;

    (void)state;
    open_zero(&b, "parallel.sharding=optim_grads_params", NULL);
    for (size_t k = 0; k < MC_LEN(names); k++) {
        FuncId f = func_find(b.m, sym_intern(b.m->names, names[k]));
        const Func *func = &b.m->funcs.v[f.i];
        int64_t now = 0, next = 0;
        assert_true(f.i);
        for (uint32_t i = 0; i < func->body.n; i++) {
            const Node *n = &b.m->nodes.v[func->body.v[i].i];
            if (n->op != OP_ALL_GATHER)
                continue;
            assert_true(effects_ahead(b.m, n));
            assert_int_equal(n->stream, STREAM_DP);
            next += gathered_in_frame(&b, n->res);
        }
        for (uint32_t i = 0; i < func->params.n; i++) {
            const Type *t = value_type(b.m, func->params.v[i]);
            if (type_dim(t, 's') < 0)
                now += memplan_value_bytes(b.m, func->params.v[i]);
        }
        assert_int_equal(now, 4 * LAYER);
        assert_int_equal(next, 4 * LAYER);
    }
    emit_close(&b);
}

/* The scan of a stage keeps what it carries in one place. */
static void carries_have_one_buffer(void **state)
{
    EmitBench b;
    FuncId f;
    int64_t bytes = 0;

    (void)state;
    open_zero(&b, "parallel.sharding=optim_grads_params", NULL);
    f = func_find(b.m, sym_intern(b.m->names, "stage0.fwd"));
    for (uint32_t i = 0; i < b.m->funcs.v[f.i].body.n; i++) {
        const Node *n = &b.m->nodes.v[b.m->funcs.v[f.i].body.v[i].i];
        for (uint32_t k = 0; n->op == OP_CALL && k < n->nargs; k++) {
            int r = call_arg_mode(b.m, n, k) == MODE_CARRY
                        ? memplan_carry_result(b.m, n, k) : -1;
            ValueId v = node_arg(b.m, n, k);
            if (r < 0 || type_dim(value_type(b.m, v), 's') >= 0)
                continue;
            assert_int_equal(b.mem->buffer[v.i],
                             b.mem->buffer[node_res(n, (uint32_t)r).i]);
            bytes += memplan_value_bytes(b.m, v);
        }
    }
    assert_int_equal(bytes, 4 * LAYER);
    emit_close(&b);
}

/* ---- what lies elsewhere ------------------------------------------------- */

static void open_one(EmitBench *b, const char *one, const char *two)
{
    emit_open_spec(b, llama, (const char *[]){one, two, NULL});
    emit_load(b);
}

/* Adam's two moments, all of them, or of those first tensors that come closest
 * to half of 38,176 numbers: the table, norm1, q, k, v, proj and norm2 of all
 * layers are 1,536 + 4 (32 + 4*1,024 + 32) = 18,176; gate, up and down of all
 * layers, 6,144 each, are too large; the head's 1,536 make 19,712. */
static void moments_lie_in_host_memory(void **state)
{
    enum { HALF = 2 * 48 * 32 + LAYERS * (32 + 4 * 32 * 32 + 32) };
    EmitBench b;

    (void)state;
    open_one(&b, "training.offload.optimizer=1", NULL);
    assert_int_equal(b.mem->report[0].host, 2 * 4 * PARAMS);
    assert_int_equal(b.mem->report[0].optimizer, 0);
    emit_close(&b);
    open_one(&b, "training.offload.optimizer=0.5", NULL);
    assert_int_equal(b.mem->report[0].host, 2 * 4 * HALF);
    assert_int_equal(b.mem->report[0].optimizer, 2 * 4 * (PARAMS - HALF));
    emit_close(&b);
}

/* Of the MLP, gate and up of each layer and token are saved: 48 numbers each;
 * of attention its output, 32, and a number per head.  Two layers' are on the
 * device: those in use, and those being fetched. */
static void activations_lie_in_host_memory(void **state)
{
    enum { TOKENS = 16, MLP = LAYERS * TOKENS * 2 * 48 * 4 };
    enum { ATTENTION = LAYERS * TOKENS * (32 + 8) * 4 };
    EmitBench b;
    int64_t all, total;

    (void)state;
    open_one(&b, "parallel.pp=1", NULL);
    all = b.mem->report[0].activations;
    total = b.mem->report[0].total;
    assert_int_equal(b.mem->report[0].host, 0);
    emit_close(&b);
    open_one(&b, "training.offload.activations=[mlp]", NULL);
    assert_int_equal(b.mem->report[0].host, MLP);
    assert_int_equal(b.mem->report[0].activations, all - MLP);
    assert_int_equal(b.mem->report[0].total, total - MLP + 2 * MLP / LAYERS);
    emit_close(&b);
    open_one(&b, "training.offload.activations=[mlp, core_attn]", NULL);
    assert_int_equal(b.mem->report[0].host, MLP + ATTENTION);
    assert_int_equal(b.mem->report[0].activations, all - MLP - ATTENTION);
    assert_int_equal(b.mem->report[0].total,
                     total - (MLP + ATTENTION) * (LAYERS - 2) / LAYERS);
    emit_close(&b);
}

/* With all layers computed again only their inputs are saved; of the first of
 * each stage, only those of the first. */
static void blocks_save_the_inputs_of_first_layers(void **state)
{
    EmitBench b;
    int64_t none[2], all[2], block[2];

    (void)state;
    open_one(&b, "parallel.pp=2", NULL);
    none[0] = b.mem->report[0].activations;
    none[1] = b.mem->report[1].activations;
    emit_close(&b);
    open_one(&b, "parallel.pp=2", "training.recompute.granularity=full");
    all[0] = b.mem->report[0].activations;
    all[1] = b.mem->report[1].activations;
    emit_close(&b);
    open_one(&b, "parallel.pp=2", "training.recompute={granularity: full, "
                                  "method: block, num_layers: 1}");
    block[0] = b.mem->report[0].activations;
    block[1] = b.mem->report[1].activations;
    emit_close(&b);
    assert_true(all[0] < none[0] && all[1] < none[1]);
    assert_int_equal(block[0], (none[0] + all[0]) / 2);
    assert_int_equal(block[1], (none[1] + all[1]) / 2);
}

/* Of each group of layers the input of its first is saved: 16 tokens of 32
 * numbers. */
static void groups_save_the_input_of_their_first(void **state)
{
    enum { INPUT = 16 * 32 * 4 };
    static const char *const sets[] = {
        "training.recompute={granularity: full, num_layers: 1}",
        "training.recompute={granularity: full, num_layers: 2}",
        "training.recompute={granularity: full, num_layers: 3}"};
    static const int64_t saved[] = {4, 2, 2}; /* 3 + 1 layers */
    int64_t bytes[3];

    (void)state;
    for (int i = 0; i < 3; i++) {
        EmitBench b;
        open_one(&b, sets[i], NULL);
        bytes[i] = b.mem->report[0].activations;
        emit_close(&b);
    }
    for (int i = 1; i < 3; i++)
        assert_int_equal(bytes[0] - bytes[i],
                         (saved[0] - saved[i]) * INPUT);
}

/* ---- what is moved ------------------------------------------------------- */

typedef struct {
    uint64_t bytes[PLAN_COLLECTIVES];
    uint64_t started[PLAN_COLLECTIVES]; /* a bucket counts once */
} Moved;

static void count_segment(const Plan *p, uint32_t segment, uint64_t runs,
                          Moved *out)
{
    PlanRange range = p->segments.v[segment].instrs;

    for (uint32_t i = range.first; i < range.first + range.n; i++) {
        const PlanInstr *in = &p->instrs.v[i];
        const PlanOperand *o = &p->operands.v[in->operands.first];
        if (in->op == PLAN_CALL)
            count_segment(p, in->index, runs * in->aux, out);
        if (in->op != PLAN_COLLECTIVE)
            continue;
        uint32_t kind = p->collectives.v[in->index].kind;
        out->started[kind] += in->flags & PLAN_JOIN ? 0 : runs;
        out->bytes[kind] += runs * MC_MAX(o[0].bytes, o[1].bytes);
    }
}

static Moved moved_by(const char *sharding, const char *more)
{
    Moved out = {{0}, {0}};
    EmitBench b;

    open_zero(&b, sharding, more);
    count_segment(&b.plans[0], b.plans[0].programs.v[0].segment, 1, &out);
    emit_close(&b);
    return out;
}

/* Each layer is gathered once forward and once backward, the last one's
 * neighbour never; embedding, head and the last norm once: the head's backward
 * is part of its forward, and the embedding has none that wants the weight. */
static void weights_are_gathered_once_each_way(void **state)
{
    Moved moved = moved_by("parallel.sharding=optim_grads_params", NULL);

    (void)state;
    assert_int_equal(moved.bytes[PLAN_ALL_GATHER],
                     MICROBATCHES * 4 * (2 * LAYERS * LAYER + REST));
    assert_int_equal(moved.bytes[PLAN_REDUCE_SCATTER],
                     MICROBATCHES * 4 * PARAMS);
    assert_int_equal(moved.bytes[PLAN_ALL_REDUCE], 4 + 4); /* norm, loss */
}

/* Ahead of each layer but the last, and before the first, its six tensors
 * start together: LAYERS times forward and backward.  Embedding, last norm and
 * head are three more. */
static void weights_of_a_layer_are_a_bucket(void **state)
{
    Moved moved = moved_by("parallel.sharding=optim_grads_params", NULL);

    (void)state;
    assert_int_equal(moved.started[PLAN_ALL_GATHER],
                     MICROBATCHES * (2 * LAYERS + 3));
}

/* Without overlap the gradients of all 9 tensors follow each other.  A bucket
 * closes before what it has no place for.  Into 6,000 elements fit, of all
 * layers: the table and norm1 (1,536 + 128); q, k and v (12,288) by themselves;
 * proj and norm2 (4,096 + 128); gate and up (12,288) and down (6,144) by
 * themselves; head and norm.
 * The loss is summed by itself. */
static void buckets_have_a_size(void **state)
{
    static const char none[] = "parallel.sharding=no_shard";
    Moved one = moved_by(none, "parallel.overlap.grads=false");
    Moved few = moved_by(
        none, "parallel={overlap: {grads: false}, bucket_elements: 6000}");

    (void)state;
    assert_int_equal(one.bytes[PLAN_ALL_REDUCE], 4 * PARAMS + 4);
    assert_int_equal(few.bytes[PLAN_ALL_REDUCE], 4 * PARAMS + 4);
    assert_int_equal(one.started[PLAN_ALL_REDUCE], 1 + 1);
    assert_int_equal(few.started[PLAN_ALL_REDUCE], 6 + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rank_holds_its_eighth),
        cmocka_unit_test(three_ranks_hold_a_third),
        cmocka_unit_test(lines_divide_a_share),
        cmocka_unit_test(two_layers_are_gathered),
        cmocka_unit_test(carries_have_one_buffer),
        cmocka_unit_test(moments_lie_in_host_memory),
        cmocka_unit_test(activations_lie_in_host_memory),
        cmocka_unit_test(blocks_save_the_inputs_of_first_layers),
        cmocka_unit_test(groups_save_the_input_of_their_first),
        cmocka_unit_test(weights_are_gathered_once_each_way),
        cmocka_unit_test(weights_of_a_layer_are_a_bucket),
        cmocka_unit_test(buckets_have_a_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
