/* plan.h - the execution plan of one class of ranks.
 *
 * The only thing that codegen and the runtime share; PLAN.md is its manual.
 * A plan is one little-endian blob of tables whose rows are the structs below,
 * so a loaded plan is its own memory image: plan_load checks everything and
 * hands out typed arrays.  Row 0 of `strings`, `exprs` and `places` means
 * "nothing": the empty text, the constant 0, nowhere.
 */
#ifndef MEGAC_RUNTIME_PLAN_H
#define MEGAC_RUNTIME_PLAN_H

#include "base/base.h"
#include "base/batch.h"
#include "base/lr.h"
#include "base/status.h"

#define PLAN_MAGIC "MEGACPLN"
enum { PLAN_VERSION = 1, PLAN_NONE = 0 };
enum {
    PLAN_MAX_DIMS = 8,
    PLAN_MAX_DEPTH = 16,
    PLAN_MAX_ARGS = 4096,
    PLAN_MAX_GROUP = 1 << 20,
    PLAN_MAX_CHANNELS = 1 << 14
};

/* The offset of a text in `strings`. */
typedef uint32_t PlanStr;

/* Rows [first, first + n) of another table. */
typedef struct {
    uint32_t first, n;
} PlanRange;

typedef enum {
    PLAN_F32,
    PLAN_BF16,
    PLAN_F16,
    PLAN_I32,
    PLAN_U8,
    PLAN_DTYPES
} PlanDtype;

/* ---- the job, the mesh --------------------------------------------------- */

typedef struct {
    PlanStr name;    /* of the model */
    PlanStr version; /* of the megac that wrote this */
    PlanStr class_name;
    uint32_t world;  /* ranks in the run */
    uint32_t events; /* EVENT and WAIT number below this */
    /* Reports metrics if expression `reporter` is 0 on the rank; a class that
     * never reports has has_reporter 0. */
    uint32_t reporter, has_reporter;
} PlanJob;

typedef enum {
    PLAN_TRAIN,   /* one step of training */
    PLAN_EVALUATE /* the loss of a batch, which changes no parameter */
} PlanProgramKind;

/* What is run as a whole, by all ranks at the same time.  Program 0 is the
 * step of training with the whole batch; others take fewer microbatches, or
 * only evaluate.  They share state, kernels and segments. */
typedef struct {
    uint32_t kind; /* PlanProgramKind */
    uint32_t segment;
    int64_t microbatches; /* per rank */
} PlanProgram;

/* A span of the flat address space, in which all addresses of the plan lie.
 * Memory 0 is the arena and starts at 0. */
typedef struct {
    PlanStr name;
    uint32_t kind; /* PlanMemoryKind */
    uint64_t start, bytes;
} PlanMemory;

typedef enum { PLAN_MEMORY_DEVICE, PLAN_MEMORY_HOST } PlanMemoryKind;

/* coordinate(rank) = rank / stride % size */
typedef struct {
    PlanStr name; /* "tp", "tp.1" */
    uint32_t size, stride, reserved;
} PlanAtom;

/* The plan is for those ranks whose coordinate of `atom` is `value`, for
 * every row. */
typedef struct {
    uint32_t atom, value;
} PlanMember;

/* constant + the sum over terms of coordinate(atom) * factor */
typedef struct {
    uint32_t atom, reserved;
    int64_t factor;
} PlanTerm;
typedef struct {
    PlanRange terms;
    int64_t constant;
} PlanExpr;

/* All ranks that differ from this one in the coordinates of `atoms` only,
 * ordered by these coordinates, major first.  With `picks`, only those whose
 * coordinate of the first atom is listed: the embedding group is the atom pp
 * with picks 0 and pp-1. */
typedef struct {
    PlanStr name;
    uint32_t reserved;
    PlanRange atoms; /* in lists */
    PlanRange picks; /* in lists; none: all */
} PlanGroup;

/* The rank whose coordinate of `atom` is (own + shift) mod size. */
typedef struct {
    PlanStr name;
    uint32_t atom;
    int32_t shift;
    uint32_t reserved;
} PlanPeer;

/* Stream 0 is compute.  Operations of one stream run one after another. */
typedef struct {
    PlanStr name;
    uint32_t kind; /* PlanStreamKind */
} PlanStream;

typedef enum {
    PLAN_STREAM_COMPUTE,
    PLAN_STREAM_COMM,
    PLAN_STREAM_COPY
} PlanStreamKind;

