/* ir.h - the one intermediate representation, at every level of the compiler.
 *
 * A Module holds flat arrays: types, layouts, attribute lists, tensors (the
 * state that lives between steps), functions, nodes and values.  Everything is
 * named by an index; index 0 is "none".  A function is a straight line of
 * nodes in single-assignment form.  Control structure is the op `call`, which
 * repeats a function with the meaning of a scan (see below), so a layer or a
 * microbatch exists once, however often it runs.
 *
 * Every value has a type with named dimensions and logical (global) sizes, and
 * after the pass `layout` a Layout: which atoms of the mesh split which
 * dimension, and over which atoms the value is a partial sum.  A dimension is
 * one letter with one meaning:
 *
 *   s sequence  b batch  h hidden  g KV group  r queries per group  d channel
 *   f feed-forward  v vocabulary  p position  l layer  m microbatch
 *   e expert  c slot of an expert's block: s and b of the tokens together
 *   t turn, or round, in which an expert takes tokens
 *   j what lies side by side: queries, key, value of a group; gate and up
 *   n lines of a tensor that lies flat, w elements of a line
 */
#ifndef MEGAC_IR_H
#define MEGAC_IR_H

#include "base/base.h"

/* ---- ids ----------------------------------------------------------------- */
#define IR_ID(name)                                                            \
    typedef struct {                                                           \
        uint32_t i;                                                            \
    } name
IR_ID(TypeId);
IR_ID(LayoutId); /* 0: no layout yet */
IR_ID(AttrsId);  /* 0: no attributes */
IR_ID(ValueId);
IR_ID(NodeId);
IR_ID(FuncId);
IR_ID(TensorId);

enum { IR_MAX_DIMS = 8, IR_MAX_ATOMS = 24, IR_MAX_SPLIT = IR_MAX_ATOMS,
       IR_MAX_KINDS = 32, IR_MAX_VALUES = 4096 }; /* operands of one node */

/* ---- mesh.c: the machine as mixed-radix numbers -------------------------- */

/* A piece of an axis: coordinate = rank % span / stride.  The axis tp of size
 * 8 may be cut into tp.0 (size 2, stride 4) and tp.1 (size 4, stride 1). */
typedef struct {
    Sym axis;      /* "tp" */
    uint32_t part; /* 0 is the most significant part of its axis */
    uint32_t size, stride;
    uint32_t span; /* size * stride; less for the two ends of an axis */
    bool expert; /* declares an axis of the expert grid: it stands for the dense
                    atoms within, and no layout names it */
} Atom;

typedef uint32_t AxisSet; /* bit i: atom i */

typedef struct {
    Vec(Atom) atoms; /* parts of an axis are adjacent, most significant first */
    uint32_t world;
} Mesh;

/* ---- types --------------------------------------------------------------- */
typedef enum { DT_NONE, DT_F32, DT_BF16, DT_I32, DT_F16, DT_BOOL } DType;

typedef struct {
    DType dtype;
    uint8_t ndim;
    char dim[IR_MAX_DIMS];     /* letters, slowest first */
    int64_t size[IR_MAX_DIMS]; /* logical (global) sizes */
} Type;

/* One dimension's split, most significant atom first. */
typedef struct {
    char dim;
    uint8_t n;
    uint8_t atom[IR_MAX_SPLIT];
} Split;

/* Splits are sorted by dimension letter; unsplit dimensions are absent. */
typedef struct {
    uint8_t nsplit;
    Split split[IR_MAX_DIMS];
    AxisSet partial;     /* the value is the sum over these atoms */
    AxisSet partial_max; /* … or the maximum */
} Layout;

/* ---- attributes: interned, sorted lists of (key, value) ------------------ */
typedef enum {
#define ATTR(NAME, text, kind) AK_##NAME,
#include "ir/attrs.def"
#undef ATTR
    AK_KEYS
} AttrKey;

typedef enum { AV_INT, AV_FLOAT, AV_SYM, AV_FUNC, AV_TENSOR, AV_AXES,
               AV_DIM, AV_DTYPE, AV_FIELD, AV_STREAM,
               AV_MODES, AV_SYMS, AV_TENSORS } AttrKind;

