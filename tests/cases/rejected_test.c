/* rejected_test.c - specs that must not compile, by the whole program: exit
 * code 1, one message with the fields and their values, nothing written.
 *
 * Each row is a case of docs/CASES.md, from the public bug reports named
 * there.  Rows of what is not built yet want the feature named.
 */
#include "cases.h"

typedef struct {
    const char *id, *sets;
    const char *words[4]; /* all must be printed */
} Rejected;

static const Rejected rejected[] = {
    {"MC-01", "model.num_attention_heads=32 model.num_query_groups=5",
     {"num_attention_heads = 32", "multiple of num_query_groups = 5"}},
    {"MC-01", "model.num_query_groups=0",
     {"num_query_groups = 0 must be >= 1"}},
    {"MC-01", "model.num_query_groups=-4",
     {"num_query_groups = -4 must be >= 1"}},
    {"MC-03", "model.num_layers=30 parallel.pp=4",
     {"num_layers = 30", "pp = 4", "remainder 2"}},
    {"MC-07",
     "parallel.world_size=4 parallel.pp=2 parallel.ep=4 parallel.etp=1 "
     "model.moe.num_experts=8",
     {"world_size = 4 is not a multiple of etp*ep*pp = 1*4*2 = 8",
      "parallel.ep=4", "parallel.pp=2"}},
    {"MC-09", "training.seq_length=1022 parallel.tp=4 parallel.sp=true",
     {"seq_length / cp = 1022 / 1", "tp = 4"}},
    {"MC-09",
     "training.seq_length=1000 parallel.tp=4 parallel.sp=true parallel.cp=4",
     {"seq_length / cp = 1000 / 4 is not a multiple of tp = 4"}},
    {"MC-16", "training.seq_length=80 parallel.cp=5 parallel.cp_comm=a2a",
     {"tp*cp = 1*5 = 5", "num_attention_heads = 8", "num_query_groups = 4"}},
    {"MC-19", "model.num_layers=61 parallel.pp=8 parallel.pp_last_layers=4",
     {"num_layers = 61", "pp_last_layers = 4", "57 layers for 7 stages"}},
    {"MC-25",
     "model.num_layers=8 parallel.pp=4 parallel.vpp=2 "
     "training.global_batch_size=6",
     {"the last of a step's 6 would have 2, less than pp = 4",
      "global_batch_size = 6", "microbatch_group = 6 runs all in one group"}},
    {"MC-25",
     "model.num_layers=8 parallel.pp=4 parallel.vpp=2 "
     "training.global_batch_size=10",
     {"the last of a step's 10 would have 2, less than pp = 4",
      "global_batch_size = 10"}},
    {"MC-25",
     "model.num_layers=8 parallel.pp=4 parallel.vpp=2 "
     "training.global_batch_size=3",
     {"groups of 4 microbatches, but a step has 3", "global_batch_size = 3"}},
    {"MC-28",
     "model.num_layers=7 parallel.pp=4 parallel.account_for_embedding=true "
     "parallel.account_for_loss=true",
     {"num_layers = 7 plus 2 for embedding and loss = 9", "pp = 4"}},
    {"MC-31", "data.loss_mask=first-four",
     {"loss_mask weighs the tokens of files, but data.train is made up"}},
    {"MC-50", "parallel.tp=2 parallel.gather_logits=true",
     {"`parallel` has no key `gather_logits`"}},
    {"MC-55", "parallel.dp_replicate=2 parallel.dp_shard=4",
     {"`parallel` has no key `dp_replicate`", "no key `dp_shard`"}},
    {"MC-45", "training.lr_schedule.warmup_steps=5 "
              "training.lr_schedule.style=cosine "
              "training.lr_schedule.decay_steps=5",
     {"decay_steps = 5 must be greater than warmup_steps = 5"}},
    {"MC-46", "training.seq_length=2999 parallel.cp=4",
     {"seq_length = 2999 is not a multiple of 2*cp = 8"}},
    {"MC-49", "training.label_smoothing=0.1",
     {"`training` has no key `label_smoothing`"}},
    {"MC-86", "parallel.tensor_paralell=2",
     {"`parallel` has no key `tensor_paralell`", "did you mean `tp`?"}},
    {"MC-86", "model.lr=1.0e-3",
     {"belongs under `training.optimizer`, as `lr`"}},
    {"MC-87", "training.optimizer.lr=abc", {"must be a number, not `abc`"}},
    {"MC-87", "training.optimizer.lr=5e-5x",
     {"must be a number, not `5e-5x`"}},
    {"MC-87", "model.hidden_size=64.5", {"must be an integer, not `64.5`"}},
    {"MC-87", "model.num_layers=4k", {"must be an integer, not `4k`"}},
};

static void nothing_is_written(const char *id)
{
    assert_int_equal(case_shell("ls"), 0);
    if (strcmp(case_output(), "output\nscript\nt0.yaml\n") != 0)
        fail_msg("%s left behind:\n%s", id, case_output());
}

