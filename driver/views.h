/* views.h - the views of `megac inspect`, one pair of functions each. */
#ifndef MEGAC_DRIVER_VIEWS_H
#define MEGAC_DRIVER_VIEWS_H

#include "driver/program.h"

#include <jansson.h>

typedef struct {
    const Input *in;
    const Program *program; /* of planned views */
    CliExit *code;          /* set by a view that fails */
} View;

/* The document of `--json`; the caller owns it. */
typedef json_t *(*ViewJson)(const View *view);
typedef void (*ViewText)(const View *view, FILE *to);

/* How a parameter rests, as text. */
const char *view_param_layout(const View *view, const Tensor *t);

#define VIEW(name, planned, help)                                              \
    json_t *view_##name##_json(const View *view);                              \
    void view_##name##_text(const View *view, FILE *to);
#include "driver/views.def"
#undef VIEW

#endif
