/* memory_test.c - what is said of memory before a run, and what a run touches.
 *
 * From public bug reports: NVIDIA-NeMo/Megatron-Bridge#5077 (MC-67, the
 * heaviest stage taken for an average one) and NVIDIA/Megatron-LM#169 (MC-68,
 * activations in flight counted as one microbatch).
 */
#include "cases.h"

/* ---- MC-67 --------------------------------------------------------------- */

static const char uneven[] =
    "model.num_layers=8 model.num_attention_heads=4 model.num_query_groups=2 "
    "model.kv_channels=16 model.vocab_size=256 parallel.pp=4 "
    "parallel.pp_layout=[1,2,2,3]";

/* A layer has 36,992 parameters, embedding and head 16,384 each, the final
 * norm 64. */
static const int64_t per_stage[] = {16384 + 36992, 2 * 36992, 2 * 36992,
                                    3 * 36992 + 64 + 16384};

static void parameters_of_each_stage(void **state)
{
    json_t *params = case_inspect("params", uneven), *by_rank;
    int64_t sum = 0;

    (void)state;
    by_rank = case_member(params, "by_rank");
    assert_int_equal(json_array_size(by_rank), 4);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(json_integer_value(json_array_get(by_rank, i)),
                         per_stage[i]);
        sum += per_stage[i];
    }
    assert_int_equal(sum, 328768);
    assert_int_equal(json_integer_value(case_member(params, "unique")), sum);
    json_decref(params);
}

/* In fp32 with plain SGD: 4 bytes each of parameters and gradients, every
 * tensor rounded up to 64 bytes (here all are multiples), and nothing else. */
static void bytes_of_each_stage(void **state)
{
    json_t *stages = case_inspect("memory", uneven), *stage;
    size_t i;

    (void)state;
    assert_int_equal(json_array_size(stages), 4);
    json_array_foreach(stages, i, stage) {
        assert_int_equal(
            json_integer_value(case_member(stage, "bytes.params")),
            4 * per_stage[i]);
        assert_int_equal(
            json_integer_value(case_member(stage, "bytes.optimizer")), 0);
    }
    json_decref(stages);
}

/* MC-03: whatever the split, its stages hold all parameters once. */
static void no_parameter_is_lost(void **state)
{
    static const char *const splits[] = {
        "model.vocab_size=128 parallel.pp=1",
        "model.vocab_size=128 parallel.pp=4",
        "model.vocab_size=128 parallel.pp=3 parallel.pp_layout=Et|tt|tL",
        "model.vocab_size=128 parallel.pp=2 parallel.pp_last_layers=1",
    };
    const int64_t all = 2 * 128 * 64 + 64 + 4 * 36992;

    (void)state;
    for (size_t k = 0; k < MC_LEN(splits); k++) {
        json_t *params = case_inspect("params", splits[k]), *count;
        int64_t sum = 0;
        size_t i;
        json_array_foreach(case_member(params, "by_rank"), i, count)
            sum += json_integer_value(count);
        assert_int_equal(json_integer_value(case_member(params, "unique")),
                         all);
        assert_int_equal(sum, all);
        json_decref(params);
    }
}

/* ---- sharded state ------------------------------------------------------- */

/* Numbers of each tensor: of a layer q, k and v together, proj, gate and up
 * together, down, two norms; embedding, head and the last norm. */
static const int64_t of_layer[] = {8192, 4096, 16384, 8192, 64, 64};
static const int64_t of_model[] = {16384, 16384, 64};

static int64_t shares(const int64_t *numbers, size_t n, int64_t replicas)
{
    int64_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (numbers[i] + replicas - 1) / replicas;
    return sum;
}

/* 3 divides none of these tensors, and yet 24, 48 and 96 replicas hold a 24th,
 * 48th and 96th of each, rounded up to a number: of parameters, of gradients,
 * and of both of Adam's moments. */
