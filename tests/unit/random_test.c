/* random_test.c - specs drawn from the schema's legal space.
 *
 * Each draw goes the whole way that needs no kernel: passes verified by
 * execution (fp64, and exactly in the prime field), memory at its bound, plans
 * proved to fit together.  A draw that the frontend rejects must be rejected
 * with a reason.  MEGAC_SEED and MEGAC_DRAWS repeat or extend a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "driver/compile.h"
#include "tests/unit/models.h"

#ifdef __SANITIZE_ADDRESS__
enum { DRAWS = 20 };
#else
enum { DRAWS = 200 };
#endif

typedef struct {
    uint64_t state;
    Arena *arena;
    CliList sets;
} Draw;

/* SplitMix64 (Steele et al. 2014). */
static uint64_t next(Draw *d)
{
    uint64_t z = d->state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* One of the words of a list separated by blanks. */
static const char *pick(Draw *d, const char *words)
{
    uint64_t n = 1, at;

    for (const char *c = words; *c; c++)
        n += *c == ' ';
    for (at = next(d) % n; at; words++)
        at -= *words == ' ';
    return arena_strndup(d->arena, words, strcspn(words, " "));
}

static const char *set(Draw *d, const char *key, const char *words)
{
    const char *word = pick(d, words);

    vec_push(&d->sets, arena_printf(d->arena, "%s=%s", key, word));
    return word;
}

static void set_int(Draw *d, const char *key, int64_t value)
{
    vec_push(&d->sets,
             arena_printf(d->arena, "%s=%lld", key, (long long)value));
}

static void draw_model(Draw *d, int64_t tp, int64_t pp)
{
    int64_t groups = atoi(set(d, "model.num_query_groups", "1 2 4 8"));

    set_int(d, "model.num_attention_heads", groups * atoi(pick(d, "1 2 4")));
    set_int(d, "model.ffn_hidden_size", tp * atoi(pick(d, "16 24")));
    set_int(d, "model.num_layers", pp * atoi(pick(d, "1 2 3")));
    set(d, "model.hidden_size", "16 24 64");
    set(d, "model.kv_channels", "4 8 16");
    set(d, "model.vocab_size", "50 96 257");
    set(d, "model.vocab_divisor", "1 8 16");
    set(d, "model.normalization", "rmsnorm layernorm");
    set(d, "model.activation", "swiglu geglu gelu gelu_tanh silu relu relu2");
    set(d, "model.position_embedding", "rope rope learned none");
    set(d, "model.tie_embeddings", "true false");
    set(d, "model.qkv_bias", "true false");
    set(d, "model.linear_bias", "true false");
    set(d, "model.qk_norm", "true false");
    set(d, "model.sliding_window", "0 0 1 5 8 100");
}

static void draw_training(Draw *d, int64_t dp)
{
    int64_t mbs = atoi(set(d, "training.micro_batch_size", "1 2 3"));

    set_int(d, "training.global_batch_size",
            mbs * dp * atoi(pick(d, "1 2 3 5")));
    set(d, "training.seq_length", "8 16 24 32");
    set_int(d, "model.max_position_embeddings", 64);
    set(d, "training.precision", "fp32 bf16");
    set(d, "training.optimizer.type", "sgd adamw adam");
    set(d, "training.optimizer.momentum", "0 0.9");
    set(d, "training.optimizer.weight_decay", "0 0.1");
    set(d, "training.optimizer.clip_grad", "0 1.0");
    set(d, "training.recompute.granularity", "none none selective full");
    if (strcmp(set(d, "data.train", "synthetic tokens"), "tokens") == 0)
        set(d, "data.loss_mask", "null mask");
}

/* Schedules that fit the number of chunks, and the layers they need. */
static int64_t draw_pipeline(Draw *d, int64_t pp)
{
    int64_t vpp = pp > 1 ? atoi(pick(d, "1 1 1 2 3")) : 1;
    const char *schedules = "auto gpipe 1f1b zb-h1";

    if (vpp == 2)
        schedules = "interleaved zb-v dualpipe-v";
    else if (vpp > 2)
        schedules = "auto";
    set_int(d, "parallel.vpp", vpp);
    set(d, "parallel.schedule", pp > 1 ? schedules : "auto gpipe 1f1b");
    return vpp;
}

static void draw_context(Draw *d)
{
    int64_t cp = atoi(set(d, "parallel.cp", "1 1 1 2 4"));

    if (cp > 1 &&
        !strcmp(set(d, "parallel.cp_comm", "p2p all_gather a2a a2a+p2p"),
                "a2a+p2p"))
        set(d, "parallel.cp_sizes", cp == 2 ? "[1,2] [2,1]" : "[2,2] [4,1]");
}

/* A mixture of experts, on one replica or spread over `ep`. */
static void draw_experts(Draw *d)
{
    if (*pick(d, "dense dense moe") == 'd')
        return;
    set(d, "model.moe.num_experts", "4 8");
    set(d, "model.moe.top_k", "1 2");
    set(d, "model.moe.ffn_hidden_size", "16 32");
    set(d, "model.moe.pre_softmax", "true false");
    set(d, "model.moe.score", "softmax sigmoid");
    set(d, "model.moe.balance", "none seq_aux_loss");
    set(d, "model.moe.shared_ffn_hidden_size", "0 16");
    set(d, "parallel.ep", "1 2 4");
}

static void draw_spec(Draw *d)
{
    int64_t tp = atoi(set(d, "parallel.tp", "1 1 2 4 8"));
    int64_t pp = atoi(set(d, "parallel.pp", "1 1 2 3 4"));
    int64_t dp = atoi(set(d, "parallel.dp", "1 1 2 3 4"));

    int64_t vpp = draw_pipeline(d, pp);

    set(d, "parallel.sp", tp > 1 ? "true false" : "false");
    draw_context(d);
    draw_experts(d);
    set(d, "parallel.sharding",
        "no_shard optim optim_grads optim_grads_params");
    draw_model(d, tp, pp * vpp);
    draw_training(d, dp);
}

/* Emits the plans and proves that they fit together. */
static CliExit check_plans(const Input *in, const Program *p)
{
    EmitInput input = {p->m, p->mem, in->spec};
    EmitOutput out = {0};
    PlanVerifyStats stats;
    CliExit code = CLI_BUG;

    if (emit_plans(in->arena, &input, &out))
        code = compile_verify_plans(in, p->m, &out, &stats);
    emit_free(&out);
    return code;
}

/* Real models are packed at the bound (see memplan_test, plan_numbers_test).
 * Here buffers of a few hundred bytes leave gaps of alignment, and schedules
 * in a V are the hardest to pack: five percent. */
static bool at_bound(const MemPlan *mem)
{
    for (uint32_t i = 0; i < mem->npp; i++)
        if (mem->report[i].total > mem->report[i].lower_bound * 105 / 100)
            return false;
    return true;
}

static bool check_program(const Input *in)
{
    const PassOptions options = {0};
    Program p;
    bool ok = compile_verify_passes(in) == CLI_DONE &&
              program_build(in, &options, &p) == CLI_DONE;

    if (!ok)
        return false;
    ok = check_plans(in, &p) == CLI_DONE && at_bound(p.mem);
    program_free(&p);
    return ok;
}

static void print_draw(const Draw *d, const Input *in)
{
    for (uint32_t i = 0; i < d->sets.n; i++)
        print_error("--set %s \\\n", d->sets.v[i]);
    diag_print(in->diag, stderr);
}

/* 1 if the draw compiled, 0 if the frontend gave a reason not to. */
static int check_draw(uint64_t seed)
{
    Arena *a = arena_new();
    Draw d = {.state = seed, .arena = a};
    Input in = {.arena = a, .diag = diag_new(a)};
    int compiled;

    draw_spec(&d);
    in.spec = spec_parse(a, in.diag, "model", MODEL_T0, d.sets.v,
                         (int)d.sets.n);
    compiled = in.spec != NULL;
    if (compiled ? !check_program(&in) : !diag_errors(in.diag)) {
        print_draw(&d, &in);
        fail_msg("draw of seed %llu", (unsigned long long)seed);
    }
    vec_free(&d.sets);
    diag_free(in.diag);
    arena_free(a);
    return compiled;
}

static uint64_t number_of(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);

    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void test_random_specs(void **state)
{
    uint64_t seed = number_of("MEGAC_SEED", 1);
    uint64_t draws = number_of("MEGAC_DRAWS", DRAWS);
    uint64_t compiled = 0;

    (void)state;
    print_message("seeds %llu to %llu\n", (unsigned long long)seed,
                  (unsigned long long)(seed + draws - 1));
    for (uint64_t i = 0; i < draws; i++)
        compiled += (uint64_t)check_draw(seed + i);
    print_message("%llu of %llu compiled\n", (unsigned long long)compiled,
                  (unsigned long long)draws);
    assert_true(compiled * 3 > draws);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_specs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
