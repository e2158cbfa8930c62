/* runtime_profile_test.c - the table of a profile, and the ceilings in it.
 *
 * A clock that advances by one second whenever it is read, and a device with
 * known ceilings, make every number follow by hand: an instruction takes one
 * second each time.
 */
#include "runtime_plan.h"

#include "runtime/train.h"

#include <setjmp.h>
#include <unistd.h>
#include <cmocka.h>

static double ticks;

static double tick(void)
{
    return ticks += 1.0;
}

static double ceiling; /* seconds of any product */

static Status known_ceiling(Device *d, uint32_t gemm, double (*clock)(void),
                            double *out)
{
    (void)d;
    (void)gemm;
    (void)clock;
    *out = ceiling;
    return STATUS_NONE;
}

static Status slow_memory(Device *d, double (*clock)(void), double *out)
{
    (void)d;
    (void)clock;
    *out = 128.0;
    return STATUS_NONE;
}

static void ok(Status s)
{
    if (s)
        fail_msg("%s", status_text(s));
}

/* A product three times, by a call, and 64 bytes to fill. */
static Plan make_plan(void)
{
    PlanBuilder *b = tiny_builder(1, 4096);
    PlanGemm g = {
        .m = 2, .n = 3, .k = 4, .batch = 1, .lda = 4, .ldb = 3, .ldc = 3};
    PlanOperand operand[3] = {plan_address(0, 32, PLAN_READ),
                              plan_address(256, 48, PLAN_READ),
                              plan_address(512, 24, PLAN_WRITE)};
    PlanOperand filled = plan_address(1024, 64, PLAN_WRITE);
    uint32_t gemm = plan_add_gemm(b, &g), body;

    body = plan_segment_begin(b, "body");
    plan_emit(b, (PlanInstr){.op = PLAN_GEMM, .index = gemm}, operand, 3);
    plan_segment_begin(b, "main");
    plan_emit(b, (PlanInstr){.op = PLAN_CALL, .index = body, .aux = 3}, NULL,
              0);
    plan_emit(b, (PlanInstr){.op = PLAN_FILL}, &filled, 1);
    return tiny_load(b);
}

static void write_profile(const Plan *p, const char *path)
{
    DeviceDriver driver = device_null;
    ExecConfig config = {.plan = p, .driver = &driver, .clock = tick};
    ProfileConfig profile = {.path = path,
                             .driver = &driver,
                             .clock = tick,
                             .steps = 2,
                             .step = 8.0};
    Exec *e;

    driver.gemm_ceiling = known_ceiling;
    driver.copy_ceiling = slow_memory;
    ok(driver.open(&(DeviceConfig){p, NULL, 1}, &config.device));
    ok(comm_new(p, 0, &comm_self, 0.0, &config.comm));
    ok(exec_new(&config, &e));
    ok(exec_step(e));
    exec_times_reset(e);
    ok(exec_step(e));
    ok(exec_step(e));
    ok(profile_write(e, p, &profile));
    exec_free(e);
    comm_free(config.comm);
    driver.close(config.device);
}

/* The table of a device on which a product needs `seconds` at best. */
static void table_make(double seconds, char *out, size_t size)
{
    char path[] = "/tmp/megac-profile-XXXXXX";
    Plan p = make_plan();
    int fd = mkstemp(path);
    FILE *f;

    assert_true(fd >= 0);
    ceiling = seconds;
    write_profile(&p, path);
    f = fdopen(fd, "r");
    memset(out, 0, size);
    assert_true(fread(out, 1, size - 1, f) > 0);
    fclose(f);
    unlink(path);
    plan_free(&p);
}

static void table_by_hand(void **state)
{
    char text[4096];

    (void)state;
    table_make(0.5, text, sizeof text);
    /* per step: three products and a fill, each a second */
    assert_non_null(strstr(text, "step 8000.000 ms (ideal 4000.000 ms) of 2 "));
    assert_non_null(strstr(text, "products 3000.000 ms, at their ceilings "
                                 "1500.000 ms: 18.8% of the step (ideal "
                                 "37.5%)"));
    /* 104 bytes each; half a second of the second each took */
    assert_non_null(strstr(text, "75.0%       3 1000000.0 1000000.0"));
    assert_non_null(strstr(text, "50%  gemm 2x3x4 f32>f32"));
    /* 64 bytes at 128 a second are half of the second they took */
    assert_non_null(strstr(text, "25.0%       1 1000000.0 1000000.0"));
    assert_non_null(strstr(text, "50%  fill"));
}

/* A product that took one second shows that two are not the best there is. */
static void ceilings_are_reached(void **state)
{
    char text[4096];

    (void)state;
    table_make(2.0, text, sizeof text);
    assert_non_null(strstr(text, "products 3000.000 ms, at their ceilings "
                                 "3000.000 ms: 37.5% of the step (ideal "
                                 "75.0%)"));
    assert_non_null(strstr(text, "100%  gemm 2x3x4 f32>f32"));
}

/* A product of eight million multiplications takes longer than one of 4096,
 * by any clock; memory moves more than a megabyte in a second. */
static void ceilings_are_plausible(void **state)
{
    PlanGemm small = {.m = 16, .n = 16, .k = 16, .batch = 1},
             large = {.m = 200, .n = 200, .k = 200, .batch = 1};
    double quick = 0.0, slow = 0.0, bandwidth = 0.0;

    (void)state;
    ok(cpu_gemm_ceiling(&small, mc_cpu_seconds, &quick));
    ok(cpu_gemm_ceiling(&large, mc_cpu_seconds, &slow));
    ok(cpu_copy_ceiling(1, mc_cpu_seconds, &bandwidth));
    assert_true(quick > 0.0);
    assert_true(slow > quick);
    assert_true(bandwidth > 1e6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_by_hand),
        cmocka_unit_test(ceilings_are_reached),
        cmocka_unit_test(ceilings_are_plausible),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
