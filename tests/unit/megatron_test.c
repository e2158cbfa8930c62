/* megatron_test.c - Megatron-LM's command lines: the table against Megatron's
 * parser, what each flag becomes, what is refused, whole commands.
 *
 * tests/data/megatron/flags.txt has the names of all 840 flags of Megatron-LM
 * (with their second spellings) and how many values each takes: 0, 1, + or *;
 * ? where that was not recorded.  The commands beside it have the values of
 * Megatron-LM's own examples (its README, examples/gpt3, llama, mixtral,
 * post_training/modelopt/conf/qwen).
 */
#include "frontend/megatron.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static const char *root_path(Arena *a, const char *name)
{
    const char *slash = strstr(__FILE__, "tests/unit");

    return arena_printf(a, "%.*s%s", (int)(slash - __FILE__), __FILE__, name);
}

static void read_near(Arena *a, const char *name, Buf *out)
{
    if (!buf_read_file(out, root_path(a, name)))
        fail_msg("cannot read %s", name);
}

/* ---- the table ----------------------------------------------------------- */

static bool args_match(char recorded, FlagArgs args)
{
    switch (recorded) {
    case '0':
        return args == ARGS_NONE;
    case '1':
        return args == ARGS_ONE;
    case '+':
        return args == ARGS_LIST;
    default:
        return args == ARGS_LIST || args == ARGS_ANY;
    }
}

static void every_flag_is_known(void **state)
{
    Arena *a = arena_new();
    Buf text = {0};
    char name[128], args;
    int count = 0, used;

    (void)state;
    read_near(a, "tests/data/megatron/flags.txt", &text);
    for (const char *at = buf_str(&text);
         sscanf(at, "%127s %c %n", name, &args, &used) == 2; at += used) {
        const FlagRow *row = flag_find(name);
        if (!row)
            fail_msg("--%s is not in the table", name);
        if (!args_match(args, row->args))
            fail_msg("--%s takes %c values", name, args);
        count++;
    }
    assert_int_equal(count, 865);
    buf_free(&text);
    arena_free(a);
}

static void rows_are_sound(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < flag_num_rows; i++) {
        const FlagRow *row = &flag_rows[i];
        const char *cursor = row->names;
        Spelling s;
        char name[128];
        while (spelling_next(&cursor, &s)) {
            snprintf(name, sizeof name, "%.*s", s.len, s.text);
            if (flag_find(name) != row)
                fail_msg("--%s stands twice", name);
        }
        if (row->path && !schema_key(row->path))
            fail_msg("%s is no key", row->path);
    }
    for (uint32_t i = 0; i < flag_num_defaults; i++)
        assert_non_null(schema_key(flag_defaults[i].path));
}

/* schema.def knows Megatron's names as keys of the YAML: the same there. */
static void names_are_those_of_the_schema(void **state)
{
    int shared = 0;

    (void)state;
    for (uint32_t i = 0; i < schema_num_keys; i++) {
        const char *cursor = schema_keys[i].names;
        Spelling s;
        while (spelling_next(&cursor, &s)) {
            char name[128];
            const FlagRow *row;
            snprintf(name, sizeof name, "%.*s", s.len, s.text);
            for (char *c = name; *c; c++)
                *c = *c == '_' ? '-' : *c;
            row = s.hint ? NULL : flag_find(name);
            if (!row || !row->path)
                continue;
            assert_string_equal(row->path, schema_keys[i].path);
            if (s.word && row->word)
                assert_memory_equal(row->word, s.word, (size_t)s.word_len);
            shared++;
        }
    }
    assert_true(shared > 80);
}

static void page_is_current(void **state)
{
    Arena *a = arena_new();
    Buf got = {0}, want = {0};

    (void)state;
    megatron_markdown(&got);
    if (getenv("MEGAC_REFRESH"))
        assert_true(buf_write_file(&got, root_path(a, "docs/MEGATRON.md")));
    read_near(a, "docs/MEGATRON.md", &want);
    assert_string_equal(buf_str(&got), buf_str(&want));
    buf_free(&got);
    buf_free(&want);
    arena_free(a);
}

/* ---- importing ----------------------------------------------------------- */

