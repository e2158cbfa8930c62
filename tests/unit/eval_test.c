/* eval_test.c - the evaluator on modules small enough to work out by hand.
 *
 * Numbers that are not obvious come from Python's math module or from the
 * formulas named beside them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "ir/eval.h"

typedef struct {
    Arena *a;
    Diag *d;
    Vec(Module *) modules;
} World;

static int world_open(void **state)
{
    World *w = calloc(1, sizeof *w);

    w->a = arena_new();
    w->d = diag_new(w->a);
    *state = w;
    return 0;
}

static int world_close(void **state)
{
    World *w = *state;

    for (uint32_t i = 0; i < w->modules.n; i++)
        module_free(w->modules.v[i]);
    vec_free(&w->modules);
    diag_free(w->d);
    arena_free(w->a);
    free(w);
    return 0;
}

static Module *parse(World *w, const char *text)
{
    Module *m = module_parse(w->a, w->d, "test.mir", text);

    if (!m)
        diag_print(w->d, stderr);
    assert_non_null(m);
    vec_push(&w->modules, m);
    return m;
}

static bool reported(World *w, const char *needle)
{
    FILE *to = tmpfile();
    char text[8192];
    size_t n;

    diag_print(w->d, to);
    rewind(to);
    n = fread(text, 1, sizeof text - 1, to);
    text[n] = 0;
    fclose(to);
    if (!strstr(text, needle))
        print_message("%s", text);
    return strstr(text, needle) != NULL;
}

/* ---- functions on given numbers ----------------------------------------- */

static EvalArray vector(char dim, int64_t n, double *from)
{
    return (EvalArray){.ndim = 1, .dim = {dim}, .size = {n},
                       .at = (EvalNum *)from};
}

static EvalArray matrix(const char *dims, int64_t rows, int64_t cols,
                        double *from)
{
    return (EvalArray){.ndim = 2, .dim = {dims[0], dims[1]},
                       .size = {rows, cols}, .at = (EvalNum *)from};
}

static EvalArray call(World *w, const char *text, const EvalArray *args)
{
    Module *m = parse(w, text);
    FuncId f = func_find(m, sym_intern(m->names, "f"));
    EvalArray out[4];
    EvalOptions real = {.kind = EVAL_FP64};

    if (!eval_func(w->a, m, f, &real, 0, args, out))
        diag_print(w->d, stderr);
    assert_int_equal(diag_errors(w->d), 0);
    return out[0];
}

static void near(const EvalArray *got, const double *want)
{
    int64_t n = 1;

    for (int d = 0; d < got->ndim; d++)
        n *= got->size[d];
    for (int64_t i = 0; i < n; i++)
        assert_true(fabs(got->at[i].f - want[i]) < 1e-12);
}

#define HEAD "module {layers=0, microbatches=1, props=[]}\nmesh world=1 {}\n"

/* [1 2; 3 4] times the columns (5 6), (7 8): 17 39 / 23 53. */
static void dot_contracts_by_name(void **state)
{
    double x[] = {1, 2, 3, 4}, y[] = {5, 6, 7, 8}, want[] = {17, 23, 39, 53};
    EvalArray args[] = {matrix("sh", 2, 2, x), matrix("fh", 2, 2, y)};
    EvalArray got = call(*state, HEAD
        "func @f(%x : f32[s=2, h=2], %y : f32[f=2, h=2]) {\n"
        "    %z = dot %x, %y {dims=sf, dtype=f32} : f32[s=2, f=2]\n"
        "    return %z\n}\n", args);

    near(&got, want);
}

/* Broadcasting is by letter, not by position. */
static void letters_broadcast(void **state)
{
    double x[] = {1, 2, 3, 4, 5, 6}, y[] = {10, 20};
    double want[] = {10, 20, 30, 80, 100, 120};
    EvalArray args[] = {matrix("sh", 2, 3, x), vector('s', 2, y)};
    EvalArray got = call(*state, HEAD
        "func @f(%x : f32[s=2, h=3], %y : f32[s=2]) {\n"
        "    %z = mul %x, %y : f32[s=2, h=3]\n    return %z\n}\n", args);

    near(&got, want);
}

/* exp(x - max) / sum for x = 1 2 3: Python's math. */
static void softmax_of_primitives(void **state)
{
    double x[] = {1, 2, 3};
    double want[] = {0.09003057317038046, 0.24472847105479764,
                     0.6652409557748218};
    EvalArray args[] = {vector('h', 3, x)};
    EvalArray got = call(*state, HEAD
        "func @f(%x : f32[h=3]) {\n"
        "    %top = max %x {dims=\"\"} : f32\n"
        "    %e = expsub %x, %top : f32[h=3]\n"
        "    %z = sum %e {dims=\"\"} : f32\n"
        "    %p = div %e, %z : f32[h=3]\n    return %p\n}\n", args);

    near(&got, want);
}

