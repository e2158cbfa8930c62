/* runtime_exec_test.c - the executor on the null and the CPU device.
 *
 * Kernels are C text compiled here by the system's compiler.  Expected values
 * are worked out by hand from the plans.
 */
#include "runtime_plan.h"

#include <math.h>
#include <setjmp.h>
#include <unistd.h>
#include <cmocka.h>

static const char kernel_text[] =
    "#include <stdint.h>\n"
    /* y[i] = 2 x[i] + imm[0], n = imm[1] */
    "void twice(void *const *p, const int64_t *imm, int tid, int n) {\n"
    "  const float *x = p[0]; float *y = p[1];\n"
    "  for (int64_t i = tid; i < imm[1]; i += n)\n"
    "    y[i] = 2 * x[i] + (float)imm[0]; }\n"
    /* two phases: a partial sum per thread, then their sum by thread 0 */
    "void sum(void *const *p, const int64_t *imm, int tid, int n) {\n"
    "  const float *x = p[0]; float *part = p[1]; part[tid] = 0;\n"
    "  for (int64_t i = tid; i < imm[0]; i += n) part[tid] += x[i]; }\n"
    "void sum_2(void *const *p, const int64_t *imm, int tid, int n) {\n"
    "  float *part = p[1], *y = p[2]; (void)imm; if (tid) return; *y = 0;\n"
    "  for (int t = 0; t < n; t++) *y += part[t]; }\n"
    /* imm[0] is appended to a list whose length is its first element */
    "void note(void *const *p, const int64_t *imm, int tid, int n) {\n"
    "  int32_t *list = p[0]; (void)tid; (void)n;\n"
    "  list[++list[0]] = (int32_t)imm[0]; }\n";

static char library[64];

static int compile_kernels(void **state)
{
    char command[256], source[64];
    FILE *f;

    (void)state;
    snprintf(source, sizeof source, "/tmp/megac_exec_%d.c", (int)getpid());
    snprintf(library, sizeof library, "/tmp/megac_exec_%d.so", (int)getpid());
    f = fopen(source, "w");
    if (!f || fputs(kernel_text, f) < 0 || fclose(f) != 0)
        return -1;
    snprintf(command, sizeof command, "cc -O1 -shared -fPIC -o %s %s", library,
             source);
    int failed = system(command);
    unlink(source);
    return failed;
}

static int remove_kernels(void **state)
{
    (void)state;
    return unlink(library);
}

typedef struct {
    Plan plan;
    const DeviceDriver *driver;
    Device *device;
    Comm *comm;
    Exec *exec;
} Rig;

static void ok(Status s)
{
    assert_string_equal(status_text(s), "");
}

static void rig_open(PlanBuilder *b, const DeviceDriver *driver, int threads,
                     Rig *r)
{
    ExecConfig config = {.plan = &r->plan, .driver = driver};

    r->plan = tiny_load(b);
    r->driver = driver;
    ok(driver->open(&(DeviceConfig){&r->plan, library, threads}, &r->device));
    ok(comm_new(&r->plan, 0, &comm_self, 0, &r->comm));
    config.device = r->device;
    config.comm = r->comm;
    ok(exec_new(&config, &r->exec));
}

static void rig_close(Rig *r)
{
    exec_free(r->exec);
    comm_free(r->comm);
    r->driver->close(r->device);
    plan_free(&r->plan);
}

static float *floats(const Rig *r, uint64_t address)
{
    return (float *)(void *)exec_pointer(r->exec, address);
}

static void emit(PlanBuilder *b, PlanOp op, uint32_t index, uint32_t aux,
                 uint8_t flags, const PlanOperand *o, uint32_t n)
{
    plan_emit(
        b,
        (PlanInstr){
            .op = (uint8_t)op, .index = index, .aux = aux, .flags = flags},
        o, n);
}

/* Fill x with 1.5, y = 2x + 3, z = copy of y, sum of z over N: 6 N.  N is
 * large enough for a team of threads. */
