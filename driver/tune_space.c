/* tune_space.c - every way to share a training out among so many ranks.
 *
 * One row per axis says which values are worth a question; a depth-first walk
 * asks the frontend about each combination.  There are no rules here: a value
 * is left out only where it would be the same choice again (sp without tp, four
 * ways to shard one replica) or no whole number.  The split into stages is made
 * once for all choices that have it in common.
 *
 *     pp schedule vpp split │ tp sp cp ep etp dp mbs sharding recompute offload
 *                      spec_split                                   spec_share
 */
#include "driver/tune.h"

enum { VALUES_MAX = 1024 };

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

typedef struct {
    const Space *space;
    SpaceCount *count;
    Arena *keep, *split_arena, *leaf_arena;
    Diag *diag; /* only counts, but for words */
    Choice choice;
    Spec split; /* with the stages of the choice */
    void (*visit)(void *to, const Choice *c, const Spec *s);
    void *to;
} Walk;

typedef struct {
    int32_t v[VALUES_MAX];
    uint32_t n;
} Values;

/* ---- the values of an axis ----------------------------------------------- */

static void add(Values *out, int64_t value)
{
    if (out->n < VALUES_MAX)
        out->v[out->n++] = (int32_t)value;
}

static void add_divisors(Values *out, int64_t of)
{
    for (int64_t i = 1; i * i <= of; i++)
        if (of % i == 0)
            add(out, i);
    for (int64_t i = out->n; i-- > 0;)
        if (out->v[i] != of / out->v[i])
            add(out, of / out->v[i]);
}

/* Ranks that none of the degrees chosen so far has. */
static int64_t ranks_left(const Space *x, const Choice *c)
{
    return x->gpus / c->v[AXIS_PP];
}

static void values_pp(const Space *x, const Choice *c, Values *out)
{
    (void)c;
    if (x->varies[AXIS_PP])
        add_divisors(out, x->gpus);
    else
        add(out, x->base->parallel.pp);
}

/* 1f1b with several chunks is the interleaved schedule, so that vpp may vary
 * where the schedule stays. */
static void values_schedule(const Space *x, const Choice *c, Values *out)
{
    static const SpecSchedule all[] = {SCHED_1F1B, SCHED_INTERLEAVED,
                                       SCHED_ZB_H1, SCHED_ZB_V,
                                       SCHED_DUALPIPE_V};
    SpecSchedule given = x->base->parallel.schedule;
    bool either = given == SCHED_1F1B || given == SCHED_INTERLEAVED;
    size_t n = x->varies[AXIS_SCHEDULE] ? MC_LEN(all) : either ? 2 : 0;

    if (c->v[AXIS_PP] == 1 && (n || given != SCHED_CSV)) {
        add(out, given == SCHED_GPIPE && !n ? SCHED_GPIPE : SCHED_1F1B);
        return;
    }
    for (size_t i = 0; i < n; i++)
        add(out, all[i]);
    if (n == 0)
        add(out, given);
}

static void add_chunks(const Space *x, int64_t pp, Values *out)
{
    int64_t layers = x->base->model.num_layers;

    for (int64_t v = 2; v <= (layers + 2) / pp; v++)
        for (int64_t extra = 0; extra <= 2; extra++)
            if ((layers + extra) % (pp * v) == 0) {
                add(out, v);
                break;
            }
}

static void values_vpp(const Space *x, const Choice *c, Values *out)
{
    int64_t given = x->base->parallel.vpp;
    int32_t schedule = c->v[AXIS_SCHEDULE];
    bool varies = x->varies[AXIS_VPP];

    if (schedule == SCHED_INTERLEAVED && varies)
        add_chunks(x, c->v[AXIS_PP], out);
    else if (schedule == SCHED_INTERLEAVED && given > 1)
        add(out, given);
    else if (schedule == SCHED_CSV)
        add(out, given);
    else if (schedule == SCHED_ZB_V || schedule == SCHED_DUALPIPE_V)
        add(out, 2);
    else if (schedule != SCHED_INTERLEAVED &&
             (varies || given == 1 || c->v[AXIS_PP] == 1 ||
              x->varies[AXIS_SCHEDULE]))
        add(out, 1);
}

/* Whether the SPEC says itself which stage has which layers. */
static bool split_is_given(const Spec *s)
{
    return s->parallel.pp_layout || s->parallel.pp_first_layers ||
           s->parallel.pp_last_layers;
}

