/* checkpoint_state.c - state.json: what a run is, beside its tensors.
 *
 *     {"version": 1, "step": 10, "updates": 10, "tokens": 5120, "seed": 1234,
 *      "samples": {"train": 160, "valid": 0, "learnt": 160},
 *      "planned": {"train": 320, "valid": 0},
 *      "loss_scale": {"scale": 65536.0, "good": 3, "patience": 2},
 *      "data": "9f3c…", "spec": {"model.num_layers": "4", …}}
 *
 * Reading trusts nothing: a field that is missing or of another type is named.
 * A damaged number may still be a valid one, as everywhere.
 */
#include "runtime/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

const char *checkpoint_stem(const PlanTraining *t, PlanFieldKind kind)
{
    bool adam = t->optimizer != PLAN_SGD;

    switch (kind) {
    case PLAN_FIELD_PARAM:
        return "model";
    case PLAN_FIELD_M:
        return adam ? "exp_avg" : t->momentum > 0 ? "momentum_buffer" : NULL;
    case PLAN_FIELD_V:
        return adam ? "exp_avg_sq" : NULL;
    default: /* made anew from the weights, or in every step */
        return NULL;
    }
}

static Status name_file(const char *dir, char out[CHECKPOINT_PATH_BYTES])
{
    if (snprintf(out, CHECKPOINT_PATH_BYTES, "%s/state.json", dir) >=
        CHECKPOINT_PATH_BYTES)
        return status_make(STATUS_INPUT, "the path %s is too long", dir);
    return STATUS_NONE;
}

/* ---- "key = value" ------------------------------------------------------- */

const char *checkpoint_fixed(const char *fixed, const char *key, size_t *out_n)
{
    size_t n = strlen(key);

    while (*fixed) {
        size_t line = strcspn(fixed, "\n");
        if (strncmp(fixed, key, n) == 0 && strncmp(fixed + n, " = ", 3) == 0) {
            *out_n = line - n - 3;
            return fixed + n + 3;
        }
        fixed += line + (fixed[line] == '\n');
    }
    return NULL;
}

/* Cuts the first line off into a key and a value. */
static bool next_pair(const char **lines, char *key, size_t cap,
                      const char **out_value, size_t *out_n)
{
    const char *line = *lines, *middle = strstr(line, " = ");
    size_t n = strcspn(line, "\n");

    if (!middle || middle > line + n)
        return false;
    snprintf(key, cap, "%.*s", (int)(middle - line), line);
    *out_value = middle + 3;
    *out_n = (size_t)(line + n - *out_value);
    *lines = line + n + (line[n] == '\n');
    return true;
}

/* ---- writing ------------------------------------------------------------- */

static json_t *fixed_json(const char *lines)
{
    json_t *all = json_object();
    const char *value;
    char key[256];
    size_t n;

    while (next_pair(&lines, key, sizeof key, &value, &n))
        json_object_set_new(all, key, json_stringn(value, n));
    return all;
}

static json_t *by_data(const int64_t *numbers)
{
    return json_pack("{sI sI}", "train", (json_int_t)numbers[PLAN_TRAIN],
                     "valid", (json_int_t)numbers[PLAN_EVALUATE]);
}

/* Only what changes from step to step. */
static json_t *scaler_json(const Scaler *s)
{
    if (!s->dynamic)
        return json_null();
    return json_pack("{sf sI sI}", "scale", s->scale, "good",
                     (json_int_t)s->good, "patience", (json_int_t)s->patience);
}

static json_t *state_json(const CheckpointState *s)
{
    json_t *samples = by_data(s->past.samples);
    char data[32];

    snprintf(data, sizeof data, "%016" PRIx64, s->data);
    json_object_set_new(samples, "learnt", json_integer(s->learnt));
    return json_pack("{si sI sI sI sI so so so ss so}", "version",
                     CHECKPOINT_VERSION, "step", (json_int_t)s->past.step,
                     "updates", (json_int_t)s->updates, "tokens",
                     (json_int_t)s->tokens, "seed", (json_int_t)s->seed,
                     "samples", samples, "planned", by_data(s->past.planned),
                     "loss_scale", scaler_json(&s->scaler), "data", data,
                     "spec", fixed_json(s->fixed));
}

Status checkpoint_state_write(const CheckpointState *s, const char *dir)
{
    char path[CHECKPOINT_PATH_BYTES];
    json_t *json;
    bool ok;

    STATUS_TRY(name_file(dir, path));
    json = state_json(s);
    ok = json && json_dump_file(json, path, JSON_INDENT(2)) == 0;
    json_decref(json);
    return ok ? STATUS_NONE : status_system(errno, "cannot write %s", path);
}

/* ---- reading ------------------------------------------------------------- */

static Status lacks(const char *path, const char *key, const char *type)
{
    return status_make(STATUS_INPUT, "%s: `%s` is no %s", path, key, type);
}

/* Of the root, or of an object in it. */
static json_t *member(json_t *root, const char *object, const char *key)
{
    return json_object_get(object ? json_object_get(root, object) : root, key);
}

typedef struct {
    const char *object, *key; /* object: NULL for the root */
    int64_t *to;
} Integer;

static Status read_integers(const char *path, json_t *root, const Integer *v,
                            size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const json_t *value = member(root, v[i].object, v[i].key);
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return status_make(STATUS_INPUT,
                               "%s: `%s%s%s` is no whole number from 0 on",
                               path, v[i].object ? v[i].object : "",
                               v[i].object ? "." : "", v[i].key);
        *v[i].to = json_integer_value(value);
    }
    return STATUS_NONE;
}