/* Two positions, one head of one channel: the second query weighs 1, 3 by
 * softmax(2, 4) = 1/(1+e^2), and the first sees itself only. */
static void attention_is_causal(void **state)
{
    double q[] = {1, 2}, k[] = {1, 2}, v[] = {1, 3};
    double p = 1 / (1 + exp(2.0)), want[] = {1, p + 3 * (1 - p)};
    EvalArray args[3];
    const char dims[] = "sbgrd", keys[] = "sbgd";

    for (int i = 0; i < 3; i++) {
        args[i] = (EvalArray){.ndim = i ? 4 : 5, .size = {2, 1, 1, 1, 1},
                              .at = (EvalNum *)(i == 0 ? q : i == 1 ? k : v)};
        memcpy(args[i].dim, i ? keys : dims, i ? 4 : 5);
    }
    EvalArray got = call(*state, HEAD
        "func @f(%q : f32[s=2, b=1, g=1, r=1, d=1],"
        " %k : f32[s=2, b=1, g=1, d=1], %v : f32[s=2, b=1, g=1, d=1]) {\n"
        "    %o, %lse = attention %q, %k, %v {causal=1} :"
        " f32[s=2, b=1, g=1, r=1, d=1], f32[s=2, b=1, g=1, r=1]\n"
        "    return %o\n}\n", args);

    near(&got, want);
}

/* rotate: (-x2, -x3, x0, x1), channels above `rotary` are dropped. */
static void rotate_by_half(void **state)
{
    double x[] = {1, 2, 3, 4, 5}, want[] = {-3, -4, 1, 2, 0};
    EvalArray args[] = {vector('d', 5, x)};
    EvalArray got = call(*state, HEAD
        "func @f(%x : f32[d=5]) {\n"
        "    %y = rotate %x {rotary=4, sign=1} : f32[d=5]\n"
        "    return %y\n}\n", args);

    near(&got, want);
}

/* A running sum, its trace forward, and what was reversed. */
static void scan_carries_and_stacks(void **state)
{
    double x[] = {1, 2, 3}, zero[] = {0}, want[] = {6, 5, 3};
    EvalArray args[] = {vector('l', 3, x), {.at = (EvalNum *)zero}};
    EvalArray got = call(*state, HEAD
        "func @add(%x : f32, %sum : f32) {\n"
        "    %y = add %x, %sum : f32\n    return %y, %y\n}\n"
        "func @f(%x : f32[l=3], %z : f32) {\n"
        "    %last, %all = call %x, %z {callee=@add, over=l, count=3,"
        " reverse=1, args=\"l>\", results=\">l\"} : f32, f32[l=3]\n"
        "    return %all\n}\n", args);

    near(&got, want);
}

#define TWICE                                                                  \
    HEAD "func @twice(%x : f32, %c : f32, %n : f32) {\n"                       \
    "    %y = add %x, %x : f32\n    %z = add %y, %c : f32\n"                   \
    "    return %z\n}\n"                                                       \
    "func @f(%x : f32, %c : f32[t=3], %n : f32) {\n"                           \
    "    %y = call %x, %c, %n {callee=@twice, over=t, count=3,"                \
    " args=\">t#\", results=\">\"} : f32\n    return %y\n}\n"

/* x becomes 2 x + c[i], for the first n of three iterations. */
static void scan_runs_as_often_as_data_says(void **state)
{
    double x[] = {1}, c[] = {10, 20, 30}, n[] = {0};
    static const double want[] = {1, 12, 44, 118};
    EvalArray args[] = {{.at = (EvalNum *)x}, vector('t', 3, c),
                        {.at = (EvalNum *)n}};

    for (; n[0] <= 3; n[0]++) {
        EvalArray got = call(*state, TWICE, args);

        assert_true(got.at[0].f == want[(int)n[0]]);
    }
}

static void scan_has_no_more_iterations(void **state)
{
    World *w = *state;
    double x[] = {1}, c[] = {10, 20, 30}, n[] = {4};
    EvalArray args[] = {{.at = (EvalNum *)x}, vector('t', 3, c),
                        {.at = (EvalNum *)n}};
    Module *m = parse(w, TWICE);
    EvalOptions real = {.kind = EVAL_FP64};
    EvalArray out[1];

    assert_false(eval_func(w->a, m, func_find(m, sym_intern(m->names, "f")),
                           &real, 0, args, out));
    assert_true(reported(w, "is to run 4 of 3 iterations"));
}

