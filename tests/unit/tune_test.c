/* tune_test.c - which choices the tuner enumerates, and its closed forms,
 * against numbers worked out by hand and against plans.
 */
#include "driver/program.h"
#include "driver/tune.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static const char small[] =
    "version: 1\n"
    "model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4,\n"
    "  num_query_groups: 4, kv_channels: 16, ffn_hidden_size: 128,\n"
    "  vocab_size: 96}\n"
    "training: {seq_length: 32, global_batch_size: 2}\n";

static Arena *arena;
static Diag *diag;

static int enter(void **state)
{
    (void)state;
    arena = arena_new();
    diag = diag_new(arena);
    return 0;
}

static int leave(void **state)
{
    (void)state;
    diag_free(diag);
    arena_free(arena);
    return 0;
}

static Spec *parse(const char *text, const char *const *sets, int n)
{
    Spec *s = spec_parse(arena, diag, "test", text, sets, n);

    if (!s)
        diag_print(diag, stderr);
    assert_non_null(s);
    return s;
}

/* ---- enumeration --------------------------------------------------------- */

static void count_choice(void *to, const Choice *c, const Spec *s)
{
    (void)c;
    assert_int_equal(s->parallel.tp * s->parallel.pp * s->derived.dense_dp, 2);
    assert_int_equal(s->training.global_batch_size, 2);
    ++*(int *)to;
}

static SpaceCount walk(const Spec *s, int64_t gpus, const char *vary,
                       int *out_seen)
{
    SpaceCount count = {0};
    Space space;

    *out_seen = 0;
    assert_int_equal(space_open(&space, s, gpus, vary), CLI_DONE);
    space.varies[AXIS_DP] = true;
    space_walk(arena, diag, &space, &count, count_choice, out_seen);
    return count;
}

/* On two ranks, two samples a step: tp 2 with micro batches of 1 and 2, pp 2
 * with 1 and 2, and two replicas with 1. */
static void five_choices(void **state)
{
    int seen;
    SpaceCount count = walk(parse(small, NULL, 0), 2, "tp,pp,mbs", &seen);

    (void)state;
    assert_int_equal(seen, 5);
    assert_int_equal(count.legal, 5);
    assert_int_equal(count.tried, 5);
    assert_int_equal(count.reasons.n, 0);
}

/* Three heads are not split over two ranks, and three layers not over two
 * stages: one each, whatever the micro batch. */
static void the_rest_is_counted(void **state)
{
    static const char *const sets[] = {
        "model.num_attention_heads=3", "model.num_query_groups=3",
        "model.num_layers=3"};
    int seen;
    SpaceCount count = walk(parse(small, sets, 3), 2, "tp,pp,mbs", &seen);

    (void)state;
    assert_int_equal(seen, 1);
    assert_int_equal(count.reasons.n, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const Reason *r = &count.reasons.v[i];
        bool heads = !strcmp(r->code, "MC0201");

        assert_string_equal(r->code, heads ? "MC0201" : "MC0220");
        assert_int_equal(r->n, 1);
        assert_string_equal(
            r->words,
            heads ? "num_attention_heads = 3 is not a multiple of tp = 2"
                  : "num_layers = 3 is not a multiple of pp = 2 (remainder 1)");
    }
    vec_free(&count.reasons);
}

/* Whether a file with these values loads. */
static uint64_t legal_by_loader(const char *schedule, int vpp, int pp, int tp,
                                int cp, int mbs)
{
    const char *sets[] = {
        arena_printf(arena, "parallel.schedule=%s", schedule),
        arena_printf(arena, "parallel.vpp=%d", vpp),
        arena_printf(arena, "parallel.pp=%d", pp),
        arena_printf(arena, "parallel.tp=%d", tp),
        arena_printf(arena, "parallel.cp=%d", cp),
        arena_printf(arena, "training.micro_batch_size=%d", mbs),
        "parallel.world_size=12", "training.global_batch_size=24",
        "training.seq_length=36", "model.num_layers=6"};
    Diag *d = diag_new(arena);
    Spec *s = spec_parse(arena, d, "test", small, sets, (int)MC_LEN(sets));

    diag_free(d);
    return s != NULL;
}

