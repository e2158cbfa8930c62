/* schedule_zero.c - schedules that run the gradients of weights when nothing
 * else can run.
 *
 * F, B and W of one chunk and microbatch are three actions.  A B is due as soon
 * as the next stage has run its own; a W only has to come some time after its
 * B, and fills what would be bubbles.
 *
 * zb-v and dualpipe-v have two chunks per rank in the shape of a V: the first
 * half of the stages runs down the ranks and the second half up again, so that
 * the first rank also holds the last stage.
 */
#include "passes/schedule_priv.h"

/* How many F, B, W of each chunk a rank has run. */
typedef struct {
    Schedule *s;
    uint32_t rank;
    uint32_t f[2], b[2], w[2];
    Vec(uint32_t) later; /* chunks whose B has run without its W */
    uint32_t caught_up;  /* … of which so many have by now */
} Line;

/* Beyond the last microbatch there is nothing to do. */
static void next(Line *l, ActionKind kind, uint32_t chunk)
{
    uint32_t *count = kind == ACTION_F   ? l->f
                      : kind == ACTION_B ? l->b
                                         : l->w;

    if (count[chunk] < l->s->microbatches)
        schedule_act(l->s, l->rank, kind, chunk, count[chunk]++);
}

/* ---- ZB-H1 (Qi et al. 2023, 3.1) ----------------------------------------- */

/* 1F1B, with the W of rank r r microbatches behind: every rank keeps as many
 * microbatches as 1F1B keeps on the first. */
void schedule_zb_h1(Schedule *s, uint32_t rank)
{
    Line l = {.s = s, .rank = rank};
    uint32_t m = s->microbatches, ahead = MC_MIN(s->pp - rank - 1, m);

    for (uint32_t i = 0; i < ahead; i++)
        next(&l, ACTION_F, 0);
    for (uint32_t i = 0; i < m; i++) {
        next(&l, ACTION_F, 0);
        next(&l, ACTION_B, 0);
        if (i >= rank)
            next(&l, ACTION_W, 0);
    }
    for (uint32_t i = 0; i < m; i++)
        next(&l, ACTION_W, 0);
}

/* ---- ZB-V (Qi et al. 2024, Controllable Memory) -------------------------- */

static void back(Line *l, uint32_t chunk)
{
    next(l, ACTION_B, chunk);
    next(l, ACTION_W, chunk);
}

static void zb_v_warm_up(Line *l, uint32_t below)
{
    for (uint32_t i = 0; i < 2 * below + 1; i++)
        next(l, ACTION_F, 0);
    for (uint32_t i = 0; i < l->rank; i++) {
        next(l, ACTION_F, 1);
        next(l, ACTION_F, 0);
    }
    for (uint32_t i = 0; i <= below; i++) {
        next(l, ACTION_F, 1);
        back(l, 1);
    }
}

static void zb_v_cool_down(Line *l, uint32_t below)
{
    for (uint32_t i = 0; i < l->rank; i++) {
        next(l, ACTION_B, 0);
        next(l, ACTION_B, 1);
    }
    for (uint32_t i = 0; i <= below; i++) {
        next(l, ACTION_B, 0);
        next(l, ACTION_W, 0);
    }
    for (uint32_t chunk = 2; chunk-- > 0;)
        for (uint32_t i = 0; i < l->s->microbatches; i++)
            next(l, ACTION_W, chunk);
}

void schedule_zb_v(Schedule *s, uint32_t rank)
{
    Line l = {.s = s, .rank = rank};
    uint32_t below = s->pp - rank - 1, m = s->microbatches;

    zb_v_warm_up(&l, below);
    for (uint32_t i = s->pp; i < MC_MAX(2 * s->pp - 1, m); i++) {
        next(&l, ACTION_F, 0);
        back(&l, 0);
        next(&l, ACTION_F, 1);
        back(&l, 1);
    }
    zb_v_cool_down(&l, below);
}

/* ---- DualPipe-V (DeepSeek-AI 2025) --------------------------------------- */

/* A forward and a backward that a rank can overlap. */
static void both(Line *l, uint32_t forward, uint32_t backward)
{
    next(l, ACTION_F, forward);
    vec_last(&l->s->ranks[l->rank]).beside = true;
    back(l, backward);
}

static void dualpipe_warm_up(Line *l, uint32_t below)
{
    for (uint32_t i = 0; i < 2 * below; i++)
        next(l, ACTION_F, 0);
    for (uint32_t i = 0; i <= l->rank; i++) {
        next(l, ACTION_F, 0);
        next(l, ACTION_F, 1);
    }
    for (uint32_t i = 0; i < below; i++) {
        back(l, 1);
        next(l, ACTION_F, 1);
    }
}

static void back_apart(Line *l, uint32_t chunk)
{
    next(l, ACTION_B, chunk);
    vec_push(&l->later, chunk);
}

static void catch_up(Line *l)
{
    next(l, ACTION_W, l->later.v[l->caught_up++]);
}

/* Half of these backwards run whole, the others and all that follow apart. */
static void dualpipe_cool_down(Line *l, uint32_t below)
{
    uint32_t rank = l->rank, half = (rank + 1) / 2;

    for (uint32_t i = 0; i <= rank; i++) {
        bool apart[2] = {i >= half, i > half || (i == half && rank % 2)};
        for (uint32_t chunk = 2; chunk-- > 0;)
            (apart[chunk] ? back_apart : back)(l, chunk);
    }
    for (uint32_t i = 0; i < below; i++) {
        catch_up(l);
        back_apart(l, 0);
    }
    for (uint32_t i = 0; i <= rank; i++)
        catch_up(l);
}

/* Takes at least 2 pp microbatches.  At the bottom of the V the first pair runs
 * in turn, which makes the bubble smaller. */
void schedule_dualpipe_v(Schedule *s, uint32_t rank)
{
    Line l = {.s = s, .rank = rank};
    uint32_t below = s->pp - rank - 1;

    dualpipe_warm_up(&l, below);
    for (uint32_t i = s->pp + below; i < s->microbatches; i++) {
        if (below == 0 && i == s->pp) {
            next(&l, ACTION_F, 0);
            back(&l, 1);
        } else {
            both(&l, 0, 1);
        }
        both(&l, 1, 0);
    }
    for (uint32_t i = 0; i < below; i++) {
        back(&l, 1);
        both(&l, 1, 0);
    }
    dualpipe_cool_down(&l, below);
    vec_free(&l.later);
}