/* Two experts, parts of three tokens of s; each takes one a round. */
static void experts_take_turns(void **state)
{
    double choice[] = {1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 1};
    double round[] = {1}, want[] = {0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0};
    static const double rounds[] = {2};
    EvalArray args[] = {{.ndim = 3, .dim = {'s', 'b', 'e'}, .size = {6, 1, 2},
                         .at = (EvalNum *)choice},
                        {.at = (EvalNum *)round}};
    EvalArray got = call(*state, HEAD
        "func @f(%x : f32[s=6, b=1, e=2], %r : f32) {\n"
        "    %y = turn %x, %r {size=1, s_parts=2, b_parts=1} :"
        " f32[s=6, b=1, e=2]\n    return %y\n}\n", args);

    near(&got, want);
    got = call(*state, HEAD
        "func @f(%x : f32[s=6, b=1, e=2]) {\n"
        "    %y = rounds %x {size=1, s_parts=2, b_parts=1} : f32\n"
        "    return %y\n}\n", args);
    near(&got, rounds);
}

/* ---- one step on several ranks ------------------------------------------ */

#define STATE(name, type, rest, field)                                         \
    "tensor @" name " : f32" type " {\n    init normal 0.02\n    " field       \
    " f32 " rest "\n}\n"

/* y = relu(x w1) w2 and its sum, over `f` split or whole. */
#define MLP(world, axes, f, reduce, result)                                    \
    "module {layers=0, microbatches=1, props=[layout]}\n"                      \
    "mesh world=" world " {" axes "}\n"                                        \
    STATE("x", "[s=4, h=6]", "{}", "param")                                    \
    STATE("y", "[s=4, h=6]", "{}", "grad")                                     \
    STATE("w1", "[f=8, h=6]", f, "param")                                      \
    STATE("w2", "[h=6, f=8]", f, "param")                                      \
    "func @step() {\n"                                                         \
    "    %x = read {tensor=@x, field=param} : f32[s=4, h=6] {}\n"              \
    "    %a = read {tensor=@w1, field=param} : f32[f=8, h=6] " f "\n"          \
    "    %b = read {tensor=@w2, field=param} : f32[h=6, f=8] " f "\n"          \
    "    %u = dot %x, %a {dims=sf, dtype=f32} : f32[s=4, f=8] " f "\n"         \
    "    %v = relu %u : f32[s=4, f=8] " f "\n"                                 \
    "    %p = dot %v, %b {dims=sh, dtype=f32} : f32[s=4, h=6] {+tp}\n"         \
    reduce                                                                     \
    "    clear {tensor=@y, field=grad}\n"                                      \
    "    accum " result " {tensor=@y, field=grad}\n"                           \
    "    %loss = sum " result " {dims=\"\"} : f32 {}\n"                        \
    "    metric %loss {what=loss}\n"                                           \
    "    return\n}\nentry @step\n"

#define REDUCE "    %r = all_reduce %p {axes=tp} : f32[s=4, h=6] {}\n"

static bool same_in(World *w, Module *a, Module *b, EvalKind kind)
{
    EvalResult *x = eval_run(w->a, a, kind, 7);
    EvalResult *y = eval_run(w->a, b, kind, 7);

    return x && y && eval_equal(x, y, w->d, 1e-12);
}

static void tensor_parallel_means_the_same(void **state)
{
    World *w = *state;
    Module *one = parse(w, MLP("1", "tp=1:1", "{}", "", "%p"));
    Module *two = parse(w, MLP("2", "tp=2:1", "{f@tp}", REDUCE, "%r"));
    Module *four = parse(w, MLP("4", "tp=4:1", "{f@tp}", REDUCE, "%r"));

    assert_true(same_in(w, one, two, EVAL_FP64));
    assert_true(same_in(w, one, two, EVAL_FIELD));
    assert_true(same_in(w, two, four, EVAL_FIELD));
    assert_int_equal(diag_errors(w->d), 0);
}

static void a_forgotten_reduction_is_found(void **state)
{
    World *w = *state;
    Module *m = parse(w, MLP("2", "tp=2:1", "{f@tp}", "", "%p"));

    assert_null(eval_run(w->a, m, EVAL_FIELD, 7));
    assert_true(reported(w, "disagree on @y.grad"));
}