static void straight_line(void **state)
{
    enum {
        N = 30000,
        BYTES = 4 * N,
        X = 0,
        Y = 1 << 17,
        Z = 1 << 18,
        PARTS = 1 << 19,
        SUM = PARTS + 64
    };
    PlanBuilder *b = tiny_builder(1, 1 << 20);
    uint32_t twice = plan_add_kernel(b, "twice", 1, false, 2, 2);
    uint32_t sum = plan_add_kernel(b, "sum", 2, false, 3, 1);
    Rig r;

    (void)state;
    plan_segment_begin(b, "main");
    emit(b, PLAN_FILL, 0, 0x3fc00000, 0,
         (PlanOperand[]){plan_address(X, BYTES, PLAN_WRITE)}, 1);
    emit(b, PLAN_LAUNCH, twice, 0, 0,
         (PlanOperand[]){plan_address(X, BYTES, PLAN_READ), plan_integer(3),
                         plan_address(Y, BYTES, PLAN_WRITE), plan_integer(N)},
         4);
    emit(b, PLAN_COPY, 0, 0, 0,
         (PlanOperand[]){plan_address(Z, BYTES, PLAN_WRITE),
                         plan_address(Y, BYTES, PLAN_READ)},
         2);
    emit(b, PLAN_LAUNCH, sum, 0, 0,
         (PlanOperand[]){plan_address(Z, BYTES, PLAN_READ),
                         plan_address(PARTS, 64, PLAN_WRITE),
                         plan_address(SUM, 4, PLAN_WRITE), plan_integer(N)},
         4);
    rig_open(b, &device_cpu, 3, &r);
    ok(exec_step(r.exec));
    assert_true(floats(&r, Y)[N - 1] == 6.0f);
    assert_true(floats(&r, SUM)[0] == 6.0f * N);
    assert_true(floats(&r, PARTS)[2] == 2.0f * N);
    assert_int_equal(exec_count(r.exec), 4);
    rig_close(&r);
}

/* A segment that notes its register i + offset in the list given to it. */
static void add_noter(PlanBuilder *b, const char *name, int64_t offset)
{
    uint32_t note = plan_add_kernel(b, "note", 1, true, 1, 1);
    uint16_t i, list;

    plan_segment_begin(b, name);
    i = plan_add_reg(b, PLAN_INTEGER, "i");
    list = plan_add_reg(b, PLAN_ADDRESS, "list");
    emit(b, PLAN_LAUNCH, note, 0, 0,
         (PlanOperand[]){plan_reg_address(list, 0, 64, PLAN_WRITE),
                         plan_reg_integer(i, offset)},
         2);
}

/* outer runs twice upwards, inner three times downwards inside it; inner notes
 * 100 * outer + inner + 7: the order is that of the iterations. */
static void calls_nest_and_reverse(void **state)
{
    PlanBuilder *b = tiny_builder(1, 4096);
    Rig r;
    PlanOperand steps[2] = {plan_integer(0), plan_address(0, 0, 0)};
    PlanOperand inner_args[2];
    int32_t expected[] = {6, 9, 8, 7, 109, 108, 107};

    (void)state;
    add_noter(b, "inner", 7);
    plan_segment_begin(b, "outer");
    uint16_t i = plan_add_reg(b, PLAN_INTEGER, "i");
    uint16_t list = plan_add_reg(b, PLAN_ADDRESS, "list");
    inner_args[0] = plan_reg_integer(i, 0);
    inner_args[0].stride = 1;
    inner_args[1] = plan_reg_address(list, 16, 0, 0);
    emit(b, PLAN_CALL, 0, 3, PLAN_REVERSE, inner_args, 2);
    plan_segment_begin(b, "main");
    steps[0].stride = 100;
    emit(b, PLAN_CALL, 1, 2, 0, steps, 2);
    rig_open(b, &device_cpu, 1, &r);
    ok(exec_step(r.exec));
    assert_memory_equal(floats(&r, 16), expected, sizeof expected);
    rig_close(&r);
}

