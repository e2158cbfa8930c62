/* runtime_gemm_test.c - every kind of gemm row against three loops.
 *
 * Operands are small integers, so that products and sums are exact in f32 and
 * in bf16 (below 257) and must agree to the last bit whatever the order.  Only
 * the Gaussian unit rounds; it is compared with its formula in f64.
 */
#include "runtime_plan.h"

#include "base/half.h"

#include <math.h>
#include <setjmp.h>
#include <cmocka.h>

/* Bytes per operand in the arena, of small products and of large ones. */
enum { PART = 4096, LARGE_PART = 1 << 19, OPERANDS = 5 };

static void store(char *base, int64_t i, uint8_t dtype, float value)
{
    uint32_t bits;
    uint16_t half;

    memcpy(&bits, &value, 4);
    half = dtype == PLAN_F16 ? half_narrow(value) : (uint16_t)(bits >> 16);
    if (dtype == PLAN_F32)
        memcpy(base + 4 * i, &value, 4);
    else
        memcpy(base + 2 * i, &half, 2);
}

static float fetch(const char *base, int64_t i, uint8_t dtype)
{
    uint16_t half;
    uint32_t bits;
    float value;

    if (dtype == PLAN_F32) {
        memcpy(&value, base + 4 * i, 4);
        return value;
    }
    memcpy(&half, base + 2 * i, 2);
    if (dtype == PLAN_F16)
        return half_widen(half);
    bits = (uint32_t)half << 16;
    memcpy(&value, &bits, 4);
    return value;
}

/* -2 .. 2 */
static float small(int64_t i)
{
    return (float)((i * 7 + i / 5) % 5 - 2);
}

static void fill_operand(char *base, uint8_t dtype, int64_t part)
{
    for (int64_t i = 0; i < part / 4; i++)
        store(base, i, dtype, small(i));
}

static float expected(const PlanGemm *g, int64_t batch, int64_t i, int64_t j)
{
    float sum =
        g->accumulate ? small(batch * g->stride_c + i * g->ldc + j) : 0.0f;

    for (int64_t k = 0; k < g->k; k++)
        sum += small(batch * g->stride_a +
                     (g->trans_a ? k * g->lda + i : i * g->lda + k)) *
               small(batch * g->stride_b +
                     (g->trans_b ? j * g->ldb + k : k * g->ldb + j));
    if (g->bias)
        sum += small(j);
    if (g->residual)
        sum += small(batch * g->stride_c + i * g->ldc + j);
    return sum;
}

/* Hendrycks & Gimpel 2016: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
static float activated(uint8_t activation, float sum)
{
    double x = sum;

    if (activation == PLAN_RELU)
        return sum > 0 ? sum : 0;
    if (activation == PLAN_GELU_TANH)
        return (
            float)(0.5 * x *
                   (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x))));
    return sum;
}

/* Of the Gaussian unit a unit in the sixth digit; of bf16 half a unit in the
 * last place, where a result needs more than its 8 bits. */
static float tolerance(const PlanGemm *g, float value)
{
    float unit = g->activation == PLAN_GELU_TANH ? 2e-5f : 0;

    if (g->type_c == PLAN_F32 || (!unit && fabsf(value) <= 256))
        return unit;
    return unit + fabsf(value) / 256;
}

static void check_element(const PlanGemm *g, const char *c, int64_t batch,
                          int64_t i, int64_t j)
{
    float want = activated(g->activation, expected(g, batch, i, j));

    assert_float_equal(
        fetch(c, batch * g->stride_c + i * g->ldc + j, g->type_c), want,
        tolerance(g, want));
}