static void a_second_reduction_is_found(void **state)
{
    World *w = *state;
    Module *one = parse(w, MLP("1", "tp=1:1", "{}", "", "%p"));
    Module *two = parse(w, MLP("2", "tp=2:1", "{f@tp}", REDUCE
        "    %t = all_reduce %r {axes=tp} : f32[s=4, h=6] {}\n", "%t"));

    assert_false(same_in(w, one, two, EVAL_FIELD));
    assert_true(reported(w, "@y.grad"));
}

/* In the field a function of a partial sum shows even if it is linear in the
 * real numbers at hand; here relu is applied before the reduction. */
static void a_function_of_a_partial_sum_is_found(void **state)
{
    World *w = *state;
    Module *one = parse(w, MLP("1", "tp=1:1", "{}",
        "    %t = relu %p : f32[s=4, h=6] {}\n", "%t"));
    Module *two = parse(w, MLP("2", "tp=2:1", "{f@tp}",
        "    %q = relu %p : f32[s=4, h=6] {+tp}\n"
        "    %r = all_reduce %q {axes=tp} : f32[s=4, h=6] {}\n", "%r"));

    assert_false(same_in(w, one, two, EVAL_FIELD));
}

/* Rows of x travel: gather, reduce-scatter and all-to-all over four ranks. */
static void collectives_move_pieces(void **state)
{
    World *w = *state;
    static const char text[] =
        "module {layers=0, microbatches=1, props=[layout]}\n"
        "mesh world=4 {tp=2:1 dp=2:2}\n"
        STATE("x", "[s=4, h=4]", "{s@dp.tp}", "param")
        STATE("y", "[s=4, h=4]", "{s@dp h@tp}", "m")
        STATE("z", "[s=4, h=4]", "{s@dp.tp}", "m")
        "func @step() {\n"
        "    %x = read {tensor=@x, field=param} : f32[s=4, h=4] {s@dp.tp}\n"
        "    %g = all_gather %x {dim=s, axes=tp} : f32[s=4, h=4] {s@dp}\n"
        "    %t = all_to_all %x {dim=h, from=s, axes=tp} : f32[s=4, h=4]"
        " {h@tp s@dp}\n"
        "    write %t {tensor=@y, field=m}\n"
        "    %h = slice %g {dim=s, axes=tp} : f32[s=4, h=4] {s@dp.tp}\n"
        "    write %h {tensor=@z, field=m}\n"
        "    return\n}\nentry @step\n";
    Module *m = parse(w, text);
    EvalResult *r = eval_run(w->a, m, EVAL_FP64, 3);
    EvalArray x, y, z;

    if (!r)
        diag_print(w->d, stderr);
    assert_non_null(r);
    assert_true(eval_get_tensor(r, (TensorId){1}, FIELD_PARAM, 0, &x));
    assert_true(eval_get_tensor(r, (TensorId){2}, FIELD_M, 0, &y));
    assert_true(eval_get_tensor(r, (TensorId){3}, FIELD_M, 0, &z));
    for (int i = 0; i < 16; i++) {
        assert_true(x.at[i].f == y.at[i].f);
        assert_true(x.at[i].f == z.at[i].f);
    }
}

/* ---- messages ----------------------------------------------------------- */

#define PIPE(first, second)                                                    \
    "module {layers=0, microbatches=1, props=[layout, pipelined]}\n"           \
    "mesh world=2 {pp=2:1}\n"                                                  \
    STATE("x", "[s=4]", "{}", "param") STATE("y", "[s=4]", "{}", "m")          \
    "func @first() {\n" first "    return\n}\n"                                \
    "func @second() {\n" second "    return\n}\n"                              \
    "entry @first\nentry @second\n"
#define READ_X "    %x = read {tensor=@x, field=param} : f32[s=4] {}\n"
#define SEND(value, peer, mb)                                                  \
    "    send " value " {mb=" mb ", peer=" peer ", tag=0}\n"
#define RECV(value, peer, mb)                                                  \
    "    " value " = recv {mb=" mb ", peer=" peer ", tag=0} : f32[s=4] {}\n"
#define WRITE_Y(value) "    write " value " {tensor=@y, field=m}\n"

static void a_message_arrives(void **state)
{
    World *w = *state;
    Module *m = parse(w, PIPE(READ_X SEND("%x", "1", "0"),
                              RECV("%z", "0", "0") WRITE_Y("%z")));
    EvalResult *r = eval_run(w->a, m, EVAL_FIELD, 1);
    EvalArray x, y;

    assert_non_null(r);
    assert_true(eval_get_tensor(r, (TensorId){1}, FIELD_PARAM, 0, &x));
    assert_true(eval_get_tensor(r, (TensorId){2}, FIELD_M, 0, &y));
    for (int i = 0; i < 4; i++)
        assert_int_equal(x.at[i].residue, y.at[i].residue);
}

