/* emit_bench.h - for tests: a module as plans, run by threads that are its
 * ranks, against the evaluator.
 *
 * Both start from the same made-up state, run one step, and must leave the
 * same state behind, on every rank.
 */
#ifndef MEGAC_TESTS_EMIT_BENCH_H
#define MEGAC_TESTS_EMIT_BENCH_H

#include "codegen_load.h"
#include "emit_board.h"

#include "codegen/emit.h"
#include "frontend/model.h"
#include "ir/eval.h"
#include "passes/passes.h"
#include "runtime/exec.h"

#include <math.h>

struct EmitBench;

/* One rank and its memory. */
typedef struct {
    struct EmitBench *bench;
    uint32_t rank, pp;
    const Plan *plan;
    Device *device;
    Comm *comm;
    Exec *exec;
    Status status; /* of its step */
} EmitRank;

typedef struct EmitBench {
    Arena *arena;
    Diag *diag;
    Module *m;
    Spec *spec;
    MemPlan *mem;
    EmitOutput out;
    Plan *plans; /* by pp coordinate */
    EmitRank *ranks;
    uint32_t world;
    float metric[PLAN_METRICS]; /* as the reporter gives them */
} EmitBench;

static const char emit_spec[] = "version: 1\n"
                                "model: {num_layers: 2, hidden_size: 64,\n"
                                "  num_attention_heads: 4, vocab_size: 64}\n"
                                "training: {seq_length: 4, precision: fp32,\n"
                                "  micro_batch_size: 1}\n";

/* ---- inputs -------------------------------------------------------------- */

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

enum { EMIT_DRAWS = 12345 }; /* the key of dropout; other host numbers: 0.25 */

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
    *out = strcmp(what, "draws") ? 0.25 : EMIT_DRAWS;
    return true;
}

static inline Status emit_load_batch(void *self, PlanBatch what, int64_t mb,
                                     int32_t *out)
{
    const EmitRank *r = self;
    int64_t rows = r->bench->spec->training.micro_batch_size;
    int64_t first = rows * plan_expr_value(r->plan, r->plan->data.v->shard,
                                           r->rank);

    for (int64_t i = 0; i < r->bench->spec->training.seq_length * rows; i++)
        out[i] = emit_token(what == PLAN_BATCH_LABELS, mb, i / rows,
                            first + i % rows);
    return STATUS_NONE;
}

static inline float emit_scalar(void *self, PlanScalar what)
{
    (void)self;
    return what == PLAN_SCALAR_DRAWS ? EMIT_DRAWS : 0.25f;
}

static inline Status emit_metric(void *self, PlanMetric what, float value)
{
    EmitRank *r = self;
    const PlanJob *job = r->plan->job.v;

    if (job->has_reporter && plan_expr_value(r->plan, job->reporter,
                                             r->rank) == 0)
        r->bench->metric[what] = value;
    return STATUS_NONE;
}

static inline Status emit_grads(void *self)
{
    (void)self;
    return STATUS_NONE;
}

/* ---- the way to a running plan ------------------------------------------- */

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

static inline void emit_begin(EmitBench *b, const char *spec,
                              const char *const *sets)
{
    int n = 0;

    while (sets && sets[n])
        n++;
    *b = (EmitBench){.arena = arena_new()};
    b->diag = diag_new(b->arena);
    b->spec = spec_parse(b->arena, b->diag, "t.yaml", spec, sets, n);
    emit_ok(b, b->spec != NULL);
}

static inline void emit_finish(EmitBench *b)
{
    MemRules rules = emit_rules(DIALECT_CPU);

    b->mem = memplan_make(b->arena, b->m, &rules);
    emit_ok(b, emit_plans(b->arena, &(EmitInput){b->m, b->mem, b->spec},
                          &b->out));
}

/* A module given as text, as `fuse` would leave it. */
static inline void emit_open(EmitBench *b, const char *text)
{
    emit_begin(b, emit_spec, NULL);
    b->m = module_parse(b->arena, b->diag, "t.mir", text);
    emit_ok(b, b->m != NULL);
    emit_ok(b, module_verify(b->m));
    emit_ok(b, pass_streams(b->m, NULL));
    emit_finish(b);
}

/* The program of a spec with some --set, which end with NULL. */
static inline void emit_open_spec(EmitBench *b, const char *spec,
                                  const char *const *sets)
{
    PassOptions options = {.stop_after = NULL};

    emit_begin(b, spec, sets);
    b->m = model_build(b->arena, b->diag, b->spec);
    emit_ok(b, passes_run(b->m, b->spec, &options));
    emit_finish(b);
}

static inline void emit_load(EmitBench *b)
{
    b->plans = arena_array(b->arena, Plan, b->out.n);
    for (uint32_t pp = 0; pp < b->out.n; pp++)
        emit_status(plan_load(b->out.plans[pp].s, b->out.plans[pp].len,
                              &b->plans[pp]));
}

