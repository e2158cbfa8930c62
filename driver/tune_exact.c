/* tune_exact.c - candidates planned for real, and simulated.
 *
 * A candidate goes the way of `megac compile --plan-only`, from the text of its
 * normal form on: what is reported is what a compile of that text plans.  A
 * sketch is a compile of the same with so few microbatches that the pipeline
 * just fills, twice: a step takes
 *
 *     T(m) = T(3 pp) + (m - 3 pp) (T(3 pp) - T(2 pp)) / pp
 *
 * Every core has a process that takes each n-th candidate and sends back its
 * result; one that dies leaves its results out, and no other is touched by it.
 * All end with their parent.
 */
#include "driver/predict.h"
#include "driver/tune.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS_MAX = 64 };

typedef struct {
    uint32_t index;
    Exact exact;
} Message;

_Static_assert(sizeof(Message) <= 512, "written at once, whoever else writes");

/* ---- one candidate ------------------------------------------------------- */

static void refuse(Exact *out, CliExit code, const char *reason,
                   const char *words)
{
    out->code = code;
    snprintf(out->reason, sizeof out->reason, "%s", reason);
    snprintf(out->words, sizeof out->words, "%s", words);
}

static void refuse_by(Exact *out, CliExit code, const Diag *d)
{
    const char *text = diag_first_text(d);

    refuse(out, code, text ? diag_first_code(d) : "bug",
           text ? text : "the compiler failed");
}

static void weigh(const MemPlan *mem, Exact *out)
{
    const MemReport *r = &mem->report[0];

    for (uint32_t i = 1; i < mem->npp; i++)
        if (mem->report[i].total > r->total)
            r = &mem->report[i];
    out->stage = (uint32_t)(r - mem->report);
    out->total = r->total;
    out->lowest = r->total == r->lower_bound;
    out->bytes[BYTES_PARAMS] = r->params;
    out->bytes[BYTES_GRADS] = r->grads;
    out->bytes[BYTES_OPTIMIZER] = r->optimizer;
    out->bytes[BYTES_ACTIVATIONS] = r->activations;
    out->bytes[BYTES_WORKSPACE] = r->workspace;
    out->bytes[BYTES_COMM] = r->comm;
}

static void keep_prediction(const Prediction *p, Exact *out)
{
    const SimStage *s = &p->sim.stages[p->sim.busiest];
    double most = 0;

    out->step = p->sim.step;
    out->tokens_per_s_per_gpu = p->tokens_per_s_per_gpu;
    out->mfu = p->mfu;
    out->compute = s->compute + s->launch;
    out->bubble = s->bubble;
    out->host = s->host;
    out->exposed = s->exposed;
    for (uint32_t i = 0; i < s->naxes; i++)
        if (s->axis[i].exposed > most) {
            most = s->axis[i].exposed;
            snprintf(out->axis, sizeof out->axis, "%s", s->axis[i].name);
        }
}

static CliExit simulate_program(const Input *in, const Program *p, Exact *out)
{
    EmitInput input = {p->m, p->mem, in->spec};
    EmitOutput emitted = {0};
    PlanVerifyStats stats;
    PlanSet set = {0};
    CliExit code = CLI_INPUT;

    if (emit_plans(in->arena, &input, &emitted))
        code = plans_make(in->arena, p->m, &emitted, &set);
    if (code == CLI_DONE &&
        !plan_verify(in->diag, set.classes, set.n, &stats))
        code = CLI_BUG;
    if (code == CLI_DONE) {
        Prediction prediction = predict_plans(in->arena, in->spec, &set);
        keep_prediction(&prediction, out);
    }
    plans_free(&set);
    emit_free(&emitted);
    return code;
}

static CliExit plan_program(const Input *in, PlanEffort effort, int64_t memory,
                            Exact *out)
{
    static const PassOptions all_passes;
    Program p;
    CliExit code = effort == PLAN_COMPILE
                       ? program_build(in, &all_passes, &p)
                       : program_sketch(in, &p);

    if (code == CLI_DONE) {
        weigh(p.mem, out);
        code = out->total > memory ? CLI_FIT : simulate_program(in, &p, out);
    }
    program_free(&p);
    return code;
}

