/* input.c - loads the spec that an operand names. */
#include "driver/input.h"

#include <sys/stat.h>

static bool is_directory(const char *path)
{
    struct stat st;

    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

CliExit input_open(Input *in, const char *path, const CliList *sets)
{
    return input_open_flags(in, path, sets, &(CliList){0});
}

CliExit input_open_flags(Input *in, const char *path, const CliList *sets,
                         const CliList *flags)
{
    const SpecChanges changes = {.sets = sets->v, .nsets = sets->n,
                                 .flags = flags->v, .nflags = flags->n};

    *in = (Input){.arena = arena_new()};
    in->diag = diag_new(in->arena);
    if (is_directory(path)) {
        in->dir = path;
        path = arena_printf(in->arena, "%s/spec.yaml", path);
    }
    in->spec = spec_load_changed(in->arena, in->diag, path, &changes);
    return in->spec ? CLI_DONE : CLI_INPUT;
}

void input_close(Input *in)
{
    fflush(stdout);
    diag_print(in->diag, stderr);
    diag_free(in->diag);
    arena_free(in->arena);
    *in = (Input){0};
}
