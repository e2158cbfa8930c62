/* data.h - what the files of `megac data` share. */
#ifndef MEGAC_DRIVER_DATA_H
#define MEGAC_DRIVER_DATA_H

#include "driver/cli.h"
#include "runtime/data.h"

/* data.c: the name without .bin or .idx; malloc'ed. */
char *data_prefix(const char *name);

/* data_pack.c */
extern const CliCommand data_pack;

/* ---- data_files.c ------------------------------------------------------- */

/* Which files of a directory are taken: those that match one of `include` (if
 * there is any) and none of `exclude`.  A pattern with a slash is matched
 * against the path below the operand, one without against the name. */
typedef struct {
    CliList include, exclude;
} DataFilter;

/* The regular files that the operands name: themselves, or, of a directory,
 * everything below it in the order of the bytes of their paths.  Symbolic
 * links and names that begin with a dot are left out. */
MC_MUST_USE Status data_files(const CliList *operands,
                              const DataFilter *filter, Arena *a,
                              CliList *out_files);

/* ---- data_tokens.c ------------------------------------------------------ */

/* How the tokens stand in a file. */
typedef enum {
    DATA_FORMAT_BYTES,  /* each byte is a token */
    DATA_FORMAT_UINT16, /* binary, little endian */
    DATA_FORMAT_INT32,
    DATA_FORMAT_IDS, /* decimal numbers between white space */
} DataFormat;

/* Appends the tokens of a file to the document under construction. */
MC_MUST_USE Status data_tokens(const char *path, DataFormat format,
                               DataWriter *w, uint64_t *out_n);

#endif