static void values_split(const Space *x, const Choice *c, Values *out)
{
    bool same = c->v[AXIS_PP] == x->base->parallel.pp &&
                c->v[AXIS_VPP] == x->base->parallel.vpp;

    if (!x->varies[AXIS_SPLIT] || (split_is_given(x->base) && same))
        add(out, AS_GIVEN);
    if (!x->varies[AXIS_SPLIT])
        return;
    add(out, SPLIT_EVEN);
    for (int32_t i = SPLIT_BOTH; i <= SPLIT_EMBEDDING && c->v[AXIS_PP] > 1; i++)
        add(out, i);
}

static void values_tp(const Space *x, const Choice *c, Values *out)
{
    if (x->varies[AXIS_TP])
        add_divisors(out, ranks_left(x, c));
    else
        add(out, x->base->parallel.tp);
}

static void values_sp(const Space *x, const Choice *c, Values *out)
{
    if (c->v[AXIS_TP] == 1) {
        add(out, false);
    } else if (x->varies[AXIS_SP]) {
        add(out, true);
        add(out, false);
    } else {
        add(out, x->base->parallel.sp);
    }
}

static void values_cp(const Space *x, const Choice *c, Values *out)
{
    int64_t left = ranks_left(x, c);

    if (!x->varies[AXIS_CP])
        add(out, x->base->parallel.cp);
    else if (left % c->v[AXIS_TP] == 0)
        add_divisors(out, left / c->v[AXIS_TP]);
}

static void values_ep(const Space *x, const Choice *c, Values *out)
{
    if (x->varies[AXIS_EP] && x->base->model.moe.num_experts)
        add_divisors(out, ranks_left(x, c));
    else
        add(out, x->base->parallel.ep);
}

/* 0: as tp. */
static void values_etp(const Space *x, const Choice *c, Values *out)
{
    if (!x->varies[AXIS_ETP] || x->base->model.moe.num_experts == 0) {
        add(out, x->base->parallel.etp);
        return;
    }
    add(out, 0);
    for (int32_t etp = 1; etp < c->v[AXIS_TP]; etp++)
        if (c->v[AXIS_TP] % etp == 0)
            add(out, etp);
}

/* 0: what the other degrees leave over. */
static void values_dp(const Space *x, const Choice *c, Values *out)
{
    (void)c;
    add(out, x->varies[AXIS_DP] ? 0 : x->base->parallel.dp);
}

/* Replicas of a dense weight, less those over cp; at least 1. */
static int64_t replicas(const Space *x, const Choice *c)
{
    int64_t model = (int64_t)c->v[AXIS_TP] * c->v[AXIS_CP];

    return MC_MAX(ranks_left(x, c) / model, 1);
}

static void values_mbs(const Space *x, const Choice *c, Values *out)
{
    int64_t gbs = x->base->training.global_batch_size;

    if (!x->varies[AXIS_MBS])
        add(out, x->base->training.micro_batch_size);
    else if (gbs % replicas(x, c) == 0)
        add_divisors(out, gbs / replicas(x, c));
    else
        add(out, 1);
}

static void values_sharding(const Space *x, const Choice *c, Values *out)
{
    bool one = replicas(x, c) * c->v[AXIS_CP] == 1;

    if (!x->varies[AXIS_SHARDING])
        add(out, (int64_t)x->base->parallel.sharding);
    else
        for (int32_t i = SHARD_NONE;
             i <= (one ? SHARD_NONE : SHARD_OPTIM_GRADS_PARAMS); i++)
            add(out, i);
}

static void values_recompute(const Space *x, const Choice *c, Values *out)
{
    (void)c;
    if (!x->varies[AXIS_RECOMPUTE])
        add(out, AS_GIVEN);
    else
        for (int32_t i = AGAIN_NOTHING; i <= AGAIN_ALL; i++)
            add(out, i);
}

/* Percent of the optimizer state. */
static void values_offload(const Space *x, const Choice *c, Values *out)
{
    (void)c;
    if (!x->varies[AXIS_OFFLOAD]) {
        add(out, AS_GIVEN);
        return;
    }
    add(out, 0);
    add(out, 100);
}

typedef void (*ValuesOf)(const Space *x, const Choice *c, Values *out);

