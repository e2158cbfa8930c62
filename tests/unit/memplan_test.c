/* memplan_test.c - addresses of small modules, worked out by hand.
 *
 * Values are f32[h=32], 128 bytes each, unless said otherwise; frames are
 * multiples of 64 bytes.
 */
#include "passes/memplan.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

typedef struct {
    Arena *arena;
    Diag *diag;
    Module *m;
    MemPlan *mem;
} Rig;

/* Rows may overwrite their first operand; a row named @wide needs 1000 bytes
 * of workspace. */
static bool first_in_place(const Module *m, const Node *n, uint32_t arg,
                           uint32_t res)
{
    (void)m;
    (void)n;
    return arg == 0 && res == 0;
}

static int64_t wide_scratch(const Module *m, NodeId id, int dialect)
{
    const Node *n = &m->nodes.v[id.i];
    FuncId f = attr_func(m, n->attrs, AK_CALLEE);

    assert_int_equal(dialect, 7);
    return n->op == OP_ROW &&
                   strcmp(sym_text(m->names, m->funcs.v[f.i].name), "wide") == 0
               ? 1000 : 0;
}

static Rig rig_open(const char *text)
{
    MemRules rules = {7, wide_scratch, first_in_place, 0};
    Rig r = {.arena = arena_new()};

    r.diag = diag_new(r.arena);
    r.m = module_parse(r.arena, r.diag, "t.mir", text);
    if (!r.m || !module_verify(r.m))
        diag_print(r.diag, stderr);
    assert_int_equal(diag_errors(r.diag), 0);
    r.mem = memplan_make(r.arena, r.m, &rules);
    return r;
}

static void rig_close(Rig *r)
{
    module_free(r->m);
    diag_free(r->diag);
    arena_free(r->arena);
}

static FuncId func_named(const Rig *r, const char *name)
{
    FuncId f = func_find(r->m, sym_intern(r->m->names, name));

    assert_int_not_equal(f.i, 0);
    return f;
}

/* The place of the `res`-th result of the node at `pos`. */
static MemPlace place_at(const Rig *r, const char *func, uint32_t pos,
                         uint32_t res)
{
    const Func *f = &r->m->funcs.v[func_named(r, func).i];

    return r->mem->place[node_res(&r->m->nodes.v[f->body.v[pos].i], res).i];
}

static int64_t frame_of(const Rig *r, const char *func)
{
    return r->mem->frame[func_named(r, func).i].device.bytes;
}

static TensorId tensor_named(const Rig *r, const char *name)
{
    TensorId t = tensor_find(r->m, sym_intern(r->m->names, name));

    assert_int_not_equal(t.i, 0);
    return t;
}

static const MemState *state_of(const Rig *r, uint32_t pp, const char *tensor,
                                Field f)
{
    return memplan_state(r->mem, pp, tensor_named(r, tensor), f);
}

#define HEAD "module {layers=0, microbatches=1, props=[layout, pipelined]}\n"  \
             "mesh world=2 {dp=2:1}\n"
#define X "tensor @x : f32[h=32] {\n    init normal 1\n    param f32 {}\n"     \
          "    m f32 {}\n}\n"
#define ROW(name)                                                              \
    "row @" name "(%x : f32[h=32] {}, %y : f32[h=32] {}) {\n"                  \
    "    %z = add %x, %y : f32[h=32] {}\n    return %z\n}\n"
#define ADD(z, x, y) "    %" z " = row %" x ", %" y " {callee=@add}"           \
                     " : f32[h=32] {}\n"
#define READ_X "    %x = read {tensor=@x, field=param} : f32[h=32] {}\n"

/* ---- frames -------------------------------------------------------------- */

/* b is made while a lives on; then c takes b's bytes, d takes c's, and e, which
 * is written to a tensor, needs none. */
static void dying_operands_are_overwritten(void **state)
{
    Rig r = rig_open(HEAD X ROW("add")
                     "func @step() {\n" READ_X
                     ADD("a", "x", "x")  /* 1 */
                     ADD("b", "a", "x")  /* 2 */
                     ADD("c", "b", "a")  /* 3 */
                     ADD("d", "c", "x")  /* 4 */
                     ADD("e", "d", "x")  /* 5 */
                     "    write %e {tensor=@x, field=m}\n"
                     "    return\n}\nentry @step\n");

    (void)state;
    assert_int_equal(frame_of(&r, "step"), 2 * 128);
    assert_true(memplan_same_place(place_at(&r, "step", 2, 0),
                                   place_at(&r, "step", 3, 0)));
    assert_true(memplan_same_place(place_at(&r, "step", 3, 0),
                                   place_at(&r, "step", 4, 0)));
    assert_int_equal(place_at(&r, "step", 5, 0).base, MEM_STATE);
    assert_int_equal(place_at(&r, "step", 5, 0).field, FIELD_M);
    rig_close(&r);
}

