/* emit_priv.h - shared by the emit_*.c files. */
#ifndef MEGAC_EMIT_PRIV_H
#define MEGAC_EMIT_PRIV_H

#include "codegen/emit.h"
#include "codegen/kernels.h"
#include "runtime/plan.h"

/* ---- emit_kernels.c: every kernel once ----------------------------------- */

/* `text` defines `symbol`, and `symbol`_2 if it has two phases. */
typedef struct {
    const char *symbol, *text;
    uint32_t phases;
    bool serial;
    uint32_t ptrs, imms;
    uint32_t dtype; /* PlanDtype */
    PlanWork work;
} Kernel;

typedef struct {
    Arena *arena;
    Vec(Kernel) list;
} KernelTable;

/* ---- emit.c: the state of one stage's emission --------------------------- */

enum { EMIT_MAX_OPERANDS = PLAN_MAX_ARGS + 1 };

typedef struct Emit {
    Module *m;
    const MemPlan *mem;
    const Spec *spec;
    Dialect dialect;
    Arena *arena;
    KernelTable *kernels;
    PlanBuilder *b;
    uint32_t pp;
    uint32_t *segment; /* by FuncId: its segment, plus 1 */
    uint32_t *ending;  /* the same for the last iteration of a scan, if there
                          it does less */
    uint32_t *atom;    /* by mesh atom: its row in the plan */
    int64_t frame_start; /* address of the step function's frame */
    int64_t host_start;  /* address of the arena in host memory, and … */
    int64_t host_frame_start; /* … of the step function's frame in it */
    FuncId f;          /* the function that is being emitted */
    NodeId node;
    uint32_t pos;      /* of the node in f's body */
    bool main;         /* f is the step function */
    bool last;         /* f is emitted for the last iteration of a scan */
    bool failed;
} Emit;

/* Reports what cannot be emitted, at the current node (MC0530). */
void emit_fail(Emit *e, const char *fmt, ...) MC_PRINTF(2, 3);

/* ---- emit_operand.c: places as operands ---------------------------------- */

/* The registers of a segment, in this order: its frame, parameters, results,
 * the layer's part of each field it uses, the numbers of the microbatch and of
 * the layer, its frame in host memory. */
void emit_registers(Emit *e, FuncId f);

PlanOperand emit_value(Emit *e, ValueId v, int access);
PlanOperand emit_place(Emit *e, MemPlace place, int64_t bytes, int access);
/* Parameter `i` and result `i` of the current function. */
PlanOperand emit_param(Emit *e, uint32_t i, int access);
PlanOperand emit_result(Emit *e, uint32_t i, int access);
/* The field as the current function sees it: one layer or all layers held. */
PlanOperand emit_state(Emit *e, TensorId t, Field f, int access);
/* The same of the layer `next` further on. */
PlanOperand emit_state_next(Emit *e, TensorId t, Field f, int next, int access);
/* `bytes` at `offset` of the current node's workspace. */
PlanOperand emit_scratch(Emit *e, int64_t offset, int64_t bytes, int access);
/* The current node's callee's frame in host memory. */
PlanOperand emit_host_scratch(Emit *e, int64_t bytes);
PlanOperand emit_microbatch(Emit *e);
/* The number of the layer; 0 outside of layers. */
PlanOperand emit_layer(Emit *e);
/* Where a field's first slot lies. */
uint64_t emit_state_address(const Emit *e, const MemState *s);
/* The register of a layered field in function f's segment. */
uint16_t emit_state_register(const Emit *e, FuncId f, TensorId t, Field field,
                             int next);

/* The number whose digits are the coordinates of `atoms`, major first, times
 * `unit`: this rank's place in a split. */
uint32_t emit_digits(Emit *e, const uint8_t *atoms, uint32_t n, int64_t unit);
/* First logical index of `dim` of a value on this rank. */
uint32_t emit_start(Emit *e, ValueId v, char dim);

/* ---- emit.c: functions --------------------------------------------------- */

/* Whether a function does less in the last iteration of a scan. */
bool emit_has_ending(const Emit *e, FuncId f);
/* Whether `made` lies where `old` does, be it as what a caller carries. */
bool emit_lies_where(const Emit *e, ValueId made, ValueId old);

/* ---- emit.c: instructions ------------------------------------------------ */

void emit_instr(Emit *e, PlanInstr in, const PlanOperand *operands, uint32_t n);
void emit_copy(Emit *e, PlanOperand to, PlanOperand from);
void emit_fill(Emit *e, PlanOperand to, uint32_t word);
void emit_launch(Emit *e, const Kernel *k, const PlanOperand *operands,
                 uint32_t n);
PlanDtype emit_dtype(DType t);

/* ---- emit_cells.c: one cell per row of ir/ops.def ------------------------ */

typedef void EmitCell(Emit *e, const Node *n);
extern EmitCell *const emit_cells[OP_COUNT];

EmitCell emit_call, emit_row, emit_read, emit_write, emit_accum, emit_clear,
    emit_flatten, emit_unflatten, emit_host, emit_rope_table, emit_dot,
    emit_dots, emit_embed, emit_rows, emit_route, emit_view, emit_attention,
    emit_collective, emit_slice, emit_sendrecv, emit_blocks, emit_move,
    emit_event, emit_none;

/* ---- emit_kernels.c ------------------------------------------------------ */

/* Adds a kernel, or finds the one with the same symbol. */
const Kernel *kernel_add(KernelTable *t, Kernel k);
/* Prints a kernel under a provisional name, then under its own: `base` and a
 * hash of its text. */
typedef void KernelPrinter(Emit *e, const char *name, Buf *out,
                           KernelInfo *info);
const Kernel *kernel_print(Emit *e, const char *base, KernelPrinter *print,
                           KernelInfo *out_info);

/* The operands of a launch, in the order of the kernel's. */
typedef struct {
    Emit *e;
    PlanOperand list[EMIT_MAX_OPERANDS];
    uint32_t n;
} Launch;

void launch_push(Launch *l, PlanOperand o);
void launch_workspace(Launch *l, int64_t bytes); /* none of 0 bytes */
/* The key of the draws of a node's dropout. */
void launch_draws(Launch *l, const Node *n);
/* The numbers that `info` asks for. */
void launch_starts(Launch *l, const KernelInfo *info);

/* What emit_rules tells memplan. */
int64_t kernel_scratch(const Module *m, NodeId id, int dialect);
bool kernel_in_place(const Module *m, const Node *n, uint32_t arg,
                     uint32_t res);

/* ---- emit_attention.c ---------------------------------------------------- */

/* Workspace of the backward of an attention. */
int64_t attention_scratch(const Module *m, const Node *n, Dialect dialect);

/* ---- emit_tables.c: what a plan says about the job ----------------------- */

void emit_job(Emit *e);
void emit_tensors(Emit *e);

/* ---- package_keep.c ------------------------------------------------------ */

/* Moves what runs made in the output folder `old` over to `dir`; a name that
 * is in both is an error. */
MC_MUST_USE Status package_keep(const char *old, const char *dir);

#endif
