/* layers.c - kinds of layers.
 *
 *   num_layers: 6                          kind   experts  cp_comm
 *   moe.layer_freq: [0, 1, 1, 0, 1, 1]  →  0      no       p2p      layers 0, 3
 *                                          1      yes      p2p      1, 2, 4, 5
 *
 * Keys that may differ from layer to layer are columns of LayerKind.  Layers
 * with equal columns are of one kind, and a kind is one function of the model
 * graph, however many layers there are.  Kinds are numbered by their first
 * layer.
 */
#include "frontend/frontend_priv.h"

/* Megatron's reading: of an integer N, layers 0, N, 2N, …; else by layer. */
static bool has_experts(const Spec *s, int64_t layer)
{
    const SpecIntList *freq = &s->model.moe.layer_freq;

    if (!s->model.moe.num_experts)
        return false;
    if (freq->n == 1 && freq->v[0] > 0)
        return layer % freq->v[0] == 0;
    return layer < freq->n && freq->v[layer] == 1;
}

static SpecCpComm cp_comm_of(const Spec *s, int64_t layer)
{
    const SpecChoiceList *list = &s->parallel.cp_comm;

    if (s->parallel.cp == 1 || list->n == 0)
        return CP_P2P;
    return (SpecCpComm)list->v[layer < list->n ? layer : 0];
}

/* Full recomputation: of every layer, or (block) of the first of each stage. */
static bool is_again(const Spec *s, int64_t layer)
{
    if (s->training.recompute.granularity != RECOMPUTE_FULL)
        return false;
    if (s->training.recompute.method != RECOMPUTE_BLOCK)
        return true;
    for (uint32_t i = 0; i < s->stages.n; i++) {
        int64_t at = layer - s->stages.v[i].first_layer;
        if (at >= 0 && at < s->stages.v[i].num_layers)
            return at < s->training.recompute.num_layers;
    }
    return false;
}

static int64_t group_of(const Spec *s, int64_t layer)
{
    bool groups = s->training.recompute.method == RECOMPUTE_UNIFORM &&
                  is_again(s, layer);

    return groups ? s->training.recompute.num_layers : 1;
}

static bool same_kind(const LayerKind *a, const LayerKind *b)
{
    return a->experts == b->experts && a->cp_comm == b->cp_comm &&
           a->again == b->again && a->group == b->group;
}

void layers_build(Check *c)
{
    Spec *s = c->spec;
    int64_t n = s->model.num_layers;
    LayerKind *kinds = arena_array(c->arena, LayerKind, n);
    uint8_t *of = arena_array(c->arena, uint8_t, n);
    uint32_t nkinds = 0;

    for (int64_t l = 0; l < n; l++) {
        LayerKind kind = {has_experts(s, l), cp_comm_of(s, l), is_again(s, l),
                          group_of(s, l)};
        uint8_t k = 0;
        while (k < nkinds && !same_kind(&kinds[k], &kind))
            k++;
        if (k == nkinds)
            kinds[nkinds++] = kind;
        of[l] = k;
    }
    s->layers = (LayerTable){kinds, nkinds, of, (uint32_t)n};
}

const LayerKind *spec_layer(const Spec *s, int64_t layer)
{
    return &s->layers.kinds[s->layers.of[layer]];
}

int64_t spec_stage_end(const Spec *s, int64_t layer)
{
    for (uint32_t i = 0; i < s->stages.n; i++) {
        const Stage *stage = &s->stages.v[i];
        int64_t end = stage->first_layer + stage->num_layers;
        if (layer >= stage->first_layer && layer < end)
            return end;
    }
    mc_bug(__FILE__, __LINE__, "layer %lld is on no stage", (long long)layer);
}
