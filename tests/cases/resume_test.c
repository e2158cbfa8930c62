/* resume_test.c - a run that is resumed is the run that never stopped.
 *
 * Under the same layout to the bit, under another one to fp32's rounding; the
 * tensors that are loaded are equal to the bit under every layout.
 *
 * From public bug reports: NVIDIA/Megatron-LM#725, meta-pytorch/torchft#292
 * and microsoft/onnxruntime#5616 (MC-79, the order of samples after a resume,
 * and a resume exactly at the end of the data).
 */
#include "cases.h"

#include <math.h>

static const char two_and_two[] = "training.steps=4 "
                                  "training.checkpoint.interval=2";

/* ---- the same layout ----------------------------------------------------- */

/* Runs to step 4, forgets all after step 2, resumes: metrics, weights, moments
 * and state.json are the same, to the bit.  The times of steps are not. */
static void expect_same_bits(const char *sets)
{
    char all[1024];

    snprintf(all, sizeof all, "%s training.checkpoint.dir=ck %s", two_and_two,
             sets);
    assert_int_equal(case_shell("rm -rf out whole"), 0);
    case_compile("out", all);
    case_run("out", "");
    assert_int_equal(case_shell("mv out/ck/step-00000004 whole && "
                                "cp out/metrics.jsonl whole.jsonl"), 0);
    case_run("out", "--resume");
    assert_int_equal(case_shell("diff -r whole out/ck/step-00000004"), 0);
    assert_int_equal(
        case_shell("for f in whole.jsonl out/metrics.jsonl; do sed "
                   "'s/\"step_time_s.*\"loss_scale/\"loss_scale/' $f "
                   ">$f.same; done; wc -l <out/metrics.jsonl; "
                   "diff whole.jsonl.same out/metrics.jsonl.same"), 0);
    assert_string_equal(case_output(), "4\n");
}

#define ADAM "training.optimizer.type=adamw training.optimizer.lr=1e-3 "
#define MOE "model.moe.num_experts=4 model.moe.ffn_hidden_size=32 "

/* Dropout's draws, the schedule of the rate, a batch that grows, evaluation:
 * all go on where they were. */
static void the_same_bits_again(void **state)
{
    (void)state;
    expect_same_bits(ADAM "training.lr_schedule.style=cosine "
                     "training.lr_schedule.warmup_steps=1 "
                     "training.rampup=[4,4,8] training.eval.interval=1 "
                     "training.eval.steps=1 data.valid=synthetic "
                     "model.hidden_dropout=0.1 "
                     "training.checkpoint.async=false");
    expect_same_bits("training.optimizer.momentum=0.9 parallel.tp=2 "
                     "training.precision=bf16");
}

/* The loss scale starts at 2^32, at which every gradient is infinite: no step
 * of these is an update, and which ones halve the scale is remembered.  The
 * experts' bias is no parameter of the optimizer. */
static void what_no_gradient_moves(void **state)
{
    (void)state;
    expect_same_bits(ADAM "training.precision=fp16");
    assert_true(case_metric("out", 4, "skipped") > 0);
    expect_same_bits(ADAM MOE "parallel.ep=2 parallel.dp=1 "
                     "model.moe.expert_bias=true model.moe.score=sigmoid "
                     "model.moe.bias_update_rate=0.01");
}

/* ---- another layout ------------------------------------------------------ */

static const char common[] = "training.steps=4 " ADAM
                             "training.checkpoint.dir=../ck ";

/* Resumes step 2 of `ck` under a layout: what was loaded is what was saved,
 * and steps 3 and 4 are those of `one`. */
static void expect_goes_on(const char *layout, const char *model)
{
    char sets[1024];

    snprintf(sets, sizeof sets, "%s%s%s", common, model, layout);
    assert_int_equal(case_shell("rm -rf other && cp -r saved ck"), 0);
    case_compile("other", sets);
    case_run("other", "--resume --save-step 2 --to loaded "
                      "-- --check-replicas");
    case_same_file("loaded/weights.safetensors",
                   "ck/step-00000002/model.safetensors", 0);
    case_same_file("ck/step-00000004/model.safetensors",
                   "one/ck/step-00000004/model.safetensors", 1e-5);
    case_same_file("ck/step-00000004/exp_avg.safetensors",
                   "one/ck/step-00000004/exp_avg.safetensors", 1e-4);
    case_same_file("ck/step-00000004/exp_avg_sq.safetensors",
                   "one/ck/step-00000004/exp_avg_sq.safetensors", 1e-4);
    assert_int_equal(case_shell("rm -rf ck"), 0);
}

