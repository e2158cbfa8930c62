/* plan_load_test.c - what plan_load accepts and refuses.
 *
 * The sample plan must load; every damage to it must be refused with a message
 * that names the table, or load as another valid plan, but never crash.  Byte
 * flips are re-hashed first, so that they reach the checks behind the hash.
 */
#include "runtime/plan_priv.h"
#include "plan_sample.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>
#include <xxhash.h>

static void rehash(Buf *b)
{
    PlanHeader h;

    memcpy(&h, b->s, sizeof h);
    h.hash = XXH3_64bits(b->s + sizeof h, b->len - sizeof h);
    memcpy(b->s, &h, sizeof h);
}

static void sample_loads(void **state)
{
    Buf b = sample_plan();
    Plan p;
    Status s = plan_load(b.s, b.len, &p);

    (void)state;
    assert_string_equal(status_text(s), "");
    assert_string_equal(plan_text(&p, p.job.v->name), "sample");
    assert_int_equal(p.segments.n, 2);
    assert_int_equal(p.programs.v[0].segment, 1);
    assert_int_equal(p.instrs.v[2 + 2].aux, SAMPLE_LAYERS);
    plan_free(&p);
    buf_free(&b);
}

static void refuse(const Buf *b, const char *message)
{
    Plan p;
    Status s = plan_load(b->s, b->len, &p);

    assert_int_equal(status_code(s), STATUS_INPUT);
    if (!strstr(status_text(s), message))
        fail_msg("'%s' does not contain '%s'", status_text(s), message);
    status_drop(s);
}

static void frame_is_checked(void **state)
{
    Buf b = sample_plan();
    size_t whole = b.len;

    (void)state;
    b.len = 20;
    refuse(&b, "only 20 bytes");
    b.len = whole - 16;
    refuse(&b, "bytes, its header says");
    b.len = whole;
    b.s[whole - 1] ^= 1;
    refuse(&b, "do not match its hash");
    b.s[whole - 1] ^= 1;
    b.s[8] ^= 3;
    refuse(&b, "version 2");
    b.s[0] = 'm';
    refuse(&b, "not a megac plan");
    buf_free(&b);
}

/* The start of row `row` of a table in the blob. */
static char *row_at(const Buf *b, int table, uint32_t row)
{
    PlanEntry e;

    memcpy(&e, b->s + sizeof(PlanHeader) + (size_t)table * sizeof e, sizeof e);
    assert_true(row < e.rows);
    return b->s + e.offset + (size_t)row * e.row_bytes;
}

/* One wrong number in an otherwise good plan, and the complaint about it. */
#define FAULT(table, row, Row, member, value, message)                         \
    {                                                                          \
#table "." #member, PLAN_TABLE_##table, row, offsetof(Row, member),    \
            sizeof(((Row *)0)->member), value, message                         \
    }

