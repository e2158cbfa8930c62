/* memplan_report.c - what the bytes of a stage are for, and whether they fit.
 *
 * The frame of the step function is counted at the moment of its peak: values
 * that live then are activations, or communication buffers if a message fills
 * or empties them; the rest, frames of callees and workspace of kernels and
 * what packing could not use, is workspace.
 */
#include "passes/memplan_priv.h"

#include <stdlib.h>

static int64_t state_sum(const MemPlan *p, uint32_t pp, Field f)
{
    int64_t sum = 0;

    for (uint32_t t = 1; t < p->ntensors; t++) {
        const MemState *s = memplan_state(p, pp, (TensorId){t}, f);
        if (effect_field(p->m, (TensorId){t}, f) == f && !s->host)
            sum += s->bytes * s->slots;
    }
    return sum;
}

/* ---- the peak of the step function --------------------------------------- */

static bool is_message(const Planner *p, ValueId v)
{
    Op op = (Op)p->m->nodes.v[p->m->values.v[v.i].def.i].op;

    return (op_info[op].flags & OPF_COMM) != 0;
}

/* Bytes that begin (+) and end (-) to live, by position. */
static void live_changes(Planner *p, const Func *func, int64_t *all,
                         int64_t *messages)
{
    for (uint32_t pos = 0; pos < func->body.n; pos++) {
        const Node *n = &p->m->nodes.v[func->body.v[pos].i];
        for (uint32_t i = 0; i < n->nres; i++) {
            ValueId v = node_res(n, i);
            int64_t bytes = memplan_value_bytes(p->m, v);
            int64_t *list = is_message(p, v) ? messages : all;
            if (value_root(p, v) != v.i || p->out->place[v.i].base != MEM_FRAME)
                continue;
            list[p->first[v.i]] += bytes;
            list[p->last[v.i] + 1] -= bytes;
        }
    }
}

static void peak_count(Planner *p, const Func *func, MemReport *r)
{
    int64_t *values = arena_array(p->arena, int64_t, func->body.n + 2);
    int64_t *messages = arena_array(p->arena, int64_t, func->body.n + 2);
    int64_t live = 0, comm = 0, peak = -1;

    live_changes(p, func, values, messages);
    for (uint32_t pos = 0; pos < func->body.n; pos++) {
        int64_t sum;
        live += values[pos];
        comm += messages[pos];
        sum = live + comm + node_scratch(p, func->body.v[pos]);
        if (sum <= peak)
            continue;
        peak = sum;
        r->activations = live;
        r->comm = comm;
    }
}

/* ---- microbatches in flight ---------------------------------------------- */

static bool is_forward(const Module *m, const Node *n)
{
    if (n->op != OP_CALL)
        return false;
    for (uint32_t i = 0; i < m->stages.n; i++)
        if (m->stages.v[i].fwd.i == call_scan(m, n).callee.i)
            return true;
    return false;
}

/* The latest call that uses what the node at each position made. */
static int32_t *last_calls(Planner *p, const Func *func)
{
    int32_t *last = arena_array(p->arena, int32_t, func->body.n + 1);

    for (uint32_t pos = 0; pos < func->body.n; pos++) {
        const Node *n = &p->m->nodes.v[func->body.v[pos].i];
        for (uint32_t i = 0; n->op == OP_CALL && i < n->nargs; i++) {
            int32_t def = p->def[node_arg(p->m, n, i).i];
            if (def >= 0)
                last[def] = (int32_t)pos;
        }
    }
    return last;
}

/* A microbatch is in flight from its forward to the last call, its backward,
 * that uses what the forward made. */
static uint32_t in_flight(Planner *p, const Func *func)
{
    int32_t *last = last_calls(p, func);
    int32_t *ends = arena_array(p->arena, int32_t, func->body.n + 1);
    int32_t now = 0, most = 0;

    for (uint32_t pos = 0; pos < func->body.n; pos++) {
        if (is_forward(p->m, &p->m->nodes.v[func->body.v[pos].i])) {
            now++;
            most = MC_MAX(most, now);
            ends[MC_MAX(last[pos], (int32_t)pos)]++;
        }
        now -= ends[pos];
    }
    return (uint32_t)most;
}