static void check_gemm(const PlanGemm *g, int64_t part)
{
    PlanBuilder *b = tiny_builder(1, (size_t)(OPERANDS * part));
    char *operand[OPERANDS];
    Device *d;
    Plan p;

    plan_add_gemm(b, g);
    plan_segment_begin(b, "main");
    p = tiny_load(b);
    assert_null(device_cpu.open(&(DeviceConfig){&p, NULL, 2}, &d));
    for (int i = 0; i < OPERANDS; i++)
        operand[i] = device_cpu.memory(d, 0) + i * part;
    fill_operand(operand[0], g->type_a, part);
    fill_operand(operand[1], g->type_b, part);
    fill_operand(operand[2], g->type_c, part);
    fill_operand(operand[3], g->bias ? g->type_bias : g->type_c, part);
    fill_operand(operand[4], g->type_c, part);
    assert_null(device_cpu.gemm(d, 0, (void *const *)operand));
    for (int64_t n = 0; n < g->batch; n++)
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < g->n; j++)
                check_element(g, operand[2], n, i, j);
    /* what lies between the rows of C is left alone */
    if (g->ldc > g->n)
        assert_float_equal(fetch(operand[2], g->n, g->type_c), small(g->n), 0);
    device_cpu.close(d);
    plan_free(&p);
}

/* All combinations of transposition, accumulation or residual, bias and
 * activation. */
static void check_flags(uint8_t in, uint8_t out, int64_t batch)
{
    for (int f = 0; f < 32 * PLAN_ACTIVATIONS; f++) {
        bool ta = f & 1, tb = f & 2;
        PlanGemm g = {.m = 5,
                      .n = 7,
                      .k = 9,
                      .batch = batch,
                      .trans_a = ta,
                      .trans_b = tb,
                      .accumulate = f >> 2 & 1,
                      .bias = f >> 3 & 1,
                      .residual = f >> 4 & 1,
                      .activation = (uint8_t)(f >> 5),
                      .type_a = in,
                      .type_b = in,
                      .type_c = out,
                      .type_bias = PLAN_F32};
        if (g.accumulate && g.residual)
            continue;
        g.lda = (ta ? g.m : g.k) + 2;
        g.ldb = (tb ? g.k : g.n) + 1;
        g.ldc = g.n + 3;
        if (batch > 1) {
            g.stride_a = 120;
            g.stride_c = 64;
        }
        check_gemm(&g, PART);
    }
}

static void f32_products(void **state)
{
    (void)state;
    check_flags(PLAN_F32, PLAN_F32, 1);
}

static void bf16_products(void **state)
{
    (void)state;
    check_flags(PLAN_BF16, PLAN_F32, 1);
    check_flags(PLAN_BF16, PLAN_BF16, 1);
}

static void f16_products(void **state)
{
    (void)state;
    check_flags(PLAN_F16, PLAN_F32, 1);
    check_flags(PLAN_F16, PLAN_F16, 1);
}

/* B's stride is 0: one matrix for the whole batch. */
static void batched_products(void **state)
{
    (void)state;
    check_flags(PLAN_F32, PLAN_F32, 3);
    check_flags(PLAN_BF16, PLAN_F32, 3);
    check_flags(PLAN_F16, PLAN_F16, 3);
}

/* Products long enough along m, n or k to be done in pieces. */
static void check_long(int64_t m, int64_t n, int64_t k, uint8_t in, uint8_t out)
{
    for (int f = 0; f < 32; f++) {
        PlanGemm g = {.m = m,
                      .n = n,
                      .k = k,
                      .batch = 1,
                      .trans_a = f & 1,
                      .trans_b = f >> 1 & 1,
                      .accumulate = f >> 2 & 1,
                      .bias = f >> 3 & 1,
                      .residual = f >> 4 & 1,
                      .type_a = in,
                      .type_b = in,
                      .type_c = out,
                      .type_bias = PLAN_F32};
        if (g.accumulate && g.residual)
            continue;
        g.lda = g.trans_a ? m : k;
        g.ldb = g.trans_b ? k : n;
        g.ldc = n + 1;
        check_gemm(&g, LARGE_PART);
    }
}

static void products_in_pieces(void **state)
{
    (void)state;
    check_long(12800, 5, 3, PLAN_F32, PLAN_F32);
    check_long(5, 8448, 3, PLAN_F32, PLAN_F32);
    check_long(3, 5, 16416, PLAN_F32, PLAN_F32);
    check_long(512, 5, 3, PLAN_BF16, PLAN_F32);
    check_long(12800, 5, 3, PLAN_BF16, PLAN_BF16);
    check_long(5, 8448, 3, PLAN_BF16, PLAN_BF16);
    check_long(3, 5, 16416, PLAN_BF16, PLAN_F32);
    check_long(3, 5, 16416, PLAN_BF16, PLAN_BF16);
}

