/* device_cpu_ceiling.c - what this machine can do, to judge a profile by.
 *
 * A product's ceiling is the fastest of a few ways to multiply matrices of its
 * shape and types: each operand plain or transposed, or the weights in the
 * order that oneDNN likes best; nothing is accumulated.  So it also shows what
 * a layout costs.  Each is run a few times and the fewest seconds count: what
 * else runs on the machine can only make it slower.
 */
#include "runtime/device.h"

#include <dnnl.h>
#include <omp.h>
#include <stdlib.h>

enum { RUNS = 7, COPY_BYTES = 128 << 20 };

/* A way whose first run, on cold caches, is so much slower than the best of
 * another is not run again. */
#define HOPELESS 1.5

static Status check(dnnl_status_t code, const char *what)
{
    if (code == dnnl_success)
        return STATUS_NONE;
    return status_make(STATUS_SYSTEM, "oneDNN cannot %s (its error %d)", what,
                       (int)code);
}

/* ---- products ------------------------------------------------------------ */

enum { A, B, C, OPERANDS };

typedef struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[OPERANDS];
    dnnl_exec_arg_t args[OPERANDS];
    double (*clock)(void);
} Trial;

static void trial_clear(Trial *t)
{
    for (int i = 0; i < OPERANDS; i++) {
        dnnl_memory_destroy(t->memory[i]);
        t->memory[i] = NULL;
    }
    dnnl_primitive_destroy(t->primitive);
    t->primitive = NULL;
}

static dnnl_data_type_t dnnl_type(uint8_t dtype)
{
    return dtype == PLAN_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* Descriptors of one way: bit 0 transposes A, bit 1 B; from 4 on oneDNN
 * chooses B. */
static Status describe(const PlanGemm *g, int way, dnnl_memory_desc_t md[3])
{
    const dnnl_dims_t size[OPERANDS] = {
        {g->batch, g->m, g->k}, {g->batch, g->k, g->n}, {g->batch, g->m, g->n}};
    const uint8_t type[OPERANDS] = {g->type_a, g->type_b, g->type_c};
    int skip = g->batch == 1;

    for (int i = 0; i < OPERANDS; i++) {
        dnnl_format_tag_t tag = way >> i & 1 && i != C
                                    ? (skip ? dnnl_ba : dnnl_acb)
                                    : (skip ? dnnl_ab : dnnl_abc);
        if (i == B && way >= 4)
            tag = dnnl_format_tag_any;
        STATUS_TRY(
            check(dnnl_memory_desc_init_by_tag(&md[i], 3 - skip, size[i] + skip,
                                               dnnl_type(type[i]), tag),
                  "describe a matrix"));
    }
    return STATUS_NONE;
}

static Status trial_operands(Trial *t, const_dnnl_primitive_desc_t pd)
{
    static const struct {
        dnnl_query_t query;
        int arg;
    } operand[OPERANDS] = {{dnnl_query_src_md, DNNL_ARG_SRC},
                           {dnnl_query_weights_md, DNNL_ARG_WEIGHTS},
                           {dnnl_query_dst_md, DNNL_ARG_DST}};
    void *bytes;

    for (int i = 0; i < OPERANDS; i++) {
        const dnnl_memory_desc_t *md =
            dnnl_primitive_desc_query_md(pd, operand[i].query, 0);
        STATUS_TRY(check(dnnl_memory_create(&t->memory[i], md, t->engine,
                                            DNNL_MEMORY_ALLOCATE),
                         "make a matrix"));
        STATUS_TRY(check(dnnl_memory_get_data_handle(t->memory[i], &bytes),
                         "find a matrix"));
        memset(bytes, 0, dnnl_memory_desc_get_size(md));
        t->args[i] = (dnnl_exec_arg_t){operand[i].arg, t->memory[i]};
    }
    return check(dnnl_primitive_create(&t->primitive, pd), "prepare a product");
}

static Status trial_run(Trial *t, double *out_best)
{
    for (int run = 0; run < RUNS; run++) {
        double start = t->clock();
        STATUS_TRY(check(
            dnnl_primitive_execute(t->primitive, t->stream, OPERANDS, t->args),
            "multiply"));
        double seconds = t->clock() - start;
        if (run)
            *out_best = MC_MIN(*out_best, seconds);
        else if (seconds > HOPELESS * *out_best)
            break;
    }
    return STATUS_NONE;
}

static Status trial_way(Trial *t, const PlanGemm *g, int way, double *out_best)
{
    dnnl_memory_desc_t md[OPERANDS];
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd;
    Status s;

    STATUS_TRY(describe(g, way, md));
    STATUS_TRY(check(dnnl_matmul_desc_init(&desc, &md[A], &md[B], NULL, &md[C]),
                     "describe a product"));
    STATUS_TRY(
        check(dnnl_primitive_desc_create(&pd, &desc, NULL, t->engine, NULL),
              "find a way to multiply"));
    s = trial_operands(t, pd);
    if (!s)
        s = trial_run(t, out_best);
    trial_clear(t);
    dnnl_primitive_desc_destroy(pd);
    return s;
}

static Status trial_ways(Trial *t, const PlanGemm *g, double *out_best)
{
    STATUS_TRY(check(dnnl_engine_create(&t->engine, dnnl_cpu, 0), "start"));
    STATUS_TRY(check(
        dnnl_stream_create(&t->stream, t->engine, dnnl_stream_default_flags),
        "start"));
    for (int way = 0; way <= 4; way++)
        STATUS_TRY(trial_way(t, g, way, out_best));
    return STATUS_NONE;
}

Status cpu_gemm_ceiling(const PlanGemm *g, double (*clock)(void), double *out)
{
    Trial t = {.clock = clock};
    double best = 1e30;
    Status s = trial_ways(&t, g, &best);

    dnnl_stream_destroy(t.stream);
    dnnl_engine_destroy(t.engine);
    if (!s)
        *out = best;
    return s;
}

/* ---- memory -------------------------------------------------------------- */

static void copy_part(char *to, const char *from, size_t bytes)
{
    size_t n = (size_t)omp_get_num_threads();
    size_t i = (size_t)omp_get_thread_num();
    size_t part = bytes / n;

    memcpy(to + i * part, from + i * part, part);
}

Status cpu_copy_ceiling(int threads, double (*clock)(void), double *out)
{
    char *from = malloc(COPY_BYTES), *to = malloc(COPY_BYTES);
    double best = 1e30;

    if (!from || !to) {
        free(from);
        free(to);
        return status_make(STATUS_SYSTEM, "no memory to measure a copy");
    }
    memset(from, 1, COPY_BYTES);
    for (int run = 0; run < RUNS; run++) {
        double start = clock();
#pragma omp parallel num_threads(threads)
        copy_part(to, from, COPY_BYTES);
        if (run)
            best = MC_MIN(best, clock() - start);
    }
    free(from);
    free(to);
    *out = 2.0 * COPY_BYTES / best;
    return STATUS_NONE;
}
