/* split.h - shares of training, validation and test data: "969,30,1". */
#ifndef MEGAC_SPLIT_H
#define MEGAC_SPLIT_H

#include <stdbool.h>

enum { SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST, SPLIT_PARTS };

/* Up to three weights with commas between them; missing ones are 0.  False if
 * the text is anything else, a weight negative, or all of them 0. */
bool split_parse(const char *text, double out_weights[SPLIT_PARTS]);

#endif
