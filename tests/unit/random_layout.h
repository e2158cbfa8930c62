/* random_layout.h - for tests: how drawn specs are parallel.
 *
 * Degrees come first; what has to suit them - stages, microbatches, the lengths
 * and heads that ranks share - is drawn as a multiple or a divisor of them.
 */
#ifndef MEGAC_TESTS_RANDOM_LAYOUT_H
#define MEGAC_TESTS_RANDOM_LAYOUT_H

#include "tests/unit/random_draw.h"

/* What later choices have to suit. */
typedef struct {
    int64_t tp, pp, cp, ep, dp, vpp, layers;
    int64_t etp;
    int64_t left;   /* how many times more ranks there may be */
    int64_t heads;  /* ranks that attention splits heads over, at most */
    int64_t m;      /* microbatches … */
    int64_t least;  /* … of a smaller batch */
    bool experts, shared, dense; /* kinds of MLP */
    bool folded;    /* experts on the ranks of the dense layers */
    bool grouped;   /* interleaved: whole groups of microbatches */
    bool fixed;     /* as many microbatches as a file has */
} Shape;

static inline bool draw_is(const char *word, const char *other)
{
    return strcmp(word, other) == 0;
}

/* ---- degrees ------------------------------------------------------------- */

/* A degree, and with it so many times more ranks; 1 if they are too many. */
static inline int64_t draw_degree(Draw *d, Shape *x, const char *words)
{
    int64_t n = draw_number(d, words);

    if (n > x->left)
        n = 1;
    x->left /= n;
    return n;
}

/* Of a list of sizes one that divides n; 1 if it does not. */
static inline int64_t draw_divisor(Draw *d, const char *words, int64_t n)
{
    int64_t size = draw_number(d, words);

    return n % size ? 1 : size;
}

/* Experts on ranks of their own, or folded over those of tp, cp and dp. */
static inline void draw_expert_grid(Draw *d, Shape *x)
{
    int64_t ranks = x->tp * x->cp * x->dp * x->ep;
    bool given = draw_once_in(d, 2);

    x->etp = x->tp;
    if (given) {
        x->etp = draw_divisor(d, "1 1 2 4", ranks / x->ep);
        draw_int(d, "parallel.etp", x->etp);
    }
    if (x->folded) {
        x->ep = draw_divisor(d, "2 2 3 4 8", ranks / x->etp);
        draw_int(d, "parallel.world_size", ranks * x->pp);
    } else {
        draw_int(d, "parallel.dp", x->dp);
    }
    draw_int(d, "parallel.ep", x->ep);
}

static inline void draw_degrees(Draw *d, Shape *x)
{
    bool sp;

    x->left = draw_number(d, "4 8 8 8 16 16 32");
    x->folded = x->experts && draw_once_in(d, 2);
    x->ep = x->experts && !x->folded ? draw_degree(d, x, "1 2 2 3 4") : 1;
    x->tp = draw_degree(d, x, "1 1 2 2 3 4 8");
    x->pp = draw_degree(d, x, "1 1 2 2 3 4");
    x->cp = draw_degree(d, x, "1 1 1 2 3 4");
    x->dp = draw_degree(d, x, "1 1 2 3 4");
    if (x->experts)
        draw_expert_grid(d, x);
    else
        draw_int(d, "parallel.dp", x->dp);
    draw_int(d, "parallel.tp", x->tp);
    draw_int(d, "parallel.pp", x->pp);
    draw_int(d, "parallel.cp", x->cp);
    sp = x->tp > 1 && (x->ep > 1 || draw_once_in(d, 2));
    draw_put(d, "parallel.sp", sp ? "true" : "false");
}

