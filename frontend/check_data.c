/* check_data.c - the rules of what data is for: blends, their masks, how they
 * are split, and what an evaluation reads. */
#include "frontend/frontend_priv.h"

#include "base/split.h"

static const char *kind_name(SpecDataKind kind)
{
    static const char *const kinds[] = {[DATA_PREFIX] = ".bin/.idx files",
                                        [DATA_SYNTHETIC] = "synthetic",
                                        [DATA_TEXT] = "a text file"};

    return kinds[kind];
}

static void blend_check(Check *c, const char *path, const SpecDataList *list)
{
    for (uint32_t i = 0; list->n > 1 && i < list->n; i++) {
        SpecDataKind first = list->v[0].kind, kind = list->v[i].kind;
        if (kind == first && kind != DATA_SYNTHETIC)
            continue;
        check_fail(c, "MC0401", path,
                   "a blend takes files of one kind, but number 1 of "
                   "%s is %s and number %u is %s",
                   path, kind_name(first), i + 1, kind_name(kind));
        return;
    }
}

/* Weights lie beside the tokens they belong to: one set for each. */
static void mask_check(Check *c)
{
    const SpecDataList *train = &c->spec->data.train;
    uint32_t masks = c->spec->data.loss_mask.n;

    if (masks == 0)
        return;
    if (train->n == 0 || train->v[0].kind == DATA_SYNTHETIC) {
        check_fail(c, "MC0402", "data.loss_mask",
                   "loss_mask weighs the tokens of files, but data.train is "
                   "made up");
    } else if (masks != train->n) {
        check_fail(c, "MC0402", "data.loss_mask",
                   "loss_mask names %u data set%s, but data.train %u", masks,
                   masks > 1 ? "s" : "", train->n);
        diag_help(c->diag, "a list of one for each, null where every token "
                           "counts");
    } else {
        return;
    }
    check_because(c, "data.train");
}

static void split_check(Check *c)
{
    const Spec *s = c->spec;
    const char *split = s->data.split, *nothing = NULL;
    bool valid = s->training.eval.interval && !s->data.valid.n;
    double weights[SPLIT_PARTS];

    if (!split)
        return;
    if (!split_parse(split, weights)) {
        check_fail(c, "MC0404", "data.split",
                   "split = %s is not up to three weights, such as 969,30,1",
                   split);
        return;
    }
    if (!(weights[SPLIT_TRAIN] > 0))
        nothing = "training";
    else if (valid && !(weights[SPLIT_VALID] > 0))
        nothing = "validation";
    if (nothing)
        check_fail(c, "MC0404", "data.split",
                   "split = %s leaves nothing for %s", split, nothing);
}

static void evaluation_check(Check *c)
{
    Spec *s = c->spec;

    if (s->training.eval.interval == 0 && s->data.valid.n) {
        diag_warn(c->diag, spec_loc(s, "data.valid"), "MC0014",
                  "valid has no effect with eval.interval = 0");
    } else if (s->training.eval.interval && !s->data.valid.n &&
               !s->data.split) {
        check_fail(c, "MC0403", "training.eval.interval",
                   "interval = %lld, but there is nothing to evaluate on",
                   (long long)s->training.eval.interval);
        diag_help(c->diag, "give data.valid, or data.split to keep a part of "
                           "data.train");
    } else if (s->data.valid.n && s->data.split) {
        check_fail(c, "MC0403", "data.split",
                   "split = %s keeps a part of data.train for validation, but "
                   "there is data.valid", s->data.split);
        check_because(c, "data.valid");
    }
}

void data_check(Check *c)
{
    blend_check(c, "data.train", &c->spec->data.train);
    blend_check(c, "data.valid", &c->spec->data.valid);
    mask_check(c);
    split_check(c);
    evaluation_check(c);
}
