/* plan_build.c - writes plans: tables that grow, and one layout pass.
 *
 * The builder checks nothing; plan_load of what it wrote does.  Texts, lists,
 * atoms, expressions and rows of small tables are stored once, by looking for
 * an equal one: through a hash for texts and lists, by a search for the rest,
 * whose tables stay short.
 */
#include "runtime/plan_priv.h"

#include <stdlib.h>
#define HASH_NONFATAL_OOM 0
#define uthash_fatal(msg) mc_oom(0)
#include <uthash.h>
#include <xxhash.h>

/* Where a text or list with these bytes is stored. */
typedef struct {
    UT_hash_handle hh;
    uint32_t at;
} Stored;

struct PlanBuilder {
    Arena *arena;
    Stored *texts, *items; /* by content */
#define TABLE(field, Row, least, most, what) Vec(Row) field;
#include "runtime/plan_tables.def"
#undef TABLE
};

PlanBuilder *plan_builder_new(void)
{
    PlanBuilder *b = calloc(1, sizeof *b);

    if (!b)
        mc_oom(sizeof *b);
    b->arena = arena_new();
    vec_push(&b->job, (PlanJob){0});
    vec_push(&b->training, (PlanTraining){0});
    vec_push(&b->data, ((PlanData){.shards = 1, .parts = 1}));
    plan_add_text(b, "");
    plan_add_expr(b, 0, NULL, 0);
    plan_add_place(b, "", 0, 0, "", "");
    plan_add_stream(b, "compute", PLAN_STREAM_COMPUTE);
    return b;
}

void plan_builder_free(PlanBuilder *b)
{
    if (!b)
        return;
    HASH_CLEAR(hh, b->texts);
    HASH_CLEAR(hh, b->items);
#define TABLE(field, Row, least, most, what) vec_free(&b->field);
#include "runtime/plan_tables.def"
#undef TABLE
    arena_free(b->arena);
    free(b);
}

/* ---- texts, lists, small rows -------------------------------------------- */

/* Finds equal content, or notes that it is about to be stored at `at`. */
static bool find_stored(PlanBuilder *b, Stored **map, const void *bytes,
                        size_t n, uint32_t *at)
{
    Stored *s = NULL;

    HASH_FIND(hh, *map, bytes, n, s);
    if (s) {
        *at = s->at;
        return true;
    }
    s = arena_new_of(b->arena, Stored);
    s->at = *at;
    HASH_ADD_KEYPTR(hh, *map, arena_strndup(b->arena, bytes, n), n, s);
    return false;
}

PlanStr plan_add_text(PlanBuilder *b, const char *s)
{
    size_t n = strlen(s) + 1;
    uint32_t at = b->strings.n;

    if (!find_stored(b, &b->texts, s, n, &at))
        for (size_t i = 0; i < n; i++)
            vec_push(&b->strings, s[i]);
    return at;
}

PlanRange plan_add_list(PlanBuilder *b, const uint32_t *items, uint32_t n)
{
    uint32_t at = b->lists.n;

    if (n == 0)
        return (PlanRange){0, 0};
    if (!find_stored(b, &b->items, items, n * sizeof *items, &at))
        for (uint32_t i = 0; i < n; i++)
            vec_push(&b->lists, items[i]);
    return (PlanRange){at, n};
}

/* The row of `table` equal to `item`, which is appended if there is none. */
#define ADD_ONCE(table, item)                                                  \
    do {                                                                       \
        for (uint32_t i_ = 0; i_ < (table)->n; i_++)                           \
            if (memcmp(&(table)->v[i_], &(item), sizeof(item)) == 0)           \
                return i_;                                                     \
        vec_push((table), (item));                                             \
        return (table)->n - 1;                                                 \
    } while (0)

uint32_t plan_add_atom(PlanBuilder *b, const char *name, uint32_t size,
                       uint32_t stride)
{
    PlanAtom a = {plan_add_text(b, name), size, stride, 0};

    ADD_ONCE(&b->atoms, a);
}

static bool terms_equal(const PlanBuilder *b, const PlanExpr *e,
                        const PlanTerm *terms, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const PlanTerm *t = &b->terms.v[e->terms.first + i];
        if (t->atom != terms[i].atom || t->factor != terms[i].factor)
            return false;
    }
    return true;
}

