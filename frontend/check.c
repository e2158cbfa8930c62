/* check.c - what must hold between keys.
 *
 * Types and ranges of single values are checked by value.c, the split into
 * stages by stages.c; here is everything that relates several keys.  Three
 * tables hold the rules that come in many copies (a multiple of, no effect
 * without, not built yet), and one function each the others.  A message names
 * the keys and their values, and notes where each of them comes from.
 */
#include "frontend/frontend_priv.h"

void check_fail(Check *c, const char *code, const char *path, const char *fmt,
                ...)
{
    va_list ap;

    va_start(ap, fmt);
    diag_verror(c->diag, spec_loc(c->spec, path), code, fmt, ap);
    va_end(ap);
}

const char *check_text(Check *c, const char *path)
{
    return spec_text(c->arena, c->spec, path);
}

void check_because(Check *c, const char *path)
{
    if (!diag_counts_only(c->diag))
        diag_note(c->diag, spec_loc(c->spec, path), "%s = %s", path_name(path),
                  check_text(c, path));
}

/* ---- a multiple of ------------------------------------------------------ */

static int64_t int_at(const Check *c, const char *path)
{
    return *(const int64_t *)key_value(schema_key(path), c->spec);
}

static void multiples_check(Check *c)
{
    static const struct {
        const char *code, *path, *of;
    } rows[] = {
        {"MC0101", "model.num_attention_heads", "model.num_query_groups"},
        {"MC0201", "model.num_attention_heads", "parallel.tp"},
        {"MC0203", "model.ffn_hidden_size", "parallel.tp"},
    };

    for (size_t i = 0; i < MC_LEN(rows); i++) {
        int64_t value = int_at(c, rows[i].path), of = int_at(c, rows[i].of);
        if (value % of == 0)
            continue;
        check_fail(c, rows[i].code, rows[i].path,
                   "%s = %lld is not a multiple of %s = %lld",
                   path_name(rows[i].path), (long long)value,
                   path_name(rows[i].of), (long long)of);
        check_because(c, rows[i].of);
    }
}

/* ---- no effect without -------------------------------------------------- */

/* A key that only means something while another one has certain values
 * (`!word`: any but this).  What has no effect is said, and set back to its
 * default so that the normal form does not repeat it. */
static const struct {
    const char *path, *needs, *words;
} effects[] = {
    {"model.rope.base", "model.position_embedding", "rope"},
    {"model.rope.percent", "model.position_embedding", "rope"},
    {"model.rope.scaling.type", "model.position_embedding", "rope"},
    {"model.rope.scaling.factor", "model.rope.scaling.type", "!none"},
    {"model.rope.scaling.low_freq_factor", "model.rope.scaling.type",
     "llama3"},
    {"model.rope.scaling.high_freq_factor", "model.rope.scaling.type",
     "llama3"},
    {"model.rope.scaling.original_max_position_embeddings",
     "model.rope.scaling.type", "llama3 yarn"},
    {"parallel.microbatch_group", "parallel.schedule", "interleaved"},
    {"parallel.cp_comm", "parallel.cp", "!1"},
    {"parallel.cp_sizes", "parallel.cp", "!1"},
    {"training.optimizer.beta1", "training.optimizer.type", "adamw adam"},
    {"training.optimizer.beta2", "training.optimizer.type", "adamw adam"},
    {"training.optimizer.eps", "training.optimizer.type", "adamw adam"},
    {"training.optimizer.momentum", "training.optimizer.type", "sgd"},
    {"training.optimizer.min_lr", "training.lr_schedule.style", "!constant"},
    {"training.lr_schedule.init_lr", "training.lr_schedule.warmup_steps",
     "!0"},
    {"training.lr_schedule.wsd_decay_steps", "training.lr_schedule.style",
     "wsd"},
    {"training.lr_schedule.wsd_decay_style", "training.lr_schedule.style",
     "wsd"},
    {"training.loss_scale", "training.precision", "fp16"},
    {"training.recompute.modules", "training.recompute.granularity",
     "selective"},
    {"training.recompute.method", "training.recompute.granularity", "full"},
    {"training.recompute.num_layers", "training.recompute.granularity",
     "full"},
    {"training.eval.steps", "training.eval.interval", "!0"},
    {"training.checkpoint.interval", "training.checkpoint.dir", "!null"},
    {"training.checkpoint.keep", "training.checkpoint.dir", "!null"},
    {"training.checkpoint.async", "training.checkpoint.dir", "!null"},
    {"model.moe.bias_update_rate", "model.moe.expert_bias", "true"},
    {"model.moe.shared_gate", "model.moe.shared_ffn_hidden_size", "!0"},
    {"model.moe.drop_policy", "model.moe.capacity_factor", "!null"},
};