typedef struct {
    AttrKey key;
    union {
        int64_t i;      /* AV_INT, AV_DIM (a letter), AV_DTYPE, … */
        double f;       /* AV_FLOAT */
        Sym sym;        /* AV_SYM */
        FuncId func;    /* AV_FUNC */
        TensorId tensor; /* AV_TENSOR */
        AxisSet axes;   /* AV_AXES: a set of mesh atoms */
        struct {
            uint32_t first, n; /* AV_MODES, _SYMS, _TENSORS: in Module.list */
        } list;
    } as;
} Attr;

/* ---- state --------------------------------------------------------------- */
typedef enum {
    FIELD_PARAM,  /* the copy the model computes with (compute dtype) */
    FIELD_MASTER, /* fp32 master copy, if param is not fp32 */
    FIELD_GRAD,   /* accumulated gradient, as it rests: perhaps a partial sum */
    FIELD_GSUM,   /* complete gradient of the step, in FIELD_GRAD's memory */
    FIELD_M, FIELD_V, /* first and second moment (m is also SGD's momentum) */
    FIELD_ACC,    /* a sum over one step: a metric */
    FIELD_COUNT
} Field;

typedef enum { INIT_NONE, INIT_NORMAL, INIT_ZEROS, INIT_ONES } InitKind;

/* How a logical tensor appears in a Hugging Face file: rows of a matrix
 * [rows, cols] (or a vector), perhaps transposed, perhaps a block of a wider
 * fused tensor (GPT-2's c_attn holds q, k and v side by side). */
typedef struct {
    Sym name;       /* "model.layers.{l}.self_attn.q_proj.weight" */
    int64_t rows, cols; /* of this tensor, logical; cols 0: a vector */
    bool transpose; /* stored as [cols, rows] */
    int64_t fused_rows, row_offset; /* rows of the whole, first row of ours */
} Export;

/* Indices [first, first + n) of j; outside they are named `dim`, or are one and
 * have no name (0). */
typedef struct {
    int64_t first, n;
    char dim;
} Span;

/* One of the parameters that lie side by side in a tensor. */
typedef struct {
    Sym name;
    Span at;
    Export file;
} TensorPart;

enum { IR_MAX_PARTS = 4 };

typedef struct {
    Sym name;     /* "q_proj": names the tensor in @q_proj.grad */
    TypeId type;  /* one layer's worth; padded sizes; compute dtype */
    Type logical; /* unpadded sizes */
    bool per_layer;
    uint32_t kinds; /* per layer: bit k: layers of kind k have one; 0: all */
    bool parameter; /* false: a metric accumulator (only FIELD_ACC) */
    bool decay;     /* weight decay applies */
    bool expert;    /* its replicas are those of the expert grid: edp */
    AxisSet tied;   /* reserved axis set of a copy on two stages; 0: none */
    uint32_t fields; /* bit f: field f exists */
    uint32_t host;   /* bit f: field f rests in host memory */
    DType field_dtype[FIELD_COUNT];
    LayoutId rest[FIELD_COUNT]; /* where the field rests between uses */
    /* A tensor whose replicas share fields of it out evenly lies flat, in all
     * its fields: what a rank uses of it, split as `use` says, is one row that
     * zeros fill up to lines [n, w]; the rows of all such parts make up n, and
     * `rest` splits n: as `use` splits the tensor, then over replicas.  0: the
     * fields lie as `type` says. */
    TypeId flat;
    LayoutId use;
    InitKind init;
    double init_std;
    Export file;
    TensorPart part[IR_MAX_PARTS]; /* of a tensor with j; the file names them */
    uint32_t nparts;
    Loc loc;
} Tensor;

/* ---- ops ----------------------------------------------------------------- */
typedef enum {
    OP_NONE,
#define OP(NAME, ...) OP_##NAME,
#include "ir/ops.def"
#undef OP
    OP_COUNT
} Op;

/* ---- nodes, values, functions -------------------------------------------- */
typedef struct {
    uint16_t op, nargs, nres, stream; /* stream: see Stream, set by `streams` */
    uint32_t arg;                     /* first operand in Module.args */
    ValueId res;                      /* results are consecutive values */
    AttrsId attrs;
    Loc loc;
} Node;

typedef struct {
    TypeId type;
    LayoutId layout;
    Sym name;   /* printed as %name if unique, else %name.N */
    Sym hint;   /* "residual", "normed": a layout chosen by name, or 0 */
    NodeId def; /* 0: a parameter of its function */
} Value;

