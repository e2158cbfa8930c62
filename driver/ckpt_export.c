/* ckpt_export.c - `megac ckpt export-hf`: weights as transformers reads them.
 *
 * Our names are those of transformers already; what is added is config.json,
 * and a type.  A tied head is not written: transformers ties it itself.
 */
#include "driver/ckpt.h"

#include "frontend/hf.h"
#include "runtime/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static struct {
    const char *output, *shard, *dtype, *spec;
    CliList sets;
} args;

static const CliOption options[] = {
    {"--output", 'o', "DIR", CLI_TEXT, &args.output, "where the folder goes"},
    {"--spec", 0, "SPEC", CLI_TEXT, &args.spec,
     "the model: a YAML or a compiled program (default: the program in whose "
     "folder CKPT lies)"},
    {"--set", 0, "KEY=VALUE", CLI_LIST, &args.sets, "change a value of it"},
    {"--dtype", 0, "TYPE", CLI_TEXT, &args.dtype,
     "fp32, bf16 or fp16 (default: fp32)"},
    CKPT_SHARD_OPTION(&args.shard),
    CLI_OPTIONS_END,
};

/* ---- the model ----------------------------------------------------------- */

/* The compiled program around a checkpoint: DIR of DIR/FOLDER/step-00000010,
 * or of DIR/FOLDER.  NULL: there is none. */
static const char *program_around(Arena *a, const char *path)
{
    enum { UP = 3 };
    char *whole = realpath(path, NULL), *slash = whole;
    const char *found = NULL;

    for (int up = 0; slash && up < UP && !found; up++) {
        const char *spec = arena_printf(a, "%s/spec.yaml", whole);
        if (access(spec, F_OK) == 0)
            found = spec;
        slash = strrchr(whole, '/');
        if (slash)
            *slash = '\0';
    }
    free(whole);
    return found;
}

/* Opens the spec of what `path` holds. */
static CliExit open_spec(Input *in, const char *path)
{
    Arena *a = arena_new();
    const char *spec = args.spec ? args.spec : program_around(a, path);
    CliExit code;

    if (access(path, F_OK) != 0)
        code = cli_failed(
            status_make(STATUS_INPUT, "%s: %s", path, strerror(errno)));
    else if (spec)
        code = input_open(in, spec, &args.sets);
    else
        code = cli_usage("%s lies in no compiled program: --spec is missing",
                         path);
    arena_free(a);
    return code;
}

/* ---- writing ------------------------------------------------------------- */

static Status write_config(const Input *in, const Folder *to, uint32_t dtype)
{
    static const char *const names[] = {[PLAN_F32] = "float32",
                                        [PLAN_BF16] = "bfloat16",
                                        [PLAN_F16] = "float16"};
    Buf text = {0};
    Status s;

    if (hf_config_write(in->arena, in->diag, in->spec, names[dtype], &text))
        s = folder_write(in->arena, to, "config.json", &text);
    else
        s = status_make(STATUS_INPUT, "%s: no config.json can say what this "
                                      "model is", args.output);
    buf_free(&text);
    return s;
}

static Status write_all(const Input *in, const SafeSet *set, const Folder *to,
                        SafeCopy *how)
{
    how->dir = to->beside;
    STATUS_TRY(write_config(in, to, how->dtype));
    return safe_copy(set, how);
}

static Status export(const Input *in, const char *path, SafeCopy *how)
{
    SafeSet set;
    Folder to;
    Status s;

    STATUS_TRY(ckpt_find(in->arena, path, &path));
    STATUS_TRY(ckpt_open(path, in, &set));
    s = folder_begin(in->arena, args.output, &to);
    if (!s)
        s = folder_end(&to, write_all(in, &set, &to, how));
    safe_close(&set);
    STATUS_TRY(s);
    return ckpt_report(to.path, how->stem);
}

/* ---- the command --------------------------------------------------------- */

static CliExit run(const CliList *operands)
{
    SafeCopy how = {.stem = "model"};
    CliExit code = ckpt_size(args.shard, &how.part_bytes);
    Input in = {0};

    if (!code)
        code = ckpt_dtype(args.dtype, &how.dtype);
    if (!code && !args.output)
        code = cli_usage("-o DIR is missing");
    if (code)
        return code;
    code = open_spec(&in, operands->v[0]);
    if (code == CLI_DONE) {
        Status s = export(&in, operands->v[0], &how);
        code = s ? cli_failed(s) : CLI_DONE;
    }
    if (in.arena)
        input_close(&in);
    return code;
}

const CliCommand ckpt_export_hf = {
    .name = "export-hf",
    .operands = "CKPT",
    .help = "write weights as a folder that transformers loads",
    .details =
        "CKPT is a checkpoint, a folder of checkpoints (the newest is taken), "
        "or the weights.safetensors of `megac run --save-step`. DIR gets "
        "config.json and model.safetensors, or parts and their index, for "
        "`AutoModelForCausalLM.from_pretrained(DIR)`. Tables have no padding, "
        "and a tied head is not written. Tokenizers are no part of it.",
    .options = options,
    .operands_min = 1,
    .operands_max = 1,
    .run = run,
};
