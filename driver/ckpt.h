/* ckpt.h - shared by the commands of `megac ckpt`. */
#ifndef MEGAC_DRIVER_CKPT_H
#define MEGAC_DRIVER_CKPT_H

#include "driver/folder.h"
#include "driver/input.h"
#include "runtime/safetensors.h"

extern const CliCommand ckpt_export_hf, ckpt_import_hf, ckpt_info,
    ckpt_reshard;

#define CKPT_SHARD_OPTION(to)                                                  \
    {"--max-shard-size", 0, "SIZE", CLI_TEXT, to,                              \
     "bytes of tensors in a file: 20000, 500MB, 5GB, 2GiB (default: 5GB)"}

/* ---- ckpt.c -------------------------------------------------------------- */

/* A size as Hugging Face spells it; NULL: 5GB. */
CliExit ckpt_size(const char *text, uint64_t *out);
/* bf16, fp32 or fp16, as a PlanDtype; NULL: fp32. */
CliExit ckpt_dtype(const char *text, uint32_t *out);
/* The folder of a checkpoint: of one in which a run leaves checkpoints, the
 * newest that is complete; any other path is what it is. */
MC_MUST_USE Status ckpt_find(Arena *a, const char *path, const char **out);
/* Opens weights, and compares them with the model of a spec. */
MC_MUST_USE Status ckpt_open(const char *path, const Input *in, SafeSet *out);
/* Reads a set that was written, and says what it is. */
MC_MUST_USE Status ckpt_report(const char *dir, const char *stem);

#endif
