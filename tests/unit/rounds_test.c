/* rounds_test.c - experts that take their tokens in rounds, whatever the router
 * does.
 *
 * The choice of the router is replaced by one made up here: all tokens to the
 * same experts, an even load, tokens of some ranks to experts that those of
 * others never choose.  The judge is the same model with a slot for every token
 * (capacity_factor 100 drops none), which has no rounds; and every pass keeps
 * the meaning of both, in fp64 and in the prime field.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "frontend/model.h"
#include "ir/eval.h"
#include "passes/passes.h"
#include "tests/unit/models.h"

enum { SEED = 3, MOST_SETS = 8 };

/* ---- made up choices ----------------------------------------------------- */

typedef enum {
    SKEWED, /* every token chooses the first experts */
    EVEN,   /* token s chooses experts s, s + 1, … modulo their number */
    HALVES  /* the first half of the sequence the first experts, the others
               the last ones */
} Choice;

typedef struct {
    Module *m;
    FuncId f;
    NodeId topk;
} Site;

static ValueId op(Site *s, Op o, const ValueId *args, uint32_t n, AttrsId attrs)
{
    return ir_op(s->m, s->f, o, args, n, attrs, (Loc){0});
}

/* 1 for indices of `dim` below `limit`, else 0. */
static ValueId below(Site *s, char dim, int64_t size, int64_t limit)
{
    char dims[] = {dim, '\0'};
    Attr list[] = {attr_of_sym(AK_DIMS, sym_intern(s->m->names, dims)),
                   attr_of_int(AK_SIZE, size), attr_of_int(AK_LIMIT, limit)};

    return op(s, OP_INRANGE, NULL, 0, attrs_intern(s->m, list, 3));
}

static ValueId two(Site *s, Op o, ValueId x, ValueId y)
{
    return ir_binary(s->m, s->f, o, x, y, (Loc){0});
}

/* 1 for indices [from, to) of `dim`. */
static ValueId range(Site *s, char dim, int64_t size, int64_t from, int64_t to)
{
    return two(s, OP_SUB, below(s, dim, size, to), below(s, dim, size, from));
}

/* Token s of the sequence chooses k experts from s on, modulo e. */
static ValueId even(Site *s, int64_t tokens, int64_t e, int64_t k)
{
    ValueId sum = ir_const(s->m, s->f, 0, (Loc){0});

    for (int64_t i = 0; i < tokens; i++)
        for (int64_t j = 0; j < k; j++) {
            int64_t at = (i + j) % e;

            sum = two(s, OP_ADD, sum,
                      two(s, OP_MUL, range(s, 's', tokens, i, i + 1),
                          range(s, 'e', e, at, at + 1)));
        }
    return sum;
}

static ValueId halves(Site *s, int64_t tokens, int64_t e, int64_t k)
{
    ValueId first = two(s, OP_MUL, below(s, 's', tokens, tokens / 2),
                        below(s, 'e', e, k));
    ValueId last = two(s, OP_MUL, range(s, 's', tokens, tokens / 2, tokens),
                       range(s, 'e', e, e - k, e));

    return two(s, OP_ADD, first, last);
}

/* Puts the choice in the place of what the router chose. */
static void choose(Site *s, Choice c)
{
    const Node n = *node_of(s->m, s->topk);
    const Type t = *value_type(s->m, n.res);
    int64_t tokens = type_size(&t, 's'), e = type_size(&t, 'e');
    int64_t k = attr_int(s->m, n.attrs, AK_TOP_K, 1);
    ValueId zero = ir_const(s->m, s->f, 0, (Loc){0});
    ValueId made = c == SKEWED ? below(s, 'e', e, k)
                   : c == EVEN ? even(s, tokens, e, k)
                               : halves(s, tokens, e, k);
    ValueId none = two(s, OP_MUL, n.res, zero);

    made = two(s, OP_ADD, none, made);
    for (uint32_t i = 0; i < func_of(s->m, s->f)->body.n; i++) {
        const Node *user = node_of(s->m, func_of(s->m, s->f)->body.v[i]);

        for (uint32_t a = 0; a < user->nargs; a++)
            if (node_arg(s->m, user, a).i == n.res.i &&
                user->res.i != none.i)
                s->m->args.v[user->arg + a] = made;
    }
}

/* Moves what was built last behind the router's choice. */
static void move_up(Site *s, uint32_t at, uint32_t count)
{
    Func *f = func_of(s->m, s->f);
    uint32_t moved = f->body.n - count;
    Vec(NodeId) old = {0};

    for (uint32_t i = 0; i < f->body.n; i++)
        vec_push(&old, f->body.v[i]);
    for (uint32_t i = 0; i < moved; i++)
        f->body.v[at + 1 + i] = old.v[count + i];
    for (uint32_t i = at + 1; i < count; i++)
        f->body.v[moved + i] = old.v[i];
    vec_free(&old);
}

