/* tune_none.c - when nothing fits: what came nearest, and what would help.
 *
 * The nearest is one of the legal choices with the smallest bounds of their
 * memory; planned, they also have the temporaries that the bound leaves out.
 * What would help is looked for with the same search: on more GPUs, and with
 * all axes free.
 */
#include "driver/tune.h"

#include <inttypes.h>

enum { GPUS_MOST = 1 << 13, LEAST = 6 };

/* The choices with the smallest bounds, ascending. */
typedef struct {
    Candidate v[LEAST];
    uint32_t n;
} Least;

static void keep_least(void *to, const Choice *choice, const Spec *s)
{
    Least *l = to;
    Share share = share_of(s);
    Candidate c = {.choice = *choice, .bound = memory_bound(s, &share)};
    uint32_t i = l->n;

    if (search_is_long(s) ||
        (i == LEAST && c.bound.total >= l->v[LEAST - 1].bound.total))
        return;
    i = l->n < LEAST ? l->n++ : LEAST - 1;
    for (; i > 0 && c.bound.total < l->v[i - 1].bound.total; i--)
        l->v[i] = l->v[i - 1];
    l->v[i] = c;
}

/* Plans them; *out is the one that needs least, and has no spec if there is
 * none. */
static Status plan_all(Search *x, const Space *space, Least *l, Candidate *out)
{
    const Spec *specs[LEAST] = {NULL};
    Exact exact[LEAST];

    for (uint32_t i = 0; i < l->n; i++)
        specs[i] = l->v[i].spec =
            space_spec(x->arena, x->diag, space, &l->v[i].choice);
    STATUS_TRY(exact_plan(specs, l->n, PLAN_SKETCH, x->memory, exact));
    *out = (Candidate){0};
    for (uint32_t i = 0; i < l->n; i++) {
        l->v[i].exact = exact[i];
        if (exact[i].total && (!out->spec || exact[i].total < out->exact.total))
            *out = l->v[i];
    }
    return STATUS_NONE;
}

static Status plan_least(Search *x, const Space *space, Candidate *out)
{
    SpaceCount count = {0};
    Least least = {.n = 0};

    space_walk(x->arena, x->diag, space, &count, keep_least, &least);
    vec_free(&count.reasons);
    return plan_all(x, space, &least, out);
}

static void say_nearest(const Search *x, const Candidate *c)
{
    int most = report_largest(&c->exact);

    fprintf(stderr, "megac: the nearest: %s\n",
            report_layout(x->arena, c->spec));
    fprintf(stderr, "megac: it needs %s of %s on a rank of stage %u; %s of it "
                    "are %s\n",
            report_size(x->arena, (double)c->exact.total),
            report_size(x->arena, (double)x->memory), c->exact.stage,
            report_size(x->arena, (double)c->exact.bytes[most]),
            bytes_names[most]);
}

/* The fewest GPUs on which something of a space fits, doubling from its own up
 * to `most`; 0 if there are none. */
static Status say_fewest(Search *x, const Space *space, int64_t most,
                         const char *how, int64_t *out_gpus)
{
    Space more = *space;

    *out_gpus = 0;
    for (; more.gpus <= most; more.gpus *= 2) {
        Candidate c;

        STATUS_TRY(plan_least(x, &more, &c));
        if (!c.spec || c.exact.code != CLI_DONE)
            continue;
        *out_gpus = more.gpus;
        fprintf(stderr, "megac: help: %s fits on %" PRId64 " GPUs%s: %s\n",
                report_size(x->arena, (double)c.exact.total), more.gpus, how,
                report_layout(x->arena, c.spec));
        break;
    }
    return STATUS_NONE;
}

static Status say_all(Search *x)
{
    Space all = *x->space;
    Candidate nearest;
    int64_t some = 0, fewest = 0;

    for (Axis i = 0; i < AXES; i++)
        all.varies[i] = true;
    STATUS_TRY(plan_least(x, x->space, &nearest));
    if (nearest.spec)
        say_nearest(x, &nearest);
    STATUS_TRY(say_fewest(x, x->space, GPUS_MOST, "", &some));
    STATUS_TRY(say_fewest(x, &all, some ? some / 2 : GPUS_MOST,
                          ", if all that tune knows may vary", &fewest));
    if (!some && !fewest)
        fprintf(stderr, "megac: nor does it on up to %d GPUs\n", GPUS_MOST);
    return STATUS_NONE;
}

CliExit none_fits(Search *x)
{
    fprintf(stderr, "megac: error: %s does not fit on %" PRId64 " GPUs with "
                    "%s each\n",
            x->space->base->model.name, x->space->gpus,
            report_size(x->arena, (double)x->memory));
    Status status = say_all(x);
    return status ? cli_failed(status) : CLI_FIT;
}
