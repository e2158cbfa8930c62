/* device_cpu_gemm.h - what the files about products on CPUs share. */
#ifndef MEGAC_RUNTIME_DEVICE_CPU_GEMM_H
#define MEGAC_RUNTIME_DEVICE_CPU_GEMM_H

#include "runtime/device.h"

/* One prepared product. */
typedef struct CpuGemm CpuGemm;
typedef struct CpuPieces CpuPieces;
typedef struct CpuFilled CpuFilled;

/* ---- device_cpu_gemm.c --------------------------------------------------- */

MC_MUST_USE Status cpu_gemm_new(CpuGemms *all, const PlanGemm *g,
                                CpuGemm **out);
void cpu_gemm_free(CpuGemm *row); /* NULL: nothing */
MC_MUST_USE Status cpu_gemm_run(CpuGemms *all, CpuGemm *row,
                                void *const *operand);

/* ---- device_cpu_pieces.c ------------------------------------------------- */

/* Set even on failure. */
MC_MUST_USE Status cpu_pieces_new(CpuGemms *all, const PlanGemm *g,
                                  CpuPieces **out);
void cpu_pieces_free(CpuPieces *p); /* NULL: nothing */
MC_MUST_USE Status cpu_pieces_run(CpuGemms *all, const CpuPieces *p,
                                  void *const *operand);

/* ---- device_cpu_filled.c ------------------------------------------------- */

/* Set even on failure. */
MC_MUST_USE Status cpu_filled_new(CpuGemms *all, const PlanGemm *g,
                                  CpuFilled **out);
void cpu_filled_free(CpuFilled *f);
MC_MUST_USE Status cpu_filled_run(CpuGemms *all, const CpuFilled *f,
                                  void *const *operand);

#endif