uint32_t plan_add_expr(PlanBuilder *b, int64_t constant, const PlanTerm *terms,
                       uint32_t n)
{
    PlanExpr e = {{b->terms.n, n}, constant};

    for (uint32_t i = 0; i < b->exprs.n; i++) {
        const PlanExpr *old = &b->exprs.v[i];
        if (old->constant == constant && old->terms.n == n &&
            terms_equal(b, old, terms, n))
            return i;
    }
    for (uint32_t i = 0; i < n; i++)
        vec_push(&b->terms, ((PlanTerm){.atom = terms[i].atom,
                                        .factor = terms[i].factor}));
    vec_push(&b->exprs, e);
    return b->exprs.n - 1;
}

uint32_t plan_add_group(PlanBuilder *b, const char *name, const uint32_t *atoms,
                        uint32_t natoms, const uint32_t *picks, uint32_t npicks)
{
    PlanGroup g = {plan_add_text(b, name), 0, plan_add_list(b, atoms, natoms),
                   plan_add_list(b, picks, npicks)};

    ADD_ONCE(&b->groups, g);
}

uint32_t plan_add_peer(PlanBuilder *b, const char *name, uint32_t atom,
                       int32_t shift)
{
    PlanPeer p = {plan_add_text(b, name), atom, shift, 0};

    ADD_ONCE(&b->peers, p);
}

uint32_t plan_add_stream(PlanBuilder *b, const char *name, PlanStreamKind kind)
{
    PlanStream s = {plan_add_text(b, name), kind};

    ADD_ONCE(&b->streams, s);
}

uint32_t plan_add_memory(PlanBuilder *b, const char *name, PlanMemoryKind kind,
                         uint64_t start, uint64_t bytes)
{
    PlanMemory m = {plan_add_text(b, name), kind, start, bytes};

    vec_push(&b->memories, m);
    return b->memories.n - 1;
}

uint32_t plan_add_place(PlanBuilder *b, const char *file, uint32_t line,
                        uint32_t col, const char *op, const char *tensor)
{
    PlanPlace p = {plan_add_text(b, file),   line, col, plan_add_text(b, op),
                   plan_add_text(b, tensor), 0};

    if (b->places.n && memcmp(&vec_last(&b->places), &p, sizeof p) == 0)
        return b->places.n - 1;
    vec_push(&b->places, p);
    return b->places.n - 1;
}

uint32_t plan_add_kernel(PlanBuilder *b, const char *symbol, uint32_t phases,
                         bool serial, uint32_t ptrs, uint32_t imms)
{
    return plan_add_kernel_work(b, (PlanKernel){.phases = phases,
                                                .serial = serial,
                                                .ptrs = ptrs,
                                                .imms = imms}, symbol);
}

uint32_t plan_add_kernel_work(PlanBuilder *b, PlanKernel k, const char *symbol)
{
    k.symbol = plan_add_text(b, symbol);
    ADD_ONCE(&b->kernels, k);
}

uint32_t plan_add_gemm(PlanBuilder *b, const PlanGemm *g)
{
    ADD_ONCE(&b->gemms, *g);
}

uint32_t plan_add_collective(PlanBuilder *b, const PlanCollective *c)
{
    ADD_ONCE(&b->collectives, *c);
}

void plan_add_member(PlanBuilder *b, uint32_t atom, uint32_t value)
{
    vec_push(&b->members, ((PlanMember){atom, value}));
}

void plan_add_source(PlanBuilder *b, const char *path, const char *mask,
                     double weight)
{
    PlanSource source = {plan_add_text(b, path),
                         mask ? plan_add_text(b, mask) : PLAN_NONE, weight};

    vec_push(&b->sources, source);
    vec_last(&b->data).sources.n++;
    vec_last(&b->data).masked |= mask != NULL;
}

/* ---- tensors ------------------------------------------------------------- */

uint32_t plan_add_tensor(PlanBuilder *b, const PlanTensor *t)
{
    vec_push(&b->tensors, *t);
    vec_last(&b->tensors).dims = (PlanRange){b->dims.n, 0};
    vec_last(&b->tensors).fields = (PlanRange){b->fields.n, 0};
    return b->tensors.n - 1;
}

void plan_add_dim(PlanBuilder *b, const char *name, int64_t logical,
                  int64_t padded)
{
    PlanDim d = {plan_add_text(b, name), 0, logical, padded};

    vec_push(&b->dims, d);
    vec_last(&b->tensors).dims.n++;
}

void plan_add_field(PlanBuilder *b, const PlanField *f, const PlanSplit *splits)
{
    uint32_t ndims = vec_last(&b->tensors).dims.n;

    vec_push(&b->fields, *f);
    vec_last(&b->fields).splits = b->splits.n;
    vec_last(&b->tensors).fields.n++;
    for (uint32_t d = 0; d < ndims; d++)
        vec_push(&b->splits, splits[d]);
}

