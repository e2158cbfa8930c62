/* plan_numbers_test.c - what the plans of a small Llama move and hold.
 *
 * Expected counts are those of the papers: tensor parallelism has two
 * all-reduces per layer forward and two backward (Shoeybi et al. 2019, section
 * 3); sequence parallelism an all-gather and a reduce-scatter instead of each,
 * and gathers the two normed inputs once more for the gradients of the weights
 * (Korthikanti et al. 2022, section 4.2.2).  The rest is worked out beside it.
 */
#include "emit_bench.h"

enum { LAYERS = 4, MICROBATCHES = 4, SEQUENCE = 12, ROWS = 2, HIDDEN = 32 };
enum { RESIDUAL = SEQUENCE * ROWS * HIDDEN * 4 }; /* bytes in f32 */

static const char llama[] =
    "version: 1\n"
    "model: {num_layers: 4, hidden_size: 32, num_attention_heads: 4,\n"
    "  num_query_groups: 2, ffn_hidden_size: 48, vocab_size: 40,\n"
    "  vocab_divisor: 16}\n"
    "training: {seq_length: 12, micro_batch_size: 2, global_batch_size: 8,\n"
    "  precision: fp32}\n";

/* What one rank of a class does in a step. */
typedef struct {
    uint64_t collectives[PLAN_COLLECTIVES];
    uint64_t bytes[PLAN_COLLECTIVES]; /* of the larger buffer */
    uint64_t sends, sent, events;
} Traffic;

static void count_collective(const Plan *p, const PlanInstr *in, uint64_t runs,
                             Traffic *t)
{
    const PlanOperand *o = &p->operands.v[in->operands.first];
    uint32_t kind = p->collectives.v[in->index].kind;

    t->collectives[kind] += runs;
    t->bytes[kind] += runs * MC_MAX(o[0].bytes, o[1].bytes);
}

static void count_segment(const Plan *p, uint32_t segment, uint64_t runs,
                          Traffic *t)
{
    PlanRange range = p->segments.v[segment].instrs;

    for (uint32_t i = range.first; i < range.first + range.n; i++) {
        const PlanInstr *in = &p->instrs.v[i];
        if (in->op == PLAN_CALL)
            count_segment(p, in->index, runs * in->aux, t);
        else if (in->op == PLAN_COLLECTIVE)
            count_collective(p, in, runs, t);
        t->events += in->op == PLAN_EVENT ? runs : 0;
        t->sends += in->op == PLAN_SEND ? runs : 0;
        t->sent += in->op == PLAN_SEND
                       ? runs * p->operands.v[in->operands.first].bytes : 0;
    }
}

static Traffic traffic_of(const EmitBench *b, uint32_t pp)
{
    Traffic t = {{0}, {0}, 0, 0, 0};

    count_segment(&b->plans[pp], b->plans[pp].programs.v[0].segment, 1, &t);
    return t;
}

static void open_plans(EmitBench *b, const char *const *sets)
{
    emit_open_spec(b, llama, sets);
    emit_load(b);
}

/* ---- collectives --------------------------------------------------------- */

static void tensor_parallelism_has_four_sums_per_layer(void **state)
{
    EmitBench b;
    Traffic t;

    (void)state;
    open_plans(&b, (const char *[]){"parallel.tp=2", NULL});
    t = traffic_of(&b, 0);
    /* per microbatch also the embedding, the head's input gradient, and three
     * numbers per token for the loss; per step the gradient norm */
    assert_int_equal(t.collectives[PLAN_ALL_REDUCE],
                     MICROBATCHES * (4 * LAYERS + 2 + 3) + 1);
    assert_int_equal(t.bytes[PLAN_ALL_REDUCE],
                     MICROBATCHES * ((4 * LAYERS + 2) * RESIDUAL +
                                     3 * SEQUENCE * ROWS * 4) + 4);
    assert_int_equal(t.collectives[PLAN_ALL_GATHER], 0);
    emit_close(&b);
}

static void sequence_parallelism_gathers_and_scatters(void **state)
{
    EmitBench b;
    Traffic t;

    (void)state;
    open_plans(&b, (const char *[]){"parallel.tp=2", "parallel.sp=true", NULL});
    t = traffic_of(&b, 0);
    /* the embedding is scattered and its gradient gathered; the head gathers
     * its input and the labels and scatters its gradient */
    assert_int_equal(t.collectives[PLAN_ALL_GATHER],
                     MICROBATCHES * ((2 + 2 + 2) * LAYERS + 1 + 2));
    assert_int_equal(t.collectives[PLAN_REDUCE_SCATTER],
                     MICROBATCHES * ((2 + 2) * LAYERS + 1 + 1));
    assert_int_equal(t.bytes[PLAN_REDUCE_SCATTER],
                     MICROBATCHES * (4 * LAYERS + 2) * RESIDUAL);
    /* the loss, the gradients of norm1, norm2 and norm, the gradient norm */
    assert_int_equal(t.collectives[PLAN_ALL_REDUCE],
                     MICROBATCHES * 3 + 3 + 1);
    emit_close(&b);
}

/* Every gradient once per step, however many microbatches; and the loss. */
static void data_parallelism_moves_each_gradient_once(void **state)
{
    EmitBench b;
    Traffic t;
    int64_t grads;

    (void)state;
    open_plans(&b, (const char *[]){"parallel.dp=2", NULL});
    t = traffic_of(&b, 0);
    grads = b.mem->report[0].grads;
    assert_int_equal(t.bytes[PLAN_ALL_REDUCE], grads + 4);
    assert_int_equal(t.bytes[PLAN_ALL_GATHER], 0);
    emit_close(&b);
}

