/* plan_names.c - the spellings of a plan's enumerations, each list in the
 * order of its enum. */
#include "runtime/plan_priv.h"

#define SPELL(list, i) ((i) < MC_LEN(list) ? (list)[i] : "?")

const char *plan_dtype_name(uint32_t dtype)
{
    static const char *const names[PLAN_DTYPES] = {"f32", "bf16", "f16", "i32",
                                                   "u8"};

    return SPELL(names, dtype);
}

size_t plan_dtype_bytes(uint32_t dtype)
{
    static const size_t sizes[PLAN_DTYPES] = {4, 2, 2, 4, 1};

    return dtype < PLAN_DTYPES ? sizes[dtype] : 0;
}

const char *plan_op_name(uint32_t op)
{
    static const char *const names[PLAN_OPS] = {
        "launch", "gemm",  "collective", "send", "recv", "copy",
        "fill",   "event", "wait",       "call", "host"};

    return SPELL(names, op);
}

const char *plan_activation_name(uint32_t activation)
{
    static const char *const names[PLAN_ACTIVATIONS] = {"none", "relu",
                                                        "gelu_tanh"};

    return SPELL(names, activation);
}

const char *plan_collective_name(uint32_t kind)
{
    static const char *const names[PLAN_COLLECTIVES] = {
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all",
        "broadcast", "shift"};

    return SPELL(names, kind);
}

const char *plan_field_name(uint32_t kind)
{
    static const char *const names[PLAN_FIELDS] = {"param", "master", "grad",
                                                   "m", "v"};

    return SPELL(names, kind);
}

const char *plan_host_name(uint32_t op)
{
    static const char *const names[PLAN_HOST_OPS] = {"load_batch", "scalar",
                                                     "metric", "grads"};

    return SPELL(names, op);
}

const char *plan_batch_name(uint32_t batch)
{
    static const char *const names[PLAN_BATCHES] = {"tokens", "labels",
                                                    "loss_mask"};

    return SPELL(names, batch);
}

const char *plan_scalar_name(uint32_t scalar)
{
    static const char *const names[PLAN_SCALARS] = {
        "lr", "adam_bias1", "adam_bias2", "inv_targets",
        "inv_batch", "loss_scale", "step", "draws"};

    return SPELL(names, scalar);
}

const char *plan_metric_name(uint32_t metric)
{
    static const char *const names[PLAN_METRICS] = {
        "loss", "grad_norm", "aux_loss", "z_loss", "max_expert_load"};

    return SPELL(names, metric);
}
