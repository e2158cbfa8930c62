/* exec.h - runs the programs of a plan. */
#ifndef MEGAC_RUNTIME_EXEC_H
#define MEGAC_RUNTIME_EXEC_H

#include "runtime/comm.h"
#include "runtime/device.h"

/* What HOST instructions ask of the program around the executor. */
typedef struct {
    void *self;
    Status (*load_batch)(void *self, PlanBatch what, int64_t microbatch,
                         int32_t *out);
    float (*scalar)(void *self, PlanScalar what);
    Status (*metric)(void *self, PlanMetric what, float value);
    Status (*grads)(void *self);
} ExecHost;

typedef struct {
    const Plan *plan;
    uint32_t rank;
    const DeviceDriver *driver;
    Device *device;
    Comm *comm;
    ExecHost host;
    double (*clock)(void); /* to time every instruction by, or NULL */
} ExecConfig;

typedef struct Exec Exec;

/* Binds a plan to a rank and to memory.  Nothing is allocated afterwards. */
MC_MUST_USE Status exec_new(const ExecConfig *config, Exec **out);
void exec_free(Exec *e);
/* One of the plan's programs; a failure names the instruction. */
MC_MUST_USE Status exec_run(Exec *e, uint32_t program);
MC_MUST_USE Status exec_step(Exec *e); /* program 0: a step of training */

/* The address a plan's address has in this process. */
char *exec_pointer(const Exec *e, uint64_t address);
/* The instruction running now or last; safe to call from a signal handler. */
uint32_t exec_instr(const Exec *e);
uint64_t exec_count(const Exec *e); /* instructions run since exec_new */

/* What an instruction took; a CALL takes what all that it runs takes. */
typedef struct {
    double seconds, best; /* all runs together, the quickest one */
    uint64_t runs;
} ExecTime;
const ExecTime *exec_times(const Exec *e); /* one per instruction, or NULL */
void exec_times_reset(Exec *e);
/* What the addresses of an instruction cover. */
uint64_t exec_bytes(const Exec *e, uint32_t instr);

#endif
