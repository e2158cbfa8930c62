/* emit_comm.c - collectives, slices, messages, and the order of streams.
 *
 * A collective of the runtime works on contiguous parts.  If the dimension is
 * the outermost one on a rank, that is what it is; otherwise it is done in
 * pieces, layer by layer, or `pack` and `unpack` move blocks into order:
 *
 *     all_gather of y in [x, y, z]     reduce_scatter of y
 *       all_gather -> [n, x, y', z]      pack           -> [n, x, y', z]
 *       unpack     -> [x, n, y', z]      reduce_scatter -> [x, y', z]
 */
#include "codegen/emit_priv.h"

#include "passes/streams.h"

/* ---- shapes -------------------------------------------------------------- */

/* A value seen as [before, dim, behind] on a rank. */
typedef struct {
    int64_t before, size, behind; /* behind: bytes */
} Cut;

static Cut value_cut(const Module *m, ValueId v, char dim)
{
    const Value *value = &m->values.v[v.i];
    const Type *t = type_of(m, value->type);
    Cut cut = {1, 1, dtype_bytes(t->dtype)};
    bool found = false;

    for (int d = 0; d < t->ndim; d++) {
        int64_t size =
            layout_local(m, t, layout_of(m, value->layout), t->dim[d]);
        if (t->dim[d] == dim) {
            cut.size = size;
            found = true;
        } else {
            *(found ? &cut.behind : &cut.before) *= size;
        }
    }
    return cut;
}

static char node_dim(const Module *m, const Node *n, AttrKey key)
{
    return (char)attr_int(m, n->attrs, key, 0);
}

/* ---- moving blocks ------------------------------------------------------- */

/* Block i of the destination is block (i % inner, i / inner) of the source,
 * where neighbours are `near` and `far` apart. */
static const char MOVE[] =
    "KERNEL(move_blocks)\n"
    "{\n"
    "    enum { TEAM = WARP };\n"
    "    u16 *to = (u16 *)PTR(0);\n"
    "    const u16 *from = (const u16 *)PTR(1);\n"
    "    const i64 n = IMM(0), inner = IMM(1), near = IMM(2), far = IMM(3);\n"
    "    const i64 size = IMM(4);\n"
    "\n"
    "    ROWS(i, n) {\n"
    "        const u16 *block = from + i % inner * near + i / inner * far;\n"
    "        LANES(k, 0, size) to[i * size + k] = block[k];\n"
    "    }\n"
    "}\n";

enum { UNIT = 2 }; /* the kernel counts in u16 */

static void move_blocks(Emit *e, PlanOperand to, PlanOperand from, int64_t n,
                        int64_t inner_n, int64_t near, int64_t far,
                        int64_t bytes)
{
    const Kernel *k =
        kernel_add(e->kernels, (Kernel){.symbol = "move_blocks", .text = MOVE,
                                        .phases = 1, .ptrs = 2, .imms = 5});
    PlanOperand list[] = {to,
                          from,
                          plan_integer(n),
                          plan_integer(inner_n),
                          plan_integer(near / UNIT),
                          plan_integer(far / UNIT),
                          plan_integer(bytes / UNIT)};

    emit_launch(e, k, list, MC_LEN(list));
}

/* [before, ranks] blocks become [ranks, before], or the other way round. */
void emit_blocks(Emit *e, const Node *n)
{
    ValueId from = node_arg(e->m, n, 0);
    Cut cut = value_cut(e->m, from, node_dim(e->m, n, AK_DIM));
    int64_t ranks =
        axes_size(&e->m->mesh, attr_axes(e->m, n->attrs, AK_AXES));
    int64_t outer = n->op == OP_PACK ? cut.before : ranks;
    int64_t inner_n = n->op == OP_PACK ? ranks : cut.before;
    int64_t bytes = cut.size / ranks * cut.behind;

    move_blocks(e, emit_value(e, n->res, PLAN_WRITE),
                emit_value(e, from, PLAN_READ), outer * inner_n, outer,
                inner_n * bytes, bytes, bytes);
}

/* ---- groups -------------------------------------------------------------- */

static bool set_has(AxisSet set, uint8_t atom)
{
    return (set >> atom & 1) != 0;
}

/* The ends of the pipeline, then the largest stride. */
static bool comes_before(const Emit *e, uint8_t a, uint8_t b)
{
    const Atom *atoms = e->m->mesh.atoms.v;
    AxisSet ends = mesh_axis(e->m, "embed");

    return set_has(ends, a) ||
           (!set_has(ends, b) && atoms[a].stride > atoms[b].stride);
}

/* Atoms of `set` in the order of a split that has them all, if one is given. */
static uint32_t group_atoms(Emit *e, AxisSet set, const Split *s, uint8_t *out)
{
    uint32_t n = 0;

    for (uint8_t i = 0; s && i < s->n; i++)
        if (set_has(set, s->atom[i]))
            out[n++] = s->atom[i];
    for (uint8_t i = 0; !s && i < e->m->mesh.atoms.n; i++) {
        uint32_t at = n;
        if (!set_has(set, i))
            continue;
        for (; at && comes_before(e, i, out[at - 1]); at--)
            out[at] = out[at - 1];
        out[at] = i;
        n++;
    }
    return n;
}