/* ---- counted slots ------------------------------------------------------- */

/* Two parts of 6 slots for each of two experts: some, all, none. */
static const float COUNTS[] = {4, 6, 0, 1};
enum { SLOTS = 6 };

static bool in_use(int64_t batch, int64_t slot)
{
    return (float)(slot % SLOTS) < COUNTS[2 * batch + slot / SLOTS];
}

/* Where A[batch][i][k] is stored. */
static int64_t place_a(const PlanGemm *g, int64_t batch, int64_t i, int64_t k)
{
    return batch * g->stride_a + (g->trans_a ? k * g->lda + i : i * g->lda + k);
}

/* Slots not in use are zero in A, as dispatch leaves them. */
static void clear_unused(const PlanGemm *g, char *a)
{
    bool rows = g->filled == PLAN_ROWS_FILLED;

    for (int64_t n = 0; n < g->batch; n++)
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t k = 0; k < g->k; k++)
                if (!in_use(n, rows ? i : k))
                    store(a, place_a(g, n, i, k), g->type_a, 0);
}

static float counted(const PlanGemm *g, const char *a, int64_t batch, int64_t i,
                     int64_t j)
{
    float sum =
        g->accumulate ? small(batch * g->stride_c + i * g->ldc + j) : 0.0f;

    for (int64_t k = 0; k < g->k; k++)
        sum += fetch(a, place_a(g, batch, i, k), g->type_a) *
               small(batch * g->stride_b +
                     (g->trans_b ? j * g->ldb + k : k * g->ldb + j));
    return sum;
}

static void check_counted(const PlanGemm *g)
{
    PlanBuilder *b = tiny_builder(1, OPERANDS * PART);
    char *operand[OPERANDS];
    Device *d;
    Plan p;

    plan_add_gemm(b, g);
    plan_segment_begin(b, "main");
    p = tiny_load(b);
    assert_null(device_cpu.open(&(DeviceConfig){&p, NULL, 2}, &d));
    for (int i = 0; i < OPERANDS; i++)
        operand[i] = device_cpu.memory(d, 0) + (size_t)i * PART;
    fill_operand(operand[0], g->type_a, PART);
    fill_operand(operand[1], g->type_b, PART);
    fill_operand(operand[2], g->type_c, PART);
    clear_unused(g, operand[0]);
    memcpy(operand[3], COUNTS, sizeof COUNTS);
    assert_null(device_cpu.gemm(d, 0, (void *const *)operand));
    for (int64_t n = 0; n < g->batch; n++)
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < g->n; j++)
                assert_float_equal(fetch(operand[2],
                                         n * g->stride_c + i * g->ldc + j,
                                         g->type_c),
                                   counted(g, operand[0], n, i, j), 0);
    device_cpu.close(d);
    plan_free(&p);
}

static void products_of_counted_slots(void **state)
{
    (void)state;
    for (int f = 0; f < 32; f++) {
        bool ta = f & 1, tb = f & 2, rows = f & 4;
        PlanGemm g = {.m = rows ? 2 * SLOTS : 5,
                      .n = 7,
                      .k = rows ? 9 : 2 * SLOTS,
                      .batch = 2,
                      .trans_a = ta,
                      .trans_b = tb,
                      .accumulate = f >> 3 & 1,
                      .filled = rows ? PLAN_ROWS_FILLED : PLAN_SUM_FILLED,
                      .parts = 2,
                      .type_a = f & 16 ? PLAN_BF16 : PLAN_F32,
                      .type_b = f & 16 ? PLAN_BF16 : PLAN_F32,
                      .type_c = PLAN_F32};
        g.lda = (ta ? g.m : g.k) + 2;
        g.ldb = (tb ? g.k : g.n) + 1;
        g.ldc = g.n + 3;
        g.stride_a = 200;
        g.stride_b = 170;
        g.stride_c = 130;
        check_counted(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_products),
        cmocka_unit_test(bf16_products),
        cmocka_unit_test(f16_products),
        cmocka_unit_test(batched_products),
        cmocka_unit_test(products_in_pieces),
        cmocka_unit_test(products_of_counted_slots),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
