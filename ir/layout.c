/* layout.c - how a value lies on the mesh.
 *
 * Per dimension an ordered list of atoms cuts it into equal contiguous parts,
 * the first atom into the largest; a rank holds the part its digits name.
 * Atoms that occur nowhere replicate the value, atoms in `partial` add it up.
 */
#include "ir/ir_priv.h"

/* ---- interning ----------------------------------------------------------- */

enum {
    ATOMS_IN_WORD = 8,
    SPLIT_WORDS = 1 + (IR_MAX_SPLIT + ATOMS_IN_WORD - 1) / ATOMS_IN_WORD,
    LAYOUT_WORDS = IR_MAX_DIMS * SPLIT_WORDS + 1
};

static uint32_t split_words(const Split *s, uint64_t *key)
{
    uint32_t n = 0;

    key[n] = (uint64_t)(unsigned char)s->dim << 8 | s->n;
    for (uint8_t i = 0; i < s->n; i++) {
        if (i % ATOMS_IN_WORD == 0)
            key[++n] = 0;
        key[n] = key[n] << 8 | s->atom[i];
    }
    return n + 1;
}

static uint32_t layout_words(const Layout *l, uint64_t *key)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < l->nsplit; i++)
        n += split_words(&l->split[i], key + n);
    key[n++] = (uint64_t)l->partial_max << 32 | l->partial;
    return n;
}

LayoutId layout_intern(Module *m, const Layout *l)
{
    uint64_t key[LAYOUT_WORDS];
    Layout clean = {.partial = l->partial, .partial_max = l->partial_max};
    uint32_t n, id;

    mc_assert(l->nsplit <= IR_MAX_DIMS);
    for (uint32_t i = 0; i < l->nsplit; i++)
        layout_set_split(&clean, l->split[i].dim, l->split[i].atom,
                         l->split[i].n);
    n = layout_words(&clean, key);
    if (intern_find(interned_of(m)->layouts, key, n, &id))
        return (LayoutId){id};
    id = m->layouts.n;
    vec_push(&m->layouts, clean);
    intern_add(m->arena, &interned_of(m)->layouts, key, n, id);
    return (LayoutId){id};
}

LayoutId layout_whole(Module *m)
{
    return layout_intern(m, &(Layout){0});
}

/* ---- splits -------------------------------------------------------------- */

const Split *layout_split(const Layout *l, char dim)
{
    for (uint32_t i = 0; i < l->nsplit; i++)
        if (l->split[i].dim == dim)
            return &l->split[i];
    return NULL;
}

static void remove_split(Layout *l, char dim)
{
    uint8_t kept = 0;

    for (uint8_t i = 0; i < l->nsplit; i++)
        if (l->split[i].dim != dim)
            l->split[kept++] = l->split[i];
    l->nsplit = kept;
}

void layout_set_split(Layout *l, char dim, const uint8_t *atoms, uint8_t n)
{
    Split s = {.dim = dim, .n = n};
    uint8_t at;

    mc_assert(n <= IR_MAX_SPLIT);
    for (uint8_t i = 0; i < n; i++)
        s.atom[i] = atoms[i];
    remove_split(l, dim);
    if (!n)
        return;
    mc_assert(l->nsplit < IR_MAX_DIMS);
    for (at = l->nsplit++; at && l->split[at - 1].dim > dim; at--)
        l->split[at] = l->split[at - 1];
    l->split[at] = s;
}

AxisSet split_axes(const Mesh *mesh, const Split *s)
{
    AxisSet set = 0;

    for (uint8_t i = 0; s && i < s->n; i++) {
        mc_assert(s->atom[i] < mesh->atoms.n);
        set |= (AxisSet)1 << s->atom[i];
    }
    return set;
}

AxisSet layout_split_axes(const Mesh *mesh, const Layout *l)
{
    AxisSet set = 0;

    for (uint32_t i = 0; i < l->nsplit; i++)
        set |= split_axes(mesh, &l->split[i]);
    return set;
}

