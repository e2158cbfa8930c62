/* stages.c - which layers live on which pipeline rank and chunk.
 *
 * The four ways to write a split (even, first/last, account_for_*, a layout
 * string or list) all become one table, from which everything else reads: no
 * other place computes a layer offset.  Stages are numbered in the order in
 * which a microbatch passes them and hold consecutive layers:
 *
 *     8 layers, pp 2, vpp 2      i = 0   1   2   3
 *                             layers = 0-1 2-3 4-5 6-7
 *                         rank/chunk = 0/0 1/0 0/1 1/1
 *               V-shaped: rank/chunk = 0/0 1/0 1/1 0/1
 *
 * The rules are Megatron's; the sum of the layers is num_layers by
 * construction or the split is rejected.
 */
#include "frontend/frontend_priv.h"

enum { LAYOUT_MAX = 1 << 20, GROUPS_MAX = 8, STAGES_MAX = 1 << 20 };

typedef struct {
    Check *check;
    const Spec *spec;
    int64_t pp, vpp;
    int64_t *counts; /* layers of each stage */
    int64_t *rank, *chunk; /* of each stage */
    int64_t *stage;  /* of each [rank][chunk] */
} Split;

/* Ranks run down, in every second chunk of a V up; or as a file says. */
static int64_t stage_rank(const Split *s, int64_t i)
{
    int64_t at = i % s->pp;

    if (s->spec->schedule_file)
        return s->spec->schedule_file->rank[i];
    return spec_v_shaped(s->spec) && i / s->pp % 2 ? s->pp - 1 - at : at;
}

static void split_place(Split *s)
{
    int64_t n = s->pp * s->vpp;
    int64_t *held = arena_array(s->check->arena, int64_t, s->pp);

    s->rank = arena_array(s->check->arena, int64_t, n);
    s->chunk = arena_array(s->check->arena, int64_t, n);
    s->stage = arena_array(s->check->arena, int64_t, n);
    for (int64_t i = 0; i < n; i++) {
        s->rank[i] = stage_rank(s, i);
        s->chunk[i] = held[s->rank[i]]++;
        s->stage[s->rank[i] * s->vpp + s->chunk[i]] = i;
    }
}

static bool split_alloc(Split *s, int64_t pp, int64_t vpp)
{
    s->pp = pp;
    s->vpp = vpp;
    if (pp * vpp > STAGES_MAX) {
        check_fail(s->check, "MC0221", "parallel.vpp",
                   "pp*vpp = %lld*%lld is too many stages", (long long)pp,
                   (long long)vpp);
        return false;
    }
    if (s->spec->schedule_file &&
        pp * vpp != s->spec->schedule_file->nstages) {
        check_fail(s->check, "MC0234", "parallel.schedule",
                   "%s has %u stages, but pp*vpp = %lld*%lld",
                   s->spec->schedule_path, s->spec->schedule_file->nstages,
                   (long long)pp, (long long)vpp);
        check_because(s->check, "parallel.vpp");
        return false;
    }
    s->counts = arena_array(s->check->arena, int64_t, pp * vpp);
    split_place(s);
    return true;
}

/* ---- even, and counting embedding and loss as layers -------------------- */

static bool uneven_fail(Split *s, int64_t units, int64_t parts)
{
    int64_t extra = units - s->spec->model.num_layers;
    const char *what = parts == s->pp ? "pp" : "pp*vpp";

    if (extra)
        check_fail(s->check, "MC0220", "model.num_layers",
                   "num_layers = %lld plus %lld for embedding and loss = %lld "
                   "is not a multiple of %s = %lld",
                   (long long)(units - extra), (long long)extra,
                   (long long)units, what, (long long)parts);
    else
        check_fail(s->check, "MC0220", "model.num_layers",
                   "num_layers = %lld is not a multiple of %s = %lld "
                   "(remainder %lld)",
                   (long long)units, what, (long long)parts,
                   (long long)(units % parts));
    check_because(s->check, "parallel.pp");
    if (parts != s->pp)
        check_because(s->check, "parallel.vpp");
    diag_help(s->check->diag, "uneven splits: pp_first_layers, pp_last_layers, "
                              "account_for_*, or pp_layout");
    return false;
}