static void expect_rejected(const Rejected *row)
{
    char sets[1024] = "", *rest = strdup(row->sets), *copy = rest, *word;
    int code;

    while ((word = strsep(&rest, " ")))
        snprintf(sets + strlen(sets), sizeof sets - strlen(sets),
                 " --set %s", word);
    free(copy);
    code = case_shell("$MEGAC compile t0.yaml -o out%s", sets);
    if (code != 1)
        fail_msg("%s: exit code %d:\n%s", row->id, code, case_output());
    for (size_t i = 0; i < MC_LEN(row->words) && row->words[i]; i++)
        if (!case_printed(row->words[i]))
            fail_msg("%s: see above", row->id);
    nothing_is_written(row->id);
}

static void each_by_its_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(rejected); i++)
        expect_rejected(&rejected[i]);
}

/* MC-16: degrees by which 40 heads in 8 groups can be split over cp. */
static void heads_over_ranks(void **state)
{
    static const struct {
        int cp, code;
    } rows[] = {{1, 0}, {2, 0}, {4, 0}, {5, 1}, {8, 0}, {10, 1}, {16, 1},
                {20, 1}, {40, 0}};

    static const char *const forms[] = {
        "--set parallel.cp=%d --set parallel.cp_comm=a2a",
        /* so many neighbours in rings of two */
        "--set parallel.cp=$((2 * %d)) --set parallel.cp_comm=a2a+p2p "
        "--set parallel.cp_sizes=[%d,2]"};

    (void)state;
    for (size_t i = 0; i < 2 * MC_LEN(rows); i++) {
        int cp = rows[i / 2].cp;
        char form[256], shell[512];
        snprintf(form, sizeof form, forms[i % 2], cp, cp);
        snprintf(shell, sizeof shell,
                 "$MEGAC compile t0.yaml --plan-only %s "
                 "--set model.num_attention_heads=40 "
                 "--set model.num_query_groups=8 --set training.seq_length=%d",
                 form, 160 * cp);
        int code = case_shell("%s", shell);
        assert_int_equal(code, rows[i / 2].code);
        assert_int_equal(code == 1, strstr(case_output(),
                                           "num_query_groups = 8") != NULL);
    }
}

/* MC-86: doubled keys and broken YAML, with file, line and column. */
static void where_it_is_written(void **state)
{
    (void)state;
    assert_int_equal(case_shell(
        "(cat t0.yaml; echo 'parallel: {world_size: 2, tp: 1, tp: 2}') >x.yaml;"
        "$MEGAC compile x.yaml -o out; code=$?; rm x.yaml; exit $code"), 1);
    assert_true(case_printed("x.yaml:25:34: error: parallel.tp is given "
                             "twice"));
    assert_int_equal(case_shell(
        "(cat t0.yaml; echo 'parallel: {tp: 1') >x.yaml;"
        "$MEGAC compile x.yaml -o out; code=$?; rm x.yaml; exit $code"), 1);
    assert_true(case_printed("x.yaml:"));
    nothing_is_written("MC-86");
}

/* MC-01: no num_query_groups means one per head. */
static void groups_default_to_heads(void **state)
{
    json_t *tensors, *t;
    size_t i;
    int seen = 0;

    (void)state;
    tensors = case_inspect("params", "model.num_query_groups=null");
    json_array_foreach(case_member(tensors, "by_tensor"), i, t)
        if (!strcmp(json_string_value(case_member(t, "tensor")), "k")) {
            assert_int_equal(json_integer_value(case_member(t, "count")),
                             64 * 64);
            seen++;
        }
    assert_int_equal(seen, 4);
    json_decref(tensors);
}

/* MC-87: every spelling is the same number in the normal form. */
static void numbers_without_a_dot(void **state)
{
    static const char *const spellings[] = {"5e-5", "5.0e-5", "5.e-05",
                                            "0.00005", "5E-5"};
    char first[4096] = "";

    (void)state;
    for (size_t i = 0; i < MC_LEN(spellings); i++) {
        char sets[128];
        snprintf(sets, sizeof sets,
                 "training.optimizer.lr=%s training.steps=1e3", spellings[i]);
        case_compile("out", sets);
        assert_int_equal(case_shell("grep -E '^ *(lr|steps):|lr:' "
                                    "out/spec.yaml; rm -rf out"), 0);
        if (i == 0)
            snprintf(first, sizeof first, "%s", case_output());
        assert_string_equal(case_output(), first);
        assert_true(case_printed("lr: 5e-05"));
        assert_true(case_printed("steps: 1000"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_by_its_name),
        cmocka_unit_test(heads_over_ranks),
        cmocka_unit_test(where_it_is_written),
        cmocka_unit_test(groups_default_to_heads),
        cmocka_unit_test(numbers_without_a_dot),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