static MemReport report_of(Planner *p, FuncId f, uint32_t pp)
{
    const Func *func = &p->m->funcs.v[f.i];
    const MemFrame *frame = &p->out->frame[f.i];
    MemReport report = {0}, *r = &report;
    int64_t state = p->out->frame_start[pp];
    int64_t host_state = p->out->host_frame_start[pp];

    r->params = state_sum(p->out, pp, FIELD_PARAM);
    r->grads =
        state_sum(p->out, pp, FIELD_GRAD) + state_sum(p->out, pp, FIELD_GSUM);
    r->optimizer = state_sum(p->out, pp, FIELD_MASTER) +
                   state_sum(p->out, pp, FIELD_M) +
                   state_sum(p->out, pp, FIELD_V);
    peak_count(p, func, r);
    r->total = state + frame->device.bytes;
    r->host = host_state + frame->host.bytes;
    r->workspace = r->total - r->params - r->grads - r->optimizer -
                   r->activations - r->comm;
    r->lower_bound = state + frame->device.lower_bound;
    r->host_lower_bound = host_state + frame->host.lower_bound;
    r->in_flight = in_flight(p, func);
    return report;
}

/* The largest program of a stage counts; each bound is that of all of them. */
void report_make(Planner *p, uint32_t entry)
{
    uint32_t pp = entry % p->out->npp;
    MemReport *most = &p->out->report[pp], before = *most, r;

    p->out->frame_start[pp] = state_end(p->out, pp, false);
    p->out->host_frame_start[pp] = state_end(p->out, pp, true);
    r = report_of(p, p->m->entry.v[entry], pp);
    if (r.total > before.total)
        *most = r;
    most->lower_bound = MC_MAX(r.lower_bound, before.lower_bound);
    most->host = MC_MAX(r.host, before.host);
    most->host_lower_bound =
        MC_MAX(r.host_lower_bound, before.host_lower_bound);
}

/* ---- does it fit? -------------------------------------------------------- */

typedef struct {
    const char *what;
    int64_t bytes;
} Term;

static int term_compare(const void *left, const void *right)
{
    const Term *a = left, *b = right;

    return (a->bytes < b->bytes) - (a->bytes > b->bytes);
}

static double gib(int64_t bytes)
{
    return (double)bytes / (double)(1 << 30);
}

static void report_excess(const Module *m, const MemReport *r, uint32_t pp,
                          int64_t capacity, Loc where)
{
    Term terms[] = {
        {"parameters", r->params},         {"gradients", r->grads},
        {"optimizer state", r->optimizer}, {"activations", r->activations},
        {"workspace", r->workspace},       {"communication", r->comm}};

    qsort(terms, MC_LEN(terms), sizeof *terms, term_compare);
    diag_error(m->diag, where, "MC0501",
               "pipeline stage %u needs %.2f GiB of memory per rank, and there "
               "are %.2f",
               pp, gib(r->total), gib(capacity));
    diag_note(m->diag, where,
              "largest: %s %.2f GiB, %s %.2f GiB, %s %.2f GiB; %u microbatches "
              "in flight",
              terms[0].what, gib(terms[0].bytes), terms[1].what,
              gib(terms[1].bytes), terms[2].what, gib(terms[2].bytes),
              r->in_flight);
    diag_help(m->diag, "%s",
              strcmp(terms[0].what, "activations") == 0
                  ? "a smaller micro_batch_size, or sp with a larger tp, "
                    "makes activations smaller"
                  : "a larger tp or pp divides parameters, gradients and "
                    "optimizer state");
}

bool memplan_fits(const Module *m, const MemPlan *p, int64_t capacity,
                  Loc where)
{
    bool fits = true;

    for (uint32_t pp = 0; pp < p->npp; pp++) {
        if (p->report[pp].total <= capacity)
            continue;
        fits = false;
        report_excess(m, &p->report[pp], pp, capacity, where);
    }
    return fits;
}