typedef struct {
    Arena *arena;
    Diag *diag;
    Spec *spec;
    char *shown; /* what diag_print printed */
} Imported;

static void show(Imported *in)
{
    size_t len;
    FILE *to = open_memstream(&in->shown, &len);

    diag_print(in->diag, to);
    fclose(to);
}

static Imported import_text(const char *text)
{
    Imported in = {.arena = arena_new()};

    in.diag = diag_new(in.arena);
    in.spec = spec_import_megatron(in.arena, in.diag, text);
    show(&in);
    return in;
}

static void import_free(Imported *in)
{
    diag_free(in->diag);
    arena_free(in->arena);
    free(in->shown);
}

/* A small model; what a test is about stands behind it. */
#define BASE                                                                   \
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 8 "              \
    "--hidden-size 64 --num-attention-heads 8 --vocab-size 1000 "              \
    "--seq-length 64 --max-position-embeddings 128 --micro-batch-size 1 "      \
    "--global-batch-size 64 --lr 1e-3 "

static void expect_key(const Imported *in, const char *path, const char *want)
{
    Buf got = {0};

    value_print(schema_key(path), in->spec, &got);
    if (strcmp(buf_str(&got), want) != 0)
        fail_msg("%s = %s, not %s", path, buf_str(&got), want);
    buf_free(&got);
}

typedef struct {
    const char *flags, *path, *value;
} Becomes;

static void expect_becomes(const char *base, const Becomes *row)
{
    Buf text = {0};
    Imported in;

    buf_printf(&text, "%s%s", base, row->flags);
    in = import_text(buf_str(&text));
    if (!in.spec)
        fail_msg("%s\n%s", row->flags, in.shown);
    expect_key(&in, row->path, row->value);
    import_free(&in);
    buf_free(&text);
}

/* Megatron's defaults, from `pretrain_gpt.py --help`, where megac has others;
 * the rest of the table is what the flags say. */
