/* grad_priv.h - shared by grad.c and grad_*.c. */
#ifndef MEGAC_GRAD_PRIV_H
#define MEGAC_GRAD_PRIV_H

#include "passes/grad.h"
#include "passes/passes.h"

/* How the backward of a function is called. */
typedef struct {
    bool done, joint;
    bool scanned; /* its call repeats it, so its parameters vary */
    bool again;   /* a layer, or a group of them, of which only the input is
                     saved */
    FuncId plain; /* of a group's layer: as it is when nothing is saved */
    const char *trips; /* if its call has trips: the modes of its parameters */
    FuncId bwd;
    uint32_t nresults;    /* of the forward, before saved values were added */
    Vec(ValueId) saved;   /* forward values, in the order of bwd's parameters */
    Vec(int32_t) given;   /* per saved value: the forward's parameter that the
                             caller passes again, or -1: a further result */
    Vec(int32_t) cotangent; /* per parameter: index of its cotangent among the
                               backward's (joint: forward's) results, or -1 */
} FuncGrad;

typedef struct {
    Module *m;
    const Spec *spec;
    FuncGrad *of; /* by FuncId */
} GradPass;

struct Grad {
    GradPass *pass;
    Module *m;
    FuncId fwd, bwd; /* the same function if joint */
    FuncGrad *info;
    Vec(ValueId) sum;    /* by forward ValueId: cotangent so far */
    Vec(ValueId) hold;   /* by forward ValueId: its stand-in in bwd */
    Vec(ValueId) needed; /* forward values with a stand-in */
};

enum { MAX_CALL = 64 };

/* ---- grad.c -------------------------------------------------------------- */

/* The op that makes a value; OP_NONE for a parameter. */
Op grad_def_op(const Module *m, ValueId v);
/* The operands of a call, at most MAX_CALL. */
void grad_call_args(Module *m, const Node *n, ValueId *out);

/* The cotangent of a forward value as it was summed, perhaps in another dtype
 * than the value's; 0 if nothing flows back. */
ValueId grad_sum_of(Grad *g, ValueId v);

/* ---- grad_trips.c -------------------------------------------------------- */

/* Ends the backward of a function whose call has trips. */
void grad_trips_close(Grad *g);
/* The backward of such a call. */
void grad_trips_call(Grad *g, const Node *n);

/* ---- grad_save.c --------------------------------------------------------- */

/* Settles how the backward gets what it needs of the forward: what it has asked
 * for by grad_need is saved or computed again. */
void grad_settle_needs(Grad *g);

/* ---- grad_sums.c --------------------------------------------------------- */

/* What a scan adds to gradients of which replicas have shares is added once,
 * behind it. */
void grad_carry_sums(Module *m);

#endif