static const struct {
    const char *word;
    ValuesOf values;
} axes[AXES] = {
    [AXIS_PP] = {"pp", values_pp},
    [AXIS_SCHEDULE] = {"schedule", values_schedule},
    [AXIS_VPP] = {"vpp", values_vpp},
    [AXIS_SPLIT] = {"split", values_split},
    [AXIS_TP] = {"tp", values_tp},
    [AXIS_SP] = {"sp", values_sp},
    [AXIS_CP] = {"cp", values_cp},
    [AXIS_EP] = {"ep", values_ep},
    [AXIS_ETP] = {"etp", values_etp},
    [AXIS_DP] = {"dp", values_dp},
    [AXIS_MBS] = {"mbs", values_mbs},
    [AXIS_SHARDING] = {"sharding", values_sharding},
    [AXIS_RECOMPUTE] = {"recompute", values_recompute},
    [AXIS_OFFLOAD] = {"offload", values_offload},
};

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
    int *inner = s->model.moe.num_experts ? modules_moe : modules_dense;

    if (kind == AS_GIVEN)
        return;
    s->training.recompute.granularity = kind == AGAIN_NOTHING ? RECOMPUTE_NONE
                                        : kind == AGAIN_ALL ? RECOMPUTE_FULL
                                                            : RECOMPUTE_SELECTIVE;
    s->training.recompute.method = RECOMPUTE_UNIFORM;
    s->training.recompute.num_layers = 1;
    s->training.recompute.modules = (SpecChoiceList){modules_attention, 1};
    if (kind == AGAIN_MLP || kind == AGAIN_BOTH)
        s->training.recompute.modules =
            (SpecChoiceList){inner, kind == AGAIN_BOTH ? 2 : 1};
}

static void set_ranks(Spec *s, int64_t gpus, const Choice *c)
{
    s->parallel.world_size = gpus;
    s->parallel.dp = c->v[AXIS_DP];
    s->parallel.tp = c->v[AXIS_TP];
    s->parallel.sp = c->v[AXIS_SP];
    s->parallel.cp = c->v[AXIS_CP];
    s->parallel.ep = c->v[AXIS_EP];
    s->parallel.etp = c->v[AXIS_ETP];
    s->parallel.sharding = (SpecSharding)c->v[AXIS_SHARDING];
    s->training.micro_batch_size = c->v[AXIS_MBS];
    set_recompute(s, c->v[AXIS_RECOMPUTE]);
    if (c->v[AXIS_OFFLOAD] != AS_GIVEN)
        s->training.offload.optimizer = c->v[AXIS_OFFLOAD] / 100.0;
}

const Spec *space_spec(Arena *a, Diag *d, const Space *x, const Choice *c)
{
    Spec *s = arena_new_of(a, Spec);

    *s = *x->base;
    set_stages(s, c);
    if (spec_split(a, d, s))
        return NULL;
    set_ranks(s, x->gpus, c);
    return spec_share(a, d, s) ? NULL : s;
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
static void drop(Walk *w, const char *code, bool staged)
{
    Reason *known = reason_find(&w->count->reasons, code);
    Spec again = staged ? w->split : *w->space->base;

    if (known) {
        known->n++;
        return;
    }
    diag_count_only(w->diag, false);
    if (staged) {
        set_ranks(&again, w->space->gpus, &w->choice);
        spec_share(w->keep, w->diag, &again);
    } else {
        set_stages(&again, &w->choice);
        spec_split(w->keep, w->diag, &again);
    }
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
    if (!code)
        return true;
    w->count->tried++;
    drop(w, code, false);
    return false;
}

static void leaf(Walk *w)
{
    Spec s = w->split;
    const char *code;

    arena_reset(w->leaf_arena);
    set_ranks(&s, w->space->gpus, &w->choice);
    code = spec_share(w->leaf_arena, w->diag, &s);
    w->count->tried++;
    if (code) {
        drop(w, code, true);
        return;
    }
    w->count->legal++;
    w->visit(w->to, &w->choice, &s);
}

static void descend(Walk *w, Axis axis)
{
    Values values;

    if (axis == AXIS_TP && !enter_stages(w))
        return;
    if (axis == AXES) {
        leaf(w);
        return;
    }
    values.n = 0;
    axes[axis].values(w->space, &w->choice, &values);
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

/* ---- which axes ---------------------------------------------------------- */

static Axis axis_find(const char *word, size_t n)
{
    Axis i = 0;

    while (i < AXES &&
           (strlen(axes[i].word) != n || memcmp(axes[i].word, word, n) != 0))
        i++;
    return i;
}

CliExit space_open(Space *out, const Spec *base, int64_t gpus,
                   const char *words)
{
    *out = (Space){.base = base, .gpus = gpus};
    for (Axis i = 0; i < AXES; i++)
        out->varies[i] = !words;
    while (words && *words) {
        size_t n = strcspn(words, ",");
        Axis axis = axis_find(words, n);
        if (axis == AXES)
            return cli_usage("--vary: `%.*s` is none of pp, schedule, vpp, "
                             "split, tp, sp, cp, ep, etp, dp, mbs, sharding, "
                             "recompute, offload", (int)n, words);
        out->varies[axis] = true;
        words += n + (words[n] == ',');
    }
    return CLI_DONE;
}
