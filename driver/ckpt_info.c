/* ckpt_info.c - `megac ckpt info`: what a checkpoint holds.
 *
 * All of it comes from state.json and the headers of the tensors' files, which
 * are checked on the way; no tensor is read, and no layout plays a part.
 */
#include "driver/ckpt.h"
#include "runtime/checkpoint.h"

#include <inttypes.h>
#include <jansson.h>
#include <unistd.h>

static struct {
    bool json;
} args;

static const CliOption options[] = {
    {"--json", 0, NULL, CLI_FLAG, &args.json,
     "print one JSON object: state.json, and the sets of tensors"},
    CLI_OPTIONS_END,
};

/* ---- sets of tensors ----------------------------------------------------- */

/* All but the model's depend on the optimizer. */
static bool has_set(Arena *a, const char *dir, const char *stem)
{
    const char *file = arena_printf(a, "%s/%s.safetensors", dir, stem);
    const char *index = arena_printf(a, "%s.index.json", file);

    return access(file, F_OK) == 0 || access(index, F_OK) == 0;
}

static int64_t elements(const SafeSet *set)
{
    int64_t n = 0;

    for (uint32_t i = 0; i < set->n; i++)
        n += set->v[i].rows * MC_MAX(set->v[i].columns, 1);
    return n;
}

static json_t *set_json(const char *stem, const SafeSet *set)
{
    return json_pack("{ss sI sI sI sI}", "name", stem, "tensors",
                     (json_int_t)set->n, "elements",
                     (json_int_t)elements(set), "bytes",
                     (json_int_t)safe_total(set), "files",
                     (json_int_t)set->nparts);
}

static Status list_sets(Arena *a, const char *dir, json_t *list)
{
    static const char *const stems[] = {"model", "exp_avg", "exp_avg_sq",
                                        "momentum_buffer"};

    for (size_t i = 0; i < MC_LEN(stems); i++) {
        SafeSet set;
        if (i > 0 && !has_set(a, dir, stems[i]))
            continue;
        STATUS_TRY(safe_open_in(dir, stems[i], &set));
        json_array_append_new(list, set_json(stems[i], &set));
        safe_close(&set);
    }
    return STATUS_NONE;
}

/* ---- printing ------------------------------------------------------------ */

static void print_sets(const json_t *sets)
{
    json_t *set;
    size_t i;

    json_array_foreach(sets, i, set)
    {
        const char *name;
        json_int_t tensors, numbers, bytes, files;
        json_unpack(set, "{ss sI sI sI sI}", "name", &name, "tensors",
                    &tensors, "elements", &numbers, "bytes", &bytes, "files",
                    &files);
        printf("  %-16s %lld tensors, %lld elements, %lld bytes in %lld "
               "file%s\n",
               name, (long long)tensors, (long long)numbers, (long long)bytes,
               (long long)files, files == 1 ? "" : "s");
    }
}

static void print_text(const char *dir, const CheckpointState *s,
                       const json_t *sets)
{
    const int64_t *taken = s->past.samples;

    printf("%s: step %" PRId64 ", %" PRId64 " updates, %" PRId64 " tokens\n",
           dir, s->past.step, s->updates, s->tokens);
    printf("  %-16s %" PRId64 " consumed, %" PRId64 " learnt from, %" PRId64
           " for evaluation\n",
           "samples", taken[PLAN_TRAIN], s->learnt, taken[PLAN_EVALUATE]);
    printf("  %-16s %" PRIu64 "\n", "seed", s->seed);
    if (s->scaler.dynamic)
        printf("  %-16s %g\n", "loss scale", s->scaler.scale);
    print_sets(sets);
}

static void print_json(Arena *a, const char *dir, json_t *sets)
{
    const char *path = arena_printf(a, "%s/state.json", dir);
    json_t *all = json_load_file(path, 0, NULL); /* was read before */

    json_object_set_new(all, "path", json_string(dir));
    json_object_set(all, "sets", sets);
    json_dumpf(all, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(all);
}

static Status show(Arena *a, const char *dir, json_t *sets)
{
    CheckpointState s;

    STATUS_TRY(checkpoint_state_read(dir, &s));
    Status failed = list_sets(a, dir, sets);
    if (!failed && args.json)
        print_json(a, dir, sets);
    else if (!failed)
        print_text(dir, &s, sets);
    checkpoint_state_drop(&s);
    return failed;
}

static CliExit run(const CliList *operands)
{
    Arena *a = arena_new();
    json_t *sets = json_array();
    const char *dir;
    Status failed = ckpt_find(a, operands->v[0], &dir);

    if (!failed)
        failed = show(a, dir, sets);
    json_decref(sets);
    arena_free(a);
    return failed ? cli_failed(failed) : CLI_DONE;
}

const CliCommand ckpt_info = {
    .name = "info",
    .operands = "CKPT",
    .help = "say where a checkpoint's run stood, and what tensors there are",
    .details = "CKPT is a checkpoint, or the folder of several: then it is the "
               "newest.",
    .options = options,
    .operands_min = 1,
    .operands_max = 1,
    .run = run,
};
