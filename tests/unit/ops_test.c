/* ops_test.c - every op's gradient, and every op in every layout.
 *
 * tests/ops/rows.def has a row per op.  Each becomes a training step whose
 * loss weighs the op's result with fixed random numbers; the pass `grad` makes
 * its backward.  The evaluator runs it in fp64, where central differences of
 * the loss are the judge; and in the field with each dimension of each operand
 * split over two ranks in turn, where one rank is.  An op with a gradient but
 * without a row fails.
 */
#include "ir/eval.h"
#include "passes/passes.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

typedef enum { ANY, POSITIVE } Init;

typedef struct {
    Op op;
    Init init;
    const char *type[3]; /* of x, y, z */
    const char *result, *text;
} OpRow;

static const OpRow rows[] = {
#define ROW(OP, init, x, y, z, result, text)                                   \
    {OP_##OP, init, {x, y, z}, result, text},
#include "tests/ops/rows.def"
#undef ROW
};

/* ---- one row as a module ------------------------------------------------ */

static void tensor_text(Buf *out, const char *name, const char *type,
                        Init init)
{
    buf_printf(out,
               "tensor @%s : %s {\n    parameter\n    init %s\n"
               "    param f32\n    grad f32\n}\n",
               name, type, init == POSITIVE ? "ones" : "normal 0.02");
}

static void read_text(Buf *out, const char *name, const char *type)
{
    buf_printf(out, "    %%%s = read {tensor=@%s, field=param} : %s\n", name,
               name, type);
}

/* The result's type, but in f32. */
static const char *weight_type(Arena *a, const OpRow *row)
{
    return arena_printf(a, "f32%s", strchr(row->result, '['));
}

static const char *module_text(Arena *a, const OpRow *row)
{
    static const char *const names[] = {"x", "y", "z"};
    const char *weights = weight_type(a, row), *text;
    Buf out = {0};

    buf_puts(&out, "module {layers=0, microbatches=1, props=[inferred]}\n"
                   "mesh world=2 {tp=2:1}\n");
    for (int i = 0; i < 3; i++)
        if (*row->type[i])
            tensor_text(&out, names[i], row->type[i], row->init);
    tensor_text(&out, "weights", weights, ANY);
    buf_puts(&out, "tensor @loss : f32 {\n    acc f32\n}\n"
                   "tensor @draws : f32 {\n    param f32\n}\n"
                   "func @micro() {\n");
    for (int i = 0; i < 3; i++)
        if (*row->type[i])
            read_text(&out, names[i], row->type[i]);
    read_text(&out, "weights", weights);
    buf_printf(&out, "%s    %%weighed = mul %%out, %%weights : %s\n", row->text,
               weights);
    buf_puts(&out, "    %sum = sum %weighed {dims=\"\"} : f32\n"
                   "    accum %sum {tensor=@loss, field=acc}\n"
                   "    return\n}\n"
                   "func @step() {\n    %key = host {what=draws} : f32\n"
                   "    write %key {tensor=@draws, field=param}\n"
                   "    call {callee=@micro, over=m, first=0, count=1,"
                   " args=\"\", results=\"\"}\n"
                   "    return\n}\nentry @step\n");
    text = arena_strdup(a, buf_str(&out));
    buf_free(&out);
    return text;
}

static Module *module_of(Arena *a, Diag *d, const OpRow *row)
{
    Module *m = module_parse(a, d, op_info[row->op].name, module_text(a, row));

    if (!m || !pass_grad(m, NULL)) {
        diag_print(d, stderr);
        fail_msg("%s: no module", op_info[row->op].name);
        return NULL;
    }
    m->props |= PROP_GRAD;
    return m;
}

/* ---- differences -------------------------------------------------------- */

/* One element of one tensor moved away from where it would be. */
typedef struct {
    TensorId t;
    int64_t index;
    double value;
} Moved;

static bool move(void *user, const Module *m, TensorId t, Field f,
                 uint32_t layer, int64_t index, double *out)
{
    const Moved *to = user;

    (void)m, (void)layer;
    if (f != FIELD_PARAM || t.i != to->t.i || index != to->index)
        return false;
    *out = to->value;
    return true;
}

static double loss_at(Arena *a, Module *m, Moved *moved)
{
    EvalOptions real = {.kind = EVAL_FP64, .seed = 3, .user = moved,
                        .state = move};
    EvalResult *r = eval_run_with(a, m, &real);
    TensorId loss = tensor_find(m, sym_intern(m->names, "loss"));
    EvalArray x;

    assert_non_null(r);
    assert_true(eval_get_tensor(r, loss, FIELD_ACC, 0, &x));
    return x.at[0].f;
}

static void check_element(Arena *a, Module *m, TensorId t, int64_t index,
                          double at, double gradient)
{
    const double step = 1e-5;
    Moved up = {t, index, at + step}, down = {t, index, at - step};
    double difference =
        (loss_at(a, m, &up) - loss_at(a, m, &down)) / (2 * step);

    if (fabs(difference - gradient) > 1e-7 * fmax(1, fabs(difference)))
        fail_msg("@%s[%lld]: gradient %.9g, difference %.9g",
                 sym_text(m->names, tensor_of(m, t)->name), (long long)index,
                 gradient, difference);
}

static void check_tensor(Arena *a, Module *m, EvalResult *r, TensorId t)
{
    EvalArray at, gradient;
    int64_t n = type_elems(type_of(m, tensor_of(m, t)->type));

    assert_true(eval_get_tensor(r, t, FIELD_PARAM, 0, &at));
    assert_true(eval_get_tensor(r, t, FIELD_GRAD, 0, &gradient));
    for (int64_t i = 0; i < n; i++)
        check_element(a, m, t, i, at.at[i].f, gradient.at[i].f);
}

static void check_row(const OpRow *row)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Module *m = module_of(a, d, row);
    EvalResult *r = eval_run(a, m, EVAL_FP64, 3);

    if (!r)
        diag_print(d, stderr);
    assert_non_null(r);
    for (uint32_t t = 1; t < m->tensors.n; t++)
        if (m->tensors.v[t].parameter)
            check_tensor(a, m, r, (TensorId){t});
    module_free(m);
    diag_free(d);
    arena_free(a);
}

