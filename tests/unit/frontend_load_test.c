/* frontend_load_test.c - merging, numbers, names, derived values, rules. */
#include "frontend_sample.h"

#include <locale.h>
#include <unistd.h>

/* ---- numbers ------------------------------------------------------------ */

/* Every form of 5e-5 is the same number. (MC-87: huggingface/trl#1450) */
static void numbers_without_a_dot(void **state)
{
    static const char *const forms[] = {"5e-5", "5.0e-5", "5.e-05", "0.00005",
                                        "5E-5", "\"5e-5\""};

    (void)state;
    for (size_t i = 0; i < MC_LEN(forms); i++) {
        char set[64];
        snprintf(set, sizeof set, "training.optimizer.lr=%s", forms[i]);
        sample_accept(s, set);
        assert_true(s.spec->training.optimizer.lr >= 5e-5);
        assert_true(s.spec->training.optimizer.lr <= 5e-5);
        sample_free(&s);
    }
}

static void numbers_in_any_locale(void **state)
{
    (void)state;
    setlocale(LC_ALL, "de_DE.UTF-8");
    sample_accept(s, "training.optimizer.lr=1.5e-4");
    assert_true(s.spec->training.optimizer.lr < 2e-4);
    sample_free(&s);
    setlocale(LC_ALL, "C");
}

static void integers(void **state)
{
    sample_accept(s, "training.steps=1e3", "model.vocab_size=1_000",
                  "training.seq_length=2Ki");

    (void)state;
    assert_int_equal(s.spec->training.steps, 1000);
    assert_int_equal(s.spec->model.vocab_size, 1000);
    assert_int_equal(s.spec->training.seq_length, 2048);
    sample_free(&s);
}

static void wrong_types(void **state)
{
    static const struct {
        const char *set, *message;
    } rows[] = {
        {"training.optimizer.lr=abc", "must be a number, not `abc`"},
        {"training.optimizer.lr=5e-5x", "must be a number, not `5e-5x`"},
        {"training.optimizer.lr=nan", "must be a number"},
        {"training.optimizer.lr=1e999", "must be a number"},
        {"model.hidden_size=64.5", "must be an integer, not `64.5`"},
        {"model.num_layers=4k", "must be an integer, not `4k`"},
        {"model.num_layers=[4]", "must be an integer, not a list"},
        {"model.num_layers=", "must be an integer"},
        {"model.num_query_groups=0", "must be >= 1"},
        {"model.num_query_groups=-4", "must be >= 1"},
        {"training.optimizer.beta1=1", "must be less than 1"},
        {"model.norm_epsilon=0", "must be greater than 0"},
        {"parallel.sp=yes", "must be true or false, not `yes`"},
        {"model.activation=swigluu", "did you mean `swiglu`?"},
        {"model.rope=3", "model.rope must be a block of keys"},
        {"data.train={weight: 2}", "must be a path"},
        {"data.train={path: a, text: b}", "names a second file"},
        {"data.train={path: a, weight: -1}", "greater than 0"},
        {"data.train={file: a}", "has no field `file`"},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++)
        sample_reject(rows[i].message, rows[i].set);
}

/* ---- merging ------------------------------------------------------------ */

static void later_sets_win(void **state)
{
    sample_accept(s, "training.steps=5", "training={steps: 6, seed: 7}",
                  "training.steps=8");

    (void)state;
    assert_int_equal(s.spec->training.steps, 8);
    assert_int_equal(s.spec->training.seed, 7);
    sample_free(&s);
}

static void places_are_kept(void **state)
{
    sample_accept(s, "parallel.tp=2");
    Diag *d = s.diag;

    (void)state;
    assert_string_equal(diag_loc_text(d, spec_loc(s.spec, "parallel.tp")),
                        "--set");
    assert_string_equal(
        diag_loc_text(d, spec_loc(s.spec, "model.hidden_size")),
        "t.yaml:4:16");
    assert_string_equal(diag_loc_text(d, spec_loc(s.spec, "parallel.pp")),
                        "(default)");
    sample_free(&s);
}

/* The text of a file that includes another one written beside it. */
static void write_file(const char *path, const char *text)
{
    Buf b = {0};

    buf_puts(&b, text);
    assert_true(buf_write_file(&b, path));
    buf_free(&b);
}

