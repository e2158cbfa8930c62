/* eval_priv.h - inside the evaluator (eval*.c).
 *
 * Every simulated rank has an explicit stack of frames, so that it can stop in
 * the middle of a nested call when it waits for others, and go on later.
 * Arrays are immutable and counted once bound to a value; reading a parameter,
 * passing an argument or saving an activation copies nothing.
 */
#ifndef MEGAC_IR_EVAL_PRIV_H
#define MEGAC_IR_EVAL_PRIV_H

#include "ir/eval.h"

#include "base/dropout.h"

typedef struct Eval Eval;

typedef struct {
    uint32_t refs;
    EvalArray a;
} EvalValue;

/* One activation of a function, repeated as the scan of its call says. */
typedef struct {
    FuncId func;
    uint32_t pc;        /* index of the next node in the body */
    EvalValue **slot;   /* by Eval.slot_of: the function's values */
    int64_t layer, mb;  /* registers; -1 is unset */
    int64_t base;       /* the caller's layer, from which a scan counts */
    NodeId call;        /* the node that called; 0 for an entry */
    Scan scan;
    int64_t trips;      /* iterations that run: of scan.count the first */
    int64_t done;       /* iterations finished */
    EvalValue **result; /* [iteration][result] until the call returns */
} EvalFrame;

typedef struct {
    uint32_t from;         /* sender */
    int64_t tag, chunk, mb;
    EvalValue *value;
} EvalMessage;

typedef struct {
    Sym what;
    EvalNum value;
} EvalMetric;

typedef struct {
    uint32_t id; /* rank number in the mesh */
    uint32_t pp;
    Vec(EvalFrame) stack;
    bool waiting;     /* the next node cannot run yet */
    NodeId posted;    /* the collective this rank has reached, or 0 … */
    EvalValue *offer; /* … with this operand, */
    EvalValue *taken; /* and the result once the whole group has arrived */
    Vec(EvalMessage) inbox;
    Vec(EvalMetric) metrics;
    EvalValue **state; /* by Eval.state_of + layer; NULL: undefined */
    bool *touched;     /* read, written or initialised here */
} EvalRank;

struct Eval {
    Arena *arena;
    Module *m;
    EvalOptions opt;
    uint32_t *slot_of;   /* by ValueId: index within its function's frame */
    uint32_t *nslots;    /* by FuncId */
    uint32_t *state_of;  /* by TensorId * FIELD_COUNT + Field */
    uint32_t nstate;
    uint64_t *tensor_key; /* by TensorId: seed and name */
    uint64_t **part_key;  /* the same of what lies beside others in it */
    EvalRank *ranks;
    uint32_t nranks;
    uint32_t *rank_index; /* by rank number: index in ranks, or UINT32_MAX */
    int64_t vocabulary;   /* logical; bounds the random tokens */
    /* Of the program, while its one entry still is the whole batch's; or 0. */
    int64_t microbatches;
    bool failed;
};

/* One node about to be executed on one rank. */
typedef struct {
    Eval *e;
    EvalRank *rank;
    EvalFrame *frame; /* invalid after a push */
    const Node *node;
    NodeId id;
    enum { STEP_DONE, STEP_BLOCKED, STEP_PUSHED, STEP_FAULT } outcome;
} EvalStep;

struct EvalResult {
    Module *m;
    EvalKind kind;
    uint32_t ntensors; /* of the module as it was then */
    uint32_t *state_of;
    EvalArray *state; /* assembled, padded sizes; at == NULL: absent */
    const EvalMetric *metrics;
    uint32_t nmetrics;
};

/* ---- eval_num.c: the two kinds of scalar -------------------------------- */
#define FIELD_P ((UINT64_C(1) << 61) - 1)
__extension__ typedef unsigned __int128 U128;

static inline uint64_t field_add(uint64_t x, uint64_t y)
{
    uint64_t sum = x + y;

    return sum >= FIELD_P ? sum - FIELD_P : sum;
}

/* p is a Mersenne prime: a product of 122 bits folds with a shift and a sum. */
static inline uint64_t field_mul(uint64_t x, uint64_t y)
{
    U128 product = (U128)x * y;

    return field_add((uint64_t)(product & FIELD_P), (uint64_t)(product >> 61));
}

