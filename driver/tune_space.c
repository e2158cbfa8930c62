/* tune_space.c - every way to share a training out among so many ranks.
 *
 * A depth-first walk over the values of all axes asks the frontend about each
 * combination.  What many choices have in common is asked once, and counts once
 * if it breaks a rule.
 *
 *     pp schedule vpp split │ tp sp cp ep etp dp │ mbs sharding recompute offl.
 *                  spec_split           spec_degrees                 spec_share
 */
#include "driver/tune.h"

/* How far a choice is made: its stages, its degrees, all of it. */
typedef enum { STOP_SPLIT, STOP_DEGREES, STOP_NOWHERE } Stop;

typedef struct {
    const Space *space;
    SpaceCount *count;
    Arena *keep, *split_arena, *leaf_arena;
    Diag *diag; /* only counts, but for words */
    Choice choice;
    Spec split;   /* with the stages of the choice */
    Spec degrees; /* and its degrees */
    void (*visit)(void *to, const Choice *c, const Spec *s);
    void *to;
} Walk;

/* ---- a choice as a Spec -------------------------------------------------- */

static void set_split(Spec *s, int32_t kind)
{
    if (kind == AS_GIVEN)
        return;
    s->parallel.pp_layout = NULL;
    s->parallel.pp_first_layers = s->parallel.pp_last_layers = 0;
    s->parallel.account_for_embedding =
        kind == SPLIT_BOTH || kind == SPLIT_EMBEDDING;
    s->parallel.account_for_loss = kind == SPLIT_BOTH || kind == SPLIT_LOSS;
}

/* The keys that decide the split into stages. */
static void set_stages(Spec *s, const Choice *c)
{
    s->parallel.pp = c->v[AXIS_PP];
    s->parallel.vpp = c->v[AXIS_VPP];
    s->parallel.schedule = (SpecSchedule)c->v[AXIS_SCHEDULE];
    s->parallel.microbatch_group = 0;
    if (s->parallel.schedule != SCHED_CSV) {
        s->schedule_file = NULL;
        s->schedule_path = NULL;
    }
    set_split(s, c->v[AXIS_SPLIT]);
}

static int modules_attention[] = {MODULE_CORE_ATTN};
static int modules_dense[] = {MODULE_MLP, MODULE_CORE_ATTN};
static int modules_moe[] = {MODULE_MOE, MODULE_CORE_ATTN};

static void set_recompute(Spec *s, int32_t kind)
{
    static const SpecRecompute granularities[] = {
        [AGAIN_NOTHING] = RECOMPUTE_NONE,
        [AGAIN_ATTENTION] = RECOMPUTE_SELECTIVE,
        [AGAIN_MLP] = RECOMPUTE_SELECTIVE,
        [AGAIN_BOTH] = RECOMPUTE_SELECTIVE,
        [AGAIN_ALL] = RECOMPUTE_FULL};
    int *inner = s->model.moe.num_experts ? modules_moe : modules_dense;

    if (kind == AS_GIVEN)
        return;
    s->training.recompute.granularity = granularities[kind];
    s->training.recompute.method = RECOMPUTE_UNIFORM;
    s->training.recompute.num_layers = 1;
    s->training.recompute.modules = (SpecChoiceList){modules_attention, 1};
    if (kind == AGAIN_MLP || kind == AGAIN_BOTH)
        s->training.recompute.modules =
            (SpecChoiceList){inner, kind == AGAIN_BOTH ? 2 : 1};
}

static void set_degrees(Spec *s, int64_t gpus, const Choice *c)
{
    s->parallel.world_size = gpus;
    s->parallel.dp = c->v[AXIS_DP];
    s->parallel.tp = c->v[AXIS_TP];
    s->parallel.sp = c->v[AXIS_SP];
    s->parallel.cp = c->v[AXIS_CP];
    s->parallel.ep = c->v[AXIS_EP];
    s->parallel.etp = c->v[AXIS_ETP];
}

static void set_batch(Spec *s, const Choice *c)
{
    s->parallel.sharding = (SpecSharding)c->v[AXIS_SHARDING];
    s->training.micro_batch_size = c->v[AXIS_MBS];
    set_recompute(s, c->v[AXIS_RECOMPUTE]);
    if (c->v[AXIS_OFFLOAD] != AS_GIVEN)
        s->training.offload.optimizer = c->v[AXIS_OFFLOAD] / 100.0;
}

/* Up to `stop`: the code of a broken rule, or NULL. */
static const char *settle(Arena *a, Diag *d, const Space *x, const Choice *c,
                          Stop stop, Spec *s)
{
    const char *code;

    *s = *x->base;
    set_stages(s, c);
    code = spec_split(a, d, s);
    if (code || stop == STOP_SPLIT)
        return code;
    set_degrees(s, x->gpus, c);
    code = spec_degrees(a, d, s);
    if (code || stop == STOP_DEGREES)
        return code;
    set_batch(s, c);
    return spec_share(a, d, s);
}