static bool split_even(Split *s)
{
    bool embedding = s->spec->parallel.account_for_embedding;
    bool loss = s->spec->parallel.account_for_loss;
    int64_t units = s->spec->model.num_layers + embedding + loss;
    int64_t stages = s->pp * s->vpp;

    if (units % s->pp)
        return uneven_fail(s, units, s->pp);
    if (units % stages)
        return uneven_fail(s, units, stages);
    for (int64_t i = 0; i < stages; i++)
        s->counts[i] = units / stages;
    s->counts[0] -= embedding;
    s->counts[stages - 1] -= loss;
    return true;
}

/* ---- first and last ----------------------------------------------------- */

static bool ends_fail(Split *s, int64_t rest, int64_t middle)
{
    const Spec *spec = s->spec;

    check_fail(s->check, "MC0222",
               spec->parallel.pp_last_layers ? "parallel.pp_last_layers"
                                             : "parallel.pp_first_layers",
               "num_layers = %lld less pp_first_layers = %lld and "
               "pp_last_layers = %lld leaves %lld layers for %lld stages",
               (long long)spec->model.num_layers,
               (long long)spec->parallel.pp_first_layers,
               (long long)spec->parallel.pp_last_layers, (long long)rest,
               (long long)middle);
    check_because(s->check, "model.num_layers");
    check_because(s->check, "parallel.pp");
    return false;
}

/* Spreads the layers of one rank over its chunks. */
static bool rank_fill(Split *s, int64_t rank, int64_t layers)
{
    for (int64_t chunk = 0; chunk < s->vpp; chunk++)
        s->counts[s->stage[rank * s->vpp + chunk]] = layers / s->vpp;
    if (layers % s->vpp == 0)
        return true;
    check_fail(s->check, "MC0222", "parallel.vpp",
               "the %lld layers of pp rank %lld do not split into vpp = %lld "
               "chunks",
               (long long)layers, (long long)rank, (long long)s->vpp);
    return false;
}

static bool split_ends(Split *s)
{
    int64_t first = s->spec->parallel.pp_first_layers;
    int64_t last = s->spec->parallel.pp_last_layers;
    int64_t middle = s->pp - (first > 0) - (last > 0);
    int64_t rest = s->spec->model.num_layers - first - last;
    bool ok = true;

    if (middle < 0 || rest < 0 || (middle == 0 && rest) ||
        (middle && (rest % middle || rest == 0)))
        return ends_fail(s, rest, MC_MAX(middle, 0));
    for (int64_t rank = 0; ok && rank < s->pp; rank++) {
        bool is_first = rank == 0 && first, is_last = rank == s->pp - 1 && last;
        ok = rank_fill(s, rank,
                       is_first  ? first
                       : is_last ? last
                                 : rest / middle);
    }
    return ok;
}

/* ---- the layout string -------------------------------------------------- */

/* layout := item*      item := (letter | '|' | '(' layout ')') ('*' number)? */
typedef struct {
    Check *check;
    const char *start, *at;
    Buf out;
} Layout;

static bool layout_fail(Layout *l, const char *what)
{
    check_fail(l->check, "MC0223", "parallel.pp_layout",
               "%s at character %d of the layout", what,
               (int)(l->at - l->start) + 1);
    diag_help(l->check->diag, "E embedding, t layer, L loss, | next stage, "
                              "x*n and (...)*n repeat");
    return false;
}

/* Repeats what was written since `from` as often as a `*n` says. */
static bool layout_repeat(Layout *l, size_t from)
{
    size_t len = l->out.len - from;
    size_t times = 0;
    char *unit;

    if (*l->at != '*')
        return true;
    for (l->at++; *l->at >= '0' && *l->at <= '9' && times < LAYOUT_MAX; l->at++)
        times = times * 10 + (size_t)(*l->at - '0');
    if (times == 0 || len * times > LAYOUT_MAX)
        return layout_fail(l, "a bad number of repetitions");
    unit = arena_strndup(l->check->arena, buf_str(&l->out) + from, len);
    for (size_t i = 1; i < times; i++)
        buf_write(&l->out, unit, len);
    return true;
}

static bool layout_items(Layout *l, int depth);