static void any_replicas_share_all_tensors(void **state)
{
    static const int64_t replicas[] = {24, 48, 96};

    (void)state;
    for (size_t i = 0; i < MC_LEN(replicas); i++) {
        long long n = replicas[i];
        int64_t bytes = 4 * (4 * shares(of_layer, MC_LEN(of_layer), n) +
                             shares(of_model, MC_LEN(of_model), n));
        char sets[512];
        json_t *stages, *stage;
        snprintf(sets, sizeof sets,
                 "model.num_attention_heads=4 model.num_query_groups=2 "
                 "model.kv_channels=16 model.vocab_size=256 "
                 "training.micro_batch_size=1 training.optimizer.type=adamw "
                 "parallel.sharding=optim_grads_params parallel.dp=%lld "
                 "training.global_batch_size=%lld",
                 n, n);
        stages = case_inspect("memory", sets);
        stage = json_array_get(stages, 0);
        assert_int_equal(json_integer_value(case_member(stage, "bytes.params")),
                         bytes);
        assert_int_equal(json_integer_value(case_member(stage, "bytes.grads")),
                         bytes);
        assert_int_equal(
            json_integer_value(case_member(stage, "bytes.optimizer")),
            2 * bytes);
        json_decref(stages);
    }
}

/* ---- MC-68 --------------------------------------------------------------- */

static void expect_in_flight(const char *sets, const int64_t *expected)
{
    json_t *stages = case_inspect("memory", sets), *stage;
    size_t i;

    assert_int_equal(json_array_size(stages), 4);
    json_array_foreach(stages, i, stage)
        assert_int_equal(json_integer_value(case_member(stage, "in_flight")),
                         expected[i]);
    json_decref(stages);
}

static int64_t activations(const char *sets, size_t stage)
{
    json_t *stages = case_inspect("memory", sets);
    int64_t bytes = json_integer_value(case_member(
        json_array_get(stages, stage), "bytes.activations"));

    json_decref(stages);
    return bytes;
}

/* min(pp - stage, m) with 1F1B, m with GPipe; with chunks, of a chunk each. */
static void microbatches_in_flight(void **state)
{
    (void)state;
    expect_in_flight("model.num_layers=8 parallel.pp=4",
                     (int64_t[]){4, 3, 2, 1});
    expect_in_flight("model.num_layers=8 parallel.pp=4 "
                     "training.global_batch_size=2",
                     (int64_t[]){2, 2, 2, 1});
    expect_in_flight("model.num_layers=8 parallel.pp=4 "
                     "parallel.schedule=gpipe",
                     (int64_t[]){8, 8, 8, 8});
    expect_in_flight("model.num_layers=8 parallel.pp=4 parallel.vpp=2",
                     (int64_t[]){11, 9, 7, 5});
}

/* The first stage saves the same for each microbatch, so with 3 and 4 of them
 * the arena grows by the same step. */