static void flags_become_keys(void **state)
{
    static const Becomes rows[] = {
        {"", "model.normalization", "layernorm"},
        {"", "model.activation", "gelu_tanh"},
        {"", "model.position_embedding", "learned"},
        {"", "model.tie_embeddings", "true"},
        {"", "model.linear_bias", "true"},
        {"", "model.qkv_bias", "true"},
        {"", "model.attention_dropout", "0.1"},
        {"", "model.hidden_dropout", "0.1"},
        {"", "model.ffn_hidden_size", "256"},
        {"", "model.num_query_groups", "8"},
        {"", "parallel.world_size", "8"},
        {"", "parallel.overlap.grads", "false"},
        {"", "training.precision", "fp32"},
        {"", "training.optimizer.type", "adamw"},
        {"", "training.optimizer.beta2", "0.999"},
        {"", "training.optimizer.weight_decay", "0.01"},
        {"", "training.optimizer.clip_grad", "1"},
        {"", "training.lr_schedule.style", "linear"},
        {"", "training.log.interval", "100"},
        {"", "training.seed", "1234"},
        {"--num-experts 8", "model.moe.dispatcher", "allgather"},
        {"--optimizer sgd", "training.optimizer.momentum", "0.9"},
        {"--data-path text", "data.split", "\"969,30,1\""},
        {"--normalization RMSNorm", "model.normalization", "rmsnorm"},
        {"--swiglu", "model.activation", "swiglu"},
        {"--swiglu", "model.ffn_hidden_size", "128"},
        {"--squared-relu", "model.activation", "relu2"},
        {"--no-bias-gelu-fusion", "model.activation", "gelu"},
        {"--disable-bias-linear", "model.activation", "gelu"},
        {"--disable-bias-linear --openai-gelu", "model.activation",
         "gelu_tanh"},
        {"--disable-bias-linear", "model.linear_bias", "false"},
        {"--disable-bias-linear", "model.qkv_bias", "false"},
        {"--disable-bias-linear --add-qkv-bias", "model.qkv_bias", "true"},
        {"--group-query-attention --num-query-groups 2",
         "model.num_query_groups", "2"},
        {"--group-query-attention", "model.num_query_groups", "1"},
        {"--num-query-groups 2", "model.num_query_groups", "8"},
        {"--untie-embeddings-and-output-weights", "model.tie_embeddings",
         "false"},
        {"--position-embedding-type none", "model.position_embedding", "none"},
        {"--position-embedding-type rope --no-position-embedding",
         "model.position_embedding", "rope"},
        {"--use-rotary-position-embeddings --rotary-base 500000",
         "model.rope.base", "500000"},
        {"--position-embedding-type rope --rotary-percent 0.5",
         "model.rope.percent", "0.5"},
        {"--position-embedding-type rope --use-rope-scaling",
         "model.rope.scaling.type", "llama3"},
        {"--position-embedding-type rope --use-rope-scaling",
         "model.rope.scaling.factor", "8"},
        {"--position-embedding-type rope --use-rope-scaling "
         "--rope-scaling-factor 32",
         "model.rope.scaling.factor", "32"},
        {"--position-embedding-type rope "
         "--rotary-seq-len-interpolation-factor 4",
         "model.rope.scaling.type", "linear"},
        {"--position-embedding-type rope "
         "--rotary-seq-len-interpolation-factor 4",
         "model.rope.scaling.factor", "4"},
        {"--window-size (31,0)", "model.sliding_window", "32"},
        {"--window-size 31,0", "model.sliding_window", "32"},
        {"--qk-layernorm", "model.qk_norm", "true"},
        {"--init-method-std=0.006", "model.init_std", "0.006"},
        {"--padded-vocab-size 1024 --tensor-model-parallel-size 2",
         "model.vocab_divisor", "512"},
        {"--no-pad-vocab-size", "model.vocab_divisor", "1"},
        {"--make-vocab-size-divisible-by 64", "model.vocab_divisor", "64"},
        {"--num-experts 8 --moe-router-topk 4", "model.moe.top_k", "4"},
        {"--num-experts 8 --moe-token-dispatcher-type flex",
         "model.moe.dispatcher", "alltoall"},
        {"--num-experts 8 --moe-layer-freq ([0]*2+[1]*6)",
         "model.moe.layer_freq", "[0, 0, 1, 1, 1, 1, 1, 1]"},
        {"--num-experts 8 --moe-aux-loss-coeff 1e-2",
         "model.moe.aux_loss_coeff", "0.01"},
        {"--num-experts 8 --moe-router-load-balancing-type seq_aux_loss",
         "model.moe.balance", "seq_aux_loss"},
        {"--tensor-model-parallel-size 2 --sequence-parallel", "parallel.sp",
         "true"},
        {"--pipeline-model-parallel-size 2 "
         "--num-layers-per-virtual-pipeline-stage 1",
         "parallel.vpp", "4"},
        {"--pipeline-model-parallel-size 2 "
         "--num-virtual-stages-per-pipeline-rank 2",
         "parallel.vpp", "2"},
        {"--pipeline-model-parallel-size 4 "
         "--pipeline-model-parallel-layout Et|(tt|)*2,t*3L",
         "parallel.pp_layout", "\"Et|(tt|)*2,t*3L\""},
        {"--context-parallel-size 2 --cp-comm-type a2a", "parallel.cp_comm",
         "[a2a]"},
        {"--context-parallel-size 4 --cp-comm-type a2a+p2p "
         "--hierarchical-context-parallel-sizes 2 2",
         "parallel.cp_sizes", "[2, 2]"},
        {"--use-tp-pp-dp-mapping", "parallel.order", "tp-cp-ep-pp-dp"},
        {"--use-distributed-optimizer", "parallel.sharding", "optim"},
        {"--use-megatron-fsdp", "parallel.sharding", "optim_grads_params"},
        {"--use-megatron-fsdp --use-distributed-optimizer "
         "--data-parallel-sharding-strategy optim_grads",
         "parallel.sharding", "optim_grads"},
        {"--data-parallel-sharding-strategy optim_grads", "parallel.sharding",
         "no_shard"},
        {"--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward",
         "parallel.sharding", "optim_grads"},
        {"--overlap-grad-reduce", "parallel.overlap.grads", "true"},
        {"--no-overlap-p2p-communication", "parallel.overlap.p2p", "false"},
        {"--bf16", "training.precision", "bf16"},
        {"--bf16 --grad-reduce-in-bf16", "training.grad_dtype", "bf16"},
        {"--fp16 --loss-scale 1024", "training.loss_scale", "1024"},
        {"--fp16 --initial-loss-scale 4294967296 --hysteresis 2",
         "training.loss_scale", "dynamic"},
        {"--no-decoupled-weight-decay", "training.optimizer.type", "adam"},
        {"--lr-decay-style inverse-square-root --lr-warmup-iters 2",
         "training.lr_schedule.style", "inverse_sqrt"},
        {"--lr-decay-style WSD --lr-wsd-decay-iters 5 "
         "--lr-wsd-decay-style linear",
         "training.lr_schedule.wsd_decay_style", "linear"},
        {"--train-samples 6401", "training.steps", "100"},
        {"--train-iters 50 --lr-warmup-fraction 0.1",
         "training.lr_schedule.warmup_steps", "5"},
        {"--train-iters 50 --lr-decay-iters 40 --lr-warmup-fraction 0.1",
         "training.lr_schedule.warmup_steps", "4"},
        {"--train-samples 6400 --lr-decay-samples 3200 --lr-warmup-samples 640",
         "training.lr_schedule.decay_steps", "50"},
        {"--train-samples 6400 --lr-decay-samples 3200 --lr-warmup-samples 640",
         "training.lr_schedule.warmup_steps", "10"},
        /* A batch of 8 grows by 8 after every 448/7 = 64 samples: 8 steps of
         * 8, 4 of 16, 3 of 24, 2 of 32, 2 of 40, then 48, 56 and 64 are 22
         * steps and 512 samples; 9 batches of 64 are in the other 600. */
        {"--rampup-batch-size 8 8 448 --train-samples 1112", "training.steps",
         "31"},
        /* 2^20 steps of 8 up to 2^23 samples, one batch of 16 at that point,
         * 10 of 16 in the last 160. */
        {"--global-batch-size 16 --rampup-batch-size 8 8 8388608 "
         "--train-samples 8388784", "training.steps", "1048587"},
        {"--recompute-activations", "training.recompute.granularity",
         "selective"},
        {"--recompute-granularity full --recompute-method block "
         "--recompute-num-layers 3",
         "training.recompute.num_layers", "3"},
        {"--recompute-granularity selective --recompute-modules core_attn mlp",
         "training.recompute.modules", "[core_attn, mlp]"},
        {"--num-experts 8 --moe-layer-recompute", "training.recompute.modules",
         "[core_attn, moe]"},
        {"--optimizer-cpu-offload", "training.offload.optimizer", "1"},
        {"--optimizer-cpu-offload --optimizer-offload-fraction 0.5",
         "training.offload.optimizer", "0.5"},
        {"--fine-grained-activation-offloading --offload-modules core_attn",
         "training.offload.activations", "[core_attn]"},
        {"--eval-interval 10 --eval-iters 0 --mock-data",
         "training.eval.interval", "0"},
        {"--eval-interval 10 --mock-data", "training.eval.steps", "100"},
        {"--eval-interval 10 --mock-data", "data.valid", "[synthetic]"},
        {"--eval-interval 10", "data.valid", "[synthetic]"},
        {"--eval-interval 10 --data-path text --split 100,0,0",
         "training.eval.interval", "0"},
        {"--eval-interval 10 --train-data-path text",
         "training.eval.interval", "0"},
        {"--train-iters 50 --lr-warmup-fraction 0.1 --lr-warmup-iters 0",
         "training.lr_schedule.warmup_steps", "5"},
        {"--train-iters 50 --lr-warmup-samples 0 --lr-warmup-iters 3",
         "training.lr_schedule.warmup_steps", "3"},
        {"--data-path text --split 9,1,0", "data.split", "\"9,1,0\""},
        {"--data-path 0.25 a 3 b", "data.train",
         "[{path: a, weight: 0.25}, {path: b, weight: 3}]"},
        {"--train-data-path a --valid-data-path b --eval-interval 5",
         "data.valid", "[{path: b}]"},
        /* Words of YAML are none of a command line. */
        {"--data-path synthetic", "data.train", "[{path: synthetic}]"},
        {"--data-path null", "data.train", "[{path: \"null\"}]"},
        {"--data-path 1 synthetic 2 null", "data.train",
         "[{path: synthetic}, {path: \"null\", weight: 2}]"},
        {"--save null", "training.checkpoint.dir", "\"null\""},
        {"--save ~", "training.checkpoint.dir", "\"~\""},
        {"--save ck --save-interval 50", "training.checkpoint.interval", "50"},
        {"--save ck", "training.checkpoint.async", "false"},
        {"--save ck --async-save", "training.checkpoint.async", "true"},
        {"--save ck", "training.checkpoint.keep", "1048576"},
        {"--seed 7", "training.seed", "7"},
        {"--seed 7 --seed 8", "training.seed", "8"},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++)
        expect_becomes(BASE, &rows[i]);
}