/* With experts both grids need the same pipelines, which pp at an end gives. */
static inline void draw_order(Draw *d, const Shape *x)
{
    const char *axis[] = {"tp", "cp", "ep", "dp", "pp"};
    uint64_t mixed = x->experts && x->pp > 1 ? 4 : 5;

    if (!draw_once_in(d, 3))
        return;
    for (uint64_t n = mixed; n > 1; n--) {
        uint64_t i = draw_next(d) % n;
        const char *last = axis[n - 1];
        axis[n - 1] = axis[i];
        axis[i] = last;
    }
    draw_put(d, "parallel.order",
             arena_printf(d->arena, "%s-%s-%s-%s-%s", axis[0], axis[1],
                          axis[2], axis[3], axis[4]));
}

/* ---- stages -------------------------------------------------------------- */

static const char draw_file[] =
    MEGAC_SOURCE_DIR "/tests/golden/schedule/bfs-2-2-4.csv";

/* Schedules that fit the number of chunks. */
static inline const char *draw_schedule(Draw *d, Shape *x)
{
    const char *schedules = "auto gpipe 1f1b zb-h1";

    x->vpp = draw_number(d, x->pp == 1   ? "1"
                            : x->pp == 4 ? "1 1 2"
                                         : "1 1 2 2 3");
    if (x->pp == 1)
        schedules = "auto gpipe 1f1b";
    else if (x->vpp == 2)
        schedules = "interleaved interleaved zb-v dualpipe-v";
    else if (x->vpp > 2)
        schedules = "auto interleaved";
    draw_int(d, "parallel.vpp", x->vpp);
    if (x->pp != 2 || x->vpp != 2 || !draw_once_in(d, 4))
        return draw_set(d, "parallel.schedule", schedules);
    draw_put(d, "parallel.schedule", draw_file);
    return draw_file;
}

/* As many microbatches as the schedule takes, and for a smaller batch. */
static inline void draw_microbatches(Draw *d, Shape *x)
{
    const char *schedule = draw_schedule(d, x);
    int64_t group = x->pp + draw_number(d, "0 0 1 2");

    x->least = 1;
    x->m = draw_number(d, "1 2 3 5");
    x->fixed = draw_is(schedule, draw_file);
    x->grouped = x->vpp > 1 && (draw_is(schedule, "interleaved") ||
                                draw_is(schedule, "auto"));
    if (x->fixed)
        x->m = 4;
    if (draw_is(schedule, "dualpipe-v")) {
        x->least = 2 * x->pp;
        x->m = x->least + draw_number(d, "0 1 2");
    }
    if (x->grouped) {
        x->least = group;
        x->m = group + draw_number(d, "0 1 1") * (draw_once_in(d, 2) ? x->pp
                                                                     : group);
        if (group > x->pp)
            draw_int(d, "parallel.microbatch_group", group);
    }
}

/* "Ett|t||t*2L" or [2,1,0,2]: which stage holds how many layers. */
static inline int64_t draw_layout(Draw *d, const Shape *x)
{
    int64_t stages = x->pp * x->vpp, layers = 0;
    const char *text = "E", *list = "";

    for (int64_t i = 0; i < stages; i++) {
        bool empty = i == 0 || i == stages - 1 || i >= x->pp;
        int64_t n = draw_number(d, empty ? "0 1 1 2" : "1 1 1 2");
        if (i == stages - 1 && layers + n == 0)
            n = 1;
        text = arena_printf(d->arena, "%s%s%s", text, i ? "|" : "",
                            n == 2   ? draw_word(d, "tt t*2 (t)*2")
                            : n == 1 ? "t"
                                     : "");
        list = draw_append(d, list, arena_printf(d->arena, "%d", (int)n));
        layers += n;
    }
    draw_put(d, "parallel.pp_layout",
             draw_once_in(d, 3)
                 ? arena_printf(d->arena, "%s]", list)
                 : arena_printf(d->arena, "\"%sL\"", text));
    return layers;
}

/* Embedding and loss in the place of a layer each. */
static inline int64_t draw_accounts(Draw *d, const Shape *x, int64_t even)
{
    int64_t which = draw_number(d, "1 2 3");

    draw_put(d, "parallel.account_for_embedding", which & 1 ? "true" : "false");
    draw_put(d, "parallel.account_for_loss", which & 2 ? "true" : "false");
    even -= (which & 1) + (which >> 1);
    return even > 0 ? even : even + x->pp * x->vpp;
}