static const char *group_name(Emit *e, const uint8_t *atoms, uint32_t n)
{
    const char *name = "";
    Sym last = {0};

    for (uint32_t i = 0; i < n; i++) {
        Sym axis = e->m->mesh.atoms.v[atoms[i]].axis;
        if (i == 0 || axis.i != last.i)
            name = arena_printf(e->arena, "%s%s%s", name, i ? "-" : "",
                                sym_text(e->m->names, axis));
        last = axis;
    }
    return name;
}

static uint32_t pp_atom(const Emit *e)
{
    uint8_t atoms[IR_MAX_ATOMS];

    mc_assert(mesh_axis_atoms(e->m, "pp", atoms) == 1);
    return e->atom[atoms[0]];
}

/* The two stages that share the embedding are, for the runtime, two picks of
 * the pipeline's axis, which comes first. */
static uint32_t group(Emit *e, AxisSet set, const Split *s)
{
    uint32_t picks[2] = {0, e->mem->npp - 1}, npicks = 0;
    AxisSet embed = mesh_axis(e->m, "embed");
    uint8_t atoms[IR_MAX_ATOMS];
    uint32_t rows[IR_MAX_ATOMS];
    uint32_t n = group_atoms(e, set, s, atoms);

    for (uint32_t i = 0; i < n; i++) {
        rows[i] = e->atom[atoms[i]];
        if (!set_has(embed, atoms[i]))
            continue;
        rows[i] = pp_atom(e);
        npicks = 2;
    }
    return plan_add_group(e->b, group_name(e, atoms, n), rows, n, picks,
                          npicks);
}

static const Split *value_split(const Emit *e, ValueId v, char dim)
{
    return layout_split(layout_of(e->m, e->m->values.v[v.i].layout), dim);
}

/* ---- collectives --------------------------------------------------------- */

static void collective(Emit *e, PlanCollective c, PlanOperand from,
                       PlanOperand to)
{
    PlanOperand list[] = {from, to};
    bool joined =
        attr_int(e->m, e->m->nodes.v[e->node.i].attrs, AK_JOIN, 0) != 0;

    emit_instr(e,
               (PlanInstr){.op = PLAN_COLLECTIVE,
                           .flags = joined ? PLAN_JOIN : 0,
                           .index = plan_add_collective(e->b, &c)},
               list, 2);
}

/* The runtime counts elements in 31 bits; a longer sum is done in pieces. */
enum { PIECE = 1 << 30 };

static void all_reduce(Emit *e, PlanCollective c, PlanOperand from,
                       PlanOperand to)
{
    int64_t left = c.count, bytes = (int64_t)from.bytes / c.count;

    for (; left > 0; left -= PIECE) {
        c.count = MC_MIN(left, PIECE);
        from.bytes = to.bytes = (uint64_t)(c.count * bytes);
        collective(e, c, from, to);
        from.offset += c.count * bytes;
        to.offset += c.count * bytes;
    }
}

/* The value that decides the type, and the number of elements that counts. */
static PlanCollective collective_of(Emit *e, const Node *n, uint32_t kind,
                                    ValueId counted, const Split *s)
{
    DType dtype = value_type(e->m, counted)->dtype;

    return (PlanCollective){
        .kind = kind,
        .reduce = n->op == OP_ALL_REDUCE_MAX ? PLAN_MAX : PLAN_SUM,
        .dtype = emit_dtype(dtype),
        .group = group(e, attr_axes(e->m, n->attrs, AK_AXES), s),
        .count = memplan_value_bytes(e->m, counted) / dtype_bytes(dtype)};
}

/* The i-th of n equal parts of an operand. */
static PlanOperand piece_of(PlanOperand o, int64_t i, int64_t n)
{
    o.bytes /= (uint64_t)n;
    o.offset += i * (int64_t)o.bytes;
    return o;
}

static void collective_pieces(Emit *e, PlanCollective c, PlanOperand from,
                              PlanOperand to, int64_t pieces)
{
    c.count /= pieces;
    for (int64_t i = 0; i < pieces; i++)
        collective(e, c, piece_of(from, i, pieces), piece_of(to, i, pieces));
}

static void all_gather(Emit *e, const Node *n)
{
    ValueId from = node_arg(e->m, n, 0);
    const Split *s = value_split(e, from, node_dim(e->m, n, AK_DIM));

    collective_pieces(e, collective_of(e, n, PLAN_ALL_GATHER, from, s),
                      emit_value(e, from, PLAN_READ),
                      emit_value(e, n->res, PLAN_WRITE),
                      streams_block_moves(e->m, n).pieces);
}

