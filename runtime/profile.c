/* profile.c - where the time of a run went.
 *
 * Instructions that do the same (one kernel, product or collective) are one
 * row.  Beside what a row achieved stands what the machine can do, measured in
 * the same process: for a product the same shape in its best layout, or what
 * the run itself took where that was less; for all else the bandwidth of a copy
 * (less than 1 byte counted per byte moved where caches help, so a row can
 * exceed it).  "ideal" is the quickest run of each instruction times how often
 * it ran: the step on an undisturbed machine.
 */
#include "runtime/train.h"

#include <errno.h>
#include <stdlib.h>

typedef struct {
    uint32_t instr; /* the first one */
    double seconds, ideal;
    double flops, bytes; /* of all runs */
    double ceiling;      /* seconds of all runs at the machine's best */
    uint64_t runs;
} Row;

typedef Vec(Row) Rows;

typedef struct {
    const Exec *e;
    const Plan *p;
    const ProfileConfig *c;
    Rows rows;
    double bandwidth;
    double step, ideal;        /* seconds per step */
    double gemm, gemm_ceiling; /* ideal seconds per step */
} Profile;

/* ---- rows ---------------------------------------------------------------- */

static bool same_work(const PlanInstr *x, const PlanInstr *y)
{
    bool indexed = x->op == PLAN_LAUNCH || x->op == PLAN_GEMM ||
                   x->op == PLAN_COLLECTIVE || x->op == PLAN_HOST;

    return x->op == y->op && (!indexed || x->index == y->index);
}

static Row *row_of(Profile *f, uint32_t instr)
{
    const PlanInstr *in = f->p->instrs.v;

    for (uint32_t i = 0; i < f->rows.n; i++)
        if (same_work(&in[f->rows.v[i].instr], &in[instr]))
            return &f->rows.v[i];
    vec_push(&f->rows, ((Row){.instr = instr}));
    return &vec_last(&f->rows);
}

static double gemm_flops(const PlanGemm *g)
{
    return 2.0 * (double)g->m * (double)g->n * (double)g->k * (double)g->batch;
}

static void add_instr(Profile *f, uint32_t instr)
{
    const ExecTime *t = &exec_times(f->e)[instr];
    const PlanInstr *in = &f->p->instrs.v[instr];
    Row *row;

    if (!t->runs || in->op == PLAN_CALL)
        return;
    row = row_of(f, instr);
    row->seconds += t->seconds;
    row->ideal += t->best * (double)t->runs;
    row->runs += t->runs;
    row->bytes += (double)exec_bytes(f->e, instr) * (double)t->runs;
    if (in->op == PLAN_GEMM)
        row->flops += gemm_flops(&f->p->gemms.v[in->index]) * (double)t->runs;
    if (in->op == PLAN_LAUNCH)
        row->flops +=
            f->p->kernels.v[in->index].work.flops * (double)t->runs;
    f->ideal += t->best * (double)t->runs / (double)f->c->steps;
}

static Status row_measure(Profile *f, Row *row)
{
    const PlanInstr *in = &f->p->instrs.v[row->instr];
    const DeviceDriver *driver = f->c->driver;
    double each = 0.0;

    row->ceiling = f->bandwidth > 0.0 ? row->bytes / f->bandwidth : 0.0;
    if (in->op != PLAN_GEMM || !driver->gemm_ceiling)
        return STATUS_NONE;
    STATUS_TRY(
        driver->gemm_ceiling(f->c->device, in->index, f->c->clock, &each));
    row->ceiling = MC_MIN(each * (double)row->runs, row->ideal);
    f->gemm += row->ideal / (double)f->c->steps;
    f->gemm_ceiling += row->ceiling / (double)f->c->steps;
    return STATUS_NONE;
}

static int by_time(const void *x, const void *y)
{
    const Row *a = x, *b = y;

    return (a->ideal < b->ideal) - (a->ideal > b->ideal);
}