static void plan_one(const Spec *s, PlanEffort effort, int64_t memory,
                     Exact *out)
{
    Input in = {.arena = arena_new()};
    Buf text = {0};

    *out = (Exact){.code = CLI_INPUT, .effort = effort};
    in.diag = diag_new(in.arena);
    spec_print(s, &text);
    in.spec = spec_parse(in.arena, in.diag, "candidate", buf_str(&text), NULL,
                         0);
    if (in.spec)
        out->code = plan_program(&in, effort, memory, out);
    if (out->code == CLI_FIT)
        refuse(out, CLI_FIT, "memory", "its plan is too large");
    else if (out->code != CLI_DONE)
        refuse_by(out, out->code, in.diag);
    buf_free(&text);
    diag_free(in.diag);
    arena_free(in.arena);
}

/* ---- a sketch ------------------------------------------------------------ */

/* The same with fewer microbatches, which are a multiple of pp. */
static Spec shorter(const Spec *s, int64_t microbatches)
{
    Spec out = *s;

    out.training.global_batch_size = microbatches *
                                     s->training.micro_batch_size *
                                     s->derived.dense_dp;
    out.training.rampup.n = 0;
    return out;
}

/* Where the pipeline does not fill, or fills with all there is. */
static bool is_short(const Spec *s)
{
    return s->derived.microbatches <= 3 * s->parallel.pp ||
           s->parallel.schedule == SCHED_GPIPE ||
           s->parallel.schedule == SCHED_CSV;
}

static void sketch_one(const Spec *s, int64_t memory, Exact *out)
{
    int64_t pp = s->parallel.pp, m = s->derived.microbatches;
    Spec two = shorter(s, 2 * pp), three = shorter(s, 3 * pp);
    Exact before;

    if (is_short(s)) {
        plan_one(s, PLAN_SKETCH, memory, out);
        return;
    }
    plan_one(&three, PLAN_SKETCH, memory, out);
    if (out->code != CLI_DONE)
        return;
    plan_one(&two, PLAN_SKETCH, memory, &before);
    if (before.code == CLI_DONE)
        out->step += (out->step - before.step) * (double)(m - 3 * pp) /
                     (double)pp;
    else
        *out = before;
}

/* ---- all ----------------------------------------------------------------- */

typedef struct {
    const Spec *const *specs;
    uint32_t n;
    PlanEffort effort;
    int64_t memory;
} Job;

_Noreturn static void work(const Job *job, uint32_t first, uint32_t step,
                           int to)
{
    Message m;

    prctl(PR_SET_PDEATHSIG, SIGTERM);
    memset(&m, 0, sizeof m);
    for (m.index = first; m.index < job->n; m.index += step) {
        const Spec *s = job->specs[m.index];
        if (job->effort == PLAN_SKETCH)
            sketch_one(s, job->memory, &m.exact);
        else
            plan_one(s, job->effort, job->memory, &m.exact);
        if (write(to, &m, sizeof m) != (ssize_t)sizeof m)
            _exit(CLI_RUN);
    }
    _exit(CLI_DONE);
}

/* Until the last writer has closed its end. */
static void collect(int from, uint32_t n, Exact *out)
{
    Message m;
    size_t have = 0;
    ssize_t got;

    while ((got = read(from, (char *)&m + have, sizeof m - have)) > 0 ||
           (got < 0 && errno == EINTR)) {
        have += got > 0 ? (size_t)got : 0;
        if (have < sizeof m)
            continue;
        have = 0;
        if (m.index < n)
            out[m.index] = m.exact;
    }
}

static uint32_t workers_for(uint32_t n)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t most = (uint32_t)MC_MIN(MC_MAX(cores, 1), WORKERS_MAX);

    return MC_MIN(n, most);
}

Status exact_plan(const Spec *const *specs, uint32_t n, PlanEffort effort,
                  int64_t memory, Exact *out)
{
    Job job = {specs, n, effort, memory};
    uint32_t workers = workers_for(n), started = 0;
    pid_t child[WORKERS_MAX];
    int ends[2];

    for (uint32_t i = 0; i < n; i++) {
        out[i] = (Exact){0};
        refuse(&out[i], CLI_BUG, "bug", "the compiler failed");
    }
    if (pipe(ends))
        return status_system(errno, "cannot make a pipe");
    fflush(NULL);
    while (started < workers && (child[started] = fork()) >= 0) {
        if (child[started] == 0)
            work(&job, started, workers, ends[1]);
        started++;
    }
    int error = errno;
    close(ends[1]);
    if (started == workers)
        collect(ends[0], n, out);
    close(ends[0]);
    for (uint32_t i = 0; i < started; i++)
        waitpid(child[i], NULL, 0);
    return started == workers ? STATUS_NONE
                              : status_system(error, "cannot start a process");
}
