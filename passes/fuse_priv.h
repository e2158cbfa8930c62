/* fuse_priv.h - the fusion of one function, between the fuse_*.c files.
 *
 * An item is a node of the body, by its index there.  Items are gathered into
 * clusters; a cluster of row items becomes one call of a row program, every
 * other item is a cluster of its own.
 */
#ifndef MEGAC_PASSES_FUSE_PRIV_H
#define MEGAC_PASSES_FUSE_PRIV_H

#include "passes/effects.h"
#include "passes/passes.h"

typedef Vec(uint32_t) ItemVec;

typedef struct {
    Module *m;
    FuncId f;
    Arena *arena;
    const Effects *fx;
    uint32_t n;         /* items */
    NodeId *node;       /* by item */
    uint32_t *item_of;  /* by ValueId: the defining item + 1; 0: none; of all
                           functions */
    bool *row;          /* by item: may be part of a row program */
    bool *leaf;         /* by item: cheap and made of nothing, so it is made
                           again in every cluster that needs it */
    bool *outside;      /* by item: used by a node that is no row item, or
                           returned */
    ItemVec *succ;      /* by item: what must come later */
    uint32_t *cluster;  /* by item */
    ItemVec *member;    /* by cluster: its items, ascending */
    ItemVec *copy;      /* by cluster: items of others it computes again */
    uint32_t *visited, visit; /* by cluster: of the search at hand */
} Fusion;

static inline const Node *fusion_node(const Fusion *x, uint32_t item)
{
    return &x->m->nodes.v[x->node[item].i];
}

/* The item that defines operand i of an item, + 1; 0 for a parameter. */
static inline uint32_t fusion_operand(const Fusion *x, uint32_t item,
                                      uint32_t i)
{
    return x->item_of[node_arg(x->m, fusion_node(x, item), i).i];
}

/* ---- fuse.c ------------------------------------------------------------- */
void items_sort(ItemVec *v); /* ascending, each once */
bool items_have(const ItemVec *v, uint32_t item);

/* ---- fuse_views.c: parts and joins that need no kernel ------------------ */
/* By ValueId: whether the part or join is one.  NULL: there is none. */
const bool *views_find(const Module *m, FuncId f, Arena *a);

/* ---- fuse_order.c: what must come before what --------------------------- */
void fusion_order(Fusion *x);
/* Whether a third cluster lies on a way from one cluster to the other. */
bool fusion_between(Fusion *x, uint32_t from, uint32_t to);

/* ---- fuse_group.c: which items belong together -------------------------- */
void fusion_group(Fusion *x);

/* ---- fuse_outline.c: clusters become row programs ----------------------- */
void fusion_outline(Fusion *x);

/* ---- fuse_simplify.c: what autodiff and resharding left behind ---------- */
void fuse_simplify(Module *m, FuncId f);

/* ---- fuse_hoist.c: tables made once per step ---------------------------- */
void fuse_hoist(Module *m);

/* ---- fuse_dots.c: products that share an operand or a result ------------ */
void fuse_dots(Module *m, FuncId f);

/* ---- fuse_epilogue.c: what a product does to its result ----------------- */
void fuse_epilogues(Module *m, FuncId f);

#endif
