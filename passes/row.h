/* row.h - a row program taken apart: what `fuse` checks and codegen prints. */
#ifndef MEGAC_PASSES_ROW_H
#define MEGAC_PASSES_ROW_H

#include "ir/ir.h"

enum { ROW_MAX_DIMS = 12, ROW_PARTS = 64 };

typedef uint32_t DimSet; /* bit i: RowProgram.dim[i] */

typedef enum {
    REDUCE_NOT,
    REDUCE_NOTHING, /* one index along each reduced dimension: a copy */
    REDUCE_ROW,     /* over the inner dimensions, within a row */
    REDUCE_COLUMN   /* over rows: its result exists only after all of them */
} RowReduce;

typedef struct {
    ValueId id;
    NodeId def;     /* 0: parameter number `param` */
    uint32_t param;
    DimSet dims;
    DimSet removed; /* dimensions reduced on the way to this value */
    bool rotated;   /* depends on a rotate */
    bool late;      /* depends on a column reduction */
    uint32_t phase; /* row reductions on the longest way to it, if not late */
    RowReduce reduce;
    int64_t sum_at; /* REDUCE_COLUMN: its first f32 in a part's sums */
} RowValue;

/* Somewhere a value is stored: pointer `ptr` of the kernel. */
typedef struct {
    uint32_t value, ptr;
    DType dtype;
    bool accumulate;
    ValueId whole; /* what lies there: the value, or a join with others … */
    Span at;       /* … at these indices of j */
} RowSink;

/* Only dimensions with more than one local index appear in sets.  Outer
 * dimensions make the rows, in memory order; inner ones lie within a row.  j is
 * none where something is taken apart or joined: parts are loaded from and
 * stored into a value that lies in memory. */
typedef struct {
    const Module *m;
    FuncId func;
    uint32_t ndims;
    char dim[ROW_MAX_DIMS];
    int64_t size[ROW_MAX_DIMS];
    DimSet inner, outer;
    Vec(RowValue) values; /* parameters, then results of the body's nodes */
    bool partition;       /* has a part or a join */
    Vec(RowSink) sinks;
    uint32_t ptrs;        /* of parameters and sinks */
    uint32_t phases;      /* 1 + the largest phase */
    int64_t rows, parts;  /* parts: how the rows are split for column sums */
    int64_t sums;         /* f32 of one part */
    const char *refusal;
} RowProgram;

/* Takes f apart; `refusal` says if it cannot be printed. */
void row_program_make(const Module *m, FuncId f, RowProgram *out);
void row_program_free(RowProgram *p);

uint32_t row_value(const RowProgram *p, ValueId v);
uint32_t row_operand(const RowProgram *p, const RowValue *v, uint32_t i);
/* Number of elements of a set of dimensions. */
int64_t row_elems(const RowProgram *p, DimSet set);
int64_t row_local(const Module *m, ValueId v, char dim);
/* The dimension the vector loop runs over: the last inner one, or -1. */
int row_fastest(const RowProgram *p);

/* NULL if nodes, in an order in which they can run, fit into one row program;
 * else why not.  Operands that none of them makes are its parameters. */
const char *row_nodes_refusal(const Module *m, const NodeId *node, uint32_t n);
/* The letters with more than one index on a rank, bit 0 for 'a': of a value,
 * and of all that a node touches. */
uint32_t row_letters(const Module *m, ValueId v);
uint32_t row_node_letters(const Module *m, const Node *n);

#endif