/* ---- training and data --------------------------------------------------- */

typedef enum { PLAN_ADAMW, PLAN_ADAM, PLAN_SGD } PlanOptimizer;
typedef struct {
    int64_t steps, global_batch, micro_batch, seq_length;
    int64_t microbatches; /* per rank and step */
    int64_t total_params; /* unpadded */
    uint64_t seed;
    double beta1, beta2, eps, momentum, weight_decay, clip_grad;
    LrSchedule lr;
    BatchRampup rampup;
    int64_t eval_interval, eval_steps; /* interval 0: never */
    double loss_scale; /* if scaled: fixed, or 0: dynamic */
    uint32_t scaled, reserved_scale;
    int64_t save_interval, save_keep; /* interval 0: after the last step */
    PlanStr save_dir; /* folder of the checkpoints, or none */
    PlanStr fixed; /* what does not change when a run is resumed, in lines
                    * "key = value" */
    uint32_t save_async; /* flag */
    uint32_t optimizer;  /* PlanOptimizer */
    uint32_t log_interval;
    PlanStr metrics; /* file name of metrics.jsonl, or none */
} PlanTraining;

typedef enum {
    PLAN_DATA_SYNTHETIC,
    PLAN_DATA_TEXT,
    PLAN_DATA_INDEXED
} PlanDataKind;

typedef struct {
    PlanStr path; /* the text file, or the prefix of .bin and .idx */
    PlanStr mask; /* the prefix of .bin and .idx with its weights, or none */
    double weight;
} PlanSource;

/* The settings of data.h's DataConfig and DataBatch.  Row 0 is for training,
 * row 1, if there is one, for evaluation. */
typedef struct {
    uint32_t kind;     /* PlanDataKind */
    PlanStr split;     /* "969,30,1", or none */
    uint32_t masked;   /* some source has a mask */
    uint32_t valid;    /* the validation part: of `split`, or made up */
    PlanRange sources; /* none if synthetic, one if text */
    int64_t vocab;     /* unpadded: every token is below it */
    uint32_t shard;    /* expression: which part of a microbatch is read here */
    uint32_t shards;   /* of how many */
    uint32_t part;     /* expression: which part of each sequence, */
    uint32_t parts;    /* of how many (base/zigzag.h) */
} PlanData;

/* ---- state --------------------------------------------------------------- */

/* A logical dimension.  Indices from `logical` to `padded` hold zeros. */
typedef struct {
    PlanStr name;
    uint32_t reserved;
    int64_t logical, padded;
} PlanDim;

/* The atoms (in lists, major first) that split one dimension of a field. */
typedef PlanRange PlanSplit;

/* What a stored copy of a tensor is for. */
typedef enum {
    PLAN_FIELD_PARAM,  /* what kernels compute with */
    PLAN_FIELD_MASTER, /* fp32 original of a bf16 param */
    PLAN_FIELD_GRAD,
    PLAN_FIELD_M, /* first moment, or SGD momentum */
    PLAN_FIELD_V, /* second moment */
    PLAN_FIELDS
} PlanFieldKind;

/* The local part: row-major over the dims, each padded / (product of its
 * atoms' sizes) long.  Layer slot j lies at address + j * layer_stride.
 *
 * A tensor may be a part of a buffer in which others lie beside it: then it
 * begins `inside` bytes behind the address, and indices of its first dimension
 * are `pitch` bytes apart (0: dense).
 *
 * With `held`, the buffer is a row of elements that zeros fill up, which ranks
 * may share out: this one holds `held` of them, from held times the number that
 * the atoms of `share` make on.  None: all of them. */
typedef struct {
    uint32_t kind;  /* PlanFieldKind */
    uint32_t dtype; /* PlanDtype */
    uint64_t address, layer_stride;
    uint64_t pitch, inside;
    int64_t held;    /* elements of a slot; 0: as many as the dims say */
    PlanRange share; /* in lists, major first */
    uint32_t splits; /* first row in splits, one row per dimension */
    uint32_t owner;  /* expression: this rank saves its part if 0 */
} PlanField;

typedef enum { PLAN_INIT_ZEROS, PLAN_INIT_ONES, PLAN_INIT_NORMAL } PlanInit;

