/* golden.c - a run of megac against numbers of PyTorch.
 *
 *   oracle_golden GOLDEN.json METRICS.jsonl GRADS.safetensors
 *
 * The golden file, written by oracle.py, holds the loss and gradient norm of 20
 * AdamW steps and, of every gradient of the first, its norm and its product
 * with cos(0), cos(1), cos(2) …, which no transposed, shifted or sign-flipped
 * gradient keeps.  Limits: first loss 1e-5, the others 1e-4; gradients 1e-4 of
 * their norm; norms of later steps 1e-3.
 */
#include "base/status.h"
#include "runtime/state.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

static unsigned wrong;

static void judge(const char *what, const char *name, double got,
                  double expected, double limit)
{
    if (fabs(got - expected) <= limit)
        return;
    printf("%s %s: %.9g, PyTorch has %.9g\n", what, name, got, expected);
    wrong++;
}

static _Noreturn void fail(const char *path, const char *why)
{
    printf("%s: %s\n", path, why);
    exit(2);
}

/* ---- steps --------------------------------------------------------------- */

static double number(const json_t *value, const char *path)
{
    if (!json_is_number(value))
        fail(path, "a number is missing");
    return json_number_value(value);
}

static void compare_steps(const json_t *golden, const char *path)
{
    const json_t *losses = json_object_get(golden, "loss");
    const json_t *norms = json_object_get(golden, "grad_norm");
    FILE *f = fopen(path, "r");

    if (!f)
        fail(path, "cannot be read");
    if (json_array_size(losses) < 20)
        fail(path, "fewer golden losses than 20");
    for (size_t i = 0; i < json_array_size(losses); i++) {
        json_t *line = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL);
        double loss = number(json_array_get(losses, i), path);
        double norm = number(json_array_get(norms, i), path);
        char name[32];

        snprintf(name, sizeof name, "of step %zu", i + 1);
        judge("loss", name, number(json_object_get(line, "loss"), path), loss,
              i == 0 ? 1e-5 : 1e-4);
        judge("gradient norm", name,
              number(json_object_get(line, "grad_norm"), path), norm,
              (i == 0 ? 1e-4 : 1e-3) * norm);
        json_decref(line);
    }
    fclose(f);
}

/* ---- gradients ----------------------------------------------------------- */

static void compare_gradient(const SafeSet *f, const SafeTensor *t,
                             const json_t *golden)
{
    double norm = number(json_array_get(golden, 0), t->name);
    double product = number(json_array_get(golden, 1), t->name);
    double square = 0, sum = 0;

    for (int64_t i = 0; i < (int64_t)(t->end - t->begin) / 4; i++) {
        double g = (double)plan_fetch(t->dtype, safe_bytes(f, t), i);
        square += g * g;
        sum += g * cos((double)i);
    }
    judge("norm of the gradient of", t->name, sqrt(square), norm, 1e-4 * norm);
    judge("product of the gradient of", t->name, sum, product, 1e-4 * norm);
}

static void compare_gradients(const json_t *golden, const char *path)
{
    const json_t *gradients = json_object_get(golden, "gradients");
    SafeSet f;
    Status status = safe_open(path, &f);

    if (status)
        fail(path, status_text(status));
    if (f.n == 0 || f.n != json_object_size(gradients))
        fail(path, "another number of gradients");
    for (uint32_t i = 0; i < f.n; i++)
        compare_gradient(&f, &f.v[i], json_object_get(gradients, f.v[i].name));
    safe_close(&f);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        fail(argv[0], "GOLDEN.json METRICS.jsonl GRADS.safetensors");

    json_t *golden = json_load_file(argv[1], 0, NULL);
    if (!golden)
        fail(argv[1], "cannot be read");
    compare_steps(golden, argv[2]);
    compare_gradients(golden, argv[3]);
    json_decref(golden);
    return wrong > 0;
}
