/* payload.h - what a rank executable carries behind the program itself.
 *
 *     megac-rank | plan | kernels (shared object) | trailer
 *
 * The linker of rank executables writes it, the program finds it in its own
 * file.  Offsets are from the file's start.
 */
#ifndef MEGAC_RUNTIME_PAYLOAD_H
#define MEGAC_RUNTIME_PAYLOAD_H

#include "base/base.h"
#include "base/status.h"

#define PAYLOAD_MAGIC "MEGACPAY"

typedef struct {
    uint64_t plan_offset, plan_bytes;
    uint64_t kernels_offset, kernels_bytes; /* 0 bytes: no kernels */
    uint64_t kernels_hash;                  /* XXH3; a plan has its own */
    uint64_t run; /* equal in all executables that were made together */
    char magic[8];
} PayloadTrailer;

/* ---- plan_payload.c ------------------------------------------------------ */

typedef struct {
    const void *plan, *kernels;
    size_t plan_bytes, kernels_bytes;
    uint64_t run;
} PayloadParts;

/* Writes `path`, executable: a copy of `program`, then the payload.  Beside it
 * first, then renamed. */
MC_MUST_USE Status payload_write(const char *path, const char *program,
                                 const PayloadParts *parts);

/* The plan of a file, in memory of its own, and the kernels as a path that
 * dlopen accepts (it names an anonymous file of this process).
 * `plan` is NULL if the file carries no payload. */
typedef struct {
    char *plan;
    size_t plan_bytes;
    uint64_t run;
    char kernels[64]; /* "" if there are none */
} Payload;
MC_MUST_USE Status payload_read(const char *path, Payload *out);

#endif