static bool word_listed(const char *words, const char *word)
{
    const char *cursor = words;
    Spelling s;
    bool inverted = false, found = false;

    while (spelling_next(&cursor, &s)) {
        inverted |= s.inverted;
        found |= spelling_is(&s, word);
    }
    return found != inverted;
}

static void effects_check(Check *c)
{
    for (size_t i = 0; i < MC_LEN(effects); i++) {
        const Key *key = schema_key(effects[i].path);
        const char *needed = check_text(c, effects[i].needs);
        if (word_listed(effects[i].words, needed) ||
            value_is_default(c->arena, c->diag, key, c->spec))
            continue;
        diag_warn(c->diag, spec_loc(c->spec, key->path), "MC0014",
                  "%s = %s has no effect with %s = %s", path_name(key->path),
                  check_text(c, key->path), path_name(effects[i].needs),
                  needed);
        value_set_default(c->arena, c->diag, key, (Loc){0}, c->spec);
    }
}

/* ---- the model ---------------------------------------------------------- */

static void heads_check(Check *c)
{
    const Spec *s = c->spec;
    int64_t heads = s->model.num_attention_heads, h = s->model.hidden_size;

    if (h % heads == 0 ||
        spec_loc(s, "model.kv_channels").i != c->by_default.i)
        return;
    check_fail(c, "MC0102", "model.num_attention_heads",
               "hidden_size = %lld is not a multiple of num_attention_heads "
               "= %lld, and kv_channels is not given",
               (long long)h, (long long)heads);
    check_because(c, "model.hidden_size");
}

static void sizes_check(Check *c)
{
    if (c->spec->model.ffn_hidden_size == 0)
        check_fail(c, "MC0108", "model.ffn_hidden_size",
                   "hidden_size = %lld is too small for the default "
                   "int(4h*2/3/64)*64; give ffn_hidden_size",
                   (long long)c->spec->model.hidden_size);
}

static void positions_check(Check *c)
{
    int64_t most = c->spec->model.max_position_embeddings;
    int64_t seq = c->spec->training.seq_length;

    if (seq <= most)
        return;
    check_fail(c, "MC0103", "training.seq_length",
               "seq_length = %lld exceeds max_position_embeddings = %lld",
               (long long)seq, (long long)most);
    check_because(c, "model.max_position_embeddings");
}

static void rope_check(Check *c)
{
    const Spec *s = c->spec;
    int64_t dim = s->derived.rotary_dim;

    if (s->model.position_embedding == PE_ROPE && (dim < 2 || dim % 2)) {
        check_fail(c, "MC0104", "model.kv_channels",
                   "RoPE rotates pairs, but kv_channels * rope.percent = "
                   "%lld * %g = %lld channels",
                   (long long)s->model.kv_channels, s->model.rope.percent,
                   (long long)dim);
        check_because(c, "model.rope.percent");
    }
    if (s->model.rope.scaling.type != ROPE_LLAMA3 ||
        s->model.rope.scaling.low_freq_factor <
            s->model.rope.scaling.high_freq_factor)
        return;
    check_fail(c, "MC0105", "model.rope.scaling.low_freq_factor",
               "low_freq_factor = %g must be less than high_freq_factor = %g",
               s->model.rope.scaling.low_freq_factor,
               s->model.rope.scaling.high_freq_factor);
    check_because(c, "model.rope.scaling.high_freq_factor");
}

/* ---- the ranks ---------------------------------------------------------- */

static void groups_check(Check *c)
{
    int64_t groups = c->spec->model.num_query_groups;
    int64_t tp = c->spec->parallel.tp;

    if (groups % tp == 0 || tp % groups == 0)
        return;
    check_fail(c, "MC0202", "model.num_query_groups",
               "num_query_groups = %lld is neither a multiple nor a divisor "
               "of tp = %lld",
               (long long)groups, (long long)tp);
    check_because(c, "parallel.tp");
}

