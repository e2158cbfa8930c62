/* predict_test.c - predicted steps against published ones.
 *
 * Published: Megatron-LM on A100, arXiv 2104.04473, table 1, with the settings
 * of its examples/sc21/run_table_1.sh (TFLOP/s per GPU with everything
 * computed again, turned into seconds by the paper's formula); arXiv
 * 2205.05198, table 5 (seconds); Megatron-LM's README of 2025 on H100 (TFLOP/s
 * per GPU by num_floating_point_operations).  docs/PREDICTION.md says how rows
 * are expressed and which of them the efficiencies were fitted to.
 *
 * Rows of many stages take seconds each and are run with MEGAC_PREDICT=all.
 */
#include "driver/predict.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static const char base[] = "version: 1\n"
                           "model:\n"
                           "  num_layers: 24\n"
                           "  hidden_size: 2304\n"
                           "  num_attention_heads: 24\n"
                           "  vocab_size: 51200\n"
                           "  normalization: layernorm\n"
                           "  activation: gelu_tanh\n"
                           "  position_embedding: learned\n"
                           "  tie_embeddings: true\n"
                           "  qkv_bias: true\n"
                           "  linear_bias: true\n"
                           "parallel:\n"
                           "  overlap:\n"
                           "    {grads: false, params: false, tp: false}\n"
                           "training:\n"
                           "  seq_length: 2048\n"
                           "  global_batch_size: 4\n"
                           "  precision: fp16\n"
                           "target: {backend: cuda, arch: sm_80}\n";

/* Layers, width, heads; tp, pp, chunks; ranks, batch, micro-batch. */
typedef struct {
    const char *name;
    int layers, hidden, heads, tp, pp, vpp, world, batch, micro;
    double published; /* seconds, or TFLOP/s per GPU */
    double bound;     /* percent: what was reached, rounded up */
    bool slow;
} Run;

typedef struct {
    const char *hardware;
    const char *sets[12]; /* up to NULL */
    double (*seconds)(const Spec *s, const Run *r);
    double mean; /* of the runs that are not slow, percent, rounded up */
    Run runs[12];
} Table;

/* ---- from what is published to seconds ----------------------------------- */

/* arXiv 2104.04473, equation 3. */
static double seconds_2021(const Spec *s, const Run *r)
{
    double h = r->hidden, l = r->layers, seq = 2048, v = 51200;
    double flops = 96.0 * r->batch * seq * l * h * h *
                   (1 + seq / (6 * h) + v / (16 * l * h));

    (void)s;
    return flops / (1e12 * r->published * r->world);
}

static double seconds_given(const Spec *s, const Run *r)
{
    (void)s;
    return r->published;
}

static double seconds_counted(const Spec *s, const Run *r)
{
    return spec_flops(s) / (1e12 * r->published * r->world);
}

/* ---- tables -------------------------------------------------------------- */

#define FULL "training.recompute.granularity=full"

static const Table tables[] = {
    {"a100-80g-2021", {FULL, "parallel.overlap.grads=true"}, seconds_2021, 2.2,
     {{"1.7B", 24, 2304, 24, 1, 1, 1, 32, 512, 16, 137, 1, false},
      {"3.6B", 30, 3072, 32, 2, 1, 1, 64, 512, 16, 138, 2.2, false},
      {"7.5B", 36, 4096, 32, 4, 1, 1, 128, 512, 16, 142, 1.2, false},
      {"18.4B", 40, 6144, 48, 8, 1, 1, 256, 1024, 8, 135, 4.8, false}}},
    {"a100-80g-2021", {FULL}, seconds_2021, 5.3,
     {{"39.1B", 48, 8192, 64, 8, 2, 1, 512, 1536, 4, 138, 2.8, false},
      {"76.1B", 60, 10240, 80, 8, 4, 3, 1024, 1792, 2, 140, 6, false},
      {"145.6B", 80, 12288, 96, 8, 8, 2, 1536, 2304, 2, 148, 4.3, false},
      {"310.1B", 96, 16384, 128, 8, 16, 2, 1920, 2160, 1, 155, 8.1, false},
      {"529.6B", 105, 20480, 128, 8, 35, 3, 2520, 2520, 1, 163, 3.5, true},
      {"1008.0B", 128, 25600, 160, 8, 64, 1, 3072, 3072, 1, 163, 1.6, true}}},
    {"a100-80g-2021", {FULL}, seconds_given, 1.2,
     {{"22B", 48, 6144, 64, 8, 1, 1, 8, 4, 4, 1.42, 0.9, false},
      {"175B", 96, 12288, 96, 8, 8, 3, 64, 64, 1, 18.13, 1.6, false},
      {"530B", 105, 20480, 128, 8, 35, 3, 280, 280, 1, 49.05, 5.2, true},
      {"1T", 128, 25600, 160, 8, 64, 1, 512, 512, 1, 94.42, 6.5, true}}},
    {"a100-80g-2021", {"parallel.sp=true"}, seconds_given, 2.6,
     {{"22B sp", 48, 6144, 64, 8, 1, 1, 8, 4, 4, 1.10, 3, false},
      {"175B sp", 96, 12288, 96, 8, 8, 3, 64, 64, 1, 13.75, 2.4, false},
      {"530B sp", 105, 20480, 128, 8, 35, 3, 280, 280, 1, 37.83, 4.8, true},
      {"1T sp", 128, 25600, 160, 8, 64, 1, 512, 512, 1, 71.49, 10.9, true}}},
    {"h100-sxm",
     {"model.vocab_size=131072", "model.tie_embeddings=false",
      "training.seq_length=4096", "training.precision=bf16",
      "training.grad_dtype=bf16", "parallel.sharding=optim",
      "parallel.overlap={grads: true, params: true, tp: true}"},
     seconds_counted, 5.5,
     {{"1.7B", 24, 2048, 16, 1, 1, 1, 48, 192, 1, 408.8, 2, false},
      {"7.1B", 30, 4096, 32, 2, 1, 1, 96, 192, 1, 465.9, 5.4, false},
      {"16B", 32, 6144, 48, 4, 1, 1, 192, 192, 1, 489.1, 6.5, false},
      {"70B", 84, 8192, 64, 8, 2, 1, 768, 384, 1, 419.7, 11.8, false},
      {"177B", 96, 12288, 96, 8, 6, 1, 2304, 1152, 1, 432.8, 3.9, false},
      {"462B", 112, 18432, 144, 8, 16, 1, 6144, 3072, 1, 459.9, 3.6, false}}}};