static void includes(void **state)
{
    char dir[] = "/tmp/megac_include_XXXXXX", base[64], top[64];
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Spec *s;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(base, sizeof base, "%s/base.yaml", dir);
    snprintf(top, sizeof top, "%s/top.yaml", dir);
    write_file(base, sample_text);
    write_file(top, "include: base.yaml\nmodel:\n  num_layers: 6\n");
    s = spec_load(a, d, top, NULL, 0);
    assert_non_null(s);
    assert_int_equal(s->model.num_layers, 6);
    assert_int_equal(s->model.hidden_size, 64);
    write_file(base, "include: top.yaml\n");
    assert_null(spec_load(a, d, top, NULL, 0));
    unlink(base);
    assert_null(spec_load(a, d, top, NULL, 0));
    assert_int_equal(diag_errors(d), 2);
    unlink(top);
    rmdir(dir);
    diag_free(d);
    arena_free(a);
}

static void data_sets(void **state)
{
    sample_accept(s, "data.train=[{path: a, weight: 0.25}, b]");
    const SpecDataList *train = &s.spec->data.train;

    (void)state;
    assert_int_equal(train->n, 2);
    assert_string_equal(train->v[0].path, "a");
    assert_float_equal(train->v[0].weight, 0.25, 0);
    assert_int_equal(train->v[1].kind, DATA_PREFIX);
    assert_float_equal(train->v[1].weight, 1.0, 0);
    sample_free(&s);
    sample_accept(text, "data.train={text: corpus.txt}");
    assert_int_equal(text.spec->data.train.v[0].kind, DATA_TEXT);
    sample_free(&text);
    sample_accept(made, "data.train=synthetic");
    assert_int_equal(made.spec->data.train.v[0].kind, DATA_SYNTHETIC);
    assert_null(made.spec->data.train.v[0].path);
    sample_free(&made);
}

/* 4 MiB and more are no specification. */
static void huge_text(void **state)
{
    size_t n = (4 << 20) + 1;
    char *text = malloc(n + 1);

    (void)state;
    assert_non_null(text);
    memset(text, '#', n);
    text[n] = '\0';
    sample_reject_text(text, (const char *const[]){NULL},
                       "bytes are too many for a specification");
    free(text);
}

static void a_null_block_takes_back(void **state)
{
    sample_accept(s, "model.moe.num_experts=8", "model.moe=null");

    (void)state;
    assert_int_equal(s.spec->model.moe.num_experts, 0);
    sample_free(&s);
}

static void environment(void **state)
{
    (void)state;
    setenv("MEGAC_TEST_TP", "2", 1);
    unsetenv("MEGAC_TEST_NONE");
    sample_accept(s, "parallel.tp=${MEGAC_TEST_TP}",
                  "parallel.pp=${MEGAC_TEST_NONE:-4}",
                  "model.name=a${MEGAC_TEST_TP}$${b}");
    assert_int_equal(s.spec->parallel.tp, 2);
    assert_int_equal(s.spec->parallel.pp, 4);
    assert_string_equal(s.spec->model.name, "a2${b}");
    sample_free(&s);
    sample_reject("no variable `MEGAC_TEST_NONE`",
                  "parallel.pp=${MEGAC_TEST_NONE}");
    sample_reject("without a closing `}`", "parallel.pp=${MEGAC_TEST_TP");
}

/* ---- names -------------------------------------------------------------- */

static void megatron_names(void **state)
{
    sample_accept(s, "parallel.tensor_model_parallel_size=2",
                  "model.normalization=LayerNorm",
                  "model.untie_embeddings_and_output_weights=false",
                  "model.use_rope_scaling=true", "training.lr=1e-2",
                  "training.optimizer=sgd", "model.squared_relu=true");

    (void)state;
    assert_int_equal(s.spec->parallel.tp, 2);
    assert_int_equal(s.spec->model.normalization, NORM_LAYERNORM);
    assert_true(s.spec->model.tie_embeddings);
    assert_int_equal(s.spec->model.rope.scaling.type, ROPE_LLAMA3);
    assert_true(s.spec->training.optimizer.lr > 9e-3);
    assert_int_equal(s.spec->training.optimizer.type, OPT_SGD);
    assert_int_equal(s.spec->model.activation, ACT_RELU2);
    sample_free(&s);
    sample_reject("`bf16` can only be true here", "training.bf16=false");
}

static void wrong_keys(void **state)
{
    static const struct {
        const char *set, *message;
    } rows[] = {
        {"parallel.tensor_paralell=2", "did you mean `tp`?"},
        {"model.hiden_size=4", "did you mean `hidden_size`?"},
        {"model.intermediate_size=4", "did you mean `ffn_hidden_size`?"},
        {"modle.num_layers=4", "no key `modle` at the top level"},
        {"model.lr=1e-3", "belongs under `training.optimizer`, as `lr`"},
        {"tp=2", "it belongs under `parallel`, as `tp`"},
        {"model.rop.base=2", "did you mean `rope`?"},
        {"model.xyzzy=2", "`model` has no key `xyzzy`"},
        {"parallel", "--set takes KEY=VALUE"},
        {"=3", "--set takes KEY=VALUE"},
        {".=3", "no key `` at the top level"},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++)
        sample_reject(rows[i].message, rows[i].set);
}