const Spec *space_spec(Arena *a, Diag *d, const Space *x, const Choice *c)
{
    Spec *s = arena_new_of(a, Spec);

    return settle(a, d, x, c, STOP_NOWHERE, s) ? NULL : s;
}

Choice space_own(const Space *x)
{
    const Spec *s = x->base;

    return (Choice){{
        [AXIS_PP] = (int32_t)s->parallel.pp,
        [AXIS_SCHEDULE] = (int32_t)s->parallel.schedule,
        [AXIS_VPP] = (int32_t)s->parallel.vpp,
        [AXIS_SPLIT] = AS_GIVEN,
        [AXIS_TP] = (int32_t)s->parallel.tp,
        [AXIS_SP] = s->parallel.sp,
        [AXIS_CP] = (int32_t)s->parallel.cp,
        [AXIS_EP] = (int32_t)s->parallel.ep,
        [AXIS_ETP] = (int32_t)s->parallel.etp,
        [AXIS_MBS] = (int32_t)s->training.micro_batch_size,
        [AXIS_SHARDING] = (int32_t)s->parallel.sharding,
        [AXIS_RECOMPUTE] = AS_GIVEN,
        [AXIS_OFFLOAD] = AS_GIVEN,
    }};
}

/* ---- what was dropped ---------------------------------------------------- */

static Reason *reason_find(const Reasons *r, const char *code)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (strcmp(r->v[i].code, code) == 0)
            return &r->v[i];
    return NULL;
}

void reason_count(Arena *a, Reasons *r, const char *code, const char *words)
{
    Reason *known = reason_find(r, code);

    if (known)
        known->n++;
    else
        vec_push(r, ((Reason){arena_strdup(a, code), arena_strdup(a, words),
                              1}));
}

/* The words are made once for each code. */
static void drop(Walk *w, const char *code, Stop stop)
{
    Reason *known = reason_find(&w->count->reasons, code);
    Spec again;

    w->count->tried++;
    if (known) {
        known->n++;
        return;
    }
    diag_count_only(w->diag, false);
    settle(w->keep, w->diag, w->space, &w->choice, stop, &again);
    reason_count(w->keep, &w->count->reasons, code, diag_first_text(w->diag));
    diag_count_only(w->diag, true);
}

/* ---- the walk ------------------------------------------------------------ */

static bool enter_stages(Walk *w)
{
    const char *code;

    arena_reset(w->split_arena);
    w->split = *w->space->base;
    set_stages(&w->split, &w->choice);
    code = spec_split(w->split_arena, w->diag, &w->split);
    if (code)
        drop(w, code, STOP_SPLIT);
    return !code;
}

static bool enter_degrees(Walk *w)
{
    const char *code;

    arena_reset(w->leaf_arena);
    w->degrees = w->split;
    set_degrees(&w->degrees, w->space->gpus, &w->choice);
    code = spec_degrees(w->leaf_arena, w->diag, &w->degrees);
    if (code)
        drop(w, code, STOP_DEGREES);
    return !code;
}

static void leaf(Walk *w)
{
    Spec s = w->degrees;
    const char *code;

    arena_reset(w->leaf_arena);
    set_batch(&s, &w->choice);
    code = spec_share(w->leaf_arena, w->diag, &s);
    if (code) {
        drop(w, code, STOP_NOWHERE);
        return;
    }
    w->count->tried++;
    w->count->legal++;
    w->visit(w->to, &w->choice, &s);
}

static void descend(Walk *w, Axis axis)
{
    Values values;

    if ((axis == AXIS_TP && !enter_stages(w)) ||
        (axis == AXIS_MBS && !enter_degrees(w)))
        return;
    if (axis == AXES) {
        leaf(w);
        return;
    }
    axis_values(w->space, axis, &w->choice, &values);
    for (uint32_t i = 0; i < values.n; i++) {
        w->choice.v[axis] = values.v[i];
        descend(w, axis + 1);
    }
}

void space_walk(Arena *a, Diag *d, const Space *space, SpaceCount *count,
                void (*visit)(void *to, const Choice *c, const Spec *s),
                void *to)
{
    Walk w = {.space = space, .count = count, .keep = a, .visit = visit,
              .to = to, .split_arena = arena_new(), .leaf_arena = arena_new(),
              .diag = d};

    diag_count_only(d, true);
    descend(&w, 0);
    diag_count_only(d, false);
    diag_clear(d);
    arena_free(w.split_arena);
    arena_free(w.leaf_arena);
}
