/* run.c - `megac run DIR`: all ranks on this machine, under mpirun.
 *
 * DIR/launch starts the right executable for its rank, wherever it runs; this
 * command only adds what is convenient on one machine: how many ranks, where
 * the metrics go, and one clear reason if it fails.
 */
#include "driver/ckpt.h"
#include "driver/input.h"
#include "driver/run.h"
#include "runtime/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

static struct {
    int64_t steps, save_step;
    bool profile, resume;
    const char *to, *load, *metrics;
    CliList rest;
} args = {.steps = -1, .save_step = -1};

static const CliOption options[] = {
    {"--steps", 0, "N", CLI_INT, &args.steps,
     "run up to step N (default: training.steps)"},
    {"--save-step", 0, "N", CLI_INT, &args.save_step,
     "write the weights after step N and its gradients; 0: the initial "
     "weights; needs --to"},
    {"--to", 0, "DIR", CLI_TEXT, &args.to, "where --save-step writes"},
    {"--load", 0, "PATH", CLI_TEXT, &args.load,
     "start from the weights in a .safetensors file, in the parts that an "
     "index.json lists, in a folder of Hugging Face with either, or in a "
     "checkpoint"},
    {"--resume", 0, NULL, CLI_FLAG, &args.resume,
     "go on from the newest complete checkpoint in training.checkpoint.dir, "
     "under any layout"},
    {"--metrics", 0, "FILE", CLI_TEXT, &args.metrics,
     "where the metrics go (default: training.log.jsonl, in DIR)"},
    {"--profile", 0, NULL, CLI_FLAG, &args.profile,
     "show where the time went, beside what the machine can do; each rank's "
     "table goes to DIR/profile.RANK"},
    CLI_OPTIONS_END,
};

typedef Vec(char *) Words;

/* ---- mpirun's command line ----------------------------------------------- */

static void add(Words *w, Arena *a, const char *option, const char *value)
{
    vec_push(w, arena_strdup(a, option));
    if (value)
        vec_push(w, arena_strdup(a, value));
}

static void add_int(Words *w, Arena *a, const char *option, int64_t value)
{
    if (value >= 0)
        add(w, a, option, arena_printf(a, "%" PRId64, value));
}

/* A path of the spec, which is relative to DIR; NULL: there is none. */
static const char *path_in(const Input *in, const char *path)
{
    if (!path || path[0] == '/')
        return path;
    return arena_printf(in->arena, "%s/%s", in->dir, path);
}

static const char *metrics_path(const Input *in)
{
    return args.metrics ? args.metrics
                        : path_in(in, in->spec->training.log.jsonl);
}

static void add_rank_options(Words *w, const Input *in)
{
    Arena *a = in->arena;

    add_int(w, a, "--steps", args.steps);
    add_int(w, a, "--save-step", args.save_step);
    if (args.to)
        add(w, a, "--to", args.to);
    if (args.load)
        add(w, a, "--load", args.load);
    if (args.resume)
        add(w, a, "--resume", NULL);
    if (metrics_path(in))
        add(w, a, "--metrics", metrics_path(in));
    if (args.profile)
        add(w, a, "--profile", arena_printf(a, "%s/profile", in->dir));
    if (isatty(STDERR_FILENO))
        add(w, a, "--progress", NULL);
    for (uint32_t i = 0; i < args.rest.n; i++)
        add(w, a, args.rest.v[i], NULL);
}

static Words command_line(const Input *in)
{
    Arena *a = in->arena;
    Words w = {0};

    add(&w, a, "mpirun", NULL);
    add(&w, a, "--oversubscribe", NULL);
    add(&w, a, "--bind-to", "none");
    add_int(&w, a, "-n", in->spec->parallel.world_size);
    add(&w, a, "sh", "-c");
    add(&w, a, run_wrapper, NULL);
    add(&w, a, arena_printf(a, "%s/launch", in->dir), NULL);
    add_rank_options(&w, in);
    vec_push(&w, NULL);
    return w;
}

/* Whether one process may read another's memory, which Open MPI tries for
 * large messages; the filters of some containers forbid the call. */
static bool can_read_processes(void)
{
    char from = 1, to = 0;
    struct iovec local = {&to, 1}, remote = {&from, 1};

    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1;
}

static void set_environment(void)
{
    if (geteuid() == 0) {
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    }
    if (!can_read_processes())
        setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
}

/* ---- the result ---------------------------------------------------------- */

