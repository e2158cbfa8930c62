/* plan_value.c - numbers of a plan's floating types, as f32. */
#include "runtime/plan.h"

#include "base/half.h"

void plan_store(uint32_t dtype, char *to, int64_t i, float value)
{
    uint16_t half;

    if (dtype == PLAN_F32) {
        memcpy(to + i * 4, &value, 4);
        return;
    }
    half = dtype == PLAN_F16 ? half_narrow(value) : bf16_narrow(value);
    memcpy(to + i * 2, &half, 2);
}

float plan_fetch(uint32_t dtype, const char *from, int64_t i)
{
    uint16_t half;
    float value;

    if (dtype == PLAN_F32) {
        memcpy(&value, from + i * 4, 4);
        return value;
    }
    memcpy(&half, from + i * 2, 2);
    return dtype == PLAN_F16 ? half_widen(half) : bf16_widen(half);
}
