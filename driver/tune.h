/* tune.h - what the files of `megac tune` share.
 *
 *     SPEC ── tune_space ──▶ every legal choice ── tune_memory, tune_time ──▶
 *     the best by estimate ── tune_exact ──▶ planned, simulated ── tune_report
 *
 * A Choice is a row of numbers, one per axis; what it means for a Spec is known
 * to tune_space.c alone, and whether that Spec is right to the frontend.
 */
#ifndef MEGAC_DRIVER_TUNE_H
#define MEGAC_DRIVER_TUNE_H

#include "driver/cli.h"
#include "frontend/frontend.h"
#include "frontend/hardware.h"

#include <jansson.h>

/* ---- choices ------------------------------------------------------------- */

/* In the order in which they are chosen: those of the split into stages
 * first, since all others have it in common. */
typedef enum {
    AXIS_PP, AXIS_SCHEDULE, AXIS_VPP, AXIS_SPLIT,
    AXIS_TP, AXIS_SP, AXIS_CP, AXIS_EP, AXIS_ETP, AXIS_DP, AXIS_MBS,
    AXIS_SHARDING, AXIS_RECOMPUTE, AXIS_OFFLOAD,
    AXES
} Axis;

/* A value of an axis that leaves the keys as the SPEC has them. */
enum { AS_GIVEN = -1 };

typedef struct {
    int32_t v[AXES];
} Choice;

typedef struct {
    const Spec *base;
    int64_t gpus;
    bool varies[AXES];
} Space;

/* ---- tune_axes.c: what may be chosen ------------------------------------- */

/* How layers are spread over stages: evenly, or counting what else the first
 * and the last stage have as a layer. */
typedef enum { SPLIT_EVEN, SPLIT_BOTH, SPLIT_LOSS, SPLIT_EMBEDDING } SplitKind;

/* What is computed again: nothing, modules, or all but the input of a layer. */
typedef enum {
    AGAIN_NOTHING,
    AGAIN_ATTENTION,
    AGAIN_MLP,
    AGAIN_BOTH,
    AGAIN_ALL
} AgainKind;

enum { VALUES_MAX = 1024 };

typedef struct {
    int32_t v[VALUES_MAX];
    uint32_t n;
} Values;

/* All axes; or those of a list of words, "tp,pp,mbs".  CLI_USAGE for an unknown
 * word. */
CliExit space_open(Space *out, const Spec *base, int64_t gpus,
                   const char *words);
/* Of an axis, once those before it are chosen. */
void axis_values(const Space *x, Axis axis, const Choice *c, Values *out);

/* ---- tune_space.c: which choices are legal ------------------------------- */

/* Why so many choices were dropped: a diagnostic's code, or "memory" or "bug",
 * and what was said of the first. */
typedef struct {
    const char *code, *words;
    uint64_t n;
} Reason;

typedef Vec(Reason) Reasons;

void reason_count(Arena *a, Reasons *r, const char *code, const char *words);

typedef struct {
    uint64_t tried, legal;
    Reasons reasons; /* why the others are not */
} SpaceCount;

/* Calls `visit` with every legal choice, in one order always.  `d` is the one
 * that the SPEC was loaded with, and is empty afterwards. */
void space_walk(Arena *a, Diag *d, const Space *space, SpaceCount *count,
                void (*visit)(void *to, const Choice *c, const Spec *s),
                void *to);
/* The Spec of a choice, which lives in `a`; NULL with an error in `d` if it is
 * not legal. */
const Spec *space_spec(Arena *a, Diag *d, const Space *space, const Choice *c);
/* What is nearest to the SPEC itself on these GPUs. */
Choice space_own(const Space *space);

/* ---- tune_share.c: what one rank has to hold and to do ------------------- */

/* Of a rank with layers of average kind.  Elements, not bytes. */
typedef struct {
    double tokens;  /* of a microbatch, before tp splits them */
    double rows;    /* of those, the rank's part of the residual stream */
    double slots;   /* rows of the experts it has, with spare ones */
    double qkv, out;            /* columns of both products of attention */
    double ffn, shared, expert; /* inner columns: all of the rank's */
    double gates;               /* products into the inner columns: 1 or 2 */
    double attention_params, mlp_params, expert_params; /* of a layer */
    double embed_params, head_params;
    double moe; /* share of layers with experts */
    double element; /* bytes of a weight or an activation */
    double replicas, expert_replicas;
} Share;

Share share_of(const Spec *s);
/* Layers of a pipeline rank. */
int64_t share_layers(const Spec *s, int64_t pp);

/* ---- tune_memory.c ------------------------------------------------------- */

