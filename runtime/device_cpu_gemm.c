/* device_cpu_gemm.c - the plan's matrix products as oneDNN primitives.
 *
 * A row of the gemm table, or a piece of one, becomes a matmul primitive when
 * the plan is loaded: transposed storage and row distances are strides of its
 * memory descriptors; accumulation, residuals and activations are post-ops.
 * Running one sets the data handles of its prepared memory objects.  All
 * primitives share one scratchpad of the largest size asked for, so nothing is
 * allocated later.
 */
#include "runtime/device_cpu_gemm.h"
#include "runtime/device_cpu_half.h"

#include <dnnl.h>
#include <omp.h>
#include <stdlib.h>

enum { ARGS_MAX = 6, SCRATCH_ALIGN = 64 };

/* Products of fewer multiplications are done by one thread sooner than by a
 * team. */
#define PARALLEL_PRODUCTS 500000.0

struct CpuGemm {
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[ARGS_MAX]; /* A, B, C, bias, residual, scratchpad */
    dnnl_exec_arg_t args[ARGS_MAX];
    int nargs, noperands;
    int threads; /* oneDNN plans for as many, so they are the same later */
    PlanGemm half; /* the row, if operands are f16; else all 0 */
};

struct CpuGemms {
    const Plan *plan;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    CpuPieces **rows;    /* by row of the gemm table: a product, … */
    CpuFilled **filled;  /* … or those that counted slots take */
    void *scratch;
    size_t scratch_bytes;
    char *half; /* operands of f16 as f32 */
    size_t half_bytes;
    int threads; /* of the device */
};

static Status check(dnnl_status_t code, const char *what)
{
    if (code == dnnl_success)
        return STATUS_NONE;
    return status_make(STATUS_SYSTEM, "oneDNN cannot %s (its error %d)", what,
                       (int)code);
}

/* ---- descriptors --------------------------------------------------------- */

static dnnl_data_type_t dnnl_type(uint8_t dtype)
{
    return dtype == PLAN_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* `batch` matrices of rows x columns; `ld` is the distance between stored
 * rows.  A product without a batch has two dimensions. */
static Status describe(const PlanGemm *g, int64_t rows, int64_t columns,
                       int64_t ld, int64_t stride, bool transposed,
                       uint8_t dtype, dnnl_memory_desc_t *out)
{
    dnnl_dims_t dims = {g->batch, rows, columns};
    dnnl_dims_t strides = {stride, transposed ? 1 : ld, transposed ? ld : 1};
    int skip = g->batch == 1;

    if (!skip && stride == 0) { /* oneDNN repeats a batch of one */
        dims[0] = 1;
        strides[0] = rows * columns;
    }
    return check(dnnl_memory_desc_init_by_strides(out, 3 - skip, dims + skip,
                                                  dnnl_type(dtype),
                                                  strides + skip),
                 "describe a matrix");
}

static Status describe_all(const PlanGemm *g, dnnl_memory_desc_t md[4])
{
    STATUS_TRY(describe(g, g->m, g->k, g->lda, g->stride_a, g->trans_a,
                        g->type_a, &md[0]));
    STATUS_TRY(describe(g, g->k, g->n, g->ldb, g->stride_b, g->trans_b,
                        g->type_b, &md[1]));
    STATUS_TRY(
        describe(g, g->m, g->n, g->ldc, g->stride_c, false, g->type_c, &md[2]));
    return describe(g, 1, g->n, g->n, 0, false, g->type_bias, &md[3]);
}

/* In the order in which the plan says that they happen.  A residual is the
 * first, since it excludes accumulation. */
static Status append_all(const PlanGemm *g, const dnnl_memory_desc_t *residual,
                         dnnl_post_ops_t ops)
{
    static const dnnl_alg_kind_t kind[PLAN_ACTIVATIONS] = {
        [PLAN_RELU] = dnnl_eltwise_relu,
        [PLAN_GELU_TANH] = dnnl_eltwise_gelu_tanh};

    if (g->accumulate)
        STATUS_TRY(check(dnnl_post_ops_append_sum(ops, 1.0f), "accumulate"));
    if (g->residual)
        STATUS_TRY(check(
            dnnl_post_ops_append_binary(ops, dnnl_binary_add, residual),
            "add a residual"));
    if (!g->activation)
        return STATUS_NONE;
    return check(dnnl_post_ops_append_eltwise(ops, 1.0f, kind[g->activation],
                                              0.0f, 0.0f),
                 "apply an activation");
}

static Status make_attributes(const PlanGemm *g,
                              const dnnl_memory_desc_t *residual,
                              dnnl_primitive_attr_t *out)
{
    dnnl_post_ops_t ops;

    STATUS_TRY(check(dnnl_primitive_attr_create(out), "make attributes"));
    STATUS_TRY(check(dnnl_primitive_attr_set_scratchpad_mode(
                         *out, dnnl_scratchpad_mode_user),
                     "use a scratchpad"));
    STATUS_TRY(check(dnnl_post_ops_create(&ops), "make post-ops"));
    Status s = append_all(g, residual, ops);
    if (!s)
        s = check(dnnl_primitive_attr_set_post_ops(*out, ops), "set post-ops");
    dnnl_post_ops_destroy(ops);
    return s;
}

/* ---- primitives ---------------------------------------------------------- */

static Status add_argument(CpuGemms *all, CpuGemm *row,
                           const dnnl_memory_desc_t *md, int what)
{
    int i = row->nargs;

    STATUS_TRY(check(
        dnnl_memory_create(&row->memory[i], md, all->engine, DNNL_MEMORY_NONE),
        "make a memory object"));
    row->args[i] = (dnnl_exec_arg_t){what, row->memory[i]};
    row->nargs = i + 1;
    return STATUS_NONE;
}

/* The scratchpad is the last argument; its size is reported. */
static Status add_arguments(CpuGemms *all, CpuGemm *row, const PlanGemm *g,
                            const dnnl_memory_desc_t md[4],
                            const_dnnl_primitive_desc_t pd, size_t *out_scratch)
{
    static const int what[4] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                DNNL_ARG_BIAS};
    const dnnl_memory_desc_t *scratch =
        dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);

    for (int i = 0; i < 3 + g->bias; i++)
        STATUS_TRY(add_argument(all, row, &md[i], what[i]));
    if (g->residual)
        STATUS_TRY(add_argument(
            all, row, &md[2],
            DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1));
    row->noperands = row->nargs;
    *out_scratch = dnnl_memory_desc_get_size(scratch);
    return add_argument(all, row, scratch, DNNL_ARG_SCRATCHPAD);
}

