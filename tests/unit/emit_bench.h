/* emit_bench.h - for tests: a module as a plan, run on this machine, against
 * the evaluator.
 *
 * Both start from the same made-up state, run one step, and must leave the
 * same state behind.
 */
#ifndef MEGAC_TESTS_EMIT_BENCH_H
#define MEGAC_TESTS_EMIT_BENCH_H

#include "codegen_load.h"

#include "codegen/emit.h"
#include "frontend/model.h"
#include "ir/eval.h"
#include "passes/passes.h"
#include "runtime/exec.h"

#include <math.h>

typedef struct {
    Arena *arena;
    Diag *diag;
    Module *m;
    Spec *spec;
    MemPlan *mem;
    EmitOutput out;
    Plan plan;
    Device *device;
    Comm *comm;
    Exec *exec;
    float metric[PLAN_METRICS];
} EmitBench;

static const char emit_spec[] = "version: 1\n"
                                "model: {num_layers: 2, hidden_size: 64,\n"
                                "  num_attention_heads: 4, vocab_size: 64}\n"
                                "training: {seq_length: 4, precision: fp32,\n"
                                "  micro_batch_size: 1}\n";

/* ---- inputs ------------------------------------------------------------------ */

static inline double emit_state_value(const Module *m, TensorId t, Field f,
                                      uint32_t layer, int64_t index)
{
    uint64_t seed = (uint64_t)index * 64 + layer;

    seed = seed * 64 + t.i * 8 + f;
    for (int i = 0; i < 4; i++)
        random_unit(&seed);
    (void)m;
    if (f == FIELD_V)
        return 0.5 + (double)random_unit(&seed) / 4;
    return (double)random_unit(&seed) / 8;
}

static inline bool emit_eval_state(void *user, const Module *m, TensorId t,
                                   Field f, uint32_t layer, int64_t index,
                                   double *out)
{
    (void)user;
    *out = emit_state_value(m, t, f, layer, index);
    return true;
}

/* Every ninth label does not count. */
static inline int32_t emit_token(bool label, int64_t mb, int64_t s, int64_t b)
{
    int64_t n = 5 * mb + 7 * s + 3 * b;

    return label && n % 9 == 0 ? -1 : (int32_t)((n + label) % 13);
}

static inline bool emit_eval_batch(void *user, const char *what, int64_t mb,
                                   int64_t s, int64_t b, int64_t *out)
{
    (void)user;
    *out = emit_token(strcmp(what, "labels") == 0, mb, s, b);
    return true;
}

static inline bool emit_eval_host(void *user, const char *what, double *out)
{
    (void)user;
    (void)what;
    *out = 0.25;
    return true;
}

static inline Status emit_load_batch(void *self, int64_t mb, int32_t *tokens,
                                     int32_t *labels)
{
    const EmitBench *b = self;
    int64_t rows = b->spec->training.micro_batch_size;

    for (int64_t i = 0; i < b->spec->training.seq_length * rows; i++) {
        if (tokens)
            tokens[i] = emit_token(false, mb, i / rows, i % rows);
        if (labels)
            labels[i] = emit_token(true, mb, i / rows, i % rows);
    }
    return STATUS_NONE;
}

static inline float emit_scalar(void *self, PlanScalar what)
{
    (void)self;
    (void)what;
    return 0.25f;
}

static inline Status emit_metric(void *self, PlanMetric what, float value)
{
    EmitBench *b = self;

    b->metric[what] = value;
    return STATUS_NONE;
}

static inline Status emit_grads(void *self)
{
    (void)self;
    return STATUS_NONE;
}

/* ---- the way to a running plan -------------------------------------------------- */

static inline void emit_ok(EmitBench *b, bool ok)
{
    if (!ok)
        diag_print(b->diag, stderr);
    assert_true(ok);
}

static inline void emit_status(Status s)
{
    assert_string_equal(status_text(s), "");
}

static inline void emit_begin(EmitBench *b, const char *spec)
{
    const char *sets[1] = {NULL};

    *b = (EmitBench){.arena = arena_new()};
    b->diag = diag_new(b->arena);
    b->spec = spec_parse(b->arena, b->diag, "t.yaml", spec, sets, 0);
    emit_ok(b, b->spec != NULL);
}

static inline void emit_finish(EmitBench *b)
{
    MemRules rules = emit_rules(DIALECT_CPU);

    b->mem = memplan_make(b->arena, b->m, &rules);
    emit_ok(b, emit_plans(b->arena, &(EmitInput){b->m, b->mem, b->spec},
                          &b->out));
}

/* A module given as text, as `streams` would leave it. */
static inline void emit_open(EmitBench *b, const char *text)
{
    emit_begin(b, emit_spec);
    b->m = module_parse(b->arena, b->diag, "t.mir", text);
    emit_ok(b, b->m != NULL);
    emit_ok(b, module_verify(b->m));
    emit_finish(b);
}

/* The program of a spec. */
static inline void emit_open_spec(EmitBench *b, const char *spec)
{
    PassOptions options = {.stop_after = NULL};

    emit_begin(b, spec);
    b->m = model_build(b->arena, b->diag, b->spec);
    emit_ok(b, passes_run(b->m, b->spec, &options));
    emit_finish(b);
}

static inline void emit_load(EmitBench *b, uint32_t pp)
{
    Status s = plan_load(b->out.plans[pp].s, b->out.plans[pp].len, &b->plan);

    emit_status(s);
}

