/* explain.c - `megac explain SPEC`: memory and communication on one screen.
 *
 * Everything shown is planned, not estimated: bytes are those of the arena,
 * messages those of the program, the bubble that of the schedule if a backward
 * takes twice as long as a forward.  Advice names keys of the spec, and only
 * such as would change the term that dominates.
 */
#include "driver/predict.h"
#include "driver/traffic.h"

#include <inttypes.h>
#include <unistd.h>

static struct {
    CliList sets, flags;
} args;

static const CliOption options[] = {
    {"--set", 0, "KEY=VALUE", CLI_LIST, &args.sets,
     "change a value of the spec, such as parallel.tp=4"},
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

static void explain_memory(const Spec *s, const Heaviest *h)
{
    int64_t machine =
        (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    int64_t total = h->report->total;

    printf("\nmemory of a rank of stage %u, the heaviest\n", h->pp);
    for (Term t = 0; t < TERMS; t++)
        printf("  %-16s %12.1f MiB %5.1f %%\n", term_names[t],
               mib(h->bytes[t]), 100.0 * (double)h->bytes[t] / (double)total);
    printf("  %-16s %12.1f MiB; %.1f live at one time, %u micro-batches in "
           "flight\n",
           "total", mib(total), mib(h->report->lower_bound),
           h->report->in_flight);
    if (s->target.backend == BACKEND_CPU)
        printf("  this machine has %.1f MiB, enough for %" PRId64 " of %" PRId64
               " ranks\n",
               mib(machine), MC_MIN(machine / total, s->parallel.world_size),
               s->parallel.world_size);
}

/* ---- time ---------------------------------------------------------------- */

static void put_share(const char *what, double seconds, double step)
{
    printf("  %-16s %12.3f ms %6.1f %%\n", what, 1e3 * seconds,
           100 * seconds / step);
}

static void explain_time(const Spec *s, const Prediction *p)
{
    const SimStage *stage = &p->sim.stages[p->sim.busiest];
    double step = p->sim.step;

    printf("\ntime of a step on %s: %.3f s\n", s->hardware->name, step);
    printf("  %.0f tokens/s, %.1f on each GPU; %.1f TFLOP/s of the model on "
           "each, MFU %.1f %%\n",
           p->tokens_per_s, p->tokens_per_s_per_gpu,
           1e-12 * p->flops / step / (double)s->parallel.world_size,
           100 * p->mfu);
    printf("  of it, on a rank of stage %u, which computes longest\n",
           p->sim.busiest);
    put_share("compute", stage->compute, step);
    put_share("launches", stage->launch, step);
    for (uint32_t i = 0; i < stage->naxes; i++)
        if (stage->axis[i].busy > 0)
            printf("  waits for %-6s %12.3f ms %6.1f %%  of %.3f ms\n",
                   stage->axis[i].name, 1e3 * stage->axis[i].exposed,
                   100 * stage->axis[i].exposed / step,
                   1e3 * stage->axis[i].busy);
    put_share("waits for others", stage->bubble, step);
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

static void advise(const Spec *s, const Heaviest *h, double bubble)
{
    printf("\nlargest: %s; what would change it\n", term_names[h->largest]);
    advise_memory(s, h->largest);
    if (bubble > 0.1)
        puts("  training.global_batch_size: with more micro-batches the "
             "pipeline\n    waits less");
}

/* ---- the command --------------------------------------------------------- */

static CliExit explain(const Input *in)
{
    static const PassOptions all_passes;
    Program p;
    CliExit code = program_build(in, &all_passes, &p);

    if (code == CLI_DONE) {
        Heaviest h = find_heaviest(p.mem);

        explain_job(in->spec);
        double bubble = explain_schedule(in->arena, in->spec);
        explain_memory(in->spec, &h);
        Prediction predicted = {0};
        if (in->spec->hardware)
            code = predict(in, &p, &predicted);
        if (in->spec->hardware && code == CLI_DONE)
            explain_time(in->spec, &predicted);
        explain_traffic(in->arena, &p, h.pp);
        advise(in->spec, &h, bubble);
    }
    program_free(&p);
    return code;
}

static CliExit run(const CliList *operands)
{
    Input in;
    CliExit code =
        input_open_flags(&in, operands->v[0], &args.sets, &args.flags);

    if (code == CLI_DONE)
        code = explain(&in);
    input_close(&in);
    return code;
}

const CliCommand cmd_explain = {
    .name = "explain",
    .operands = "SPEC|DIR",
    .help = "one screen: memory, communication, what dominates, what to try",
    .options = options,
    .operands_min = 1,
    .operands_max = 1,
    .rest = &args.flags,
    .rest_value = "MEGATRON-FLAGS",
    .run = run,
};
