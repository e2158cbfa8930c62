/* plan.c - from bytes to a Plan whose every number has been checked.
 *
 * The file is the memory image of the tables, so loading is: copy the blob to
 * aligned memory, check header and hash, lay the directory over it, and let
 * plan_check.c look at every row.  Tables follow each other without a gap in
 * the order of plan_tables.def, so a directory can only be right or wrong.
 */
#include "runtime/plan_priv.h"

#include <stdlib.h>
#include <xxhash.h>

const PlanTableInfo plan_tables[PLAN_TABLES] = {
#define TABLE(field, Row, least, most, what)                                   \
    {#field, what, offsetof(Plan, field), sizeof(Row), least, most},
#include "runtime/plan_tables.def"
#undef TABLE
};

static Status damaged(const char *what)
{
    return status_make(STATUS_INPUT, "damaged plan: %s", what);
}

static Status check_header(const PlanHeader *h, size_t n)
{
    const char *body = (const char *)(h + 1);

    if (memcmp(h->magic, PLAN_MAGIC, sizeof h->magic) != 0)
        return status_make(STATUS_INPUT, "this is not a megac plan");
    if (h->version != PLAN_VERSION)
        return status_make(STATUS_INPUT,
                           "the plan has version %u, this megac reads %d: "
                           "compile again",
                           h->version, PLAN_VERSION);
    if (h->tables != PLAN_TABLES)
        return damaged("wrong number of tables");
    if (h->size != n)
        return status_make(STATUS_INPUT,
                           "damaged plan: %zu bytes, its header says %llu", n,
                           (unsigned long long)h->size);
    if (h->hash != XXH3_64bits(body, n - sizeof *h))
        return damaged("its contents do not match its hash");
    return STATUS_NONE;
}

/* Points every table of the plan at its rows. */
static Status map_tables(Plan *p)
{
    const PlanEntry *e =
        (const PlanEntry *)((const char *)p->blob + sizeof(PlanHeader));
    uint64_t at = plan_align(sizeof(PlanHeader) + PLAN_TABLES * sizeof *e);

    for (int i = 0; i < PLAN_TABLES; i++, e++) {
        const PlanTableInfo *info = &plan_tables[i];
        PlanAnyTable table = {(const char *)p->blob + at, e->rows};
        uint64_t bytes = (uint64_t)e->rows * info->row_bytes;

        if (e->row_bytes != info->row_bytes || e->offset != at ||
            e->rows < info->least || e->rows > info->most ||
            bytes > p->bytes - at)
            return status_make(STATUS_INPUT,
                               "damaged plan: directory entry of table %s",
                               info->name);
        memcpy((char *)p + info->offset, &table, sizeof table);
        at = plan_align(at + bytes);
        if (at > p->bytes)
            return damaged("a table passes its end");
    }
    return at == p->bytes ? STATUS_NONE : damaged("bytes after its end");
}

static Status load(Plan *p)
{
    STATUS_TRY(check_header(p->blob, p->bytes));
    STATUS_TRY(map_tables(p));
    return plan_check(p);
}

Status plan_load(const void *bytes, size_t n, Plan *out)
{
    Plan p = {.bytes = n};
    Status s;

    if (n < plan_align(sizeof(PlanHeader) + PLAN_TABLES * sizeof(PlanEntry)))
        return status_make(STATUS_INPUT, "damaged plan: only %zu bytes", n);
    p.blob = aligned_alloc(PLAN_ALIGN, plan_align(n));
    if (!p.blob)
        return status_make(STATUS_SYSTEM, "no memory for a plan of %zu bytes",
                           n);
    memcpy(p.blob, bytes, n);
    s = load(&p);
    if (s)
        plan_free(&p);
    else
        *out = p;
    return s;
}

void plan_free(Plan *p)
{
    free(p->blob);
    *p = (Plan){0};
}

const char *plan_text(const Plan *p, PlanStr s)
{
    return p->strings.v + s;
}

uint64_t plan_end_of_memory(const Plan *p)
{
    const PlanMemory *last = &p->memories.v[p->memories.n - 1];

    return last->start + last->bytes;
}

uint64_t plan_instr_bytes(const Plan *p, const PlanInstr *in)
{
    uint64_t bytes = 0;

    if (in->op == PLAN_LAUNCH && p->kernels.v[in->index].work.bytes > 0)
        return (uint64_t)p->kernels.v[in->index].work.bytes;
    for (uint32_t k = 0; k < in->operands.n; k++)
        bytes += p->operands.v[in->operands.first + k].bytes;
    return bytes;
}

uint32_t plan_state_buffer(uint64_t address)
{
    enum { GRAIN = 64 }; /* tells fields apart: none is smaller */

    return PLAN_STATE | ((uint32_t)(address / GRAIN) & (PLAN_STATE - 1));
}
