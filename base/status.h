/* status.h - how code that runs on the user's machines reports failure.
 *
 * A Status is NULL on success, else an owned record of a code and a message.
 * The code says what the caller may do; the message says what happened, where
 * (file and field, or rank, step and instruction).  Whoever first decides
 * which error it is writes the message; those above hand the Status on.
 */
#ifndef MEGAC_STATUS_H
#define MEGAC_STATUS_H

#include "base/base.h"

typedef enum {
    STATUS_OK,
    STATUS_INPUT,     /* a file or setting of the user's is wrong: fix it */
    STATUS_SYSTEM,    /* the machine refused (disk, memory, permission) */
    STATUS_RUN,       /* the run failed (NaN, a lost rank, a stuck peer) */
    STATUS_CANCELLED, /* asked to stop; nothing is wrong */
} StatusCode;

typedef struct StatusRecord *Status;

#define STATUS_NONE ((Status)NULL)

/* Makes a failure.  Never returns NULL: if memory is short, a fixed record. */
MC_MUST_USE Status status_make(StatusCode code, const char *fmt, ...)
    MC_PRINTF(2, 3);
/* The same, followed by the text of the system error `error` (an errno). */
MC_MUST_USE Status status_system(int error, const char *fmt, ...)
    MC_PRINTF(2, 3);
/* Puts "context: " in front of the message; passes success through. */
MC_MUST_USE Status status_in(Status status, const char *fmt, ...)
    MC_PRINTF(2, 3);

StatusCode status_code(Status status);
/* Lives as long as the Status. "" for success. */
const char *status_text(Status status);
/* Frees a Status; NULL is allowed. */
void status_drop(Status status);

/* Leaves the function with the failure of `expr`, if it fails. */
#define STATUS_TRY(expr)                                                       \
    do {                                                                       \
        Status status_try_ = (expr);                                           \
        if (status_try_)                                                       \
            return status_try_;                                                \
    } while (0)

#endif