static void activations_follow(void **state)
{
    static const char *const batches[] = {
        "parallel.pp=4 training.global_batch_size=2",
        "parallel.pp=4 training.global_batch_size=3",
        "parallel.pp=4 training.global_batch_size=4",
        "parallel.pp=4 training.global_batch_size=8",
    };
    int64_t bytes[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        bytes[i] = activations(batches[i], 0);
    assert_true(bytes[1] > bytes[0]);
    assert_int_equal(bytes[2] - bytes[1], bytes[1] - bytes[0]);
    assert_int_equal(bytes[3], bytes[2]);
}

/* ---- the plan and the run ------------------------------------------------ */

/* What `inspect memory` says of a compiled folder. */
static json_t *planned(const char *out)
{
    json_t *stages;

    assert_int_equal(case_shell("$MEGAC inspect %s memory --json", out), 0);
    stages = json_loads(case_output(), 0, NULL);
    assert_non_null(stages);
    return stages;
}

/* Each rank's line {"rank", "arena", "highest", "touched"}: it used all of its
 * arena and no more, which is what was said; the last value may leave some of
 * its 64 bytes of alignment alone. */
static void compare_measured(json_t *stages, size_t world)
{
    size_t stage_ranks = world / json_array_size(stages), seen = 0;
    const char *at = case_output();

    while ((at = strstr(at, "{\"rank\""))) {
        json_t *line = json_loads(at++, JSON_DISABLE_EOF_CHECK, NULL);
        assert_non_null(line);
        size_t rank = (size_t)json_integer_value(case_member(line, "rank"));
        int64_t total = json_integer_value(case_member(
            json_array_get(stages, rank / stage_ranks), "bytes.total"));
        assert_int_equal(json_integer_value(case_member(line, "arena")), total);
        assert_int_equal(json_integer_value(case_member(line, "highest")),
                         total);
        assert_in_range(json_integer_value(case_member(line, "touched")),
                        total - 63, total);
        json_decref(line);
        seen++;
    }
    assert_int_equal(seen, world);
}

/* 2,048 ranks, each with 4 bytes for the parameter and its gradient of a table
 * and a head of 2^20 rows of 64: a GiB each, which one machine has and which
 * 2 TiB are not. */
static void too_many_ranks_are_not_started(void **state)
{
    (void)state;
    case_compile("many", "model.vocab_size=1048576 parallel.dp=2048 "
                         "training.global_batch_size=2048");
    assert_int_equal(case_shell("$MEGAC run many"), 4);
    assert_true(case_printed("the ranks need 2"));
    assert_true(case_printed("GiB together"));
    assert_true(case_printed("2048 ranks of 1."));
}

static void a_run_uses_what_was_planned(void **state)
{
    static const struct {
        size_t world;
        const char *sets;
    } runs[] = {
        {1, ""},
        {2, "parallel.tp=2 parallel.sp=true"},
        {4, "parallel.pp=4"},
        {2, "parallel.pp=2 parallel.vpp=2"},
        {2, "parallel.pp=2 parallel.schedule=zb-h1"},
        {4, "parallel.cp=2 parallel.cp_comm=a2a parallel.pp=2"},
        {4, "parallel.cp=4 parallel.cp_comm=a2a+p2p parallel.cp_sizes=[2,2] "
            "training.seq_length=64"},
        {4, "parallel.cp=2 parallel.cp_comm=all_gather parallel.dp=2"},
        {2, "parallel.pp=2 training.recompute.granularity=full"},
        {4, "parallel.dp=4 training.optimizer.type=adamw"},
        {4, "parallel.pp=2 parallel.dp=2 model.tie_embeddings=true"},
        {4, "parallel.pp=2 parallel.tp=2 training.precision=bf16 "
            "training.optimizer.type=adamw"},
        {8, "parallel.tp=2 parallel.pp=2 parallel.dp=2 parallel.sp=true"},
        {4, "parallel.pp=2 parallel.dp=2 parallel.sharding=optim"},
        {4, "parallel.dp=4 parallel.sharding=optim_grads_params"},
        {2, "parallel.pp=2 training.optimizer.type=adamw "
            "training.offload.activations=[mlp,core_attn] "
            "training.offload.optimizer=0.5"},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(runs); i++) {
        case_compile("out", runs[i].sets);
        json_t *stages = planned("out"), *from_spec;
        from_spec = case_inspect("memory", runs[i].sets);
        assert_true(json_equal(stages, from_spec));
        case_run("out", "--steps 2 -- --measure-memory");
        compare_measured(stages, runs[i].world);
        json_decref(stages);
        json_decref(from_spec);
        assert_int_equal(case_shell("rm -rf out"), 0);
    }
}

/* ---- offloading ---------------------------------------------------------- */

/* Where bytes lie changes none of them. */
static void offloading_changes_nothing(void **state)
{
    static const char *const sets[] = {
        "training.optimizer.type=adamw",
        "training.optimizer.type=adamw training.precision=bf16 parallel.pp=2",
        "training.optimizer.type=adamw parallel.dp=2 "
        "parallel.sharding=optim_grads_params",
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(sets); i++) {
        char all[512];
        snprintf(all, sizeof all,
                 "%s training.offload.activations=[core_attn,mlp] "
                 "training.offload.optimizer=1", sets[i]);
        case_train("here", sets[i]);
        case_train("away", all);
        case_same_file("here.saved/weights.safetensors",
                       "away.saved/weights.safetensors", 0);
        case_same_file("here.saved/grads.safetensors",
                       "away.saved/grads.safetensors", 0);
        assert_int_equal(case_shell("rm -rf here* away*"), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_of_each_stage),
        cmocka_unit_test(bytes_of_each_stage),
        cmocka_unit_test(no_parameter_is_lost),
        cmocka_unit_test(any_replicas_share_all_tensors),
        cmocka_unit_test(microbatches_in_flight),
        cmocka_unit_test(activations_follow),
        cmocka_unit_test(too_many_ranks_are_not_started),
        cmocka_unit_test(a_run_uses_what_was_planned),
        cmocka_unit_test(offloading_changes_nothing),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
