/* model_params.c - the parameters by name: one row each.
 *
 * A row says what a parameter is called here and in both families of Hugging
 * Face files, its dimensions and how it starts.  Some families have names of
 * their own; a model is taken for one of them by what only it has.
 */
#include "frontend/model_priv.h"

static const ParamRow param_rows[] = {
    {"embed", "model.embed_tokens.weight", "transformer.wte.weight", "vh",
     INIT_NORMAL, 0, 1},
    {"positions", "model.embed_positions.weight", "transformer.wpe.weight",
     "ph", INIT_NORMAL, 0, 1},
    {"norm1", "input_layernorm.weight", "ln_1.weight", "h", INIT_ONES, 0, 1},
    {"norm1.bias", "input_layernorm.bias", "ln_1.bias", "h", INIT_ZEROS, 0, 1},
    {"q", "self_attn.q_proj.weight", "attn.c_attn.weight", "grdh", INIT_NORMAL,
     0, 3},
    {"k", "self_attn.k_proj.weight", "attn.c_attn.weight", "gdh", INIT_NORMAL,
     0, 2},
    {"v", "self_attn.v_proj.weight", "attn.c_attn.weight", "gdh", INIT_NORMAL,
     0, 2},
    {"q.bias", "self_attn.q_proj.bias", "attn.c_attn.bias", "grd", INIT_ZEROS,
     0, 3},
    {"k.bias", "self_attn.k_proj.bias", "attn.c_attn.bias", "gd", INIT_ZEROS, 0,
     2},
    {"v.bias", "self_attn.v_proj.bias", "attn.c_attn.bias", "gd", INIT_ZEROS, 0,
     2},
    {"q_norm", "self_attn.q_norm.weight", "attn.q_norm.weight", "d", INIT_ONES,
     0, 1},
    {"k_norm", "self_attn.k_norm.weight", "attn.k_norm.weight", "d", INIT_ONES,
     0, 1},
    {"proj", "self_attn.o_proj.weight", "attn.c_proj.weight", "hgrd",
     INIT_NORMAL, PARAM_OUTPUT, 1},
    {"proj.bias", "self_attn.o_proj.bias", "attn.c_proj.bias", "h", INIT_ZEROS,
     0, 1},
    {"norm2", "post_attention_layernorm.weight", "ln_2.weight", "h", INIT_ONES,
     0, 1},
    {"norm2.bias", "post_attention_layernorm.bias", "ln_2.bias", "h",
     INIT_ZEROS, 0, 1},
    {"gate", "mlp.gate_proj.weight", "mlp.c_gate.weight", "fh", INIT_NORMAL, 0,
     1},
    {"up", "mlp.up_proj.weight", "mlp.c_fc.weight", "fh", INIT_NORMAL, 0, 1},
    {"gate.bias", "mlp.gate_proj.bias", "mlp.c_gate.bias", "f", INIT_ZEROS, 0,
     1},
    {"up.bias", "mlp.up_proj.bias", "mlp.c_fc.bias", "f", INIT_ZEROS, 0, 1},
    {"down", "mlp.down_proj.weight", "mlp.c_proj.weight", "hf", INIT_NORMAL,
     PARAM_OUTPUT, 1},
    {"down.bias", "mlp.down_proj.bias", "mlp.c_proj.bias", "h", INIT_ZEROS, 0,
     1},
    {"router", "mlp.gate.weight", "mlp.gate.weight", "eh", INIT_NORMAL, 0, 1},
    {"router.bias", "mlp.gate.e_score_correction_bias",
     "mlp.gate.e_score_correction_bias", "e", INIT_ZEROS, 0, 1},
    {"experts.gate", "mlp.experts.{e}.gate_proj.weight",
     "mlp.experts.{e}.gate_proj.weight", "efh", INIT_NORMAL, PARAM_EXPERT, 2},
    {"experts.up", "mlp.experts.{e}.up_proj.weight",
     "mlp.experts.{e}.up_proj.weight", "efh", INIT_NORMAL, PARAM_EXPERT, 2},
    {"experts.down", "mlp.experts.{e}.down_proj.weight",
     "mlp.experts.{e}.down_proj.weight", "ehf", INIT_NORMAL,
     PARAM_OUTPUT | PARAM_EXPERT, 2},
    {"experts.gate.bias", "mlp.experts.{e}.gate_proj.bias",
     "mlp.experts.{e}.gate_proj.bias", "ef", INIT_ZEROS, PARAM_EXPERT, 2},
    {"experts.up.bias", "mlp.experts.{e}.up_proj.bias",
     "mlp.experts.{e}.up_proj.bias", "ef", INIT_ZEROS, PARAM_EXPERT, 2},
    {"experts.down.bias", "mlp.experts.{e}.down_proj.bias",
     "mlp.experts.{e}.down_proj.bias", "eh", INIT_ZEROS, PARAM_EXPERT, 2},
    {"shared.gate.bias", "mlp.shared_experts.gate_proj.bias",
     "mlp.shared_experts.gate_proj.bias", "f", INIT_ZEROS, 0, 1},
    {"shared.up.bias", "mlp.shared_experts.up_proj.bias",
     "mlp.shared_experts.up_proj.bias", "f", INIT_ZEROS, 0, 1},
    {"shared.down.bias", "mlp.shared_experts.down_proj.bias",
     "mlp.shared_experts.down_proj.bias", "h", INIT_ZEROS, 0, 1},
    {"shared.gate", "mlp.shared_experts.gate_proj.weight",
     "mlp.shared_experts.gate_proj.weight", "fh", INIT_NORMAL, 0, 1},
    {"shared.up", "mlp.shared_experts.up_proj.weight",
     "mlp.shared_experts.up_proj.weight", "fh", INIT_NORMAL, 0, 1},
    {"shared.down", "mlp.shared_experts.down_proj.weight",
     "mlp.shared_experts.down_proj.weight", "hf", INIT_NORMAL, PARAM_OUTPUT, 1},
    {"shared_gate", "mlp.shared_expert_gate.weight",
     "mlp.shared_expert_gate.weight", "h", INIT_NORMAL, 0, 0},
    {"norm", "model.norm.weight", "transformer.ln_f.weight", "h", INIT_ONES, 0,
     1},
    {"norm.bias", "model.norm.bias", "transformer.ln_f.bias", "h", INIT_ZEROS,
     0, 1},
    {"head", "lm_head.weight", "lm_head.weight", "vh", INIT_NORMAL, 0, 1},
};