static void sp_check(Check *c)
{
    Spec *s = c->spec;
    int64_t seq = s->training.seq_length, tp = s->parallel.tp;
    int64_t cp = s->parallel.cp;

    if (s->parallel.sp && tp == 1) {
        diag_warn(c->diag, spec_loc(s, "parallel.sp"), "MC0205",
                  "sp has no effect with tp = 1");
        s->parallel.sp = false;
    }
    if (cp > 1 && seq % (2 * cp)) {
        check_fail(c, "MC0207", "training.seq_length",
                   "seq_length = %lld is not a multiple of 2*cp = %lld",
                   (long long)seq, (long long)(2 * cp));
        check_because(c, "parallel.cp");
    } else if (s->parallel.sp && seq / cp % tp) {
        check_fail(c, "MC0206", "training.seq_length",
                   "with sp, seq_length / cp = %lld / %lld is not a multiple "
                   "of tp = %lld",
                   (long long)seq, (long long)cp, (long long)tp);
        check_because(c, "parallel.tp");
        check_because(c, "parallel.cp");
    }
}

/* A schedule runs one chunk per rank, two, or, interleaved, any number. */
static void chunks_check(Check *c)
{
    const Spec *s = c->spec;
    bool interleaved = s->parallel.schedule == SCHED_INTERLEAVED;
    bool many = interleaved || s->parallel.schedule == SCHED_CSV;
    int64_t chunks = spec_v_shaped(s) ? 2 : 1;

    if (!many && s->parallel.vpp != chunks) {
        check_fail(c, "MC0230", "parallel.schedule",
                   "schedule = %s runs %s per rank, but vpp = %lld",
                   check_text(c, "parallel.schedule"),
                   chunks == 2 ? "two chunks" : "one chunk",
                   (long long)s->parallel.vpp);
        check_because(c, "parallel.vpp");
    }
    if (s->parallel.vpp > 1 && s->parallel.pp == 1)
        check_fail(c, "MC0231", "parallel.vpp",
                   "vpp = %lld chunks per rank need pp > 1",
                   (long long)s->parallel.vpp);
    if (interleaved && s->parallel.vpp == 1)
        check_fail(c, "MC0231", "parallel.schedule",
                   "the interleaved schedule needs vpp > 1");
}

static void microbatches_because(Check *c)
{
    check_because(c, "training.global_batch_size");
    check_because(c, "training.micro_batch_size");
    check_because(c, "parallel.dp");
    check_because(c, "parallel.pp");
}

/* Interleaved, groups of microbatches visit a chunk.  A group smaller than pp
 * would come round before its first microbatch has passed all ranks. */
static void group_check(Check *c)
{
    const Spec *s = c->spec;
    int64_t m = s->derived.microbatches, pp = s->parallel.pp;
    int64_t group = s->parallel.microbatch_group, rest = m % group;

    if (group < pp)
        check_fail(c, "MC0232", "parallel.microbatch_group",
                   "microbatch_group = %lld is less than pp = %lld",
                   (long long)group, (long long)pp);
    else if (group > m)
        check_fail(c, "MC0232", "parallel.schedule",
                   "the interleaved schedule runs groups of %lld microbatches, "
                   "but a step has %lld",
                   (long long)group, (long long)m);
    else if (rest && rest < pp)
        check_fail(c, "MC0232", "parallel.schedule",
                   "the interleaved schedule runs groups of %lld microbatches, "
                   "and the last of a step's %lld would have %lld, less than "
                   "pp = %lld",
                   (long long)group, (long long)m, (long long)rest,
                   (long long)pp);
    else
        return;
    microbatches_because(c);
    if (m >= pp)
        diag_help(c->diag, "microbatch_group = %lld runs all in one group",
                  (long long)m);
    else
        diag_help(c->diag, "a step needs at least pp = %lld microbatches: "
                           "global_batch_size / (micro_batch_size * dp)",
                  (long long)pp);
}

/* DualPipe-V fills both arms of the V before it drains them. */
static void dualpipe_check(Check *c)
{
    const Spec *s = c->spec;

    if (s->derived.microbatches >= 2 * s->parallel.pp)
        return;
    check_fail(c, "MC0233", "parallel.schedule",
               "schedule = dualpipe-v needs 2*pp = %lld microbatches, but a "
               "step has %lld",
               (long long)(2 * s->parallel.pp),
               (long long)s->derived.microbatches);
    microbatches_because(c);
}

void schedule_counts_check(Check *c)
{
    const Spec *s = c->spec;

    if (s->parallel.schedule == SCHED_DUALPIPE_V)
        dualpipe_check(c);
    if (s->parallel.schedule == SCHED_INTERLEAVED && s->parallel.pp > 1 &&
        s->derived.microbatches > 0)
        group_check(c);
}