/* ---- messages ------------------------------------------------------------ */

static void stages_send_each_microbatch_once(void **state)
{
    EmitBench b;

    (void)state;
    open_plans(&b, (const char *[]){"parallel.pp=4", NULL});
    for (uint32_t pp = 0; pp < 4; pp++) {
        Traffic t = traffic_of(&b, pp);
        uint64_t ways = pp == 0 || pp == 3 ? 1 : 2;
        assert_int_equal(t.sends, ways * MICROBATCHES);
        assert_int_equal(t.sent, ways * MICROBATCHES * RESIDUAL);
        /* 1F1B: at most pp - stage microbatches (Narayanan et al. 2021) */
        assert_int_equal(b.mem->report[pp].in_flight, 4 - pp);
    }
    emit_close(&b);
}

/* ---- products ------------------------------------------------------------ */

static uint64_t products(const Plan *p, const char *segment)
{
    uint64_t n = 0;

    for (uint32_t s = 0; s < p->segments.n; s++) {
        PlanRange range = p->segments.v[s].instrs;
        if (strcmp(plan_text(p, p->segments.v[s].name), segment) != 0)
            continue;
        for (uint32_t i = range.first; i < range.first + range.n; i++)
            n += p->instrs.v[i].op == PLAN_GEMM;
    }
    return n;
}

static void expect_products(const char *spec, const char *const *sets,
                            uint64_t forward, uint64_t backward)
{
    EmitBench b;

    emit_open_spec(&b, spec, sets);
    emit_load(&b);
    assert_int_equal(products(&b.plans[0], "layer.fwd"), forward);
    assert_int_equal(products(&b.plans[0], "layer.bwd"), backward);
    emit_close(&b);
}

/* A layer has four: q, k, v; the output projection; up, with gate or alone;
 * down.  The backward has two of each, for the input and for the weight. */
static void weights_that_share_an_operand_share_a_product(void **state)
{
    static const char *const models[] = {"gpt2-124m", "llama3-8b", "qwen2.5-7b",
                                         "gpt3-175b"};
    const char *sets[] = {"model.num_layers=16", NULL};

    (void)state;
    for (size_t i = 0; i < MC_LEN(models); i++) {
        char path[512];
        Buf text = {0};
        snprintf(path, sizeof path, MEGAC_SOURCE_DIR "/configs/models/%s.yaml",
                 models[i]);
        assert_true(buf_read_file(&text, path));
        expect_products(buf_str(&text), sets, 4, 8);
        buf_free(&text);
    }
    expect_products(llama, (const char *[]){"parallel.tp=2", NULL}, 4, 8);
}

/* However they are shared out. */
static void shares_change_no_product(void **state)
{
    (void)state;
    expect_products(llama,
                    (const char *[]){"parallel.dp=2",
                                     "parallel.sharding=optim", NULL},
                    4, 8);
}

/* K and V are whole where ranks share a group of heads, so each of q, k, v is
 * split in its own way. */
static void others_have_products_of_their_own(void **state)
{
    (void)state;
    expect_products(llama, (const char *[]){"parallel.tp=4", NULL}, 6, 12);
}

/* ---- memory -------------------------------------------------------------- */

/* No byte above what is alive at one time, on any layout. */
static void arenas_are_at_the_bound(void **state)
{
    static const char *const layouts[][5] = {
        {"parallel.tp=1"},
        {"parallel.tp=2", "parallel.sp=true"},
        {"parallel.pp=4"},
        {"parallel.pp=2", "parallel.schedule=gpipe"},
        {"parallel.tp=2", "parallel.sp=true", "parallel.pp=2", "parallel.dp=2"},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(layouts); i++) {
        EmitBench b;
        open_plans(&b, layouts[i]);
        for (uint32_t pp = 0; pp < b.mem->npp; pp++)
            assert_int_equal(b.mem->report[pp].total,
                             b.mem->report[pp].lower_bound);
        emit_close(&b);
    }
}

/* Parameters, gradients and two moments, each of 4 bytes, of the padded model
 * (vocabulary 48): embedding and head 48*32 each, per layer q 32*32, k and v
 * 16*32 each, proj 32*32, gate, up and down 48*32 each and two norms of 32. */
static void state_has_the_size_of_the_model(void **state)
{
    int64_t layer = 32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 48 * 32 + 2 * 32;
    int64_t params = 2 * 48 * 32 + LAYERS * layer + 32;
    EmitBench b;

    (void)state;
    open_plans(&b, (const char *[]){"parallel.tp=1", NULL});
    assert_int_equal(b.mem->report[0].params, 4 * params);
    assert_int_equal(b.mem->report[0].grads, 4 * params);
    assert_int_equal(b.mem->report[0].optimizer, 2 * 4 * params);
    emit_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_parallelism_has_four_sums_per_layer),
        cmocka_unit_test(sequence_parallelism_gathers_and_scatters),
        cmocka_unit_test(data_parallelism_moves_each_gradient_once),
        cmocka_unit_test(stages_send_each_microbatch_once),
        cmocka_unit_test(weights_that_share_an_operand_share_a_product),
        cmocka_unit_test(shares_change_no_product),
        cmocka_unit_test(others_have_products_of_their_own),
        cmocka_unit_test(arenas_are_at_the_bound),
        cmocka_unit_test(state_has_the_size_of_the_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
