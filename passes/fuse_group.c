/* fuse_group.c - which items belong into one row program.
 *
 *     u = mul x x      ─┐
 *     t = sum u         │ one cluster: each uses what the one before made
 *     r = rsqrt t       │
 *     y = mul x r      ─┘
 *     z = dot y w          no row item, and y → z → v: v cannot join
 *     v = mul z r      ─── another cluster; r is read back
 *
 * Clusters are merged along values, then where they read the same large
 * operand, as long as the result is a legal row program and no third cluster
 * lies between.  What crosses from one cluster to another is computed again
 * where that needs no more memory traffic than reading it back.
 */
#include "passes/fuse_priv.h"
#include "passes/row.h"

/* A launch takes at most 24 pointers (CUDA_ARGS_PTR), one is for workspace. */
enum { MAX_POINTERS = 22, MAX_COPIED = 8 };

/* ---- what a cluster is made of ------------------------------------------ */

static uint32_t item_space(const Fusion *x, uint32_t item)
{
    return row_node_letters(x->m, fusion_node(x, item));
}

static uint32_t cluster_space(const Fusion *x, uint32_t c)
{
    uint32_t space = 0;

    for (uint32_t i = 0; i < x->member[c].n; i++)
        space |= item_space(x, x->member[c].v[i]);
    return space;
}

/* Adds the leaves that the items of a list need. */
static void leaves_add(const Fusion *x, ItemVec *list)
{
    for (uint32_t i = 0; i < list->n; i++)
        for (uint32_t k = 0; k < fusion_node(x, list->v[i])->nargs; k++) {
            uint32_t def = fusion_operand(x, list->v[i], k);

            if (def && x->leaf[def - 1])
                vec_push(list, def - 1);
        }
    items_sort(list);
}

static void items_append(ItemVec *to, const ItemVec *from)
{
    for (uint32_t i = 0; i < from->n; i++)
        vec_push(to, from->v[i]);
}

/* Operands from memory, and what has to be stored. */
static uint32_t pointers(const Fusion *x, const ItemVec *list)
{
    Vec(ValueId) read = {0};
    uint32_t stored = 0;

    for (uint32_t i = 0; i < list->n; i++) {
        const Node *n = fusion_node(x, list->v[i]);

        stored += n->op == OP_ACCUM || x->outside[list->v[i]];
        for (uint32_t k = 0; k < n->nargs; k++) {
            uint32_t def = fusion_operand(x, list->v[i], k);
            ValueId v = node_arg(x->m, n, k);
            bool known = def && items_have(list, def - 1);

            for (uint32_t r = 0; r < read.n && !known; r++)
                known = read.v[r].i == v.i;
            if (!known)
                vec_push(&read, v);
        }
    }
    stored += read.n;
    vec_free(&read);
    return stored;
}

static bool is_legal(const Fusion *x, const ItemVec *list)
{
    NodeId *node = arena_array(x->arena, NodeId, list->n);

    for (uint32_t i = 0; i < list->n; i++)
        node[i] = x->node[list->v[i]];
    return pointers(x, list) <= MAX_POINTERS &&
           !row_nodes_refusal(x->m, node, list->n);
}

/* ---- merging ------------------------------------------------------------ */

/* Sums of products and table gradients are added to state where they are made,
 * so an `accum` of one stays alone. */
static bool stays_alone(const Fusion *x, uint32_t item)
{
    uint32_t def;

    if (fusion_node(x, item)->op != OP_ACCUM)
        return false;
    def = fusion_operand(x, item, 0);
    return !def || !x->row[def - 1];
}

/* Everything a scalar cluster reads comes from `source` or from no cluster. */
static bool follows_only(const Fusion *x, uint32_t c, uint32_t source)
{
    for (uint32_t i = 0; i < x->member[c].n; i++) {
        uint32_t item = x->member[c].v[i];

        for (uint32_t k = 0; k < fusion_node(x, item)->nargs; k++) {
            uint32_t def = fusion_operand(x, item, k);
            uint32_t of = def ? x->cluster[def - 1] : c;

            if (def && x->row[def - 1] && !x->leaf[def - 1] && of != c &&
                of != source)
                return false;
        }
    }
    return true;
}

/* Whether the spaces of a producer and a consumer allow one pass: equal, or
 * one a row's share of the other; scalars follow what they are the sum of. */
static bool spaces_fit(const Fusion *x, uint32_t from, uint32_t to)
{
    uint32_t a = cluster_space(x, from), b = cluster_space(x, to);

    if (a == b)
        return true;
    if (!b)
        return follows_only(x, to, from);
    return a && ((a & b) == a || (a & b) == b);
}

static bool merge(Fusion *x, uint32_t a, uint32_t b)
{
    ItemVec both = {0};
    bool legal;

    if (fusion_between(x, a, b) || fusion_between(x, b, a))
        return false;
    items_append(&both, &x->member[a]);
    items_append(&both, &x->member[b]);
    leaves_add(x, &both);
    legal = is_legal(x, &both);
    vec_free(&both);
    if (!legal)
        return false;
    for (uint32_t i = 0; i < x->member[b].n; i++)
        x->cluster[x->member[b].v[i]] = a;
    items_append(&x->member[a], &x->member[b]);
    items_sort(&x->member[a]);
    vec_free(&x->member[b]);
    return true;
}

static bool may_merge(const Fusion *x, uint32_t item)
{
    return x->row[item] && !x->leaf[item] && !stays_alone(x, item);
}