static bool layout_group(Layout *l, int depth)
{
    if (depth >= GROUPS_MAX)
        return layout_fail(l, "groups nested too deeply");
    l->at++;
    if (!layout_items(l, depth + 1))
        return false;
    if (*l->at != ')')
        return layout_fail(l, "a missing `)`");
    l->at++;
    return true;
}

static bool layout_items(Layout *l, int depth)
{
    while (*l->at && *l->at != ')') {
        size_t from = l->out.len;
        if (*l->at == ',' || *l->at == ' ') {
            l->at++;
            continue;
        }
        if (*l->at == '(') {
            if (!layout_group(l, depth))
                return false;
        } else if (strchr("EtL|", *l->at)) {
            buf_write(&l->out, l->at++, 1);
        } else {
            return layout_fail(l, *l->at == 'm' ? "no MTP layer exists"
                                                : "an unknown letter");
        }
        if (!layout_repeat(l, from))
            return false;
        if (l->out.len > LAYOUT_MAX)
            return layout_fail(l, "too many stages and layers");
    }
    return true;
}

static int64_t letters_count(const char *s, char letter)
{
    int64_t n = 0;

    for (; *s; s++)
        n += *s == letter;
    return n;
}

/* E once at the very start, L once at the very end, num_layers t between. */
static bool layout_check(Split *s, const char *text)
{
    int64_t layers = letters_count(text, 't');
    int64_t stages = letters_count(text, '|') + 1;
    size_t len = strlen(text);
    bool ends = text[0] == 'E' && text[len ? len - 1 : 0] == 'L' &&
                letters_count(text, 'E') == 1 && letters_count(text, 'L') == 1;
    const char *at = "parallel.pp_layout";

    if (!ends)
        check_fail(s->check, "MC0223", at,
                   "the layout must begin with its only E and end with its "
                   "only L");
    else if (layers != s->spec->model.num_layers) {
        check_fail(s->check, "MC0223", at,
                   "the layout has %lld layers, but num_layers = %lld",
                   (long long)layers, (long long)s->spec->model.num_layers);
        check_because(s->check, "model.num_layers");
    } else if (stages % s->pp) {
        check_fail(s->check, "MC0223", at,
                   "the layout has %lld stages, not a multiple of pp = %lld",
                   (long long)stages, (long long)s->pp);
        check_because(s->check, "parallel.pp");
    } else
        return true;
    return false;
}

static bool layout_vpp(Split *s, int64_t vpp)
{
    int64_t wanted = s->spec->parallel.vpp;

    if (wanted == 1 || wanted == vpp)
        return split_alloc(s, s->pp, vpp);
    check_fail(s->check, "MC0223", "parallel.pp_layout",
               "the layout has %lld chunks per rank, but vpp = %lld",
               (long long)vpp, (long long)wanted);
    check_because(s->check, "parallel.vpp");
    return false;
}

static bool split_layout(Split *s)
{
    const char *text = s->spec->parallel.pp_layout;
    Layout l = {.check = s->check, .start = text, .at = text};
    bool ok = layout_items(&l, 0);
    const char *flat = buf_str(&l.out);
    int64_t stage = 0;

    if (ok && *l.at == ')')
        ok = layout_fail(&l, "a `)` too many");
    ok = ok && layout_check(s, flat) &&
         layout_vpp(s, (letters_count(flat, '|') + 1) / s->pp);
    for (; ok && *flat; flat++) {
        s->counts[stage] += *flat == 't';
        stage += *flat == '|';
    }
    buf_free(&l.out);
    return ok;
}

/* ---- all of them -------------------------------------------------------- */

static bool exclusive(Check *c, const char *path, const char *other, bool both)
{
    if (!both)
        return true;
    check_fail(c, "MC0221", path, "%s and %s exclude each other",
               path_name(path), path_name(other));
    check_because(c, other);
    return false;
}

