/* fuzz_megatron.c - any text as a command line of Megatron-LM: errors, or a
 * Spec whose normal form reads back to it. */
#include "frontend/frontend.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void read_back(Arena *a, Diag *d, const Spec *s)
{
    Buf first = {0}, second = {0};
    Spec *again;

    spec_print(s, &first);
    again = spec_parse(a, d, "normal form", buf_str(&first), NULL, 0);
    if (!again)
        abort();
    spec_print(again, &second);
    if (strcmp(buf_str(&first), buf_str(&second)) != 0)
        abort();
    buf_free(&first);
    buf_free(&second);
}

static void print_errors(Diag *d)
{
    FILE *nowhere = fopen("/dev/null", "w");

    if (!nowhere)
        abort();
    diag_print(d, nowhere);
    fclose(nowhere);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    char *text = arena_strndup(a, (const char *)bytes, size);
    Spec *s = spec_import_megatron(a, d, text);

    if (!s != (diag_errors(d) > 0))
        abort();
    if (s)
        read_back(a, d, s);
    print_errors(d);
    diag_free(d);
    arena_free(a);
    return 0;
}
