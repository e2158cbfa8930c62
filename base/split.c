/* split.c - reads the weights of a split, for the compiler, which rejects a
 * wrong one at its line, and for the runtime, which divides documents by it.
 */
#include "base/split.h"

#include "base/base.h"

#include <math.h>

/* One weight at *at, up to a comma or the end; blanks around it are nothing. */
static bool take_weight(const char **at, double *out)
{
    char text[32];
    size_t used;

    *at += strspn(*at, " ");
    used = strcspn(*at, ",");
    if (used >= sizeof text)
        return false;
    memcpy(text, *at, used);
    *at += used;
    while (used && text[used - 1] == ' ')
        used--;
    text[used] = '\0';
    return str_to_double(text, out) && isfinite(*out) && *out >= 0;
}

bool split_parse(const char *text, double out_weights[SPLIT_PARTS])
{
    double sum = 0;

    for (int i = 0; i < SPLIT_PARTS; i++) {
        out_weights[i] = 0;
        if (i > 0 && *text == '\0')
            continue;
        if (i > 0 && *text++ != ',')
            return false;
        if (!take_weight(&text, &out_weights[i]))
            return false;
        sum += out_weights[i];
    }
    return *text == '\0' && sum > 0;
}