/* ---- refusals ------------------------------------------------------------ */

typedef struct {
    const char *flags, *words[3]; /* all must be printed */
    bool accepted;                /* with a warning */
} Message;

static void expect_message(const Message *row)
{
    Buf text = {0};
    Imported in;

    buf_printf(&text, "%s%s", BASE, row->flags);
    in = import_text(buf_str(&text));
    for (size_t i = 0; i < MC_LEN(row->words) && row->words[i]; i++)
        if (!strstr(in.shown, row->words[i]))
            fail_msg("%s: no `%s` in\n%s", row->flags, row->words[i],
                     in.shown);
    assert_int_equal(in.spec != NULL, row->accepted);
    import_free(&in);
    buf_free(&text);
}

static void mistakes_are_named(void **state)
{
    static const Message rows[] = {
        {"--tensor-model-paralel-size 2",
         {"no flag `--tensor-model-paralel-size`",
          "did you mean `--tensor-model-parallel-size`?"}, false},
        {"--tensor-model 2", {"did you mean `--tensor-model-parallel-size`?"},
         false},
        {"--hidden_size 8", {"did you mean `--hidden-size`?"}, false},
        {"--zzzzzzzz", {"no flag `--zzzzzzzz`"}, false},
        {"--train-iters", {"--train-iters takes a value"}, false},
        {"--train-iters --bf16", {"--train-iters takes a value"}, false},
        {"--bf16=true", {"--bf16 takes no value"}, false},
        {"--bf16 true", {"`true` belongs to no flag"}, false},
        {"--cp-comm-type --bf16", {"--cp-comm-type takes one value or more"},
         false},
        {"--train-iters ten", {"training.steps must be an integer, not `ten`"},
         false},
        {"--rampup-batch-size 8 8",
         {"expected [start, increment, samples]"}, false},
        {"--decoupled-lr 5e-4 --fp8-format hybrid",
         {"--decoupled-lr 5e-4: embedding and output layer train with --lr",
          "--fp8-format hybrid: fp8 training is not built"}, false},
        {"--position-embedding-type yarn",
         {"--position-embedding-type yarn: megac has learned_absolute"}, false},
        {"--no-position-embedding", {"use --position-embedding-type none"},
         false},
        {"--optimizer muon", {"--optimizer muon: megac has adam and sgd"},
         false},
        {"--multi-latent-attention",
         {"--multi-latent-attention: multi-latent attention is not built"},
         false},
        /* as the scripts of DeepSeek-V3 have them */
        {"--multi-latent-attention --q-lora-rank 1536 --mtp-num-layers 1",
         {"--q-lora-rank 1536: multi-latent attention is not built",
          "--mtp-num-layers 1: multi-token prediction is not built"}, false},
        {"--fp16 --fp16-lm-cross-entropy",
         {"--fp16-lm-cross-entropy: the loss is computed in fp32"}, false},
        {"--batch-size 8", {"use --micro-batch-size"}, false},
        {"--exp-avg-dtype bf16", {"--exp-avg-dtype bf16: masters"}, false},
        {"--hysteresis 3", {"--hysteresis 3: the second step in a row"}, false},
        {"--window-size (3,3)", {"expected (LEFT, 0)"}, false},
        {"--data-path a b", {"several data sets take a weight each"}, false},
        {"--mock-data --data-path a", {"data.train is given twice"}, false},
        {"--lr-warmup-fraction 0.1 --lr-warmup-iters 7",
         {"training.lr_schedule.warmup_steps is given twice"}, false},
        {"--lr-warmup-fraction 2", {"expected a number from 0 to 1"}, false},
        {"--data-path 1 a b", {"several data sets take a weight each"}, false},
        {"--bf16 --fp16", {"training.precision is given twice"}, false},
        {"--use-rope-scaling --rotary-seq-len-interpolation-factor 2",
         {"model.rope.scaling.type is given twice"}, false},
        {"--moe-aux-loss-coeff 0.1 0.2", {"megac takes one value"}, false},
        {"--padded-vocab-size 1001 --tensor-model-parallel-size 2",
         {"--padded-vocab-size 1001: not a multiple"}, false},
        {"--padded-vocab-size 900",
         {"--padded-vocab-size 900: smaller than --vocab-size"}, false},
        {"--num-layers-per-virtual-pipeline-stage 3 "
         "--pipeline-model-parallel-size 2",
         {"num_layers = 8 over pp = 2"}, false},
        {"--num-attention-heads 6 --tensor-model-parallel-size 4",
         {"--megatron:1:", "num_attention_heads = 6 is not a multiple of tp"},
         false},
        {"| tee log", {"`|` is for a shell"}, false},
        {"2>&1", {"`2>&1` is for a shell"}, false},
        {"--seed $(date)", {"`$(…)` is for a shell"}, false},
        {"--seed `date`", {"backquotes are for a shell"}, false},
        {"--seed $MEGAC_NO_SUCH", {"no variable `MEGAC_NO_SUCH`"}, false},
        {"--data-path \xff", {"a character that YAML cannot hold"}, false},
        {"--data-path \xc2\x80", {"a character that YAML cannot hold"}, false},
        {"--seed '7", {"a quote that is not closed"}, false},
        {"--num-query-groups 2",
         {"--num-query-groups has no effect without --group-query-attention"},
         true},
        {"--train-iters 10 --train-iters 20",
         {"--train-iters is given twice: the last one counts"}, true},
        {"--train-samples 6400 --lr-warmup-samples 100",
         {"100 is 1.56 steps: warmup_steps = 2"}, true},
        {"--tensorboard-dir x --no-masked-softmax-fusion --log-throughput",
         {"3 flags make no difference here",
          "metrics.jsonl: --tensorboard-dir --log-throughput",
          "computed: --no-masked-softmax-fusion"}, true},
        {"", {"--train-iters is not given: steps = 1000"}, true},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++)
        expect_message(&rows[i]);
}