enum {
    BYTES_PARAMS, BYTES_GRADS, BYTES_OPTIMIZER, BYTES_ACTIVATIONS,
    BYTES_WORKSPACE, BYTES_COMM, BYTES_TERMS
};

extern const char *const bytes_names[BYTES_TERMS];

typedef struct {
    double term[BYTES_TERMS], total;
} Bytes;

/* What the heaviest rank needs at least. */
Bytes memory_bound(const Spec *s, const Share *x);

/* ---- tune_time.c --------------------------------------------------------- */

/* Seconds of a step, and what they are spent on. */
typedef struct {
    double step, compute, bubble, tp, cp, ep, pp, dp, optimizer;
} Times;

Times time_estimate(const Spec *s, const Share *x, const Hardware *h);

/* ---- tune_exact.c: planned and simulated --------------------------------- */

enum { EXACT_WORDS = 200, EXACT_CODE = 8, EXACT_AXIS = 16 };

/* How much is done for a candidate.  A sketch plans two steps with few
 * microbatches and adds what each further one takes; the others plan the step.
 * Only a compile's plan takes time over addresses, which the others find
 * quickly and perhaps not as low; the time of a step is the same. */
typedef enum { PLAN_SKETCH, PLAN_STEP, PLAN_COMPILE } PlanEffort;

/* What came out of planning one candidate; plain bytes, as they come through a
 * pipe. */
typedef struct {
    CliExit code;          /* CLI_DONE; CLI_FIT; or why it has no plan: */
    char reason[EXACT_CODE], words[EXACT_WORDS];
    PlanEffort effort;
    uint32_t stage;        /* the heaviest */
    int64_t bytes[BYTES_TERMS], total;
    bool lowest;           /* no addresses need less in all */
    double step;
    /* Not of a sketch. */
    double tokens_per_s_per_gpu, mfu;
    double compute, bubble, host; /* of the busiest stage */
    double exposed;               /* waits for messages, … */
    char axis[EXACT_AXIS];        /* … most of it for those of this axis */
} Exact;

/* Plans and simulates specs at once, on all cores, each in a process of its
 * own, so that none can end the others. */
MC_MUST_USE Status exact_plan(const Spec *const *specs, uint32_t n,
                              PlanEffort effort, int64_t memory,
                              Exact *out);

/* ---- tune_search.c ------------------------------------------------------- */

enum { TUNE_TOP_MAX = 64 };

typedef struct {
    Choice choice;
    const Spec *spec;
    Bytes bound;
    Times estimate;
    uint64_t order; /* among all choices */
    Exact exact;
    double measured; /* seconds; 0: it was not run */
} Candidate;

typedef Vec(Candidate) Candidates;

typedef struct {
    Arena *arena;
    Diag *diag;
    const Space *space;
    int64_t memory; /* bytes of a rank */
    uint32_t top;
    SpaceCount count;
    uint64_t too_large; /* legal, but more than memory_bound allows */
    uint64_t too_long;  /* legal, but with a program that takes long to plan */
    Candidates best;    /* by estimate, that may fit */
    Candidates found;   /* planned and fitting, the fastest first */
    uint32_t planned;
    double seconds_asked, seconds_sketched, seconds_planned;
} Search;

/* Finds the `top` fastest ways; found.n is 0 if nothing fits. */
MC_MUST_USE Status search_run(Search *x);
void search_free(Search *x);
/* Whether planning its program, or a sketch of it, would take too long. */
bool search_is_long(const Spec *s);
/* The SPEC itself on these GPUs; NULL if it is not legal, with errors in
 * x->diag. */
MC_MUST_USE Status search_own(Search *x, Candidate *out, bool *out_legal);

/* ---- tune_report.c ------------------------------------------------------- */

/* Which of bytes_names is most. */
int report_largest(const Exact *e);
/* What limits a candidate, in a sentence that lives in `a`. */
const char *report_why(Arena *a, const Candidate *c, int64_t memory);
void report_table(Arena *a, const Search *x, FILE *to);
void report_dropped(const Search *x, FILE *to);
json_t *report_json(Arena *a, const Search *x);
/* "77.7 GB"; units of 1000. */
const char *report_size(Arena *a, double bytes);
/* "tp 8 with sp, cp 1, …": what varies. */
const char *report_layout(Arena *a, const Spec *s);

/* ---- tune_none.c --------------------------------------------------------- */

/* Nothing fits: says what came nearest, and what would. */
CliExit none_fits(Search *x);

/* ---- tune_measure.c ------------------------------------------------------ */

/* Compiles and runs the first candidates on this machine, and puts the fastest
 * first. */
CliExit measure_best(Search *x);

#endif