static Status make_primitive(CpuGemms *all, CpuGemm *row, const PlanGemm *g,
                             const dnnl_memory_desc_t md[4],
                             dnnl_primitive_attr_t attributes,
                             size_t *out_scratch)
{
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd;
    Status s;

    STATUS_TRY(check(dnnl_matmul_desc_init(&desc, &md[0], &md[1],
                                           g->bias ? &md[3] : NULL, &md[2]),
                     "describe a product"));
    STATUS_TRY(check(
        dnnl_primitive_desc_create(&pd, &desc, attributes, all->engine, NULL),
        "find a way to multiply"));
    s = check(dnnl_primitive_create(&row->primitive, pd), "prepare a product");
    if (!s)
        s = add_arguments(all, row, g, md, pd, out_scratch);
    dnnl_primitive_desc_destroy(pd);
    return s;
}

static double products(const PlanGemm *g)
{
    return (double)g->m * (double)g->n * (double)g->k * (double)g->batch;
}

static Status make_row(CpuGemms *all, const PlanGemm *g, CpuGemm *row)
{
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_memory_desc_t md[4];
    size_t need = 0;
    Status s;

    STATUS_TRY(describe_all(g, md));
    row->threads = products(g) < PARALLEL_PRODUCTS ? 1 : all->threads;
    omp_set_num_threads(row->threads);
    s = make_attributes(g, &md[2], &attributes);
    if (!s)
        s = make_primitive(all, row, g, md, attributes, &need);
    omp_set_num_threads(all->threads);
    dnnl_primitive_attr_destroy(attributes);
    all->scratch_bytes = MC_MAX(all->scratch_bytes, need);
    return s;
}

Status cpu_gemm_new(CpuGemms *all, const PlanGemm *g, CpuGemm **out)
{
    CpuGemm *row = calloc(1, sizeof *row);

    *out = row;
    if (!row)
        return status_make(STATUS_SYSTEM, "no memory for the products");
    if (cpu_half_needed(g)) {
        row->half = *g;
        all->half_bytes = MC_MAX(all->half_bytes, cpu_half_bytes(g));
    }
    return make_row(all, g, row);
}