static void what_is_missing_is_named(void **state)
{
    Imported in = import_text("--hidden-size 64");

    (void)state;
    assert_null(in.spec);
    assert_non_null(strstr(in.shown, "--num-layers is required"));
    assert_non_null(strstr(in.shown, "--vocab-size is required"));
    assert_non_null(strstr(in.shown, "--seq-length is required"));
    assert_non_null(strstr(in.shown, "the number of ranks is not given"));
    import_free(&in);
    in = import_text("torchrun --nproc-per-node gpu pretrain_gpt.py");
    assert_null(in.spec);
    assert_non_null(strstr(in.shown, "--nproc-per-node takes a number here"));
    import_free(&in);
}

/* ---- the launcher -------------------------------------------------------- */

#define SMALL                                                                  \
    " --num-layers 8 --hidden-size 64 --num-attention-heads 8 --vocab-size "   \
    "1000 --seq-length 64 --max-position-embeddings 128"

/* Of torchrun's options too the last ones count: 2 nodes of 4 are 8. */
static void the_launcher_says_how_many_ranks(void **state)
{
    static const Becomes rows[] = {
        {"torchrun --nproc-per-node 2 --nproc_per_node 4 --nnodes=3 "
         "--nnodes 2 a/pretrain_gpt.py" SMALL,
         "parallel.world_size", "8"},
        {"python pretrain_gpt.py" SMALL, "parallel.world_size", "1"},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++)
        expect_becomes("", &rows[i]);
}