/* Merges each item with those that make its operands. */
static bool merge_along_values(Fusion *x)
{
    bool any = false;

    for (uint32_t i = 0; i < x->n; i++)
        for (uint32_t k = 0; may_merge(x, i) && k < fusion_node(x, i)->nargs;
             k++) {
            uint32_t def = fusion_operand(x, i, k), a, b = x->cluster[i];

            if (!def || !may_merge(x, def - 1))
                continue;
            a = x->cluster[def - 1];
            any |= a != b && spaces_fit(x, a, b) && merge(x, a, b);
        }
    return any;
}

/* Whether two clusters of one space read the same value of that space. */
static bool share_operand(const Fusion *x, uint32_t a, uint32_t b)
{
    uint32_t space = cluster_space(x, a);

    if (!space || space != cluster_space(x, b))
        return false;
    for (uint32_t i = 0; i < x->member[a].n; i++)
        for (uint32_t k = 0; k < x->member[b].n; k++) {
            const Node *p = fusion_node(x, x->member[a].v[i]);
            const Node *q = fusion_node(x, x->member[b].v[k]);

            for (uint32_t r = 0; r < p->nargs * q->nargs; r++) {
                ValueId v = node_arg(x->m, p, r / q->nargs);

                if (v.i == node_arg(x->m, q, r % q->nargs).i &&
                    row_letters(x->m, v) == space)
                    return true;
            }
        }
    return false;
}

static bool is_row_cluster(const Fusion *x, uint32_t c)
{
    return x->member[c].n && may_merge(x, x->member[c].v[0]);
}

static void merge_side_by_side(Fusion *x)
{
    for (uint32_t a = 0; a < x->n; a++)
        for (uint32_t b = a + 1; is_row_cluster(x, a) && b < x->n; b++)
            if (is_row_cluster(x, b) && share_operand(x, a, b))
                merge(x, a, b);
}

/* ---- computing again ---------------------------------------------------- */

typedef struct {
    const Fusion *x;
    uint32_t into; /* cluster */
    uint32_t space;
    ItemVec items; /* to be copied */
    Vec(ValueId) large; /* operands of full size that they read */
} Copying;

static bool is_pointwise(const Node *n)
{
    return n->op != OP_SUM && n->op != OP_MAX && n->op != OP_ACCUM &&
           n->op != OP_ROTATE && n->op != OP_COPY;
}

static bool has_item(const Copying *c, uint32_t item)
{
    return c->x->cluster[item] == c->into ||
           items_have(&c->x->copy[c->into], item);
}

static bool reads_already(const Copying *c, ValueId v)
{
    const ItemVec *member = &c->x->member[c->into];

    for (uint32_t i = 0; i < member->n; i++) {
        const Node *n = fusion_node(c->x, member->v[i]);

        for (uint32_t k = 0; k < n->nargs; k++)
            if (node_arg(c->x->m, n, k).i == v.i)
                return true;
    }
    return false;
}

static void large_add(Copying *c, ValueId v)
{
    bool known = row_letters(c->x->m, v) != c->space ||
                 reads_already(c, v);

    for (uint32_t i = 0; i < c->large.n; i++)
        known |= c->large.v[i].i == v.i;
    if (!known)
        vec_push(&c->large, v);
}

/* Collects an item and what it is made of, down to what memory has. */
static bool copy_collect(Copying *c, uint32_t item)
{
    const Fusion *x = c->x;

    if (!x->row[item] || x->outside[item] ||
        !is_pointwise(fusion_node(x, item))) {
        large_add(c, node_res(fusion_node(x, item), 0));
        return true;
    }
    if (items_have(&c->items, item))
        return true;
    vec_push(&c->items, item);
    items_sort(&c->items);
    if (c->items.n > MAX_COPIED)
        return false;
    for (uint32_t k = 0; k < fusion_node(x, item)->nargs; k++) {
        uint32_t def = fusion_operand(x, item, k);

        if (def && fusion_node(x, def - 1)->op == OP_PART)
            large_add(c, fusion_node(x, def - 1)->res);
        else if (!def)
            large_add(c, node_arg(x->m, fusion_node(x, item), k));
        else if (!x->leaf[def - 1] && !has_item(c, def - 1) &&
                 !copy_collect(c, def - 1))
            return false;
    }
    return true;
}

/* Computes `item` of another cluster again in `into`, if that pays. */
static void copy_try(Fusion *x, uint32_t item, uint32_t into)
{
    Copying c = {.x = x, .into = into, .space = cluster_space(x, into)};
    ItemVec all = {0};

    if (!x->outside[item] && is_pointwise(fusion_node(x, item)) &&
        copy_collect(&c, item) && c.large.n <= 1) {
        items_append(&all, &x->member[into]);
        items_append(&all, &x->copy[into]);
        items_append(&all, &c.items);
        leaves_add(x, &all);
        if (is_legal(x, &all)) {
            items_append(&x->copy[into], &c.items);
            items_sort(&x->copy[into]);
        }
    }
    vec_free(&all);
    vec_free(&c.items);
    vec_free(&c.large);
}

static void copy_into(Fusion *x, uint32_t into)
{
    for (uint32_t i = 0; i < x->member[into].n; i++)
        for (uint32_t k = 0; k < fusion_node(x, x->member[into].v[i])->nargs;
             k++) {
            uint32_t def = fusion_operand(x, x->member[into].v[i], k);

            if (def && may_merge(x, def - 1) &&
                x->cluster[def - 1] != into &&
                !items_have(&x->copy[into], def - 1))
                copy_try(x, def - 1, into);
        }
}

void fusion_group(Fusion *x)
{
    while (merge_along_values(x))
        continue;
    merge_side_by_side(x);
    for (uint32_t c = 0; c < x->n; c++)
        if (is_row_cluster(x, c))
            copy_into(x, c);
}
