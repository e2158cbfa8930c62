/* fuse_order.c - what must come before what, in one function.
 *
 * A value comes before its uses.  Two nodes that touch the same field of a
 * tensor, at least one of them writing, keep their order.  So do all nodes
 * that other ranks or the host can see: a group of ranks must go on issuing
 * the same collectives in the same order.  Everything else may move.
 */
#include "passes/fuse_priv.h"

/* The last writer of a field, and who has read it since; items + 1. */
typedef struct {
    uint32_t writer;
    ItemVec readers;
} FieldUse;

static void edge(Fusion *x, uint32_t from, uint32_t to)
{
    if (from != to)
        vec_push(&x->succ[from], to);
}

static void order_values(Fusion *x, uint32_t item)
{
    for (uint32_t i = 0; i < fusion_node(x, item)->nargs; i++)
        if (fusion_operand(x, item, i))
            edge(x, fusion_operand(x, item, i) - 1, item);
}

static void order_field(Fusion *x, FieldUse *use, uint32_t item, bool writes)
{
    if (use->writer)
        edge(x, use->writer - 1, item);
    if (!writes) {
        vec_push(&use->readers, item);
        return;
    }
    for (uint32_t i = 0; i < use->readers.n; i++)
        edge(x, use->readers.v[i], item);
    use->readers.n = 0;
    use->writer = item + 1;
}

static void order_state(Fusion *x, FieldUse *uses, uint32_t item)
{
    StateUses list = x->fx->node[x->node[item].i];

    for (uint32_t i = 0; i < list.n; i++) {
        uint32_t at = list.v[i].tensor.i * FIELD_COUNT + list.v[i].field;

        order_field(x, &uses[at], item, list.v[i].writes);
    }
}

/* Seen from outside, other than through state. */
static bool is_visible(const Node *n)
{
    bool state = n->op == OP_WRITE || n->op == OP_ACCUM ||
                 n->op == OP_CLEAR || n->op == OP_DOTS_ACCUM ||
                 n->op == OP_ROW;

    return (op_info[n->op].flags & OPF_COMM) ||
           ((op_info[n->op].flags & OPF_EFFECT) && !state);
}

void fusion_order(Fusion *x)
{
    uint32_t fields = x->m->tensors.n * FIELD_COUNT, visible = 0;
    FieldUse *uses = arena_array(x->arena, FieldUse, fields);

    for (uint32_t i = 0; i < x->n; i++) {
        order_values(x, i);
        order_state(x, uses, i);
        if (!is_visible(fusion_node(x, i)))
            continue;
        if (visible)
            edge(x, visible - 1, i);
        visible = i + 1;
    }
    for (uint32_t i = 0; i < fields; i++)
        vec_free(&uses[i].readers);
}

/* Whether `to` can be reached from what follows `at`; `at` itself does not
 * count, nor does a direct step if `direct` is false. */
static bool reaches(Fusion *x, uint32_t at, uint32_t to, bool direct)
{
    x->visited[at] = x->visit;
    for (uint32_t i = 0; i < x->member[at].n; i++) {
        const ItemVec *succ = &x->succ[x->member[at].v[i]];

        for (uint32_t k = 0; k < succ->n; k++) {
            uint32_t next = x->cluster[succ->v[k]];

            if (next == to && direct)
                return true;
            if (next != to && x->visited[next] != x->visit &&
                reaches(x, next, to, true))
                return true;
        }
    }
    return false;
}

bool fusion_between(Fusion *x, uint32_t from, uint32_t to)
{
    x->visit++;
    return reaches(x, from, to, false);
}
