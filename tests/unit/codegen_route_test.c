/* codegen_route_test.c - kernels of a mixture of experts against plain C, which
 * stands here: the choice, the capacity, rows to experts and back, sums over
 * replicas.  Experts that get no token, and one that gets all of them, are in.
 */
#include "codegen/kernels.h"
#include "tests/unit/codegen_load.h"

#include <math.h>
#include <string.h>

enum { S = 10, B = 3, T = S * B, E = 6, H = 21, K = 2, C = T };

static const char TEXT[] =
    "module {layers=0, microbatches=1, props=[inferred]}\n"
    "mesh world=1 {}\n"
    "func @f(%score : f32[s=10, b=3, e=6], %x : f32[s=10, b=3, h=21],\n"
    "        %sums : f32[b=3, e=6], %round : f32) {\n"
    "    %1 = topk %score {top_k=2} : f32[s=10, b=3, e=6]\n"
    "    %2 = topk %score {top_k=2, groups=3, top_groups=1} :"
    " f32[s=10, b=3, e=6]\n"
    "    %3 = fit %1, %score {size=2, s_parts=2, b_parts=1, by_score=1} :"
    " f32[s=10, b=3, e=6]\n"
    "    %4 = fit %1, %score {size=2, s_parts=1, b_parts=3} :"
    " f32[s=10, b=3, e=6]\n"
    "    %5 = dispatch %1, %score, %x {size=30} : f32[e=6, c=30, h=21]\n"
    "    %6 = combine %1, %score, %5 : f32[s=10, b=3, h=21]\n"
    "    %7 = combine_weight %1, %5, %x : f32[s=10, b=3, e=6]\n"
    "    %8 = group_sum %sums {b_parts=1} : f32[b=3, e=6]\n"
    "    %9 = filled %1 {size=3, limit=10} : f32[e=6, c=3]\n"
    "    %10 = turn %1, %round {size=4, s_parts=2, b_parts=1} :"
    " f32[s=10, b=3, e=6]\n"
    "    %11 = rounds %1 {size=4, s_parts=2, b_parts=1} : f32\n"
    "    return %2, %3, %4, %6, %7, %8, %9, %10, %11\n"
    "}\n"
    "entry @f\n";

static const char *const NAMES[] = {"choose",  "groups",  "fit_score",
                                    "fit_first", "dispatch", "combine",
                                    "weight",  "group_sum", "filled",
                                    "turn",    "rounds"};
enum { KERNELS = MC_LEN(NAMES) };

typedef struct {
    Arena *a;
    Diag *d;
    Module *m;
    CodeUnit unit[KERNELS];
    KernelInfo info[KERNELS];
    Buf text[KERNELS];
    void *so;
} Rig;

static void rig_open(Rig *r)
{
    memset(r, 0, sizeof *r);
    r->a = arena_new();
    r->d = diag_new(r->a);
    r->m = module_parse(r->a, r->d, "route", TEXT);
    diag_print(r->d, stderr);
    assert_non_null(r->m);
    const Func *f = func_of(r->m, r->m->entry.v[0]);
    assert_int_equal(f->body.n, KERNELS);
    for (uint32_t i = 0; i < KERNELS; i++) {
        route_print(r->m, f->body.v[i], NAMES[i], &r->text[i], &r->info[i]);
        r->unit[i] = (CodeUnit){NAMES[i], buf_str(&r->text[i])};
    }
}

static void rig_close(Rig *r)
{
    for (uint32_t i = 0; i < KERNELS; i++)
        buf_free(&r->text[i]);
    module_free(r->m);
    diag_free(r->d);
    arena_free(r->a);
}

/* Both phases of kernel `i`, with as many threads as in a hard case. */
static void rig_run(Rig *r, uint32_t i, void *const *ptr)
{
    const char *second = arena_printf(r->a, "%s_2", NAMES[i]);

    kernel_run(kernel_find(r->so, NAMES[i]), ptr, NULL, 3);
    if (r->info[i].phases == 2)
        kernel_run(kernel_find(r->so, second), ptr, NULL, 3);
}

/* ---- plain C ------------------------------------------------------------- */