/* ---- derived ------------------------------------------------------------ */

/* 8h/3 down to 64: int(4*512*2/3/64)*64 = 1344; 4*512 = 2048. */
static void derived_sizes(void **state)
{
    sample_accept(s, "model.ffn_hidden_size=null", "model.hidden_size=512",
                  "model.num_query_groups=null");

    (void)state;
    assert_int_equal(s.spec->model.ffn_hidden_size, 1344);
    assert_int_equal(s.spec->model.kv_channels, 64);
    assert_int_equal(s.spec->model.num_query_groups, 8);
    assert_int_equal(s.spec->model.max_position_embeddings, 32);
    assert_int_equal(s.spec->training.lr_schedule.decay_steps, 1000);
    sample_free(&s);
    sample_accept(g, "model.ffn_hidden_size=null", "model.activation=gelu");
    assert_int_equal(g.spec->model.ffn_hidden_size, 256);
    sample_free(&g);
}

/* Multiples of 128*tp. (MC-76: hpcaitech/ColossalAI#6167) */
static void padded_vocabulary(void **state)
{
    static const struct {
        int vocab, tp, divisor, padded;
    } rows[] = {{50257, 1, 128, 50304},  {50257, 2, 128, 50432},
                {50257, 8, 128, 51200},  {151669, 4, 128, 152064},
                {102400, 8, 128, 102400}, {65535, 2, 1, 65536}};
    sample_accept(odd, "model.vocab_size=129280", "parallel.tp=24",
                  "model.num_attention_heads=24", "model.num_query_groups=24",
                  "model.kv_channels=8", "model.ffn_hidden_size=48");

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        char vocab[64], tp[64], divisor[64];
        snprintf(vocab, sizeof vocab, "model.vocab_size=%d", rows[i].vocab);
        snprintf(tp, sizeof tp, "parallel.tp=%d", rows[i].tp);
        snprintf(divisor, sizeof divisor, "model.vocab_divisor=%d",
                 rows[i].divisor);
        sample_accept(s, vocab, tp, divisor);
        assert_int_equal(s.spec->derived.padded_vocab, rows[i].padded);
        sample_free(&s);
    }
    assert_int_equal(odd.spec->derived.padded_vocab, 132096);
    sample_free(&odd);
}

/* The batch does not depend on the layout. (MC-47: Oneflow-Inc/libai#345) */
static void batch_and_layout(void **state)
{
    sample_accept(dp, "parallel.world_size=2");
    sample_accept(tp, "parallel.world_size=2", "parallel.tp=2");

    (void)state;
    assert_int_equal(dp.spec->parallel.dp, 2);
    assert_int_equal(dp.spec->training.global_batch_size, 8);
    assert_int_equal(dp.spec->derived.microbatches, 4);
    assert_int_equal(tp.spec->parallel.dp, 1);
    assert_int_equal(tp.spec->training.global_batch_size, 8);
    assert_int_equal(tp.spec->derived.microbatches, 8);
    sample_free(&dp);
    sample_free(&tp);
    sample_accept(m, "training.global_batch_size=null", "parallel.dp=3",
                  "training.micro_batch_size=2");
    assert_int_equal(m.spec->training.global_batch_size, 6);
    assert_int_equal(m.spec->parallel.world_size, 3);
    sample_free(&m);
}

static void schedule_auto(void **state)
{
    sample_accept(s, "parallel.pp=2");

    (void)state;
    assert_int_equal(s.spec->parallel.schedule, SCHED_1F1B);
    sample_free(&s);
}

/* ---- rules -------------------------------------------------------------- */

#define MAX_SETS 6

