/* codegen_attention_test.c - flash attention on the CPU against its definition.
 *
 * The truth is softmax attention and its gradient written naively in double;
 * that gradient is itself checked against central differences of the forward.
 * Tensors have padding between rows, filled with NaN: reading it poisons the
 * result, writing it is noticed.
 */
#include "base/dropout.h"
#include "codegen_load.h"

#include <math.h>

typedef struct {
    const char *label;
    AttnType type;
    int64_t s, t, b, g, r, d;
    bool causal;
    int64_t window, q_pos, k_pos;
    /* Zigzag: q_pos and k_pos are indices. */
    int64_t seq, parts, steps, shift;
} Case;

enum { Q, K, V, O, LSE, D_O, DQ, DK, DV, WORKSPACE, KEY, TENSORS };

typedef struct {
    Case c;
    AttentionSpec spec;
    AttnStrides strides[TENSORS];
    double *value[TENSORS]; /* the truth, laid out as the tensor */
    void *bytes[TENSORS];   /* what the kernels see */
    size_t elems[TENSORS];
    double rate; /* of dropout */
} Problem;

/* What dropout sees of the rest of the run. */
enum { STEP_KEY = 12345, WHICH = 1, FIRST_B = 1, FIRST_G = 2, FIRST_R = 3,
       LAYER = 5, MICROBATCH = 7 };
#define OF_DROPOUT FIRST_B, FIRST_G, FIRST_R, LAYER, MICROBATCH

/* ---- elements ----------------------------------------------------------- */

