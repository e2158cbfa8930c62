/* profile.c - where the time of a run went, instruction by instruction.
 *
 * A CALL's time contains that of the instructions it runs, so only the others
 * add up to the whole.
 */
#include "runtime/train.h"

#include <errno.h>
#include <stdlib.h>

typedef struct {
    uint32_t instr;
    double seconds;
    uint64_t runs;
} Row;

static int by_time(const void *x, const void *y)
{
    const Row *a = x, *b = y;

    return (a->seconds < b->seconds) - (a->seconds > b->seconds);
}

static void put_rows(FILE *f, const Plan *p, const Row *rows, double total)
{
    char text[256];

    fprintf(f, "%10s %6s %9s %10s  instruction\n", "seconds", "share", "runs",
            "us each");
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const Row *r = &rows[i];
        const PlanInstr *in = &p->instrs.v[r->instr];
        if (!r->runs || in->op == PLAN_CALL)
            continue;
        plan_instr_text(p, r->instr, text, sizeof text);
        fprintf(f, "%10.4f %5.1f%% %9llu %10.1f  %s%s%s\n", r->seconds,
                100.0 * r->seconds / total, (unsigned long long)r->runs,
                1e6 * r->seconds / (double)r->runs, text,
                in->op == PLAN_LAUNCH ? ": " : "",
                in->op == PLAN_LAUNCH
                    ? plan_text(p, p->kernels.v[in->index].symbol)
                    : "");
    }
}

Status profile_write(const Exec *e, const Plan *p, const char *path)
{
    Row *rows = calloc((size_t)p->instrs.n + 1, sizeof *rows);
    FILE *f = fopen(path, "w");
    double total = 1e-12;
    Status s = STATUS_NONE;

    for (uint32_t i = 0; rows && i < p->instrs.n; i++) {
        rows[i].instr = i;
        rows[i].seconds = exec_seconds(e, i, &rows[i].runs);
        if (p->instrs.v[i].op != PLAN_CALL)
            total += rows[i].seconds;
    }
    if (rows && f) {
        qsort(rows, p->instrs.n, sizeof *rows, by_time);
        put_rows(f, p, rows, total);
    }
    if (!rows || !f || fclose(f) != 0)
        s = status_system(errno, "cannot write %s", path);
    free(rows);
    return s;
}
