/* device_cpu_half.h - f16 operands of a product, as f32. */
#ifndef MEGAC_RUNTIME_DEVICE_CPU_HALF_H
#define MEGAC_RUNTIME_DEVICE_CPU_HALF_H

#include "runtime/plan.h"

/* A, B, C and, if there are, bias and residual. */
int cpu_half_operands(const PlanGemm *g);
bool cpu_half_needed(const PlanGemm *g);
/* Room for the copies of one product. */
size_t cpu_half_bytes(const PlanGemm *g);
/* Copies operands to `scratch` as f32; what needs no copy stays. */
void cpu_half_widen(const PlanGemm *g, char *scratch, void *const *operand,
                    void **out);
/* Rounds the result to where it belongs. */
void cpu_half_narrow(const PlanGemm *g, void *const *operand,
                     void *const *wide);

#endif