/* A rank that found the user's input wrong exits with 1, as megac does. */
static CliExit judge(const RunErrors *e, int code)
{
    if (code == 0)
        return CLI_DONE;
    fputs("megac: error: the run failed: ", stderr);
    if (e->rank < 0)
        fprintf(stderr, "mpirun exited with code %d\n", code);
    else if (e->exit_code > 128)
        fprintf(stderr, "rank %d was ended by signal %d (%s)\n", e->rank,
                e->exit_code - 128, strsignal(e->exit_code - 128));
    else
        fprintf(stderr, "rank %d exited with code %d\n", e->rank,
                e->exit_code);
    return e->exit_code == CLI_INPUT ? CLI_INPUT : CLI_RUN;
}

static CliExit start(const Input *in)
{
    Words words = command_line(in);
    RunErrors errors;
    int code = 0;

    set_environment();
    run_errors_start(&errors);
    bool saves = in->spec->training.checkpoint.dir != NULL;
    Status status = run_spawn(words.v, saves, &errors, &code);
    run_errors_end(&errors);
    vec_free(&words);
    return status ? cli_failed(status) : judge(&errors, code);
}

static CliExit check(const Input *in, const char *operand)
{
    if (!in->dir)
        return cli_failed(status_make(STATUS_INPUT,
                                      "%s: not a directory made by `megac "
                                      "compile`", operand));
    if (access(arena_printf(in->arena, "%s/launch", in->dir), X_OK))
        return cli_failed(status_make(STATUS_INPUT,
                                      "%s/launch: missing or not executable",
                                      in->dir));
    return CLI_DONE;
}

/* Found out here, it is said once and not by every rank. */
static CliExit check_load(const Input *in)
{
    SafeSet set;
    Status status = ckpt_find(in->arena, args.load, &args.load);

    if (!status)
        status = ckpt_open(args.load, in, &set);
    if (status)
        return cli_failed(status);
    safe_close(&set);
    return CLI_DONE;
}

/* The same of checkpoints. */
static CliExit check_resume(const Input *in)
{
    const char *folder = path_in(in, in->spec->training.checkpoint.dir);
    int64_t newest = -1;
    Status status = STATUS_NONE;

    if (!folder)
        return cli_failed(status_make(STATUS_INPUT,
                                      "--resume: %s/spec.yaml has no "
                                      "training.checkpoint.dir", in->dir));
    status = checkpoint_newest(folder, &newest);
    if (!status && newest < 0)
        status = status_make(STATUS_INPUT,
                             "--resume: there is no complete checkpoint in %s",
                             folder);
    return status ? cli_failed(status) : CLI_DONE;
}

/* Of rank 0; the others' differ little, and lie beside it. */
static CliExit show_profile(const Input *in)
{
    const char *path = arena_printf(in->arena, "%s/profile.0", in->dir);
    FILE *f = fopen(path, "r");
    int c;

    if (!f)
        return cli_failed(status_system(errno, "cannot read %s", path));
    while ((c = getc(f)) != EOF)
        putchar(c);
    fclose(f);
    return CLI_DONE;
}

/* Training on made-up tokens is for tests; nobody should find out from the
 * curve. */
static void warn_of_no_data(const Input *in)
{
    if (in->spec->data.train.n == 0)
        fprintf(stderr, "megac: warning: data.train is not set: training on "
                        "synthetic tokens\n");
}

static CliExit run(const CliList *operands)
{
    static const CliList no_sets;
    Input in;

    if ((args.save_step >= 0) != (args.to != NULL))
        return cli_usage("--save-step and --to belong together");
    if (args.load && args.resume)
        return cli_usage("--load and --resume exclude each other");
    CliExit code = input_open(&in, operands->v[0], &no_sets);
    if (code == CLI_DONE)
        code = check(&in, operands->v[0]);
    if (code == CLI_DONE && args.load)
        code = check_load(&in);
    if (code == CLI_DONE && args.resume)
        code = check_resume(&in);
    if (code == CLI_DONE)
        warn_of_no_data(&in);
    if (code == CLI_DONE)
        code = run_check_memory(in.arena, in.dir);
    if (code == CLI_DONE)
        code = start(&in);
    if (code == CLI_DONE && args.profile)
        code = show_profile(&in);
    input_close(&in);
    return code;
}

const CliCommand cmd_run = {
    .name = "run",
    .operands = "DIR",
    .help = "train: all ranks of a compiled program on this machine",
    .details = "Shows progress and writes metrics, a JSON object per step. "
               "What follows `--` goes to each rank; `DIR/launch --help` "
               "lists what there is. On a cluster, start DIR/launch once per "
               "rank with mpirun or srun instead. With checkpoints, SIGTERM "
               "lets the ranks finish their step, save it and end with 0; a "
               "second one ends them at once.",
    .options = options,
    .operands_min = 1,
    .operands_max = 1,
    .rest = &args.rest,
    .run = run,
};