/* A logical tensor, or one per held layer if the name contains "{l}".
 *
 * Export: its first row_dims dimensions form the rows, the others the columns
 * of a matrix (logical sizes), which is transposed if asked for and placed at
 * (row, column) of the exported tensor of rows x columns; columns 0 means a
 * vector.  GPT-2's q weight [g,r,d,h] goes to columns 0..h of c_attn [h,3h],
 * transposed.  If the exported name contains "{e}", every index of the first
 * dimension is a tensor of its own, of rows x columns. */
typedef struct {
    PlanStr name;
    uint32_t init; /* PlanInit */
    double init_std;
    PlanRange dims, fields;
    PlanRange layers; /* in lists: global numbers of the held layers, or none */
    PlanStr export_name;
    uint32_t row_dims, transpose, reserved;
    int64_t rows, columns, row_offset, column_offset;
} PlanTensor;

/* ---- what instructions refer to ------------------------------------------ */

/* What one run of a kernel costs, for profiles and predictions: operations of
 * matrix products, and bytes that move if these are not the operands'; or 0. */
typedef struct {
    double flops, bytes;
} PlanWork;

/* void symbol(void *const *ptr, const int64_t *imm, int tid, int nthreads) */
typedef struct {
    PlanStr symbol;  /* phase 2, after a barrier, is symbol_2 */
    uint32_t phases; /* 1 or 2 */
    uint32_t serial; /* runs on one thread */
    uint32_t ptrs, imms;
    uint32_t dtype; /* PlanDtype of the products in it */
    PlanWork work;
} PlanKernel;

typedef enum {
    PLAN_NO_ACTIVATION,
    PLAN_RELU,
    PLAN_GELU_TANH, /* the Gaussian error linear unit, by its tanh formula */
    PLAN_ACTIVATIONS
} PlanActivation;

/* Slots of experts are rows of A and C, or what is summed over; of each of
 * `parts` equal parts of them only the first few, as F[batch][part] says, are
 * in use.  The others are zero in A (or in B), and become zero in C. */
typedef enum {
    PLAN_ALL_FILLED,
    PLAN_ROWS_FILLED,
    PLAN_SUM_FILLED,
    PLAN_FILLINGS
} PlanFilling;

/* C[m,n] = activation((C +) A[m,k] B[k,n] + bias[n] + R[m,n]), row-major; ld*
 * is the distance between stored rows and stride_* between matrices of the
 * batch, in elements.  trans_a: A is stored as [k,m]; trans_b: B is stored as
 * [n,k].  R, the residual, is stored as C is. */
typedef struct {
    int64_t m, n, k, batch;
    int64_t lda, ldb, ldc;
    int64_t stride_a, stride_b, stride_c;
    uint8_t trans_a, trans_b;
    uint8_t type_a, type_b, type_c, type_bias; /* PlanDtype */
    uint8_t accumulate, bias;                  /* flags */
    uint8_t residual;                          /* flag; not with accumulate */
    uint8_t activation;                        /* PlanActivation */
    uint8_t filled; /* PlanFilling; with none of bias, residual, activation */
    uint8_t reserved;
    uint32_t parts;
} PlanGemm;

typedef enum {
    PLAN_ALL_REDUCE,
    PLAN_ALL_GATHER,
    PLAN_REDUCE_SCATTER,
    PLAN_ALL_TO_ALL,
    PLAN_BROADCAST,
    PLAN_SHIFT, /* each member's buffer goes to the next member */
    PLAN_COLLECTIVES
} PlanCollectiveKind;
typedef enum { PLAN_SUM, PLAN_MAX } PlanReduce;

/* `count` elements: of the whole buffer for all_reduce, broadcast and shift,
 * of one member's part for the others. */
typedef struct {
    uint32_t kind;   /* PlanCollectiveKind */
    uint32_t reduce; /* PlanReduce */
    uint32_t dtype;  /* PlanDtype */
    uint32_t group;
    uint32_t root; /* broadcast: the member that has the value */
    uint32_t reserved;
    int64_t count;
} PlanCollective;

/* Where an instruction comes from, for messages and profiles. */
typedef struct {
    PlanStr file;
    uint32_t line, col;
    PlanStr op;     /* text of the IR op */
    PlanStr tensor; /* name of the value it makes, or none */
    uint32_t reserved;
} PlanPlace;

/* ---- instructions -------------------------------------------------------- */

typedef enum { PLAN_ADDRESS, PLAN_INTEGER } PlanKind;
enum { PLAN_READ = 1, PLAN_WRITE = 2 };

