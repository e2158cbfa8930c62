/* comm_test.c - which collectives a step has, and no others.
 *
 * The numbers per layer are those of Megatron's column and row parallel layers
 * (megatron/core/tensor_parallel/layers.py), counted by hand; s*b*h = 32*1*64
 * in fp32 are 8,192 bytes.  A layer's share is what two layers more add.
 */
#include "cases.h"

/* Executions in one step of an operation on so many bytes over an axis; every
 * size if `bytes` is 0. */
static int64_t times(json_t *stage, const char *op, const char *axis,
                     int64_t bytes)
{
    json_t *row;
    int64_t n = 0;
    size_t i;

    json_array_foreach(case_member(stage, "ops"), i, row) {
        const char *o = json_string_value(case_member(row, "op"));
        const char *a = json_string_value(case_member(row, "axis"));
        int64_t b = json_integer_value(case_member(row, "bytes"));
        if (!strcmp(o, op) && !strcmp(a, axis) && (!bytes || b == bytes))
            n += json_integer_value(case_member(row, "per_step"));
    }
    return n;
}

static json_t *comm_of(Arena *a, const char *sets, int layers)
{
    return case_inspect("comm", arena_printf(a, "model.num_layers=%d "
                                             "training.global_batch_size=1 %s",
                                             layers, sets));
}

typedef struct {
    const char *op, *axis;
    int64_t bytes, per_layer, others; /* others: of embedding, head and step */
} Expected;

/* All that layers do over axis `over` is in the rows. */
static void expect_over(const char *over, const char *sets,
                        const Expected *rows, size_t n)
{
    Arena *a = arena_new();
    json_t *few = comm_of(a, sets, 4), *more = comm_of(a, sets, 6);
    json_t *four = json_array_get(few, 0), *six = json_array_get(more, 0);
    static const char *const ops[] = {"all_reduce", "all_gather",
                                      "reduce_scatter", "all_to_all"};
    int64_t layers = 0, known = 0;

    for (size_t i = 0; i < n; i++) {
        const Expected *e = &rows[i];
        int64_t four_times = times(four, e->op, e->axis, e->bytes);
        int64_t six_times = times(six, e->op, e->axis, e->bytes);
        print_message("%s: %s of %lld bytes\n", sets, e->op,
                      (long long)e->bytes);
        assert_int_equal(six_times - four_times, 2 * e->per_layer);
        assert_int_equal(four_times, 4 * e->per_layer + e->others);
        known += e->per_layer;
    }
    for (size_t i = 0; i < MC_LEN(ops); i++)
        layers += times(six, ops[i], over, 0) - times(four, ops[i], over, 0);
    assert_int_equal(layers, 2 * known);
    json_decref(few);
    json_decref(more);
    arena_free(a);
}

static void expect_comm(const char *sets, const Expected *rows, size_t n)
{
    expect_over("tp", sets, rows, n);
}

/* ---- tensor parallel ----------------------------------------------------- */

/* A layer: after proj and fc2 forward, before qkv and fc1 backward.  Beside
 * them the embedding's result, the head's input gradient, and of the
 * cross-entropy one maximum and two sums (32 rows of 4 bytes). */
static void tensor_parallel(void **state)
{
    static const Expected rows[] = {
        {"all_reduce", "tp", 8192, 4, 2},
        {"all_reduce", "tp", 128, 0, 2},
        {"all_reduce_max", "tp", 128, 0, 1},
        {"all_gather", "tp", 0, 0, 0},
        {"reduce_scatter", "tp", 0, 0, 0},
    };
    static const Expected half[] = {{"all_reduce", "tp", 4096, 4, 2}};

    (void)state;
    expect_comm("parallel.tp=2", rows, MC_LEN(rows));
    expect_comm("parallel.tp=4", rows, MC_LEN(rows));
    expect_comm("parallel.tp=2 parallel.dp=1 training.precision=bf16", half,
                MC_LEN(half));
}

/* Forward 2 gathers before qkv and fc1, 2 scatters after proj and fc2; backward
 * 2 gathers of dY, 2 of X again, 2 scatters of dX.  Beside them the embedding's
 * result and the gather of its gradient, the head's input and the scatter of
 * its gradient, the labels of the gathered rows (32 * 4 bytes), and once per
 * step the gradients of norms, of all layers at once. */
static void sequence_parallel(void **state)
{
    static const Expected rows[] = {
        {"all_gather", "tp", 8192, 6, 2},
        {"reduce_scatter", "tp", 8192, 4, 2},
        {"all_gather", "tp", 128, 0, 1},
        {"all_reduce", "tp", 128, 0, 2},
        {"all_reduce_max", "tp", 128, 0, 1},
        {"all_reduce", "tp", 256, 0, 1},
    };

    (void)state;
    expect_comm("parallel.tp=2 parallel.sp=true", rows, MC_LEN(rows));
    expect_comm("parallel.tp=4 parallel.sp=true", rows, MC_LEN(rows));
}

/* Computing a layer again stops at fc2's product, whose sum nobody needs; with
 * sp the gathers of X that it repeats serve the gradients of weights too. */
