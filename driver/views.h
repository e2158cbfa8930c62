/* views.h - the views of `megac inspect`, one pair of functions each. */
#ifndef MEGAC_DRIVER_VIEWS_H
#define MEGAC_DRIVER_VIEWS_H

#include "driver/input.h"

#include <jansson.h>

/* The document of `--json`; the caller owns it. */
typedef json_t *(*ViewJson)(const Input *input);
typedef void (*ViewText)(const Input *input, FILE *to);

#define VIEW(name, help)                                                       \
    json_t *view_##name##_json(const Input *input);                            \
    void view_##name##_text(const Input *input, FILE *to);
#include "driver/views.def"
#undef VIEW

#endif