static void reduce_scatter(Emit *e, const Node *n)
{
    const Split *s = value_split(e, n->res, node_dim(e->m, n, AK_DIM));

    collective_pieces(e, collective_of(e, n, PLAN_REDUCE_SCATTER, n->res, s),
                      emit_value(e, node_arg(e->m, n, 0), PLAN_READ),
                      emit_value(e, n->res, PLAN_WRITE),
                      streams_block_moves(e->m, n).pieces);
}

/* `dim` becomes split and `from` whole: parts of `dim` travel, and arrive as
 * parts of `from`. */
static void all_to_all(Emit *e, const Node *n)
{
    ValueId from = node_arg(e->m, n, 0);
    const Split *s = value_split(e, n->res, node_dim(e->m, n, AK_DIM));
    PlanCollective c = collective_of(e, n, PLAN_ALL_TO_ALL, from, s);

    c.count /= axes_size(&e->m->mesh, attr_axes(e->m, n->attrs, AK_AXES));
    collective(e, c, emit_value(e, from, PLAN_READ),
               emit_value(e, n->res, PLAN_WRITE));
}

static void shift(Emit *e, const Node *n)
{
    ValueId from = node_arg(e->m, n, 0);
    const Split *split = value_split(e, from, node_dim(e->m, n, AK_DIM));

    collective(e, collective_of(e, n, PLAN_SHIFT, from, split),
               emit_value(e, from, PLAN_READ),
               emit_value(e, n->res, PLAN_WRITE));
}

void emit_collective(Emit *e, const Node *n)
{
    ValueId from = n->nargs ? node_arg(e->m, n, 0) : (ValueId){0};
    BlockMoves moves = streams_block_moves(e->m, n);

    mc_assert(!moves.before && !moves.after);
    switch (n->op) {
    case OP_ALL_GATHER:
        all_gather(e, n);
        break;
    case OP_REDUCE_SCATTER:
        reduce_scatter(e, n);
        break;
    case OP_ALL_TO_ALL:
        all_to_all(e, n);
        break;
    case OP_SHIFT:
        shift(e, n);
        break;
    default:
        all_reduce(e, collective_of(e, n, PLAN_ALL_REDUCE, from, NULL),
                   emit_value(e, from, PLAN_READ),
                   emit_value(e, n->res, PLAN_WRITE));
    }
}

/* This rank's part along `dim`: an address that depends on the rank. */
void emit_slice(Emit *e, const Node *n)
{
    ValueId from = node_arg(e->m, n, 0), to = n->res;
    char dim = node_dim(e->m, n, AK_DIM);
    AxisSet axes = attr_axes(e->m, n->attrs, AK_AXES);
    Cut whole = value_cut(e->m, from, dim), part = value_cut(e->m, to, dim);
    int64_t bytes = part.size * part.behind;
    PlanOperand source = emit_value(e, from, PLAN_READ);
    uint8_t atoms[IR_MAX_ATOMS];
    uint32_t natoms = group_atoms(e, axes, value_split(e, to, dim), atoms);

    source.expr = emit_digits(e, atoms, natoms, bytes);
    if (part.before == 1) {
        source.bytes = (uint64_t)bytes;
        emit_copy(e, emit_value(e, to, PLAN_WRITE), source);
        return;
    }
    source.bytes -= (uint64_t)(whole.size * whole.behind - bytes);
    move_blocks(e, emit_value(e, to, PLAN_WRITE), source, part.before,
                part.before, whole.size * whole.behind, 0, bytes);
}

/* ---- messages ------------------------------------------------------------ */

void emit_sendrecv(Emit *e, const Node *n)
{
    int64_t peer = attr_int(e->m, n->attrs, AK_PEER, 0);
    int32_t shift = (int32_t)(peer - (int64_t)e->pp);
    bool send = n->op == OP_SEND;
    ValueId v = send ? node_arg(e->m, n, 0) : n->res;
    PlanOperand o = emit_value(e, v, send ? PLAN_READ : PLAN_WRITE);

    o.content = 1 + (uint32_t)attr_int(e->m, n->attrs, AK_MICROBATCH, 0);
    emit_instr(
        e,
        (PlanInstr){
            .op = send ? PLAN_SEND : PLAN_RECV,
            .flags = streams_joined(e->m, e->f, e->pos) ? PLAN_JOIN : 0,
            .index = plan_add_peer(e->b, arena_printf(e->arena, "pp%+d", shift),
                                   pp_atom(e), shift),
            .aux = (uint32_t)attr_int(e->m, n->attrs, AK_TAG, 0)},
        &o, 1);
}

void emit_event(Emit *e, const Node *n)
{
    int64_t event = attr_int(e->m, n->attrs, AK_EVENT, 0);

    emit_instr(e,
               (PlanInstr){.op = n->op == OP_EVENT ? PLAN_EVENT : PLAN_WAIT,
                           .index = (uint32_t)event},
               NULL, 0);
}
