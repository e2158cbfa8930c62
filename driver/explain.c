/* explain.c - `megac explain SPEC`: memory, time and communication on one
 * screen.
 *
 * Bytes are those of the arena, messages those of the program, the bubble that
 * of the schedule if a backward takes twice as long as a forward: planned, not
 * estimated.  Only the time is, where target.hardware names a machine.  Advice
 * names keys of the spec, and only such as would change what dominates.
 */
#include "driver/explain_time.h"
#include "driver/traffic.h"

#include <inttypes.h>
#include <unistd.h>

static struct {
    CliList sets, flags;
    const char *hardware;
    bool json;
} args;

static const CliOption options[] = {
    {"--set", 0, "KEY=VALUE", CLI_LIST, &args.sets,
     "change a value of the spec, such as parallel.tp=4"},
    {"--hardware", 0, "NAME", CLI_TEXT, &args.hardware,
     "short for target.hardware: the machine to predict for"},
    {"--json", 0, NULL, CLI_FLAG, &args.json,
     "print one JSON document and nothing else"},
    CLI_OPTIONS_END,
};

typedef enum {
    TERM_PARAMS,
    TERM_GRADS,
    TERM_OPTIMIZER,
    TERM_ACTIVATIONS,
    TERM_WORKSPACE,
    TERM_COMM,
    TERMS
} Term;

static const char *const term_names[TERMS] = {
    "parameters",  "gradients", "optimizer state",
    "activations", "workspace", "communication"};

/* The stage whose ranks need most. */
typedef struct {
    uint32_t pp;
    const MemReport *report;
    int64_t bytes[TERMS];
    Term largest;
} Heaviest;

static double mib(int64_t bytes)
{
    return (double)bytes / 1048576.0;
}

/* ---- the job ------------------------------------------------------------- */

static void explain_job(const Spec *s)
{
    printf("%s on %" PRId64 " ranks: tp %" PRId64 "%s, pp %" PRId64
           ", %" PRId64 " replicas\n",
           s->model.name ? s->model.name : "the model", s->parallel.world_size,
           s->parallel.tp, s->parallel.sp ? " with sp" : "", s->parallel.pp,
           s->derived.dense_dp);
    printf("a step: %" PRId64 " samples of %" PRId64 " tokens; each replica "
           "%" PRId64 " micro-batches of %" PRId64 "\n",
           s->training.global_batch_size, s->training.seq_length,
           s->derived.microbatches, s->training.micro_batch_size);
}

static double explain_schedule(Arena *a, const Spec *s)
{
    Schedule *schedule = schedule_make(a, s);
    ScheduleTimes times = {0};
    const char *why;

    if (schedule_simulate(a, schedule, (ScheduleCosts){1, 1, 1, 0}, &times,
                          &why) &&
        s->parallel.pp > 1)
        printf("pipeline: %.1f %% of the time a stage waits for others\n",
               100 * times.bubble);
    schedule_free(schedule);
    return times.bubble;
}

/* ---- memory -------------------------------------------------------------- */

static Heaviest find_heaviest(const MemPlan *mem)
{
    Heaviest h = {.report = &mem->report[0]};

    for (uint32_t i = 1; i < mem->npp; i++)
        if (mem->report[i].total > h.report->total) {
            h.pp = i;
            h.report = &mem->report[i];
        }
    const MemReport *r = h.report;
    const int64_t bytes[TERMS] = {r->params,      r->grads,     r->optimizer,
                                  r->activations, r->workspace, r->comm};
    memcpy(h.bytes, bytes, sizeof bytes);
    for (Term t = 0; t < TERMS; t++)
        if (bytes[t] > bytes[h.largest])
            h.largest = t;
    return h;
}

static bool fits(const Spec *s, int64_t total)
{
    return total <= s->hardware->memory;
}

static void explain_fit(const Spec *s, int64_t total)
{
    int64_t machine =
        (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);

    if (s->hardware)
        printf("  %s into the %.1f MiB of %s\n",
               fits(s, total) ? "fits" : "does not fit",
               mib(s->hardware->memory), s->hardware->name);
    else if (s->target.backend == BACKEND_CPU)
        printf("  this machine has %.1f MiB, enough for %" PRId64 " of %" PRId64
               " ranks\n",
               mib(machine), MC_MIN(machine / total, s->parallel.world_size),
               s->parallel.world_size);
}

static void explain_memory(const Spec *s, const Heaviest *h)
{
    int64_t total = h->report->total;

    printf("\nmemory of a rank of stage %u, the heaviest\n", h->pp);
    for (Term t = 0; t < TERMS; t++)
        printf("  %-16s %12.1f MiB %5.1f %%\n", term_names[t],
               mib(h->bytes[t]), 100.0 * (double)h->bytes[t] / (double)total);
    printf("  %-16s %12.1f MiB; %.1f live at one time, %u micro-batches in "
           "flight\n",
           "total", mib(total), mib(h->report->lower_bound),
           h->report->in_flight);
    explain_fit(s, total);
}

