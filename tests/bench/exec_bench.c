/* exec_bench.c - what an instruction costs the executor itself.
 *
 * A thousand turns over a thousand launches of four operands, on the device
 * that does nothing.  Prints nanoseconds per instruction, the median of nine
 * runs, by processor time.
 */
#include "tests/unit/runtime_plan.h"

enum { INSTRS = 1000, TURNS = 1000, OPERANDS = 4, RUNS = 9 };

static Plan make_plan(void)
{
    PlanBuilder *b = tiny_builder(1, 1 << 16);
    uint32_t kernel = plan_add_kernel(b, "nothing", 1, false, OPERANDS, 0);
    PlanOperand arguments[OPERANDS], base;
    uint32_t body = plan_segment_begin(b, "body");
    uint16_t reg = plan_add_reg(b, PLAN_ADDRESS, "x");

    for (int k = 0; k < OPERANDS; k++)
        arguments[k] = plan_reg_address(reg, 64 * k, 64, PLAN_WRITE);
    for (int i = 0; i < INSTRS; i++)
        plan_emit(b, (PlanInstr){.op = PLAN_LAUNCH, .index = kernel}, arguments,
                  OPERANDS);
    plan_segment_begin(b, "main");
    base = plan_address(0, 64 * OPERANDS, PLAN_WRITE);
    plan_emit(b, (PlanInstr){.op = PLAN_CALL, .index = body, .aux = TURNS},
              &base, 1);
    return tiny_load(b);
}

static int by_size(const void *x, const void *y)
{
    const double *a = x, *b = y;

    return (*a > *b) - (*a < *b);
}

/* Seconds of one step, the median. */
static Status measure(const ExecConfig *config, double *out)
{
    double seconds[RUNS];
    Exec *e;

    STATUS_TRY(exec_new(config, &e));
    for (int i = 0; i < RUNS; i++) {
        double start = mc_cpu_seconds();
        STATUS_TRY(exec_step(e));
        seconds[i] = mc_cpu_seconds() - start;
    }
    qsort(seconds, RUNS, sizeof *seconds, by_size);
    *out = seconds[RUNS / 2];
    exec_free(e);
    return STATUS_NONE;
}

static Status run(const Plan *p, double *out)
{
    ExecConfig config = {.plan = p, .driver = &device_null};

    STATUS_TRY(device_null.open(&(DeviceConfig){p, NULL, 1}, &config.device));
    STATUS_TRY(comm_new(p, 0, &comm_self, 0.0, &config.comm));
    STATUS_TRY(measure(&config, out));
    comm_free(config.comm);
    device_null.close(config.device);
    return STATUS_NONE;
}

int main(void)
{
    Plan p = make_plan();
    double seconds = 0.0;
    Status s = run(&p, &seconds);

    if (s) {
        fprintf(stderr, "%s\n", status_text(s));
        return 1;
    }
    printf("%.1f\n", seconds * 1e9 / (INSTRS * TURNS));
    plan_free(&p);
    return 0;
}
