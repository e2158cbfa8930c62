/* kernels.h - the printers that read IR: row programs and gathers.
 *
 * Each prints one kernel of the contract in codegen.h for the local sizes that
 * the layouts of its values give, and says how it wants to be launched.
 */
#ifndef MEGAC_KERNELS_H
#define MEGAC_KERNELS_H

#include "codegen/codegen.h"
#include "ir/ir.h"

enum { KERNEL_MAX_IMM = 8 };

/* A number known when a kernel is launched: the first logical index of `dim` of
 * `value` on the rank (layout_start); or, if `axes` is not empty, the rank's
 * index along these atoms, which is 0 where all its coordinates are; or what a
 * register holds. */
typedef enum { START_RANK, START_LAYER, START_MICROBATCH } StartKind;

typedef struct {
    StartKind kind;
    ValueId value;
    char dim;
    AxisSet axes;
} KernelStart;

typedef struct {
    uint32_t phases;   /* 2: NAME_2 follows NAME, after a barrier */
    int64_t workspace; /* bytes behind the last pointer; 0: no such pointer */
    double flops, bytes; /* as in PlanWork */
    DType dtype;         /* of what is multiplied, if flops are not 0 */
    uint32_t nptr, nimm;
    KernelStart imm[KERNEL_MAX_IMM];
} KernelInfo;

/* Distance in elements between neighbours along each dimension of the type;
 * the fastest may have a distance too. */
typedef struct {
    int64_t of[IR_MAX_DIMS];
} Strides;

/* Dense and row-major over the local sizes of a value. */
Strides strides_dense(const Module *m, ValueId v);

/* ---- row.c: what a row program can be ----------------------------------- */

/* NULL if the FUNC_ROW function f can be one kernel, else why not: only
 * pointwise work on equal dimensions may follow a reduction over rows, and
 * the reductions of a row agree on its dimensions. */
const char *row_refusal(const Module *m, FuncId f);

/* Whether result `res` may be written where parameter `arg` lies. */
bool row_in_place(const Module *m, FuncId f, uint32_t arg, uint32_t res);

int64_t row_workspace(const Module *m, FuncId f);

/* ---- row_print.c -------------------------------------------------------- */

/* Prints row program f as the kernel `name`, for every dialect.  Pointers:
 * the parameters, the results, the destinations of the `accum` nodes in the
 * order of the body, the workspace, the key of dropout's draws.  `strides` is
 * indexed like the pointers; NULL: all dense. */
void row_print(const Module *m, FuncId f, const char *name,
               const Strides *strides, Buf *out, KernelInfo *out_info);

/* ---- gather.c: embed, embed_grad, rows, rows_grad, rope_table ----------- */

/* Prints the kernel of one such node; pointers are its operands, then its
 * result, all dense.  With `accumulate` (embed_grad, rows_grad) the result is
 * added to what is there. */
void gather_print(const Module *m, NodeId n, const char *name, bool accumulate,
                  Buf *out, KernelInfo *out_info);

/* ---- route.c: topk, fit, rounds, and the ways of rows ------------------- */

/* Prints the kernel of one such node; pointers are its operands, its result,
 * and the workspace if there is one. */
void route_print(const Module *m, NodeId n, const char *name, Buf *out,
                 KernelInfo *out_info);

#endif