typedef enum { FUNC_GRAPH, FUNC_ROW } FuncKind;

typedef struct {
    Sym name;
    FuncKind kind; /* FUNC_ROW: a row program, called by `row` */
    Vec(ValueId) params;
    Vec(ValueId) results;
    Vec(NodeId) body;
    Loc loc;
} Func;

/* One entry of the table that maps pipeline stages to layers. */
typedef struct {
    uint32_t pp, chunk, first_layer, nlayers;
    bool embedding, head;
    FuncId fwd, bwd; /* set by `stage`; 0: nothing to run */
    FuncId weights;  /* the part of the backward that can wait, or 0 */
} PipeStage;

/* What is run besides the step of training: a step of fewer microbatches, or
 * the forward and the loss alone.  `pipeline` writes it, from the step. */
typedef struct {
    uint32_t microbatches;
    bool forward;
} SideProgram;

/* What has been done to a module so far; passes declare what they need. */
typedef enum {
    PROP_INFERRED = 1 << 0, PROP_GRAD = 1 << 1, PROP_LAYOUT = 1 << 2,
    PROP_OPTIMIZER = 1 << 9,
    PROP_RESHARDED = 1 << 3, PROP_STAGED = 1 << 4, PROP_PIPELINED = 1 << 5,
    PROP_SPLIT = 1 << 10, PROP_RING = 1 << 11, PROP_PREFETCHED = 1 << 12,
    PROP_FUSED = 1 << 6, PROP_STREAMS = 1 << 7, PROP_PLANNED = 1 << 8
} Prop;

typedef enum { STREAM_COMPUTE, STREAM_TP, STREAM_CP, STREAM_EP, STREAM_DP,
               STREAM_PP, STREAM_COPY,
               /* Messages of the pipeline.  A send may have to wait for its
                * receive, so each direction and side is a line of its own. */
               STREAM_SEND_FWD, STREAM_RECV_FWD, STREAM_SEND_BWD,
               STREAM_RECV_BWD, STREAM_COUNT } Stream;

typedef struct {
    Sym name;
    LayoutId layout;
} NamedLayout;

typedef struct Module {
    Arena *arena;
    SymTab *names;
    Diag *diag;
    Mesh mesh;
    Vec(Type) types;
    Vec(Layout) layouts;
    Vec(Attr) attrs;      /* attribute lists lie end to end; AttrsId a is … */
    Vec(uint32_t) attr_lists; /* … attrs[attr_lists[a-1] .. attr_lists[a]) */
    Vec(int64_t) list;    /* elements of list-valued attributes (ids, modes) */
    Vec(Tensor) tensors;  /* [0] unused */
    Vec(Func) funcs;      /* [0] unused */
    Vec(Node) nodes;      /* [0] unused */
    Vec(Value) values;    /* [0] unused */
    Vec(ValueId) args;
    Vec(NamedLayout) hints; /* the layouts that Value.hint names stand for */
    Vec(PipeStage) stages;    /* by the model builder; in data-flow order */
    uint32_t nlayers;     /* of the whole model */
    Vec(uint8_t) kind;    /* by layer: which function it is; empty: all of 0 */
    uint32_t microbatches;
    uint32_t props;       /* bits of Prop */
    Vec(SideProgram) programs; /* from number 1; 0 is the step itself */
    /* The step of training.  Before `pipeline` one entry serves every rank;
     * afterwards entry k * module_npp + i is program k of pp coordinate i. */
    Vec(FuncId) entry;
    void *interned;       /* hash tables, private to module.c */
} Module;

static inline uint32_t module_programs(const Module *m)
{
    return 1 + m->programs.n;
}
/* Of a pipelined module: how many pp coordinates there are. */
static inline uint32_t module_npp(const Module *m)
{
    return m->entry.n / module_programs(m);
}

/* ---- module.c: building and interning ------------------------------------ */
Module *module_new(Arena *a, Diag *d);
void module_free(Module *m);

