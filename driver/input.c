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
    *in = (Input){.arena = arena_new()};
    in->diag = diag_new(in->arena);
    if (is_directory(path)) {
        in->dir = path;
        path = arena_printf(in->arena, "%s/spec.yaml", path);
    }
    in->spec = spec_load(in->arena, in->diag, path, sets->v, (int)sets->n);
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
