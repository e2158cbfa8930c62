/* eval.h - the reference evaluator: what a module means, at any level.
 *
 * Runs one training step on all ranks at once, in one process, over doubles
 * or over the prime field of 2^61 - 1 elements.  Field addition has no
 * rounding, so two modules that mean the same agree exactly whatever their
 * sharding; functions without a field meaning (exp, rsqrt, …) become fixed
 * random functions of their argument, so a function of a partial sum, a
 * reduction left out or done twice, or a stale value changes every residue.
 *
 * Inputs are functions of the seed and of logical names and indices, never of
 * the layout.  Padding (indices at or above Tensor.logical) starts as zero.
 */
#ifndef MEGAC_IR_EVAL_H
#define MEGAC_IR_EVAL_H

#include "ir/ir.h"

typedef enum { EVAL_FP64, EVAL_FIELD } EvalKind;

/* A scalar of the kind at hand. */
typedef union {
    double f;
    uint64_t residue;
} EvalNum;

/* An array in row-major order; dims[i] is one letter. */
typedef struct {
    uint8_t ndim;
    char dim[IR_MAX_DIMS];
    int64_t size[IR_MAX_DIMS];
    EvalNum *at;
} EvalArray;

/* Replaces default inputs.  A callback that returns false leaves the default;
 * one left NULL replaces nothing.  Numbers are converted to the kind. */
typedef struct {
    EvalKind kind;
    uint64_t seed;
    uint32_t program; /* 0: the step of training; see Module.programs */
    void *user;
    /* The initial value of a field at a logical index of one layer (0 for a
     * tensor that is not per layer); index is row-major in Tensor.logical. */
    bool (*state)(void *user, const Module *m, TensorId t, Field f,
                  uint32_t layer, int64_t index, double *out);
    /* Token or label of microbatch `mb` at logical (s, b). */
    bool (*batch)(void *user, const char *what, int64_t mb, int64_t s,
                  int64_t b, int64_t *out);
    /* A host scalar: "lr", … */
    bool (*host)(void *user, const char *what, double *out);
} EvalOptions;

typedef struct EvalResult EvalResult;

/* ---- eval.c ------------------------------------------------------------ */

/* Runs the step.  NULL after reporting to m->diag what went wrong: a deadlock
 * or mismatched messages, a read of state never written, replicas that
 * disagree, shapes that do not fit.  The report quotes the node. */
EvalResult *eval_run(Arena *a, Module *m, EvalKind kind, uint64_t seed);
EvalResult *eval_run_with(Arena *a, Module *m, const EvalOptions *options);

/* Runs one function on one rank: local arrays in, local arrays out. */
bool eval_func(Arena *a, Module *m, FuncId f, const EvalOptions *options,
               uint32_t rank, const EvalArray *args, EvalArray *out_results);

/* ---- eval_result.c ----------------------------------------------------- */

/* The value given to op `metric`; false if there was none. */
bool eval_get_metric(const EvalResult *r, const char *what, EvalNum *out);

/* A field after the step, assembled from all ranks, partial sums added, cut to
 * logical sizes.  False if no rank holds it or it was never written. */
bool eval_get_tensor(const EvalResult *r, TensorId t, Field f, uint32_t layer,
                     EvalArray *out);

/* Whether two runs left the same state and metrics: exactly in the field, in
 * fp64 within `tol` of each tensor's largest element.  Tensors match by name,
 * and so does what lies beside others in one.  Reports to d the tensor, index
 * and both values where they differ most. */
bool eval_equal(const EvalResult *ra, const EvalResult *rb, Diag *d,
                double tol);

#endif
