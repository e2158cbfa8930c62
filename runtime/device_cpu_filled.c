/* device_cpu_filled.c - products of experts, of the slots in use only.
 *
 *     part 0          part 1          …      of the rows (or of what is summed)
 *     ####............ ##..............      F = 4, 2
 *     ^^^^^            ^^^                   a product of 5 rows, one of 3
 *
 * oneDNN prepares products of fixed sizes, so a few sizes are prepared, close
 * enough to each other that less than a quarter is computed for nothing; what
 * lies between F and the size is zero, or becomes so.  Sizes depend on F alone,
 * so the same counts give the same bits.
 */
#include "runtime/device_cpu_gemm.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SIZES = 96 };

struct CpuFilled {
    const PlanGemm *g;
    int64_t part;               /* slots of one part */
    uint32_t n;                 /* sizes, the largest first */
    int64_t size[MAX_SIZES];
    CpuGemm *one[MAX_SIZES][2]; /* overwriting C, adding to it */
};

/* A quarter of the power of two below it less. */
static int64_t next_size(int64_t size)
{
    int64_t power = 1;

    while (2 * power < size)
        power *= 2;
    return size - MC_MAX(power / 4, 1);
}

static bool by_rows(const CpuFilled *f)
{
    return f->g->filled == PLAN_ROWS_FILLED;
}

/* The product of one part of one matrix of the batch. */
static PlanGemm part_gemm(const CpuFilled *f, int64_t size, bool accumulate)
{
    PlanGemm one = *f->g;

    one.batch = 1;
    one.stride_a = one.stride_b = one.stride_c = 0;
    *(by_rows(f) ? &one.m : &one.k) = size;
    one.accumulate = accumulate;
    one.filled = PLAN_ALL_FILLED;
    return one;
}

static Status add_size(CpuGemms *all, CpuFilled *f, int64_t size)
{
    for (int add = 0; add < 2; add++) {
        PlanGemm one = part_gemm(f, size, add);
        if (by_rows(f) && add != f->g->accumulate)
            continue;
        STATUS_TRY(cpu_gemm_new(all, &one, &f->one[f->n][add]));
    }
    f->size[f->n++] = size;
    return STATUS_NONE;
}

Status cpu_filled_new(CpuGemms *all, const PlanGemm *g, CpuFilled **out)
{
    CpuFilled *f = calloc(1, sizeof *f);

    *out = f;
    if (!f)
        return status_make(STATUS_SYSTEM, "no memory for the products");
    f->g = g;
    f->part = (by_rows(f) ? g->m : g->k) / g->parts;
    for (int64_t size = f->part; size > 0 && f->n < MAX_SIZES;
         size = next_size(size))
        STATUS_TRY(add_size(all, f, size));
    return STATUS_NONE;
}

void cpu_filled_free(CpuFilled *f)
{
    for (uint32_t i = 0; f && i < MAX_SIZES; i++)
        for (int add = 0; add < 2; add++)
            cpu_gemm_free(f->one[i][add]);
    free(f);
}

/* The smallest size that holds `count` slots; n: none are in use. */
static uint32_t size_for(const CpuFilled *f, float count)
{
    uint32_t i = f->n;

    if (!(count > 0.0f))
        return i;
    while (i > 1 && (float)f->size[i - 1] < count)
        i--;
    return i - 1;
}

static char *at(void *base, int64_t element, uint8_t type)
{
    return (char *)base + element * (int64_t)plan_dtype_bytes(type);
}

/* Rows of C from `row` on, up to the end of the part. */
static void clear_rows(const CpuFilled *f, char *c, int64_t row)
{
    const PlanGemm *g = f->g;
    size_t bytes = (size_t)g->n * plan_dtype_bytes(g->type_c);

    for (; row < f->part && !g->accumulate; row++)
        memset(at(c, row * g->ldc, g->type_c), 0, bytes);
}

static Status run_rows(CpuGemms *all, const CpuFilled *f, uint32_t size,
                       int64_t part, char *a, char *b, char *c)
{
    const PlanGemm *g = f->g;
    int64_t first = part * f->part;
    void *operand[] = {at(a, first * (g->trans_a ? 1 : g->lda), g->type_a), b,
                       at(c, first * g->ldc, g->type_c)};

    clear_rows(f, operand[2], size < f->n ? f->size[size] : 0);
    return size == f->n
               ? STATUS_NONE
               : cpu_gemm_run(all, f->one[size][g->accumulate], operand);
}

/* The first part in use overwrites C unless the whole adds to it. */
static Status run_sum(CpuGemms *all, const CpuFilled *f, uint32_t size,
                      int64_t part, bool *add, char *a, char *b, char *c)
{
    const PlanGemm *g = f->g;
    int64_t first = part * f->part;
    void *operand[] = {at(a, first * (g->trans_a ? g->lda : 1), g->type_a),
                       at(b, first * (g->trans_b ? 1 : g->ldb), g->type_b), c};
    bool adds = *add;

    if (size == f->n)
        return STATUS_NONE;
    *add = true;
    return cpu_gemm_run(all, f->one[size][adds], operand);
}

static void clear_all(const CpuFilled *f, char *c)
{
    const PlanGemm *g = f->g;

    for (int64_t row = 0; row < g->m; row++)
        memset(at(c, row * g->ldc, g->type_c), 0,
               (size_t)g->n * plan_dtype_bytes(g->type_c));
}

static Status run_matrix(CpuGemms *all, const CpuFilled *f, const float *filled,
                         char *a, char *b, char *c)
{
    bool add = f->g->accumulate;

    for (int64_t p = 0; p < f->g->parts; p++) {
        uint32_t size = size_for(f, filled[p]);
        STATUS_TRY(by_rows(f) ? run_rows(all, f, size, p, a, b, c)
                              : run_sum(all, f, size, p, &add, a, b, c));
    }
    if (!by_rows(f) && !add)
        clear_all(f, c);
    return STATUS_NONE;
}

Status cpu_filled_run(CpuGemms *all, const CpuFilled *f, void *const *operand)
{
    const PlanGemm *g = f->g;
    const float *filled = operand[3];

    for (int64_t i = 0; i < g->batch; i++)
        STATUS_TRY(run_matrix(all, f, filled + i * g->parts,
                              at(operand[0], i * g->stride_a, g->type_a),
                              at(operand[1], i * g->stride_b, g->type_b),
                              at(operand[2], i * g->stride_c, g->type_c)));
    return STATUS_NONE;
}