uint64_t field_neg(uint64_t x);
uint64_t field_inverse(uint64_t x); /* of 0: 0 */
uint64_t field_of_int(int64_t n);
uint64_t field_of_double(double x); /* a finite double is a dyadic rational */
/* A fixed random function: of one argument, numbered by `which`. */
uint64_t field_random(uint64_t which, uint64_t x);
uint64_t hash_mix(uint64_t x);
uint64_t hash_text(uint64_t seed, const char *text);
double hash_unit(uint64_t hash); /* uniform in [0, 1) */
EvalNum num_of_double(EvalKind kind, double x);
/* num/den, or its square root (in the field: a symbol). */
EvalNum num_of_ratio(EvalKind kind, int64_t num, int64_t den, bool root);
static inline EvalNum num_add(EvalKind kind, EvalNum x, EvalNum y)
{
    if (kind == EVAL_FIELD)
        return (EvalNum){.residue = field_add(x.residue, y.residue)};
    return (EvalNum){.f = x.f + y.f};
}

static inline EvalNum num_mul(EvalKind kind, EvalNum x, EvalNum y)
{
    if (kind == EVAL_FIELD)
        return (EvalNum){.residue = field_mul(x.residue, y.residue)};
    return (EvalNum){.f = x.f * y.f};
}

EvalNum num_max(EvalKind kind, EvalNum x, EvalNum y); /* field: of residues */
int64_t num_index(EvalKind kind, EvalNum x); /* a token, or -1 */
/* Sum of x[xi[k]] * y[yi[k]] over k < n. */
EvalNum num_dot(EvalKind kind, int64_t n, const EvalNum *x, const int64_t *xi,
                const EvalNum *y, const int64_t *yi);

/* ---- eval_array.c: arrays and the one way to walk them ------------------ */
enum { WALK_ARRAYS = 10, WALK_DIMS = 2 * IR_MAX_DIMS };

/* Visits every index of a list of dimensions, last fastest.  off[i] is the
 * offset into the i-th array added; dimensions an array lacks broadcast.
 *
 *     Walk w = walk_of(out);  walk_add(&w, x);
 *     for (; w.more; walk_next(&w))
 *         out->at[w.off[0]] = f(x->at[w.off[1]]);
 */
typedef struct {
    int ndim;
    char dim[WALK_DIMS];
    int64_t size[WALK_DIMS], index[WALK_DIMS];
    uint32_t narrays;
    int64_t stride[WALK_ARRAYS][WALK_DIMS], off[WALK_ARRAYS];
    int64_t run, step[WALK_ARRAYS]; /* after walk_rows */
    bool more;
} Walk;

Walk walk_of(const EvalArray *a); /* over a's dimensions; a is array 0 */
Walk walk_dims(const char *dim, const int64_t *size, int ndim);
void walk_add(Walk *w, const EvalArray *a);
/* Once all arrays are added: leaves the last dimension to the caller, and those
 * before it that go on where it ends in every array.  At each place of the walk
 * there are then `run` elements, in array i at a distance of step[i]. */
void walk_rows(Walk *w);
void walk_next(Walk *w);
int64_t walk_index(const Walk *w, char dim);

int array_dim(const EvalArray *a, char dim); /* position, or -1 */
int64_t array_size(const EvalArray *a, char dim); /* 1 if absent */
int64_t array_stride(const EvalArray *a, char dim); /* 0 if absent */
int64_t array_elems(const EvalArray *a);
bool array_same_shape(const EvalArray *a, const EvalArray *b);
EvalArray array_of_type(const Type *t); /* at is NULL */
/* The indices `s` of j; the result has its shape and memory. */
void array_part(const EvalArray *whole, Span s, EvalArray *out_part);
void array_print(const EvalArray *shape, Buf *out);

EvalValue *value_alloc(const EvalArray *shape); /* one reference, zeroed */
EvalValue *value_share(EvalValue *v);
void value_drop(EvalValue *v); /* NULL is nothing */
/* A copy of v's own if others hold it too; takes the caller's reference. */
EvalValue *value_own(EvalValue *v);
/* Piece i of n along dim, dropped if `drop`; NULL if it does not fit. */
EvalValue *value_piece(const EvalValue *v, char dim, int64_t i, int64_t n,
                       bool drop);
/* Side by side along dim, which is prepended where it is missing. */
EvalValue *value_concat(EvalValue *const *v, int64_t n, char dim);