static void rules(void **state)
{
    static const struct {
        const char *message;
        const char *sets[MAX_SETS];
    } rows[] = {
        {"num_attention_heads = 32 is not a multiple of num_query_groups = 5",
         {"model.num_attention_heads=32", "model.num_query_groups=5",
          "model.kv_channels=4"}},
        {"num_query_groups = 6 is neither a multiple nor a divisor of tp = 4",
         {"model.num_attention_heads=12", "model.num_query_groups=6",
          "model.kv_channels=4", "parallel.tp=4"}},
        {"num_attention_heads = 8 is not a multiple of tp = 16",
         {"parallel.tp=16"}},
        {"ffn_hidden_size = 100 is not a multiple of tp = 8",
         {"model.ffn_hidden_size=100", "parallel.tp=8"}},
        {"hidden_size = 65 is not a multiple of num_attention_heads = 8",
         {"model.hidden_size=65"}},
        {"seq_length = 64 exceeds max_position_embeddings = 32",
         {"training.seq_length=64", "model.max_position_embeddings=32"}},
        {"RoPE rotates pairs", {"model.kv_channels=7"}},
        {"seq_length / cp = 30 / 1 is not a multiple of tp = 4",
         {"training.seq_length=30", "parallel.tp=4", "parallel.sp=true"}},
        {"seq_length / cp = 1000 / 4 is not a multiple of tp = 4",
         {"training.seq_length=1000", "parallel.tp=4", "parallel.sp=true",
          "parallel.cp=4"}},
        {"seq_length = 36 is not a multiple of 2*cp = 8",
         {"training.seq_length=36", "parallel.cp=4"}},
        {"world_size = 4 is not a multiple of etp*ep*pp = 1*4*2 = 8",
         {"parallel.world_size=4", "parallel.pp=2", "parallel.ep=4",
          "parallel.etp=1", "model.moe.num_experts=8"}},
        {"world_size = 6 is not a multiple of tp*pp*cp = 4*1*1 = 4",
         {"parallel.world_size=6", "parallel.tp=4"}},
        {"world_size = 8, but tp*pp*cp*ep*dp = 2*1*1*1*2 = 4",
         {"parallel.world_size=8", "parallel.tp=2", "parallel.dp=2"}},
        {"is more than 1048576 ranks",
         {"parallel.tp=8", "parallel.pp=4", "parallel.dp=65536"}},
        {"global_batch_size = 8 is not a multiple of micro_batch_size*dp = "
         "3*1 = 3",
         {"training.micro_batch_size=3"}},
        {"global_batch_size = 8 is not a multiple of micro_batch_size*dp = "
         "1*3 = 3",
         {"parallel.dp=3"}},
        {"min_lr = 0.5 exceeds lr = 0.1",
         {"training.optimizer.lr=0.1", "training.optimizer.min_lr=0.5"}},
        {"decay_steps = 10 must be greater than warmup_steps = 10",
         {"training.lr_schedule.warmup_steps=10",
          "training.lr_schedule.decay_steps=10"}},
        {"style = wsd needs wsd_decay_steps",
         {"training.lr_schedule.style=wsd"}},
        {"wsd_decay_steps = 2000 do not fit",
         {"training.lr_schedule.style=wsd",
          "training.lr_schedule.wsd_decay_steps=2000"}},
        {"model.moe.top_k needs model.moe.num_experts",
         {"model.moe.top_k=4"}},
        {"low_freq_factor = 4 must be less than high_freq_factor = 4",
         {"model.rope.scaling={type: llama3, low_freq_factor: 4}"}},
        {"number 1 of data.train is .bin/.idx files and number 2 is synthetic",
         {"data.train=[a, synthetic]"}},
        {"number 3 is a text file", {"data.train=[a, b, {text: c}]"}},
        {"arch = avx is no CUDA architecture",
         {"target.backend=cuda", "target.arch=avx"}},
        {"set target.backend to cuda", {"target.arch=sm_80"}},
        {"schedule = gpipe runs one chunk per rank, but vpp = 2",
         {"parallel.schedule=gpipe", "parallel.vpp=2", "parallel.pp=2"}},
        {"vpp = 2 chunks per rank need pp > 1", {"parallel.vpp=2"}},
        {"schedule = zb-h1 runs one chunk per rank, but vpp = 2",
         {"parallel.schedule=zb-h1", "parallel.vpp=2", "parallel.pp=2"}},
        {"schedule = zb-v runs two chunks per rank, but vpp = 4",
         {"parallel.schedule=zb-v", "parallel.vpp=4", "parallel.pp=2",
          "model.num_layers=8"}},
        {"schedule = dualpipe-v needs 2*pp = 8 microbatches, but a step has 4",
         {"parallel.schedule=dualpipe-v", "parallel.pp=4",
          "model.num_layers=8", "training.global_batch_size=4"}},
        {"the interleaved schedule needs vpp > 1",
         {"parallel.schedule=interleaved", "parallel.pp=2"}},
        {"model.ffn_hidden_size",
         {"model.ffn_hidden_size=null", "model.hidden_size=16"}},
        {"give ffn_hidden_size",
         {"model.ffn_hidden_size=null", "model.hidden_size=16"}},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++)
        sample_reject_text(sample_text, rows[i].sets, rows[i].message);
}

