/* passes.h - the passes of the compiler and the driver that runs them.
 *
 * A pass rewrites a Module in place.  passes.def lists them in order with the
 * properties each needs and makes; passes_run checks those, runs the pass
 * under a timer, dumps and verifies.  A pass returns false after reporting to
 * m->diag.
 */
#ifndef MEGAC_PASSES_H
#define MEGAC_PASSES_H

#include "frontend/frontend.h"
#include "ir/ir.h"

typedef struct {
    const char *name;
    bool (*run)(Module *m, const Spec *spec);
    uint32_t needs, makes;
    bool extends; /* adds to what the program computes */
    const char *help;
} Pass;

/* ---- driver.c ----------------------------------------------------------- */
extern const Pass passes[];
extern const uint32_t passes_count;
const Pass *pass_find(const char *name); /* NULL if unknown */

typedef struct {
    const char *stop_after;  /* NULL: run all */
    const char *dump_after;  /* a pass's name, "all", or NULL */
    FILE *dump_to;
    const char *dump_dir;    /* instead of dump_to: NN-PASS.mir files */
    bool verify_each;        /* execute before and after each pass */
    double *seconds;         /* per pass, or NULL; passes_count of them */
} PassOptions;

/* Runs every pass that the module's properties still call for. */
bool passes_run(Module *m, const Spec *spec, const PassOptions *options);
/* Runs one pass with its checks. */
bool pass_run(const Pass *p, Module *m, const Spec *spec);

/* ---- rewrite.c: copying nodes and replacing values ----------------------- */

/* A map from old values to new ones; unmapped values map to themselves. */
typedef struct {
    uint32_t first;
    Vec(ValueId) to; /* by old ValueId from `first` on; 0: itself */
} ValueMap;

void vmap_set(ValueMap *map, ValueId from, ValueId to);
ValueId vmap_get(const ValueMap *map, ValueId v);
void vmap_copy(ValueMap *to, const ValueMap *from);
void vmap_free(ValueMap *map);

/* Copies layout, name and hint of one value to its copy. */
void value_like(Module *m, ValueId from, ValueId to);

/* Appends a copy of `n` to f with operands mapped, and maps its results to the
 * copies' (types, layouts, names and hints are kept).  Returns the copy. */
NodeId node_copy(Module *m, FuncId f, NodeId n, ValueMap *map);
/* A copy of a function, named "FROM.SUFFIX" and, if there is one already, by a
 * number behind; maps all of its values. */
FuncId func_copy(Module *m, FuncId from, const char *suffix, ValueMap *map);
/* Replaces operands and function results in place. */
void func_substitute(Module *m, FuncId f, const ValueMap *map);
/* Appends to f what takes the place of its old node `n`, whose operands have
 * been replaced already, and maps n's results; or returns false: n stays. */
typedef bool NodeRewrite(void *self, FuncId f, NodeId n, ValueMap *map);
/* Puts f's body together again, node by node in order. */
void func_rebuild(Module *m, FuncId f, NodeRewrite *rewrite, void *self);
/* Whether there is a node of this op in f's body. */
bool func_has(const Module *m, FuncId f, Op op);
/* Lets the first `count` results of `made`, which become like them, take the
 * place of those of `n`. */
void results_replace(Module *m, const Node *n, uint32_t count, NodeId made,
                     ValueMap *map);

/* ---- clean.c ------------------------------------------------------------- */
/* Drops nodes without effect whose results nobody uses, unused saved results
 * and parameters of calls, and functions nobody calls. */
void clean_dead(Module *m);
/* Merges equal nodes (op, operands, attributes) within each function. */
void clean_cse(Module *m);

/* ---- one pass per file --------------------------------------------------- */
bool pass_grad(Module *m, const Spec *spec);
bool pass_ring(Module *m, const Spec *spec);
bool pass_optimizer(Module *m, const Spec *spec);
bool pass_layout(Module *m, const Spec *spec);
bool pass_reshard(Module *m, const Spec *spec);
bool pass_stage(Module *m, const Spec *spec);
bool pass_split_backward(Module *m, const Spec *spec);
bool pass_pipeline(Module *m, const Spec *spec);
bool pass_prefetch(Module *m, const Spec *spec);
bool pass_fuse(Module *m, const Spec *spec);
bool pass_streams(Module *m, const Spec *spec);

/* ---- schedule.c: who computes what when ---------------------------------- */

/* W computes the gradients of weights.  In a schedule with W's, B computes
 * those of activations only; in one without, all. */
typedef enum { ACTION_F = 'F', ACTION_B = 'B', ACTION_W = 'W' } ActionKind;

typedef struct {
    ActionKind kind;
    uint32_t chunk, microbatch;
    bool beside; /* a forward that may run at once with the backward after it */
} Action;

typedef struct {
    bool forward;        /* F's only */
    uint32_t pp, chunks, microbatches;
    uint32_t group;      /* interleaved: microbatches per visit of a chunk */
    uint32_t *stage;     /* [rank][chunk]: its number in the stage table */
    const ScheduleFile *file; /* to be followed, or NULL */
    Vec(Action) *ranks;  /* one list per pp coordinate */
} Schedule;

/* The action lists of spec->parallel.schedule; memory in `a`'s lifetime is the
 * lists' headers, schedule_free releases the lists. */
Schedule *schedule_make(Arena *a, const Spec *spec);
/* Leaves the F's alone. */
void schedule_keep_forward(Schedule *s);
void schedule_free(Schedule *s);

static inline uint32_t schedule_stage(const Schedule *s, uint32_t rank,
                                      uint32_t chunk)
{
    return s->stage[rank * s->chunks + chunk];
}

/* ---- schedule_sim.c ------------------------------------------------------ */

/* Of one chunk and microbatch: forward, gradients of activations, gradients of
 * weights.  Without W's in the schedule a B costs b + w.  both: a forward and a
 * whole backward at once, which begin and end together; 0: none are. */
typedef struct {
    double f, b, w, both;
} ScheduleCosts;

typedef struct {
    double makespan;     /* in units of the costs given */
    double bubble;       /* idle share of the busiest rank's makespan */
    double idle;         /* longest wait of a rank between its first and last
                          * action */
    uint32_t *in_flight; /* per pp coordinate: most forwards whose backward, all
                          * of it, is still to come */
    double *forward, *backward, *weights; /* end of F, B, W by [stage][mb] */
    double **begin, **end; /* per pp coordinate: of each of its actions */
} ScheduleTimes;

/* Executes the lists with no time for messages.  False with a message in *why
 * if they deadlock or miss work. */
bool schedule_simulate(Arena *a, const Schedule *s, ScheduleCosts cost,
                       ScheduleTimes *out, const char **why);
/* Whether some backward is split into B and W. */
bool schedule_splits(const Schedule *s);

#endif