/* The kernels as a file, which the caller removes; false if there are none. */
static inline bool emit_kernels(EmitBench *b, char *path)
{
    int fd = mkstemp(path);
    Buf so = {0};

    assert_true(fd >= 0);
    if (b->out.nunits == 0) {
        close(fd);
        return false;
    }
    emit_ok(b, codegen_cpu_build(b->out.units, b->out.nunits, "native", 2,
                                 b->diag, (Loc){0}, &so));
    assert_int_equal(write(fd, so.s, so.len), (ssize_t)so.len);
    close(fd);
    buf_free(&so);
    return true;
}

static inline void emit_rank_open(EmitRank *r, const char *kernels)
{
    ExecHost host = {r, emit_load_batch, emit_scalar, emit_metric, emit_grads};
    ExecConfig config = {.plan = r->plan, .rank = r->rank,
                         .driver = &device_cpu, .host = host};
    int threads = r->bench->world > 1 ? 1 : 2;

    emit_status(device_cpu.open(&(DeviceConfig){r->plan, kernels, threads},
                                &r->device));
    emit_status(comm_new(r->plan, r->rank, &board_driver, 60, &r->comm));
    config.device = r->device;
    config.comm = r->comm;
    emit_status(exec_new(&config, &r->exec));
}

static inline void emit_ranks_open(EmitBench *b)
{
    char path[] = "/tmp/megac-emit-XXXXXX";
    AxisSet pp = mesh_axis(b->m, "pp");
    bool kernels = emit_kernels(b, path);

    board_clear();
    b->world = MC_MAX(b->m->mesh.world, 1u);
    assert_true(b->world <= BOARD_RANKS);
    b->ranks = arena_array(b->arena, EmitRank, b->world);
    for (uint32_t i = 0; i < b->world; i++) {
        EmitRank *r = &b->ranks[i];
        *r = (EmitRank){.bench = b, .rank = i};
        r->pp = pp ? axes_index(&b->m->mesh, pp, i) : 0;
        r->plan = &b->plans[r->pp];
        emit_rank_open(r, kernels ? path : NULL);
    }
    unlink(path);
}

static inline void *emit_rank_step(void *arg)
{
    EmitRank *r = arg;

    r->status = exec_step(r->exec);
    return NULL;
}

static inline void emit_step(EmitBench *b)
{
    pthread_t threads[BOARD_RANKS];

    for (uint32_t i = 0; i < b->world; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, emit_rank_step,
                                        &b->ranks[i]), 0);
    for (uint32_t i = 0; i < b->world; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < b->world; i++)
        emit_status(b->ranks[i].status);
}

/* ---- state in memory ----------------------------------------------------- */

static inline uint32_t emit_plan_type(DType t)
{
    return t == DT_F32 ? PLAN_F32 : t == DT_F16 ? PLAN_F16 : PLAN_BF16;
}

static inline float emit_get(const char *at, DType t, int64_t i)
{
    return board_get(emit_plan_type(t), at, i);
}

static inline void emit_set(char *at, DType t, int64_t i, float x)
{
    board_put(emit_plan_type(t), at, i, x);
}

/* Part of a field of one layer on a rank. */
typedef struct {
    const EmitRank *r;
    TensorId t;
    Field f;
    uint32_t layer; /* of the whole model */
    char *at;
    int64_t start[IR_MAX_DIMS], size[IR_MAX_DIMS];
    int64_t elements;
} EmitPart;

static inline EmitPart emit_part(const EmitRank *r, TensorId t, Field f,
                                 uint32_t slot, uint32_t layer)
{
    const Module *m = r->bench->m;
    const Tensor *tensor = &m->tensors.v[t.i];
    const MemState *s = memplan_state(r->bench->mem, r->pp, t, f);
    const Layout *l = layout_of(m, tensor->rest[f]);
    const Type *type = type_of(m, tensor_stored(tensor));
    EmitPart p = {.r = r, .t = t, .f = f, .layer = layer, .elements = 1};

    p.at = exec_pointer(r->exec,
                        (uint64_t)(s->address + slot * s->layer_stride));
    for (int d = 0; d < type->ndim; d++) {
        p.start[d] = layout_start(m, type, l, type->dim[d], r->rank);
        p.size[d] = layout_local(m, type, l, type->dim[d]);
        p.elements *= p.size[d];
    }
    return p;
}

/* Row-major index of local element `i` in what all ranks store. */
static inline int64_t emit_stored(const EmitPart *p, int64_t i)
{
    const Module *m = p->r->bench->m;
    const Type *all = type_of(m, tensor_stored(&m->tensors.v[p->t.i]));
    int64_t index = 0, unit = 1;

    for (int d = all->ndim; d-- > 0;) {
        index += (p->start[d] + i % p->size[d]) * unit;
        unit *= all->size[d];
        i /= p->size[d];
    }
    return index;
}

/* Row-major index in the logical tensor of local element `i`; -1: padding. */
static inline int64_t emit_logical(const EmitPart *p, int64_t i)
{
    const Module *m = p->r->bench->m;
    const Tensor *t = &m->tensors.v[p->t.i];
    const Type *padded = type_of(m, t->type);
    int64_t from = emit_stored(p, i), index = 0, unit = 1;

    if (t->flat.i)
        from = flat_index(m, t, from);
    for (int d = padded->ndim; d-- > 0;) {
        int64_t at = from % padded->size[d];
        if (from < 0 || at >= t->logical.size[d])
            return -1;
        index += at * unit;
        unit *= t->logical.size[d];
        from /= padded->size[d];
    }
    return index;
}

