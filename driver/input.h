/* input.h - the SPEC|DIR operand that most commands take. */
#ifndef MEGAC_DRIVER_INPUT_H
#define MEGAC_DRIVER_INPUT_H

#include "driver/cli.h"
#include "frontend/frontend.h"

typedef struct {
    Arena *arena;
    Diag *diag;
    const Spec *spec;
    const char *dir; /* of the compiled program; NULL for a spec */
} Input;

/* Loads a YAML file, or DIR/spec.yaml of a compiled program.  Close it also if
 * the result is not CLI_DONE. */
CliExit input_open(Input *input, const char *path, const CliList *sets);
/* The same, changed by Megatron's flags too. */
CliExit input_open_flags(Input *input, const char *path, const CliList *sets,
                         const CliList *flags);
/* Prints what was reported to input->diag, by whomever, once, and frees. */
void input_close(Input *input);

#endif