/* Token t comes before u for an expert: a higher score, or earlier. */
static bool ahead(const float *score, int t, int u)
{
    return score[t] > score[u] || (score[t] == score[u] && t < u);
}

static void best(const float *score, int n, int k, float *out)
{
    for (int i = 0; i < n; i++) {
        int before = 0;
        for (int j = 0; j < n; j++)
            before += ahead(score, j, i);
        out[i] = before < k ? 1.0f : 0.0f;
    }
}

static void best_of_groups(const float *score, float *out)
{
    float sum[3], open[3];

    for (int g = 0; g < 3; g++)
        sum[g] = score[2 * g] + score[2 * g + 1];
    best(sum, 3, 1, open);
    for (int i = 0; i < E; i++)
        out[i] = open[i / 2];
}

/* How many chosen tokens of the part [s0, s1) x [b0, b1) come before t. */
static int before(const float *choice, const float *score, int t, int e,
                  const int *part, bool by_score)
{
    int n = 0;

    for (int s = part[0]; s < part[1]; s++)
        for (int b = part[2]; b < part[3]; b++) {
            int u = s * B + b;
            if (choice[u * E + e] == 0.0f || u == t)
                continue;
            n += by_score ? score[u * E + e] > score[t * E + e] ||
                                (score[u * E + e] == score[t * E + e] && u < t)
                          : u < t;
        }
    return n;
}

static int slot_of(const float *choice, int t, int e)
{
    const int all[] = {0, S, 0, B};

    return before(choice, NULL, t, e, all, false);
}

/* ---- inputs -------------------------------------------------------------- */

typedef struct {
    float score[T * E], x[T * H], choice[T * E];
} Input;

/* Scores with equal ones among them; expert 3 is never chosen, and expert 0
 * always. */
static void input_make(Input *in)
{
    uint64_t seed = 11;

    for (int i = 0; i < T * E; i++)
        in->score[i] = roundf(8 * random_unit(&seed)) / 8;
    for (int t = 0; t < T; t++) {
        in->score[t * E] += 4;
        in->score[t * E + 3] -= 4;
        best(in->score + t * E, E, K, in->choice + t * E);
    }
    for (int i = 0; i < T * H; i++)
        in->x[i] = random_unit(&seed);
}

static void expect_close(const float *got, const float *want, int n)
{
    for (int i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-5f * (1 + fabsf(want[i]))))
            fail_msg("[%d]: %g, not %g", i, (double)got[i], (double)want[i]);
}

/* ---- the tests ----------------------------------------------------------- */

static void check_choice(Rig *r, Input *in)
{
    static float got[T * E], want[T * E];
    void *ptr[] = {in->score, got};

    rig_run(r, 0, ptr);
    assert_memory_equal(got, in->choice, sizeof got);
    for (int t = 0; t < T; t++)
        best_of_groups(in->score + t * E, want + t * E);
    rig_run(r, 1, ptr);
    assert_memory_equal(got, want, sizeof got);
}

/* Two tokens per expert: of each half of s by score, of each b in order. */
static void check_fit(Rig *r, Input *in)
{
    static float got[T * E], want[T * E];
    void *ptr[] = {in->choice, in->score, got};

    for (int k = 0; k < 2; k++) {
        for (int t = 0; t < T; t++) {
            int s = t / B, b = t % B, half = s / (S / 2) * (S / 2);
            const int parts[2][4] = {{half, half + S / 2, 0, B},
                                     {0, S, b, b + 1}};
            for (int e = 0; e < E; e++)
                want[t * E + e] =
                    in->choice[t * E + e] != 0.0f &&
                            before(in->choice, in->score, t, e, parts[k],
                                   k == 0) < 2
                        ? 1.0f
                        : 0.0f;
        }
        rig_run(r, 2 + (uint32_t)k, ptr);
        assert_memory_equal(got, want, sizeof got);
    }
}