static uint64_t legal_schedules(int pp, int tp, int cp, int mbs)
{
    uint64_t n = legal_by_loader("1f1b", 1, pp, tp, cp, mbs);

    if (pp == 1)
        return n;
    for (int vpp = 2; vpp <= 6; vpp++)
        n += legal_by_loader("interleaved", vpp, pp, tp, cp, mbs);
    return n + legal_by_loader("zb-h1", 1, pp, tp, cp, mbs) +
           legal_by_loader("zb-v", 2, pp, tp, cp, mbs) +
           legal_by_loader("dualpipe-v", 2, pp, tp, cp, mbs);
}

static void ignore_choice(void *to, const Choice *c, const Spec *s)
{
    (void)to;
    (void)c;
    (void)s;
}

/* The frontend says the same of a copy as of the YAML. */
static void copies_are_judged_as_texts(void **state)
{
    static const char *const sets[] = {"training.global_batch_size=24",
                                       "training.seq_length=36",
                                       "model.num_layers=6"};
    SpaceCount count = {0};
    Space space;
    uint64_t legal = 0;

    (void)state;
    assert_int_equal(space_open(&space, parse(small, sets, 3), 12,
                                "tp,cp,pp,dp,mbs,schedule,vpp"), CLI_DONE);
    space_walk(arena, diag, &space, &count, ignore_choice, NULL);
    vec_free(&count.reasons);
    for (int pp = 1; pp <= 12; pp++)
        for (int tp = 1; tp <= 12; tp++)
            for (int cp = 1; cp <= 12; cp++)
                for (int mbs = 1; mbs <= 24; mbs++)
                    if (12 % (pp * tp * cp) == 0 && 24 % mbs == 0)
                        legal += legal_schedules(pp, tp, cp, mbs);
    assert_int_equal(count.legal, legal);
    assert_true(legal > 20 && count.tried > legal);
}

/* ---- memory -------------------------------------------------------------- */

/* Llama 3 70B over tp 8 with sp and pp 4, two replicas: rank 0 has 20 layers of
 * 855,638,016 parameters and a table of 129,024 padded rows, an eighth of each;
 * four microbatches in flight of 20 layers that save 180.25 MiB: 16 for each
 * of x twice, q and the output, 4 for keys and values, 0.25 for log-sums, 112
 * for gate and up. */
static void bytes_by_hand(void **state)
{
    static const char *const sets[] = {
        "parallel.tp=8", "parallel.sp=true", "parallel.pp=4",
        "parallel.world_size=64", "training.global_batch_size=128"};
    Spec *s = parse("include: llama3-70b\n", sets, 5);
    Share share = share_of(s);
    Bytes b = memory_bound(s, &share);
    double n = 20 * 855638016.0 / 8 + 129024.0 * 8192 / 8;

    (void)state;
    assert_true(b.term[BYTES_PARAMS] == 2 * n);
    assert_true(b.term[BYTES_GRADS] == 4 * n);
    assert_true(b.term[BYTES_OPTIMIZER] == 12 * n);
    assert_true(b.term[BYTES_ACTIVATIONS] == 4 * 20 * 180.25 * 1048576);
}

static int64_t heaviest(const Spec *s)
{
    static const PassOptions all_passes;
    Input in = {.arena = arena, .diag = diag, .spec = s};
    Program p;
    int64_t most = 0;

    assert_int_equal(program_build(&in, &all_passes, &p), CLI_DONE);
    for (uint32_t i = 0; i < p.mem->npp; i++)
        most = MC_MAX(most, p.mem->report[i].total);
    program_free(&p);
    return most;
}