/* Splits the model into stages. */
static inline void draw_split(Draw *d, Shape *x)
{
    int64_t each = x->vpp * draw_number(d, "1 1 1 2");
    int64_t first = x->vpp * draw_number(d, "1 2");
    int64_t last = x->vpp * draw_number(d, "1 2");

    x->layers = x->pp > 1 ? x->pp * each : draw_number(d, "1 2 3");
    switch (x->pp > 1 ? draw_next(d) % 7 : 0) {
    case 1:
        x->layers = draw_layout(d, x);
        break;
    case 2:
        draw_int(d, "parallel.pp_first_layers", first);
        x->layers += first - each;
        break;
    case 3:
        draw_int(d, "parallel.pp_last_layers", last);
        x->layers += last - each;
        break;
    case 4:
        draw_int(d, "parallel.pp_first_layers", first);
        draw_int(d, "parallel.pp_last_layers", last);
        x->layers += first + last - 2 * each;
        break;
    case 5:
        x->layers = draw_accounts(d, x, x->layers);
        break;
    default:
        break;
    }
    draw_int(d, "model.num_layers", x->layers);
}

/* ---- the sequence -------------------------------------------------------- */

/* One way of attention; heads are split over `a2a` ranks of cp if mixed. */
static inline const char *draw_way(Draw *d, Shape *x, int64_t a2a)
{
    const char *way = draw_word(d, "p2p all_gather a2a a2a+p2p");
    int64_t parts = draw_is(way, "a2a")       ? x->cp
                    : draw_is(way, "a2a+p2p") ? a2a
                                              : 1;

    x->heads = MC_MAX(x->heads, x->tp * parts);
    return way;
}

/* One way for all layers, or one for each. */
static inline void draw_context(Draw *d, Shape *x)
{
    int64_t a2a = x->cp == 4 ? draw_number(d, "1 2 2 4")
                             : draw_once_in(d, 2) ? 1 : x->cp;
    const char *list = "";

    x->heads = x->tp;
    if (x->cp == 1)
        return;
    draw_put(d, "parallel.cp_sizes",
             arena_printf(d->arena, "[%d,%d]", (int)a2a, (int)(x->cp / a2a)));
    if (!draw_once_in(d, 4)) {
        draw_put(d, "parallel.cp_comm", draw_way(d, x, a2a));
        return;
    }
    for (int64_t i = 0; i < x->layers; i++)
        list = draw_append(d, list, draw_way(d, x, a2a));
    draw_put(d, "parallel.cp_comm", arena_printf(d->arena, "%s]", list));
}

/* Whole zigzag chunks of cp, and whole parts of them for tp. */
static inline void draw_sequence(Draw *d, const Shape *x)
{
    int64_t odd = x->tp % 2 ? 2 * x->tp : x->tp;
    int64_t unit = x->cp > 1 ? x->cp * odd : x->tp;
    int64_t length = unit * draw_number(d, "1 2 3");

    while (length < 6)
        length += unit;
    draw_int(d, "training.seq_length", length);
    draw_int(d, "model.max_position_embeddings",
             length * draw_number(d, "1 2"));
}

static inline bool draw_divides(int64_t a, int64_t b)
{
    return a % b == 0 || b % a == 0;
}

/* Every rank has whole groups, or its share of the queries of one. */
static inline void draw_heads(Draw *d, const Shape *x)
{
    int64_t groups = x->tp, each;

    for (int tries = 0; tries < 8; tries++) {
        int64_t n = draw_number(d, "1 2 3 4 6 8");
        if (draw_divides(n, x->tp) && draw_divides(n, x->heads))
            groups = n;
    }
    each = MC_MAX(x->heads / groups, 1) * draw_number(d, "1 1 2");
    draw_int(d, "model.num_query_groups", groups);
    draw_int(d, "model.num_attention_heads", groups * each);
}

#endif
