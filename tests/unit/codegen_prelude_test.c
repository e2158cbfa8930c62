/* codegen_prelude_test.c - the kernels' own mathematics against libm.
 *
 * Every function runs through the real compiler in a vectorised loop, over a
 * dense sample of all f32 bit patterns and the corners; the expected value is
 * glibc's in double, rounded once.
 */
#include "codegen_load.h"

#include <math.h>

#define LOOP(name)                                                             \
    "void all_" #name "(void *const *ptr, const i64 *imm, int tid, int n)\n"   \
    "{\n"                                                                      \
    "    const float *x = ptr[0];\n"                                           \
    "    float *y = ptr[1];\n"                                                 \
    "    (void)tid; (void)n;\n"                                                \
    "    for (i64 i = 0; i < imm[0]; i++)\n"                                   \
    "        y[i] = " #name "_f32(x[i]);\n"                                    \
    "}\n"

static const char TEXT[] =
    LOOP(exp) LOOP(log) LOOP(tanh) LOOP(erf) LOOP(sigmoid) LOOP(rsqrt)
    "void all_exp_down(void *const *ptr, const i64 *imm, int tid, int n)\n"
    "{\n"
    "    const float *x = ptr[0];\n"
    "    float *y = ptr[1];\n"
    "    (void)tid; (void)n;\n"
    "    for (i64 i = 0; i < imm[0]; i++)\n"
    "        y[i] = exp_down_f32(-__builtin_fabsf(x[i]));\n"
    "}\n"
    "void round_bf16(void *const *ptr, const i64 *imm, int tid, int n)\n"
    "{\n"
    "    const float *x = ptr[0];\n"
    "    bf16 *y = ptr[1];\n"
    "    (void)tid; (void)n;\n"
    "    for (i64 i = 0; i < imm[0]; i++)\n"
    "        y[i] = bf16_of_f32(x[i]);\n"
    "}\n";

enum { STEP = 1021, SAMPLES = (int)(0x100000000 / STEP) };

static float *inputs, *outputs;
static void *so;

static float of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static int setup(void **state)
{
    static const float corners[] = {
        0.0f, -0.0f, 1.0f, -1.0f, INFINITY, -INFINITY, NAN, 88.72283f,
        88.72284f, -87.33655f, -103.97208f, -103.9721f, 1e-45f, 3.4e38f,
        0.625f, 0.92773438f, 3.9192059f, 1.1754944e-38f};
    (void)state;
    inputs = malloc(SAMPLES * sizeof *inputs);
    outputs = malloc(SAMPLES * sizeof *outputs);
    for (uint32_t i = 0; i < SAMPLES; i++)
        inputs[i] = of_bits(i * STEP);
    memcpy(inputs, corners, sizeof corners);
    so = load_text("prelude_test", TEXT);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(inputs);
    free(outputs);
    return dlclose(so);
}

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}

/* Distance in units in the last place of the rounded truth. */
static double ulps(float got, double want)
{
    float rounded = (float)want;
    double ulp;

    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got) ? 0.0 : INFINITY;
    if (isinf(rounded) || isinf(got))
        return rounded == got ? 0.0 : INFINITY;
    ulp = ldexp(1.0, MC_MAX(ilogb((double)rounded), -126) - 23);
    if (rounded == 0.0f)
        ulp = 0x1p-149;
    return fabs((double)got - want) / ulp;
}

static void compare(const char *name, double (*truth)(double), double limit)
{
    KernelFn *fn = kernel_find(so, name);
    int64_t n = SAMPLES;
    double worst = 0.0;
    float at = 0.0f;

    fn((void *[]){inputs, outputs}, &n, 0, 1);
    for (int i = 0; i < SAMPLES; i++) {
        double off = ulps(outputs[i], truth((double)inputs[i]));
        if (off > worst) {
            worst = off;
            at = inputs[i];
        }
    }
    print_message("%s: at most %.2f ulp, at %.9g\n", name, worst, (double)at);
    assert_true(worst <= limit);
}

static void test_exp(void **state)
{
    (void)state;
    compare("all_exp", exp, 1.5);
}

/* Of numbers below 0; none that is smaller than e^-87. */
static double exp_down(double x)
{
    return fabs(x) > 87.0 ? 0.0 : exp(-fabs(x));
}

static void test_exp_down(void **state)
{
    (void)state;
    compare("all_exp_down", exp_down, 5.0);
}

static void test_log(void **state)
{
    (void)state;
    compare("all_log", log, 2.0);
}

static void test_tanh(void **state)
{
    (void)state;
    compare("all_tanh", tanh, 2.5);
}

static void test_erf(void **state)
{
    (void)state;
    compare("all_erf", erf, 2.0);
}

static void test_sigmoid(void **state)
{
    (void)state;
    compare("all_sigmoid", sigmoid, 3.0);
}

static void test_rsqrt(void **state)
{
    (void)state;
    compare("all_rsqrt", rsqrt, 2.0);
}

/* Round to nearest even by IEEE 754's definition: of the two neighbours with
 * 16 bits the closer, at equal distance the one with an even last bit. */
static uint16_t nearest_bf16(float x)
{
    uint32_t low = bits_of(x) & 0xffff0000u, high = low + 0x10000u;
    double up = fabs((double)of_bits(high) - (double)x);
    double down = fabs((double)x - (double)of_bits(low));

    if ((high & 0x7fffffffu) == 0x7f800000u) /* beyond the largest: 2^128 */
        up = 0x1p128 - fabs((double)x);
    if (isinf(x) || down < up || (down == up && !(low & 0x10000u)))
        return (uint16_t)(low >> 16);
    return (uint16_t)(high >> 16);
}

static void test_bf16(void **state)
{
    KernelFn *fn = kernel_find(so, "round_bf16");
    uint16_t *got = (uint16_t *)(void *)outputs;
    int64_t n = SAMPLES;

    (void)state;
    for (uint32_t i = 32; i < 64; i++) /* exact ties */
        inputs[i] = of_bits(0x3f808000u + (i << 16));
    fn((void *[]){inputs, got}, &n, 0, 1);
    for (int i = 0; i < SAMPLES; i++) {
        if (isnan(inputs[i]))
            assert_true(isnan(of_bits((uint32_t)got[i] << 16)));
        else if ((got[i] & 0x7fff) == 0) /* a machine's may lose tiny ones */
            assert_true(fabs((double)inputs[i]) < 0x1p-126);
        else
            assert_int_equal(got[i], nearest_bf16(inputs[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),     cmocka_unit_test(test_exp_down),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_tanh),    cmocka_unit_test(test_erf),
        cmocka_unit_test(test_sigmoid), cmocka_unit_test(test_rsqrt),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
