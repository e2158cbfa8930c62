/* main.c - megac-rank, the program of one rank.
 *
 * It carries its plan and kernels behind itself (payload.h), finds out which
 * rank it is, and trains.  Exit codes: 0 done; 1 the plan, data or weights are
 * wrong; 2 usage; 3 the run failed.  A rank that fails ends all others.
 */
#include "runtime/checkpoint.h"
#include "runtime/payload.h"
#include "runtime/pin.h"
#include "runtime/train.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

typedef enum { FLAG, INTEGER, TEXT } OptionKind;

/* Every option is one of these, whatever its kind. */
typedef struct {
    bool given;
    int64_t number;
    const char *text;
} Option;

typedef struct {
#define OPTION(field, name, kind, argument, help) Option field;
#include "runtime/options.def"
#undef OPTION
} Options;

static const struct {
    const char *name;
    OptionKind kind;
    const char *argument, *help;
} option_rows[] = {
#define OPTION(field, name, kind, argument, help) {name, kind, argument, help},
#include "runtime/options.def"
#undef OPTION
};

enum { PATIENCE = 600, EXIT_INPUT = 1, EXIT_USAGE = 2, EXIT_RUN = 3 };

/* ---- the command line ---------------------------------------------------- */

static void print_help(FILE *to)
{
    fputs("usage: megac-rank [options]\n"
          "Runs one rank of a compiled training; megac run starts all.\n",
          to);
    for (size_t i = 0; i < MC_LEN(option_rows); i++) {
        char head[64];
        snprintf(head, sizeof head, "%s %s", option_rows[i].name,
                 option_rows[i].argument);
        fprintf(to, "  %-22s %s\n", head, option_rows[i].help);
    }
}

static int usage(const char *what, const char *which)
{
    fprintf(stderr, "megac-rank: %s %s (--help lists the options)\n", what,
            which);
    return EXIT_USAGE;
}

static int take(Option *option, OptionKind kind, const char *name,
                const char *argument)
{
    option->given = true;
    option->text = argument;
    if (kind == INTEGER &&
        (!str_to_int(argument, &option->number) || option->number < 0))
        return usage("not a number for", name);
    return 0;
}

/* PinWhen, or -1. */
static int pin_when(const Options *o)
{
    static const char *const words[] = {
        [PIN_IF_FULL] = "auto", [PIN_ALWAYS] = "always", [PIN_NEVER] = "never"};

    for (int i = 0; o->pin.given && i < (int)MC_LEN(words); i++)
        if (!strcmp(o->pin.text, words[i]))
            return i;
    return o->pin.given ? -1 : PIN_IF_FULL;
}

static int parse(int argc, char **argv, Options *out)
{
    Option *options = (Option *)(void *)out;

    for (int i = 1; i < argc; i++) {
        size_t row = 0;
        while (row < MC_LEN(option_rows) &&
               strcmp(argv[i], option_rows[row].name) != 0)
            row++;
        if (row == MC_LEN(option_rows))
            return usage("unknown option", argv[i]);
        OptionKind kind = option_rows[row].kind;
        if (kind != FLAG && i + 1 == argc)
            return usage("no argument for", argv[i]);
        int failed = take(&options[row], kind, argv[i],
                          kind == FLAG ? NULL : argv[i + 1]);
        if (failed)
            return failed;
        i += kind != FLAG;
    }
    if (out->save_step.given && !out->to.given)
        return usage("--save-step needs", "--to DIR");
    if (out->load.given && out->resume.given)
        return usage("--load and --resume", "exclude each other");
    if (out->pin.given && pin_when(out) < 0)
        return usage("--pin takes auto, always or never, not", out->pin.text);
    return 0;
}

/* ---- plan and kernels ---------------------------------------------------- */