static float bf16_value(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint16_t bf16_round(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static bool is_f32(const Problem *p, int tensor)
{
    return tensor == LSE || p->c.type == ATTN_F32;
}

static double get(const Problem *p, int tensor, size_t i)
{
    if (is_f32(p, tensor))
        return (double)((float *)p->bytes[tensor])[i];
    return (double)bf16_value(((uint16_t *)p->bytes[tensor])[i]);
}

static void put(Problem *p, int tensor, size_t i, float x)
{
    if (is_f32(p, tensor))
        ((float *)p->bytes[tensor])[i] = x;
    else
        ((uint16_t *)p->bytes[tensor])[i] =
            isnan(x) ? (uint16_t)0x7fc0 : bf16_round(x);
}

static size_t at(const Problem *p, int tensor, int64_t i, int64_t b, int64_t g,
                 int64_t r)
{
    const AttnStrides *st = &p->strides[tensor];
    return (size_t)(i * st->s + b * st->b + g * st->g + r * st->r);
}

static bool of_query(int tensor)
{
    return tensor != K && tensor != V && tensor != DK && tensor != DV;
}

/* ---- the problem -------------------------------------------------------- */

/* [s, b, g, r, d] with three idle elements after each row of channels. */
static void tensor_make(Problem *p, int tensor, uint64_t *seed)
{
    const Case *c = &p->c;
    int64_t rows = of_query(tensor) ? c->s : c->t;
    int64_t r = of_query(tensor) ? c->r : 1;
    int64_t row = tensor == LSE ? 2 : c->d + 3;
    AttnStrides st = {c->b * c->g * r * row, c->g * r * row, r * row, row};

    p->strides[tensor] = st;
    p->elems[tensor] = (size_t)(rows * st.s);
    p->bytes[tensor] = malloc(p->elems[tensor] * 4);
    p->value[tensor] = calloc(p->elems[tensor], sizeof(double));
    for (size_t i = 0; i < p->elems[tensor]; i++) {
        bool input = tensor == Q || tensor == K || tensor == V || tensor == D_O;
        bool real = (int64_t)i % row < c->d && input;
        put(p, tensor, i, real ? 2.0f * random_unit(seed) : NAN);
        p->value[tensor][i] = real ? get(p, tensor, i) : 0.0;
    }
}

static void problem_make(Problem *p, const Case *c, double rate)
{
    uint64_t seed = 12345;
    AttentionSpec *a = &p->spec;

    *p = (Problem){.c = *c, .rate = rate};
    for (int tensor = Q; tensor <= DV; tensor++)
        tensor_make(p, tensor, &seed);
    *a = (AttentionSpec){.name = "attn", .type = c->type, .s = c->s, .t = c->t,
                         .b = c->b, .g = c->g, .r = c->r, .d = c->d,
                         .causal = c->causal, .window = c->window,
                         .scale = 1.0 / sqrt((double)c->d),
                         .seq = c->seq, .parts = c->parts, .steps = c->steps,
                         .shift = c->shift, .rate = rate, .which = WHICH,
                         .batch = FIRST_B + c->b, .queries = FIRST_R + c->r};
    a->q = p->strides[Q];
    a->k = p->strides[K];
    a->v = p->strides[V];
    a->o = p->strides[O];
    a->lse = p->strides[LSE];
    a->d_o = p->strides[D_O];
    a->dq = p->strides[DQ];
    a->dk = p->strides[DK];
    a->dv = p->strides[DV];
    p->bytes[WORKSPACE] =
        aligned_alloc(64, (size_t)attention_workspace(a, DIALECT_CPU));
    p->bytes[KEY] = malloc(sizeof(float));
    *(float *)p->bytes[KEY] = STEP_KEY;
}

static void problem_free(Problem *p)
{
    for (int tensor = 0; tensor < TENSORS; tensor++) {
        free(p->bytes[tensor]);
        free(p->value[tensor]);
    }
}

/* ---- the definition ----------------------------------------------------- */

/* Position of what is stored at an index, by going through the chunks in the
 * order in which they are stored. */
static int64_t position(const Case *c, int64_t index)
{
    int64_t chunk = c->parts ? c->seq / (2 * c->parts) : 0;

    for (int64_t part = 0; part < c->parts; part++) {
        const int64_t held[] = {part, 2 * c->parts - 1 - part};
        for (int k = 0; k < 2; k++, index -= chunk)
            if (index < chunk)
                return held[k] * chunk + index;
    }
    return index;
}

static int64_t key_index(const Case *c, int64_t j)
{
    int64_t key = c->k_pos + j;

    if (c->shift) /* keys of the part `shift` before, round the ring */
        key = (key + c->seq - c->shift * (c->seq / c->steps)) % c->seq;
    return key;
}

static bool visible(const Case *c, int64_t i, int64_t j)
{
    int64_t back =
        position(c, c->q_pos + i) - position(c, key_index(c, j));
    return (!c->causal || back >= 0) && (!c->window || back < c->window);
}

/* The factor of query i's weight of key j. */
static double kept(const Problem *p, int64_t i, int64_t b, int64_t g, int64_t r,
                   int64_t j)
{
    DropoutPlace place = {
        .step = STEP_KEY, .layer = LAYER, .which = WHICH,
        .sample = MICROBATCH * p->spec.batch + FIRST_B + b,
        .position = position(&p->c, p->c.q_pos + i),
        .other = (FIRST_G + g) * p->spec.queries + FIRST_R + r,
        .last = position(&p->c, key_index(&p->c, j))};

    if (p->rate == 0)
        return 1;
    return dropout_keeps(&place, p->rate) ? 1 / (1 - p->rate) : 0;
}

static double dot(const Problem *p, int x, size_t xi, int y, size_t yi)
{
    double sum = 0.0;
    for (size_t c = 0; c < (size_t)p->c.d; c++)
        sum += p->value[x][xi + c] * p->value[y][yi + c];
    return sum;
}

/* Probabilities of one query; returns its log-sum-exp. */
static double probabilities(const Problem *p, size_t qi, int64_t i, int64_t b,
                            int64_t g, double *out)
{
    double top = -INFINITY, sum = 0.0;

    for (int64_t j = 0; j < p->c.t; j++) {
        out[j] = visible(&p->c, i, j)
                     ? p->spec.scale * dot(p, Q, qi, K, at(p, K, j, b, g, 0))
                     : -INFINITY;
        top = fmax(top, out[j]);
    }
    for (int64_t j = 0; j < p->c.t; j++)
        sum += out[j] = top == -INFINITY ? 0.0 : exp(out[j] - top);
    for (int64_t j = 0; j < p->c.t && sum > 0.0; j++)
        out[j] /= sum;
    return top + log(sum);
}

static void query_forward(Problem *p, int64_t i, int64_t b, int64_t g,
                          int64_t r, double *prob)
{
    size_t oi = at(p, O, i, b, g, r);

    p->value[LSE][at(p, LSE, i, b, g, r)] =
        probabilities(p, at(p, Q, i, b, g, r), i, b, g, prob);
    for (size_t c = 0; c < (size_t)p->c.d; c++) {
        p->value[O][oi + c] = 0.0;
        for (int64_t j = 0; j < p->c.t; j++)
            p->value[O][oi + c] +=
                prob[j] * kept(p, i, b, g, r, j) *
                p->value[V][at(p, V, j, b, g, 0) + c];
    }
}

static void query_backward(Problem *p, int64_t i, int64_t b, int64_t g,
                           int64_t r, double *prob)
{
    size_t qi = at(p, Q, i, b, g, r);
    double delta = dot(p, D_O, qi, O, qi);

    probabilities(p, qi, i, b, g, prob);
    for (int64_t j = 0; j < p->c.t; j++) {
        size_t ki = at(p, K, j, b, g, 0);
        double factor = kept(p, i, b, g, r, j);
        double dp = factor * dot(p, D_O, qi, V, ki);
        double ds = prob[j] * (dp - delta) * p->spec.scale;
        for (size_t c = 0; c < (size_t)p->c.d; c++) {
            p->value[DV][ki + c] += prob[j] * factor * p->value[D_O][qi + c];
            p->value[DK][ki + c] += ds * p->value[Q][qi + c];
            p->value[DQ][qi + c] += ds * p->value[K][ki + c];
        }
    }
}

static void for_queries(Problem *p, void (*one)(Problem *, int64_t, int64_t,
                                                int64_t, int64_t, double *))
{
    double *prob = malloc((size_t)p->c.t * sizeof *prob);

    for (int64_t i = 0; i < p->c.s; i++)
        for (int64_t b = 0; b < p->c.b; b++)
            for (int64_t g = 0; g < p->c.g; g++)
                for (int64_t r = 0; r < p->c.r; r++)
                    one(p, i, b, g, r, prob);
    free(prob);
}

/* ---- comparing ---------------------------------------------------------- */

/* Relative L2 over the real elements; the padding must still be NaN. */
static double distance(const Problem *p, int tensor)
{
    int64_t row = tensor == LSE ? 2 : p->c.d + 3;
    int64_t real = tensor == LSE ? 1 : p->c.d;
    double off = 0.0, size = 0.0;

    for (size_t i = 0; i < p->elems[tensor]; i++) {
        double got = get(p, tensor, i), want = p->value[tensor][i];
        if ((int64_t)i % row >= real) {
            assert_true(isnan(got));
        } else if (want == -INFINITY) {
            assert_true(got == want);
        } else {
            off += (got - want) * (got - want);
            size += want * want;
        }
    }
    return sqrt(off / (size + 1e-30));
}

static void run_backward(Problem *p, void *so, int nthreads)
{
    const int64_t imm[] = {p->c.q_pos, p->c.k_pos, OF_DROPOUT};

    kernel_run(kernel_find(so, "attn_bwd"), p->bytes, imm, nthreads);
    kernel_run(kernel_find(so, "attn_bwd_2"), p->bytes, imm, nthreads);
}

static void *problem_compile(Problem *p)
{
    Buf text = {0};
    void *so;

    p->spec.name = "attn_fwd";
    attention_print_forward(&p->spec, DIALECT_CPU, &text);
    p->spec.name = "attn_bwd";
    attention_print_backward(&p->spec, DIALECT_CPU, &text);
    so = load_text("attention_test", text.s);
    buf_free(&text);
    return so;
}

static void run_forward(Problem *p, void *so, int nthreads)
{
    const int64_t imm[] = {p->c.q_pos, p->c.k_pos, OF_DROPOUT};
    void *ptr[] = {p->bytes[Q], p->bytes[K],   p->bytes[V],
                   p->bytes[O], p->bytes[LSE], p->bytes[KEY]};

    kernel_run(kernel_find(so, "attn_fwd"), ptr, imm, nthreads);
}

static void check_case(const Case *c, double rate)
{
    Problem p;
    double limit = c->type == ATTN_F32 ? 2e-6 : 6e-3;
    void *so;

    problem_make(&p, c, rate);
    so = problem_compile(&p);
    run_forward(&p, so, 3);
    run_backward(&p, so, 3);
    for_queries(&p, query_forward);
    for_queries(&p, query_backward);
    for (int tensor = O; tensor <= DV; tensor++) {
        double off = tensor == D_O ? 0.0 : distance(&p, tensor);
        if (off > limit)
            print_error("%s: tensor %d is off by %g\n", c->label, tensor, off);
        assert_true(off <= limit);
    }
    dlclose(so);
    problem_free(&p);
}

/* ---- tests -------------------------------------------------------------- */

#define IN_ORDER 0, 0, 0, 0

static const Case CASES[] = {
    {"plain", ATTN_F32, 64, 64, 1, 2, 1, 16, false, 0, 0, 0, IN_ORDER},
    {"causal", ATTN_F32, 150, 150, 2, 2, 2, 64, true, 0, 0, 0, IN_ORDER},
    {"small head", ATTN_F32, 32, 32, 1, 4, 2, 8, true, 0, 0, 0, IN_ORDER},
    {"odd sizes", ATTN_F32, 37, 91, 1, 3, 3, 20, false, 0, 0, 0, IN_ORDER},
    {"one query", ATTN_F32, 1, 1, 1, 1, 1, 4, true, 0, 0, 0, IN_ORDER},
    {"many queries", ATTN_F32, 9, 9, 1, 1, 80, 16, true, 0, 0, 0, IN_ORDER},
    {"window", ATTN_F32, 200, 200, 1, 1, 2, 32, true, 50, 0, 0, IN_ORDER},
    {"window only", ATTN_F32, 70, 200, 1, 1, 1, 32, false, 20, 100, 0, IN_ORDER},
    {"later queries", ATTN_F32, 64, 130, 1, 2, 1, 32, true, 0, 66, 0, IN_ORDER},
    {"unseen keys", ATTN_F32, 40, 40, 1, 1, 2, 16, true, 0, 10, 30, IN_ORDER},
    {"wide head", ATTN_F32, 70, 70, 1, 1, 1, 128, true, 0, 0, 0, IN_ORDER},
    {"wider head", ATTN_F32, 33, 33, 1, 2, 1, 192, true, 0, 0, 0, IN_ORDER},
    {"bf16", ATTN_BF16, 100, 100, 2, 2, 3, 64, true, 0, 0, 0, IN_ORDER},
    {"bf16 small", ATTN_BF16, 32, 32, 1, 4, 2, 8, true, 0, 0, 0, IN_ORDER},
    {"zigzag", ATTN_F32, 120, 120, 1, 2, 2, 16, true, 0, 0, 0, 120, 3, 3, 0},
    {"zigzag part", ATTN_F32, 40, 120, 2, 1, 2, 16, true, 0, 40, 0, 120, 3, 3, 0},
    {"long chunks", ATTN_F32, 360, 360, 1, 1, 1, 8, true, 0, 0, 0, 360, 2, 2, 0},
    {"zigzag window", ATTN_F32, 120, 120, 1, 2, 2, 16, true, 33, 0, 0, 120, 3,
     3, 0},
    {"ring window", ATTN_F32, 40, 40, 1, 2, 1, 16, true, 15, 80, 80, 120, 3, 3,
     1},
    {"ring, earlier", ATTN_F32, 40, 40, 1, 2, 1, 16, true, 0, 80, 80, 120, 3,
     3, 1},
    {"ring, later", ATTN_BF16, 40, 40, 1, 2, 2, 16, true, 0, 0, 0, 120, 3, 3,
     1},
    {"parts of a ring", ATTN_F32, 120, 120, 1, 2, 2, 16, true, 0, 120, 120, 240,
     4, 2, 1},
    {"first part of a ring", ATTN_F32, 120, 120, 1, 1, 1, 16, true, 0, 0, 0, 240,
     4, 2, 1},
    {"keys gathered", ATTN_BF16, 60, 240, 1, 2, 2, 16, true, 0, 120, 0, 240, 4, 1,
     0},
};

static void test_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(CASES); i++)
        check_case(&CASES[i], 0);
}

