/* frontend.h - from the user's YAML to a Spec that every pass can trust.
 *
 * A Spec that spec_load returned satisfies every rule of check.c, and every
 * number in it is final: what the YAML left out has been derived.  Key names
 * are exactly the YAML's: spec->model.rope.base, spec->parallel.tp.  The keys
 * themselves stand in schema.def, the words they take in choices.def.
 */
#ifndef MEGAC_FRONTEND_H
#define MEGAC_FRONTEND_H

#include "base/base.h"
#include "base/batch.h"
#include "base/lr.h"
#include "frontend/hardware.h"

/* ---- the types of values ------------------------------------------------ */

#define CHOICE(type) typedef enum {
#define OPTION(enumerator, word, status) enumerator,
#define END_CHOICE(type)                                                       \
    }                                                                          \
    Spec##type;
#include "frontend/choices.def"
#undef CHOICE
#undef OPTION
#undef END_CHOICE

typedef int64_t SpecInt;
typedef double SpecFloat;
typedef bool SpecBool;
typedef const char *SpecText; /* NULL where the YAML says null */
typedef LrStyle SpecLrStyle;
typedef WsdStyle SpecWsdStyle;

typedef struct {
    int64_t *v;
    uint32_t n;
} SpecIntList;

/* v[i] is NULL where the YAML says null. */
typedef struct {
    const char **v;
    uint32_t n;
} SpecTextList;

/* v[i] is an enumerator, SpecCpComm for instance. */
typedef struct {
    int *v;
    uint32_t n;
} SpecChoiceList;

typedef enum { DATA_PREFIX, DATA_SYNTHETIC, DATA_TEXT } SpecDataKind;

typedef struct {
    SpecDataKind kind;
    const char *path; /* NULL for DATA_SYNTHETIC */
    double weight;
} SpecData;

typedef struct {
    SpecData *v;
    uint32_t n;
} SpecDataList;

/* ---- stages.c: which layers live where ---------------------------------- */

/* One chunk of consecutive layers on one pipeline rank. */
typedef struct {
    int64_t pp, chunk;
    int64_t first_layer, num_layers;
    bool has_embedding, has_head;
} Stage;

/* In the order in which a microbatch passes: chunk by chunk, on ranks 0 to
 * pp-1, in every second chunk of a V-shaped schedule on ranks pp-1 to 0. */
typedef struct {
    const Stage *v;
    uint32_t n;
} StageTable;

/* ---- layers.c: kinds of layers ------------------------------------------- */

/* What may differ between the layers of a model. */
typedef struct {
    bool experts; /* in the place of the MLP */
    SpecCpComm cp_comm;
    bool again; /* the backward computes it again from its input, … */
    int64_t group; /* … or from that of the first of so many layers */
} LayerKind;

typedef struct {
    const LayerKind *kinds;
    uint32_t nkinds;
    const uint8_t *of; /* by layer */
    uint32_t n;
} LayerTable;

/* ---- schedule_file.c: a schedule from a CSV file ------------------------- */

typedef struct {
    char kind; /* F, B, I or W: torch.distributed.pipelining's letters */
    uint32_t stage, microbatch;
    bool beside; /* an F that may run at once with the B after it */
} ScheduleCell;

typedef struct {
    ScheduleCell *v;
    uint32_t n;
} ScheduleRow;

typedef struct {
    ScheduleRow *rows; /* one per pipeline rank */
    uint32_t *rank;    /* by stage */
    uint32_t nstages;
} ScheduleFile;

/* ---- the specification -------------------------------------------------- */

/* Numbers that follow from several keys and are no keys themselves. */
typedef struct {
    int64_t padded_vocab; /* vocab_size up to a multiple of divisor * tp */
    int64_t dense_dp;     /* replicas of a dense weight: world/(tp*cp*pp) */
    int64_t expert_dp;    /* replicas of an expert: world/(etp*ep*pp) */
    int64_t microbatches; /* per replica and step: gbs/(mbs*dense_dp) */
    int64_t head_pieces;  /* of a rank's sequence, that have logits in turn */
    int64_t rotary_dim;   /* rotated channels of a head; 0 without RoPE */
} SpecDerived;

#define SECTION(path, help) struct {
#define KEY(section, name, type, fallback, range, names, status, help)         \
    Spec##type name;
#define END(name)                                                              \
    }                                                                          \
    name;
#define SpecLIST_OF(type) SpecChoiceList
typedef struct {
#include "frontend/schema.def"
    SpecDerived derived;
    StageTable stages;
    LayerTable layers;
    const char *schedule_path; /* the file that parallel.schedule names */
    const ScheduleFile *schedule_file;
    const Hardware *hardware; /* that target.hardware names; NULL: local */
    Loc *locs; /* by row of schema.def */
    Loc by_default; /* that of every value that nobody gave */
} Spec;
#undef SECTION
#undef KEY
#undef END
#undef SpecLIST_OF

/* ---- grid.c ------------------------------------------------------------- */

typedef enum {
    GRID_TP, GRID_CP, GRID_EP, GRID_DP, GRID_PP, GRID_AXES
} GridAxis;

/* A reading of the rank number: coordinate = rank / stride % size. */
typedef struct {
    int64_t size[GRID_AXES], stride[GRID_AXES];
    int axis[GRID_AXES]; /* fastest first */
} Grid;

extern const char *const grid_names[GRID_AXES];