static void check_ways(Rig *r, Input *in)
{
    static float block[E * C * H], out[E * C * H];
    static float back[T * H], y[T * H], weight[T * E], w[T * E];
    static int32_t slots[T * E];

    for (int t = 0; t < T; t++)
        for (int e = 0; e < E; e++) {
            int at = (e * C + slot_of(in->choice, t, e)) * H;
            for (int h = 0; in->choice[t * E + e] != 0.0f && h < H; h++) {
                block[at + h] = in->score[t * E + e] * in->x[t * H + h];
                back[t * H + h] += in->score[t * E + e] * block[at + h];
                weight[t * E + e] += block[at + h] * in->x[t * H + h];
            }
        }
    memset(out, 0xff, sizeof out); /* unused slots become zero */
    rig_run(r, 4, (void *[]){in->choice, in->score, in->x, out});
    expect_close(out, block, E * C * H);
    for (int i = 0; i < C * H; i++)
        assert_true(out[3 * C * H + i] == 0.0f);
    rig_run(r, 5, (void *[]){in->choice, in->score, block, y, slots});
    expect_close(y, back, T * H);
    rig_run(r, 6, (void *[]){in->choice, block, in->x, w, slots});
    expect_close(w, weight, T * E);
}

static void check_group_sum(Rig *r, Input *in)
{
    float got[B * E], want[B * E] = {0};

    for (int b = 0; b < B; b++)
        for (int k = 0; k < B; k++)
            for (int e = 0; e < E; e++)
                want[b * E + e] += in->score[k * E + e];
    rig_run(r, 7, (void *[]){in->score, got});
    expect_close(got, want, B * E);
}

/* Slots of three parts of ten: the first are full before the next begin. */
static void check_filled(Rig *r, Input *in)
{
    float got[E * 3], want[E * 3];

    for (int e = 0; e < E; e++) {
        int n = 0;
        for (int t = 0; t < T; t++)
            n += in->choice[t * E + e] != 0.0f;
        for (int p = 0; p < 3; p++)
            want[e * 3 + p] = (float)MC_MAX(MC_MIN(n - 10 * p, 10), 0);
    }
    rig_run(r, 8, (void *[]){in->choice, got});
    assert_memory_equal(got, want, sizeof got);
}

/* Four tokens per expert and round of each half of s: in round 2 those with
 * eight to eleven before them. */
static void check_turn(Rig *r, Input *in)
{
    static float got[T * E], want[T * E];
    float round = 2;

    for (int t = 0; t < T; t++) {
        int half = t / B / (S / 2) * (S / 2);
        const int part[4] = {half, half + S / 2, 0, B};
        for (int e = 0; e < E; e++)
            want[t * E + e] =
                in->choice[t * E + e] != 0.0f &&
                        before(in->choice, NULL, t, e, part, false) / 4 == 2
                    ? 1.0f
                    : 0.0f;
    }
    rig_run(r, 9, (void *[]){in->choice, &round, got});
    assert_memory_equal(got, want, sizeof got);
}

/* Expert 0 has all 15 tokens of each half: four rounds, three more than one.
 * Nobody has any: none. */
static void check_rounds(Rig *r, Input *in)
{
    static float nobody[T * E];
    int32_t left[E * 2];
    float got = -1;

    rig_run(r, 10, (void *[]){in->choice, &got, left});
    assert_true(got == 3.0f);
    rig_run(r, 10, (void *[]){nobody, &got, left});
    assert_true(got == 0.0f);
}

static void kernels_agree_with_plain_c(void **state)
{
    static Input in;
    Rig r;

    (void)state;
    rig_open(&r);
    r.so = load_units(r.unit, KERNELS);
    input_make(&in);
    check_choice(&r, &in);
    check_fit(&r, &in);
    check_ways(&r, &in);
    check_group_sum(&r, &in);
    check_filled(&r, &in);
    check_turn(&r, &in);
    check_rounds(&r, &in);
    rig_close(&r);
}

/* The same text, but for its prelude, is CUDA. */
static void texts_become_cubins(void **state)
{
    Buf cubin[KERNELS] = {{0}};
    Rig r;

    (void)state;
    if (!have_nvrtc())
        skip();
    rig_open(&r);
    assert_true(codegen_cuda_build(r.unit, KERNELS, "sm_90a", 2, r.d, (Loc){0},
                                   cubin));
    for (int i = 0; i < KERNELS; i++) {
        assert_memory_equal(cubin[i].s, "\177ELF", 4);
        buf_free(&cubin[i]);
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_agree_with_plain_c),
        cmocka_unit_test(texts_become_cubins),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