/* ---- eval.c: for the cells ---------------------------------------------- */
const EvalArray *step_arg(EvalStep *s, uint32_t i);
/* Result i, newly made in the local shape of its type and layout. */
EvalArray *step_out(EvalStep *s, uint32_t i);
void step_bind(EvalStep *s, uint32_t i, EvalValue *v); /* takes the reference */
EvalValue *step_value(EvalStep *s, uint32_t i);
/* The results must have the local shapes that types and layouts promise. */
void step_check(EvalStep *s);
void step_block(EvalStep *s);
void step_fault(EvalStep *s, const char *code, const char *fmt, ...)
    MC_PRINTF(3, 4);
EvalArray eval_shape(const Eval *e, TypeId t, LayoutId l);
/* First logical index of a dimension of a value on a rank. */
int64_t eval_start(const Eval *e, uint32_t rank, TypeId t, LayoutId l,
                   char dim);
/* The same of an operand or result. */
int64_t step_start(const EvalStep *s, ValueId id, char dim);
/* n zeroed items; free them. */
void *eval_scratch(int64_t n, size_t item);
EvalFrame eval_frame(const Eval *e, FuncId f);
void eval_frame_drop(const Eval *e, EvalFrame *frame);

/* ---- eval_scan.c: calls ------------------------------------------------- */
/* Starts the next iteration of the top frame, or returns to its caller. */
void scan_advance(Eval *e, EvalRank *r);

/* ---- eval_init.c: the state before the step ------------------------------ */
/* One layer of a field that is no sum, as the rank holds it. */
EvalValue *state_initial(const Eval *e, const EvalRank *r, TensorId t, Field f,
                         uint32_t layer);
const Type *eval_logical(const Module *m, TensorId t);
/* Where the first element that a rank holds of a field is in what all hold, and
 * where an element of that is in the tensor; -1: padding. */
int64_t state_start(const Eval *e, uint32_t rank, TensorId t, Field f);
int64_t state_element(const Eval *e, TensorId t, int64_t index);

/* ---- eval_state.c: tensors, batches, host values ------------------------- */
/* The parameters of an entry: batches, told apart by name. */
void state_bind_inputs(Eval *e, const EvalRank *r, EvalFrame *entry);
void state_new(Eval *e, EvalRank *r);
/* Where a field of one layer lives on a rank; NULL if undefined. */
EvalValue **state_slot(Eval *e, EvalRank *r, TensorId t, Field f,
                       int64_t layer);
/* The layers a rank holds, in order of chunk, then layer; returns how many. */
uint32_t state_layers(const Eval *e, const EvalRank *r, TensorId t,
                      uint32_t *out);
/* Adds to one layer of a field: what is as it is stored or, without the
 * attribute `flat`, in the tensor's dimensions. */
void state_add(EvalStep *s, TensorId t, Field f, uint32_t layer,
               const EvalValue *x);
bool state_holds(const Eval *e, const EvalRank *r, TensorId t, uint32_t layer);

/* ---- eval_flat.c: what lies flat ----------------------------------------- */
/* What a rank has of a tensor, from all the lines it needs for that; and the
 * lines of it. */
EvalValue *state_shaped(const Eval *e, TensorId t, const EvalValue *lines);
EvalValue *state_lines(const Eval *e, TensorId t, Field f, const EvalValue *x);

/* ---- eval_dropout.c: what is kept ---------------------------------------- */
typedef struct {
    double rate;     /* 0: everything is kept */
    EvalNum scale;
    int64_t microbatch;
    DropoutPlace at; /* the cell fills in sample, position, other and last */
} EvalDraws;
/* The draws of the node; false after a fault. */
bool step_draws(EvalStep *s, EvalDraws *out);

/* ---- eval_convert.c: `convert` among ranks that meet ------------------- */
AxisSet convert_axes(const EvalStep *s);
EvalValue *convert_whole(const EvalStep *s, EvalRank *const *member,
                         EvalValue *const *offer, uint32_t n);
EvalValue *convert_part(const EvalStep *s, const EvalValue *whole,
                        uint32_t rank);

/* ---- eval_epilogue.c ---------------------------------------------------- */
/* What `dots` does to its result i. */
void eval_epilogue(EvalStep *s, uint32_t i, EvalArray *out);

/* ---- eval_result.c ------------------------------------------------------ */
EvalResult *result_assemble(Eval *e); /* NULL after reporting */

/* ---- eval_cells.c: the eval column of ops.def --------------------------- */
typedef void EvalCell(EvalStep *s);
extern EvalCell *const eval_cell[OP_COUNT];
#define OP(NAME, text, nargs, nres, sig, linear, flags, verify, infer, flops,  \
           grad, eval, emit)                                                   \
    EvalCell eval_##eval;
#include "ir/ops.def"
#undef OP

#endif
