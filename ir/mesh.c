/* mesh.c - the machine as mixed-radix numbers.
 *
 * A rank is a number; an atom is one digit of it: rank % span / stride, where
 * span = size * stride.  An
 * axis is one or more digits, the most significant first, so that a dimension
 * can be split over a piece of an axis.  A set of atoms spans groups of ranks:
 * those that differ in these digits only.  Inside a group the members are
 * numbered with the least significant digit (the smallest stride) fastest.
 *
 * Experts see other digits of the same rank: etp, ep, edp beside tp, cp, dp.
 * The dense axes are cut into atoms at the expert axes' borders too, so that an
 * expert axis, declared by an atom of its own, is a set of dense atoms.
 */
#include "ir/ir_priv.h"

uint32_t atom_coord(const Atom *a, uint32_t rank)
{
    return rank % a->span / a->stride;
}

uint8_t mesh_atom(Mesh *mesh, Sym axis, uint32_t part, uint32_t size,
                  uint32_t stride, bool expert)
{
    Atom atom = {axis, part, size, stride, size * stride, expert};

    mc_assert(size && stride);
    for (uint32_t i = 0; i < mesh->atoms.n; i++)
        if (mesh->atoms.v[i].axis.i == axis.i && mesh->atoms.v[i].part == part)
            return (uint8_t)i;
    mc_assert(mesh->atoms.n < IR_MAX_ATOMS);
    vec_push(&mesh->atoms, atom);
    mesh->world = MC_MAX(mesh->world, size * stride);
    return (uint8_t)(mesh->atoms.n - 1);
}

uint8_t mesh_ends(Mesh *mesh, Sym axis, uint32_t size, uint32_t stride)
{
    uint8_t i = mesh_atom(mesh, axis, 0, 2, stride * (size - 1), false);

    mesh->atoms.v[i].span = stride * size;
    return i;
}

/* An axis of the expert grid is other digits of the same rank: its atoms are
 * those of the dense grid that lie between its strides, largest first. */
static uint8_t expert_axis_atoms(const Mesh *mesh, const Atom *axis,
                                 uint8_t *out)
{
    uint8_t n = 0;

    for (uint32_t i = 0; i < mesh->atoms.n; i++) {
        const Atom *a = &mesh->atoms.v[i];
        uint8_t at = n;

        if (a->expert || a->stride < axis->stride ||
            a->stride * a->size > axis->stride * axis->size)
            continue;
        for (; at && mesh->atoms.v[out[at - 1]].stride < a->stride; at--)
            out[at] = out[at - 1];
        out[at] = (uint8_t)i;
        n++;
    }
    return n;
}

uint8_t mesh_axis_atoms(const Module *m, const char *axis, uint8_t *out)
{
    uint8_t n = 0;

    for (uint32_t i = 0; i < m->mesh.atoms.n; i++) {
        const Atom *a = &m->mesh.atoms.v[i];

        if (strcmp(sym_text(m->names, a->axis), axis) != 0)
            continue;
        if (a->expert)
            return expert_axis_atoms(&m->mesh, a, out);
        out[n++] = (uint8_t)i;
    }
    return n;
}

AxisSet mesh_axis(const Module *m, const char *axis)
{
    uint8_t atoms[IR_MAX_ATOMS];
    uint8_t n = mesh_axis_atoms(m, axis, atoms);
    AxisSet set = 0;

    for (uint8_t i = 0; i < n; i++)
        set |= (AxisSet)1 << atoms[i];
    return set;
}

AxisSet mesh_stage(const Module *m)
{
    AxisSet set = 0;

    for (uint32_t i = 0; i < m->mesh.atoms.n; i++)
        if (!m->mesh.atoms.v[i].expert)
            set |= (AxisSet)1 << i;
    return set & ~(mesh_axis(m, "pp") | mesh_axis(m, "embed"));
}

/* ---- groups -------------------------------------------------------------- */

uint32_t axes_size(const Mesh *mesh, AxisSet set)
{
    uint32_t n = 1;

    for (uint32_t i = 0; i < mesh->atoms.n; i++)
        if (set >> i & 1)
            n *= mesh->atoms.v[i].size;
    return n;
}

/* The atoms of `set` by ascending stride; returns how many. */
static uint32_t atoms_by_stride(const Mesh *mesh, AxisSet set, Atom *out)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < mesh->atoms.n; i++) {
        uint32_t at = n;

        if (!(set >> i & 1))
            continue;
        for (; at && out[at - 1].stride > mesh->atoms.v[i].stride; at--)
            out[at] = out[at - 1];
        out[at] = mesh->atoms.v[i];
        n++;
    }
    return n;
}

void axes_members(const Mesh *mesh, AxisSet set, uint32_t rank, uint32_t *out)
{
    Atom atoms[IR_MAX_ATOMS];
    uint32_t n = atoms_by_stride(mesh, set, atoms);
    uint32_t count = 1, base = rank;

    for (uint32_t i = 0; i < n; i++)
        base -= atom_coord(&atoms[i], rank) * atoms[i].stride;
    out[0] = base;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = count; j < count * atoms[i].size; j++)
            out[j] = out[j - count] + atoms[i].stride;
        count *= atoms[i].size;
    }
}

uint32_t axes_index(const Mesh *mesh, AxisSet set, uint32_t rank)
{
    Atom atoms[IR_MAX_ATOMS];
    uint32_t n = atoms_by_stride(mesh, set, atoms);
    uint32_t index = 0;

    while (n--)
        index = index * atoms[n].size + atom_coord(&atoms[n], rank);
    return index;
}