/* A workspace lives for one node, beside that node's operands and results. */
static void workspace_is_a_temporary(void **state)
{
    Rig r = rig_open(HEAD X ROW("add") ROW("wide")
                     "func @step() {\n" READ_X
                     ADD("a", "x", "x")
                     "    %b = row %x, %a {callee=@wide} : f32[h=32] {}\n"
                     ADD("c", "x", "b")
                     "    write %c {tensor=@x, field=m}\n"
                     "    return\n}\nentry @step\n");

    (void)state;
    /* a, b and 1000 bytes rounded up to 1024 at the second row */
    assert_int_equal(frame_of(&r, "step"), 128 + 128 + 1024);
    rig_close(&r);
}

/* The callee's frame is free again when its caller goes on. */
static void a_frame_is_a_temporary_of_the_caller(void **state)
{
    Rig r = rig_open(HEAD X ROW("add")
                     "func @inner(%x : f32[h=32] {}) {\n"
                     ADD("a", "x", "x") ADD("b", "x", "a") ADD("c", "x", "b")
                     "    return %c\n}\n"
                     "func @step() {\n" READ_X
                     "    %a = call %x {callee=@inner, count=1, args=\".\","
                     " results=\".\"} : f32[h=32] {}\n"
                     "    %b = call %a {callee=@inner, count=1, args=\".\","
                     " results=\".\"} : f32[h=32] {}\n"
                     "    write %b {tensor=@x, field=m}\n"
                     "    return\n}\nentry @step\n");

    (void)state;
    assert_int_equal(frame_of(&r, "inner"), 2 * 128); /* a, b; c is returned */
    assert_int_equal(place_at(&r, "inner", 2, 0).base, MEM_RESULT);
    assert_int_equal(frame_of(&r, "step"), 128 + 2 * 128); /* a, and a frame */
    rig_close(&r);
}

/* ---- carries ------------------------------------------------------------- */

#define SCAN(body, results)                                                    \
    HEAD X ROW("add") "func @inner(%x : f32[h=32] {}) {\n" body                \
    "    return " results "\n}\n"                                              \
    "func @step() {\n" READ_X                                                  \
    "    %y = call %x {callee=@inner, over=s, count=3, args=\">\","            \
    " results=\">\"} : f32[h=32] {}\n"                                         \
    "    write %y {tensor=@x, field=m}\n"                                      \
    "    return\n}\nentry @step\n"

/* y is made while x, whose bytes it would replace, is still to be read. */
static void a_carry_waits_for_the_last_reader(void **state)
{
    Rig r = rig_open(SCAN(ADD("a", "x", "x") ADD("y", "a", "a")
                          ADD("z", "y", "x"), "%z"));

    (void)state;
    /* z is made from y in y's bytes and reads x as second operand: it may not
     * lie where x lies */
    assert_int_equal(place_at(&r, "inner", 2, 0).base, MEM_FRAME);
    rig_close(&r);
}

/* Here x is the operand that may be overwritten. */
static void a_carry_overwrites_its_predecessor(void **state)
{
    Rig r = rig_open(SCAN(ADD("a", "x", "x") ADD("z", "x", "a"), "%z"));

    (void)state;
    assert_int_equal(place_at(&r, "inner", 1, 0).base, MEM_RESULT);
    rig_close(&r);
}

/* ---- state --------------------------------------------------------------- */

#define WEIGHT(name, grad)                                                     \
    "tensor @" name " : f32[h=32] {\n    parameter\n    layers\n"              \
    "    init normal 1\n    param f32 {}\n    grad f32 " grad "\n"             \
    "    gsum f32 {}\n}\n"
#define READ_ALL(v, name, n)                                                   \
    "    %" v " = read {tensor=@" name ", field=grad, count=" n "}"            \
    " : f32[l=" n ", h=32] {+dp}\n"
#define USE(name) "    clear {tensor=@" name ", field=grad}\n"

/* Fields one after the other; in each the tensors reduced alike together, and
 * the layers of a tensor in a row; the complete gradient where the partial one
 * was. */