TypeId type_intern(Module *m, const Type *t);
/* "sbh" with three sizes; dims == "" is a scalar. */
TypeId type_make(Module *m, DType dtype, const char *dims, const int64_t *size);
int type_dim(const Type *t, char dim);         /* position, or -1 */
int64_t type_size(const Type *t, char dim);    /* 1 if absent */
int64_t type_elems(const Type *t);             /* logical elements */
TypeId type_without(Module *m, TypeId t, char dim);
TypeId type_with_first(Module *m, TypeId t, char dim, int64_t size);
TypeId type_resized(Module *m, TypeId t, char dim, int64_t size);
TypeId type_as(Module *m, TypeId t, DType dtype);
int64_t dtype_bytes(DType t);
const char *dtype_name(DType t);
bool dtype_parse(const char *s, DType *out);

static inline const Type *type_of(const Module *m, TypeId t)
{
    return &m->types.v[t.i];
}

AttrsId attrs_intern(Module *m, Attr *list, uint32_t n); /* sorts `list` */
const Attr *attr_find(const Module *m, AttrsId a, AttrKey key);
int64_t attr_int(const Module *m, AttrsId a, AttrKey key, int64_t otherwise);
double attr_float(const Module *m, AttrsId a, AttrKey key, double otherwise);
Sym attr_sym(const Module *m, AttrsId a, AttrKey key);
AxisSet attr_axes(const Module *m, AttrsId a, AttrKey key);
FuncId attr_func(const Module *m, AttrsId a, AttrKey key);
TensorId attr_tensor(const Module *m, AttrsId a, AttrKey key);
/* The position in the sequence of index `i` of a dimension of `size`, by the
 * attribute `zigzag`. */
int64_t attr_position(const Module *m, AttrsId a, int64_t size, int64_t i);
/* The same list with one attribute set or replaced. */
AttrsId attrs_with(Module *m, AttrsId a, Attr attr);
AttrsId attrs_without(Module *m, AttrsId a, AttrKey key);
Attr attr_of_int(AttrKey key, int64_t value);
Attr attr_of_float(AttrKey key, double value);
Attr attr_of_sym(AttrKey key, Sym value);
Attr attr_of_axes(AttrKey key, AxisSet value);
Attr attr_of_func(AttrKey key, FuncId value);
Attr attr_of_tensor(AttrKey key, TensorId value);
Attr attr_of_list(Module *m, AttrKey key, const int64_t *v, uint32_t n);

FuncId func_new(Module *m, const char *name, FuncKind kind, Loc loc);
FuncId func_find(const Module *m, Sym name);
ValueId func_param(Module *m, FuncId f, TypeId t, const char *name);
TensorId tensor_new(Module *m, const Tensor *t);
TensorId tensor_find(const Module *m, Sym name);
/* Whether layer `layer` has one of these tensors. */
bool tensor_in_layer(const Module *m, TensorId t, uint32_t layer);
/* How many of `n` layers from `first` on do; 1 for a tensor of no layer. */
uint32_t tensor_layers(const Module *m, TensorId t, uint32_t first, uint32_t n);

/* A value without a defining node yet; node_new makes its own results. */
ValueId value_new(Module *m, TypeId t, const char *name);

/* Makes a node with `nres` results of the given types and appends it to f's
 * body (f.i == 0: to no body).  Checks nothing: build.c does. */
NodeId node_new(Module *m, FuncId f, Op op, const ValueId *args, uint32_t nargs,
                AttrsId attrs, const TypeId *res, uint32_t nres, Loc loc);

static inline Node *node_of(Module *m, NodeId n)
{
    return &m->nodes.v[n.i];
}
static inline Value *value_of(Module *m, ValueId v)
{
    return &m->values.v[v.i];
}
static inline Func *func_of(Module *m, FuncId f)
{
    return &m->funcs.v[f.i];
}
static inline Tensor *tensor_of(Module *m, TensorId t)
{
    return &m->tensors.v[t.i];
}
static inline ValueId node_arg(const Module *m, const Node *n, uint32_t i)
{
    return m->args.v[n->arg + i];
}
static inline ValueId node_res(const Node *n, uint32_t i)
{
    return (ValueId){n->res.i + i};
}
static inline const Type *value_type(const Module *m, ValueId v)
{
    return &m->types.v[m->values.v[v.i].type.i];
}

/* ---- build.c: check + infer + append, in one call ------------------------ */
/* Each returns its (first) result; the types come from the op's infer cell. */
ValueId ir_op(Module *m, FuncId f, Op op, const ValueId *args, uint32_t nargs,
              AttrsId attrs, Loc loc);
