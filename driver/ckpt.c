/* ckpt.c - `megac ckpt`: what its commands share.
 *
 * Checkpoints hold whole logical tensors, so none of the commands knows of
 * layouts, and none needs the ranks that wrote them.
 */
#include "driver/ckpt.h"

#include "driver/params.h"
#include "frontend/model.h"
#include "runtime/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>

/* ---- words --------------------------------------------------------------- */

CliExit ckpt_size(const char *text, uint64_t *out)
{
    static const struct {
        const char *unit;
        uint64_t bytes;
    } units[] = {{"", 1},
                 {"KB", 1000},
                 {"MB", 1000000},
                 {"GB", 1000000000},
                 {"TB", 1000000000000},
                 {"KiB", 1ull << 10},
                 {"MiB", 1ull << 20},
                 {"GiB", 1ull << 30},
                 {"TiB", 1ull << 40}};
    const char *word = text ? text : "5GB";
    size_t digits = strspn(word, "0123456789");
    uint64_t n = strtoull(word, NULL, 10);

    for (size_t i = 0; digits && digits < 16 && n && i < MC_LEN(units); i++)
        if (!strcmp(word + digits, units[i].unit) &&
            !__builtin_mul_overflow(n, units[i].bytes, out))
            return CLI_DONE;
    return cli_usage("--max-shard-size: `%s` is no size (20000, 500MB, 5GB, "
                     "2GiB)", word);
}

CliExit ckpt_dtype(const char *text, uint32_t *out)
{
    static const char *const words[] = {
        [PLAN_F32] = "fp32", [PLAN_BF16] = "bf16", [PLAN_F16] = "fp16"};

    *out = PLAN_F32;
    for (uint32_t i = 0; i < MC_LEN(words); i++)
        if (text && !strcmp(text, words[i])) {
            *out = i;
            return CLI_DONE;
        }
    return text ? cli_usage("--dtype: `%s` is not fp32, bf16 or fp16", text)
                : CLI_DONE;
}

/* ---- weights ------------------------------------------------------------- */

Status ckpt_find(Arena *a, const char *path, const char **out)
{
    char newest[CHECKPOINT_PATH_BYTES];
    int64_t step = -1;
    struct stat st;

    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        STATUS_TRY(checkpoint_newest(path, &step));
    *out = path;
    if (step < 0)
        return STATUS_NONE;
    STATUS_TRY(checkpoint_path(path, step, newest));
    *out = arena_strdup(a, newest);
    return STATUS_NONE;
}

static Status fit(SafeSet *set, const Input *in)
{
    Module *m = model_build(in->arena, in->diag, in->spec);
    SafeSet model = {0};
    Status s = params_files(in->arena, m, &model);

    if (!s)
        s = safe_fit(set, &model);
    safe_close(&model);
    module_free(m);
    return s;
}

Status ckpt_open(const char *path, const Input *in, SafeSet *out)
{
    SafeSet set;
    Status s;

    STATUS_TRY(safe_open(path, &set));
    s = fit(&set, in);
    if (s)
        safe_close(&set);
    else
        *out = set;
    return s;
}

Status ckpt_report(const char *dir, const char *stem)
{
    SafeSet set;

    STATUS_TRY(safe_open_in(dir, stem, &set));
    printf("%s: %s: %" PRIu32 " tensors, %" PRIu64 " bytes, %" PRIu32
           " file%s\n",
           dir, stem, set.n, safe_total(&set), set.nparts,
           set.nparts == 1 ? "" : "s");
    safe_close(&set);
    return STATUS_NONE;
}

/* ---- the command --------------------------------------------------------- */

static const CliCommand *const children[] = {&ckpt_info, &ckpt_export_hf,
                                             &ckpt_import_hf, &ckpt_reshard,
                                             NULL};

const CliCommand cmd_ckpt = {
    .name = "ckpt",
    .help = "describe and convert checkpoints, from and to Hugging Face",
    .children = children,
};