static Status read_plan_file(const char *path, Payload *out)
{
    FILE *f = fopen(path, "rb");
    long n = -1;

    if (f && fseek(f, 0, SEEK_END) == 0)
        n = ftell(f);
    if (n < 0 || fseek(f, 0, SEEK_SET) != 0) {
        Status s = status_system(errno, "cannot read %s", path);
        if (f)
            fclose(f);
        return s;
    }
    out->plan = malloc((size_t)n + 1);
    out->plan_bytes = out->plan ? fread(out->plan, 1, (size_t)n, f) : 0;
    fclose(f);
    if (!out->plan || out->plan_bytes != (size_t)n)
        return status_make(STATUS_SYSTEM, "cannot read %s", path);
    return STATUS_NONE;
}

/* The file that this process runs. */
static const char *own_path(void)
{
    static char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

    return n > 0 ? path : "/proc/self/exe";
}

static Status find_plan(const Options *o, Payload *out)
{
    STATUS_TRY(payload_read(own_path(), out));
    if (o->plan.given) {
        free(out->plan);
        out->plan = NULL;
        STATUS_TRY(read_plan_file(o->plan.text, out));
    }
    if (!out->plan)
        return status_make(STATUS_INPUT, "%s carries no plan; give --plan FILE",
                           own_path());
    return STATUS_NONE;
}

static Status load_plan(const Options *o, Plan *out_plan, Payload *payload)
{
    Status s;

    STATUS_TRY(find_plan(o, payload));
    s = plan_load(payload->plan, payload->plan_bytes, out_plan);
    free(payload->plan);
    payload->plan = NULL;
    return status_in(s, "%s", o->plan.given ? o->plan.text : own_path());
}

/* ---- who am I ------------------------------------------------------------ */

/* The rank that mpirun or srun gave this process, or NULL. */
static const char *launched(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK",
                                        "PMI_RANK"};
    const char *rank = NULL;

    for (size_t i = 0; i < MC_LEN(names) && !rank; i++)
        rank = getenv(names[i]);
    return rank;
}

/* The same before communication has started. */
static uint32_t expected_rank(void)
{
    const char *text = launched();
    int64_t rank = 0;

    return text && str_to_int(text, &rank) ? (uint32_t)rank : 0;
}

static Status join_run(const Plan *p, uint32_t *out_rank, bool *out_mpi)
{
    uint32_t world = 1;

    *out_rank = 0;
    *out_mpi = launched() != NULL;
    if (*out_mpi)
        STATUS_TRY(comm_mpi_start(out_rank, &world));
    if (world != p->job.v->world)
        return status_make(STATUS_RUN,
                           "%s was compiled for %u ranks, but %u "
                           "%s started",
                           plan_text(p, p->job.v->name), p->job.v->world, world,
                           world == 1 ? "was" : "were");
    if (!plan_has_rank(p, *out_rank))
        return status_make(STATUS_RUN,
                           "rank %u was started with the program "
                           "of other ranks (%s)",
                           *out_rank, plan_text(p, p->job.v->class_name));
    return STATUS_NONE;
}

/* That all ranks run executables which were made together. */
static Status check_others(const Payload *payload)
{
    char own[32], *all = NULL, *rest, *line;
    bool same = true;
    Status s;

    snprintf(own, sizeof own, "%016llx\n", (unsigned long long)payload->run);
    s = comm_mpi_gather(own, &all);
    rest = all;
    while (!s && (line = strsep(&rest, "\n")) && *line)
        same &= strncmp(line, own, strlen(line)) == 0;
    free(all);
    if (!s && !same)
        s = status_make(STATUS_RUN, "another rank runs the executable of "
                                    "another compilation");
    return s;
}

/* ---- training ------------------------------------------------------------ */

static const char *kernels_of(const Options *o, const Payload *payload)
{
    if (o->kernels.given)
        return o->kernels.text;
    return *payload->kernels ? payload->kernels : NULL;
}

/* The folder of the plan's checkpoints, which is relative to that of this
 * program; NULL: there is none. */