static void gradients_are_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++)
        check_row(&rows[i]);
}

/* ---- layouts ------------------------------------------------------------ */

/* Splits a dimension of a tensor at rest, and whatever follows from that. */
static bool split(Module *m, TensorId t, char dim)
{
    uint8_t tp[IR_MAX_ATOMS];
    uint8_t n = mesh_axis_atoms(m, "tp", tp);
    Layout layout = {0};

    layout_set_split(&layout, dim, tp, n);
    for (uint32_t i = 1; i < m->tensors.n; i++)
        for (int f = 0; f < FIELD_COUNT; f++)
            m->tensors.v[i].rest[f] = layout_whole(m);
    tensor_of(m, t)->rest[FIELD_PARAM] = layout_intern(m, &layout);
    if (!pass_layout(m, NULL))
        return false;
    m->props |= PROP_LAYOUT;
    if (!pass_reshard(m, NULL))
        return false;
    m->props |= PROP_RESHARDED;
    return module_verify(m);
}

static void check_split(const OpRow *row, uint32_t tensor, int dim)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Module *one = module_of(a, d, row), *two = module_of(a, d, row);
    TensorId t = {tensor};
    char letter = type_of(two, tensor_of(two, t)->type)->dim[dim];
    EvalResult *x = eval_run(a, one, EVAL_FIELD, 3), *y = NULL;

    if (split(two, t, letter))
        y = eval_run(a, two, EVAL_FIELD, 3);
    if (!x || !y || !eval_equal(x, y, d, 0)) {
        diag_print(d, stderr);
        fail_msg("%s: %c of @%s split", op_info[row->op].name, letter,
                 sym_text(two->names, tensor_of(two, t)->name));
    }
    module_free(one);
    module_free(two);
    diag_free(d);
    arena_free(a);
}

static void layouts_mean_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        Arena *a = arena_new();
        Diag *d = diag_new(a);
        Module *m = module_of(a, d, &rows[i]);

        for (uint32_t t = 1; t < m->tensors.n; t++)
            for (int k = 0; k < type_of(m, m->tensors.v[t].type)->ndim; k++)
                check_split(&rows[i], t, k);
        module_free(m);
        diag_free(d);
        arena_free(a);
    }
}

/* ---- coverage ----------------------------------------------------------- */

/* read and accum are in every row, call is in every model. */
static bool needs_no_row(Op op, const char *cell)
{
    return !strcmp(cell, "none") || !strcmp(cell, "zero") || op == OP_READ ||
           op == OP_ACCUM || op == OP_CALL;
}

static void each_op_has_a_row(void **state)
{
    static const char *const cells[OP_COUNT] = {
#define OP(NAME, text, nargs, nres, sig, linear, flags, verify, infer, flops,  \
           grad, eval, emit)                                                   \
    [OP_##NAME] = #grad,
#include "ir/ops.def"
#undef OP
    };

    (void)state;
    for (int op = OP_NONE + 1; op < OP_COUNT; op++) {
        bool found = needs_no_row((Op)op, cells[op]);

        for (size_t i = 0; i < MC_LEN(rows); i++)
            found = found || rows[i].op == (Op)op;
        if (!found)
            fail_msg("op %s has a gradient but no row",
                     op_info[op].name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_op_has_a_row),
        cmocka_unit_test(gradients_are_differences),
        cmocka_unit_test(layouts_mean_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
