/* fuzz_yaml.c - any bytes as a specification: errors, or a Spec whose normal
 * form parses to the same normal form and which can be shrunk.
 *
 * Text behind the first NUL byte is a --set argument.
 */
#include "frontend/frontend.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void reparse(Arena *a, const Spec *s)
{
    Diag *d = diag_new(a);
    Buf first = {0}, second = {0};
    Spec *again;

    spec_print(s, &first);
    again = spec_parse(a, d, "normal form", buf_str(&first), NULL, 0);
    if (!again) {
        diag_print(d, stderr);
        abort();
    }
    spec_print(again, &second);
    if (strcmp(buf_str(&first), buf_str(&second)) != 0)
        abort();
    buf_free(&first);
    buf_free(&second);
    diag_free(d);
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
    const char *text = arena_strndup(a, (const char *)bytes, size);
    size_t len = strlen(text);
    const char *set = len < size ? text + len + 1 : "";
    Spec *s = spec_parse(a, d, "fuzz", text, &set, *set ? 1 : 0);

    if (s) {
        reparse(a, s);
        reparse(a, spec_shrink(a, s));
    }
    print_errors(d);
    diag_free(d);
    arena_free(a);
    return 0;
}