static void other_programs_are_named(void **state)
{
    Imported in = import_text("torchrun a/pretrain_bert.py" SMALL);

    (void)state;
    assert_null(in.spec);
    assert_non_null(strstr(in.shown, "a/pretrain_bert.py: the model is no "
                                     "GPT"));
    import_free(&in);
    in = import_text("python pretrain_vision_dino.py" SMALL);
    assert_null(in.spec);
    import_free(&in);
    in = import_text("python a/my_train.py" SMALL);
    assert_non_null(in.spec);
    assert_non_null(strstr(in.shown, "a/my_train.py is taken for "
                                     "pretrain_gpt.py [MC0026]"));
    import_free(&in);
}

/* ---- words --------------------------------------------------------------- */

static void words_are_those_of_a_shell(void **state)
{
    static const char text[] = "a 'b c' \"d \\\" $V\" e\\ f \\\n g# # h\n"
                               "$V ${W:-i j} '' \"${W:-k l}\" $ \"\\n\"";
    static const char *const want[] = {"a", "b c", "d \" x y", "e f", "g#",
                                       "x", "y", "i", "j", "", "k l", "$",
                                       "\\n"};
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Words words = {0};

    (void)state;
    setenv("V", "x y", 1);
    unsetenv("W");
    assert_true(words_split(a, d, text, &words));
    assert_int_equal(words.n, MC_LEN(want));
    for (size_t i = 0; i < MC_LEN(want); i++)
        assert_string_equal(words.v[i].text, want[i]);
    assert_string_equal(diag_loc_text(d, words.v[4].loc), "--megatron:2:2");
    vec_free(&words);
    diag_free(d);
    arena_free(a);
}