static inline void emit_start_exec(EmitBench *b)
{
    char path[] = "/tmp/megac-emit-XXXXXX";
    int fd = mkstemp(path);
    Buf so = {0};
    ExecHost host = {b, emit_load_batch, emit_scalar, emit_metric, emit_grads};
    ExecConfig config = {.plan = &b->plan, .driver = &device_cpu,
                         .host = host};

    assert_true(fd >= 0);
    emit_ok(b, codegen_cpu_build(b->out.units, b->out.nunits, "native", 2,
                                 b->diag, (Loc){0}, &so));
    assert_int_equal(write(fd, so.s, so.len), (ssize_t)so.len);
    close(fd);
    buf_free(&so);
    emit_status(device_cpu.open(&(DeviceConfig){&b->plan, path, 2},
                                &b->device));
    unlink(path);
    emit_status(comm_new(&b->plan, 0, &comm_self, 0, &b->comm));
    config.device = b->device;
    config.comm = b->comm;
    emit_status(exec_new(&config, &b->exec));
}

/* ---- state in memory --------------------------------------------------------------- */

static inline char *emit_slot(const EmitBench *b, TensorId t, Field f,
                              uint32_t layer)
{
    const MemState *s = memplan_state(b->mem, 0, t, f);

    return exec_pointer(b->exec,
                        (uint64_t)(s->address + layer * s->layer_stride));
}

static inline float emit_get(const char *at, DType t, int64_t i)
{
    uint32_t u;
    float f;

    if (t == DT_F32)
        return ((const float *)at)[i];
    u = (uint32_t)((const uint16_t *)at)[i] << 16;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline void emit_set(char *at, DType t, int64_t i, float x)
{
    uint32_t u;

    if (t == DT_F32) {
        ((float *)at)[i] = x;
        return;
    }
    memcpy(&u, &x, sizeof u);
    ((uint16_t *)at)[i] = (uint16_t)(u >> 16);
}

typedef void EmitStateFn(EmitBench *b, TensorId t, Field f, uint32_t layer,
                         void *user);

static inline void emit_each_state(EmitBench *b, EmitStateFn *fn, void *user)
{
    for (uint32_t i = 1; i < b->m->tensors.n; i++)
        for (int f = 0; f < FIELD_COUNT; f++)
            for (uint32_t l = 0; l < memplan_state(b->mem, 0, (TensorId){i},
                                                   (Field)f)->slots; l++)
                if (b->m->tensors.v[i].fields >> f & 1)
                    fn(b, (TensorId){i}, (Field)f, l, user);
}

static inline void emit_fill_one(EmitBench *b, TensorId t, Field f,
                                 uint32_t layer, void *user)
{
    const Tensor *tensor = &b->m->tensors.v[t.i];

    (void)user;
    for (int64_t i = 0; i < type_elems(&tensor->logical); i++)
        emit_set(emit_slot(b, t, f, layer), tensor->field_dtype[f], i,
                 (float)emit_state_value(b->m, t, f, layer, i));
}

typedef struct {
    const EvalResult *eval;
    double limit; /* of the largest difference over the largest value,
                     where gradients that should vanish count as 1e-6 */
    uint32_t compared;
} EmitCompare;

static inline void emit_compare_one(EmitBench *b, TensorId t, Field f,
                                    uint32_t layer, void *user)
{
    EmitCompare *c = user;
    const Tensor *tensor = &b->m->tensors.v[t.i];
    double worst = 0, most = 1e-6;
    EvalArray want;

    if (!eval_get_tensor(c->eval, t, f, layer, &want))
        return;
    for (int64_t i = 0; i < type_elems(&tensor->logical); i++) {
        double got = (double)emit_get(emit_slot(b, t, f, layer),
                                      tensor->field_dtype[f], i);
        worst = MC_MAX(worst, fabs(got - want.at[i].f));
        most = MC_MAX(most, fabs(want.at[i].f));
    }
    if (!(worst <= c->limit * most))
        print_error("@%s field %d layer %u is off by %g of %g\n",
                    sym_text(b->m->names, tensor->name), f, layer, worst,
                    most);
    assert_true(worst <= c->limit * most);
    c->compared++;
}

/* Runs a step both ways and compares; *out_compared, if wanted, is the number
 * of fields that agreed. */
static inline EvalResult *emit_check(EmitBench *b, double limit,
                                     uint32_t *out_compared)
{
    EvalOptions options = {.kind = EVAL_FP64, .state = emit_eval_state,
                           .batch = emit_eval_batch, .host = emit_eval_host};
    EmitCompare c = {.limit = limit};
    EvalResult *r = eval_run_with(b->arena, b->m, &options);

    emit_ok(b, r != NULL);
    c.eval = r;
    emit_load(b, 0);
    emit_start_exec(b);
    emit_each_state(b, emit_fill_one, NULL);
    emit_status(exec_step(b->exec));
    emit_each_state(b, emit_compare_one, &c);
    if (out_compared)
        *out_compared = c.compared;
    return r;
}

static inline void emit_close(EmitBench *b)
{
    exec_free(b->exec);
    if (b->comm)
        comm_free(b->comm);
    if (b->device)
        device_cpu.close(b->device);
    plan_free(&b->plan);
    emit_free(&b->out);
    module_free(b->m);
    diag_free(b->diag);
    arena_free(b->arena);
}

#endif