ValueId ir_unary(Module *m, FuncId f, Op op, ValueId x, Loc loc);
ValueId ir_binary(Module *m, FuncId f, Op op, ValueId x, ValueId y, Loc loc);
ValueId ir_const(Module *m, FuncId f, double value, Loc loc);
/* The exact rational num/den, or its square root. */
ValueId ir_ratio(Module *m, FuncId f, int64_t num, int64_t den, bool root,
                 Loc loc);
/* x itself if it has that type already. */
ValueId ir_cast(Module *m, FuncId f, ValueId x, DType dtype, Loc loc);
/* Sums away every dimension whose letter is not in `keep`; x itself if there is
 * none and x is f32. */
ValueId ir_sum(Module *m, FuncId f, ValueId x, const char *keep, Loc loc);
ValueId ir_max(Module *m, FuncId f, ValueId x, const char *keep, Loc loc);
/* Contracts by name; the result has the dimensions of `dims`, in that order. */
ValueId ir_dot(Module *m, FuncId f, ValueId x, ValueId y, const char *dims,
               DType dtype, Loc loc);
ValueId ir_read(Module *m, FuncId f, TensorId t, Field field, Loc loc);
/* As the field is stored, which may be flat; and of all layers held, for
 * per-layer tensors: [l, …]. */
ValueId ir_read_stored(Module *m, FuncId f, TensorId t, Field field, Loc loc);
ValueId ir_read_all(Module *m, FuncId f, TensorId t, Field field,
                    int64_t layers, Loc loc);
void ir_write(Module *m, FuncId f, TensorId t, Field field, ValueId x, Loc loc);
void ir_accum(Module *m, FuncId f, TensorId t, Field field, ValueId x, Loc loc);

/* ---- the scan ------------------------------------------------------------ */
/* call {callee=@f, over='l', first=F, count=N, reverse=0|1, step=S,
 *       args=[mode…], results=[mode…]}
 *
 * Runs callee N times.  Iteration i (0..N-1, or downward if reverse) passes
 * and takes, by mode:
 *   argument  "whole"  the same value each time
 *             "carry"  first the operand, then the callee's matching carry
 *                      result of the iteration before (k-th carry argument
 *                      pairs with k-th carry result)
 *             "l"      any one letter: the i-th piece of the operand along
 *                      that dimension; if the parameter lacks the dimension,
 *                      its i-th index (the dimension disappears)
 *             "trips"  the same value each time, a scalar: how many of the N
 *                      iterations are run, those from 0 on.  All results of
 *                      such a call are carries.
 *   result    "whole"  the value itself (count must be 1)
 *             "carry"  the value after the last iteration run
 *             "l"      all iterations' results side by side along that
 *                      dimension (prepended if the callee's result lacks it)
 * Pieces are cut from each rank's local part.  Inside, with over == 'l', the
 * layer register is first + i * step, within a scan over layers from the outer
 * one's on: it selects the layer of per-layer tensors.
 * over == 'm' sets the microbatch register, any other letter sets none. */
enum { MODE_WHOLE = 1, MODE_CARRY = 2, MODE_TRIPS = 3 }; /* otherwise the
                                                            letter itself */

typedef struct {
    FuncId callee;
    char over;
    int64_t first, count;
    bool reverse;
    int64_t step; /* of the register between iterations; 0 means 1 */
} Scan;
Scan call_scan(const Module *m, const Node *n);
int call_arg_mode(const Module *m, const Node *n, uint32_t i);
int call_res_mode(const Module *m, const Node *n, uint32_t i);
/* The operand that says at run time how many iterations run, or -1. */
int call_trips(const Module *m, const Node *n);
/* A mode in text: '.' whole, '>' carry, '#' trips, or the letter itself. */
char call_mode_letter(int mode);
int call_mode_of(char letter);
/* The modes of a call as ir_call takes them; room for one letter each and 0. */
void call_modes(const Module *m, const Node *n, char *out_args,
                char *out_results);
/* Result types follow from the callee.  Modes are one letter each: ".>ll" and
 * ">l". */
NodeId ir_call(Module *m, FuncId f, Scan scan, const ValueId *args,
               const char *arg_modes, const char *res_modes, Loc loc);