/* The same with weights dropped, by the definition of base/dropout.h. */
static void test_dropout(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(CASES); i++)
        check_case(&CASES[i], 0.3);
}

/* One part of the queries against the keys of one part after the other, each
 * launch starting from what the one before it left. */
static void check_ring(double rate)
{
    static const Case c = {"ring", ATTN_F32, 40, 120, 1, 2, 2, 16, true,
                           0, 40, 0, 120, 3, 3, 0};
    Problem p;

    problem_make(&p, &c, rate);
    for_queries(&p, query_forward);
    for (int64_t shift = 0; shift < c.parts; shift++) {
        int64_t part = (c.q_pos / 40 + c.parts - shift) % c.parts;
        int64_t row = p.strides[K].s * 40 * part * (int64_t)sizeof(float);
        const int64_t imm[] = {c.q_pos, c.q_pos, OF_DROPOUT};
        void *ptr[] = {p.bytes[Q], (char *)p.bytes[K] + row,
                       (char *)p.bytes[V] + row, p.bytes[O],
                       p.bytes[LSE], shift ? p.bytes[O] : p.bytes[KEY],
                       p.bytes[LSE], p.bytes[KEY]};
        Buf text = {0};
        void *so;

        p.spec.name = "attn_fwd";
        p.spec.t = 40;
        p.spec.shift = shift;
        p.spec.carry = shift > 0;
        attention_print_forward(&p.spec, DIALECT_CPU, &text);
        so = load_text("attention_test", text.s);
        kernel_run(kernel_find(so, "attn_fwd"), ptr, imm, 2);
        dlclose(so);
        buf_free(&text);
    }
    assert_true(distance(&p, O) < 2e-6);
    assert_true(distance(&p, LSE) < 2e-6);
    problem_free(&p);
}

