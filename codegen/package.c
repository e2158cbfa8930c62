/* package.c - the folder that `megac compile` leaves behind.
 *
 *     DIR/manifest.json   ranks, classes, hashes, memory, versions
 *     DIR/rank-00000 …    one executable per rank; ranks of a class are one
 *                         file with several names
 *     DIR/launch          starts this process's rank
 *     DIR/kernels/        the generated source of each class
 *     DIR/spec.yaml       the normal form of the input
 *     DIR/hardware.yaml   files of the user's that it names: a machine, …
 *     DIR/schedule.csv    … a schedule
 *
 * Everything is written to DIR.tmp, which then takes DIR's place, so a failure
 * leaves DIR as it was.  What runs left in DIR stays (package_keep.c).
 */
#include "codegen/emit_priv.h"

#include "runtime/payload.h"

#include <errno.h>
#include <ftw.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

typedef struct {
    const EmitInput *in;
    const EmitOutput *out;
    const Buf *objects;
    const char *program, *dir; /* the folder being filled */
    Arena *arena;
    Dialect dialect;
    double predicted; /* seconds of a step; 0: unknown */
    uint64_t run; /* a number for all executables of this output */
    Status failed; /* the first failure */
} Package;

static bool fail_with(Package *p, Status status)
{
    if (p->failed)
        status_drop(status);
    else
        p->failed = status;
    return false;
}

static bool fail(Package *p, const char *what, const char *path, int error)
{
    return fail_with(p, status_system(error, "cannot %s %s", what, path));
}

static const char *path_in(Package *p, const char *name)
{
    return arena_printf(p->arena, "%s/%s", p->dir, name);
}

static bool write_file(Package *p, const char *name, const Buf *text)
{
    const char *path = path_in(p, name);

    return buf_write_file(text, path) || fail(p, "write", path, errno);
}

static bool make_dir(Package *p, const char *path)
{
    return mkdir(path, 0777) == 0 || errno == EEXIST ||
           fail(p, "make", path, errno);
}