/* Of three iterations as many run as an f32 says that is there by then; each
 * notes its number. */
static void data_says_how_often(void **state)
{
    enum { TRIPS = 0, LIST = 64 };
    PlanBuilder *b = tiny_builder(1, 4096);
    PlanOperand args[3] = {plan_address(TRIPS, 4, PLAN_READ), plan_integer(5),
                           plan_address(LIST, 0, 0)};
    Rig r;

    (void)state;
    add_noter(b, "some", 0);
    plan_segment_begin(b, "main");
    args[1].stride = 1;
    emit(b, PLAN_CALL, 0, 3, PLAN_TRIPS, args, 3);
    rig_open(b, &device_cpu, 2, &r);
    for (int32_t n = 0; n <= 3; n++) {
        const int32_t *got = (const int32_t *)floats(&r, LIST);

        memset(floats(&r, LIST), 0, 64);
        floats(&r, TRIPS)[0] = (float)n;
        ok(exec_step(r.exec));
        assert_int_equal(got[0], n);
        for (int32_t k = 0; k < n; k++)
            assert_int_equal(got[1 + k], 5 + k);
    }
    for (int k = 0; k < 3; k++) {
        static const float wrong[] = {4, -1, NAN};
        Status s;

        floats(&r, TRIPS)[0] = wrong[k];
        s = exec_step(r.exec);
        assert_non_null(strstr(status_text(s), "of 3 iterations"));
        status_drop(s);
    }
    rig_close(&r);
}

/* Addresses step with the iteration: slot i of x goes to slot i of y. */
static void addresses_step(void **state)
{
    PlanBuilder *b = tiny_builder(1, 4096);
    Rig r;
    uint32_t twice = plan_add_kernel(b, "twice", 1, false, 2, 2);
    PlanOperand args[2] = {plan_address(0, 0, 0), plan_address(1024, 0, 0)};

    (void)state;
    plan_segment_begin(b, "slot");
    uint16_t x = plan_add_reg(b, PLAN_ADDRESS, "x");
    uint16_t y = plan_add_reg(b, PLAN_ADDRESS, "y");
    emit(b, PLAN_LAUNCH, twice, 0, 0,
         (PlanOperand[]){plan_reg_address(x, 0, 4, PLAN_READ),
                         plan_reg_address(y, 0, 4, PLAN_WRITE), plan_integer(1),
                         plan_integer(1)},
         4);
    plan_segment_begin(b, "main");
    args[0].stride = 4;
    args[1].stride = 8;
    emit(b, PLAN_CALL, 0, 4, 0, args, 2);
    rig_open(b, &device_cpu, 2, &r);
    for (int i = 0; i < 4; i++)
        floats(&r, 0)[i] = (float)i;
    ok(exec_step(r.exec));
    for (int i = 0; i < 4; i++)
        assert_true(floats(&r, 1024)[2 * i] == 2.0f * (float)i + 1.0f);
    rig_close(&r);
}

/* The null device sees 10 x 100 launches; the executor's own time per
 * instruction is far below the microsecond that DESIGN's users expect (the
 * bound here is loose: the machine may be busy). */
static void overhead_is_small(void **state)
{
    PlanBuilder *b = tiny_builder(1, 4096);
    Rig r;
    uint32_t twice = plan_add_kernel(b, "twice", 1, false, 2, 2);

    (void)state;
    plan_segment_begin(b, "ten");
    for (int i = 0; i < 10; i++)
        emit(b, PLAN_LAUNCH, twice, 0, 0,
             (PlanOperand[]){plan_address(0, 4, PLAN_READ),
                             plan_address(8, 4, PLAN_WRITE), plan_integer(1),
                             plan_integer(1)},
             4);
    plan_segment_begin(b, "main");
    emit(b, PLAN_CALL, 0, 100, 0, NULL, 0);
    rig_open(b, &device_null, 1, &r);
    double start = mc_seconds();
    for (int i = 0; i < 100; i++)
        ok(exec_step(r.exec));
    double each = (mc_seconds() - start) / (double)exec_count(r.exec);
    print_message("%.0f ns per instruction\n", 1e9 * each);
    assert_int_equal(device_null_count(r.device, PLAN_LAUNCH), 100000);
    assert_true(each < 5e-6);
    rig_close(&r);
}

