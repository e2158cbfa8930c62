/* status.c - failures as values: a code and a message.
 *
 * One allocation per failure, none on success.  If even that one fails, a
 * fixed record stands in, so that running out of memory is reported like
 * everything else; status_drop knows that record and leaves it alone.
 */
#include "base/status.h"

#include <stdlib.h>

struct StatusRecord {
    StatusCode code;
    char text[];
};

static struct {
    StatusCode code;
    char text[16];
} out_of_memory = {STATUS_SYSTEM, "out of memory"};

static Status fallback(void)
{
    return (Status)(void *)&out_of_memory;
}

/* "<a><b>" as a new record. */
static Status make(StatusCode code, const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    Status s = malloc(sizeof *s + n + m + 1);

    if (!s)
        return fallback();
    s->code = code;
    memcpy(s->text, a, n);
    memcpy(s->text + n, b, m + 1);
    return s;
}

static char *format(const char *fmt, va_list ap)
{
    char *text = NULL;

    return vasprintf(&text, fmt, ap) < 0 ? NULL : text;
}

Status status_make(StatusCode code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    char *text = format(fmt, ap);
    va_end(ap);
    Status s = text ? make(code, text, "") : fallback();
    free(text);
    return s;
}

Status status_system(int error, const char *fmt, ...)
{
    char reason[160];
    va_list ap;

    snprintf(reason, sizeof reason, ": %s", strerror(error));
    va_start(ap, fmt);
    char *text = format(fmt, ap);
    va_end(ap);
    Status s = text ? make(STATUS_SYSTEM, text, reason) : fallback();
    free(text);
    return s;
}

Status status_in(Status status, const char *fmt, ...)
{
    va_list ap;

    if (!status)
        return STATUS_NONE;
    va_start(ap, fmt);
    char *where = format(fmt, ap);
    va_end(ap);
    if (!where)
        return status;
    Status s = status_make(status->code, "%s: %s", where, status->text);
    free(where);
    status_drop(status);
    return s;
}

StatusCode status_code(Status status)
{
    return status ? status->code : STATUS_OK;
}

const char *status_text(Status status)
{
    return status ? status->text : "";
}

void status_drop(Status status)
{
    if (status != fallback())
        free(status);
}