uint8_t layout_atoms(const Type *t, const Layout *l, uint8_t *out)
{
    uint8_t n = 0;

    for (uint8_t d = 0; d < t->ndim; d++) {
        const Split *s = layout_split(l, t->dim[d]);

        for (uint8_t i = 0; s && i < s->n; i++)
            out[n++] = s->atom[i];
    }
    return n;
}

int64_t split_parts(const Mesh *mesh, const Split *s)
{
    int64_t parts = 1;

    for (uint8_t i = 0; s && i < s->n; i++)
        parts *= mesh->atoms.v[s->atom[i]].size;
    return parts;
}

bool split_equal(const Split *a, const Split *b)
{
    if (!a || !b)
        return a == b;
    return a->n == b->n && !memcmp(a->atom, b->atom, a->n);
}

bool layout_equal(const Layout *a, const Layout *b)
{
    for (uint8_t i = 0; i < a->nsplit; i++)
        if (!split_equal(&a->split[i], layout_split(b, a->split[i].dim)))
            return false;
    return a->nsplit == b->nsplit && a->partial == b->partial &&
           a->partial_max == b->partial_max;
}

/* ---- tokens and slots ---------------------------------------------------- */

bool type_covers(const Type *t, char dim)
{
    if (dim == 'c')
        return type_dim(t, 'c') >= 0 || type_dim(t, 's') >= 0;
    if (dim == 's' || dim == 'b')
        return type_dim(t, dim) >= 0 || type_dim(t, 'c') >= 0;
    return type_dim(t, dim) >= 0;
}

/* Appends the atoms of `set` in order of falling strides. */
static uint8_t append_atoms(const Mesh *mesh, AxisSet set, uint8_t *atoms,
                            uint8_t n)
{
    uint8_t first = n;

    for (uint8_t i = 0; i < mesh->atoms.n; i++) {
        uint8_t at = n;

        if (!(set >> i & 1))
            continue;
        for (; at > first &&
               mesh->atoms.v[atoms[at - 1]].stride < mesh->atoms.v[i].stride;
             at--)
            atoms[at] = atoms[at - 1];
        atoms[at] = i;
        n++;
    }
    return n;
}

void layout_set_slots(const Module *m, Layout *l)
{
    AxisSet ep = mesh_axis(m, "ep"), etp = mesh_axis(m, "etp");
    AxisSet all = split_axes(&m->mesh, layout_split(l, 's')) |
                  split_axes(&m->mesh, layout_split(l, 'b'));
    uint8_t atoms[IR_MAX_ATOMS];
    uint8_t n = append_atoms(&m->mesh, all & ~(ep | etp), atoms, 0);

    n = append_atoms(&m->mesh, all & etp, atoms, n);
    n = append_atoms(&m->mesh, all & ep, atoms, n);
    layout_set_split(l, 'c', atoms, n);
}

/* ---- what one rank holds ------------------------------------------------- */

int64_t layout_local(const Module *m, const Type *t, const Layout *l, char dim)
{
    return type_size(t, dim) / split_parts(&m->mesh, layout_split(l, dim));
}

int64_t layout_local_elems(const Module *m, const Type *t, const Layout *l)
{
    int64_t n = 1;

    for (int i = 0; i < t->ndim; i++)
        n *= layout_local(m, t, l, t->dim[i]);
    return n;
}

int64_t layout_start(const Module *m, const Type *t, const Layout *l, char dim,
                     uint32_t rank)
{
    const Split *s = layout_split(l, dim);
    int64_t part = 0;

    for (uint8_t i = 0; s && i < s->n; i++) {
        const Atom *a = &m->mesh.atoms.v[s->atom[i]];

        part = part * a->size + atom_coord(a, rank);
    }
    return part * layout_local(m, t, l, dim);
}