/* The axes that an order names, then those it leaves out.  NULL, or where the
 * order goes wrong. */
const char *grid_order(const char *order, int out_axis[GRID_AXES]);
Grid grid_make(const int64_t size[GRID_AXES], const char *order);
/* The grid of the dense layers, or of the experts. */
Grid spec_grid(const Spec *s, bool expert);

/* ---- load.c ------------------------------------------------------------- */

/* Reads, merges, checks and derives.  `sets` are the arguments of --set
 * ("parallel.tp=4"), later ones winning.  NULL after errors, all of which are
 * in `d`.  The result lives in `a`. */
Spec *spec_load(Arena *a, Diag *d, const char *path, const char *const *sets,
                int nsets);

/* What a command line changes of a file: arguments of --set, then flags of
 * Megatron-LM, each an argument of its own. */
typedef struct {
    const char *const *sets, *const *flags;
    uint32_t nsets, nflags;
} SpecChanges;

Spec *spec_load_changed(Arena *a, Diag *d, const char *path,
                        const SpecChanges *changes);
/* What a whole command line of Megatron-LM means, its defaults included. */
Spec *spec_import_megatron(Arena *a, Diag *d, const char *text);
/* The same from memory; includes are relative to the working directory. */
Spec *spec_parse(Arena *a, Diag *d, const char *name, const char *text,
                 const char *const *sets, int nsets);

/* ---- share.c: the same training, shared out in another way --------------- */

/* All take a copy of a loaded Spec in which keys of `parallel`,
 * micro_batch_size or recompute were set anew, in this order, and return the
 * code of the first broken rule, whose message is in `d` unless that counts
 * only, or NULL.  What they build lives in `a`. */

/* The split into stages, by pp, vpp, the schedule and how layers are spread. */
const char *spec_split(Arena *a, Diag *d, Spec *s);
/* Once split: the rules about degrees, which the other keys do not change. */
const char *spec_degrees(Arena *a, Diag *d, Spec *s);
/* Then: derives what follows (dp and microbatch_group where they are 0) and
 * asks the rules that are left. */
const char *spec_share(Arena *a, Diag *d, Spec *s);

/* ---- spec.c ------------------------------------------------------------- */

/* Where a value comes from; path as in the YAML: "parallel.tp". */
Loc spec_loc(const Spec *s, const char *path);
/* The same specification at the smallest legal sizes: degrees, stages and all
 * switches stay, dimensions shrink to a handful. */
Spec *spec_shrink(Arena *a, const Spec *s);
LrSchedule spec_lr(const Spec *s);
/* How the batch grows, if it does. */
BatchRampup spec_rampup(const Spec *s);
/* All samples of training, in steps of the whole batch: what the learning rate
 * counts. */
int64_t spec_full_steps(const Spec *s);
/* Whether the MLP has a gate beside the up projection. */
bool spec_gated(const Spec *s);
const LayerKind *spec_layer(const Spec *s, int64_t layer);
/* The layer behind the last one of the stage that holds `layer`. */
int64_t spec_stage_end(const Spec *s, int64_t layer);
StageTable stage_table(const Spec *s);
/* Whether the second half of the stages runs up the ranks again. */
bool spec_v_shaped(const Spec *s);
/* The YAML's word for a module: "core_attn". */
const char *spec_module_word(SpecModule module);

/* ---- flops.c ------------------------------------------------------------ */

/* What the model needs for a step of training, forward and backward, and how
 * many tokens that takes in. */
double spec_flops(const Spec *s);
int64_t spec_tokens(const Spec *s);

/* ---- ranks.c: how the grid of ranks is cut ------------------------------- */

/* What attention does with cp: so many ranks with heads of their own, and so
 * many that pass keys round; all keys come to the others. */
typedef struct {
    int64_t heads, ring;
} CpSplit;

/* Whether attention does so in any layer. */
bool spec_uses_cp_comm(const Spec *s, SpecCpComm comm);
CpSplit spec_cp_split(const Spec *s, SpecCpComm comm);
/* The ranks from which on they have groups of keys of their own; those below
 * have the same ones and other queries. */
int64_t spec_group_border(const Spec *s, SpecCpComm comm);
/* Over how many ranks heads are split, at most. */
int64_t spec_head_ranks(const Spec *s);

enum { SPEC_BORDERS = 24 };
/* Where the axes of ranks are cut, in no order and not each once; returns how
 * many. */
uint32_t spec_borders(const Spec *s, int64_t *out);

/* ---- print.c ------------------------------------------------------------ */

/* The value of a key as YAML; path as in the YAML: "parallel.tp". */
const char *spec_text(Arena *a, const Spec *s, const char *path);
/* The normal form: YAML with every key, which parses to the same Spec. */
void spec_print(const Spec *s, Buf *out);
/* Of it, only what was given: the rest follows from it again. */
void spec_print_given(const Spec *s, Buf *out);
/* What a run may not change when it is resumed, in lines "key = value". */
void spec_print_fixed(const Spec *s, Buf *out);
/* print_json.c: the same as one JSON object. */
void spec_json(const Spec *s, Buf *out);
/* JSON Schema, draft 7, of the YAML. */
void schema_json(Buf *out);
/* docs/SCHEMA.md. */
void schema_markdown(Buf *out);

/* ---- megatron_page.c ---------------------------------------------------- */

/* docs/MEGATRON.md. */
void megatron_markdown(Buf *out);

#endif