static void test_ring(void **state)
{
    (void)state;
    check_ring(0);
    check_ring(0.3);
}

/* The sum of o * do, whose gradient the backward is. */
static double objective(Problem *p)
{
    double sum = 0.0;

    for_queries(p, query_forward);
    for (size_t i = 0; i < p->elems[O]; i++)
        sum += p->value[O][i] * p->value[D_O][i];
    return sum;
}

static void check_definition(double rate)
{
    static const Case c = {"", ATTN_F32, 5, 6, 1, 2, 2, 3, true, 0, 1, 0, IN_ORDER};
    const int inputs[] = {Q, K, V}, grads[] = {DQ, DK, DV};
    const double step = 1e-5;
    Problem p;

    problem_make(&p, &c, rate);
    objective(&p);
    for_queries(&p, query_backward);
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < p.elems[inputs[k]]; i++) {
            double *x = &p.value[inputs[k]][i], was = *x, up, down;
            *x = was + step;
            up = objective(&p);
            *x = was - step;
            down = objective(&p);
            *x = was;
            if ((int64_t)i % (c.d + 3) < c.d)
                assert_true(fabs((up - down) / (2 * step) -
                                 p.value[grads[k]][i]) < 1e-8);
        }
    problem_free(&p);
}

static void test_definition_against_differences(void **state)
{
    (void)state;
    check_definition(0);
    check_definition(0.3);
}

/* Bitwise the same whatever the number of threads. */
static void test_thread_count(void **state)
{
    static const Case c = {"", ATTN_F32, 300, 300, 1, 2,
                           2,  32,       true, 0, 0, 0, IN_ORDER};
    Problem p;
    void *so;
    void *first[TENSORS];

    (void)state;
    problem_make(&p, &c, 0);
    so = problem_compile(&p);
    for (int n = 1; n <= 8; n++) {
        run_forward(&p, so, n);
        run_backward(&p, so, n);
        for (int tensor = O; tensor <= DV; tensor++) {
            size_t size = p.elems[tensor] * sizeof(float);
            if (n == 1)
                first[tensor] = memcpy(malloc(size), p.bytes[tensor], size);
            assert_memory_equal(first[tensor], p.bytes[tensor], size);
        }
    }
    for (int tensor = O; tensor <= DV; tensor++)
        free(first[tensor]);
    dlclose(so);
    problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_definition_against_differences),
        cmocka_unit_test(test_thread_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
