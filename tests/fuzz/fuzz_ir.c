/* fuzz_ir.c - any text as IR: a diagnostic, or a module that prints the same
 * after being printed and read again, and that the verifier can judge.
 */
#include "ir/ir.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static Module *parse(Arena *a, Diag *d, const char *text)
{
    Module *m = module_parse(a, d, "fuzz.mir", text);

    if (!m != (diag_errors(d) > 0))
        abort(); /* an error without a message, or the other way round */
    return m;
}

static void must_read_back(Arena *a, Diag *d, const Module *m)
{
    Buf once = {0}, twice = {0};
    Module *again;

    module_print(m, &once);
    again = parse(a, d, buf_str(&once));
    if (!again)
        abort();
    module_print(again, &twice);
    if (strcmp(buf_str(&once), buf_str(&twice)))
        abort();
    module_free(again);
    buf_free(&once);
    buf_free(&twice);
}

/* What passes ask of a module that the verifier let through. */
static void count_flops(const Module *m)
{
    for (uint32_t f = 1; f < m->funcs.n; f++)
        for (uint32_t i = 0; i < m->funcs.v[f].body.n; i++) {
            const Node *n = &m->nodes.v[m->funcs.v[f].body.v[i].i];

            if (!(op_info[n->op].flops(m, n) >= 0))
                abort();
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    char *text = arena_strndup(a, (const char *)bytes, size);
    Module *m = parse(a, d, text);

    if (m) {
        must_read_back(a, d, m);
        if (module_verify(m))
            count_flops(m);
        module_free(m);
    }
    diag_free(d);
    arena_free(a);
    return 0;
}