typedef void EmitPartFn(const EmitPart *p, void *user);

static inline void emit_each_layer(const EmitRank *r, TensorId t, Field f,
                                   EmitPartFn *fn, void *user)
{
    const Module *m = r->bench->m;
    uint32_t slots = memplan_state(r->bench->mem, r->pp, t, f)->slots;

    for (uint32_t l = 0; l < MC_MAX(m->nlayers, 1u); l++) {
        bool layers = m->tensors.v[t.i].per_layer, held = l == 0;
        uint32_t slot = 0;
        for (uint32_t i = 0; layers && i < m->stages.n; i++) {
            const PipeStage *s = &m->stages.v[i];
            held = l >= s->first_layer && l - s->first_layer < s->nlayers &&
                   s->pp == r->pp && tensor_in_layer(m, t, l);
            if (held)
                break;
        }
        if (held && layers)
            slot = memplan_slot(m, r->pp, t, l);
        if (held && slots) {
            EmitPart p = emit_part(r, t, f, slot, l);
            fn(&p, user);
        }
    }
}

static inline void emit_each_part(EmitBench *b, EmitPartFn *fn, void *user)
{
    for (uint32_t i = 0; i < b->world; i++)
        for (uint32_t t = 1; t < b->m->tensors.n; t++)
            for (int f = 0; f < FIELD_COUNT; f++)
                if (b->m->tensors.v[t].fields >> f & 1)
                    emit_each_layer(&b->ranks[i], (TensorId){t}, (Field)f, fn,
                                    user);
}

static inline void emit_fill_part(const EmitPart *p, void *user)
{
    const Module *m = p->r->bench->m;
    DType dtype = m->tensors.v[p->t.i].field_dtype[p->f];

    (void)user;
    for (int64_t i = 0; i < p->elements; i++) {
        int64_t index = emit_logical(p, i);
        double x = index < 0 ? 0 : emit_state_value(m, p->t, p->f, p->layer,
                                                    index);
        emit_set(p->at, dtype, i, (float)x);
    }
}

typedef struct {
    const EvalResult *eval;
    double limit; /* of the largest difference over the largest value,
                     where gradients that should vanish count as 1e-6 */
    uint32_t compared, wrong;
} EmitCompare;

static inline void emit_compare_part(const EmitPart *p, void *user)
{
    EmitCompare *c = user;
    const Tensor *tensor = &p->r->bench->m->tensors.v[p->t.i];
    double worst = 0, most = 1e-6;
    EvalArray want;

    /* what a partial gradient should be is in the complete one */
    if (layout_of(p->r->bench->m, tensor->rest[p->f])->partial ||
        !eval_get_tensor(c->eval, p->t, p->f, p->layer, &want))
        return;
    for (int64_t i = 0; i < type_elems(&tensor->logical); i++)
        most = MC_MAX(most, fabs(want.at[i].f));
    for (int64_t i = 0; i < p->elements; i++) {
        int64_t index = emit_logical(p, i);
        double got = (double)emit_get(p->at, tensor->field_dtype[p->f], i);
        double off = fabs(got - (index < 0 ? 0 : want.at[index].f));
        worst = isfinite(off) ? MC_MAX(worst, off) : INFINITY;
    }
    c->compared++;
    if (worst <= c->limit * most)
        return;
    c->wrong++;
    print_error("rank %u: @%s field %d layer %u is off by %g of %g\n",
                p->r->rank, sym_text(p->r->bench->m->names, tensor->name),
                p->f, p->layer, worst, most);
}

/* Runs a step both ways and compares; *out_compared, if wanted, is the number
 * of parts that agreed. */
static inline EvalResult *emit_check(EmitBench *b, double limit,
                                     uint32_t *out_compared)
{
    EvalOptions options = {.kind = EVAL_FP64, .state = emit_eval_state,
                           .batch = emit_eval_batch, .host = emit_eval_host};
    EmitCompare c = {.limit = limit};
    EvalResult *r = eval_run_with(b->arena, b->m, &options);

    emit_ok(b, r != NULL);
    c.eval = r;
    emit_load(b);
    emit_ranks_open(b);
    emit_each_part(b, emit_fill_part, NULL);
    emit_step(b);
    emit_each_part(b, emit_compare_part, &c);
    assert_int_equal(c.wrong, 0);
    assert_true(c.compared > 0);
    if (out_compared)
        *out_compared = c.compared;
    return r;
}

static inline void emit_close(EmitBench *b)
{
    for (uint32_t i = 0; i < b->world; i++) {
        exec_free(b->ranks[i].exec);
        comm_free(b->ranks[i].comm);
        device_cpu.close(b->ranks[i].device);
    }
    for (uint32_t pp = 0; b->plans && pp < b->out.n; pp++)
        plan_free(&b->plans[pp]);
    emit_free(&b->out);
    module_free(b->m);
    diag_free(b->diag);
    arena_free(b->arena);
}

#endif