static void both_wait_first(void **state)
{
    World *w = *state;
    Module *m = parse(w, PIPE(READ_X RECV("%z", "1", "0") SEND("%x", "1", "0"),
                              READ_X RECV("%z", "0", "0") SEND("%x", "0",
                                                               "0")));

    assert_null(eval_run(w->a, m, EVAL_FIELD, 1));
    assert_true(reported(w, "deadlock"));
    assert_true(reported(w, "rank 1 waits in `%z = recv"));
}

static void microbatches_in_the_wrong_order(void **state)
{
    World *w = *state;
    Module *m = parse(w, PIPE(READ_X SEND("%x", "1", "0") SEND("%x", "1", "1"),
                              RECV("%z", "0", "1") RECV("%y", "0", "0")));

    assert_null(eval_run(w->a, m, EVAL_FIELD, 1));
    assert_true(reported(w, "receives chunk 0, microbatch 0 instead"));
}

static void nobody_receives(void **state)
{
    World *w = *state;
    Module *m = parse(w, PIPE(READ_X SEND("%x", "1", "0"), ""));

    assert_null(eval_run(w->a, m, EVAL_FIELD, 1));
    assert_true(reported(w, "rank 1 never receives"));
}

/* ---- state -------------------------------------------------------------- */

static void gradients_start_undefined(void **state)
{
    World *w = *state;
    Module *m = parse(w,
        "module {layers=0, microbatches=1, props=[optimizer]}\n"
        "mesh world=1 {}\n"
        STATE("x", "[s=4]", "", "grad")
        "func @step() {\n"
        "    %x = read {tensor=@x, field=grad} : f32[s=4]\n"
        "    return\n}\nentry @step\n");

    assert_null(eval_run(w->a, m, EVAL_FP64, 1));
    assert_true(reported(w, "@x (layer 0) is used before it was written"));
}

/* The layer register selects; a stacked read sees all layers. */
static void layers_are_separate(void **state)
{
    World *w = *state;
    Module *m = parse(w,
        "module {layers=3, microbatches=1, props=[]}\nmesh world=1 {}\n"
        "tensor @x : f32[s=2] {\n    layers\n    init normal 0.02\n"
        "    param f32\n    m f32\n}\n"
        "func @copy() {\n"
        "    %x = read {tensor=@x, field=param} : f32[s=2]\n"
        "    return %x\n}\n"
        "func @step() {\n"
        "    %all = call {callee=@copy, over=l, count=3, args=\"\","
        " results=\"l\"} : f32[l=3, s=2]\n"
        "    write %all {tensor=@x, field=m, count=3}\n"
        "    return\n}\nentry @step\n");
    EvalResult *r = eval_run(w->a, m, EVAL_FIELD, 1);
    uint64_t seen = 0;

    if (!r)
        diag_print(w->d, stderr);
    assert_non_null(r);
    for (uint32_t l = 0; l < 3; l++) {
        EvalArray x, y;

        assert_true(eval_get_tensor(r, (TensorId){1}, FIELD_PARAM, l, &x));
        assert_true(eval_get_tensor(r, (TensorId){1}, FIELD_M, l, &y));
        assert_int_equal(x.at[1].residue, y.at[1].residue);
        assert_true(x.at[0].residue != seen);
        seen = x.at[0].residue;
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, world_open, world_close)
    const struct CMUnitTest tests[] = {
        TEST(dot_contracts_by_name),
        TEST(letters_broadcast),
        TEST(softmax_of_primitives),
        TEST(attention_is_causal),
        TEST(rotate_by_half),
        TEST(scan_carries_and_stacks),
        TEST(scan_runs_as_often_as_data_says),
        TEST(scan_has_no_more_iterations),
        TEST(experts_take_turns),
        TEST(tensor_parallel_means_the_same),
        TEST(a_forgotten_reduction_is_found),
        TEST(a_second_reduction_is_found),
        TEST(a_function_of_a_partial_sum_is_found),
        TEST(collectives_move_pieces),
        TEST(a_message_arrives),
        TEST(both_wait_first),
        TEST(microbatches_in_the_wrong_order),
        TEST(nobody_receives),
        TEST(gradients_start_undefined),
        TEST(layers_are_separate),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
