/* emit_cells.c - the `emit` column of ir/ops.def. */
#include "codegen/emit_priv.h"

EmitCell *const emit_cells[OP_COUNT] = {
#define OP(NAME, text, nargs, nres, sig, linear, flags, verify, infer, flops,  \
           grad, eval, emit)                                                   \
    [OP_##NAME] = emit_##emit,
#include "ir/ops.def"
#undef OP
};

/* Ops that a pass before this one replaces. */
void emit_none(Emit *e, const Node *n)
{
    emit_fail(e, "%s is still there after all passes", op_info[n->op].name);
}