static void choose_everywhere(Module *m, Choice c)
{
    for (uint32_t f = 1; f < m->funcs.n; f++)
        for (uint32_t i = 0; i < m->funcs.v[f].body.n; i++) {
            Site s = {m, {f}, m->funcs.v[f].body.v[i]};
            uint32_t count = m->funcs.v[f].body.n;

            if (node_of(m, s.topk)->op != OP_TOPK)
                continue;
            choose(&s, c);
            move_up(&s, i, count);
            break;
        }
}

/* ---- models -------------------------------------------------------------- */

typedef struct {
    Arena *a;
    Diag *d;
    Spec *spec;
    Module *m;
} Built;

static Built build(const char *const *layout, const char *more, Choice c)
{
    const char *sets[MOST_SETS];
    int n = layout_length(layout);
    Built b = {.a = arena_new()};

    memcpy(sets, layout, sizeof *sets * (size_t)n);
    if (more)
        sets[n++] = more;
    b.d = diag_new(b.a);
    b.spec = spec_parse(b.a, b.d, "model", MODEL_M0, sets, n);
    if (!b.spec)
        diag_print(b.d, stderr);
    assert_non_null(b.spec);
    b.spec = spec_shrink(b.a, b.spec);
    b.m = model_build(b.a, b.d, b.spec);
    choose_everywhere(b.m, c);
    assert_true(module_verify(b.m));
    return b;
}

static void drop(Built *b)
{
    module_free(b->m);
    diag_free(b->d);
    arena_free(b->a);
}

static uint32_t calls_with_trips(const Module *m)
{
    uint32_t n = 0;

    for (uint32_t f = 1; f < m->funcs.n; f++)
        for (uint32_t i = 0; i < m->funcs.v[f].body.n; i++) {
            const Node *node = &m->nodes.v[m->funcs.v[f].body.v[i].i];
            n += node->op == OP_CALL && call_trips(m, node) >= 0;
        }
    return n;
}

/* ---- the tests ----------------------------------------------------------- */

static const Choice CHOICES[] = {SKEWED, EVEN, HALVES};

/* Forward and backward give what a slot for every token gives. */
static void no_token_is_dropped(void **state)
{
    static const EvalKind kinds[] = {EVAL_FP64, EVAL_FIELD};
    static const char *const none[] = {NULL};

    (void)state;
    for (size_t i = 0; i < MC_LEN(CHOICES); i++)
        for (size_t k = 0; k < MC_LEN(kinds); k++) {
            Built x = build(none, NULL, CHOICES[i]);
            Built y = build(none, "model.moe.capacity_factor=100", CHOICES[i]);
            EvalResult *rx, *ry;

            assert_int_equal(calls_with_trips(x.m), 1);
            assert_int_equal(calls_with_trips(y.m), 0);
            assert_true(pass_run(pass_find("grad"), x.m, x.spec));
            assert_true(pass_run(pass_find("grad"), y.m, y.spec));
            assert_int_equal(calls_with_trips(x.m), 2);
            rx = eval_run(x.a, x.m, kinds[k], SEED);
            ry = eval_run(y.a, y.m, kinds[k], SEED);
            if (!rx || !ry || !eval_equal(rx, ry, x.d, 1e-9))
                diag_print(x.d, stderr);
            assert_int_equal(diag_errors(x.d), 0);
            drop(&x);
            drop(&y);
        }
}

static const char *const SOME_LAYOUTS[][6] = {
    {"parallel.ep=4"},
    {"parallel.ep=2", "model.moe.dispatcher=allgather"},
    {"parallel.tp=2", "parallel.etp=1"},
    {"parallel.tp=2", "parallel.sp=true", "parallel.ep=2"},
    {"parallel.cp=2", "parallel.ep=2", "parallel.world_size=2"},
    {"parallel.ep=2", "parallel.dp=2", "parallel.sharding=optim_grads_params"},
    {"parallel.ep=2", "parallel.pp=2", "parallel.schedule=zb-h1"},
    {"parallel.ep=2", "training.recompute.granularity=full",
     "model.moe.shared_ffn_hidden_size=64", "training.precision=bf16"},
};

static void every_pass_keeps_rounds(void **state)
{
    const PassOptions options = {.verify_each = true};

    (void)state;
    for (size_t i = 0; i < MC_LEN(SOME_LAYOUTS); i++)
        for (size_t k = 0; k < MC_LEN(CHOICES); k++) {
            Built b = build(SOME_LAYOUTS[i], NULL, CHOICES[k]);
            bool ok = passes_run(b.m, b.spec, &options);

            diag_print(b.d, stderr);
            assert_true(ok);
            drop(&b);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_token_is_dropped),
        cmocka_unit_test(every_pass_keeps_rounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
