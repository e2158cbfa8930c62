/* cases.c - running megac and comparing what it wrote; see cases.h. */
#include "cases.h"

#include "runtime/state.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/megac_case_XXXXXX";
static char *output;

int case_enter(void **state)
{
    (void)state;
    if (!mkdtemp(folder) || chdir(folder) != 0 ||
        setenv("MEGAC", MEGAC, 1) != 0)
        return -1;
    return case_shell("cp %s/tests/cases/t0.yaml .", MEGAC_SOURCE_DIR);
}

int case_leave(void **state)
{
    char command[64];

    (void)state;
    free(output);
    output = NULL;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return chdir("/") == 0 && system(command) == 0 ? 0 : -1;
}

/* ---- running ------------------------------------------------------------- */

static void read_output(void)
{
    Buf text = {0};

    assert_true(buf_read_file(&text, "output"));
    free(output);
    output = strdup(buf_str(&text));
    assert_non_null(output);
    buf_free(&text);
}

int case_shell(const char *fmt, ...)
{
    char command[8192];
    FILE *script = fopen("script", "w");
    va_list ap;
    int status;

    assert_non_null(script);
    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    fprintf(script, "%s\n", command);
    assert_int_equal(fclose(script), 0);
    status = system("timeout 60 sh ./script >output 2>&1");
    read_output();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

const char *case_output(void)
{
    return output;
}

bool case_printed(const char *text)
{
    bool found = strstr(output, text) != NULL;

    if (!found)
        print_error("'%s' is not in:\n%s", text, output);
    return found;
}

static void must(int code)
{
    if (code)
        fail_msg("exit code %d:\n%s", code, output);
}

/* "a=1 b=2" as shell arguments; the caller's. */
static char *set_arguments(const char *sets)
{
    char *copy = strdup(sets), *rest = copy, *word, *arguments;
    Buf text = {0};

    buf_puts(&text, "");
    while ((word = strsep(&rest, " ")))
        if (*word)
            buf_printf(&text, " --set '%s'", word);
    arguments = strdup(buf_str(&text));
    free(copy);
    buf_free(&text);
    return arguments;
}

void case_compile(const char *out, const char *sets)
{
    char *arguments = set_arguments(sets);

    must(case_shell("$MEGAC compile t0.yaml -o %s%s", out, arguments));
    free(arguments);
}

void case_run(const char *out, const char *options)
{
    must(case_shell("$MEGAC run %s %s", out, options));
}

void case_train(const char *out, const char *sets)
{
    char options[256];

    case_compile(out, sets);
    snprintf(options, sizeof options, "--save-step 1 --to %s.saved", out);
    case_run(out, options);
}

/* ---- reading ------------------------------------------------------------- */

json_t *case_inspect(const char *view, const char *sets)
{
    char *arguments = set_arguments(sets);
    json_t *json;

    must(case_shell("$MEGAC inspect t0.yaml %s --json%s 2>errors; code=$?\n"
                    "[ $code = 0 ] || cat errors; exit $code", view,
                    arguments));
    free(arguments);
    json = json_loads(output, 0, NULL);
    assert_non_null(json);
    return json;
}

json_t *case_member(json_t *object, const char *path)
{
    char *copy = strdup(path), *rest = copy, *key;

    while (object && (key = strsep(&rest, ".")))
        object = json_object_get(object, key);
    if (!object)
        fail_msg("no member %s", path);
    free(copy);
    return object;
}

double case_metric(const char *out, int step, const char *key)
{
    char path[128], line[1024] = "";
    json_t *object;
    double value;
    FILE *f;

    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    f = fopen(path, "r");
    assert_non_null(f);
    for (int i = 0; i < step; i++)
        if (!fgets(line, sizeof line, f))
            fail_msg("%s has no step %d", path, step);
    fclose(f);
    object = json_loads(line, 0, NULL);
    assert_int_equal(json_integer_value(case_member(object, "step")), step);
    value = json_number_value(case_member(object, key));
    json_decref(object);
    return value;
}

/* ---- comparing ----------------------------------------------------------- */

void case_same_metric(const char *out, const char *other, const char *key,
                      int steps, double limit)
{
    for (int i = 1; i <= steps; i++) {
        double a = case_metric(out, i, key), b = case_metric(other, i, key);

        if (!(fabs(a - b) <= limit))
            fail_msg("%s of step %d: %s %.9g, %s %.9g", key, i, out, a, other,
                     b);
    }
}

/* Adds the squares of a tensor and of its distance from the other. */
static void add_distance(const float *a, const float *b, uint64_t n,
                         double *square, double *distance)
{
    for (uint64_t i = 0; i < n; i++) {
        double x = (double)a[i], d = x - (double)b[i];

        *square += x * x;
        *distance += d * d;
    }
}

static double file_distance(const SafeSet *a, const SafeSet *b)
{
    double square = 0, distance = 0;
    bool same = true;

    for (uint32_t i = 0; i < a->n; i++) {
        const SafeTensor *t = &a->v[i], *u = safe_find(b, t->name);
        uint64_t bytes = t->end - t->begin;

        if (!u || u->end - u->begin != bytes || t->dtype != PLAN_F32)
            fail_msg("%s is not in both files alike", t->name);
        same &= memcmp(safe_bytes(a, t), safe_bytes(b, u), bytes) == 0;
        add_distance((const float *)(const void *)safe_bytes(a, t),
                     (const float *)(const void *)safe_bytes(b, u),
                     bytes / sizeof(float), &square, &distance);
    }
    return same ? 0 : fmax(sqrt(distance / square), 1e-300);
}

static void open_file(const char *path, SafeSet *out)
{
    Status failed = safe_open(path, out);

    if (failed)
        fail_msg("%s: %s", path, status_text(failed));
}

void case_same_file(const char *path, const char *other, double limit)
{
    SafeSet a, b;
    double distance;

    open_file(path, &a);
    open_file(other, &b);
    assert_true(a.n > 0);
    assert_int_equal(a.n, b.n);
    distance = file_distance(&a, &b);
    if (!(distance <= limit))
        fail_msg("%s and %s differ by %.3g", path, other, distance);
    safe_close(&a);
    safe_close(&b);
}

static void same_saved(const char *out, const char *other, const char *name)
{
    char a[128], b[128];

    snprintf(a, sizeof a, "%s.saved/%s.safetensors", out, name);
    snprintf(b, sizeof b, "%s.saved/%s.safetensors", other, name);
    case_same_file(a, b, 1e-5);
}

void case_same_run(const char *out, const char *other, int steps)
{
    case_same_metric(out, other, "loss", steps, 1e-5);
    case_same_metric(out, other, "grad_norm", steps,
                     1e-4 * case_metric(other, 1, "grad_norm"));
    same_saved(out, other, "grads");
    same_saved(out, other, "weights");
}