/* What lies side by side along j, as one tensor that one product multiplies;
 * whatever else is true of the parts is true of all of them. */
static const JointRow joint_rows[] = {
    {"qkv", "gjdh", {"q", "k", "v"}},
    {"qkv.bias", "gjd", {"q.bias", "k.bias", "v.bias"}},
    {"gate_up", "jfh", {"gate", "up"}},
    {"gate_up.bias", "jf", {"gate.bias", "up.bias"}},
    {"experts.gate_up", "ejfh", {"experts.gate", "experts.up"}},
    {"experts.gate_up.bias", "ejf", {"experts.gate.bias", "experts.up.bias"}},
    {"shared.gate_up", "jfh", {"shared.gate", "shared.up"}},
    {"shared.gate_up.bias", "jf", {"shared.gate.bias", "shared.up.bias"}},
};

const ParamRow *param_row(const char *name)
{
    const ParamRow *row = param_rows;

    while (strcmp(row->name, name) != 0)
        row++;
    return row;
}

const JointRow *joint_row(const char *name)
{
    const JointRow *row = joint_rows;

    while (strcmp(row->name, name) != 0)
        row++;
    return row;
}

/* ---- names in files ------------------------------------------------------ */

bool param_per_layer(const ParamRow *row)
{
    return strncmp(row->llama, "model.", 6) != 0 &&
           strncmp(row->llama, "lm_head", 7) != 0;
}

/* GPT-2 keeps its linear weights transposed, and q, k, v side by side. */
static void export_gpt2(Model *x, const ParamRow *row, Export *file)
{
    bool linear =
        param_per_layer(row) && strlen(row->dims) > 1 && file->cols > 0;
    int64_t q = x->g * x->r * x->d, kv = x->g * x->d;

    file->transpose = linear;
    if (!strstr(row->gpt2, "c_attn"))
        return;
    file->fused_rows = q + 2 * kv;
    file->row_offset = row->name[0] == 'q'   ? 0
                       : row->name[0] == 'k' ? q
                                             : q + kv;
}

static bool has_dense_layers(const Spec *s)
{
    for (uint32_t i = 0; i < s->layers.nkinds; i++)
        if (!s->layers.kinds[i].experts)
            return true;
    return false;
}

/* Mixtral has names of its own; it is what normalises after top-k and has
 * neither norms of heads nor shared experts nor dense layers. */
static const char *mixtral_name(const Model *x, const ParamRow *row)
{
    static const char *const names[][2] = {
        {"router", "block_sparse_moe.gate.weight"},
        {"experts.gate", "block_sparse_moe.experts.{e}.w1.weight"},
        {"experts.down", "block_sparse_moe.experts.{e}.w2.weight"},
        {"experts.up", "block_sparse_moe.experts.{e}.w3.weight"},
    };
    const Spec *s = x->spec;

    if (s->model.qk_norm || s->model.moe.shared_ffn_hidden_size ||
        s->model.moe.pre_softmax || s->model.moe.score != MOE_SOFTMAX ||
        has_dense_layers(s))
        return NULL;
    for (size_t i = 0; i < MC_LEN(names); i++)
        if (strcmp(row->name, names[i][0]) == 0)
            return names[i][1];
    return NULL;
}

/* Qwen2-MoE has one shared expert, with a gate of its own. */
static const char *qwen2_name(const Model *x, const ParamRow *row)
{
    static const char plural[] = "mlp.shared_experts.";
    size_t n = strlen(plural);

    if (!x->spec->model.moe.shared_gate || strncmp(row->llama, plural, n) != 0)
        return NULL;
    return arena_printf(x->m->arena, "mlp.shared_expert.%s", row->llama + n);
}

static const char *family_name(const Model *x, const ParamRow *row)
{
    const char *own = mixtral_name(x, row);

    if (x->gpt2)
        return row->gpt2;
    own = own ? own : qwen2_name(x, row);
    return own ? own : row->llama;
}

Export param_export(Model *x, const ParamRow *row, const Type *t)
{
    const char *own = family_name(x, row);
    uint8_t first = strstr(own, "{e}") ? 1 : 0; /* each expert by itself */
    const char *prefix = !param_per_layer(row) ? ""
                         : x->gpt2             ? "transformer.h.{l}."
                                               : "model.layers.{l}.";
    const char *full = arena_printf(x->m->arena, "%s%s", prefix, own);

    Export file = {.name = sym_intern(x->m->names, full), .rows = 1};

    for (uint8_t i = first; i < t->ndim; i++) {
        if (i < row->rows)
            file.rows *= t->size[i];
        else
            file.cols = MC_MAX(file.cols, 1) * t->size[i];
    }
    file.fused_rows = file.rows;
    if (x->gpt2)
        export_gpt2(x, row, &file);
    return file;
}
