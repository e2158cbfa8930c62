/* tune_none.c - when nothing fits: what came nearest, and what would help.
 *
 * The nearest is the legal choice that needs least by the bound of its memory;
 * planned, it also has the temporaries that the bound leaves out.  What would
 * help is looked for with the same search: all axes free, then more GPUs.
 */
#include "driver/tune.h"

#include <inttypes.h>

enum { GPUS_MOST = 1 << 14 };

static void keep_least(void *to, const Choice *choice, const Spec *s)
{
    Candidate *least = to;
    Share share = share_of(s);
    Bytes bound = memory_bound(s, &share);

    if (least->order++ == 0 || bound.total < least->bound.total) {
        least->choice = *choice;
        least->bound = bound;
    }
}

/* The choice of a space that needs least, planned; false if there is none. */
static Status plan_least(Search *x, const Space *space, Candidate *c,
                         bool *out_any)
{
    SpaceCount count = {0};

    *c = (Candidate){0};
    space_walk(x->arena, x->diag, space, &count, keep_least, c);
    vec_free(&count.reasons);
    *out_any = c->order > 0;
    if (!*out_any)
        return STATUS_NONE;
    c->spec = space_spec(x->arena, x->diag, space, &c->choice);
    return exact_plan(&c->spec, 1, PLAN_SKETCH, x->memory, &c->exact);
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
        bool any;

        STATUS_TRY(plan_least(x, &more, &c, &any));
        if (!any || c.exact.code != CLI_DONE)
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
    bool any = false;

    for (Axis i = 0; i < AXES; i++)
        all.varies[i] = true;
    STATUS_TRY(plan_least(x, x->space, &nearest, &any));
    if (any && nearest.exact.total)
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
