/* verify_program_test.c - the plan verifier on what megac compiles.
 *
 * Every base model in every layout is accepted.  Then single instructions of a
 * compiled program are damaged, one at a time, all that a kind of damage
 * applies to: not one may pass.  The kinds are those whose result is wrong by
 * the definitions in verify_plan.h, whatever the program; damage that only
 * changes what is computed (a kernel for another) is for other judges.
 */
#include "codegen/emit.h"
#include "codegen/verify_plan.h"
#include "frontend/model.h"
#include "passes/passes.h"
#include "tests/unit/models.h"

#include <setjmp.h>
#include <stdlib.h>
/* cmocka.h needs the headers above */
#include <cmocka.h>

enum { MOST_STAGES = 4 };

typedef struct {
    Arena *arena;
    Diag *diag;
    Module *m;
    EmitOutput out;
    Plan plans[MOST_STAGES];
    PlanClass classes[MOST_STAGES];
} Compiled;

static void load_stage(Compiled *c, uint32_t stage)
{
    Status s = plan_load(c->out.plans[stage].s, c->out.plans[stage].len,
                         &c->plans[stage]);
    uint32_t world = c->m->mesh.world, n = 0;
    uint32_t *ranks = arena_array(c->arena, uint32_t, world);
    if (s)
        mc_bug(__FILE__, __LINE__, "%s", status_text(s));
    for (uint32_t i = 0; i < world; i++)
        if (plan_has_rank(&c->plans[stage], i))
            ranks[n++] = i;
    c->classes[stage] = (PlanClass){&c->plans[stage], ranks, n};
}

static void compile(Compiled *c, const char *text, const char *const *sets)
{
    static const PassOptions options;
    *c = (Compiled){.arena = arena_new()};
    c->diag = diag_new(c->arena);
    Spec *spec =
        spec_parse(c->arena, c->diag, "model", text, sets, layout_length(sets));
    diag_print(c->diag, stderr);
    assert_non_null(spec);
    c->m = model_build(c->arena, c->diag, spec);
    assert_true(passes_run(c->m, spec, &options));
    MemRules rules = emit_rules(emit_dialect(spec));
    EmitInput in = {c->m, memplan_make(c->arena, c->m, &rules), spec};
    assert_true(emit_plans(c->arena, &in, &c->out));
    assert_true(c->out.n <= MOST_STAGES);
    for (uint32_t i = 0; i < c->out.n; i++)
        load_stage(c, i);
}

static void compiled_free(Compiled *c)
{
    for (uint32_t i = 0; i < c->out.n; i++)
        plan_free(&c->plans[i]);
    emit_free(&c->out);
    module_free(c->m);
    diag_free(c->diag);
    arena_free(c->arena);
}

static bool accepted(const Compiled *c, bool print)
{
    PlanVerifyStats stats;
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    bool ok = plan_verify(d, c->classes, c->out.n, &stats);
    if (print)
        diag_print(d, stderr);
    diag_free(d);
    arena_free(a);
    return ok;
}

/* ---- right programs ------------------------------------------------------ */

static void every_layout_is_accepted(void **state)
{
    static const char *const models[] = {MODEL_T0, MODEL_G0};
    (void)state;
    for (size_t k = 0; k < MC_LEN(models); k++) {
        for (size_t i = 0; i < MC_LEN(LAYOUTS); i++) {
            Compiled c;
            compile(&c, models[k], LAYOUTS[i]);
            assert_true(accepted(&c, true));
            compiled_free(&c);
        }
    }
}

/* ---- damage ---------------------------------------------------------------
 */

/* The plan's tables, to write to. */
static PlanInstr *instr_at(Plan *p, uint32_t i)
{
    return (PlanInstr *)(uintptr_t)&p->instrs.v[i];
}

static PlanOperand *operand_at(Plan *p, const PlanInstr *in, uint32_t k)
{
    return (PlanOperand *)(uintptr_t)&p->operands.v[in->operands.first + k];
}

static PlanSegment *segment_of(Plan *p, uint32_t instr)
{
    uint32_t i = 0;
    while (instr - p->segments.v[i].instrs.first >= p->segments.v[i].instrs.n)
        i++;
    return (PlanSegment *)(uintptr_t)&p->segments.v[i];
}

/* Each returns whether it applies to the instruction, and does its damage. */
typedef bool DamageFn(Plan *p, uint32_t i);