/* The value is register[base - 1] (0 if base is 0) + expression[expr] +
 * offset.  An address covers `bytes` bytes from there and says how they are
 * accessed.  As an argument of CALL, iteration i adds i * stride.
 *
 * `buffer` names the buffer that the bytes belong to: what was written as one
 * cannot be read as another, which only the plan verifier looks at.  Numbers
 * below PLAN_STATE belong to one run of their segment, so that a later run
 * does not read leftovers; from there on they mean the same everywhere.  0 is
 * what the argument had that the register came from, or unknown.
 *
 * `content` says what a message or collective carries, in numbers that all
 * plans share; the verifier compares it on all sides.  0 is unknown. */
typedef struct {
    uint8_t kind;   /* PlanKind */
    uint8_t access; /* PLAN_READ | PLAN_WRITE */
    uint16_t base;
    uint32_t expr;
    int64_t offset, stride;
    uint64_t bytes;
    uint32_t buffer, content;
} PlanOperand;
#define PLAN_STATE (UINT32_C(1) << 31)
/* The buffer number of the field of a tensor that lies at `address`. */
uint32_t plan_state_buffer(uint64_t address);

typedef enum {
    PLAN_LAUNCH, /* index: kernel;     ptrs and imms in the kernel's order */
    PLAN_GEMM,   /* index: gemm;       A, B, C [, bias] [, residual] [, F] */
    PLAN_COLLECTIVE, /* index: collective; source, destination */
    PLAN_SEND,       /* index: peer; aux: channel; source */
    PLAN_RECV,       /* index: peer; aux: channel; destination */
    PLAN_COPY,       /* destination, source */
    PLAN_FILL,       /* aux: 4 bytes to repeat; destination */
    PLAN_EVENT,      /* index: event; marks a point of the stream */
    PLAN_WAIT,       /* index: event; the stream waits for the latest mark */
    PLAN_CALL,       /* index: segment; aux: count; [trips,] its arguments */
    PLAN_HOST,       /* index: PlanHostOp; aux: what; see there */
    PLAN_OPS
} PlanOp;

enum {
    PLAN_REVERSE = 1, /* CALL: i runs from count-1 down to 0 */
    PLAN_JOIN = 2,    /* SEND, RECV, COLLECTIVE: starts together with the
                         previous operation of its stream, not after it */
    PLAN_TRIPS = 4    /* CALL: the first operand is no argument but an f32,
                         read when the call is reached: i runs up to it, and
                         not to count, which is the most; not with REVERSE */
};

typedef enum {
    /* aux: PlanBatch; microbatch (integer), destination int32 [s, b] of this
     * part.  A label below 0 does not count. */
    PLAN_HOST_LOAD_BATCH,
    PLAN_HOST_SCALAR, /* aux: PlanScalar; destination f32 */
    PLAN_HOST_METRIC, /* aux: PlanMetric; source f32 */
    PLAN_HOST_GRADS,  /* gradients are final: reduced, not yet clipped */
    PLAN_HOST_OPS
} PlanHostOp;

typedef enum {
    PLAN_BATCH_TOKENS,
    PLAN_BATCH_LABELS,
    PLAN_BATCH_LOSS_MASK, /* how much each label counts */
    PLAN_BATCHES
} PlanBatch;

typedef enum {
    PLAN_SCALAR_LR,
    PLAN_SCALAR_ADAM_BIAS1,  /* 1 - beta1^step, step counted from 1 */
    PLAN_SCALAR_ADAM_BIAS2,  /* 1 - beta2^step */
    PLAN_SCALAR_INV_TARGETS, /* 1 / weight of all targets of the step, or 0 */
    PLAN_SCALAR_INV_BATCH,   /* 1 / number of samples of the step */
    PLAN_SCALAR_LOSS_SCALE,  /* see scaler.h */
    PLAN_SCALAR_STEP,        /* counted from 1 */
    PLAN_SCALAR_DRAWS,       /* key of the step's dropout (base/dropout.h) */
    PLAN_SCALARS
} PlanScalar;

typedef enum {
    PLAN_METRIC_LOSS,
    PLAN_METRIC_GRAD_NORM,
    PLAN_METRIC_AUX_LOSS,
    PLAN_METRIC_Z_LOSS,
    PLAN_METRIC_MAX_EXPERT_LOAD,
    PLAN_METRICS
} PlanMetric;

typedef struct {
    uint8_t op; /* PlanOp */
    uint8_t flags;
    uint16_t stream;
    uint32_t index, aux;
    uint32_t place;
    PlanRange operands;
} PlanInstr;

