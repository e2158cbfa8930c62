/* export_test.c - the names in the files that a run writes and reads.
 *
 * From public bug reports: pytorch/torchtitan#3764, ml-explore/mlx-lm#1298 and
 * vllm-project/vllm#6758 (MC-74, a head of zero bytes beside a tied table, a
 * redundant or a missing head, files in several parts).
 *
 * Of T0, tied, there are 96·64 numbers of the table, 64 of the last norm, and
 * in each of 4 layers 2·64·64 of q and o, 2·32·64 of k and v, 3·128·64 of the
 * MLP and 2·64 of norms: 154,176 in 1 + 1 + 4·9 tensors.
 */
#include "cases.h"

#include "runtime/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

enum { TENSORS = 38, BYTES = 4 * 154176, PART = 20000 };

static const char table_name[] = "model.embed_tokens.weight";
static const char head_name[] = "lm_head.weight";

static bool saved(const char *out, const char *name)
{
    return case_shell("grep -aqF '\"%s\"' %s.saved/weights.safetensors", name,
                      out) == 0;
}

/* Tied, only the table is saved, by whichever stage; untied both. */
static void a_tied_head_is_not_saved(void **state)
{
    (void)state;
    case_train("tied", "model.tie_embeddings=true parallel.pp=2");
    case_train("untied", "parallel.pp=2");
    assert_true(saved("tied", table_name));
    assert_false(saved("tied", head_name));
    assert_true(saved("untied", table_name));
    assert_true(saved("untied", head_name));
}

static void refused(const char *command, const char *message)
{
    assert_int_equal(case_shell("$MEGAC %s", command), 1);
    assert_true(case_printed(message));
}

/* Neither a missing head nor that of another model passes, in a run or
 * before. */
static void a_head_belongs_to_its_model(void **state)
{
    static const char missing[] = "has no tensor lm_head.weight (with "
                                  "model.tie_embeddings: true";
    static const char other[] =
        "lm_head.weight and model.embed_tokens.weight are not the same";

    (void)state;
    refused("run untied --load tied.saved/weights.safetensors", missing);
    refused("run tied --load untied.saved/weights.safetensors", other);
    refused("ckpt import-hf tied.saved/weights.safetensors --spec untied "
            "-o none", missing);
    refused("ckpt import-hf untied.saved/weights.safetensors --spec tied "
            "-o none", other);
    assert_int_equal(case_shell("ls -d none*"), 2);
}

/* ---- parts --------------------------------------------------------------- */

static SafeSet open_set(const char *path)
{
    SafeSet set;
    Status failed = safe_open(path, &set);

    if (failed)
        fail_msg("%s", status_text(failed));
    return set;
}

/* A part is no larger than it may be, or holds one tensor. */
static void check_parts(const SafeSet *set)
{
    for (uint32_t i = 0; i < set->nparts; i++) {
        uint64_t bytes = 0;
        uint32_t n = 0;
        for (uint32_t t = 0; t < set->n; t++)
            if (set->v[t].part == i) {
                bytes += set->v[t].end - set->v[t].begin;
                n++;
            }
        assert_true(n == 1 || (n > 1 && bytes <= PART));
    }
}

/* The index of a folder lists exactly what there is: safe_open saw to that. */
static void check_index(const char *folder)
{
    char path[128];
    json_t *index;
    SafeSet set = open_set(folder);

    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    index = json_load_file(path, 0, NULL);
    assert_non_null(index);
    assert_int_equal(
        json_integer_value(case_member(index, "metadata.total_size")), BYTES);
    assert_int_equal(json_object_size(case_member(index, "weight_map")),
                     TENSORS);
    assert_int_equal(set.n, TENSORS);
    assert_null(safe_find(&set, head_name));
    check_parts(&set);
    json_decref(index);
    safe_close(&set);
}

/* Loading a folder gives back the weights, bit for bit, on two stages and on
 * one rank. */
static void check_loading(const char *folder)
{
    char options[128];

    snprintf(options, sizeof options,
             "--load %s --save-step 0 --to loaded --steps 1", folder);
    case_run("tied", options);
    case_same_file("tied.saved/weights.safetensors",
                   "loaded/weights.safetensors", 0);
    case_compile("whole", "model.tie_embeddings=true");
    case_run("whole", options);
    case_same_file("tied.saved/weights.safetensors",
                   "loaded/weights.safetensors", 0);
}

/* The program is found by where the weights lie. */
static void an_export_is_in_parts(void **state)
{
    json_t *config;

    (void)state;
    assert_int_equal(
        case_shell("cp -r tied.saved tied/saved && $MEGAC ckpt export-hf "
                   "tied/saved/weights.safetensors -o parts "
                   "--max-shard-size %d", PART), 0);
    check_index("parts");
    check_loading("parts");
    config = json_load_file("parts/config.json", 0, NULL);
    assert_true(json_is_true(case_member(config, "tie_word_embeddings")));
    assert_string_equal(
        json_string_value(case_member(config, "model_type")), "llama");
    json_decref(config);
}

/* Back by its own config.json, and once more in other files. */
static void an_export_is_imported(void **state)
{
    (void)state;
    assert_int_equal(case_shell("$MEGAC ckpt import-hf parts -o back && "
                                "$MEGAC ckpt reshard back -o again "
                                "--max-shard-size 100KB"), 0);
    check_loading("again");
}

