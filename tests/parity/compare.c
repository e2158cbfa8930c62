/* compare.c - two runs of the same training, by numbers.
 *
 *   parity_compare [--loss-only TOLERANCE] [--exact] EXPECTED GOT
 *
 * A folder holds metrics.jsonl, first/grads.safetensors (of step 1) and
 * last/weights.safetensors (after the last step).  The limits are those that
 * fp32 leaves to another order of summation: loss 1e-5, gradient norm 1e-4
 * relative, gradients 1e-5 and weights 1e-4 in the relative L2 norm of each
 * tensor.  --exact allows no difference at all; --loss-only looks at the
 * relative difference of the losses and at nothing else.  In any case as much
 * counts in both runs, losses are scaled by the same, and steps skipped alike.
 */
#include "base/status.h"
#include "runtime/state.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

typedef struct {
    double loss, norm, grads, weights;
    bool loss_only;
} Limits;

static const Limits fp32_limits = {1e-5, 1e-4, 1e-5, 1e-4, false};
static unsigned wrong;

/* Prints what was compared; a NaN is above every limit. */
static void judge(const char *what, const char *name, double difference,
                  double limit)
{
    bool ok = difference <= limit;

    if (!ok)
        printf("%s %s: off by %.3g, limit %.3g\n", what, name, difference,
               limit);
    wrong += !ok;
}

static _Noreturn void fail(const char *path, const char *why)
{
    printf("%s: %s\n", path, why);
    exit(2);
}

/* ---- metrics ------------------------------------------------------------- */

static double number_of(const json_t *line, const char *key, const char *path)
{
    const json_t *value = json_object_get(line, key);

    if (!json_is_number(value))
        fail(path, key);
    return json_number_value(value);
}

/* The next line, or NULL at the end. */
static json_t *line_read(FILE *f, const char *path)
{
    json_error_t error;
    json_t *line = json_loadf(f, JSON_DISABLE_EOF_CHECK, &error);

    if (!line && json_error_code(&error) != json_error_premature_end_of_input)
        fail(path, error.text);
    return line;
}

/* Of batches in which nothing counts both are 0. */
static double relative(double a, double b)
{
    return fabs(b - a) <= 0 ? 0 : fabs(b / a - 1);
}

/* What both runs have decided alike, if there is anything to decide. */
static void judge_same(const json_t *a, const json_t *b, const char *key,
                       const char *path, const char *name)
{
    if (!json_object_get(a, key))
        return;
    judge(key, name, fabs(number_of(a, key, path) - number_of(b, key, path)),
          0);
}

static void judge_step(const json_t *a, const json_t *b, const Limits *l,
                       const char *path, unsigned step)
{
    double loss_a = number_of(a, "loss", path);
    double loss_b = number_of(b, "loss", path);
    double norm_a, norm_b;
    char name[32];

    snprintf(name, sizeof name, "of step %u", step);
    judge_same(a, b, "targets", path, name);
    judge_same(a, b, "loss_scale", path, name);
    judge_same(a, b, "skipped", path, name);
    if (l->loss_only) {
        judge("loss", name, relative(loss_a, loss_b), l->loss);
        return;
    }
    norm_a = number_of(a, "grad_norm", path);
    norm_b = number_of(b, "grad_norm", path);
    judge("loss", name, fabs(loss_b - loss_a), l->loss);
    judge("gradient norm", name, relative(norm_a, norm_b), l->norm);
}

static void compare_metrics(const char *const dirs[2], const Limits *l)
{
    json_t *line[2];
    char path[2][512];
    FILE *f[2];
    unsigned step = 0;

    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/metrics.jsonl", dirs[i]);
        f[i] = fopen(path[i], "r");
        if (!f[i])
            fail(path[i], "cannot be read");
    }
    do {
        for (int i = 0; i < 2; i++)
            line[i] = line_read(f[i], path[i]);
        if (line[0] && line[1])
            judge_step(line[0], line[1], l, path[1], ++step);
        else if (line[0] || line[1])
            fail(path[1], "another number of steps");
        for (int i = 0; i < 2; i++)
            json_decref(line[i]);
    } while (line[0]);
    fclose(f[0]);
    fclose(f[1]);
    if (step == 0)
        fail(path[0], "no step");
}

/* ---- tensors ------------------------------------------------------------- */

static int64_t elements(const SafeTensor *t)
{
    int64_t size = t->dtype == PLAN_F32 ? 4 : 2;

    return (int64_t)(t->end - t->begin) / size;
}

/* |b - a| / |a|; 0 if both are 0. */
static double distance(const SafeSet *fa, const SafeTensor *a,
                       const SafeSet *fb, const SafeTensor *b)
{
    double square = 0, gap = 0;

    for (int64_t i = 0; i < elements(a); i++) {
        double x = (double)plan_fetch(a->dtype, safe_bytes(fa, a), i);
        double y = (double)plan_fetch(b->dtype, safe_bytes(fb, b), i);
        square += x * x;
        gap += (y - x) * (y - x);
    }
    return gap == 0 ? 0 : sqrt(gap / square);
}

static void open_tensors(const char *dir, const char *name, SafeSet *out)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    Status status = safe_open(path, out);
    if (status)
        fail(path, status_text(status));
    if (out->n == 0)
        fail(path, "no tensors");
}

static void compare_tensors(const char *const dirs[2], const char *name,
                            double limit)
{
    SafeSet f[2];

    for (int i = 0; i < 2; i++)
        open_tensors(dirs[i], name, &f[i]);
    if (f[0].n != f[1].n)
        fail(dirs[1], "another number of tensors");
    for (uint32_t i = 0; i < f[0].n; i++) {
        const SafeTensor *a = &f[0].v[i], *b = safe_find(&f[1], a->name);
        if (!b || elements(a) != elements(b))
            fail(a->name, "not there, or of another size");
        judge(name, a->name, distance(&f[0], a, &f[1], b), limit);
    }
    safe_close(&f[0]);
    safe_close(&f[1]);
}

/* ---- the program --------------------------------------------------------- */

int main(int argc, char **argv)
{
    Limits l = fp32_limits;
    const char *dirs[2];
    int i = 1;

    if (argc > 3 && !strcmp(argv[1], "--loss-only")) {
        l = (Limits){.loss = strtod(argv[2], NULL), .loss_only = true};
        i = 3;
    } else if (argc > 2 && !strcmp(argv[1], "--exact")) {
        l = (Limits){0};
        i = 2;
    }
    if (argc != i + 2)
        fail(argv[0], "[--loss-only TOLERANCE] [--exact] EXPECTED GOT");
    dirs[0] = argv[i];
    dirs[1] = argv[i + 1];
    compare_metrics(dirs, &l);
    if (!l.loss_only) {
        compare_tensors(dirs, "first/grads.safetensors", l.grads);
        compare_tensors(dirs, "last/weights.safetensors", l.weights);
    }
    return wrong > 0;
}
