/* check_moe.c - the rules of a mixture of experts. */
#include "frontend/frontend_priv.h"

/* ---- the router ---------------------------------------------------------- */

static void top_k_check(Check *c)
{
    const Spec *s = c->spec;
    int64_t k = s->model.moe.top_k, n = s->model.moe.num_experts;

    if (k > n) {
        check_fail(c, "MC0109", "model.moe.top_k",
                   "top_k = %lld is more than num_experts = %lld", (long long)k,
                   (long long)n);
        check_because(c, "model.moe.num_experts");
    } else if (k == 1 && s->model.moe.score == MOE_SOFTMAX &&
               !s->model.moe.pre_softmax) {
        check_fail(c, "MC0111", "model.moe.top_k",
                   "top_k = 1 and softmax after top-k: every weight is 1, and "
                   "the router learns nothing");
        diag_help(c->diag, "set model.moe.pre_softmax to true");
    }
}

static void bias_check(Check *c)
{
    const Spec *s = c->spec;

    if (!s->model.moe.expert_bias || s->model.moe.score == MOE_SIGMOID)
        return;
    check_fail(c, "MC0112", "model.moe.expert_bias",
               "expert_bias needs scores that do not depend on each other");
    diag_help(c->diag, "set model.moe.score to sigmoid");
}

/* Experts of the best groups only (DeepSeek-V2, section 2.2.2). */
static void groups_check(Check *c)
{
    const Spec *s = c->spec;
    int64_t k = s->model.moe.top_k, n = s->model.moe.num_experts;
    int64_t groups = s->model.moe.num_groups, top = s->model.moe.group_top_k;

    if (groups == 0 && top == 0)
        return;
    if (groups && top && n % groups == 0 && top <= groups && k % top == 0 &&
        k / top <= n / groups)
        return;
    check_fail(c, "MC0110", "model.moe.num_groups",
               "num_groups = %lld with group_top_k = %lld does not suit "
               "num_experts = %lld and top_k = %lld",
               (long long)groups, (long long)top, (long long)n, (long long)k);
    diag_help(c->diag, "num_groups divides num_experts, group_top_k divides "
                       "top_k, and a group has top_k / group_top_k experts");
}

/* ---- which layers ------------------------------------------------------- */

static void freq_check(Check *c)
{
    const Spec *s = c->spec;
    const SpecIntList *freq = &s->model.moe.layer_freq;
    bool every = freq->n == 1 && freq->v[0] > 0, bits = true, any = every;

    for (uint32_t i = 0; i < freq->n; i++) {
        bits &= freq->v[i] <= 1;
        any |= freq->v[i] != 0;
    }
    if (!any) {
        check_fail(c, "MC0113", "model.moe.layer_freq",
                   "layer_freq leaves no layer with experts");
        diag_help(c->diag, "remove model.moe for a dense model");
    } else if (!every && !bits) {
        check_fail(c, "MC0113", "model.moe.layer_freq",
                   "a list of layer_freq says 0 (dense) or 1 (experts) for "
                   "each layer");
    } else if (!every && freq->n != (uint64_t)s->model.num_layers) {
        check_fail(c, "MC0113", "model.moe.layer_freq",
                   "layer_freq lists %u layers, but num_layers = %lld", freq->n,
                   (long long)s->model.num_layers);
        check_because(c, "model.num_layers");
    }
}

/* ---- the ranks ----------------------------------------------------------- */

static int64_t expert_tp(const Spec *s)
{
    return s->parallel.etp ? s->parallel.etp : s->parallel.tp;
}

static void multiple_check(Check *c, const char *code, const char *path,
                           int64_t size, const char *axis, int64_t n)
{
    if (size % n == 0)
        return;
    check_fail(c, code, path, "%s = %lld is not a multiple of %s = %lld", path,
               (long long)size, axis, (long long)n);
    check_because(c, axis);
}

/* Without SP every rank of tp has all tokens, and each expert would get them
 * tp times. */
static void sequence_check(Check *c)
{
    const Spec *s = c->spec;

    if (s->parallel.tp == 1 || s->parallel.ep == 1 || s->parallel.sp)
        return;
    check_fail(c, "MC0240", "parallel.sp",
               "tp = %lld with ep = %lld needs sp: the ranks of tp would "
               "dispatch the same tokens %lld times",
               (long long)s->parallel.tp, (long long)s->parallel.ep,
               (long long)s->parallel.tp);
    check_because(c, "parallel.tp");
    check_because(c, "parallel.ep");
    diag_help(c->diag, "set parallel.sp to true");
}