static Status count_batch(void *self, PlanBatch what, int64_t microbatch,
                          int32_t *out)
{
    (void)self;
    assert_int_equal(what, PLAN_BATCH_LABELS);
    assert_int_equal(microbatch, 5);
    out[0] = 42;
    return STATUS_NONE;
}

static float some_scalar(void *self, PlanScalar what)
{
    (void)self;
    return what == PLAN_SCALAR_STEP ? 3.0f : 0.25f;
}

static Status refuse_metric(void *self, PlanMetric what, float value)
{
    (void)self;
    assert_int_equal(what, PLAN_METRIC_GRAD_NORM);
    assert_true(value == 0.25f);
    return status_make(STATUS_RUN, "the gradient norm is too high");
}

/* HOST instructions reach the program, whose failure names the place. */
static void host_instructions(void **state)
{
    PlanBuilder *b = tiny_builder(1, 4096);
    Rig r;
    uint32_t place = plan_add_place(b, "a.yaml", 3, 9, "norm %7", "w");
    ExecHost host = {NULL, count_batch, some_scalar, refuse_metric, NULL};
    Exec *e;
    Status s;

    (void)state;
    plan_segment_begin(b, "main");
    emit(b, PLAN_HOST, PLAN_HOST_LOAD_BATCH, PLAN_BATCH_LABELS, 0,
         (PlanOperand[]){plan_integer(5), plan_address(0, 4, PLAN_WRITE)}, 2);
    emit(b, PLAN_HOST, PLAN_HOST_SCALAR, PLAN_SCALAR_LR, 0,
         (PlanOperand[]){plan_address(8, 4, PLAN_WRITE)}, 1);
    plan_emit(b,
              (PlanInstr){.op = PLAN_HOST,
                          .index = PLAN_HOST_METRIC,
                          .aux = PLAN_METRIC_GRAD_NORM,
                          .place = place},
              (PlanOperand[]){plan_address(8, 4, PLAN_READ)}, 1);
    rig_open(b, &device_cpu, 1, &r);
    ok(exec_new(
        &(ExecConfig){&r.plan, 0, r.driver, r.device, r.comm, host,
                       mc_seconds},
        &e));
    s = exec_step(e);
    assert_int_equal(status_code(s), STATUS_RUN);
    assert_string_equal(status_text(s),
                        "at a.yaml:3:9: host, norm %7, of w, in segment main "
                        "(instruction 2): the gradient norm is too high");
    assert_int_equal(*(int32_t *)(void *)exec_pointer(e, 0), 42);
    status_drop(s);
    exec_free(e);
    rig_close(&r);
}

static void missing_kernel_is_named(void **state)
{
    PlanBuilder *b = tiny_builder(1, 64);
    Device *d;
    Status s;
    Plan p;

    (void)state;
    plan_add_kernel(b, "no_such_kernel", 1, false, 1, 0);
    plan_segment_begin(b, "main");
    p = tiny_load(b);
    s = device_cpu.open(&(DeviceConfig){&p, library, 1}, &d);
    assert_string_equal(status_text(s),
                        "the kernels lack the function no_such_kernel");
    status_drop(s);
    plan_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(straight_line),
        cmocka_unit_test(calls_nest_and_reverse),
        cmocka_unit_test(data_says_how_often),
        cmocka_unit_test(addresses_step),
        cmocka_unit_test(overhead_is_small),
        cmocka_unit_test(host_instructions),
        cmocka_unit_test(missing_kernel_is_named),
    };

    return cmocka_run_group_tests(tests, compile_kernels, remove_kernels);
}
