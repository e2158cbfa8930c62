/* codegen_bench.h - for tests: one IR function as kernels, against eval_func.
 *
 * A Bench holds a module with one function, the bytes of its operands and what
 * the evaluator makes of them in fp64.
 */
#ifndef MEGAC_TESTS_CODEGEN_BENCH_H
#define MEGAC_TESTS_CODEGEN_BENCH_H

#include "codegen_load.h"

#include "codegen/kernels.h"
#include "ir/eval.h"

#include <math.h>

enum { MAX_OPERANDS = 16 };

typedef struct {
    Arena *arena;
    Diag *diag;
    Module *m;
    FuncId f;
    KernelInfo info;
    uint32_t rank;           /* whose share the arrays are */
    void *ptr[MAX_OPERANDS]; /* parameters, results, workspace */
    size_t bytes[MAX_OPERANDS];
    int64_t imm[KERNEL_MAX_IMM];
    EvalArray want[MAX_OPERANDS], args[MAX_OPERANDS];
} Bench;

static inline void bench_open(Bench *w, const char *name, FuncKind kind)
{
    *w = (Bench){.arena = arena_new()};
    w->diag = diag_new(w->arena);
    w->m = module_new(w->arena, w->diag);
    w->f = func_new(w->m, name, kind, (Loc){0});
}

static inline void bench_close(Bench *w)
{
    for (int i = 0; i < MAX_OPERANDS; i++)
        free(w->ptr[i]);
    module_free(w->m);
    diag_free(w->diag);
    arena_free(w->arena);
}

static inline double element(const void *p, DType t, size_t i)
{
    uint32_t u;
    float f;

    if (t == DT_I32)
        return (double)((const int32_t *)p)[i];
    if (t == DT_F32)
        return (double)((const float *)p)[i];
    u = (uint32_t)((const uint16_t *)p)[i] << 16;
    memcpy(&f, &u, sizeof f);
    return (double)f;
}

static inline void fill(void *p, DType t, size_t i, float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    if (t == DT_I32)
        ((int32_t *)p)[i] = (int32_t)(x * 200.0f);
    else if (t == DT_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = (uint16_t)(u >> 16);
}

static inline size_t local_elems(const Bench *w, ValueId v)
{
    return (size_t)layout_local_elems(
        w->m, value_type(w->m, v), layout_of(w->m, value_of(w->m, v)->layout));
}

static inline EvalArray array_like(const Bench *w, ValueId v)
{
    const Type *t = value_type(w->m, v);
    const Layout *l = layout_of(w->m, value_of(w->m, v)->layout);
    EvalArray x = {.ndim = t->ndim};

    memcpy(x.dim, t->dim, sizeof x.dim);
    for (int i = 0; i < t->ndim; i++)
        x.size[i] = layout_local(w->m, t, l, t->dim[i]);
    x.at = arena_array(w->arena, EvalNum, local_elems(w, v));
    return x;
}

static inline void operands_make(Bench *w)
{
    const Func *f = func_of(w->m, w->f);
    uint64_t seed = 7;
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->params.n + f->results.n; i++, n++) {
        bool input = i < f->params.n;
        ValueId v = input ? f->params.v[i] : f->results.v[i - f->params.n];
        const Type *t = value_type(w->m, v);
        size_t elems = local_elems(w, v);
        w->bytes[n] = elems * (size_t)dtype_bytes(t->dtype);
        w->ptr[n] = malloc(w->bytes[n]);
        if (input)
            w->args[i] = array_like(w, v);
        for (size_t k = 0; input && k < elems; k++) {
            fill(w->ptr[n], t->dtype, k, random_unit(&seed));
            w->args[i].at[k].f = element(w->ptr[n], t->dtype, k);
        }
    }
    if (w->info.workspace)
        w->ptr[n] = malloc((size_t)w->info.workspace);
}

/* The immediates that the kernel asks for, as rank w->rank has them. */
static inline void starts_set(Bench *w)
{
    for (uint32_t i = 0; i < w->info.nimm; i++) {
        const KernelStart *s = &w->info.imm[i];
        const Value *v = value_of(w->m, s->value);
        w->imm[i] =
            s->axes ? axes_index(&w->m->mesh, s->axes, w->rank)
                    : layout_start(w->m, type_of(w->m, v->type),
                                   layout_of(w->m, v->layout), s->dim, w->rank);
    }
}

static inline void launch(Bench *w, void *so, const char *name, int nthreads)
{
    char second[64];

    kernel_run(kernel_find(so, name), w->ptr, w->imm, nthreads);
    if (w->info.phases == 1)
        return;
    snprintf(second, sizeof second, "%s_2", name);
    kernel_run(kernel_find(so, second), w->ptr, w->imm, nthreads);
}

static inline double distance(const Bench *w, uint32_t res)
{
    const Func *f = func_of(w->m, w->f);
    ValueId v = f->results.v[res];
    const Type *t = value_type(w->m, v);
    const void *got = w->ptr[f->params.n + res];
    double off = 0.0, size = 1e-30;

    for (size_t i = 0; i < local_elems(w, v); i++) {
        double want = w->want[res].at[i].f, x = element(got, t->dtype, i);
        off += (x - want) * (x - want);
        size += want * want;
    }
    return sqrt(off / size);
}

static inline void check_results(Bench *w, const char *name, double limit,
                                 const char *text)
{
    const Func *f = func_of(w->m, w->f);
    const EvalOptions fp64 = {.kind = EVAL_FP64};

    assert_true(
        eval_func(w->arena, w->m, w->f, &fp64, w->rank, w->args, w->want));
    for (uint32_t i = 0; i < f->results.n; i++) {
        double off = distance(w, i);
        if (!(off <= limit))
            print_error("%s: result %u is off by %g\n%s\n", name, i, off, text);
        assert_true(off <= limit);
    }
}

/* The results of one thread and of three are the same bytes. */
static inline void check_threads(Bench *w, void *so, const char *name)
{
    const Func *f = func_of(w->m, w->f);
    void *first[MAX_OPERANDS];

    launch(w, so, name, 1);
    for (uint32_t i = 0; i < f->results.n; i++) {
        uint32_t k = f->params.n + i;
        first[i] = memcpy(malloc(w->bytes[k]), w->ptr[k], w->bytes[k]);
        memset(w->ptr[k], 0x7f, w->bytes[k]);
    }
    launch(w, so, name, 3);
    for (uint32_t i = 0; i < f->results.n; i++) {
        uint32_t k = f->params.n + i;
        assert_memory_equal(first[i], w->ptr[k], w->bytes[k]);
        free(first[i]);
    }
}

#endif
