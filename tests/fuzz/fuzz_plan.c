/* fuzz_plan.c - any bytes as a plan: an error, or a plan that can be printed,
 * asked about every rank, and run on the device that only counts.
 *
 * The frame (magic, version, size, hash) is put right first, so that mutations
 * reach the checks behind it.  Plans that would run for long are not run.
 */
#include "runtime/exec.h"
#include "runtime/plan_priv.h"
#include "runtime/state.h"

#include <stdlib.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { ARENA_MAX = 1 << 20, RANKS_TRIED = 4 };
static const double RUNS_MAX = 1e4;

static void mend_frame(char *blob, size_t size)
{
    PlanHeader h = {
        .version = PLAN_VERSION, .tables = PLAN_TABLES, .size = size};

    memcpy(h.magic, PLAN_MAGIC, sizeof h.magic);
    h.hash = XXH3_64bits(blob + sizeof h, size - sizeof h);
    memcpy(blob, &h, sizeof h);
}

/* ---- questions ----------------------------------------------------------- */

static void ask_state(const Plan *p, uint32_t rank)
{
    PlanPart part;

    for (uint32_t i = 0; i < p->tensors.n; i++) {
        const PlanTensor *t = &p->tensors.v[i];
        for (uint32_t k = 0; k < t->fields.n; k++)
            plan_field_part(p, t, &p->fields.v[t->fields.first + k], rank,
                            &part);
    }
}

static void ask_rank(const Plan *p, uint32_t rank)
{
    uint32_t ranks[16], own;

    for (uint32_t i = 0; i < p->groups.n; i++)
        plan_group_ranks(p, i, rank, ranks, MC_LEN(ranks), &own);
    for (uint32_t i = 0; i < p->peers.n; i++)
        if (plan_peer_rank(p, i, rank) >= p->job.v->world)
            abort();
    for (uint32_t i = 0; i < p->exprs.n; i++)
        plan_expr_value(p, i, rank);
    ask_state(p, rank);
}

/* ---- running ------------------------------------------------------------- */

static Status load_batch(void *self, PlanBatch what, int64_t microbatch,
                         int32_t *out)
{
    const PlanTraining *t = ((const Plan *)self)->training.v;
    size_t n = (size_t)(t->micro_batch * t->seq_length);

    (void)what;
    (void)microbatch;
    memset(out, 0, n * sizeof *out);
    return STATUS_NONE;
}

static float scalar(void *self, PlanScalar what)
{
    (void)self;
    return (float)what;
}

static Status metric(void *self, PlanMetric what, float value)
{
    (void)self;
    (void)what;
    (void)value;
    return STATUS_NONE;
}

static Status grads(void *self)
{
    (void)self;
    return STATUS_NONE;
}

/* Instructions of a step, RUNS_MAX at most. */
static double step_length(const Plan *p, uint32_t segment)
{
    PlanRange r = p->segments.v[segment].instrs;
    double n = r.n;

    for (uint32_t i = 0; i < r.n && n < RUNS_MAX; i++) {
        const PlanInstr *in = &p->instrs.v[r.first + i];
        if (in->op == PLAN_CALL)
            n += in->aux * (1 + step_length(p, in->index));
    }
    return n;
}

static void run(Plan *p)
{
    ExecConfig config = {.plan = p,
                         .driver = &device_null,
                         .host = {p, load_batch, scalar, metric, grads}};
    Exec *e = NULL;
    Status s = device_null.open(&(DeviceConfig){p, NULL, 1}, &config.device);

    if (!s)
        s = comm_new(p, 0, &comm_self, 0, &config.comm);
    if (!s)
        s = exec_new(&config, &e);
    if (!s)
        s = exec_step(e);
    status_drop(s);
    exec_free(e);
    comm_free(config.comm);
    device_null.close(config.device);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    Buf text = {0};
    char *blob;
    Plan p;

    if (size < sizeof(PlanHeader))
        return 0;
    blob = malloc(size);
    if (!blob)
        return 0;
    memcpy(blob, bytes, size);
    mend_frame(blob, size);
    Status s = plan_load(blob, size, &p);
    if (!s) {
        plan_print(&p, &text);
        for (uint32_t r = 0; r < RANKS_TRIED && r < p.job.v->world; r++)
            ask_rank(&p, r);
        if (plan_end_of_memory(&p) <= ARENA_MAX &&
            step_length(&p, p.programs.v[0].segment) < RUNS_MAX)
            run(&p);
        plan_free(&p);
    }
    status_drop(s);
    buf_free(&text);
    free(blob);
    return 0;
}