/* ---- code ---------------------------------------------------------------- */

uint32_t plan_segment_begin(PlanBuilder *b, const char *name)
{
    PlanSegment s = {
        plan_add_text(b, name), 0, {b->instrs.n, 0}, {b->regs.n, 0}};

    vec_push(&b->segments, s);
    return b->segments.n - 1;
}

uint16_t plan_add_reg(PlanBuilder *b, PlanKind kind, const char *name)
{
    PlanReg r = {kind, plan_add_text(b, name)};

    vec_push(&b->regs, r);
    return (uint16_t)++vec_last(&b->segments).regs.n;
}

void plan_emit(PlanBuilder *b, PlanInstr in, const PlanOperand *operands,
               uint32_t n)
{
    in.operands = (PlanRange){b->operands.n, n};
    for (uint32_t i = 0; i < n; i++)
        vec_push(&b->operands, operands[i]);
    vec_push(&b->instrs, in);
    vec_last(&b->segments).instrs.n++;
}

uint32_t plan_add_event(PlanBuilder *b)
{
    return plan_job(b)->events++;
}

void plan_add_program(PlanBuilder *b, PlanProgramKind kind, uint32_t segment,
                      int64_t microbatches)
{
    vec_push(&b->programs, ((PlanProgram){kind, segment, microbatches}));
}

PlanOperand plan_address(uint64_t address, uint64_t bytes, int access)
{
    return plan_reg_address(0, (int64_t)address, bytes, access);
}

PlanOperand plan_reg_address(uint16_t base, int64_t offset, uint64_t bytes,
                             int access)
{
    return (PlanOperand){.kind = PLAN_ADDRESS,
                         .access = (uint8_t)access,
                         .base = base,
                         .offset = offset,
                         .bytes = bytes};
}

PlanOperand plan_integer(int64_t value)
{
    return plan_reg_integer(0, value);
}

PlanOperand plan_reg_integer(uint16_t base, int64_t offset)
{
    return (PlanOperand){.kind = PLAN_INTEGER, .base = base, .offset = offset};
}

PlanJob *plan_job(PlanBuilder *b)
{
    return b->job.v;
}

PlanTraining *plan_training(PlanBuilder *b)
{
    return b->training.v;
}

PlanData *plan_data(PlanBuilder *b)
{
    return b->data.v;
}

PlanData *plan_add_valid(PlanBuilder *b)
{
    PlanData d = b->data.v[0];

    d.sources = (PlanRange){b->sources.n, 0};
    d.masked = 0;
    vec_push(&b->data, d);
    return &vec_last(&b->data);
}

/* ---- the file ------------------------------------------------------------ */

static void pad(Buf *out, size_t start)
{
    static const char zeros[PLAN_ALIGN];

    buf_write(out, zeros, plan_align(out->len - start) - (out->len - start));
}

static void write_directory(const PlanBuilder *b, Buf *out)
{
    uint64_t at =
        plan_align(sizeof(PlanHeader) + PLAN_TABLES * sizeof(PlanEntry));

#define TABLE(field, Row, least, most, what)                                   \
    buf_write(out, &(PlanEntry){at, b->field.n, sizeof(Row)},                  \
              sizeof(PlanEntry));                                              \
    at = plan_align(at + b->field.n * sizeof(Row));
#include "runtime/plan_tables.def"
#undef TABLE
}

void plan_write(PlanBuilder *b, Buf *out)
{
    PlanHeader h = {.version = PLAN_VERSION, .tables = PLAN_TABLES};
    PlanTraining *t = plan_training(b);
    size_t start = out->len;

    mc_assert(b->segments.n > 0);
    if (b->programs.n == 0)
        plan_add_program(b, PLAN_TRAIN, b->segments.n - 1,
                         plan_training(b)->microbatches);
    if (t->rampup.full == 0)
        t->rampup = (BatchRampup){t->global_batch, 0, 0, t->global_batch};
    memcpy(h.magic, PLAN_MAGIC, sizeof h.magic);
    buf_write(out, &h, sizeof h);
    write_directory(b, out);
    pad(out, start);
#define TABLE(field, Row, least, most, what)                                   \
    if (b->field.n)                                                            \
        buf_write(out, b->field.v, b->field.n * sizeof(Row));                  \
    pad(out, start);
#include "runtime/plan_tables.def"
#undef TABLE
    h.size = out->len - start;
    h.hash = XXH3_64bits(out->s + start + sizeof h, h.size - sizeof h);
    memcpy(out->s + start, &h, sizeof h);
}
