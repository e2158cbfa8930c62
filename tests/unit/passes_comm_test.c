/* passes_comm_test.c - no communication is done twice.
 *
 * In the program of every layout: the same collective of the same value, or of
 * the same state, occurs once in a function; and nothing is gathered that was
 * just scattered over the same ranks.  Ranks of several stages, whose programs
 * differ, reduce on the same stream.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "frontend/model.h"
#include "passes/passes.h"
#include "tests/unit/models.h"

static const Node *definition(const Module *m, ValueId v)
{
    NodeId def = m->values.v[v.i].def;

    return def.i ? &m->nodes.v[def.i] : NULL;
}

/* Two reads of one field are one value, as long as nothing writes it. */
static bool same_value(const Module *m, ValueId a, ValueId b)
{
    const Node *x = definition(m, a), *y = definition(m, b);

    if (a.i == b.i)
        return true;
    return x && y && x->op == OP_READ && y->op == OP_READ &&
           x->attrs.i == y->attrs.i;
}

static bool writes(const Module *m, const Node *n, const Node *read)
{
    if (n->op == OP_CALL)
        return true;
    return (n->op == OP_WRITE || n->op == OP_ACCUM) &&
           attr_tensor(m, n->attrs, AK_TENSOR).i ==
               attr_tensor(m, read->attrs, AK_TENSOR).i;
}

static bool is_collective(const Node *n)
{
    return (op_info[n->op].flags & OPF_COMM) && n->op != OP_SEND &&
           n->op != OP_RECV && n->nargs > 0;
}

/* The same collective earlier in the body, with its state untouched since. */
static bool done_before(const Module *m, const Func *f, uint32_t at)
{
    const Node *n = &m->nodes.v[f->body.v[at].i];
    const Node *read = definition(m, node_arg(m, n, 0));

    for (uint32_t i = at; i-- > 0;) {
        const Node *o = &m->nodes.v[f->body.v[i].i];
        if (read && read->op == OP_READ && writes(m, o, read))
            return false;
        if (o->op == n->op && o->attrs.i == n->attrs.i &&
            same_value(m, node_arg(m, o, 0), node_arg(m, n, 0)))
            return true;
    }
    return false;
}

/* A gather of what a scatter, or a slice, has just taken apart. */
static bool undoes(const Module *m, const Node *n)
{
    const Node *o = definition(m, node_arg(m, n, 0));

    return n->op == OP_ALL_GATHER && o &&
           (o->op == OP_REDUCE_SCATTER || o->op == OP_SLICE) &&
           attr_axes(m, o->attrs, AK_AXES) == attr_axes(m, n->attrs, AK_AXES);
}

static void check_func(const Module *m, FuncId id, const char *const *sets)
{
    const Func *f = &m->funcs.v[id.i];

    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *n = &m->nodes.v[f->body.v[i].i];
        if (!is_collective(n))
            continue;
        bool spans = (attr_axes(m, n->attrs, AK_AXES) &
                      (mesh_axis(m, "pp") | mesh_axis(m, "embed"))) != 0;
        if ((!spans && done_before(m, f, i)) || undoes(m, n))
            fail_msg("%s of @%s is not needed (layout %s)",
                     op_info[n->op].name, sym_text(m->names, f->name),
                     sets[0] ? sets[0] : "of one rank");
        if (spans)
            assert_int_not_equal(n->stream, STREAM_COMPUTE);
    }
}

static uint32_t collectives(const char *text, const char *const *sets)
{
    static const PassOptions options;
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Spec *spec = spec_parse(a, d, "model", text, sets, layout_length(sets));
    uint32_t n = 0;

    assert_non_null(spec);
    Module *m = model_build(a, d, spec);
    assert_true(passes_run(m, spec, &options));
    for (uint32_t f = 1; f < m->funcs.n; f++) {
        check_func(m, (FuncId){f}, sets);
        for (uint32_t i = 0; i < m->funcs.v[f].body.n; i++)
            n += is_collective(&m->nodes.v[m->funcs.v[f].body.v[i].i]);
    }
    module_free(m);
    diag_free(d);
    arena_free(a);
    return n;
}

static void test_nothing_is_done_twice(void **state)
{
    uint32_t n = 0;

    (void)state;
    for (size_t i = 0; i < MC_LEN(LAYOUTS); i++) {
        n += collectives(MODEL_T0, LAYOUTS[i]);
        n += collectives(MODEL_G0, LAYOUTS[i]);
    }
    for (size_t i = 0; i < MC_LEN(EXPERT_LAYOUTS); i++)
        n += collectives(MODEL_M0, EXPERT_LAYOUTS[i]);
    assert_true(n > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_done_twice),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
