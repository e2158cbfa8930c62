/* import_megatron_test.c - Megatron-LM's command lines, by the whole program.
 *
 * Expected: published totals of parameters and arithmetic by hand; the cases
 * MC-19, MC-45 and MC-86 of public bug reports; and that a command line trains
 * exactly as the YAML that says the same.
 */
#include "cases.h"

#include <math.h>

/* What t0.yaml says, as a command line: Megatron's defaults are undone. */
#define T0                                                                     \
    "--num-layers 4 --hidden-size 64 --num-attention-heads 8 "                 \
    "--group-query-attention --num-query-groups 4 --kv-channels 8 "            \
    "--ffn-hidden-size 128 --vocab-size 96 --normalization RMSNorm --swiglu "  \
    "--position-embedding-type rope --max-position-embeddings 32 "             \
    "--untie-embeddings-and-output-weights --disable-bias-linear "             \
    "--attention-dropout 0 --hidden-dropout 0 --seq-length 32 "                \
    "--micro-batch-size 1 --global-batch-size 8 --train-iters 5 "              \
    "--seed 1234 --optimizer sgd --sgd-momentum 0 --lr 0.1 --weight-decay 0 "  \
    "--lr-decay-style constant --log-interval 1 --mock-data "

static void import(const char *flags, const char *spec)
{
    if (case_shell("$MEGAC import --megatron '%s' -o %s", flags, spec) != 0)
        fail_msg("%s\n%s", flags, case_output());
}

static json_t *inspect(const char *view, const char *sets)
{
    json_t *json;

    if (case_shell("$MEGAC inspect spec.yaml %s --json %s 2>errors", view,
                   sets) != 0)
        fail_msg("%s %s", view, sets);
    json = json_loads(case_output(), 0, NULL);
    assert_non_null(json);
    return json;
}

/* ---- whole commands ------------------------------------------------------ */

/* GPT-3's total follows from table 2.1 of its paper, those of GPT-2 (345M is
 * gpt2-medium), Mixtral and Qwen3 are published; Llama 3 8B has 8,030,261,248,
 * and with the LayerNorm of Megatron's example 4096 more in each of its 65
 * norms. */
static void commands_have_the_published_sizes(void **state)
{
    static const struct {
        const char *name;
        json_int_t params;
        const char *sets; /* a program for each of 96 batch sizes is long */
    } rows[] = {
        {"gpt3_175b", 174604259328,
         "--set training.rampup=null --set training.global_batch_size=16"},
        {"llama3_8b", 8030261248 + 65 * 4096, ""},
        {"mixtral_8x7b", 46702792704, ""},
        {"gpt2_345m", 354823168, ""},
        {"qwen3_30b_a3b", 30532122624, ""},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        json_t *params;
        if (case_shell("$MEGAC import --megatron \"$(cat "
                       "%s/tests/data/megatron/%s.txt)\" -o spec.yaml",
                       MEGAC_SOURCE_DIR, rows[i].name) != 0)
            fail_msg("%s", case_output());
        params = inspect("params", rows[i].sets);
        assert_int_equal(json_integer_value(case_member(params, "unique")),
                         rows[i].params);
        json_decref(params);
    }
}

static void a_command_trains_as_its_yaml(void **state)
{
    (void)state;
    case_train("yaml", "parallel.tp=2");
    import("torchrun --nproc-per-node 2 pretrain_gpt.py " T0
           "--tensor-model-parallel-size 2", "spec.yaml");
    assert_int_equal(case_shell("$MEGAC compile spec.yaml -o flags"), 0);
    case_run("flags", "--save-step 1 --to flags.saved");
    case_same_file("yaml.saved/weights.safetensors",
                   "flags.saved/weights.safetensors", 0);
    case_same_metric("yaml", "flags", "loss", 5, 0);
}

/* What was written reads back to itself, and --set still changes it. */
static void a_spec_is_written_once(void **state)
{
    (void)state;
    import(T0, "spec.yaml");
    assert_int_equal(case_shell("$MEGAC inspect spec.yaml layout --set "
                                "parallel.pp=4 --set parallel.dp=2"), 0);
    assert_int_equal(case_shell("$MEGAC import --megatron '" T0 "' 2>errors "
                                ">printed && cmp printed spec.yaml"), 0);
    assert_int_equal(case_shell("$MEGAC import --megatron '" T0 " --nope' -o "
                                "wrong.yaml || [ ! -e wrong.yaml ]"), 0);
    assert_true(case_printed("no flag `--nope`"));
    assert_int_equal(case_shell("$MEGAC import --megatron x -o no/dir"), 1);
}

/* ---- cases --------------------------------------------------------------- */

