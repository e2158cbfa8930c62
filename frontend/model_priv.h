/* model_priv.h - a model graph under construction; shared by model*.c. */
#ifndef MEGAC_FRONTEND_MODEL_PRIV_H
#define MEGAC_FRONTEND_MODEL_PRIV_H

#include "frontend/frontend.h"
#include "frontend/model.h"

typedef struct {
    const Spec *spec;
    Module *m;
    FuncId f; /* the function under construction */
    Loc loc;  /* the YAML key that the next nodes come from */
    DType compute;
    uint32_t kind; /* of the layer under construction */
    bool gpt2; /* Hugging Face names of the GPT-2 family */
    int64_t s, b, h, g, r, d, f_, v, p, layers;
} Model;

/* ---- model_mesh.c: the mesh and the layouts of what has a name ---------- */

void model_mesh(Model *x);
void model_hints(Model *x);
/* The hint for what attention takes in; NULL: none. */
const char *model_attention_hint(SpecCpComm comm);
/* The axes round which keys go, or 0. */
AxisSet model_ring(const Model *x, SpecCpComm comm);
/* Whether queries, keys and values are split alike, by groups: as weights and,
 * with a hint, as that says. */
bool model_joins_heads(const Model *x, const char *hint);
/* How a weight with these dimensions is split where it is used. */
LayoutId model_weight_layout(Model *x, const char *dims, bool expert);
/* Makes a tensor lie flat, if it has replicas to share it out.  Returns the
 * layout of a field that all have, and that of one they share. */
LayoutId model_flatten(Model *x, Tensor *t, LayoutId use, LayoutId *out_share);

/* ---- model_params.c: parameters by name ---------------------------------- */

/* OUTPUT: its std is divided by sqrt(2 * layers).  EXPERT: it belongs to one
 * expert, and is where that is. */
enum { PARAM_OUTPUT = 1, PARAM_EXPERT = 2 };

typedef struct {
    const char *name, *llama, *gpt2; /* here, and in files of both families */
    const char *dims;
    InitKind init;
    uint8_t part; /* PARAM_OUTPUT, PARAM_EXPERT */
    uint8_t rows; /* how many leading dims are rows of the file's matrix */
} ParamRow;

/* What lies side by side. */
typedef struct {
    const char *name, *dims, *parts[IR_MAX_PARTS];
} JointRow;

const ParamRow *param_row(const char *name);
const JointRow *joint_row(const char *name);
bool param_per_layer(const ParamRow *row);
/* `t` is the logical type of what the row is about. */
Export param_export(Model *x, const ParamRow *row, const Type *t);

/* ---- model_tensors.c: parameters and their state ------------------------- */

int64_t model_size(const Model *x, char dim);
TypeId model_type(Model *x, DType dtype, const char *dims);
/* The parameter's value in the function under construction; the tensor is
 * made at its first use. */
ValueId model_param(Model *x, const char *name);
/* The same of what lies side by side: "qkv", "gate_up", their biases. */
ValueId model_joint(Model *x, const char *name);
/* Part i of a value that has j from the tensor `name`. */
ValueId model_part(Model *x, ValueId whole, const char *name, uint32_t i);
/* Where the key of a step's dropout lies; made at its first use. */
TensorId model_key(Model *x);
/* A sum over one step, perhaps for each layer.  Made at its first use. */
TensorId model_metric(Model *x, const char *name, const char *dims,
                      bool per_layer);
/* Once all is built: which kind each layer is.  A tensor that every layer has
 * lists no kinds. */
void model_kinds(Model *x);

/* ---- model_spell.c: nodes in few words ----------------------------------- */

/* The next nodes come from the key `path`. */
Loc model_at(Model *x, const char *path);
ValueId model_unary(Model *x, Op op, ValueId a);
ValueId model_binary(Model *x, Op op, ValueId a, ValueId b);
ValueId model_number(Model *x, double value);
ValueId model_ratio(Model *x, int64_t p, int64_t q);
/* A number that the host provides each step. */
ValueId model_host(Model *x, const char *what);
/* Rounds to the compute type. */
ValueId model_round(Model *x, ValueId a);
/* For nodes that see positions: how s is stored. */
AttrsId model_positions(Model *x, AttrsId attrs);
ValueId model_hint(Model *x, ValueId a, const char *hint);
ValueId model_name(Model *x, ValueId a, const char *name);
/* Sum over one dimension. */
ValueId model_sum(Model *x, ValueId a, char dim);
ValueId model_dot(Model *x, ValueId a, ValueId b, const char *dims);
/* Dropout of the elements at `rate`; x itself at rate 0. */
ValueId model_dropout(Model *x, ValueId a, double rate, int which);
/* The same for the weights inside an attention. */
AttrsId model_draws(Model *x, AttrsId attrs, double rate, int which);
/* Where only some slots of x are in use (op dot_filled). */
ValueId model_dot_filled(Model *x, ValueId a, ValueId b, ValueId filled,
                         const char *dims);
ValueId model_bias(Model *x, ValueId y, const char *name);
/* Where the function under construction ends so far. */
uint32_t model_mark(const Model *x);
/* What was built since a mark is part of a module of training.recompute, unless
 * it is part of another one. */
void model_module(Model *x, uint32_t mark, SpecModule module);
FuncId model_begin(Model *x, const char *name, const char *path);
void model_result(Model *x, ValueId v);

/* ---- model_layer.c: the block of a layer --------------------------------- */

/* RMSNorm or LayerNorm over h with the parameter `weight`. */
ValueId model_norm(Model *x, ValueId a, const char *weight);
/* The MLP; `prefix` tells its weights from those of others, `hint` is for the
 * result.  Rows are those of tokens, [s,b,h], or of experts' slots, [e,c,h], of
 * which `filled` are in use. */
ValueId model_mlp(Model *x, ValueId n, const char *prefix, ValueId filled,
                  const char *hint);
/* The layer of x->kind. */
FuncId model_layer(Model *x);

/* ---- model_moe.c: a mixture of experts ----------------------------------- */

ValueId model_moe(Model *x, ValueId n);

/* ---- model_experts.c: tokens to experts and back ------------------------- */

/* The sum of what its experts make of each row of n, weighted. */
ValueId model_experts(Model *x, ValueId choice, ValueId weight, ValueId n);

/* ---- model_head.c: logits and cross-entropy ------------------------------ */

FuncId model_head(Model *x, TensorId loss);

#endif
