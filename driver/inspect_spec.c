/* inspect_spec.c - the views that follow from the spec alone. */
#include "driver/groups.h"
#include "driver/views.h"

#include <inttypes.h>

/* ---- groups -------------------------------------------------------------- */

static GroupSizes group_sizes(const Spec *s)
{
    uint32_t etp = (uint32_t)(s->parallel.etp ? s->parallel.etp
                                              : s->parallel.tp);

    return (GroupSizes){.tp = (uint32_t)s->parallel.tp,
                        .cp = (uint32_t)s->parallel.cp,
                        .dp = (uint32_t)s->derived.dense_dp,
                        .pp = (uint32_t)s->parallel.pp,
                        .etp = etp,
                        .ep = (uint32_t)s->parallel.ep,
                        .edp = (uint32_t)s->derived.expert_dp,
                        .order = s->parallel.order};
}

/* All families, and the two of a cp axis that is cut. */
static GroupFamily *families_of(const View *view, uint32_t *out_n)
{
    const Spec *spec = view->in->spec;
    GroupSizes s = group_sizes(spec);
    GroupFamily *made = groups_make(view->in->arena, &s, out_n), *all;

    if (spec->parallel.cp_sizes.n == 0)
        return made;
    all = arena_array(view->in->arena, GroupFamily, *out_n + 2);
    memcpy(all, made, sizeof *made * *out_n);
    for (uint32_t i = 0; i < *out_n; i++)
        if (!strcmp(made[i].name, "cp"))
            groups_cut(view->in->arena, &made[i],
                       (uint32_t)spec->parallel.cp_sizes.v[0], all + *out_n);
    *out_n += 2;
    return all;
}

static json_t *family_json(const GroupFamily *f)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < f->groups; i++) {
        json_t *group = json_array();

        for (uint32_t k = 0; k < f->size; k++)
            json_array_append_new(group,
                                  json_integer(f->ranks[i * f->size + k]));
        json_array_append_new(list, group);
    }
    return list;
}

json_t *view_groups_json(const View *view)
{
    GroupSizes s = group_sizes(view->in->spec);
    uint32_t n;
    GroupFamily *f = families_of(view, &n);
    json_t *groups = json_object();

    for (uint32_t i = 0; i < n; i++)
        json_object_set_new(groups, f[i].name, family_json(&f[i]));
    return json_pack("{sI ss s{si si si si si si si} so}", "world",
                     (json_int_t)view->in->spec->parallel.world_size, "order",
                     s.order, "sizes", "tp", s.tp, "cp", s.cp, "dp", s.dp,
                     "pp", s.pp, "etp", s.etp, "ep", s.ep, "edp", s.edp,
                     "groups", groups);
}

/* As many groups as fit on the line. */
static void family_text(const GroupFamily *f, FILE *to)
{
    int column = fprintf(to, "%-9s %u of %u:", f->name, f->groups, f->size);

    for (uint32_t i = 0; i < f->groups; i++) {
        Buf text = {0};

        for (uint32_t k = 0; k < f->size && text.len < 80; k++)
            buf_printf(&text, "%s%u", k ? "," : " [",
                       f->ranks[i * f->size + k]);
        column += (int)text.len + 1;
        bool fits = column < 76;
        fprintf(to, fits ? "%s]" : " …", buf_str(&text));
        buf_free(&text);
        if (!fits)
            break;
    }
    fputc('\n', to);
}

void view_groups_text(const View *view, FILE *to)
{
    GroupSizes s = group_sizes(view->in->spec);
    uint32_t n;
    GroupFamily *f = families_of(view, &n);

    fprintf(to,
            "%" PRId64 " ranks, fastest axis first: %s\n"
            "dense grid:  tp %u * cp %u * dp %u * pp %u\n"
            "expert grid: etp %u * ep %u * edp %u * pp %u\n",
            view->in->spec->parallel.world_size, s.order, s.tp, s.cp, s.dp,
            s.pp, s.etp, s.ep, s.edp, s.pp);
    for (uint32_t i = 0; i < n; i++)
        family_text(&f[i], to);
}

/* ---- layout -------------------------------------------------------------- */

json_t *view_layout_json(const View *view)
{
    const StageTable *table = &view->in->spec->stages;
    json_t *list = json_array();

    for (uint32_t i = 0; i < table->n; i++) {
        const Stage *s = &table->v[i];
        json_t *layers = json_array();

        for (int64_t k = 0; k < s->num_layers; k++)
            json_array_append_new(layers, json_integer(s->first_layer + k));
        json_array_append_new(
            list, json_pack("{sI sI so sb sb}", "pp", (json_int_t)s->pp,
                            "chunk", (json_int_t)s->chunk, "layers", layers,
                            "embedding", s->has_embedding, "head",
                            s->has_head));
    }
    return list;
}

static void stage_text(const Stage *s, FILE *to)
{
    fprintf(to, "pp %" PRId64 " chunk %" PRId64 ":", s->pp, s->chunk);
    if (s->has_embedding)
        fputs(" embedding", to);
    if (s->num_layers > 0)
        fprintf(to, " layers %" PRId64 " to %" PRId64, s->first_layer,
                s->first_layer + s->num_layers - 1);
    if (s->has_head)
        fputs(" head", to);
    fputc('\n', to);
}

void view_layout_text(const View *view, FILE *to)
{
    for (uint32_t i = 0; i < view->in->spec->stages.n; i++)
        stage_text(&view->in->spec->stages.v[i], to);
}

/* ---- lr ------------------------------------------------------------------ */

/* Before update k, from 0. */
static double rate_at(const Spec *spec, int64_t k)
{
    LrSchedule schedule = spec_lr(spec);
    BatchRampup r = spec_rampup(spec);

    return lr_after(&schedule, batch_consumed(&r, k), r.full);
}

/* Update k, from 0, has the rate of row k; the last row is where the curve
 * stands after the last update. */
json_t *view_lr_json(const View *view)
{
    const Spec *spec = view->in->spec;
    json_t *list = json_array();

    for (int64_t step = 0; step <= spec->training.steps; step++)
        json_array_append_new(list, json_pack("[If]", (json_int_t)step,
                                              rate_at(spec, step)));
    return list;
}

void view_lr_text(const View *view, FILE *to)
{
    const Spec *spec = view->in->spec;

    for (int64_t step = 0; step <= spec->training.steps; step++)
        fprintf(to, "%" PRId64 "\t%.6g\n", step, rate_at(spec, step));
}