static const char *checkpoints_of(const Plan *p)
{
    static char path[CHECKPOINT_PATH_BYTES];
    const char *dir = plan_text(p, p->training.v->save_dir);
    const char *own = own_path(), *name = strrchr(own, '/');

    if (*dir == '/')
        return dir;
    snprintf(path, sizeof path, "%.*s/%s", (int)(name - own), own, dir);
    return *dir ? path : NULL;
}

static TrainConfig configure(const Options *o, const Plan *p,
                             const Payload *payload)
{
    TrainConfig c = {.plan = p,
                     .device = &device_cpu,
                     .steps = o->steps.given ? o->steps.number : -1,
                     .save_step = o->save_step.given ? o->save_step.number : -1,
                     .save_dir = o->to.text,
                     .load = o->load.text,
                     .checkpoints = checkpoints_of(p),
                     .resume = o->resume.given,
                     .metrics = o->metrics.text,
                     .clock = o->cpu_time.given ? mc_cpu_seconds : mc_seconds,
                     .seed = o->seed.given ? o->seed.number : -1,
                     .live = o->progress.given || isatty(STDERR_FILENO),
                     .quiet = o->quiet.given,
                     .measure_memory = o->measure_memory.given,
                     .check_replicas = o->check_replicas.given};

    c.kernels = kernels_of(o, payload);
    c.threads = o->threads.given ? (int)MC_MIN(o->threads.number, 4096)
                                 : pin_default_threads();
    c.patience = o->patience.given ? (double)o->patience.number : PATIENCE;
    return c;
}

static Status train(const TrainConfig *config)
{
    Train *t;
    Status s;

    STATUS_TRY(train_open(config, &t));
    watch_train(t);
    s = train_run(t);
    watch_train(NULL);
    if (!s)
        train_close(t); /* after a failure, peers may be gone: just end */
    return s;
}

static Status run_rank(const Options *o, const Plan *p, const Payload *payload,
                       uint32_t *out_rank)
{
    TrainConfig config = configure(o, p, payload);
    char profile[4096] = "";
    bool mpi;

    if (config.checkpoints)
        watch_end();
    STATUS_TRY(join_run(p, out_rank, &mpi));
    STATUS_TRY(check_others(payload));
    STATUS_TRY(pin_threads((PinWhen)pin_when(o), config.threads, *out_rank));
    watch_start(p, *out_rank);
    config.rank = *out_rank;
    config.comm = mpi ? &comm_mpi : &comm_self;
    if (o->profile.given) {
        snprintf(profile, sizeof profile, "%s.%u", o->profile.text, *out_rank);
        config.profile = profile;
    }
    STATUS_TRY(train(&config));
    comm_mpi_stop();
    return STATUS_NONE;
}

static void print_plan(const Plan *p)
{
    Buf text = {0};

    plan_print(p, &text);
    fputs(buf_str(&text), stdout);
    buf_free(&text);
}

/* Prints what went wrong; the exit code. */
static int complain(Status s, uint32_t rank)
{
    int code = status_code(s) == STATUS_INPUT ? EXIT_INPUT : EXIT_RUN;

    fprintf(stderr, "megac-rank: rank %u: %s\n", rank, status_text(s));
    fflush(stderr);
    status_drop(s);
    return code;
}

int main(int argc, char **argv)
{
    Options o = {0};
    Payload payload = {0};
    uint32_t rank = expected_rank();
    Plan p;
    Status s;
    int failed = parse(argc, argv, &o);

    if (failed)
        return failed;
    if (o.help.given) {
        print_help(stdout);
        return 0;
    }
    s = load_plan(&o, &p, &payload);
    if (s)
        return complain(s, rank);
    if (o.print_plan.given)
        print_plan(&p);
    else
        s = run_rank(&o, &p, &payload, &rank);
    if (s)
        comm_mpi_abort(complain(s, rank));
    plan_free(&p);
    return 0;
}