static void state_is_laid_out_by_field_and_class(void **state)
{
    Rig r = rig_open("module {layers=3, microbatches=1, props=[layout,"
                     " pipelined]}\nmesh world=4 {dp=2:1 pp=2:2}\n"
                     WEIGHT("a", "{+dp}") WEIGHT("b", "{}")
                     WEIGHT("c", "{+dp}") X
                     "func @first() {\n" USE("a") USE("b") USE("c") READ_X
                     "    write %x {tensor=@x, field=m}\n    return\n}\n"
                     "func @second() {\n" USE("a") "    return\n}\n"
                     "stage {pp=0, chunk=0, first=0, layers=2}\n"
                     "stage {pp=1, chunk=0, first=2, layers=1}\n"
                     "entry @first\nentry @second\n");

    (void)state;
    assert_int_equal(state_of(&r, 0, "b", FIELD_PARAM)->address, 0);
    assert_int_equal(state_of(&r, 0, "a", FIELD_PARAM)->address, 256);
    assert_int_equal(state_of(&r, 0, "c", FIELD_PARAM)->address, 512);
    assert_int_equal(state_of(&r, 0, "a", FIELD_PARAM)->layer_stride, 128);
    assert_int_equal(state_of(&r, 0, "a", FIELD_PARAM)->slots, 2);
    assert_int_equal(state_of(&r, 0, "x", FIELD_PARAM)->address, 768);
    assert_int_equal(state_of(&r, 0, "b", FIELD_GRAD)->address, 896);
    assert_int_equal(state_of(&r, 0, "b", FIELD_GSUM)->address, 896);
    assert_int_equal(state_of(&r, 0, "x", FIELD_M)->address, 896 + 768);
    /* the second stage holds one layer of @a, and nothing else */
    assert_int_equal(state_of(&r, 1, "a", FIELD_PARAM)->address, 0);
    assert_int_equal(state_of(&r, 1, "a", FIELD_GRAD)->address, 128);
    assert_int_equal(state_of(&r, 1, "a", FIELD_GRAD)->slots, 1);
    assert_int_equal(state_of(&r, 1, "b", FIELD_PARAM)->slots, 0);
    assert_int_equal(memplan_slot(r.m, 0, tensor_named(&r, "a"), 1), 1);
    assert_int_equal(memplan_slot(r.m, 1, tensor_named(&r, "a"), 2), 0);
    rig_close(&r);
}

/* A read that is still wanted after its tensor changes is a copy. */
static void a_changed_tensor_is_copied(void **state)
{
    Rig r = rig_open(HEAD X ROW("add")
                     "func @step() {\n" READ_X               /* 0 */
                     ADD("y", "x", "x")                      /* 1 */
                     "    write %y {tensor=@x, field=param}\n"
                     ADD("z", "x", "y")                      /* 3 */
                     "    write %z {tensor=@x, field=m}\n"
                     "    return\n}\nentry @step\n");

    (void)state;
    assert_int_equal(place_at(&r, "step", 0, 0).base, MEM_FRAME);
    assert_int_equal(place_at(&r, "step", 1, 0).base, MEM_FRAME);
    rig_close(&r);
}

/* A gradient that another stream reduces in place stays in its tensor, and
 * nothing else gets the memory that the reduction uses. */
static void a_reduction_beside_compute_stays_in_place(void **state)
{
    Rig r = rig_open(HEAD "tensor @g : f32[h=32] {\n    init normal 1\n"
                     "    grad f32 {+dp}\n    gsum f32 {}\n}\n" X ROW("add")
                     "func @step() {\n"
                     "    clear {tensor=@g, field=grad}\n"
                     "    %g = read {tensor=@g, field=grad} :"
                     " f32[h=32] {+dp}\n"
                     "    event {event=0}\n"
                     "    wait !dp {event=0, on=dp}\n"
                     "    %s = all_reduce !dp %g {axes=dp} : f32[h=32] {}\n"
                     "    event !dp {event=1}\n"
                     "    write %s {tensor=@g, field=gsum}\n" READ_X
                     ADD("a", "x", "x")
                     "    wait {event=1, on=compute}\n"
                     ADD("b", "a", "s")
                     "    write %b {tensor=@x, field=m}\n"
                     "    return\n}\nentry @step\n");

    (void)state;
    assert_int_equal(place_at(&r, "step", 1, 0).base, MEM_STATE);
    assert_int_equal(place_at(&r, "step", 4, 0).base, MEM_STATE);
    assert_int_equal(place_at(&r, "step", 4, 0).field, FIELD_GRAD);
    rig_close(&r);
}

/* ---- the report ---------------------------------------------------------- */

static void what_does_not_fit_is_reported(void **state)
{
    Rig r = rig_open(HEAD X ROW("add")
                     "func @step() {\n" READ_X ADD("a", "x", "x")
                     ADD("b", "x", "a") ADD("c", "b", "a")
                     "    write %c {tensor=@x, field=m}\n"
                     "    return\n}\nentry @step\n");
    const MemReport *report = &r.mem->report[0];

    (void)state;
    assert_int_equal(report->params, 128);
    assert_int_equal(report->optimizer, 128);
    assert_int_equal(report->activations, 2 * 128);
    assert_int_equal(report->total, 4 * 128);
    assert_int_equal(report->lower_bound, 4 * 128);
    assert_true(memplan_fits(r.m, r.mem, 4 * 128, (Loc){0}));
    assert_false(memplan_fits(r.m, r.mem, 4 * 128 - 1, (Loc){0}));
    assert_int_equal(diag_errors(r.diag), 1);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dying_operands_are_overwritten),
        cmocka_unit_test(workspace_is_a_temporary),
        cmocka_unit_test(a_frame_is_a_temporary_of_the_caller),
        cmocka_unit_test(a_carry_waits_for_the_last_reader),
        cmocka_unit_test(a_carry_overwrites_its_predecessor),
        cmocka_unit_test(state_is_laid_out_by_field_and_class),
        cmocka_unit_test(a_changed_tensor_is_copied),
        cmocka_unit_test(a_reduction_beside_compute_stays_in_place),
        cmocka_unit_test(what_does_not_fit_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
