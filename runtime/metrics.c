/* metrics.c - metrics.jsonl and the line of progress.
 *
 * One JSON object per step, flushed at once so that a reader follows a running
 * training.  JSON has no NaN: a value that is not finite is null.
 */
#include "runtime/metrics.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct Metrics {
    MetricsConfig c;
    FILE *file;
    double start;
};

/* Where the lines of steps up to `last` end.  What follows was written after
 * the checkpoint, or not to its end. */
static long end_of_steps(FILE *f, int64_t last)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    long end = 0;
    long long step;

    while ((n = getline(&line, &cap, f)) > 0 && line[n - 1] == '\n' &&
           sscanf(line, "{\"step\": %lld,", &step) == 1 && step <= last)
        end += n;
    free(line);
    return end;
}

/* Whether there are lines to go on from: a device or a pipe keeps none. */
static bool goes_on(const MetricsConfig *c)
{
    struct stat st;

    return c->before && stat(c->path, &st) == 0 && S_ISREG(st.st_mode);
}

static Status open_file(Metrics *m)
{
    bool on = goes_on(&m->c);

    m->file = fopen(m->c.path, on ? "a+" : "w");
    if (m->file && on) {
        rewind(m->file);
        if (ftruncate(fileno(m->file), end_of_steps(m->file, m->c.before)) ||
            fseek(m->file, 0, SEEK_END))
            return status_system(errno, "cannot shorten %s", m->c.path);
    }
    return m->file ? STATUS_NONE
                   : status_system(errno, "cannot write %s", m->c.path);
}

Status metrics_open(const MetricsConfig *config, Metrics **out)
{
    Metrics *m = calloc(1, sizeof *m);
    Status s = STATUS_NONE;

    if (!m)
        return status_make(STATUS_SYSTEM, "no memory for metrics");
    m->c = *config;
    m->start = mc_seconds();
    if (m->c.path && *m->c.path)
        s = open_file(m);
    if (s)
        status_drop(metrics_close(m));
    else
        *out = m;
    return s;
}

/* ---- the file ------------------------------------------------------------ */

static void put_number(FILE *f, const char *key, double value)
{
    if (isfinite(value))
        fprintf(f, ", \"%s\": %.9g", key, value);
    else
        fprintf(f, ", \"%s\": null", key);
}

static Status put_line(Metrics *m, const MetricsStep *s)
{
    static const struct {
        PlanMetric metric;
        const char *key;
    } keys[PLAN_METRICS] = {
        {PLAN_METRIC_LOSS, "loss"},
        {PLAN_METRIC_GRAD_NORM, "grad_norm"},
        {PLAN_METRIC_AUX_LOSS, "aux_loss"},
        {PLAN_METRIC_Z_LOSS, "z_loss"},
        {PLAN_METRIC_MAX_EXPERT_LOAD, "max_expert_load"},
    };

    fprintf(m->file, "{\"step\": %lld", (long long)s->step);
    for (size_t i = 0; i < MC_LEN(keys); i++)
        if (s->known[keys[i].metric])
            put_number(m->file, keys[i].key, (double)s->value[keys[i].metric]);
    if (s->evaluated)
        put_number(m->file, "valid_loss", s->valid_loss);
    put_number(m->file, "lr", s->lr);
    fprintf(m->file, ", \"tokens\": %lld", (long long)s->tokens);
    if (s->targets >= 0)
        put_number(m->file, "targets", s->targets);
    put_number(m->file, "step_time_s", s->seconds);
    put_number(m->file, "tokens_per_s", (double)s->tokens / s->seconds);
    fprintf(m->file, ", \"loss_scale\": %.17g", s->loss_scale);
    fprintf(m->file, ", \"skipped\": %d}\n", s->skipped);
    if (fflush(m->file) != 0)
        return status_system(errno, "cannot write %s", m->c.path);
    return STATUS_NONE;
}

/* ---- progress ------------------------------------------------------------ */

/* "1:02:03" */
static void clock_text(double seconds, char *out, size_t cap)
{
    long long s = seconds > 0 ? (long long)(seconds + 0.5) : 0;

    if (s >= 3600)
        snprintf(out, cap, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, cap, "%lld:%02lld", s / 60, s % 60);
}

/* "valid loss 4.1234", on a line of its own. */
static void put_valid(const Metrics *m, const MetricsStep *s)
{
    fprintf(stderr, "%svalid loss %.4f after step %lld%s\n",
            m->c.live ? "\r" : "", s->valid_loss, (long long)s->step,
            m->c.live ? "\x1b[K" : "");
}

static void put_progress(const Metrics *m, const MetricsStep *s)
{
    double each = (mc_seconds() - m->start) / (double)(s->step - m->c.before);
    bool last = s->step == m->c.steps;
    char left[32];

    clock_text(each * (double)(m->c.steps - s->step), left, sizeof left);
    fprintf(stderr,
            "%sstep %lld/%lld  loss %.4f  grad norm %.3f  lr %.3g  "
            "%.0f tokens/s  %s left%s",
            m->c.live ? "\r" : "", (long long)s->step, (long long)m->c.steps,
            (double)s->value[PLAN_METRIC_LOSS],
            (double)s->value[PLAN_METRIC_GRAD_NORM], s->lr,
            (double)s->tokens / s->seconds, left,
            m->c.live && !last ? "\x1b[K" : "\n");
    fflush(stderr);
}

Status metrics_step(Metrics *m, const MetricsStep *s)
{
    int64_t interval = MC_MAX(m->c.interval, 1);

    if (m->file)
        STATUS_TRY(put_line(m, s));
    if (!m->c.quiet &&
        (m->c.live || s->step % interval == 0 || s->step == m->c.steps))
        put_progress(m, s);
    if (!m->c.quiet && s->evaluated)
        put_valid(m, s);
    return STATUS_NONE;
}

Status metrics_close(Metrics *m)
{
    Status s = STATUS_NONE;

    if (m && m->file && fclose(m->file) != 0)
        s = status_system(errno, "cannot write %s", m->c.path);
    free(m);
    return s;
}