/* Operands of a CALL in front of its arguments. */
static inline uint32_t plan_call_skips(const PlanInstr *call)
{
    return call->flags & PLAN_TRIPS ? 1 : 0;
}

typedef struct {
    uint32_t kind; /* PlanKind */
    PlanStr name;
} PlanReg;

/* May only CALL segments of a smaller number. */
typedef struct {
    PlanStr name;
    uint32_t reserved;
    PlanRange instrs, regs;
} PlanSegment;

/* ---- plan.c: loading ----------------------------------------------------- */

typedef struct {
    void *blob;
    size_t bytes;
#define TABLE(field, Row, least, most, what)                                   \
    struct {                                                                   \
        const Row *v;                                                          \
        uint32_t n;                                                            \
    } field;
#include "runtime/plan_tables.def"
#undef TABLE
} Plan;

/* Copies and checks a blob.  Afterwards no index, address, extent, nesting or
 * enumeration in it can lead an executor astray.  Error: STATUS_INPUT. */
MC_MUST_USE Status plan_load(const void *bytes, size_t n, Plan *out);
void plan_free(Plan *p);

const char *plan_text(const Plan *p, PlanStr s);
size_t plan_dtype_bytes(uint32_t dtype);
const char *plan_dtype_name(uint32_t dtype);
const char *plan_activation_name(uint32_t activation);
const char *plan_field_name(uint32_t kind);
const char *plan_batch_name(uint32_t batch);
const char *plan_scalar_name(uint32_t scalar);
const char *plan_metric_name(uint32_t metric);
uint64_t plan_end_of_memory(const Plan *p);
/* The bytes that move: what the kernel's row says, or the operands cover. */
uint64_t plan_instr_bytes(const Plan *p, const PlanInstr *in);

/* ---- plan_rank.c: what depends on the rank ------------------------------- */

uint32_t plan_coordinate(const PlanAtom *a, uint32_t rank);
int64_t plan_expr_value(const Plan *p, uint32_t expr, uint32_t rank);
bool plan_has_rank(const Plan *p, uint32_t rank);
uint32_t plan_peer_rank(const Plan *p, uint32_t peer, uint32_t rank);
/* Members in order; at most `cap` are written.  Returns how many there are,
 * and the own position. */
uint32_t plan_group_ranks(const Plan *p, uint32_t group, uint32_t rank,
                          uint32_t *ranks, uint32_t cap, uint32_t *out_own);

/* A field's part on a rank: sizes, first logical index and elements from one
 * local index to the next per dimension; what lies without a gap is a run.  Its
 * first element lies `first` elements behind the field's address.  Those that
 * would lie before the address, or `held` elements behind it or further, are
 * not here. */
typedef struct {
    uint32_t ndims;
    int64_t size[PLAN_MAX_DIMS], start[PLAN_MAX_DIMS], step[PLAN_MAX_DIMS];
    int64_t elements;
    int64_t runs, run, gap; /* runs of `run` elements, begun `gap` apart */
    int64_t first, held;
} PlanPart;
/* Which of `n` elements that begin at `local` and are `step` apart are held:
 * the numbers from *out_from to below *out_to. */
void plan_part_clip(const PlanPart *p, int64_t local, int64_t n, int64_t step,
                    int64_t *out_from, int64_t *out_to);
void plan_field_part(const Plan *p, const PlanTensor *t, const PlanField *f,
                     uint32_t rank, PlanPart *out);
/* The field of a kind, or NULL. */
const PlanField *plan_tensor_field(const Plan *p, const PlanTensor *t,
                                   PlanFieldKind kind);
/* Replaces "{l}" by the layer; false if it does not fit. */
bool plan_layer_name(const char *pattern, uint32_t layer, char *out,
                     size_t cap);
/* The same for "{e}" and a part of the export. */
bool plan_part_name(const char *pattern, uint32_t part, char *out, size_t cap);
/* How many tensors one layer is exported as: the size of the first dimension
 * if the exported name contains "{e}", else 1. */
int64_t plan_export_parts(const Plan *p, const PlanTensor *t);

/* ---- plan_value.c: numbers ----------------------------------------------- */

/* Number i of an array of f32, bf16 or f16; stored to the nearest, ties to
 * even. */
void plan_store(uint32_t dtype, char *to, int64_t i, float value);
float plan_fetch(uint32_t dtype, const char *from, int64_t i);

