/* hf_keys.c - the rows of hf.def as arrays, and how to find one. */
#include "frontend/hf_priv.h"

enum {
#define FAMILY(id, type, architecture) INDEX_##id,
#define FACT(families, path, value)
#define KEY(families, names, path, use, fallback)
#define IGNORE(families, names)
#include "frontend/hf.def"
#undef FAMILY
    NUM_FAMILIES
};

/* Sets of families. */
enum {
#define FAMILY(id, type, architecture) id = 1 << INDEX_##id,
#include "frontend/hf.def"
#undef FAMILY
    ALL = (1 << NUM_FAMILIES) - 1,
    ROTARY = ALL & ~GPT2,
    QWEN = QWEN2 | QWEN3 | QWEN2_MOE | QWEN3_MOE,
    SIGMOID = DOTS1 | GLM4_MOE
};

const HfFamily hf_families[] = {
#define FAMILY(id, type, architecture) {type, architecture},
#include "frontend/hf.def"
#undef FAMILY
};
const uint32_t hf_num_families = NUM_FAMILIES;

#define FAMILY(id, type, architecture)
#undef FACT
const HfFact hf_facts[] = {
#define FACT(families, path, value) {families, path, value},
#include "frontend/hf.def"
#undef FACT
};
const uint32_t hf_num_facts = MC_LEN(hf_facts);

#define FACT(families, path, value)
#undef KEY
#undef IGNORE
const HfKey hf_keys[] = {
#define KEY(families, names, path, use, fallback)                              \
    {families, names, path, HF_##use, fallback},
#define IGNORE(families, names) {families, names, "", HF_IGNORE, NULL},
#include "frontend/hf.def"
};
const uint32_t hf_num_keys = MC_LEN(hf_keys);

const HfKey *hf_key(uint32_t family, const char *name)
{
    for (uint32_t i = 0; i < hf_num_keys; i++)
        if (hf_keys[i].families >> family & 1 &&
            spelling_in(hf_keys[i].names, name, strlen(name)))
            return &hf_keys[i];
    return NULL;
}

uint32_t hf_family(const char *type)
{
    uint32_t i = 0;

    while (i < hf_num_families && strcmp(hf_families[i].type, type) != 0)
        i++;
    return i;
}