static void ranks_check(Check *c)
{
    const Spec *s = c->spec;

    multiple_check(c, "MC0241", "model.moe.num_experts",
                   s->model.moe.num_experts, "parallel.ep", s->parallel.ep);
    multiple_check(
        c, "MC0242", "model.moe.ffn_hidden_size", s->model.moe.ffn_hidden_size,
        s->parallel.etp ? "parallel.etp" : "parallel.tp", expert_tp(s));
    multiple_check(c, "MC0242", "model.moe.shared_ffn_hidden_size",
                   s->model.moe.shared_ffn_hidden_size, "parallel.tp",
                   s->parallel.tp);
    sequence_check(c);
}

/* ---- without experts ----------------------------------------------------- */

static void dense_check(Check *c)
{
    static const char *const axes[] = {"parallel.ep", "parallel.etp"};

    for (uint32_t i = 0; i < schema_num_keys; i++) {
        const Key *key = &schema_keys[i];
        if (strcmp(key->section, "model.moe") == 0 &&
            !value_is_default(c->arena, c->diag, key, c->spec))
            check_fail(c, "MC0107", key->path, "%s needs model.moe.num_experts",
                       key->path);
    }
    for (size_t i = 0; i < MC_LEN(axes); i++)
        if (!value_is_default(c->arena, c->diag, schema_key(axes[i]), c->spec))
            check_fail(c, "MC0244", axes[i],
                       "%s needs model.moe.num_experts: a dense model has no "
                       "experts to split",
                       axes[i]);
}

/* ---- recomputation ------------------------------------------------------- */

static bool has_dense_layer(const Spec *s)
{
    for (uint32_t k = 0; k < s->layers.nkinds; k++)
        if (!s->layers.kinds[k].experts)
            return true;
    return false;
}

bool moe_lacks_module(const Spec *s, SpecModule module)
{
    bool experts = module == MODULE_MOE || module == MODULE_MOE_ACT;
    bool shared = module == MODULE_SHARED_EXPERTS;

    return (experts && !s->model.moe.num_experts) ||
           (shared && !s->model.moe.shared_ffn_hidden_size) ||
           (module == MODULE_MLP && !has_dense_layer(s));
}

/* A module that no layer has cannot be computed again. */
static void modules_check(Check *c)
{
    const Spec *s = c->spec;
    SpecChoiceList asked = s->training.recompute.modules;

    for (uint32_t i = 0; i < asked.n; i++) {
        SpecModule module = (SpecModule)asked.v[i];
        if (!moe_lacks_module(s, module))
            continue;
        check_fail(c, "MC0114", "training.recompute.modules",
                   "no layer has the module %s", spec_module_word(module));
        if (module == MODULE_MLP)
            diag_help(c->diag, "every layer has experts: the module is moe");
    }
}

/* A group that is computed again would read counts that have grown since. */
static void global_balance_check(Check *c)
{
    const Spec *s = c->spec;

    if (s->model.moe.balance != MOE_GLOBAL_AUX_LOSS ||
        !(s->model.moe.aux_loss_coeff > 0) ||
        s->training.recompute.granularity != RECOMPUTE_FULL ||
        s->training.recompute.method != RECOMPUTE_UNIFORM ||
        s->training.recompute.num_layers == 1)
        return;
    check_fail(c, "MC0013", "training.recompute.num_layers",
               "num_layers = %lld: a global_aux_loss in groups of layers that "
               "are computed again is not built yet",
               (long long)s->training.recompute.num_layers);
    check_because(c, "model.moe.balance");
    diag_help(c->diag, "set training.recompute.num_layers to 1");
}

void moe_model_check(Check *c)
{
    if (c->spec->model.moe.num_experts == 0) {
        dense_check(c);
        return;
    }
    freq_check(c);
    top_k_check(c);
    bias_check(c);
    groups_check(c);
}

void moe_ranks_check(Check *c)
{
    if (c->spec->model.moe.num_experts)
        ranks_check(c);
}

void moe_recompute_check(Check *c)
{
    modules_check(c);
    if (c->spec->model.moe.num_experts)
        global_balance_check(c);
}