/* ---- layout.c: layouts and their arithmetic ------------------------------ */
LayoutId layout_intern(Module *m, const Layout *l);
LayoutId layout_whole(Module *m); /* nothing split, nothing partial */
static inline const Layout *layout_of(const Module *m, LayoutId l)
{
    return &m->layouts.v[l.i];
}
const Split *layout_split(const Layout *l, char dim); /* NULL: whole */
void layout_set_split(Layout *l, char dim, const uint8_t *atoms, uint8_t n);
AxisSet split_axes(const Mesh *mesh, const Split *s);
AxisSet layout_split_axes(const Mesh *mesh, const Layout *l);
int64_t split_parts(const Mesh *mesh, const Split *s); /* 1 for NULL */
/* Whether a value of type t has the dimension `dim`, be it as part of another:
 * c, the slots of an expert, stands for s and b, the tokens they come from. */
bool type_covers(const Type *t, char dim);
/* The split of c that follows from those of s and b: all their atoms, first
 * those that replicate experts, then etp's, then ep's, which so can move on to
 * the experts. */
void layout_set_slots(const Module *m, Layout *l);
/* Size of `dim` on one rank; the division is exact in a verified module. */
int64_t layout_local(const Module *m, const Type *t, const Layout *l, char dim);
int64_t layout_local_elems(const Module *m, const Type *t, const Layout *l);
/* First logical index of `dim` on `rank`. */
int64_t layout_start(const Module *m, const Type *t, const Layout *l, char dim,
                     uint32_t rank);

uint32_t atom_coord(const Atom *a, uint32_t rank);
uint8_t mesh_atom(Mesh *mesh, Sym axis, uint32_t part, uint32_t size,
                  uint32_t stride, bool expert);
/* The first and the last of the `size` ranks along an axis, as an axis of two
 * that is found or added; those between count as the first. */
uint8_t mesh_ends(Mesh *mesh, Sym axis, uint32_t size, uint32_t stride);
/* All atoms of an axis; 0: none. */
AxisSet mesh_axis(const Module *m, const char *axis);
/* All atoms that tell the ranks of one pipeline stage apart. */
AxisSet mesh_stage(const Module *m);
/* The atoms of an axis in order, most significant first; returns how many. */
uint8_t mesh_axis_atoms(const Module *m, const char *axis, uint8_t *out);
uint32_t axes_size(const Mesh *mesh, AxisSet set); /* ranks in a group */
/* The ranks of `rank`'s group over `set`, least significant digit fastest. */
void axes_members(const Mesh *mesh, AxisSet set, uint32_t rank, uint32_t *out);
uint32_t axes_index(const Mesh *mesh, AxisSet set, uint32_t rank);

/* All atoms that split a value of type `t`, those of its first dimension
 * first; returns how many. */
uint8_t layout_atoms(const Type *t, const Layout *l, uint8_t *out);

/* ---- flat.c: tensors that lie as lines ----------------------------------- */
/* What a field holds, but for its dtype: lines, or the tensor as it is. */
TypeId tensor_stored(const Tensor *t);
/* How a field is split and summed in the dimensions of the tensor, where no
 * replicas share it out. */
Layout tensor_layout(const Module *m, const Tensor *t, Field f);
/* Whether replicas share a flat field out. */
bool flat_is_shared(const Module *m, const Tensor *t, Field f);
/* Lines that rest in layout `rest`, once every replica has all of them. */
LayoutId flat_gathered(Module *m, const Tensor *t, LayoutId rest);
/* Where element i of the lines is in the tensor; -1: padding. */
int64_t flat_index(const Module *m, const Tensor *t, int64_t i);
/* The lines that `unflatten` made v of, or v. */
ValueId flat_source(const Module *m, ValueId v);

/* ---- join.c: side by side along j --------------------------------------- */
Span part_span(const Module *m, const Node *part);
Span join_span(const Module *m, const Node *join, uint32_t operand);
/* The type of a part of `t`, which has the dimension j. */
Type type_part(const Type *t, Span s);

