/* grad.h - what a gradient cell may do. */
#ifndef MEGAC_PASSES_GRAD_H
#define MEGAC_PASSES_GRAD_H

#include "ir/ir.h"

typedef struct Grad Grad;

/* The module and the function that receives backward nodes. */
Module *grad_module(Grad *g);
FuncId grad_func(Grad *g);
/* The function that is gone through backwards. */
FuncId grad_forward(const Grad *g);
/* A value of the forward, for use in the backward: saved or recomputed. */
ValueId grad_need(Grad *g, ValueId v);
/* The complete cotangent of a forward value, in the value's own dtype (f32 for
 * a parameter); 0 if nothing flows back.  Dimensions over which the cotangent
 * is constant may be absent. */
ValueId grad_of(Grad *g, ValueId v);
/* Whether a cotangent of v is of use: false for integers, generators, and what
 * follows from those alone. */
bool grad_wants(const Grad *g, ValueId v);
/* Whether the backward starts from a scaled loss. */
bool grad_scaled(const Grad *g);
/* Adds a contribution to the cotangent of a forward value. */
void grad_flow(Grad *g, ValueId v, ValueId contribution);
/* Whether the node adds to the loss, the start of the backward. */
bool grad_is_loss(const Module *m, const Node *n);
/* Whether it adds to any of the losses: that one or a balancing loss. */
bool grad_is_objective(const Module *m, const Node *n);
/* The backward of a call: grad.c. */
void grad_call_node(Grad *g, const Node *n);

/* The gradient cells, by op. */
typedef void (*GradCell)(Grad *g, const Node *n);
extern const GradCell grad_cells[OP_COUNT];

#endif