/* What is not built yet is rejected by its name, never ignored. */
static void not_built_yet(void **state)
{
    static const struct {
        const char *message, *set;
    } rows[] = {
        {"fp8 training", "training.precision=fp8"},
        {"yarn scaling of RoPE", "model.rope.scaling.type=yarn"},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++)
        sample_reject(rows[i].message, rows[i].set);
}

static void expect_fixed(const char *set, bool changes)
{
    const char *const none[] = {NULL}, *const sets[] = {set, NULL};
    Sample a = sample_parse_text(sample_text, none);
    Sample b = sample_parse_text(sample_text, sets);
    Buf was = {0}, is = {0};

    assert_non_null(b.spec);
    spec_print_fixed(a.spec, &was);
    spec_print_fixed(b.spec, &is);
    if ((strcmp(buf_str(&was), buf_str(&is)) != 0) != changes)
        fail_msg("%s: %s", set, changes ? "nothing changed" : "a change");
    buf_free(&was);
    buf_free(&is);
    sample_free(&a);
    sample_free(&b);
}

/* The model may not change when a run is resumed, how it is trained may. */
static void what_a_resume_may_change(void **state)
{
    static const char *const fixed[] = {
        "model.num_layers=6", "model.norm_epsilon=1e-6",
        "training.optimizer.type=sgd", "model.tie_embeddings=true",
        "data.train=other",
    };
    static const char *const free[] = {
        "model.name=other", "model.hidden_dropout=0.1", "parallel.tp=2",
        "training.steps=7", "training.precision=fp32",
        "training.optimizer.lr=1e-5", "training.checkpoint.dir=ck",
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(fixed); i++)
        expect_fixed(fixed[i], true);
    for (size_t i = 0; i < MC_LEN(free); i++)
        expect_fixed(free[i], false);
}

static void expect_warning(const char *message, const char *const *sets)
{
    Sample s = sample_parse_text(sample_text, sets);

    assert_non_null(s.spec);
    assert_non_null(strstr(s.shown, message));
    sample_free(&s);
}

static void warnings(void **state)
{
    (void)state;
    expect_warning("interval = 5 has no effect with dir = null",
                   (const char *const[]){"training.checkpoint.interval=5",
                                         NULL});
    expect_warning("sp has no effect with tp = 1",
                   (const char *const[]){"parallel.sp=true", NULL});
    expect_warning("minimum reached 22 steps before the end",
                   (const char *const[]){"training.steps=220",
                                         "training.lr_schedule.decay_steps=198",
                                         NULL});
    expect_warning("decay_steps has no effect with style = constant",
                   (const char *const[]){"training.lr_schedule.style=constant",
                                         "training.lr_schedule.decay_steps=9",
                                         NULL});
    expect_warning("beta2 = 0.5 has no effect with type = sgd",
                   (const char *const[]){"training.optimizer.type=sgd",
                                         "training.optimizer.beta2=0.5", NULL});
}

static void no_effect_is_taken_back(void **state)
{
    sample_accept(s, "training.optimizer={type: sgd, beta2: 0.5}",
                  "parallel.sp=true");

    (void)state;
    assert_true(s.spec->training.optimizer.beta2 > 0.9);
    assert_false(s.spec->parallel.sp);
    sample_free(&s);
}

static void required_keys(void **state)
{
    (void)state;
    sample_reject_text("model: {num_layers: 2}\n", (const char *const[]){NULL},
                       "t.yaml: error: model.vocab_size is required");
    sample_reject_text("", (const char *const[]){NULL},
                       "model.num_layers is required");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_without_a_dot),
        cmocka_unit_test(numbers_in_any_locale),
        cmocka_unit_test(integers),
        cmocka_unit_test(wrong_types),
        cmocka_unit_test(later_sets_win),
        cmocka_unit_test(places_are_kept),
        cmocka_unit_test(includes),
        cmocka_unit_test(data_sets),
        cmocka_unit_test(huge_text),
        cmocka_unit_test(a_null_block_takes_back),
        cmocka_unit_test(environment),
        cmocka_unit_test(megatron_names),
        cmocka_unit_test(wrong_keys),
        cmocka_unit_test(derived_sizes),
        cmocka_unit_test(padded_vocabulary),
        cmocka_unit_test(batch_and_layout),
        cmocka_unit_test(schedule_auto),
        cmocka_unit_test(rules),
        cmocka_unit_test(not_built_yet),
        cmocka_unit_test(what_a_resume_may_change),
        cmocka_unit_test(warnings),
        cmocka_unit_test(no_effect_is_taken_back),
        cmocka_unit_test(required_keys),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