static Status measure(Profile *f)
{
    if (f->c->driver->copy_ceiling)
        STATUS_TRY(f->c->driver->copy_ceiling(f->c->device, f->c->clock,
                                              &f->bandwidth));
    for (uint32_t i = 0; i < f->p->instrs.n; i++)
        add_instr(f, i);
    for (uint32_t i = 0; i < f->rows.n; i++)
        STATUS_TRY(row_measure(f, &f->rows.v[i]));
    if (f->rows.n)
        qsort(f->rows.v, f->rows.n, sizeof *f->rows.v, by_time);
    return STATUS_NONE;
}

/* ---- the table ----------------------------------------------------------- */

static void row_name(const Plan *p, const Row *row, char *out, size_t cap)
{
    const PlanInstr *in = &p->instrs.v[row->instr];
    const PlanGemm *g;

    if (in->op == PLAN_LAUNCH) {
        snprintf(out, cap, "%s", plan_text(p, p->kernels.v[in->index].symbol));
    } else if (in->op == PLAN_GEMM) {
        g = &p->gemms.v[in->index];
        snprintf(out, cap, "gemm %lldx%lldx%lld%s%s%s %s>%s%s%s %s",
                 (long long)g->m, (long long)g->n, (long long)g->k,
                 g->trans_a ? " At" : "", g->trans_b ? " Bt" : "",
                 g->accumulate ? " +=" : "", plan_dtype_name(g->type_a),
                 plan_dtype_name(g->type_c), g->bias ? " +bias" : "",
                 g->residual ? " +residual" : "",
                 g->activation ? plan_activation_name(g->activation) : "");
    } else {
        plan_instr_text(p, row->instr, out, cap);
    }
}

static void put_row(FILE *out, const Profile *f, const Row *row)
{
    double ms = 1e3 / (double)f->c->steps, each = 1e6 / (double)row->runs;
    char name[256];

    row_name(f->p, row, name, sizeof name);
    fprintf(out,
            "%9.3f %9.3f %5.1f%% %7llu %9.1f %9.1f %8.1f %7.1f %6.0f%%  %s\n",
            row->seconds * ms, row->ideal * ms,
            100.0 * row->ideal / (f->ideal * (double)f->c->steps),
            (unsigned long long)row->runs / (unsigned long long)f->c->steps,
            row->seconds * each, row->ideal * each,
            row->flops / row->ideal * 1e-9, row->bytes / row->ideal * 1e-9,
            100.0 * row->ceiling / row->ideal, name);
}

static void put_table(FILE *out, const Profile *f)
{
    fprintf(out,
            "step %.3f ms (ideal %.3f ms) of %lld steps\n"
            "copy bandwidth %.2f GB/s\n"
            "products %.3f ms, at their ceilings %.3f ms: %.1f%% of the step "
            "(ideal %.1f%%)\n\n",
            f->step * 1e3, f->ideal * 1e3, (long long)f->c->steps,
            f->bandwidth * 1e-9, f->gemm * 1e3, f->gemm_ceiling * 1e3,
            100.0 * f->gemm_ceiling / f->step,
            100.0 * f->gemm_ceiling / f->ideal);
    fprintf(out, "%9s %9s %6s %7s %9s %9s %8s %7s %7s  %s\n", "ms", "ideal",
            "share", "runs", "us each", "ideal", "GFLOP/s", "GB/s", "of best",
            "what, per step");
    for (uint32_t i = 0; i < f->rows.n; i++)
        put_row(out, f, &f->rows.v[i]);
}

Status profile_write(const Exec *e, const Plan *p, const ProfileConfig *config)
{
    Profile f = {.e = e, .p = p, .c = config, .step = config->step};
    FILE *out = fopen(config->path, "w");
    Status s = STATUS_NONE;

    if (!out)
        return status_system(errno, "cannot write %s", config->path);
    s = measure(&f);
    if (!s)
        put_table(out, &f);
    if (fclose(out) != 0 && !s)
        s = status_system(errno, "cannot write %s", config->path);
    vec_free(&f.rows);
    return s;
}