static void cut_out(Plan *p, uint32_t i)
{
    PlanRange *range = &segment_of(p, i)->instrs;
    uint32_t behind = range->first + range->n - i - 1;
    memmove(instr_at(p, i), instr_at(p, i + 1), sizeof(PlanInstr) * behind);
    range->n--;
}

static bool drop_op(Plan *p, uint32_t i, PlanOp op)
{
    if (p->instrs.v[i].op != op)
        return false;
    cut_out(p, i);
    return true;
}

/* Whether what comes after the mark of a wait's event is known to have ended
 * anyway, because the host drained all streams in between. */
static bool drained(Plan *p, uint32_t i)
{
    uint32_t event = p->instrs.v[i].index,
             first = segment_of(p, i)->instrs.first;
    while (i-- > first) {
        const PlanInstr *in = &p->instrs.v[i];
        if (in->op == PLAN_HOST && in->index == PLAN_HOST_GRADS)
            return true;
        if (in->op == PLAN_EVENT && in->index == event)
            return false;
    }
    return true;
}

/* Sends and collectives read what the compute stream made. */
static bool holds_reader(Plan *p, uint32_t i)
{
    const PlanInstr *in = &p->instrs.v[i];
    PlanRange range = segment_of(p, i)->instrs;
    return in->op == PLAN_WAIT && in->stream != 0 &&
           i + 1 < range.first + range.n && in[1].stream == in->stream &&
           (in[1].op == PLAN_SEND || in[1].op == PLAN_COLLECTIVE);
}

/* The compute stream reads what a receive or collective made. */
static bool holds_user(Plan *p, uint32_t i)
{
    uint32_t k = segment_of(p, i)->instrs.first;
    if (p->instrs.v[i].op != PLAN_WAIT || p->instrs.v[i].stream != 0 ||
        drained(p, i))
        return false;
    while (p->instrs.v[k].op != PLAN_EVENT ||
           p->instrs.v[k].index != p->instrs.v[i].index)
        k++;
    return p->instrs.v[k - 1].op == PLAN_RECV ||
           p->instrs.v[k - 1].op == PLAN_COLLECTIVE;
}

static bool drop_wait(Plan *p, uint32_t i)
{
    if (!holds_reader(p, i) && !holds_user(p, i))
        return false;
    cut_out(p, i);
    return true;
}

static bool drop_mark(Plan *p, uint32_t i)
{
    return drop_op(p, i, PLAN_EVENT);
}

static bool drop_send(Plan *p, uint32_t i)
{
    return drop_op(p, i, PLAN_SEND);
}

static bool drop_recv(Plan *p, uint32_t i)
{
    return drop_op(p, i, PLAN_RECV);
}

static bool drop_fill(Plan *p, uint32_t i)
{
    return drop_op(p, i, PLAN_FILL);
}

static bool is_local(const PlanOperand *o)
{
    return o->kind == PLAN_ADDRESS && o->bytes > 0 && o->buffer > 0 &&
           o->buffer < PLAN_STATE;
}

static bool is_read(Plan *p, uint32_t i, uint32_t buffer)
{
    PlanRange range = segment_of(p, i)->instrs;
    for (uint32_t k = range.first; k < range.first + range.n; k++)
        for (uint32_t j = 0; k != i && j < p->instrs.v[k].operands.n; j++) {
            const PlanOperand *o = operand_at(p, &p->instrs.v[k], j);
            if (o->buffer == buffer && (o->access & PLAN_READ))
                return true;
        }
    return false;
}

/* The operand with which an instruction makes a buffer of its segment that
 * others read, or NULL. */
static PlanOperand *made_by(Plan *p, uint32_t i)
{
    const PlanInstr *in = &p->instrs.v[i];
    for (uint32_t k = 0; k < in->operands.n && in->op != PLAN_CALL; k++) {
        PlanOperand *o = operand_at(p, in, k);
        if (is_local(o) && o->access == PLAN_WRITE && is_read(p, i, o->buffer))
            return o;
    }
    return NULL;
}

/* In place, what was there before would be read instead. */
static bool in_place(const Plan *p, const PlanInstr *in)
{
    const PlanOperand *o = p->operands.v + in->operands.first;
    for (uint32_t k = 0; k < in->operands.n; k++)
        for (uint32_t j = 0; j < in->operands.n; j++)
            if (o[k].access == PLAN_WRITE && (o[j].access & PLAN_READ) &&
                o[k].buffer == o[j].buffer)
                return true;
    return false;
}

