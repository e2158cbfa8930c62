/* route_priv.h - shared by route.c and route_choice.c. */
#ifndef MEGAC_ROUTE_PRIV_H
#define MEGAC_ROUTE_PRIV_H

#include "codegen/row_priv.h"

/* The kernel of one node being printed. */
typedef struct {
    const Module *m;
    const Node *n;
    KernelInfo *info;
    Buf *out;
    const char *name;
} Route;

static inline long long route_local(const Route *r, ValueId v, char dim)
{
    return row_local(r->m, v, dim);
}

static inline ValueId route_arg(const Route *r, uint32_t i)
{
    return node_arg(r->m, r->n, i);
}

/* Declares pointer number `ptr`; `access` is "" or "const ". */
void route_pointer(Route *r, const char *name, const char *access, DType t,
                   uint32_t ptr);

/* ---- route_choice.c ------------------------------------------------------ */
void route_print_topk(Route *r);
void route_print_fit(Route *r);
void route_print_turn(Route *r);
void route_print_rounds(Route *r);
void route_print_filled(Route *r);
void route_print_group_sum(Route *r);

#endif