/* ---- plan_build.c: writing ----------------------------------------------- */

typedef struct PlanBuilder PlanBuilder;

PlanBuilder *plan_builder_new(void);
void plan_builder_free(PlanBuilder *b);

/* Equal texts, lists, atoms and expressions are stored once. */
PlanStr plan_add_text(PlanBuilder *b, const char *s);
PlanRange plan_add_list(PlanBuilder *b, const uint32_t *items, uint32_t n);
uint32_t plan_add_atom(PlanBuilder *b, const char *name, uint32_t size,
                       uint32_t stride);
uint32_t plan_add_expr(PlanBuilder *b, int64_t constant, const PlanTerm *terms,
                       uint32_t n);
uint32_t plan_add_group(PlanBuilder *b, const char *name, const uint32_t *atoms,
                        uint32_t natoms, const uint32_t *picks,
                        uint32_t npicks);
uint32_t plan_add_peer(PlanBuilder *b, const char *name, uint32_t atom,
                       int32_t shift);
uint32_t plan_add_stream(PlanBuilder *b, const char *name, PlanStreamKind kind);
uint32_t plan_add_memory(PlanBuilder *b, const char *name, PlanMemoryKind kind,
                         uint64_t start, uint64_t bytes);
uint32_t plan_add_place(PlanBuilder *b, const char *file, uint32_t line,
                        uint32_t col, const char *op, const char *tensor);
uint32_t plan_add_kernel(PlanBuilder *b, const char *symbol, uint32_t phases,
                         bool serial, uint32_t ptrs, uint32_t imms);
uint32_t plan_add_kernel_work(PlanBuilder *b, PlanKernel k, const char *symbol);
uint32_t plan_add_gemm(PlanBuilder *b, const PlanGemm *g);
uint32_t plan_add_collective(PlanBuilder *b, const PlanCollective *c);
void plan_add_member(PlanBuilder *b, uint32_t atom, uint32_t value);
/* `mask` may be NULL. */
void plan_add_source(PlanBuilder *b, const char *path, const char *mask,
                     double weight);

/* A tensor, then its dimensions, then its fields.  Row numbers in `t` and `f`
 * (dims, fields, splits) are filled in here. */
uint32_t plan_add_tensor(PlanBuilder *b, const PlanTensor *t);
void plan_add_dim(PlanBuilder *b, const char *name, int64_t logical,
                  int64_t padded);
/* `splits` has one list of atoms (plan_add_list) per dimension. */
void plan_add_field(PlanBuilder *b, const PlanField *f,
                    const PlanSplit *splits);

/* Segments are written callee first.  Without a program, the last one is run
 * as a step of training. */
uint32_t plan_segment_begin(PlanBuilder *b, const char *name);
/* Returns the base to use in operands, from 1. */
uint16_t plan_add_reg(PlanBuilder *b, PlanKind kind, const char *name);
void plan_emit(PlanBuilder *b, PlanInstr in, const PlanOperand *operands,
               uint32_t n);
uint32_t plan_add_event(PlanBuilder *b);
void plan_add_program(PlanBuilder *b, PlanProgramKind kind, uint32_t segment,
                      int64_t microbatches);

PlanOperand plan_address(uint64_t address, uint64_t bytes, int access);
PlanOperand plan_reg_address(uint16_t base, int64_t offset, uint64_t bytes,
                             int access);
PlanOperand plan_integer(int64_t value);
PlanOperand plan_reg_integer(uint16_t base, int64_t offset);

/* Set before writing (a rampup that is not set: none); strings and expressions
 * in them come from this builder.  Job.events and data.sources are filled in here. */
PlanJob *plan_job(PlanBuilder *b);
PlanTraining *plan_training(PlanBuilder *b);
PlanData *plan_data(PlanBuilder *b);
/* A second row of data, a copy of the first but for its sources: those added
 * from here on. */
PlanData *plan_add_valid(PlanBuilder *b);

/* Appends the blob.  Everything it holds was checked by nobody yet. */
void plan_write(PlanBuilder *b, Buf *out);

/* ---- plan_print.c -------------------------------------------------------- */

/* The whole plan as text, deterministic. */
void plan_print(const Plan *p, Buf *out);
/* "a.yaml:9:25: all_reduce, add %12, of x, in segment main (instruction 7)" */
void plan_instr_text(const Plan *p, uint32_t instr, char *out, size_t cap);

#endif