static bool drop_maker(Plan *p, uint32_t i)
{
    if (!made_by(p, i) || in_place(p, &p->instrs.v[i]))
        return false;
    cut_out(p, i);
    return true;
}

/* The group has members in other stages. */
static bool crosses(const Plan *p, const PlanInstr *in)
{
    if (in->op != PLAN_COLLECTIVE)
        return false;
    const PlanGroup *g = &p->groups.v[p->collectives.v[in->index].group];
    for (uint32_t k = 0; k < g->atoms.n; k++) {
        const PlanAtom *a = &p->atoms.v[p->lists.v[g->atoms.first + k]];
        if (strcmp(plan_text(p, a->name), "pp") == 0)
            return true;
    }
    return false;
}

static bool drop_crossing(Plan *p, uint32_t i)
{
    if (!crosses(p, &p->instrs.v[i]))
        return false;
    cut_out(p, i);
    return true;
}

static PlanCollective *collective_at(Plan *p, uint32_t i)
{
    uint32_t row = p->instrs.v[i].index;
    return (PlanCollective *)(uintptr_t)&p->collectives.v[row];
}

static bool change_reduction(Plan *p, uint32_t i)
{
    if (!crosses(p, &p->instrs.v[i]))
        return false;
    collective_at(p, i)->reduce ^= 1;
    return true;
}

static bool change_dtype(Plan *p, uint32_t i)
{
    if (!crosses(p, &p->instrs.v[i]))
        return false;
    collective_at(p, i)->dtype = PLAN_I32;
    return true;
}

static bool is_message(const Plan *p, uint32_t i)
{
    return p->instrs.v[i].op == PLAN_SEND || p->instrs.v[i].op == PLAN_RECV;
}

static bool shorten_message(Plan *p, uint32_t i)
{
    if (!is_message(p, i))
        return false;
    operand_at(p, &p->instrs.v[i], 0)->bytes -= 4;
    return true;
}

static bool change_channel(Plan *p, uint32_t i)
{
    if (!is_message(p, i))
        return false;
    instr_at(p, i)->aux += 2;
    return true;
}

static bool change_content(Plan *p, uint32_t i)
{
    if (!is_message(p, i))
        return false;
    operand_at(p, &p->instrs.v[i], 0)->content++;
    return true;
}

static bool double_message(Plan *p, uint32_t i)
{
    PlanRange *range = &segment_of(p, i)->instrs;
    uint32_t last = range->first + range->n - 1;
    if (!is_message(p, i) || i == last)
        return false;
    /* The plan's last instruction makes room. */
    memmove(instr_at(p, i + 1), instr_at(p, i), sizeof(PlanInstr) * (last - i));
    return true;
}

static void swap(Plan *p, uint32_t i, uint32_t j)
{
    PlanInstr was = p->instrs.v[i];
    *instr_at(p, i) = p->instrs.v[j];
    *instr_at(p, j) = was;
}

/* The wait for the mark that instruction i makes, in the same segment. */
static uint32_t wait_for(Plan *p, uint32_t i)
{
    PlanRange range = segment_of(p, i)->instrs;
    for (uint32_t k = i + 1; k < range.first + range.n; k++)
        if (p->instrs.v[k].op == PLAN_WAIT &&
            p->instrs.v[k].index == p->instrs.v[i].index)
            return k;
    return i;
}

/* A mark before the operation that it should cover.  Behind operations that
 * start together there is a mark for each, in any order. */
static bool mark_early(Plan *p, uint32_t i)
{
    if (p->instrs.v[i].op != PLAN_EVENT || p->instrs.v[i].stream == 0 ||
        p->instrs.v[i - 1].op == PLAN_EVENT ||
        (p->instrs.v[i - 1].flags & PLAN_JOIN) ||
        !holds_user(p, wait_for(p, i)))
        return false;
    swap(p, i, i - 1);
    return true;
}

/* A wait behind the operation that it should hold. */
static bool wait_late(Plan *p, uint32_t i)
{
    if (!holds_reader(p, i))
        return false;
    swap(p, i, i + 1);
    return true;
}

/* Beside its buffer: the beginning stays unwritten. */
static bool shift_result(Plan *p, uint32_t i)
{
    PlanOperand *o = made_by(p, i);
    if (!o || in_place(p, &p->instrs.v[i]))
        return false;
    o->offset += 64;
    return true;
}