static const struct {
    const char *what;
    int table;
    uint32_t row;
    size_t offset, size;
    uint64_t value;
    const char *message;
} faults[] = {
    FAULT(job, 0, PlanJob, world, 0, "world is 0"),
    FAULT(job, 0, PlanJob, name, 1u << 30, "job[0]: name"),
    FAULT(programs, 0, PlanProgram, segment, 9, "segment 9 is not below 2"),
    FAULT(programs, 0, PlanProgram, segment, 0, "a program has registers"),
    FAULT(programs, 0, PlanProgram, kind, 2, "kind 2 is not below 2"),
    FAULT(programs, 0, PlanProgram, kind, 1, "the first must train"),
    FAULT(programs, 0, PlanProgram, microbatches, 99, "wrong number of micro"),
    FAULT(job, 0, PlanJob, events, 0, "event 0 is not below 0"),
    FAULT(memories, 0, PlanMemory, start, 64, "the arena must start at 0"),
    FAULT(memories, 0, PlanMemory, bytes, 8200, "passes the end of memory 0"),
    FAULT(atoms, 1, PlanAtom, size, 3, "do not divide the world"),
    FAULT(atoms, 1, PlanAtom, stride, 0, "do not divide the world"),
    FAULT(atoms, 1, PlanAtom, stride, 1, "atoms overlap"),
    FAULT(members, 0, PlanMember, value, 2, "value 2 is not below 2"),
    FAULT(terms, 0, PlanTerm, factor, 1ull << 62, "overflow"),
    FAULT(terms, 0, PlanTerm, factor, 65536, "passes the end of memory"),
    FAULT(terms, 0, PlanTerm, atom, 7, "atom 7"),
    FAULT(exprs, 0, PlanExpr, constant, 1, "the first must be 0"),
    FAULT(data, 0, PlanData, shards, 4, "do not make up the global batch"),
    FAULT(data, 0, PlanData, shards, 1, "shard is not below shards"),
    FAULT(data, 0, PlanData, parts, 0, "no parts"),
    FAULT(data, 0, PlanData, parts, 5, "does not divide into parts"),
    FAULT(training, 0, PlanTraining, micro_batch, 0, "micro_batch is 0"),
    FAULT(training, 0, PlanTraining, micro_batch, 4, "the global batch"),
    FAULT(dims, 0, PlanDim, padded, 29, "padded is below logical"),
    FAULT(dims, 0, PlanDim, padded, 31, "in 2 parts"),
    FAULT(fields, 0, PlanField, address, 65280, "passes the end of memory"),
    FAULT(fields, 0, PlanField, layer_stride, 40000, "passes the end"),
    FAULT(fields, 0, PlanField, pitch, 18, "wrong pitch"),
    FAULT(fields, 0, PlanField, pitch, 12, "wrong pitch"),
    FAULT(fields, 0, PlanField, pitch, 1ull << 50, "wrong pitch"),
    FAULT(fields, 0, PlanField, pitch, 8192, "passes the end of memory"),
    FAULT(fields, 0, PlanField, inside, 257, "wrong place in its buffer"),
    FAULT(fields, 0, PlanField, inside, 65280, "passes the end of memory"),
    FAULT(fields, 0, PlanField, held, 1 << 20, "passes the end of memory"),
    FAULT(fields, 0, PlanField, held, 1ull << 62, "held is"),
    FAULT(fields, 0, PlanField, share, 1ull << 32, "a share of nothing"),
    FAULT(fields, 0, PlanField, owner, 55, "owner 55"),
    FAULT(tensors, 0, PlanTensor, rows, 29, "wrong export shape"),
    FAULT(tensors, 0, PlanTensor, name, 0, "do not agree"),
    FAULT(kernels, 0, PlanKernel, phases, 3, "phases is 3"),
    FAULT(kernels, 0, PlanKernel, imms, 2, "2 addresses and 1 integers"),
    FAULT(gemms, 0, PlanGemm, type_a, PLAN_I32, "no such product"),
    FAULT(gemms, 0, PlanGemm, lda, 15, "lda too small"),
    FAULT(gemms, 0, PlanGemm, ldb, 17, "needs 540 bytes in operand 1"),
    FAULT(gemms, 0, PlanGemm, k, 1ull << 50, "k is"),
    FAULT(gemms, 0, PlanGemm, accumulate, 0, "wrong access"),
    FAULT(gemms, 0, PlanGemm, bias, 1, "3 operands"),
    FAULT(gemms, 0, PlanGemm, residual, 1, "a residual beside what C holds"),
    FAULT(gemms, 0, PlanGemm, activation, 3, "no activation"),
    FAULT(collectives, 0, PlanCollective, count, 33, "needs 132 bytes"),
    FAULT(collectives, 1, PlanCollective, count, 17, "needs 68 bytes"),
    FAULT(collectives, 0, PlanCollective, group, 5, "group 5"),
    FAULT(segments, 0, PlanSegment, instrs.n, 1, "instructions start at"),
    FAULT(segments, 1, PlanSegment, instrs.n, 500, "passes the end"),
    FAULT(instrs, 0, PlanInstr, op, 77, "op is 77"),
    FAULT(instrs, 0, PlanInstr, stream, 1, "launch on stream 1"),
    FAULT(instrs, 0, PlanInstr, flags, 1, "unknown flags"),
    FAULT(instrs, 4, PlanInstr, index, 1, "segment 1 calls segment 1"),
    FAULT(instrs, 4, PlanInstr, aux, 0, "count is 0"),
    FAULT(instrs, 4, PlanInstr, aux, 400, "passes the end of memory"),
    FAULT(instrs, 9, PlanInstr, aux, 1u << 20, "channel is"),
    FAULT(operands, 0, PlanOperand, base, 4, "register 3 is not below 3"),
    FAULT(operands, 0, PlanOperand, base, 3, "differ in kind"),
    FAULT(operands, 0, PlanOperand, offset, 1ull << 40, "no memory"),
    FAULT(operands, 0, PlanOperand, stride, 8, "a stride outside CALL"),
    FAULT(operands, 6 + 3 + 1 + 1, PlanOperand, stride, 1ull << 62, "overflow"),
};

static void faults_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(faults); i++) {
        Buf b = sample_plan();
        memcpy(row_at(&b, faults[i].table, faults[i].row) + faults[i].offset,
               &faults[i].value, faults[i].size);
        rehash(&b);
        refuse(&b, faults[i].message);
        buf_free(&b);
    }
}

/* No single damaged byte crashes the loader, or the printer after it. */
static void flips_never_crash(void **state)
{
    Buf b = sample_plan(), text = {0};
    unsigned refused = 0;
    Plan p;

    (void)state;
    for (size_t i = sizeof(PlanHeader); i < b.len; i++) {
        char old = b.s[i];
        b.s[i] = (char)(i % 3 ? old ^ (1 << i % 8) : ~old);
        rehash(&b);
        Status s = plan_load(b.s, b.len, &p);
        refused += s != NULL;
        if (!s) {
            plan_print(&p, &text);
            plan_free(&p);
        }
        status_drop(s);
        b.s[i] = old;
        text.len = 0;
    }
    assert_true(refused > b.len / 4);
    buf_free(&text);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sample_loads),
        cmocka_unit_test(frame_is_checked),
        cmocka_unit_test(faults_are_refused),
        cmocka_unit_test(flips_never_crash),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
