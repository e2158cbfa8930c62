/* tune_axes.c - which values of each axis are worth a question.
 *
 * One row per axis.  There are no rules here: a value is left out only where it
 * would be the same choice again (sp without tp, four ways to shard one
 * replica) or no whole number.  What an axis offers depends on the values of
 * those before it.
 */
#include "driver/tune.h"

/* ---- divisors ------------------------------------------------------------ */

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
    const char *word; /* of --vary */
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

void axis_values(const Space *x, Axis axis, const Choice *c, Values *out)
{
    out->n = 0;
    axes[axis].values(x, c, out);
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