/* ---- one run ------------------------------------------------------------- */

typedef struct {
    const char *v[32];
    int n;
} Sets;

static void set(Arena *a, Sets *s, const char *key, int value)
{
    s->v[s->n++] = arena_printf(a, "%s=%d", key, value);
}

static Sets sets_of(Arena *a, const Table *t, const Run *r)
{
    Sets s = {.n = 0};

    for (int i = 0; t->sets[i]; i++)
        s.v[s.n++] = t->sets[i];
    if (t->seconds == seconds_counted && r->tp > 1)
        s.v[s.n++] = "parallel.sp=true";
    s.v[s.n++] = arena_printf(a, "target.hardware=%s", t->hardware);
    set(a, &s, "model.num_layers", r->layers);
    set(a, &s, "model.hidden_size", r->hidden);
    set(a, &s, "model.num_attention_heads", r->heads);
    set(a, &s, "parallel.tp", r->tp);
    set(a, &s, "parallel.pp", r->pp);
    set(a, &s, "parallel.vpp", r->vpp);
    set(a, &s, "parallel.world_size", r->world);
    set(a, &s, "training.global_batch_size", r->batch);
    set(a, &s, "training.micro_batch_size", r->micro);
    return s;
}

/* Of the published time, in percent. */
static double error_of(const Table *t, const Run *r)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Sets sets = sets_of(a, t, r);
    Input in = {a, d, spec_parse(a, d, r->name, base, sets.v, sets.n), NULL};
    Program p = {0};
    Prediction out = {0};

    diag_print(d, stderr);
    assert_non_null(in.spec);
    assert_int_equal(program_sketch(&in, &p), CLI_DONE);
    assert_int_equal(predict(&in, &p, &out), CLI_DONE);
    double published = t->seconds(in.spec, r);
    double error = 100 * (out.sim.step / published - 1);
    print_message("%-14s %-8s published %8.3f s, predicted %8.3f s %+5.1f %%\n",
                  t->hardware, r->name, published, out.sim.step, error);
    program_free(&p);
    diag_free(d);
    arena_free(a);
    return error;
}

static void check_table(const Table *t)
{
    bool all = getenv("MEGAC_PREDICT") != NULL;
    double sum = 0;
    int n = 0;

    for (const Run *r = t->runs; r->name; r++) {
        if (r->slow && !all)
            continue;
        double error = fabs(error_of(t, r));
        if (error > r->bound)
            fail_msg("%s: %.2f %% off, more than %.1f", r->name, error,
                     r->bound);
        sum += r->slow ? 0 : error;
        n += !r->slow;
    }
    if (n && sum / n > t->mean)
        fail_msg("%.2f %% off on average, more than %.1f", sum / n, t->mean);
}

static void published_steps(void **state)
{
    (void)state;
    setenv("MEGAC_CONFIGS", MEGAC_SOURCE_DIR "/configs", 1);
    for (size_t i = 0; i < MC_LEN(tables); i++)
        check_table(&tables[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_steps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
