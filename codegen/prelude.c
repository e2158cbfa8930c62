/* prelude.c - the texts that generated kernels start from.
 *
 * The .inc files are ordinary C (or CUDA C++) for an editor; CMake turns their
 * bytes into the arrays of embedded.h, so that the program needs no files.
 */
#include "codegen/codegen_priv.h"

#include <ctype.h>

#include "embedded.h"

static const char *const TEXTS[] = {
    [TEXT_PRELUDE_CPU] = prelude_cpu_inc,
    [TEXT_PRELUDE_CUDA] = prelude_cuda_inc,
    [TEXT_ATTENTION_BLOCK_CPU] = attention_block_cpu_inc,
    [TEXT_ATTENTION_CPU] = attention_cpu_inc,
    [TEXT_ATTENTION_GRAD_CPU] = attention_grad_cpu_inc,
    [TEXT_ATTENTION_CUDA] = attention_cuda_inc,
    [TEXT_ATTENTION_GRAD_CUDA] = attention_grad_cuda_inc,
    [TEXT_DRAWS] = draws_inc,
    [TEXT_ATTENTION_DRAWS] = attention_draws_inc,
};

const char *codegen_text(TextId id)
{
    return TEXTS[id];
}

const char *codegen_prelude(Dialect dialect)
{
    return codegen_text(dialect == DIALECT_CPU ? TEXT_PRELUDE_CPU
                                               : TEXT_PRELUDE_CUDA);
}

void codegen_expand(const char *text, const char *name, Buf *out)
{
    const char *at;

    while ((at = strchr(text, '@'))) {
        buf_write(out, text, (size_t)(at - text));
        buf_puts(out, name);
        text = at + 1;
        if (isalnum((unsigned char)*text))
            buf_puts(out, "_");
    }
    buf_puts(out, text);
}
