/* effects.h - which state and which registers a function needs.
 *
 * Functions reach tensors by name, so what a `call` touches is not among its
 * operands.  The passes after `pipeline` ask here: memplan before it lets a
 * value share a tensor's memory, streams before it reorders, emit to know
 * which registers a segment takes.
 */
#ifndef MEGAC_EFFECTS_H
#define MEGAC_EFFECTS_H

#include "ir/ir.h"

/* One field of one tensor.  `layered`: of one layer, chosen by the layer
 * register; otherwise of all layers held, or of a tensor without layers. */
typedef struct {
    TensorId tensor;
    Field field; /* as effect_field returns it */
    bool layered, reads, writes;
    int8_t next; /* layered: of the layer so many further on */
} StateUse;

/* Sorted by tensor, then field; of one field, the layer at hand first. */
typedef struct {
    const StateUse *v;
    uint32_t n;
} StateUses;

typedef struct {
    StateUses uses;
    bool layer;      /* runs inside a scan over layers */
    bool number;     /* needs the layer register as a number */
    bool microbatch; /* needs the microbatch register */
    bool comm;       /* talks to other ranks */
    bool fetches;    /* for the next iteration of the scan that repeats it */
    bool known;      /* private to effects.c */
} FuncEffects;

typedef struct {
    FuncEffects *func; /* by FuncId */
    StateUses *node;   /* by NodeId; a call does what its callee does */
} Effects;

void effects_compute(Arena *a, const Module *m, Effects *out);

/* The field whose memory a field lives in: the complete gradient shares the
 * accumulated one's, unless it is a shard of it. */
Field effect_field(const Module *m, TensorId t, Field f);

/* The tensor and field that a read, write, accum or clear names. */
TensorId effects_target(const Module *m, const Node *n, Field *out_field);

/* Whether a node works for a layer to come, by reading it (attribute `next`)
 * or on what was read.  In the last iteration of a scan there is no such layer,
 * and the node has nothing to do. */
bool effects_ahead(const Module *m, const Node *n);

/* Whether a node is a collective of ranks of several pipeline stages.  Their
 * programs differ, and yet must issue the same, on the same stream. */
bool effects_span_stages(const Module *m, const Node *n);

/* How a list uses a field; NULL if it does not. */
const StateUse *effects_find(const Module *m, StateUses uses, TensorId t,
                             Field field);

#endif
