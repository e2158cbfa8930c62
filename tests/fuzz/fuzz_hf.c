/* fuzz_hf.c - any bytes as a config.json: errors, or a Spec that reads back
 * from its YAML, and from the config.json that is written for it.
 */
#include "frontend/hf.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void must(bool ok, Diag *d)
{
    if (ok)
        return;
    diag_print(d, stderr);
    abort();
}

static void reparse(Arena *a, const Spec *s)
{
    Diag *d = diag_new(a);
    Buf given = {0}, first = {0}, second = {0};
    Spec *again;

    spec_print_given(s, &given);
    again = spec_parse(a, d, "made", buf_str(&given), NULL, 0);
    must(again != NULL, d);
    spec_print(s, &first);
    spec_print(again, &second);
    must(strcmp(buf_str(&first), buf_str(&second)) == 0, d);
    buf_free(&given);
    buf_free(&first);
    buf_free(&second);
    diag_free(d);
}

static void rewrite(Arena *a, const Spec *s)
{
    Diag *d = diag_new(a);
    Buf text = {0};

    must(hf_config_write(a, d, s, "float32", &text), d);
    buf_free(&text);
    diag_free(d);
}

static void print_errors(Diag *d)
{
    FILE *nowhere = fopen("/dev/null", "w");

    must(nowhere != NULL, d);
    diag_print(d, nowhere);
    fclose(nowhere);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Spec *s = hf_config_parse(a, d, "fuzz", (const char *)bytes, size, NULL, 0);

    if (s) {
        reparse(a, s);
        rewrite(a, s);
    }
    print_errors(d);
    diag_free(d);
    arena_free(a);
    return 0;
}
