/* safetensors.h - tensors in files, as Hugging Face writes them.
 *
 * A set of tensors is one file, or several that an index lists:
 *
 *     model.safetensors
 *     model.safetensors.index.json  {"metadata": {"total_size": BYTES},
 *     model-00001-of-00002.safetensors           "weight_map": {TENSOR: FILE}}
 *     model-00002-of-00002.safetensors
 *
 * A file is 8 bytes of header length, a JSON header, then the tensors
 * (https://huggingface.co/docs/safetensors).
 */
#ifndef MEGAC_RUNTIME_SAFETENSORS_H
#define MEGAC_RUNTIME_SAFETENSORS_H

#include "base/status.h"

typedef struct {
    char *name;
    uint32_t dtype; /* PLAN_F32, PLAN_BF16, PLAN_F16; PLAN_DTYPES: another */
    uint32_t part;  /* the file that it is in */
    int64_t rows, columns; /* columns 0: a vector; other ranks: -1, -1 */
    uint64_t begin, end;   /* in that file */
} SafeTensor;

typedef struct {
    char *name;   /* without a folder */
    char *map;    /* all of it, if it was read */
    char *header; /* the first bytes, if it is to be written */
    size_t bytes, header_bytes;
} SafePart;

typedef struct {
    char *path; /* as it was opened */
    SafeTensor *v; /* in the order of their names */
    SafePart *part;
    uint32_t n, nparts;
} SafeSet;

/* ---- safetensors.c, safetensors_set.c: reading --------------------------- */

/* Opens a file, an index (*.json), or the set `model` of a folder.  All headers
 * are checked, and that the index lists exactly what there is.  The tensors are
 * mapped.  Error: STATUS_INPUT. */
MC_MUST_USE Status safe_open(const char *path, SafeSet *out);
/* The set `stem` of a folder: STEM.safetensors, or STEM.safetensors.index.json
 * and its parts. */
MC_MUST_USE Status safe_open_in(const char *dir, const char *stem,
                                SafeSet *out);
void safe_close(SafeSet *set);
const SafeTensor *safe_find(const SafeSet *set, const char *name);
/* The values of a tensor of a set that was opened. */
const char *safe_bytes(const SafeSet *set, const SafeTensor *t);
/* The sum over all tensors. */
uint64_t safe_total(const SafeSet *set);

/* ---- safetensors_fit.c: is it this model? -------------------------------- */

/* Names the tensors of a set as the model does, and drops what is known to be
 * no parameter and a head that is the same as a tied table.  Fails unless
 * what is left are the names and shapes of `model`, in a type that can be
 * read. */
MC_MUST_USE Status safe_fit(SafeSet *set, const SafeSet *model);

/* ---- safetensors_write.c: writing ---------------------------------------- */

/* Sorts tensors, of which name, type and shape are known, drops doubles, and
 * gives each a place: in one file, or in parts of at most `part_bytes` of
 * tensors (0: no limit; a larger tensor has a part of its own). */
MC_MUST_USE Status safe_layout(SafeSet *set, const char *stem,
                               uint64_t part_bytes);
/* Writes DIR/STEM.safetensors.index.json, beside it first. */
MC_MUST_USE Status safe_write_index(const SafeSet *set, const char *dir,
                                    const char *stem);
/* Makes the file of a part at its full size, with its header. */
MC_MUST_USE Status safe_create(const char *path, const SafePart *part);
MC_MUST_USE Status safe_write(const char *path, int fd, const char *bytes,
                              size_t n, uint64_t at);

/* ---- safetensors_copy.c: a set once more --------------------------------- */

typedef struct {
    const char *dir, *stem; /* where to, as in safe_open_in */
    uint64_t part_bytes;    /* as in safe_layout */
    uint32_t dtype;         /* PLAN_DTYPES: each tensor as it is */
} SafeCopy;

/* Writes the tensors of a set that was opened.  What the type cannot hold is
 * an error. */
MC_MUST_USE Status safe_copy(const SafeSet *from, const SafeCopy *how);

#endif
