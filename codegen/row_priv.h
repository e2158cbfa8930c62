/* row_priv.h - between row.c and the printers of row programs. */
#ifndef MEGAC_ROW_PRIV_H
#define MEGAC_ROW_PRIV_H

#include "codegen/codegen_priv.h"
#include "codegen/kernels.h"
#include "passes/row.h"

/* "bf16", and "bf16" in load_bf16; f32 is float. */
const char *row_element_type(DType t);
const char *row_element_suffix(DType t);
/* The immediate with the first logical index of `dim` of v; -1: always 0. */
int row_start_imm(const Module *m, KernelInfo *k, ValueId v, char dim);

#endif