static bool spellings_check(Check *c)
{
    const Spec *s = c->spec;
    bool first = s->parallel.pp_first_layers, last = s->parallel.pp_last_layers;
    bool embedding = s->parallel.account_for_embedding;
    bool loss = s->parallel.account_for_loss, layout = s->parallel.pp_layout;
    const struct {
        const char *path, *other;
        bool both;
    } rows[] = {
        {"parallel.pp_first_layers", "parallel.pp_layout", first && layout},
        {"parallel.pp_last_layers", "parallel.pp_layout", last && layout},
        {"parallel.account_for_embedding", "parallel.pp_layout",
         embedding && layout},
        {"parallel.account_for_loss", "parallel.pp_layout", loss && layout},
        {"parallel.pp_first_layers", "parallel.account_for_embedding",
         first && embedding},
        {"parallel.pp_first_layers", "parallel.account_for_loss",
         first && loss},
        {"parallel.pp_last_layers", "parallel.account_for_embedding",
         last && embedding},
        {"parallel.pp_last_layers", "parallel.account_for_loss", last && loss},
    };
    bool ok = true;

    for (size_t i = 0; i < MC_LEN(rows); i++)
        ok &= exclusive(c, rows[i].path, rows[i].other, rows[i].both);
    return ok;
}

static bool split_run(Split *s)
{
    const Spec *spec = s->spec;

    s->pp = spec->parallel.pp;
    if (spec->parallel.pp_layout)
        return split_layout(s);
    if (!split_alloc(s, s->pp, spec->parallel.vpp))
        return false;
    if (spec->parallel.pp_first_layers || spec->parallel.pp_last_layers)
        return split_ends(s);
    return split_even(s);
}

/* Whether the rank of an empty stage has anything in its other chunks. */
static bool rank_holds(const Split *s, int64_t rank)
{
    int64_t last = s->pp * s->vpp - 1;
    bool any = false;

    for (int64_t chunk = 0; chunk < s->vpp; chunk++) {
        int64_t i = s->stage[rank * s->vpp + chunk];
        any |= s->counts[i] > 0 || i == 0 || i == last;
    }
    return any;
}

/* A stage may hold only the embedding or the head, and, where the layout says
 * so, nothing; but every rank holds something. */
static bool stage_check(Split *s, const Stage *stage)
{
    bool written = s->spec->parallel.pp_layout;

    if (stage->num_layers > 0 || stage->has_embedding || stage->has_head ||
        (written && rank_holds(s, stage->pp)))
        return true;
    check_fail(s->check, "MC0224",
               written ? "parallel.pp_layout" : "parallel.pp",
               "stage %lld (chunk %lld) would hold nothing",
               (long long)stage->pp, (long long)stage->chunk);
    return false;
}

/* A V has two chunks per rank, and a file as many as it has, without being
 * told. */
static bool chunks_by_schedule(Check *c)
{
    Spec *s = c->spec;
    int64_t chunks = spec_v_shaped(s) ? 2 : 1;

    if (s->parallel.schedule == SCHED_CSV) {
        if (!s->schedule_file)
            s->schedule_file = schedule_file_read(c);
        if (!s->schedule_file)
            return false;
        chunks = s->schedule_file->nstages / s->parallel.pp;
    }
    if (s->parallel.vpp != 1 || chunks == 1)
        return true;
    s->parallel.vpp = chunks;
    spec_set_loc(s, "parallel.vpp", spec_loc(s, "parallel.schedule"));
    return true;
}

bool stages_build(Check *c)
{
    Split s = {.check = c, .spec = c->spec};
    int64_t n, layer = 0;
    Stage *stages;
    bool ok = true;

    if (!chunks_by_schedule(c) || !spellings_check(c) || !split_run(&s))
        return false;
    n = s.pp * s.vpp;
    stages = arena_array(c->arena, Stage, n);
    for (int64_t i = 0; ok && i < n; i++) {
        stages[i] = (Stage){.pp = s.rank[i], .chunk = s.chunk[i],
                            .first_layer = layer, .num_layers = s.counts[i],
                            .has_embedding = i == 0, .has_head = i == n - 1};
        layer += s.counts[i];
        ok = stage_check(&s, &stages[i]);
    }
    if (c->spec->parallel.vpp != s.vpp && c->spec->parallel.pp_layout)
        spec_set_loc(c->spec, "parallel.vpp",
                     spec_loc(c->spec, "parallel.pp_layout"));
    c->spec->parallel.vpp = s.vpp;
    c->spec->stages = (StageTable){stages, (uint32_t)n};
    return ok;
}
