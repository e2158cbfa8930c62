/* hf_priv.h - what the files of Hugging Face's config.json share. */
#ifndef MEGAC_FRONTEND_HF_PRIV_H
#define MEGAC_FRONTEND_HF_PRIV_H

#include "frontend/frontend_priv.h"
#include "frontend/hf.h"

/* ---- hf_keys.c: the rows of hf.def --------------------------------------- */

typedef enum { HF_COPY, HF_MAYBE, HF_NOT, HF_ONLY, HF_RULE, HF_IGNORE } HfUse;

typedef struct {
    const char *type, *architecture;
} HfFamily;

typedef struct {
    uint32_t families; /* a bit each */
    const char *path, *value;
} HfFact;

typedef struct {
    uint32_t families;
    const char *names, *path;
    HfUse use;
    const char *fallback;
} HfKey;

extern const HfFamily hf_families[];
extern const uint32_t hf_num_families;
extern const HfFact hf_facts[];
extern const uint32_t hf_num_facts;
extern const HfKey hf_keys[];
extern const uint32_t hf_num_keys;

/* The row of a key of a family; NULL if it has none of that name. */
const HfKey *hf_key(uint32_t family, const char *name);
/* The index of a model_type; hf_num_families if there is none. */
uint32_t hf_family(const char *type);

/* ---- import_hf.c --------------------------------------------------------- */

/* A config.json on its way to a tree of settings. */
typedef struct {
    Arena *arena;
    Diag *diag;
    const Node *config;
    uint32_t family;
    bool dense;    /* without experts, though its family may have them */
    bool *experts; /* by layer; NULL where the family has no pattern */
    int64_t layers;
    Node *spec;
    Loc by_family; /* of what config.json leaves out */
} Hf;

/* What config.json says, or the default of the family; NULL if the family has
 * no such key. */
const Node *hf_get(const Hf *hf, const char *name);
void hf_put(Hf *hf, const char *path, const char *text, Loc loc);
/* "NAME = VALUE: …" */
void hf_reject(const Hf *hf, const char *name, const Node *value,
               const char *fmt, ...) MC_PRINTF(4, 5);
/* Values by kind; false if it is another, which is reported once. */
bool hf_int(const Hf *hf, const char *name, int64_t *out);
bool hf_bool(const Hf *hf, const char *name, bool *out);

/* ---- hf_rules.c: keys whose meaning depends on others -------------------- */

void hf_rules(Hf *hf);
/* transformers' word for the activation of an MLP; NULL if it has none. */
const char *hf_activation(bool gated, SpecActivation activation);

/* ---- hf_experts.c -------------------------------------------------------- */

/* Which layers have experts; it is dense where none has. */
void hf_layers_find(Hf *hf);
void hf_experts_rule(Hf *hf);

#endif