/* ---- communication ------------------------------------------------------- */

/* Adds up the rows of one axis; false if an earlier row was of it. */
static bool sum_axis(const Traffic *t, const char *const *axis, uint32_t n,
                     uint32_t first, int64_t *out_bytes, int64_t *out_times)
{
    *out_bytes = *out_times = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(axis[i], axis[first]) != 0)
            continue;
        if (i < first)
            return false;
        *out_bytes += t[i].bytes * t[i].per_step;
        *out_times += t[i].per_step;
    }
    return true;
}

static void explain_traffic(Arena *a, const Program *p, uint32_t pp)
{
    int64_t bytes, times;
    uint32_t n;
    const Traffic *t = traffic_make(a, p, pp, &n);
    const char **axis = arena_array(a, const char *, n);

    for (uint32_t i = 0; i < n; i++)
        axis[i] = traffic_axis(a, p->m, &t[i]);
    printf("\ncommunication of such a rank in a step\n");
    for (uint32_t i = 0; i < n; i++)
        if (sum_axis(t, axis, n, i, &bytes, &times))
            printf("  over %-11s %12.1f MiB in %" PRId64 " operations\n",
                   axis[i], mib(bytes), times);
    if (n == 0)
        printf("  none\n");
}

/* ---- advice -------------------------------------------------------------- */

static void advise_memory(const Spec *s, Term largest)
{
    if (largest != TERM_ACTIVATIONS && largest != TERM_WORKSPACE)
        puts("  parallel.tp, parallel.pp: larger ones split parameters,\n"
             "    gradients and optimizer state further");
    else if (s->parallel.tp > 1 && !s->parallel.sp)
        puts("  parallel.sp: splits the residual stream over tp");
    else if (s->training.micro_batch_size > 1)
        puts("  training.micro_batch_size: smaller micro-batches");
    else
        puts("  parallel.tp: a larger one splits activations further");
}

static void advise(const Spec *s, const Heaviest *h, double bubble,
                   const Prediction *predicted)
{
    printf("\nlargest: %s; what would change it\n", term_names[h->largest]);
    advise_memory(s, h->largest);
    if (s->hardware)
        explain_time_advice(s, predicted);
    else if (bubble > 0.1)
        puts("  training.global_batch_size: with more micro-batches the "
             "pipeline\n    waits less");
}

/* ---- the command --------------------------------------------------------- */

static void print_screen(const Input *in, const Program *p, const Heaviest *h,
                         const Prediction *predicted)
{
    explain_job(in->spec);
    double bubble = explain_schedule(in->arena, in->spec);
    explain_memory(in->spec, h);
    if (in->spec->hardware)
        explain_time(in->spec, predicted);
    explain_traffic(in->arena, p, h->pp);
    advise(in->spec, h, bubble, predicted);
}

static void print_json(const Spec *s, const Heaviest *h,
                       const Prediction *predicted)
{
    json_t *root = json_pack(
        "{sI sI ss sI}", "world", (json_int_t)s->parallel.world_size,
        "memory_bytes", (json_int_t)h->report->total, "largest",
        term_names[h->largest], "in_flight",
        (json_int_t)h->report->in_flight);

    if (s->hardware) {
        json_object_set_new(root, "hardware", json_string(s->hardware->name));
        json_object_set_new(root, "fits",
                            json_boolean(fits(s, h->report->total)));
        explain_time_json(root, predicted);
    }
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
}

static CliExit explain(const Input *in)
{
    static const PassOptions all_passes;
    Program p;
    Prediction predicted = {0};
    CliExit code = program_build(in, &all_passes, &p);

    if (code == CLI_DONE && in->spec->hardware)
        code = predict(in, &p, &predicted);
    if (code == CLI_DONE) {
        Heaviest h = find_heaviest(p.mem);

        if (args.json)
            print_json(in->spec, &h, &predicted);
        else
            print_screen(in, &p, &h, &predicted);
    }
    program_free(&p);
    return code;
}

static CliExit run(const CliList *operands)
{
    Arena *a = arena_new();
    Input in;

    if (args.hardware)
        vec_push(&args.sets,
                 arena_printf(a, "target.hardware=%s", args.hardware));
    CliExit code =
        input_open_flags(&in, operands->v[0], &args.sets, &args.flags);
    if (code == CLI_DONE)
        code = explain(&in);
    input_close(&in);
    arena_free(a);
    return code;
}

const CliCommand cmd_explain = {
    .name = "explain",
    .operands = "SPEC|DIR",
    .help = "one screen: memory, time, what dominates, what to try",
    .options = options,
    .operands_min = 1,
    .operands_max = 1,
    .rest = &args.flags,
    .rest_value = "MEGATRON-FLAGS",
    .run = run,
};
