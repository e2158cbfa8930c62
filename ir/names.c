/* names.c - the fixed words of the textual form, in the order of their enums. */
#include "ir/ir_priv.h"

#include <ctype.h>

const char *const field_names[FIELD_COUNT] = {"param", "master", "grad",
                                              "m",     "v",      "acc"};
const char *const stream_names[STREAM_COUNT] = {"compute", "tp", "cp",  "ep",
                                                "dp",      "pp", "copy"};
const char *const init_names[INIT_ONES + 1] = {"none", "normal", "zeros",
                                               "ones"};

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