/* q, k and v of these experts' model have biases, which Mixtral's have not. */
static void a_model_without_a_family_is_not_written(void **state)
{
    (void)state;
    case_train("odd", "model.qkv_bias=true model.moe.num_experts=4 "
                      "model.moe.ffn_hidden_size=16 model.moe.top_k=2");
    refused("ckpt export-hf odd.saved/weights.safetensors --spec odd -o none",
            "model.qkv_bias = true: no model of transformers has this beside "
            "the rest; the closest, mixtral, has false");
    assert_int_equal(case_shell("ls -d none*"), 2);
}

static void a_missing_part_is_named(void **state)
{
    (void)state;
    assert_int_equal(case_shell("rm -rf gone && cp -r parts gone && "
                                "rm gone/model-00003-of-*"), 0);
    refused("run tied --load gone", "model-00003-of-00030.safetensors: No such "
                                    "file");
    refused("ckpt import-hf gone --spec tied -o none",
            "a part of gone/model.safetensors.index.json: "
            "gone/model-00003-of-00030.safetensors: No such file");
    assert_int_equal(case_shell("ls -d none*"), 2);
}

/* ---- checkpoints --------------------------------------------------------- */

/* The newest of a run's checkpoints, in smaller files, is where it goes on; and
 * it is what is exported. */
static void checkpoints_are_divided_anew(void **state)
{
    (void)state;
    case_compile("saving", "training.checkpoint.dir=ck "
                           "training.optimizer.momentum=0.9");
    case_run("saving", "--steps 2");
    case_run("saving", "--resume --steps 3 --save-step 3 --to whole.saved");
    assert_int_equal(
        case_shell("rm -r saving/ck/step-00000003 && "
                   "$MEGAC ckpt export-hf saving/ck -o exported && "
                   "$MEGAC ckpt reshard saving/ck -o small "
                   "--max-shard-size %d && rm -r saving/ck/step-00000002 && "
                   "mv small saving/ck/step-00000002 && "
                   "ls saving/ck/step-00000002/momentum_buffer-00002-of-* "
                   "saving/ck/step-00000002/state.json", PART), 0);
    case_same_file("saving/ck/step-00000002", "exported", 0);
    case_run("untied", "--load saving/ck --steps 1 --save-step 0 --to loaded");
    case_same_file("loaded/weights.safetensors", "exported", 0);
    case_run("saving", "--resume --steps 3 --save-step 3 --to small.saved");
    case_same_file("whole.saved/weights.safetensors",
                   "small.saved/weights.safetensors", 0);
}

/* ---- a head that is written once more ------------------------------------ */

static void write_tensor(const char *path, const SafeTensor *to,
                         const SafeSet *from)
{
    bool head = !strcmp(to->name, head_name);
    const SafeTensor *t = safe_find(from, head ? table_name : to->name);
    int fd = open(path, O_WRONLY);

    assert_null(safe_write(path, fd, safe_bytes(from, t), t->end - t->begin,
                           to->begin));
    close(fd);
}

/* The tied weights, and the table once more as the head. */
static void write_head(const char *path)
{
    SafeSet from = open_set("tied.saved/weights.safetensors");
    SafeSet to = {.v = calloc(from.n + 1, sizeof(SafeTensor))};

    for (uint32_t i = 0; i < from.n; i++) {
        to.v[to.n] = from.v[i];
        to.v[to.n++].name = strdup(from.v[i].name);
    }
    to.v[to.n] = *safe_find(&from, table_name);
    to.v[to.n++].name = strdup(head_name);
    assert_null(safe_layout(&to, "head", 0));
    assert_null(safe_create(path, &to.part[0]));
    for (uint32_t i = 0; i < to.n; i++)
        write_tensor(path, &to.v[i], &from);
    safe_close(&to);
    safe_close(&from);
}

/* One bit of it wrong, and it is another. */
static void a_redundant_head_is_the_table(void **state)
{
    SafeSet set;
    char bit;
    uint64_t at;
    int fd;

    (void)state;
    write_head("head.safetensors");
    check_loading("head.safetensors");
    set = open_set("head.safetensors");
    at = safe_find(&set, head_name)->end - 4;
    bit = set.part[0].map[at] ^ 1;
    safe_close(&set);
    fd = open("head.safetensors", O_WRONLY);
    assert_null(safe_write("head.safetensors", fd, &bit, 1, at));
    close(fd);
    refused("run tied --load head.safetensors",
            "lm_head.weight and model.embed_tokens.weight are not the same");
}

/* ---- many names ---------------------------------------------------------- */

static void what_is_too_much_is_listed(void **state)
{
    (void)state;
    case_compile("small", "model.tie_embeddings=true model.num_layers=1");
    refused("run small --load parts",
            "the model has no tensor model.layers.1.input_layernorm.weight, "
            "model.layers.1.mlp.down_proj.weight, "
            "model.layers.1.mlp.gate_proj.weight, "
            "model.layers.1.mlp.up_proj.weight and 23 more");
    refused("ckpt import-hf parts --spec small --set model.num_layers=5 "
            "-o none",
            "has no tensor model.layers.4.input_layernorm.weight");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tied_head_is_not_saved),
        cmocka_unit_test(a_head_belongs_to_its_model),
        cmocka_unit_test(an_export_is_in_parts),
        cmocka_unit_test(an_export_is_imported),
        cmocka_unit_test(a_missing_part_is_named),
        cmocka_unit_test(checkpoints_are_divided_anew),
        cmocka_unit_test(a_redundant_head_is_the_table),
        cmocka_unit_test(what_is_too_much_is_listed),
        cmocka_unit_test(a_model_without_a_family_is_not_written),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