static void recomputed(void **state)
{
    static const Expected tp[] = {{"all_reduce", "tp", 8192, 5, 2}};
    static const Expected sp[] = {{"all_gather", "tp", 8192, 6, 2},
                                  {"reduce_scatter", "tp", 8192, 5, 2}};
    static const Expected none[] = {{"all_reduce", "tp", 8192, 4, 2}};

    (void)state;
    expect_comm("parallel.tp=2 training.recompute.granularity=full", tp,
                MC_LEN(tp));
    expect_comm("parallel.tp=2 parallel.sp=true "
                "training.recompute.granularity=full", sp, MC_LEN(sp));
    expect_comm("parallel.tp=2 training.recompute.granularity=selective",
                none, MC_LEN(none));
}

/* ---- experts -------------------------------------------------------------- */

/* A layer's tokens go to their experts and back, and so do the gradients
 * (MoEAlltoAllTokenDispatcher).  Each of 4 experts has 32 * 2 / 4 slots for the
 * tokens of a rank, of 64 * 4 bytes; beside them goes how many are filled. */
static void expert_parallel(void **state)
{
    static const Expected rows[] = {{"all_to_all", "ep", 16384, 4, 0},
                                    {"all_to_all", "ep", 16, 1, 0}};

    (void)state;
    expect_over("ep",
                "model.moe.num_experts=4 model.moe.top_k=2 "
                "model.moe.capacity_factor=1 parallel.ep=2 "
                "training.global_batch_size=2",
                rows, MC_LEN(rows));
}

/* ---- once per step, or per microbatch ------------------------------------ */

/* All bytes that one kind of operation moves over an axis. */
static int64_t bytes_of(json_t *stage, const char *op, const char *axis)
{
    json_t *row;
    int64_t sum = 0;
    size_t i;

    json_array_foreach(case_member(stage, "ops"), i, row)
        if (!strcmp(json_string_value(case_member(row, "op")), op) &&
            !strcmp(json_string_value(case_member(row, "axis")), axis))
            sum += json_integer_value(case_member(row, "bytes")) *
                   json_integer_value(case_member(row, "per_step"));
    return sum;
}

/* Every gradient once per step, however many microbatches; what each of them
 * does grows with their number. */
static void once_per_step(void **state)
{
    json_t *one = case_inspect("comm", "parallel.tp=2 parallel.dp=2 "
                               "training.global_batch_size=2");
    json_t *four = case_inspect("comm", "parallel.tp=2 parallel.dp=2 "
                                "training.global_batch_size=8");
    json_t *a = json_array_get(one, 0), *b = json_array_get(four, 0);
    json_t *params = case_inspect("params", "parallel.tp=2 parallel.dp=2");
    int64_t held = json_integer_value(
        json_array_get(case_member(params, "by_rank"), 0));

    (void)state;
    /* fp32 gradients, and the loss. */
    assert_int_equal(bytes_of(a, "all_reduce", "dp"), 4 * held + 4);
    assert_int_equal(bytes_of(b, "all_reduce", "dp"), 4 * held + 4);
    assert_int_equal(times(b, "all_reduce", "tp", 8192),
                     4 * times(a, "all_reduce", "tp", 8192));
    json_decref(one);
    json_decref(four);
    json_decref(params);
}

/* Replicas share the gradient of the head, [128 * 4,688 rows, 8] in fp32: it is
 * scattered once per microbatch, though logits are made piece by piece.  The
 * passes mean the same with two pieces. */
static void head_in_pieces(void **state)
{
    static const char sets[] =
        "model.vocab_size=600000 model.hidden_size=8 training.seq_length=512 "
        "model.max_position_embeddings=512 parallel.dp=2 "
        "parallel.sharding=optim_grads";
    json_t *stages = case_inspect("comm", sets);

    (void)state;
    assert_int_equal(times(json_array_get(stages, 0), "reduce_scatter", "dp",
                           128 * 4688 * 8 * 4),
                     4 + 4); /* and the embedding's */
    json_decref(stages);
    assert_int_equal(
        case_shell("$MEGAC verify t0.yaml --set model.vocab_size=600000 "
                   "--set training.seq_length=512 --set parallel.dp=2 "
                   "--set model.max_position_embeddings=512 "
                   "--set parallel.sharding=optim_grads"),
        0);
}

/* One message per microbatch, boundary and direction, of s*b*h, with sp of a
 * rank's part of it. */
static void pipeline_messages(void **state)
{
    static const struct {
        const char *sets;
        int64_t bytes;
    } runs[] = {{"parallel.pp=4", 8192}, {"parallel.pp=4 parallel.tp=2", 8192},
                {"parallel.pp=4 parallel.tp=2 parallel.sp=true", 4096}};

    (void)state;
    for (size_t i = 0; i < MC_LEN(runs); i++) {
        json_t *stages = case_inspect("comm", runs[i].sets), *stage;
        size_t pp;
        json_array_foreach(stages, pp, stage) {
            int64_t neighbours = pp == 0 || pp == 3 ? 1 : 2;
            assert_int_equal(times(stage, "send", "pp", runs[i].bytes),
                             8 * neighbours);
            assert_int_equal(times(stage, "recv", "pp", runs[i].bytes),
                             8 * neighbours);
            assert_int_equal(times(stage, "send", "pp", 0), 8 * neighbours);
        }
        json_decref(stages);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_parallel),
        cmocka_unit_test(sequence_parallel),
        cmocka_unit_test(recomputed),
        cmocka_unit_test(expert_parallel),
        cmocka_unit_test(once_per_step),
        cmocka_unit_test(head_in_pieces),
        cmocka_unit_test(pipeline_messages),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
