/* device_cpu_pieces.c - large products, piece by piece.
 *
 *         n            C = A B as a grid of smaller products.  oneDNN brings
 *      +-----+-----+   operands into the order that its kernels want, as much
 *    m |     |     |   of them at once as its heuristics say; where a matrix
 *      +-----+-----+   is long in the direction in which it is not stored,
 *      |     |     |   that is more than the caches hold.
 *      +-----+-----+
 *
 * Pieces are of one size, so a dimension is cut only where some number of them
 * divides it.  Those along k are added up in order, in C if it is f32, else in
 * a buffer that is rounded at the end; where something follows the sum, k stays
 * whole.  Sizes depend on the row of the table alone: the same run gives the
 * same bits.  Operands of f16, which are widened first, are not cut.
 *
 * The limits were measured with oneDNN 2.6 on AVX-512 (docs/PERFORMANCE.md).
 */
#include "runtime/device_cpu_gemm.h"
#include "runtime/device_cpu_half.h"

#include "base/half.h"

#include <stdlib.h>

enum {
    MOST_SUMMED = 8192,         /* along k */
    MOST_COLUMNS = 1536,        /* of a B stored by rows */
    MOST_TURNED_COLUMNS = 4096, /* of one stored by columns */
    MOST_TURNED_ROWS = 6400,    /* of an A stored by columns */
    LEAST_HALVED = 512          /* of one of bf16 */
};

enum { M, N, K, DIMS };

struct CpuPieces {
    const PlanGemm *whole;
    int64_t count[DIMS], size[DIMS];
    CpuGemm *first, *next; /* next: adds to what is there; NULL if k is whole */
    float *sums;           /* a piece of C before it is rounded, or NULL */
};

/* The fewest equal pieces of at most `most`, in whole vectors; one if only
 * many smaller ones would be equal. */
static int64_t pieces(int64_t size, int64_t most)
{
    int64_t fewest = (size + most - 1) / most;

    for (int64_t n = fewest; n <= 2 * fewest; n++)
        if (size % n == 0 && size / n % 16 == 0)
            return n;
    return 1;
}

/* Whether k may be cut: in f32 what comes before the sum is the first piece's.
 */
static bool sums_only(const PlanGemm *g)
{
    bool before = g->accumulate || g->bias || g->residual;

    return !g->activation && (g->type_c == PLAN_F32 || !before);
}

/* An A of bf16 stored by columns is multiplied faster in two halves than whole,
 * whatever its size, unless B is cut. */
static int64_t turned_rows(const PlanGemm *g, int64_t columns)
{
    bool halves =
        g->type_a == PLAN_BF16 && g->m >= LEAST_HALVED && columns == 1;

    return halves ? MC_MIN(g->m / 2, MOST_TURNED_ROWS) : MOST_TURNED_ROWS;
}

static void cut(const PlanGemm *g, int64_t count[DIMS])
{
    count[M] = count[N] = count[K] = 1;
    if (g->batch != 1 || cpu_half_needed(g))
        return;
    count[N] = pieces(g->n, g->trans_b ? MOST_TURNED_COLUMNS : MOST_COLUMNS);
    if (g->trans_a)
        count[M] = pieces(g->m, turned_rows(g, count[N]));
    if (sums_only(g))
        count[K] = pieces(g->k, MOST_SUMMED);
}

/* Products whose sum over k is a sum of pieces. */
static Status make_sum(CpuGemms *all, CpuPieces *p, PlanGemm *one)
{
    if (one->type_c != PLAN_F32) {
        p->sums = aligned_alloc(
            64,
            ((size_t)(one->m * one->n) * sizeof *p->sums + 63) & ~(size_t)63);
        if (!p->sums)
            return status_make(STATUS_SYSTEM, "no memory for the products");
        one->type_c = PLAN_F32;
        one->ldc = one->n;
    }
    STATUS_TRY(cpu_gemm_new(all, one, &p->first));
    one->accumulate = 1;
    one->bias = one->residual = 0;
    return cpu_gemm_new(all, one, &p->next);
}

Status cpu_pieces_new(CpuGemms *all, const PlanGemm *g, CpuPieces **out)
{
    CpuPieces *p = calloc(1, sizeof *p);
    PlanGemm one = *g;

    *out = p;
    if (!p)
        return status_make(STATUS_SYSTEM, "no memory for the products");
    p->whole = g;
    cut(g, p->count);
    p->size[M] = one.m = g->m / p->count[M];
    p->size[N] = one.n = g->n / p->count[N];
    p->size[K] = one.k = g->k / p->count[K];
    return p->count[K] > 1 ? make_sum(all, p, &one)
                           : cpu_gemm_new(all, &one, &p->first);
}

void cpu_pieces_free(CpuPieces *p)
{
    if (!p)
        return;
    cpu_gemm_free(p->first);
    cpu_gemm_free(p->next);
    free(p->sums);
    free(p);
}

static void *at(void *base, int64_t row, int64_t column, int64_t ld,
                uint8_t type)
{
    return (char *)base + (row * ld + column) * (int64_t)plan_dtype_bytes(type);
}

/* Rounds the sums of a piece of C. */
static void round_sums(const CpuPieces *p, uint16_t *c)
{
    int64_t m = p->size[M], n = p->size[N];

#pragma omp parallel for
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            c[i * p->whole->ldc + j] = bf16_narrow(p->sums[i * n + j]);
}

/* Piece `i` of every dimension. */
static Status run_piece(CpuGemms *all, const CpuPieces *p, void *const *operand,
                        const int64_t i[DIMS])
{
    const PlanGemm *g = p->whole;
    int64_t m = i[M] * p->size[M], n = i[N] * p->size[N], k = i[K] * p->size[K];
    void *piece[5], **more = piece + 3, *c;

    piece[0] = g->trans_a ? at(operand[0], k, m, g->lda, g->type_a)
                          : at(operand[0], m, k, g->lda, g->type_a);
    piece[1] = g->trans_b ? at(operand[1], n, k, g->ldb, g->type_b)
                          : at(operand[1], k, n, g->ldb, g->type_b);
    piece[2] = at(operand[2], m, n, g->ldc, g->type_c);
    if (g->bias)
        *more++ = at(operand[3], 0, n, 0, g->type_bias);
    if (g->residual)
        *more = at(operand[3 + g->bias], m, n, g->ldc, g->type_c);
    if (!p->sums)
        return cpu_gemm_run(all, i[K] ? p->next : p->first, piece);
    c = piece[2];
    piece[2] = p->sums;
    STATUS_TRY(cpu_gemm_run(all, i[K] ? p->next : p->first, piece));
    if (i[K] == p->count[K] - 1)
        round_sums(p, c);
    return STATUS_NONE;
}

Status cpu_pieces_run(CpuGemms *all, const CpuPieces *p, void *const *operand)
{
    int64_t i[DIMS];

    for (i[M] = 0; i[M] < p->count[M]; i[M]++)
        for (i[N] = 0; i[N] < p->count[N]; i[N]++)
            for (i[K] = 0; i[K] < p->count[K]; i[K]++)
                STATUS_TRY(run_piece(all, p, operand, i));
    return STATUS_NONE;
}
