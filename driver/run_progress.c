/* run_progress.c - shows how a run goes, from the lines of metrics.jsonl.
 *
 * The ranks know nothing of terminals; they append to the file and this reads
 * behind them.  On a terminal one line is rewritten, otherwise lines follow
 * each other, at most one a second.  A line that is not complete yet is left
 * for the next poll.
 */
#include "driver/run.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <unistd.h>

static long file_size(const char *path)
{
    FILE *f = fopen(path, "rb");
    long size = 0;

    if (f && !fseek(f, 0, SEEK_END))
        size = ftell(f);
    if (f)
        fclose(f);
    return MC_MAX(size, 0);
}

void progress_start(Progress *p, const char *path, int64_t total)
{
    *p = (Progress){.path = path, .total = total, .at = file_size(path),
                    .live = isatty(STDERR_FILENO) == 1, .step = -1};
}

/* ---- reading ------------------------------------------------------------- */

static double number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    return json_is_number(v) ? json_number_value(v) : NAN;
}

static void read_line(Progress *p, const char *line, size_t n)
{
    json_t *o = json_loadb(line, n, 0, NULL);
    double step = number(o, "step"), time = number(o, "step_time_s");

    if (step >= 0 && step < 1e15) {
        p->step = (int64_t)step;
        p->loss = number(o, "loss");
        p->tokens_per_s = number(o, "tokens_per_s");
        p->fresh = true;
        if (time > 0)
            p->step_time = p->step_time > 0
                               ? 0.9 * p->step_time + 0.1 * time
                               : time;
    }
    json_decref(o);
}

/* Reads the complete lines behind p->at. */
static void read_new(Progress *p)
{
    FILE *f = fopen(p->path, "rb");
    char *line = NULL;
    size_t size = 0;
    ssize_t n;

    if (!f)
        return;
    if (file_size(p->path) < p->at)
        p->at = 0; /* the run has begun the file anew */
    if (!fseek(f, p->at, SEEK_SET))
        while ((n = getline(&line, &size, f)) > 0 && line[n - 1] == '\n') {
            read_line(p, line, (size_t)n);
            p->at += n;
        }
    free(line);
    fclose(f);
}

/* ---- showing ------------------------------------------------------------- */

/* 950, 12.3k, 4.56M */
static const char *short_number(double x, char *out, size_t size)
{
    static const char units[] = {'k', 'M', 'G', 'T'};
    int unit = -1;

    for (; x >= 1000 && unit + 1 < (int)MC_LEN(units); unit++)
        x /= 1000;
    if (unit < 0)
        snprintf(out, size, "%.0f", x);
    else
        snprintf(out, size, "%.3g%c", x, units[unit]);
    return out;
}

/* 0:07, 12:30, 1:02:03 */
static const char *duration(double seconds, char *out, size_t size)
{
    int64_t s = (int64_t)(seconds + 0.5);

    if (s >= 3600)
        snprintf(out, size, "%" PRId64 ":%02d:%02d", s / 3600,
                 (int)(s / 60 % 60), (int)(s % 60));
    else
        snprintf(out, size, "%d:%02d", (int)(s / 60), (int)(s % 60));
    return out;
}

static void show(Progress *p)
{
    double left = (double)(p->total - p->step) * p->step_time;
    char speed[32], eta[32];

    fprintf(stderr, "%sstep %" PRId64 "/%" PRId64
                    "  loss %.4f  %s tokens/s  %s left%s",
            p->live ? "\r\033[K" : "", p->step, p->total, p->loss,
            short_number(p->tokens_per_s, speed, sizeof speed),
            duration(left, eta, sizeof eta), p->live ? "" : "\n");
    p->shown = mc_seconds();
    p->fresh = false;
}

void progress_poll(Progress *p)
{
    read_new(p);
    if (p->fresh && mc_seconds() - p->shown >= (p->live ? 0.2 : 1.0))
        show(p);
}

void progress_end(Progress *p)
{
    read_new(p);
    if (p->fresh)
        show(p);
    if (p->live && p->step >= 0)
        fputc('\n', stderr);
}

void progress_clear(const Progress *p)
{
    if (p->live && p->step >= 0)
        fputs("\r\033[K", stderr);
}
