/* forward.h - forwards without what only a backward needs. */
#ifndef MEGAC_FORWARD_H
#define MEGAC_FORWARD_H

#include "passes/passes.h"

/* The copy `f` of a function returns the results that `keep` says. */
typedef struct {
    FuncId of, f;
    const bool *keep;
} ForwardFunc;

/* Copies that were made already. */
typedef struct Forward Forward;

Forward *forward_new(Arena *a, Module *m);
void forward_free(Forward *x);
/* Appends to `into` a call like `call`, of a copy of its callee that keeps some
 * results and metrics, and maps the results that are kept. */
void forward_call(Forward *x, FuncId into, NodeId call, const bool *keep,
                  ValueMap *map);

#endif