/* The run that never stops, on one rank; and step 2 of one on four. */
static void begin(const char *model, const char *layout)
{
    char sets[1024];

    assert_int_equal(case_shell("rm -rf one four ck saved"), 0);
    snprintf(sets, sizeof sets, "%s%straining.checkpoint.dir=ck", common,
             model);
    case_compile("one", sets);
    case_run("one", "");
    snprintf(sets, sizeof sets, "%s%s%s", common, model, layout);
    case_compile("four", sets);
    case_run("four", "--steps 2");
    assert_int_equal(case_shell("mv ck saved"), 0);
}

static void other_layouts(void **state)
{
    static const char *const layouts[] = {
        "parallel.tp=2 parallel.sp=true parallel.dp=2",
        "parallel.pp=2 parallel.vpp=2",
        "parallel.cp=2 parallel.dp=2 parallel.sharding=optim",
        "parallel.dp=4 parallel.sharding=optim_grads_params",
        "parallel.dp=2 parallel.sharding=optim_grads "
        "training.offload.optimizer=0.5",
    };

    (void)state;
    begin("", "parallel.dp=4");
    for (size_t i = 0; i < MC_LEN(layouts); i++)
        expect_goes_on(layouts[i], "");
}

static void other_layouts_of_experts(void **state)
{
    (void)state;
    begin(MOE, "parallel.dp=2 parallel.sharding=optim_grads_params");
    expect_goes_on("parallel.ep=2 parallel.dp=1", MOE);
}

/* ---- MC-79 --------------------------------------------------------------- */

/* 80 samples of 32 tokens and the last one's label; with a rate of 0 the
 * weights stand still, so a step's loss tells its samples. */
static const char counted[] = "data.train=corpus training.optimizer.lr=0 "
                              "training.global_batch_size=16 ";

static double loss(const char *out, int step)
{
    return case_metric(out, step, "loss");
}

/* Four steps on four replicas are samples 0..63.  Two replicas of two ranks go
 * on with 64..79, as if nothing had happened, although they were asked for more
 * steps.  The next epoch, which begins there, has each sample once, so its
 * losses have the same mean; and another order. */
static void samples_after_a_resume(void **state)
{
    double first = 0, second = 0;
    char sets[512];

    (void)state;
    assert_int_equal(case_shell("rm -rf ck; seq 1 2000 | head -c 2561 >text && "
                                "$MEGAC data pack text -o corpus"), 0);
    snprintf(sets, sizeof sets, "%straining.steps=5", counted);
    case_compile("epoch", sets);
    case_run("epoch", "");
    snprintf(sets, sizeof sets, "%straining.steps=4 parallel.dp=4 "
             "training.checkpoint.dir=../ck", counted);
    case_compile("before", sets);
    case_run("before", "");
    assert_true(case_shell("grep '\"train\": 64' ck/step-00000004/state.json")
                == 0);
    snprintf(sets, sizeof sets, "%straining.steps=10 parallel.tp=2 "
             "parallel.dp=2 training.checkpoint.dir=../ck", counted);
    case_compile("after", sets);
    assert_int_equal(case_shell("cp before/metrics.jsonl after"), 0);
    case_run("after", "--resume --steps 5");
    case_same_metric("after", "epoch", "loss", 5, 1e-5);
    case_run("after", "--resume"); /* all samples are consumed */
    for (int i = 1; i <= 5; i++) {
        first += loss("after", i);
        second += loss("after", i + 5);
    }
    assert_true(fabs(first - second) < 1e-4);
    assert_true(fabs(loss("after", 1) - loss("after", 6)) > 1e-4);
}

/* Half the batch takes half the samples a step, from where it was. */
static void another_batch(void **state)
{
    char sets[512];

    (void)state;
    assert_int_equal(case_shell("rm -rf ck"), 0);
    snprintf(sets, sizeof sets, "%straining.steps=5", counted);
    case_compile("epoch", sets);
    case_run("epoch", "");
    snprintf(sets, sizeof sets, "%straining.steps=4 "
             "training.checkpoint.dir=../ck", counted);
    case_compile("before", sets);
    case_run("before", "");
    snprintf(sets, sizeof sets, "%straining.steps=6 "
             "training.checkpoint.dir=../ck "
             "training.global_batch_size=8", counted);
    case_compile("half", sets);
    assert_int_equal(case_shell("cp before/metrics.jsonl half"), 0);
    case_run("half", "--resume");
    assert_true(fabs((loss("half", 5) + loss("half", 6)) / 2 -
                     loss("epoch", 5)) < 1e-5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_bits_again),
        cmocka_unit_test(what_no_gradient_moves),
        cmocka_unit_test(other_layouts),
        cmocka_unit_test(other_layouts_of_experts),
        cmocka_unit_test(samples_after_a_resume),
        cmocka_unit_test(another_batch),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