/* ---- whole commands ------------------------------------------------------ */

static void expect_reads_back(Imported *in)
{
    Buf once = {0}, twice = {0};
    Spec *s;

    spec_print(in->spec, &once);
    s = spec_parse(in->arena, in->diag, "printed", buf_str(&once), NULL, 0);
    assert_non_null(s);
    spec_print(s, &twice);
    assert_string_equal(buf_str(&once), buf_str(&twice));
    buf_free(&once);
    buf_free(&twice);
}

static Imported import_file(const char *name)
{
    Arena *a = arena_new();
    Buf text = {0};
    Imported in;

    read_near(a, name, &text);
    in = import_text(buf_str(&text));
    if (!in.spec)
        fail_msg("%s: %s", name, in.shown);
    buf_free(&text);
    arena_free(a);
    return in;
}

static void commands_of_the_examples(void **state)
{
    static const struct {
        const char *name;
        int64_t world, dp, microbatches; /* by the numbers in the file */
    } rows[] = {
        {"gpt3_175b", 128, 1, 1536},
        {"llama3_8b", 8, 4, 32},
        {"mixtral_8x7b", 64, 16, 16},
        {"gpt2_345m", 8, 8, 1},
        {"qwen3_30b_a3b", 32, 8, 32},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        char name[64];
        Imported in;
        snprintf(name, sizeof name, "tests/data/megatron/%s.txt",
                 rows[i].name);
        in = import_file(name);
        assert_int_equal(in.spec->parallel.world_size, rows[i].world);
        assert_int_equal(in.spec->derived.dense_dp, rows[i].dp);
        assert_int_equal(in.spec->derived.microbatches, rows[i].microbatches);
        expect_reads_back(&in);
        import_free(&in);
    }
}

/* The warm-up of the GPT-3 example: 0.001 of 430,000 steps; of the Llama
 * example 3,906,252 samples of 128 a step. */
static void steps_of_the_examples(void **state)
{
    Imported gpt = import_file("tests/data/megatron/gpt3_175b.txt");
    Imported llama = import_file("tests/data/megatron/llama3_8b.txt");

    (void)state;
    expect_key(&gpt, "training.lr_schedule.warmup_steps", "430");
    expect_key(&gpt, "training.rampup", "[16, 16, 5859375]");
    expect_key(&gpt, "training.eval.interval", "1000");
    expect_key(&llama, "training.checkpoint.dir",
               "\"checkpoints/llama3 8b\"");
    expect_key(&llama, "training.steps", "15258789");
    expect_key(&llama, "training.lr_schedule.warmup_steps", "30518");
    expect_key(&llama, "parallel.sharding", "optim");
    import_free(&gpt);
    import_free(&llama);
}