static bool layer_more(Plan *p, uint32_t i)
{
    const PlanInstr *in = &p->instrs.v[i];
    bool strides = false;
    for (uint32_t k = 0; k < in->operands.n && in->op == PLAN_CALL; k++)
        strides |= operand_at(p, in, k)->stride != 0 &&
                   operand_at(p, in, k)->buffer >= PLAN_STATE;
    if (!strides || in->aux < 2)
        return false;
    instr_at(p, i)->aux++;
    return true;
}

static bool load_nothing(Plan *p, uint32_t i)
{
    const PlanInstr *in = &p->instrs.v[i];
    if (in->op != PLAN_HOST || in->index != PLAN_HOST_LOAD_BATCH)
        return false;
    operand_at(p, in, 1)->bytes = 0;
    return true;
}

static const struct {
    const char *name;
    DamageFn *fn;
} damages[] = {
    {"a wait left out", drop_wait},
    {"a mark left out", drop_mark},
    {"a send left out", drop_send},
    {"a receive left out", drop_recv},
    {"a fill left out", drop_fill},
    {"what makes a value left out", drop_maker},
    {"a collective left out on one stage", drop_crossing},
    {"another reduction on one stage", change_reduction},
    {"another type on one stage", change_dtype},
    {"a message too short", shorten_message},
    {"another channel", change_channel},
    {"another microbatch", change_content},
    {"a message twice", double_message},
    {"a mark too early", mark_early},
    {"a wait too late", wait_late},
    {"a result beside its buffer", shift_result},
    {"a layer more", layer_more},
    {"a batch not loaded", load_nothing},
};

/* ---- one at a time --------------------------------------------------------
 */

typedef struct {
    PlanInstr *instrs;
    PlanOperand *operands;
    PlanSegment *segments;
    PlanCollective *collectives;
} Saved;

#define SAVE(table)                                                            \
    memcpy(s.table = malloc(sizeof *s.table * (p->table.n + 1)), p->table.v,   \
           sizeof *s.table * p->table.n)
#define RESTORE(table)                                                         \
    memcpy((void *)(uintptr_t)p->table.v, s->table,                            \
           sizeof *s->table * p->table.n)

static Saved save(const Plan *p)
{
    Saved s;
    SAVE(instrs);
    SAVE(operands);
    SAVE(segments);
    SAVE(collectives);
    return s;
}

static void restore(Plan *p, const Saved *s)
{
    RESTORE(instrs);
    RESTORE(operands);
    RESTORE(segments);
    RESTORE(collectives);
}

static void saved_free(Saved *s)
{
    free(s->instrs);
    free(s->operands);
    free(s->segments);
    free(s->collectives);
}

typedef struct {
    uint32_t tried, missed;
} Score;

static void damage_stage(Compiled *c, uint32_t stage, size_t kind, Score *score)
{
    Plan *p = &c->plans[stage];
    Saved saved = save(p);
    uint32_t n = p->instrs.n;
    for (uint32_t i = 0; i < n; i++) {
        char text[256];
        plan_instr_text(p, i, text, sizeof text);
        if (!damages[kind].fn(p, i))
            continue;
        bool missed = accepted(c, false);
        if (missed)
            print_message("%s accepted: %s\n", damages[kind].name, text);
        score->tried++;
        score->missed += missed;
        restore(p, &saved);
    }
    saved_free(&saved);
}

static void damage_is_found(const char *text, const char *const *sets)
{
    Compiled c;
    uint32_t missed = 0;
    compile(&c, text, sets);
    for (size_t kind = 0; kind < MC_LEN(damages); kind++) {
        Score score = {0};
        for (uint32_t stage = 0; stage < c.out.n; stage++)
            damage_stage(&c, stage, kind, &score);
        print_message("%4u of %4u found: %s\n", score.tried - score.missed,
                      score.tried, damages[kind].name);
        assert_true(score.tried > 0);
        missed += score.missed;
    }
    assert_int_equal(missed, 0);
    compiled_free(&c);
}

static void damage_is_found_in_llama(void **state)
{
    static const char *const sets[6] = {"parallel.tp=2", "parallel.sp=true",
                                        "parallel.pp=2", "parallel.dp=2",
                                        "training.global_batch_size=8"};
    (void)state;
    damage_is_found(MODEL_T0, sets);
}

static void damage_is_found_in_gpt2(void **state)
{
    static const char *const sets[6] = {"parallel.pp=2", "parallel.tp=2"};
    (void)state;
    damage_is_found(MODEL_G0, sets);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_is_accepted),
        cmocka_unit_test(damage_is_found_in_llama),
        cmocka_unit_test(damage_is_found_in_gpt2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
