/* layout_priv.h - a function being laid out, between layout.c and
 * layout_state.c.
 */
#ifndef MEGAC_PASSES_LAYOUT_PRIV_H
#define MEGAC_PASSES_LAYOUT_PRIV_H

#include "passes/passes.h"

typedef struct {
    ValueId from, to;
    LayoutId layout;
} Conversion;

/* One function being laid out. */
typedef struct {
    Module *m;
    bool *done;        /* by FuncId */
    bool *grad_rests;  /* by TensorId: rest[FIELD_GRAD] is settled */
    FuncId f;
    ValueMap now;      /* a value -> the version with its hint's layout */
    Vec(Conversion) made;
    Vec(uint32_t) goal; /* by ValueId: tensor it is accumulated into, or 0 */
} Place;

/* ---- layout.c ------------------------------------------------------------ */

/* The value in another layout, made once. */
ValueId place_convert(Place *p, ValueId v, LayoutId to);
/* The atoms over which a value is a partial sum. */
AxisSet place_sum(const Module *m, ValueId v);
void place_set_arg(Place *p, NodeId id, uint32_t i, ValueId v);

/* ---- layout_state.c ------------------------------------------------------ */

/* What is added to a field is converted to how it rests; the first addition to
 * a gradient settles that. */
void place_accum(Place *p, NodeId id);
/* The same for what is read or written. */
void place_state(Place *p, NodeId id);
/* A parameter of which a rank has a share is read as lines, and gathered where
 * the model uses it. */
void place_gather(Place *p, NodeId id);

#endif
