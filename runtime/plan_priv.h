/* plan_priv.h - the frame of a plan file, shared by reader and writer. */
#ifndef MEGAC_RUNTIME_PLAN_PRIV_H
#define MEGAC_RUNTIME_PLAN_PRIV_H

#include "runtime/plan.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "a plan is its own memory image, which is little-endian"
#endif

enum {
#define TABLE(field, Row, least, most, what) PLAN_TABLE_##field,
#include "runtime/plan_tables.def"
#undef TABLE
    PLAN_TABLES
};
enum { PLAN_ALIGN = 16 };

typedef struct {
    char magic[8];
    uint32_t version, tables;
    uint64_t size, hash;
} PlanHeader;

typedef struct {
    uint64_t offset;
    uint32_t rows, row_bytes;
} PlanEntry;

/* Where table `i` stands in the Plan struct: every table there is a pointer
 * and a count, whatever its row type. */
typedef struct {
    const char *name, *what;
    size_t offset;
    uint32_t row_bytes, least, most;
} PlanTableInfo;
extern const PlanTableInfo plan_tables[PLAN_TABLES];

typedef struct {
    const void *v;
    uint32_t n;
} PlanAnyTable;

static inline size_t plan_align(size_t n)
{
    return (n + PLAN_ALIGN - 1) & ~(size_t)(PLAN_ALIGN - 1);
}

/* plan_check.c, plan_check_code.c */
MC_MUST_USE Status plan_check(const Plan *p);

/* plan_names.c: spellings of enumerations, "?" if out of range. */
const char *plan_op_name(uint32_t op);
const char *plan_collective_name(uint32_t kind);
const char *plan_host_name(uint32_t op);

#endif
