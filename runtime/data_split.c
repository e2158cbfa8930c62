/* data_split.c - "969,30,1": which part of the documents a part may see.
 *
 * As Megatron: the weights are normalised to fractions, summed to book-ends
 * from 0 to 1, and each book-end times the number of documents is rounded half
 * to even.  Missing weights are zero.
 */
#include "runtime/data_priv.h"

#include "base/split.h"

#include <math.h>

static const char *const part_names[DATA_PARTS] = {"training", "validation",
                                                   "test"};

Status data_split_range(const char *split, DataPart part, uint64_t n,
                        uint64_t *out_first, uint64_t *out_end)
{
    double weights[SPLIT_PARTS], sum = 0, end = 0, first = 0;

    if (!split) {
        *out_first = 0;
        *out_end = n;
        return STATUS_NONE;
    }
    if (!split_parse(split, weights))
        return status_make(STATUS_INPUT,
                           "data.split: \"%s\" is not up to three weights "
                           "such as \"969,30,1\"", split);
    for (int i = 0; i < DATA_PARTS; i++)
        sum += weights[i];
    for (int i = 0; i <= (int)part; i++) {
        first = end;
        end = first + weights[i] / sum;
    }
    uint64_t a = (uint64_t)rint(first * (double)n);
    uint64_t b = MC_MIN((uint64_t)rint(end * (double)n), n);
    if (a >= b)
        return status_make(STATUS_INPUT,
                           "data.split: \"%s\" leaves nothing for %s", split,
                           part_names[part]);
    *out_first = a;
    *out_end = b;
    return STATUS_NONE;
}