static Status read_counts(const char *path, json_t *root, CheckpointState *s)
{
    int64_t seed;
    const Integer rows[] = {
        {NULL, "step", &s->past.step},
        {NULL, "updates", &s->updates},
        {NULL, "tokens", &s->tokens},
        {NULL, "seed", &seed},
        {"samples", "train", &s->past.samples[PLAN_TRAIN]},
        {"samples", "valid", &s->past.samples[PLAN_EVALUATE]},
        {"samples", "learnt", &s->learnt},
        {"planned", "train", &s->past.planned[PLAN_TRAIN]},
        {"planned", "valid", &s->past.planned[PLAN_EVALUATE]},
    };

    STATUS_TRY(read_integers(path, root, rows, MC_LEN(rows)));
    s->seed = (uint64_t)seed;
    return STATUS_NONE;
}

static Status read_scaler(const char *path, json_t *root, Scaler *s)
{
    json_t *scaler = json_object_get(root, "loss_scale");
    const json_t *patience = json_object_get(scaler, "patience");
    const Integer good = {"loss_scale", "good", &s->good};

    s->dynamic = json_is_object(scaler);
    if (json_is_null(scaler))
        return STATUS_NONE;
    STATUS_TRY(read_integers(path, root, &good, 1));
    s->scale = json_number_value(json_object_get(scaler, "scale"));
    s->patience = json_integer_value(patience); /* may be below 0 */
    if (!(s->scale > 0) || !json_is_integer(patience))
        return lacks(path, "loss_scale", "scale above 0 and a patience");
    return STATUS_NONE;
}

static Status read_hash(const char *path, json_t *root, uint64_t *out)
{
    const json_t *data = json_object_get(root, "data");

    if (!json_is_string(data) ||
        sscanf(json_string_value(data), "%" SCNx64, out) != 1)
        return lacks(path, "data", "hash");
    return STATUS_NONE;
}

static Status read_fixed(const char *path, json_t *root, CheckpointState *s)
{
    json_t *spec = json_object_get(root, "spec"), *value;
    const char *key;
    Buf lines = {0};

    if (!json_is_object(spec))
        return lacks(path, "spec", "object");
    buf_puts(&lines, "");
    json_object_foreach(spec, key, value)
        if (json_is_string(value))
            buf_printf(&lines, "%s = %s\n", key, json_string_value(value));
    s->fixed = lines.s; /* now ours */
    return STATUS_NONE;
}

static Status read_state(const char *path, json_t *root, CheckpointState *s)
{
    const json_t *version = json_object_get(root, "version");

    if (!json_is_integer(version))
        return lacks(path, "version", "number");
    if (json_integer_value(version) != CHECKPOINT_VERSION)
        return status_make(STATUS_INPUT,
                           "%s: version %lld, but this megac reads version %d",
                           path, (long long)json_integer_value(version),
                           CHECKPOINT_VERSION);
    STATUS_TRY(read_counts(path, root, s));
    STATUS_TRY(read_scaler(path, root, &s->scaler));
    STATUS_TRY(read_hash(path, root, &s->data));
    return read_fixed(path, root, s);
}

Status checkpoint_state_read(const char *dir, CheckpointState *out)
{
    char path[CHECKPOINT_PATH_BYTES];
    CheckpointState s = {0};
    json_error_t error;
    json_t *root;
    Status failed;

    STATUS_TRY(name_file(dir, path));
    root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return status_make(STATUS_INPUT, "%s: %s", path, error.text);
    failed = read_state(path, root, &s);
    json_decref(root);
    if (!failed)
        *out = s;
    return failed;
}

void checkpoint_state_drop(CheckpointState *s)
{
    free((char *)(uintptr_t)s->fixed);
    s->fixed = NULL;
}

/* ---- comparing ----------------------------------------------------------- */

static Status changed(const char *dir, const char *key, const char *was,
                      size_t was_n, const char *is, size_t is_n)
{
    static const char unset[] = "not set";

    return status_make(
        STATUS_INPUT,
        "%s: %s was %.*s when it was saved and is %.*s now (a new run can "
        "start from its weights: --load)",
        dir, key, (int)(was ? was_n : strlen(unset)), was ? was : unset,
        (int)(is ? is_n : strlen(unset)), is ? is : unset);
}

/* The keys of `a` are those of `b`, with the same values. */
static Status compare(const char *dir, const char *a, const char *b,
                      bool a_is_old)
{
    const char *value, *other;
    size_t n, other_n = 0;
    char key[256];

    while (next_pair(&a, key, sizeof key, &value, &n)) {
        other = checkpoint_fixed(b, key, &other_n);
        if (strncmp(key, "data.", 5) == 0 ||
            (other && n == other_n && memcmp(value, other, n) == 0))
            continue;
        return a_is_old ? changed(dir, key, value, n, other, other_n)
                        : changed(dir, key, other, other_n, value, n);
    }
    return STATUS_NONE;
}

Status checkpoint_state_check(const CheckpointState *s, const char *dir,
                              uint64_t seed, const char *fixed)
{
    char was[32], is[32];

    snprintf(was, sizeof was, "%" PRIu64, s->seed);
    snprintf(is, sizeof is, "%" PRIu64, seed);
    STATUS_TRY(compare(dir, s->fixed, fixed, true));
    STATUS_TRY(compare(dir, fixed, s->fixed, false));
    if (s->seed != seed)
        return changed(dir, "training.seed", was, strlen(was), is, strlen(is));
    return STATUS_NONE;
}
