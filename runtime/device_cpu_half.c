/* device_cpu_half.c - products of f16, which oneDNN multiplies on no CPU here.
 *
 *     A f16 ─ widen ─▶ f32 ┐
 *     B f16 ─ widen ─▶ f32 ├ product in f32 ─▶ f32 ─ narrow ─▶ C f16
 *     …                    ┘
 *
 * Widening is exact and sums are in f32, so the result is what a product of
 * f16 with f32 accumulation is.  A copy has the layout of its matrix, so that
 * one set of strides describes both; of a result only its own columns are
 * written back.
 */
#include "runtime/device_cpu_half.h"

#include "base/half.h"

/* Fewer numbers are copied by one thread sooner than by a team. */
enum { PARALLEL = 1 << 16 };

/* Rows of `width` numbers, `ld` apart; matrices of a batch `stride` apart. */
typedef struct {
    int64_t rows, width, ld, batch, stride;
} Shape;

static Shape shape_of(const PlanGemm *g, int operand)
{
    switch (operand) {
    case 0:
        return (Shape){g->trans_a ? g->k : g->m, g->trans_a ? g->m : g->k,
                       g->lda, g->stride_a ? g->batch : 1, g->stride_a};
    case 1:
        return (Shape){g->trans_b ? g->n : g->k, g->trans_b ? g->k : g->n,
                       g->ldb, g->stride_b ? g->batch : 1, g->stride_b};
    case 3:
        if (g->bias)
            return (Shape){1, g->n, g->n, 1, 0};
        break;
    default:
        break;
    }
    return (Shape){g->m, g->n, g->ldc, g->batch, g->stride_c};
}

static uint8_t type_of(const PlanGemm *g, int operand)
{
    if (operand < 2)
        return operand ? g->type_b : g->type_a;
    return operand == 3 && g->bias ? g->type_bias : g->type_c;
}

int cpu_half_operands(const PlanGemm *g)
{
    return 3 + g->bias + g->residual;
}

bool cpu_half_needed(const PlanGemm *g)
{
    for (int i = 0; i < cpu_half_operands(g); i++)
        if (type_of(g, i) == PLAN_F16)
            return true;
    return false;
}

static size_t extent(const PlanGemm *g, int operand)
{
    Shape s = shape_of(g, operand);

    return (size_t)((s.batch - 1) * s.stride + (s.rows - 1) * s.ld + s.width);
}

/* Every copy begins at a cache line. */
static size_t copy_bytes(const PlanGemm *g, int operand)
{
    return (extent(g, operand) * sizeof(float) + 63) & ~(size_t)63;
}

size_t cpu_half_bytes(const PlanGemm *g)
{
    size_t bytes = 0;

    for (int i = 0; i < cpu_half_operands(g); i++)
        if (type_of(g, i) == PLAN_F16)
            bytes += copy_bytes(g, i);
    return bytes;
}

/* ---- copying ------------------------------------------------------------- */

typedef void RowFn(float *wide, uint16_t *narrow, int64_t n);

static void widen_row(float *wide, uint16_t *narrow, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        wide[i] = half_widen(narrow[i]);
}

static void narrow_row(float *wide, uint16_t *narrow, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        narrow[i] = half_narrow(wide[i]);
}

static void each_row(Shape s, float *wide, void *narrow, RowFn *fn)
{
    uint16_t *half = narrow;

#pragma omp parallel for if (s.batch * s.rows * s.width > PARALLEL)
    for (int64_t i = 0; i < s.batch * s.rows; i++) {
        int64_t at = i / s.rows * s.stride + i % s.rows * s.ld;
        fn(wide + at, half + at, s.width);
    }
}

void cpu_half_widen(const PlanGemm *g, char *scratch, void *const *operand,
                    void **out)
{
    for (int i = 0; i < cpu_half_operands(g); i++) {
        out[i] = operand[i];
        if (type_of(g, i) != PLAN_F16)
            continue;
        out[i] = scratch;
        scratch += copy_bytes(g, i);
        if (i != 2 || g->accumulate)
            each_row(shape_of(g, i), out[i], operand[i], widen_row);
    }
}

void cpu_half_narrow(const PlanGemm *g, void *const *operand, void *const *wide)
{
    if (g->type_c == PLAN_F16)
        each_row(shape_of(g, 2), wide[2], operand[2], narrow_row);
}