static void schedule_check(Check *c)
{
    const Spec *s = c->spec;

    chunks_check(c);
    if (s->schedule_file)
        schedule_file_check(c);
    schedule_counts_check(c);
}

/* ---- training ----------------------------------------------------------- */

static void batch_check(Check *c)
{
    const Spec *s = c->spec;
    int64_t gbs = s->training.global_batch_size;
    int64_t mbs = s->training.micro_batch_size;
    int64_t dp = MC_MAX(s->derived.dense_dp, 1);
    int64_t step = product_saturated(mbs, dp);

    if (gbs % step == 0)
        return;
    check_fail(c, "MC0301", "training.global_batch_size",
               "global_batch_size = %lld is not a multiple of "
               "micro_batch_size*dp = %lld*%lld = %lld",
               (long long)gbs, (long long)mbs, (long long)dp, (long long)step);
    check_because(c, "training.micro_batch_size");
    check_because(c, "parallel.dp");
}

static void lr_values_check(Check *c)
{
    const Spec *s = c->spec;
    double lr = s->training.optimizer.lr;
    const struct {
        const char *path;
        double value;
    } rows[] = {
        {"training.optimizer.min_lr", s->training.optimizer.min_lr},
        {"training.lr_schedule.init_lr", s->training.lr_schedule.init_lr},
    };

    for (size_t i = 0; i < MC_LEN(rows); i++) {
        if (rows[i].value <= lr)
            continue;
        check_fail(c, "MC0304", rows[i].path, "%s = %g exceeds lr = %g",
                   path_name(rows[i].path), rows[i].value, lr);
        check_because(c, "training.optimizer.lr");
    }
}

/* A constant rate never decays. */
static void lr_constant_check(Check *c)
{
    Spec *s = c->spec;

    if (s->training.lr_schedule.style != LR_CONSTANT ||
        s->training.lr_schedule.decay_steps == spec_full_steps(s))
        return;
    diag_warn(c->diag, spec_loc(s, "training.lr_schedule.decay_steps"),
              "MC0014", "decay_steps has no effect with style = constant");
    s->training.lr_schedule.decay_steps = spec_full_steps(s);
}

static void lr_steps_check(Check *c)
{
    const Spec *s = c->spec;
    int64_t warmup = s->training.lr_schedule.warmup_steps;
    int64_t decay = s->training.lr_schedule.decay_steps;
    int64_t steps = spec_full_steps(s);

    if (s->training.lr_schedule.style == LR_CONSTANT)
        return;
    if (decay <= warmup) {
        check_fail(c, "MC0302", "training.lr_schedule.warmup_steps",
                   "decay_steps = %lld must be greater than warmup_steps = "
                   "%lld: both count from step 0",
                   (long long)decay, (long long)warmup);
        check_because(c, "training.lr_schedule.decay_steps");
        check_because(c, "training.steps");
    } else if (decay < steps) {
        diag_warn(c->diag, spec_loc(s, "training.lr_schedule.decay_steps"),
                  "MC0303", "minimum reached %lld steps before the end",
                  (long long)(steps - decay));
        check_because(c, "training.steps");
    }
}

static void wsd_check(Check *c)
{
    const Spec *s = c->spec;
    int64_t fall = s->training.lr_schedule.wsd_decay_steps;
    int64_t room = s->training.lr_schedule.decay_steps -
                   s->training.lr_schedule.warmup_steps;

    if (s->training.lr_schedule.style != LR_WSD)
        return;
    if (fall == 0)
        check_fail(c, "MC0305", "training.lr_schedule.style",
                   "style = wsd needs wsd_decay_steps");
    else if (fall > room)
        check_fail(c, "MC0306", "training.lr_schedule.wsd_decay_steps",
                   "wsd_decay_steps = %lld do not fit between warmup_steps "
                   "and decay_steps, %lld steps apart",
                   (long long)fall, (long long)room);
}

/* ---- the machine -------------------------------------------------------- */

/* Each run of layers of one kind is a scan of its own in a stage's program. */
static void runs_check(Check *c)
{
    enum { MAX_RUNS = 64 };
    const Spec *s = c->spec;
    const uint8_t *of = s->layers.of;

    for (uint32_t i = 0; i < s->stages.n; i++) {
        const Stage *stage = &s->stages.v[i];
        int64_t first = stage->first_layer, runs = 1;
        for (int64_t l = first + 1; l < first + stage->num_layers; l++)
            runs += of[l] != of[l - 1];
        if (runs <= MAX_RUNS)
            continue;
        check_fail(c, "MC0013", "model.num_layers",
                   "a stage with %lld runs of layers of one kind: more than %d "
                   "are not built yet", (long long)runs, MAX_RUNS);
        diag_help(c->diag, "more stages have fewer each: set parallel.pp");
        return;
    }
}