/* ---- flags over a file --------------------------------------------------- */

static Imported change_demo(const char *const *sets, uint32_t nsets,
                            const char *const *flags, uint32_t n)
{
    Imported in = {.arena = arena_new()};
    SpecChanges changes = {.sets = sets, .nsets = nsets, .flags = flags,
                           .nflags = n};

    in.diag = diag_new(in.arena);
    in.spec = spec_load_changed(in.arena, in.diag,
                                root_path(in.arena,
                                          "configs/examples/demo.yaml"),
                                &changes);
    show(&in);
    return in;
}

/* demo.yaml has 4 layers, 2 stages, rmsnorm, swiglu; nothing of that follows
 * Megatron's defaults. */
static void flags_change_a_file(void **state)
{
    static const char *const flags[] = {
        "--tensor-model-parallel-size", "1", "--bf16", "--num-query-groups",
        "2", "--num-layers-per-virtual-pipeline-stage", "1",
        "--train-samples", "160", "--data-path", "0.5", "a b", "2", "c"};
    static const char *const sets[] = {"parallel.tp=4", "training.steps=7"};
    Imported in = change_demo(sets, MC_LEN(sets), flags, MC_LEN(flags));

    (void)state;
    if (!in.spec)
        fail_msg("%s", in.shown);
    expect_key(&in, "parallel.tp", "1");
    expect_key(&in, "parallel.vpp", "2");
    expect_key(&in, "training.steps", "20");
    expect_key(&in, "training.precision", "bf16");
    expect_key(&in, "model.num_query_groups", "2");
    expect_key(&in, "model.normalization", "rmsnorm");
    expect_key(&in, "model.activation", "swiglu");
    expect_key(&in, "training.optimizer.beta2", "0.95");
    expect_key(&in, "data.train",
                 "[{path: \"a b\", weight: 0.5}, {path: c, weight: 2}]");
    import_free(&in);
}

/* The steps of `--rampup-batch-size 8 8 448` above, whoever says it. */
static void steps_follow_the_growth_of_the_file(void **state)
{
    static const char *const flags[] = {"--train-samples", "1112"};
    static const char *const sets[] = {"training.global_batch_size=64",
                                       "training.rampup=[8, 8, 448]",
                                       "training.rampup=null"};

    (void)state;
    for (uint32_t nsets = 2; nsets <= 3; nsets++) {
        Imported in = change_demo(sets, nsets, flags, MC_LEN(flags));
        if (!in.spec)
            fail_msg("%s", in.shown);
        expect_key(&in, "training.steps", nsets == 2 ? "31" : "17");
        import_free(&in);
    }
}

static void errors_point_at_flags(void **state)
{
    static const char *const flags[] = {"--bf16",
                                        "--tensor-model-parallel-size", "3"};
    Imported in = change_demo(NULL, 0, flags, MC_LEN(flags));

    (void)state;
    assert_null(in.spec);
    assert_non_null(strstr(in.shown, "demo.yaml:9:24: error: "
                                     "num_attention_heads = 8 is not a "
                                     "multiple of tp = 3"));
    assert_non_null(strstr(in.shown,
                           "Megatron flags: note: tp = 3\n"
                           "      | --bf16 --tensor-model-parallel-size 3\n"
                           "      |                                     ^"));
    import_free(&in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_flag_is_known),
        cmocka_unit_test(rows_are_sound),
        cmocka_unit_test(names_are_those_of_the_schema),
        cmocka_unit_test(page_is_current),
        cmocka_unit_test(flags_become_keys),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(the_launcher_says_how_many_ranks),
        cmocka_unit_test(other_programs_are_named),
        cmocka_unit_test(words_are_those_of_a_shell),
        cmocka_unit_test(commands_of_the_examples),
        cmocka_unit_test(steps_of_the_examples),
        cmocka_unit_test(flags_change_a_file),
        cmocka_unit_test(steps_follow_the_growth_of_the_file),
        cmocka_unit_test(errors_point_at_flags),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