/* ---- the op table -------------------------------------------------------- */
typedef struct OpInfo {
    const char *name;
    int8_t nargs, nres; /* -1: any number */
    /* Dimension signature: "sb,vh->sbh"; where a letter is upper-case, that
     * operand or result is whole in it on every rank; a letter missing on the
     * right is contracted, and so is one that is split on the left and whole on
     * the right.  "*" stands for dimensions matched by name and broadcast
     * (pointwise), "+" for a sum and "^" for a maximum over the dimensions
     * missing in the result, "dot" for a contraction by name, "" for no rule
     * (structure and state). */
    const char *sig;
    /* Per operand: 's' linear in it when the others are complete; 'j' linear
     * in all 'j' operands together; '-' needs a complete value.  The last
     * letter repeats. */
    const char *linear;
    uint32_t flags;
    /* Both say what is wrong, or NULL.  `infer` checks what the result types
     * follow from; an out type of 0 means that the node states its type itself
     * (batch, recv).  `verify` checks the rest, on the finished node. */
    const char *(*verify)(Module *m, const Node *n);
    const char *(*infer)(Module *m, Op op, const ValueId *args, uint32_t nargs,
                         AttrsId attrs, TypeId *out);
    double (*flops)(const Module *m, const Node *n); /* logical, one run */
} OpInfo;

enum {
    OPF_ROW = 1 << 0,       /* may be part of a row program */
    OPF_GENERATOR = 1 << 1, /* cheap, no operands that matter: re-made in any
                               layout instead of being resharded */
    OPF_COMM = 1 << 2,      /* talks to other ranks */
    OPF_EFFECT = 1 << 3,    /* not dropped, nor reordered among its like */
    OPF_CHEAP = 1 << 4,     /* recomputed in the backward rather than saved */
    OPF_VIEW = 1 << 5,      /* results alias operands */
    OPF_STAGE = 1 << 6      /* a maximum over all ranks of a stage, also those
                               that have the same operand */
};
extern const OpInfo op_info[OP_COUNT];
Op op_find(const char *name); /* OP_NONE if unknown */
/* Whether operand i, or result i, is whole in `dim` by the op's signature. */
bool op_arg_whole(Op op, uint32_t i, char dim);
bool op_res_whole(Op op, uint32_t i, char dim);

/* ---- epilogue.c: what products do to their results ----------------------- */
typedef enum {
    ACTIVATION_NONE,
#define ACTIVATION(NAME, ...) ACTIVATION_##NAME,
#include "ir/activations.def"
#undef ACTIVATION
    ACTIVATION_COUNT
} ActivationKind;

typedef struct {
    const char *name, *formula;
} Activation;
extern const Activation activations[ACTIVATION_COUNT];
int activation_find(const char *name); /* -1 if unknown */

/* A word of a formula: the argument, a number, or an op with its operands. */
typedef struct {
    enum { FORMULA_X, FORMULA_NUMBER, FORMULA_OP } kind;
    Op op;
    double number;
} FormulaWord;
FormulaWord formula_word(const char **at); /* moves on to the next word */

/* Of a node `dots`. */
typedef struct {
    bool bias, residual;
    int activation; /* ActivationKind, or -1: unknown */
} Epilogue;
Epilogue node_epilogue(const Module *m, const Node *n);
static inline bool has_epilogue(const Epilogue *e)
{
    return e->bias || e->residual || e->activation;
}
static inline ValueId epilogue_bias(const Module *m, const Node *n, uint32_t i)
{
    return node_arg(m, n, 1u + n->nres + i);
}
/* The residuals are last. */
static inline ValueId epilogue_residual(const Module *m, const Node *n,
                                        uint32_t i)
{
    return node_arg(m, n, (uint32_t)n->nargs - n->nres + i);
}
/* Whether the product of x and w to y is one that can have an epilogue, and
 * whether it can have this bias. */
bool epilogue_fits(const Type *x, const Type *w, const Type *y);
bool bias_fits(const Type *x, const Type *w, const Type *bias);

/* ---- print.c, parse.c, verify.c ------------------------------------------ */
/* Deterministic text; module_parse(module_print(m)) prints the same. */
void module_print(const Module *m, Buf *out);
void func_print(const Module *m, FuncId f, Buf *out);
void node_print(const Module *m, NodeId n, Buf *out);
void type_print(const Module *m, TypeId t, Buf *out);
void layout_print(const Module *m, LayoutId l, Buf *out);
/* NULL after reporting to d (codes MC06xx) with line and column. */
Module *module_parse(Arena *a, Diag *d, const char *name, const char *text);
/* Well-formedness: definitions before uses, types as inferred, layouts legal
 * (each atom used once, sizes divide, whole dimensions whole, partial operands
 * only where the op is linear), scans consistent.  Reports to m->diag. */
bool module_verify(Module *m);

#endif