static void arch_check(Check *c)
{
    const char *arch = c->spec->target.arch;
    bool native = strcmp(arch, "native") == 0;
    bool sm = strncmp(arch, "sm_", 3) == 0;

    if (c->spec->target.backend == BACKEND_CUDA && !native && !sm)
        check_fail(c, "MC0502", "target.arch",
                   "arch = %s is no CUDA architecture, such as sm_90a", arch);
    else if (c->spec->target.backend == BACKEND_CPU && !native)
        check_fail(c, "MC0013", "target.arch",
                   "arch = %s: compiling for another CPU is not built yet",
                   arch);
    if (c->spec->target.backend == BACKEND_CPU && sm)
        diag_help(c->diag, "set target.backend to cuda");
}

static void hardware_check(Check *c)
{
    const char *name = c->spec->target.hardware;

    if (strcmp(name, "local") != 0)
        c->spec->hardware = hardware_load(c->arena, c->diag, name,
                                          spec_loc(c->spec, "target.hardware"));
}

/* In the order in which they are asked, and what can break them at the latest:
 * the degrees of parallelism, or the micro batch, recomputation and sharding
 * once those are chosen. */
static const struct {
    void (*check)(Check *);
    RuleKind kind;
} rules[] = {
    {effects_check, RULE_MODEL},        {multiples_check, RULE_DEGREES},
    {heads_check, RULE_MODEL},          {sizes_check, RULE_MODEL},
    {positions_check, RULE_MODEL},      {rope_check, RULE_MODEL},
    {moe_recompute_check, RULE_BATCH},  {moe_model_check, RULE_MODEL},
    {moe_ranks_check, RULE_DEGREES},    {groups_check, RULE_DEGREES},
    {sp_check, RULE_DEGREES},           {cp_check, RULE_DEGREES},
    {runs_check, RULE_BATCH},           {grid_check, RULE_DEGREES},
    {schedule_check, RULE_BATCH},       {batch_check, RULE_BATCH},
    {lr_values_check, RULE_MODEL},      {lr_constant_check, RULE_MODEL},
    {lr_steps_check, RULE_MODEL},       {wsd_check, RULE_MODEL},
    {training_check, RULE_BATCH},       {data_check, RULE_MODEL},
    {arch_check, RULE_MODEL},           {hardware_check, RULE_MODEL},
    {memory_check, RULE_BATCH},
};

void check_rules(Check *c)
{
    for (size_t i = 0; i < MC_LEN(rules); i++)
        rules[i].check(c);
    if (!diag_errors(c->diag))
        borders_check(c);
}

void check_kind(Check *c, RuleKind kind)
{
    for (size_t i = 0; i < MC_LEN(rules); i++)
        if (rules[i].kind == kind && !diag_errors(c->diag))
            rules[i].check(c);
    if (kind == RULE_DEGREES && !diag_errors(c->diag))
        borders_check(c);
}

/* ---- not built yet ------------------------------------------------------ */

static const char *option_feature(const Option *options, int value)
{
    for (; options->words; options++)
        if (options->value == value)
            return options->feature;
    return NULL;
}

static const char *list_feature(const Key *key, const SpecChoiceList *list)
{
    const char *feature = NULL;

    for (uint32_t i = 0; i < list->n && !feature; i++)
        feature = option_feature(key->options, list->v[i]);
    return feature;
}

static void key_check_built(Check *c, const Key *key)
{
    const char *feature = NULL;

    if (key->kind == KIND_CHOICE)
        feature = option_feature(key->options,
                                 *(const int *)key_value(key, c->spec));
    if (key->kind == KIND_CHOICE_LIST)
        feature = list_feature(key, key_value(key, c->spec));
    if (key->feature && !value_is_default(c->arena, c->diag, key, c->spec))
        feature = key->feature;
    if (feature)
        check_fail(c, "MC0013", key->path, "%s = %s: %s is not built yet",
                   key->path, check_text(c, key->path), feature);
}

void check_built(Check *c)
{
    for (uint32_t i = 0; i < schema_num_keys; i++)
        key_check_built(c, &schema_keys[i]);
}