void cpu_gemm_free(CpuGemm *row)
{
    if (!row)
        return;
    for (int k = 0; k < row->nargs; k++)
        dnnl_memory_destroy(row->memory[k]);
    dnnl_primitive_destroy(row->primitive);
    free(row);
}

static Status run_row(CpuGemms *all, CpuGemm *row, void *const *operand)
{
    dnnl_status_t code = dnnl_success;

    for (int i = 0; i < row->noperands && code == dnnl_success; i++)
        code = dnnl_memory_set_data_handle(row->memory[i], operand[i]);
    if (code == dnnl_success)
        code = dnnl_memory_set_data_handle(row->memory[row->nargs - 1],
                                           all->scratch);
    omp_set_num_threads(row->threads);
    if (code == dnnl_success)
        code = dnnl_primitive_execute(row->primitive, all->stream, row->nargs,
                                      row->args);
    omp_set_num_threads(all->threads);
    return check(code, "multiply");
}

Status cpu_gemm_run(CpuGemms *all, CpuGemm *row, void *const *operand)
{
    void *wide[ARGS_MAX];

    if (row->half.m == 0)
        return run_row(all, row, operand);
    cpu_half_widen(&row->half, all->half, operand, wide);
    STATUS_TRY(run_row(all, row, wide));
    cpu_half_narrow(&row->half, operand, wide);
    return STATUS_NONE;
}

/* ---- the table ----------------------------------------------------------- */

static Status make_products(CpuGemms *all, uint32_t i)
{
    const PlanGemm *g = &all->plan->gemms.v[i];
    Status s = g->filled ? cpu_filled_new(all, g, &all->filled[i])
                         : cpu_pieces_new(all, g, &all->rows[i]);

    return status_in(s, "gemm %u (%lld x %lld x %lld)", i, (long long)g->m,
                     (long long)g->n, (long long)g->k);
}

static Status make_scratch(CpuGemms *all)
{
    size_t bytes = (all->scratch_bytes + SCRATCH_ALIGN) &
                   ~(size_t)(SCRATCH_ALIGN - 1);

    all->scratch = aligned_alloc(SCRATCH_ALIGN, bytes);
    if (all->half_bytes) {
        all->half = aligned_alloc(SCRATCH_ALIGN, all->half_bytes);
        bytes += all->half_bytes;
    }
    return all->scratch && (all->half || !all->half_bytes)
               ? STATUS_NONE
               : status_make(STATUS_SYSTEM,
                             "no memory for a scratchpad of %zu bytes", bytes);
}

static Status make_all(CpuGemms *all)
{
    size_t n = (size_t)all->plan->gemms.n + 1;

    all->rows = calloc(n, sizeof *all->rows);
    all->filled = calloc(n, sizeof *all->filled);
    if (!all->rows || !all->filled)
        return status_make(STATUS_SYSTEM, "no memory for the products");
    STATUS_TRY(check(dnnl_engine_create(&all->engine, dnnl_cpu, 0), "start"));
    STATUS_TRY(check(dnnl_stream_create(&all->stream, all->engine,
                                        dnnl_stream_default_flags),
                     "start"));
    for (uint32_t i = 0; i < all->plan->gemms.n; i++)
        STATUS_TRY(make_products(all, i));
    return make_scratch(all);
}

Status cpu_gemms_new(const Plan *p, CpuGemms **out)
{
    CpuGemms *all = calloc(1, sizeof *all);
    Status s;

    if (!all)
        return status_make(STATUS_SYSTEM, "no memory for the products");
    all->plan = p;
    all->threads = omp_get_max_threads();
    s = make_all(all);
    if (s)
        cpu_gemms_free(all);
    else
        *out = all;
    return s;
}

void cpu_gemms_free(CpuGemms *all)
{
    if (!all)
        return;
    for (uint32_t i = 0; i < all->plan->gemms.n; i++) {
        if (all->rows)
            cpu_pieces_free(all->rows[i]);
        if (all->filled)
            cpu_filled_free(all->filled[i]);
    }
    dnnl_stream_destroy(all->stream);
    dnnl_engine_destroy(all->engine);
    free(all->scratch);
    free(all->half);
    free(all->rows);
    free(all->filled);
    free(all);
}

Status cpu_gemms_run(CpuGemms *all, uint32_t gemm, void *const *operand)
{
    return all->filled[gemm]
               ? cpu_filled_run(all, all->filled[gemm], operand)
               : cpu_pieces_run(all, all->rows[gemm], operand);
}
