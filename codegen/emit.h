/* emit.h - from a planned module to what the runtime executes.
 *
 * One plan per pipeline stage, and the text of all kernels that the plans
 * name.  Everything is decided by now: emit translates places into addresses,
 * nodes into instructions, and axes into expressions of the rank.
 */
#ifndef MEGAC_EMIT_H
#define MEGAC_EMIT_H

#include "base/status.h"
#include "codegen/codegen.h"
#include "frontend/frontend.h"
#include "passes/memplan.h"

/* ---- emit.c -------------------------------------------------------------- */

/* What emit_plans needs to know; the module is fused and has its streams. */
typedef struct {
    Module *m;
    const MemPlan *mem;
    const Spec *spec;
} EmitInput;

typedef struct {
    Buf *plans; /* one blob per pp coordinate */
    uint32_t n;
    CodeUnit *units; /* kernels, each in a translation unit of its own */
    uint32_t nunits;
} EmitOutput;

/* False after reporting to m->diag.  Texts live in `a`. */
bool emit_plans(Arena *a, const EmitInput *in, EmitOutput *out);
void emit_free(EmitOutput *out);

/* Kernels of a dialect, as memplan must know them. */
MemRules emit_rules(Dialect dialect);
Dialect emit_dialect(const Spec *spec);

/* ---- package.c ----------------------------------------------------------- */

/* Writes the folder that `megac compile` promises, beside `dir` and then in
 * its place.  `objects` are the compiled units: for the CPU one shared object,
 * which every rank carries; for CUDA a cubin per unit.  `program` is the path
 * of megac-rank, `predicted` the time of a step in seconds, or 0.  Errors:
 * STATUS_INPUT if `dir` is something else's, STATUS_SYSTEM. */
MC_MUST_USE Status package_write(const char *dir, const EmitInput *in,
                                 const EmitOutput *out, const Buf *objects,
                                 const char *program, double predicted);
/* Removes a folder with all that is in it. */
void package_remove(const char *path);

#endif