/* A bound from below, and near, where nothing but the model counts. */
static void bounds_are_below_plans(void **state)
{
    static const struct {
        const char *model;
        const char *sets[8];
    } rows[] = {
        {"llama3-8b", {"parallel.tp=1", "parallel.pp=2"}},
        {"llama3-8b", {"parallel.tp=4", "parallel.sp=true",
                       "parallel.sharding=optim", "parallel.dp=4"}},
        {"llama3-70b", {"parallel.tp=8", "parallel.sp=true", "parallel.pp=4",
                        "training.recompute.granularity=full"}},
        {"llama3-70b", {"parallel.tp=8", "parallel.pp=4", "parallel.dp=2",
                        "parallel.sharding=optim_grads_params"}},
        {"llama3-405b", {"parallel.tp=4", "parallel.sp=true", "parallel.cp=4",
                         "parallel.pp=32", "parallel.account_for_loss=true",
                         "parallel.account_for_embedding=true",
                         "parallel.sharding=optim"}},
        {"mixtral-8x7b", {"parallel.ep=8", "parallel.tp=1", "parallel.pp=1",
                          "parallel.dp=1"}},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        int n = 0;
        while (rows[i].sets[n])
            n++;
        Spec *s = parse(arena_printf(arena, "include: %s\n"
                                            "training: {global_batch_size: "
                                            "64}\n", rows[i].model),
                        rows[i].sets, n);
        Share share = share_of(s);
        double bound = memory_bound(s, &share).total;
        double plan = (double)heaviest(s);
        if (bound > plan || bound < 0.85 * plan)
            print_error("row %zu: bound %.0f, plan %.0f\n", i, bound, plan);
        assert_true(bound <= plan);
        assert_true(bound >= 0.85 * plan);
    }
}

/* ---- time ---------------------------------------------------------------- */

/* Without links, launches or a memory worth waiting for, a step is its products
 * and its bubble: 6 flops per weight and token, and 12 per channel of a query,
 * token and key that is seen. */
static void seconds_by_hand(void **state)
{
    static const char *const sets[] = {"parallel.pp=2",
                                       "training.global_batch_size=4",
                                       "model.num_layers=4"};
    Spec *s = parse(small, sets, 3);
    Hardware h = {.bandwidth = 1e30, .host_bandwidth = 1e30, .launch = 0,
                  .peak = {1e9, 1e9, 1e9}, .nlinks = 1,
                  .links = {{INT64_MAX, 1e30, 0, {0}}}};
    Share share = share_of(s);
    Times t = time_estimate(s, &share, &h);
    /* Per layer: q, k, v, out of 64 by 64, three of 64 by 128; 32 tokens. The
     * backward of attention takes 2.5 times its forward. */
    double weights = 4 * 64 * 64 + 3 * 64 * 128;
    double attention = 4.0 * 32 * 16 * 64;
    double layer = 6 * 32 * weights + 3.5 * attention;
    double head = 6 * 32 * 64.0 * 128;

    (void)state;
    assert_true(fabs(t.compute - 4 * 2 * layer * 1e-9) < 1e-12);
    assert_true(fabs(t.step - (4 * (2 * layer + head) + 2 * layer) * 1e-9) <
                1e-12);
}

/* ---- the normal form as JSON --------------------------------------------- */

/* Texts that YAML takes for something else, and lists of every kind. */
static void json_reads_back(void **state)
{
    static const char *const sets[] = {
        "model.name='$${x}: \"1e3\"'",
        "data.train=[{path: \"a b\", weight: 0.25}, {path: c}]",
        "data.loss_mask=[m, null]", "parallel.cp_comm=[p2p, a2a]",
        "parallel.cp=2", "training.optimizer.lr=1.5e-5",
        "training.precision=fp16", "training.loss_scale=dynamic"};
    Buf json = {0}, before = {0}, after = {0};
    Spec *s = parse(small, NULL, 0);

    (void)state;
    spec_json(s, &json);
    spec_print(s, &before);
    spec_print(parse(buf_str(&json), NULL, 0), &after);
    assert_string_equal(buf_str(&after), buf_str(&before));
    json.len = before.len = after.len = 0;
    s = parse(small, sets, (int)MC_LEN(sets));
    spec_json(s, &json);
    spec_print(s, &before);
    spec_print(parse(buf_str(&json), NULL, 0), &after);
    assert_string_equal(buf_str(&after), buf_str(&before));
    buf_free(&json);
    buf_free(&before);
    buf_free(&after);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(five_choices, enter, leave),
        cmocka_unit_test_setup_teardown(the_rest_is_counted, enter, leave),
        cmocka_unit_test_setup_teardown(copies_are_judged_as_texts, enter,
                                        leave),
        cmocka_unit_test_setup_teardown(bytes_by_hand, enter, leave),
        cmocka_unit_test_setup_teardown(bounds_are_below_plans, enter, leave),
        cmocka_unit_test_setup_teardown(seconds_by_hand, enter, leave),
        cmocka_unit_test_setup_teardown(json_reads_back, enter, leave),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
