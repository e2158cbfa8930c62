/* codegen.h - from IR to what a rank runs: kernels and a plan.
 *
 * Kernels are text first.  A printer writes a self-contained translation unit
 * (row programs, attention, embedding); the two compilers turn such units into
 * a shared object for the host or cubins for a GPU, in process and cached by
 * content.  Every kernel for the CPU has one signature, KernelFn.
 */
#ifndef MEGAC_CODEGEN_H
#define MEGAC_CODEGEN_H

#include "base/base.h"

/* One thread's share of a kernel: `ptr` are the operands in the order of the
 * printer's contract, `imm` the numbers known only when it is launched.  All
 * `nthreads` shares together are the kernel; the bytes they leave behind do
 * not depend on `nthreads`. */
typedef void KernelFn(void *const *ptr, const int64_t *imm, int tid,
                      int nthreads);

/* Every kernel can be printed in two dialects.  CUDA kernels take the same
 * operands through one struct (Args in prelude_cuda.inc) and work for any
 * number of blocks of CUDA_BLOCK threads: a block plays the part of `tid`. */
typedef enum { DIALECT_CPU, DIALECT_CUDA } Dialect;
enum { CUDA_BLOCK = 256, CUDA_ARGS_PTR = 24, CUDA_ARGS_IMM = 8 };

/* ---- prelude.c: the helpers that printed kernels may use ---------------- */

/* codegen_*_build put it before each unit. */
const char *codegen_prelude(Dialect dialect);

/* ---- cache.c: compiled code by content ---------------------------------- */

/* $MEGAC_CACHE, else $XDG_CACHE_HOME/megac, else ~/.cache/megac; NULL if there
 * is no such place.  Created at the first use. */
const char *codegen_cache_dir(Arena *a);

/* ---- cpu/compile.c, cuda/nvrtc.c: text to machine code ------------------ */

/* A translation unit without its prelude. */
typedef struct {
    const char *name; /* for messages and temporary files: letters, digits, _ */
    const char *text;
} CodeUnit;

/* Compiles the units, `threads` at a time, and links them into one shared
 * object that exports every kernel.  `cpu` is an LLVM name or "native".
 * False: the reason went to `d` at `where` (MC0520..MC0523). */
bool codegen_cpu_build(const CodeUnit *units, uint32_t n, const char *cpu,
                       uint32_t threads, Diag *d, Loc where, Buf *out_so);

/* Compiles each unit into a cubin of its own, out_cubins[0..n), for `arch`
 * ("sm_80", "sm_90a", "sm_100").  Needs the CUDA toolkit's NVRTC but no GPU.
 * False: the reason went to `d` at `where` (MC0524..MC0526). */
bool codegen_cuda_build(const CodeUnit *units, uint32_t n, const char *arch,
                        uint32_t threads, Diag *d, Loc where, Buf *out_cubins);

/* ---- attention.c: flash attention --------------------------------------- */

typedef enum { ATTN_F32, ATTN_BF16, ATTN_F16 } AttnType;

/* Elements between neighbours along the sequence, batch, group and the
 * queries of a group; channels are contiguous. */
typedef struct {
    int64_t s, b, g, r;
} AttnStrides;

/* o = softmax(scale * q k^T, masked) v, for every batch row, group and query
 * of the group; the r queries of a group share its key and value. */
typedef struct {
    const char *name; /* the symbol of the kernel, and prefix of all others */
    AttnType type;    /* of every tensor but lse, which is f32 */
    int64_t s, t;     /* queries, keys (positions) */
    int64_t b, g, r, d;
    AttnStrides q, k, v, o, lse;     /* `r` of k and v is unused */
    AttnStrides d_o, dq, dk, dv;     /* backward only */
    bool causal;                     /* key position <= query position */
    int64_t window; /* 0, or how many positions a query sees, itself too */
    double scale;
    /* The sequence of seq tokens is stored in `parts` parts (base/zigzag.h)
     * and s and t are whole chunks of it; parts 0 or 1: in order. */
    int64_t seq, parts;
    /* The keys are those `shift` parts before, of `steps` parts; 0: here. */
    int64_t steps, shift;
    bool carry;    /* forward: continues from an earlier o and lse */
    double rate;   /* dropout of the weights of v (base/dropout.h); 0: none */
    int64_t which; /* its DropoutPlace.which */
    int64_t batch, queries; /* b of all replicas, r of the whole model */
} AttentionSpec;

/* Pointers q, k, v, o, lse, and with `carry` the o and lse of other keys, laid
 * out as o and lse; imm = indices in the sequence, as it is stored, of query 0
 * and key 0.  With dropout also, as the last pointer, the key of the step, and
 * in imm the first batch row, group and query of a group, the layer and the
 * microbatch. */
void attention_print_forward(const AttentionSpec *spec, Dialect dialect,
                             Buf *out);
/* Pointers q, k, v, o, lse, do, dq, dk, dv, workspace.  Two kernels, NAME and
 * then NAME_2, with the same arguments and a barrier between. */
void attention_print_backward(const AttentionSpec *spec, Dialect dialect,
                              Buf *out);
/* Bytes of workspace of the backward, aligned to 64. */
int64_t attention_workspace(const AttentionSpec *spec, Dialect dialect);

#endif