static void expect_stages(const char *flags, const int *layers, size_t n)
{
    json_t *stages;

    import(flags, "spec.yaml");
    stages = inspect("layout", "");
    assert_int_equal(json_array_size(stages), n);
    for (size_t i = 0, first = 0; i < n; i++) {
        json_t *ids = case_member(json_array_get(stages, i), "layers");
        assert_int_equal(json_array_size(ids), layers[i]);
        assert_int_equal(json_integer_value(json_array_get(ids, 0)), first);
        first += (size_t)layers[i];
    }
    json_decref(stages);
}

/* 61 layers on 8 stages with 5 on the last, on 16 with 1; 57 over 7 do not
 * come out. */
static void mc_19(void **state)
{
    static const int of_8[] = {8, 8, 8, 8, 8, 8, 8, 5};
    static const int of_16[] = {4, 4, 4, 4, 4, 4, 4, 4,
                                4, 4, 4, 4, 4, 4, 4, 1};

    (void)state;
    expect_stages(T0 "--num-layers 61 --pipeline-model-parallel-size 8 "
                     "--decoder-last-pipeline-num-layers 5",
                  of_8, 8);
    expect_stages(T0 "--num-layers 61 --pipeline-model-parallel-size 16 "
                     "--decoder-last-pipeline-num-layers 1 "
                     "--global-batch-size 16",
                  of_16, 16);
    assert_int_equal(
        case_shell("$MEGAC import --megatron '" T0 "--num-layers 61 "
                   "--pipeline-model-parallel-size 8 "
                   "--decoder-last-pipeline-num-layers 4'"), 1);
    assert_true(case_printed("num_layers = 61"));
    assert_true(case_printed("57 layers for 7 stages"));
}

static double rate(const json_t *curve, size_t step)
{
    return json_number_value(
        json_array_get(json_array_get(curve, step), 1));
}

static void expect_near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-4 * fabs(want) + 1e-12))
        fail_msg("%.9g, not %.9g", got, want);
}

/* Cosine from 1e-3 to 0 with 22 of 220 steps of warm-up. */
static void mc_45(void **state)
{
    static const char flags[] =
        T0 "--train-iters 220 --lr 1e-3 --lr-decay-style cosine "
           "--lr-warmup-iters 22 --lr-decay-iters ";
    char command[2048];
    json_t *curve;

    (void)state;
    snprintf(command, sizeof command, "%s220", flags);
    import(command, "spec.yaml");
    curve = inspect("lr", "");
    expect_near(rate(curve, 11), 5.0e-4);
    expect_near(rate(curve, 22), 1.0e-3);
    expect_near(rate(curve, 121), 5.0e-4);
    expect_near(rate(curve, 198), 3.0154e-5);
    json_decref(curve);
    snprintf(command, sizeof command, "%s198", flags);
    import(command, "spec.yaml");
    assert_true(case_printed("minimum reached 22 steps before the end"));
    assert_int_equal(case_shell("$MEGAC import --megatron '%s22'", flags), 1);
    assert_true(case_printed("decay_steps = 22 must be greater than "
                             "warmup_steps = 22"));
}

static void mc_86(void **state)
{
    (void)state;
    assert_int_equal(case_shell("$MEGAC compile t0.yaml --plan-only -- "
                                "--tensor-model-paralel-size 2"), 1);
    assert_true(case_printed("no flag `--tensor-model-paralel-size`"));
    assert_true(case_printed("did you mean `--tensor-model-parallel-size`?"));
    assert_int_equal(case_shell("$MEGAC compile t0.yaml --plan-only -- "
                                "--wandb-project x"), 0);
    assert_true(case_printed("metrics.jsonl: --wandb-project"));
}

/* ---- flags over a file --------------------------------------------------- */

static void every_command_takes_flags(void **state)
{
    static const char flags[] = "--tensor-model-parallel-size 2 "
                                "--sequence-parallel";

    (void)state;
    case_train("sets", "parallel.tp=2 parallel.sp=true");
    assert_int_equal(case_shell("$MEGAC compile t0.yaml -o flags -- %s",
                                flags), 0);
    case_run("flags", "--save-step 1 --to flags.saved");
    case_same_file("sets.saved/weights.safetensors",
                   "flags.saved/weights.safetensors", 0);
    assert_int_equal(case_shell("$MEGAC inspect t0.yaml groups -- %s", flags),
                     0);
    assert_true(case_printed("2 ranks"));
    assert_int_equal(case_shell("$MEGAC explain t0.yaml -- %s", flags), 0);
    assert_int_equal(case_shell("$MEGAC verify t0.yaml -- %s", flags), 0);
    assert_int_equal(case_shell("$MEGAC verify t0.yaml -- "
                                "--tensor-model-parallel-size 3"), 1);
    assert_true(case_printed("Megatron flags: note: tp = 3"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands_have_the_published_sizes),
        cmocka_unit_test(a_command_trains_as_its_yaml),
        cmocka_unit_test(a_spec_is_written_once),
        cmocka_unit_test(mc_19),
        cmocka_unit_test(mc_45),
        cmocka_unit_test(mc_86),
        cmocka_unit_test(every_command_takes_flags),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
