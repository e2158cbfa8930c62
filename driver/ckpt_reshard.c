/* ckpt_reshard.c - `megac ckpt reshard`: a checkpoint in other files.
 *
 * Any layout reads any checkpoint, so there is nothing to do for a change of
 * layout; what can be chosen is how large files are.  Every set of the folder
 * is divided anew, everything else is copied.
 */
#include "driver/ckpt.h"

#include "runtime/plan.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

static struct {
    const char *output, *shard;
} args;

static const CliOption options[] = {
    {"--output", 'o', "DIR", CLI_TEXT, &args.output, "where the copy goes"},
    CKPT_SHARD_OPTION(&args.shard),
    CLI_OPTIONS_END,
};

#define INDEX ".safetensors.index.json"
#define TENSORS ".safetensors"

typedef Vec(const char *) Names;

/* A folder, and what of it has been dealt with. */
typedef struct {
    Arena *arena;
    const char *dir;
    uint64_t part_bytes;
    Folder to;
    Names files, sets, parts;
} Reshard;

/* ---- what is in the folder ----------------------------------------------- */

/* The name without `end`, or NULL. */
static const char *stem_of(Arena *a, const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n > m && !strcmp(name + n - m, end) ? arena_strndup(a, name, n - m)
                                               : NULL;
}

static int by_text(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

static Status list_files(Reshard *r)
{
    DIR *d = opendir(r->dir);
    struct dirent *e;

    if (!d)
        return status_make(STATUS_INPUT, "%s: %s", r->dir, strerror(errno));
    while ((e = readdir(d)))
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            vec_push(&r->files, arena_strdup(r->arena, e->d_name));
    closedir(d);
    if (r->files.n)
        qsort(r->files.v, r->files.n, sizeof *r->files.v, by_text);
    return STATUS_NONE;
}

/* "-00002-of-00003" ends the stem of a part. */
static bool is_part(const char *stem)
{
    static const char form[] = "-00000-of-00000";
    size_t n = strlen(stem), m = strlen(form);

    for (size_t i = 0; n > m && i < m; i++) {
        char c = stem[n - m + i];
        if (form[i] == '0' ? c < '0' || c > '9' : c != form[i])
            return false;
    }
    return n > m;
}

/* ---- copying ------------------------------------------------------------- */

static Status copy_set(Reshard *r, const char *stem)
{
    SafeCopy how = {.dir = r->to.beside,
                    .stem = stem,
                    .part_bytes = r->part_bytes,
                    .dtype = PLAN_DTYPES};
    SafeSet set;
    Status s;

    STATUS_TRY(safe_open_in(r->dir, stem, &set));
    s = safe_copy(&set, &how);
    for (uint32_t i = 0; i < set.nparts; i++)
        vec_push(&r->parts, arena_strdup(r->arena, set.part[i].name));
    safe_close(&set);
    vec_push(&r->sets, stem);
    return s;
}

static Status copy_other(Reshard *r, const char *name)
{
    const char *path = arena_printf(r->arena, "%s/%s", r->dir, name);
    struct stat st;
    Buf all = {0};
    Status s;

    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return status_make(STATUS_INPUT, "%s is no file", path);
    if (!buf_read_file(&all, path))
        return status_make(STATUS_INPUT, "cannot read %s", path);
    s = folder_write(r->arena, &r->to, name, &all);
    buf_free(&all);
    return s;
}

/* Parts follow when their index comes. */
static Status copy_file(Reshard *r, const char *name)
{
    const char *index = stem_of(r->arena, name, INDEX);
    const char *stem = stem_of(r->arena, name, TENSORS);

    if (index || (stem && !is_part(stem)))
        return copy_set(r, index ? index : stem);
    return stem ? STATUS_NONE : copy_other(r, name);
}

static bool has_name(const Names *names, const char *name)
{
    for (uint32_t i = 0; i < names->n; i++)
        if (!strcmp(names->v[i], name))
            return true;
    return false;
}

/* No tensor may be left behind. */
static Status check_parts(const Reshard *r)
{
    for (uint32_t i = 0; i < r->files.n; i++) {
        const char *name = r->files.v[i];
        if (stem_of(r->arena, name, TENSORS) && !has_name(&r->parts, name))
            return status_make(STATUS_INPUT, "%s: no index lists %s", r->dir,
                               name);
    }
    if (r->sets.n == 0)
        return status_make(STATUS_INPUT, "%s: no .safetensors file", r->dir);
    return STATUS_NONE;
}

static Status copy_all(Reshard *r)
{
    for (uint32_t i = 0; i < r->files.n; i++)
        STATUS_TRY(copy_file(r, r->files.v[i]));
    return check_parts(r);
}

static Status reshard(Reshard *r, const char *operand)
{
    STATUS_TRY(ckpt_find(r->arena, operand, &r->dir));
    STATUS_TRY(list_files(r));
    STATUS_TRY(folder_begin(r->arena, args.output, &r->to));
    STATUS_TRY(folder_end(&r->to, copy_all(r)));
    for (uint32_t i = 0; i < r->sets.n; i++)
        STATUS_TRY(ckpt_report(r->to.path, r->sets.v[i]));
    return STATUS_NONE;
}

/* ---- the command --------------------------------------------------------- */

static CliExit run(const CliList *operands)
{
    Reshard r = {0};
    CliExit code = ckpt_size(args.shard, &r.part_bytes);

    if (code)
        return code;
    if (!args.output)
        return cli_usage("-o DIR is missing");
    r.arena = arena_new();
    Status s = reshard(&r, operands->v[0]);
    vec_free(&r.files);
    vec_free(&r.sets);
    vec_free(&r.parts);
    arena_free(r.arena);
    return s ? cli_failed(s) : CLI_DONE;
}

const CliCommand ckpt_reshard = {
    .name = "reshard",
    .operands = "CKPT",
    .help = "divide a checkpoint into files of another size",
    .details = "Checkpoints hold whole tensors under the names that they have "
               "on Hugging Face: a run of any layout reads them as they are, "
               "and nothing has to be done for another tp, pp, ep or dp. What "
               "can change is only how large the files are. Types and values "
               "stay; files that hold no tensors are copied. CKPT may be a "
               "folder of checkpoints: the newest is taken.",
    .options = options,
    .operands_min = 1,
    .operands_max = 1,
    .run = run,
};
