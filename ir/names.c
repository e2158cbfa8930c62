/* names.c - words of the textual form, in the order of their enums, and the
 * rules for names.
 */
#include "ir/ir_priv.h"

#include <ctype.h>

const char *const field_names[FIELD_COUNT] = {"param", "master", "grad", "gsum",
                                              "m",     "v",      "acc"};
const char *const stream_names[STREAM_COUNT] = {
    "compute", "tp", "cp", "ep", "dp", "pp", "copy",
    "send_fwd", "recv_fwd", "send_bwd", "recv_bwd"};
const char *const init_names[INIT_ONES + 1] = {"none", "normal", "zeros",
                                               "ones"};
const char *const prop_names[PROP_NAMES] = {
    "inferred",  "grad",  "layout",  "resharded", "staged",
    "pipelined", "fused", "streams", "planned", "optimizer",
    "split",     "ring",  "prefetched"};

int word_find(const char *const *table, int n, const char *word)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(table[i], word))
            return i;
    return -1;
}

bool name_is_plain(const char *s)
{
    if (!*s || *s == '.')
        return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && *s != '_' && *s != '.')
            return false;
    return true;
}

static size_t digits_at_end(const char *s, size_t n)
{
    size_t digits = 0;

    while (digits < n && isdigit((unsigned char)s[n - 1 - digits]))
        digits++;
    return digits;
}

Sym name_base(SymTab *names, Sym name)
{
    const char *s = sym_text(names, name);
    size_t n = strlen(s), digits;

    while ((digits = digits_at_end(s, n)) && digits < n &&
           s[n - digits - 1] == '.')
        n -= digits + 1;
    if (digits == n)
        return (Sym){0};
    return s[n] ? sym_intern_n(names, s, n) : name;
}