static int remove_one(const char *path, const struct stat *st, int type,
                      struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

void package_remove(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- executables --------------------------------------------------------- */

static uint32_t world(const Package *p)
{
    return MC_MAX(p->in->m->mesh.world, 1u);
}

static uint32_t rank_class(const Package *p, uint32_t rank)
{
    AxisSet pp = mesh_axis(p->in->m, "pp");

    return pp ? axes_index(&p->in->m->mesh, pp, rank) : 0;
}

static uint64_t hash_plans(const EmitOutput *out)
{
    uint64_t hash = 0;

    for (uint32_t i = 0; i < out->n; i++)
        hash = XXH3_64bits_withSeed(out->plans[i].s, out->plans[i].len, hash);
    return hash;
}

static bool write_class(Package *p, const char *path, uint32_t class)
{
    const Buf *plan = &p->out->plans[class];
    const Buf *so = p->dialect == DIALECT_CPU ? &p->objects[0] : NULL;
    Status s = payload_write(path, p->program, &(PayloadParts){
        .plan = plan->s, .plan_bytes = plan->len, .kernels = so ? so->s : NULL,
        .kernels_bytes = so ? so->len : 0, .run = p->run});

    return s ? fail_with(p, s) : true;
}

/* A rank's file is its class's, which the class's first rank names. */
static bool write_ranks(Package *p)
{
    const char **first = arena_array(p->arena, const char *, p->out->n);

    for (uint32_t rank = 0; rank < world(p); rank++) {
        uint32_t class = rank_class(p, rank);
        const char *path =
            path_in(p, arena_printf(p->arena, "rank-%05u", rank));
        if (first[class] && link(first[class], path) != 0)
            return fail(p, "link", path, errno);
        if (!first[class] && !write_class(p, path, class))
            return false;
        first[class] = first[class] ? first[class] : path;
    }
    return true;
}

static const char launch_text[] =
    "#!/bin/sh\n"
    "# Starts the rank that this process is, by the numbering of whatever\n"
    "# started it: torchrun, mpirun, PMIx or srun.\n"
    "dir=$(dirname \"$0\")\n"
    "rank=${RANK:-${OMPI_COMM_WORLD_RANK:-"
    "${PMIX_RANK:-${SLURM_PROCID:-0}}}}\n"
    "program=$dir/$(printf 'rank-%05d' \"$rank\")\n";

static bool write_launch(Package *p)
{
    int64_t threads = p->in->spec->target.threads; /* 0: the rank decides */
    Buf text = {0};
    bool ok;

    buf_puts(&text, launch_text);
    buf_printf(&text,
               "[ -e \"$program\" ] || {\n"
               "    echo \"$0: rank $rank: no $program, compiled for %u ranks\""
               " >&2\n"
               "    exit 3\n"
               "}\n"
               "exec \"$program\" ",
               world(p));
    if (threads > 0)
        buf_printf(&text, "--threads %lld ", (long long)threads);
    buf_puts(&text, "\"$@\"\n");
    ok = write_file(p, "launch", &text) &&
         (chmod(path_in(p, "launch"), 0755) == 0 ||
          fail(p, "write", path_in(p, "launch"), errno));
    buf_free(&text);
    return ok;
}

/* ---- sources ------------------------------------------------------------- */

/* The kernels of all classes, in one unit of which each class has its name. */
static bool write_sources(Package *p)
{
    const char *suffix = p->dialect == DIALECT_CPU ? "c" : "cu";
    Buf text = {0};
    bool ok;

    buf_puts(&text, codegen_prelude(p->dialect));
    for (uint32_t i = 0; i < p->out->nunits; i++)
        buf_printf(&text, "\n%s", p->out->units[i].text);
    ok = make_dir(p, path_in(p, "kernels"));
    for (uint32_t c = 0; ok && c < p->out->n; c++)
        ok = write_file(p, arena_printf(p->arena, "kernels/pp%u.%s", c, suffix),
                        &text);
    for (uint32_t i = 0; p->dialect == DIALECT_CUDA && ok &&
                         i < p->out->nunits; i++)
        ok = write_file(p, arena_printf(p->arena, "kernels/%s.cubin",
                                        p->out->units[i].name),
                        &p->objects[i]);
    buf_free(&text);
    return ok;
}

/* Takes a file along that the spec names by its whole path. */
static bool take_along(Package *p, const char **path, const char *name)
{
    Buf text = {0};
    bool ok = true;

    if (*path && **path == '/') {
        ok = (buf_read_file(&text, *path) || fail(p, "read", *path, errno)) &&
             write_file(p, name, &text);
        *path = name;
    }
    buf_free(&text);
    return ok;
}

static bool write_spec(Package *p)
{
    Spec s = *p->in->spec;
    Buf text = {0};
    bool ok = take_along(p, &s.target.hardware, "hardware.yaml") &&
              take_along(p, &s.schedule_path, "schedule.csv");

    spec_print(&s, &text);
    ok = ok && write_file(p, "spec.yaml", &text);
    buf_free(&text);
    return ok;
}

/* ---- the manifest -------------------------------------------------------- */

static json_t *memory_json(const MemReport *r)
{
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "params",
                     (json_int_t)r->params, "grads", (json_int_t)r->grads,
                     "optimizer", (json_int_t)r->optimizer, "activations",
                     (json_int_t)r->activations, "workspace",
                     (json_int_t)r->workspace, "comm", (json_int_t)r->comm,
                     "total", (json_int_t)r->total);
}

static json_t *class_json(Package *p, uint32_t class)
{
    const Buf *plan = &p->out->plans[class];
    const MemReport *r = &p->in->mem->report[class];
    const char *hash = arena_printf(
        p->arena, "%016llx",
        (unsigned long long)XXH3_64bits(plan->s, plan->len));
    json_t *ranks = json_array();

    for (uint32_t rank = 0; rank < world(p); rank++)
        if (rank_class(p, rank) == class)
            json_array_append_new(ranks, json_integer(rank));
    return json_pack("{s:s,s:o,s:s,s:I,s:o,s:I,s:I}", "name",
                     arena_printf(p->arena, "pp%u", class), "ranks", ranks,
                     "plan_hash", hash, "plan_bytes", (json_int_t)plan->len,
                     "memory", memory_json(r), "lower_bound",
                     (json_int_t)r->lower_bound, "in_flight",
                     (json_int_t)r->in_flight);
}

static bool write_manifest(Package *p)
{
    json_t *classes = json_array(), *root;
    Buf text = {0};
    char *dump;
    bool ok;

    for (uint32_t c = 0; c < p->out->n; c++)
        json_array_append_new(classes, class_json(p, c));
    root = json_pack("{s:s,s:s,s:i,s:s,s:I,s:o}", "megac", MEGAC_VERSION,
                     "model", p->in->spec->model.name, "plan_version",
                     PLAN_VERSION, "backend",
                     p->dialect == DIALECT_CPU ? "cpu" : "cuda", "world",
                     (json_int_t)world(p), "classes", classes);
    if (p->predicted > 0)
        json_object_set_new(root, "predicted_step_s",
                            json_real(p->predicted));
    dump = json_dumps(root, JSON_INDENT(2));
    if (!dump)
        mc_oom(0);
    buf_printf(&text, "%s\n", dump);
    ok = write_file(p, "manifest.json", &text);
    free(dump);
    json_decref(root);
    buf_free(&text);
    return ok;
}

/* ---- the whole ----------------------------------------------------------- */

/* Only an empty folder or an earlier output may be replaced. */
static bool may_replace(Package *p, const char *dir)
{
    const char *manifest = arena_printf(p->arena, "%s/manifest.json", dir);

    if (access(manifest, F_OK) == 0 || rmdir(dir) == 0 || errno == ENOENT)
        return true;
    return fail_with(p, status_make(STATUS_INPUT,
                                    "%s exists and is no compiled program",
                                    dir));
}

/* Moves what runs made, and removes the rest. */
static bool clear_old(Package *p, const char *old, const char *dir)
{
    Status s = package_keep(old, dir);

    if (s)
        return fail_with(p, s);
    package_remove(old);
    return true;
}

/* An earlier replacement that was cut off left its old folder. */
static bool finish_earlier(Package *p, const char *old, const char *dir)
{
    if (access(old, F_OK) != 0)
        return true;
    if (access(dir, F_OK) != 0)
        return rename(old, dir) == 0 || fail(p, "restore", dir, errno);
    return clear_old(p, old, dir);
}

/* Puts the finished folder in the place of an older one. */
static bool install(Package *p, const char *dir)
{
    const char *old = arena_printf(p->arena, "%s.megac-old", dir);
    bool replaces;

    if (!finish_earlier(p, old, dir))
        return false;
    replaces = access(dir, F_OK) == 0;
    if (replaces && rename(dir, old) != 0)
        return fail(p, "replace", dir, errno);
    if (rename(p->dir, dir) != 0) {
        fail(p, "write", dir, errno);
        if (replaces && rename(old, dir) != 0)
            return fail(p, "restore", dir, errno);
        return false;
    }
    return clear_old(p, old, dir);
}

/* `dir` as a shell completes it, without the slash. */
static const char *plain_name(Arena *a, const char *dir)
{
    size_t n = strlen(dir);

    while (n > 1 && dir[n - 1] == '/')
        n--;
    return arena_strndup(a, dir, n);
}

Status package_write(const char *dir, const EmitInput *in,
                     const EmitOutput *out, const Buf *objects,
                     const char *program, double predicted)
{
    Arena *a = arena_new();
    const char *to = plain_name(a, dir);
    Package p = {in, out, objects, program, arena_printf(a, "%s.tmp", to), a,
                 emit_dialect(in->spec), predicted, hash_plans(out),
                 STATUS_NONE};

    package_remove(p.dir);
    if (!(may_replace(&p, to) && make_dir(&p, p.dir) && write_sources(&p) &&
          write_ranks(&p) && write_launch(&p) && write_spec(&p) &&
          write_manifest(&p) && install(&p, to)))
        package_remove(p.dir);
    arena_free(a);
    return p.failed;
}
