/* attrs.c - attribute lists: interned, sorted by key.
 *
 * An AttrsId stands for a whole list, so two nodes with the same attributes
 * compare equal by one integer.  List-valued attributes point into Module.list;
 * those runs are interned too, which keeps equality bitwise.
 */
#include "ir/ir_priv.h"

#include "base/zigzag.h"

#include <stdlib.h>

const AttrInfo attr_info[AK_KEYS] = {
#define ATTR(NAME, text, kind) [AK_##NAME] = {text, kind},
#include "ir/attrs.def"
#undef ATTR
};

bool attr_is_list(AttrKind kind)
{
    return kind == AV_MODES || kind == AV_SYMS || kind == AV_TENSORS;
}

/* ---- making -------------------------------------------------------------- */

Attr attr_of_int(AttrKey key, int64_t value)
{
    return (Attr){.key = key, .as.i = value};
}

Attr attr_of_float(AttrKey key, double value)
{
    return (Attr){.key = key, .as.f = value};
}

Attr attr_of_sym(AttrKey key, Sym value)
{
    return (Attr){.key = key, .as.sym = value};
}

Attr attr_of_axes(AttrKey key, AxisSet value)
{
    return (Attr){.key = key, .as.axes = value};
}

Attr attr_of_func(AttrKey key, FuncId value)
{
    return (Attr){.key = key, .as.func = value};
}

Attr attr_of_tensor(AttrKey key, TensorId value)
{
    return (Attr){.key = key, .as.tensor = value};
}

Attr attr_of_list(Module *m, AttrKey key, const int64_t *v, uint32_t n)
{
    const uint64_t *words = (const uint64_t *)v;
    uint32_t first;

    mc_assert(attr_is_list(attr_info[key].kind));
    if (!intern_find(interned_of(m)->lists, words, n, &first)) {
        first = m->list.n;
        for (uint32_t i = 0; i < n; i++)
            vec_push(&m->list, v[i]);
        intern_add(m->arena, &interned_of(m)->lists, words, n, first);
    }
    return (Attr){.key = key, .as.list = {first, n}};
}

/* ---- interning ----------------------------------------------------------- */

static uint64_t attr_bits(const Attr *a)
{
    uint64_t bits;

    switch (attr_info[a->key].kind) {
    case AV_FLOAT:
        memcpy(&bits, &a->as.f, sizeof bits);
        return bits;
    case AV_SYM:
        return a->as.sym.i;
    case AV_FUNC:
        return a->as.func.i;
    case AV_TENSOR:
        return a->as.tensor.i;
    case AV_AXES:
        return a->as.axes;
    case AV_MODES:
    case AV_SYMS:
    case AV_TENSORS:
        return (uint64_t)a->as.list.first << 32 | a->as.list.n;
    default:
        return (uint64_t)a->as.i;
    }
}

static int by_key(const void *a, const void *b)
{
    return (int)((const Attr *)a)->key - (int)((const Attr *)b)->key;
}

AttrsId attrs_intern(Module *m, Attr *list, uint32_t n)
{
    uint64_t words[2 * AK_KEYS];
    uint32_t id;

    if (!n)
        return (AttrsId){0};
    mc_assert(n <= AK_KEYS);
    qsort(list, n, sizeof *list, by_key);
    for (uint32_t i = 0; i < n; i++) {
        mc_assert(!i || list[i - 1].key != list[i].key);
        words[2 * i] = (uint64_t)list[i].key;
        words[2 * i + 1] = attr_bits(&list[i]);
    }
    if (intern_find(interned_of(m)->attrs, words, 2 * n, &id))
        return (AttrsId){id};
    id = m->attr_lists.n;
    for (uint32_t i = 0; i < n; i++)
        vec_push(&m->attrs, list[i]);
    vec_push(&m->attr_lists, m->attrs.n);
    intern_add(m->arena, &interned_of(m)->attrs, words, 2 * n, id);
    return (AttrsId){id};
}

AttrsId attrs_with(Module *m, AttrsId a, Attr attr)
{
    Attr list[AK_KEYS];
    uint32_t n = 0;

    for (uint32_t i = 0; i < attrs_count(m, a); i++)
        if (attrs_at(m, a, i)->key != attr.key)
            list[n++] = *attrs_at(m, a, i);
    list[n++] = attr;
    return attrs_intern(m, list, n);
}

AttrsId attrs_without(Module *m, AttrsId a, AttrKey key)
{
    Attr list[AK_KEYS];
    uint32_t n = 0;

    for (uint32_t i = 0; i < attrs_count(m, a); i++)
        if (attrs_at(m, a, i)->key != key)
            list[n++] = *attrs_at(m, a, i);
    return attrs_intern(m, list, n);
}

/* ---- asking -------------------------------------------------------------- */

uint32_t attrs_count(const Module *m, AttrsId a)
{
    return a.i ? m->attr_lists.v[a.i] - m->attr_lists.v[a.i - 1] : 0;
}

const Attr *attrs_at(const Module *m, AttrsId a, uint32_t i)
{
    return &m->attrs.v[m->attr_lists.v[a.i - 1] + i];
}

const Attr *attr_find(const Module *m, AttrsId a, AttrKey key)
{
    uint32_t end = m->attr_lists.v[a.i];
    uint32_t i = a.i ? m->attr_lists.v[a.i - 1] : end;

    while (i < end && m->attrs.v[i].key < key)
        i++;
    return i < end && m->attrs.v[i].key == key ? &m->attrs.v[i] : NULL;
}

int64_t attr_int(const Module *m, AttrsId a, AttrKey key, int64_t otherwise)
{
    const Attr *at = attr_find(m, a, key);

    return at ? at->as.i : otherwise;
}

int64_t attr_position(const Module *m, AttrsId a, int64_t size, int64_t i)
{
    return zigzag_position(size, attr_int(m, a, AK_ZIGZAG, 1), i);
}

double attr_float(const Module *m, AttrsId a, AttrKey key, double otherwise)
{
    const Attr *at = attr_find(m, a, key);

    return at ? at->as.f : otherwise;
}

Sym attr_sym(const Module *m, AttrsId a, AttrKey key)
{
    const Attr *at = attr_find(m, a, key);

    return at ? at->as.sym : (Sym){0};
}

AxisSet attr_axes(const Module *m, AttrsId a, AttrKey key)
{
    const Attr *at = attr_find(m, a, key);

    return at ? at->as.axes : 0;
}

FuncId attr_func(const Module *m, AttrsId a, AttrKey key)
{
    const Attr *at = attr_find(m, a, key);

    return at ? at->as.func : (FuncId){0};
}

TensorId attr_tensor(const Module *m, AttrsId a, AttrKey key)
{
    const Attr *at = attr_find(m, a, key);

    return at ? at->as.tensor : (TensorId){0};
}
