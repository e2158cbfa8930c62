/* hf.h - Hugging Face's config.json, read and written.
 *
 * transformers' config classes are the measure: what config.json leaves out is
 * what they take, and a model that they would not build alike is an error that
 * names the key.
 */
#ifndef MEGAC_FRONTEND_HF_H
#define MEGAC_FRONTEND_HF_H

#include "frontend/frontend.h"

/* ---- import_hf.c --------------------------------------------------------- */

/* The model of a config.json, or of the folder around it, with the defaults of
 * everything else.  Every key is used, known not to matter, one of `ignored`,
 * or reported.  NULL after errors, all of which are in `d`. */
Spec *hf_config_load(Arena *a, Diag *d, const char *path,
                     const char *const *ignored, uint32_t nignored);
/* The same from memory; `name` stands in messages and names the model. */
Spec *hf_config_parse(Arena *a, Diag *d, const char *name, const char *text,
                      size_t len, const char *const *ignored,
                      uint32_t nignored);

/* ---- hf_write.c ---------------------------------------------------------- */

/* The config.json that reads back to this model; `dtype` is that of the weights
 * beside it ("float32").  False, and a report of what it is that no family of
 * transformers has, if there is none. */
bool hf_config_write(Arena *a, Diag *d, const Spec *s, const char *dtype,
                     Buf *out);

#endif
