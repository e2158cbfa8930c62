/* schedule_file.c - a pipeline schedule from a CSV file.
 *
 *     0F0,0F1,      ,1B0,1B1        one row per pipeline rank, in its order;
 *     1F0,1I0,1W0,1F1,1I1,1W1       empty cells are waiting
 *
 * The form is that of torch.distributed.pipelining: number of the stage, F
 * (forward), B (backward), I and W (its two parts), number of the microbatch;
 * (0F4;7B1)OVERLAP_F_B is a forward and a backward that may run at once.
 * Communication is not written: it follows.  Where a stage stands is where it
 * lives, so the file also is the placement of stages on ranks.
 *
 * stages.c reads the file; whether it computes everything once is checked when
 * the number of microbatches is known, and whether it blocks by `pipeline`.
 */
#include "frontend/frontend_priv.h"

enum { STAGES_MAX = 1 << 12, MICROBATCHES_MAX = 1 << 16 };

typedef struct {
    Check *check;
    const char *path;
    uint32_t row;
    const char *at;
} Reader;

static bool row_fail(Reader *r, const char *what)
{
    int length = (int)strcspn(r->at, ",\r\n");

    check_fail(r->check, "MC0234", "parallel.schedule",
               "%s, row %u: `%.*s` %s", r->path, r->row + 1, length, r->at,
               what);
    diag_help(r->check->diag, "a cell is stage, F, B, I or W, and microbatch: "
                              "3F0");
    return false;
}

static bool number_read(const char **at, uint32_t limit, uint32_t *out)
{
    const char *start = *at;
    uint32_t n = 0;

    for (; **at >= '0' && **at <= '9' && n < limit; ++*at)
        n = n * 10 + (uint32_t)(**at - '0');
    *out = n;
    return *at > start && n < limit;
}

static bool action_read(const char **at, const char *kinds, ScheduleCell *out)
{
    if (!number_read(at, STAGES_MAX, &out->stage) || !**at ||
        !strchr(kinds, **at))
        return false;
    out->kind = *(*at)++;
    return number_read(at, MICROBATCHES_MAX, &out->microbatch);
}

static bool text_read(const char **at, const char *text)
{
    size_t n = strlen(text);
    bool ok = strncmp(*at, text, n) == 0;

    *at += ok ? n : 0;
    return ok;
}

/* Appends an action, or a pair of them. */
static bool cell_read(Reader *r, ScheduleRow *out)
{
    ScheduleCell *cell = &out->v[out->n];
    const char *at = r->at;
    bool pair = text_read(&at, "(");
    bool ok = action_read(&at, pair ? "F" : "FBIW", cell);

    cell->beside = pair;
    if (pair)
        ok = ok && text_read(&at, ";") && action_read(&at, "B", cell + 1) &&
             text_read(&at, ")OVERLAP_F_B");
    at += strspn(at, " \t");
    if (!ok || (*at && !strchr(",\r\n", *at)))
        return row_fail(r, "is no action");
    out->n += 1u + pair;
    r->at = at;
    return true;
}

/* The cells of one line; leaves r->at behind it. */
static bool row_read(Reader *r, ScheduleRow *out)
{
    size_t room = strcspn(r->at, "\n") + 1;

    out->v = arena_array(r->check->arena, ScheduleCell, room);
    for (;;) {
        r->at += strspn(r->at, " \t\"");
        if (*r->at && !strchr(",\r\n", *r->at) && !cell_read(r, out))
            return false;
        r->at += strspn(r->at, " \t\r\"");
        if (*r->at != ',')
            break;
        r->at++;
    }
    r->at += *r->at == '\n';
    return true;
}

/* ---- stages -------------------------------------------------------------- */

/* Notes that a row has a stage; no other row may. */
static bool stage_note(Reader *r, ScheduleFile *f, uint32_t stage)
{
    while (f->nstages <= stage)
        f->rank[f->nstages++] = UINT32_MAX;
    if (f->rank[stage] == UINT32_MAX)
        f->rank[stage] = r->row;
    if (f->rank[stage] == r->row)
        return true;
    check_fail(r->check, "MC0234", "parallel.schedule",
               "%s: stage %u is in rows %u and %u", r->path, stage,
               f->rank[stage] + 1, r->row + 1);
    return false;
}

static bool rows_read(Reader *r, ScheduleFile *f)
{
    int64_t pp = r->check->spec->parallel.pp;

    for (r->row = 0; *r->at; r->row++) {
        ScheduleRow row = {0};
        if (r->row == pp)
            break;
        if (!row_read(r, &row))
            return false;
        for (uint32_t i = 0; i < row.n; i++)
            if (!stage_note(r, f, row.v[i].stage))
                return false;
        f->rows[r->row] = row;
    }
    if (r->row == pp && !*r->at)
        return true;
    check_fail(r->check, "MC0234", "parallel.schedule",
               "%s has %s rows than pp = %lld", r->path,
               r->row == pp ? "more" : "fewer", (long long)pp);
    check_because(r->check, "parallel.pp");
    return false;
}

/* Every rank has as many stages as the others. */
static bool chunks_even(Reader *r, const ScheduleFile *f)
{
    uint32_t pp = (uint32_t)r->check->spec->parallel.pp;
    uint32_t *count = arena_array(r->check->arena, uint32_t, pp);
    bool even = f->nstages > 0;

    for (uint32_t i = 0; even && i < f->nstages; i++) {
        even = f->rank[i] < pp;
        if (even)
            count[f->rank[i]]++;
    }
    for (uint32_t i = 0; even && i < pp; i++)
        even = count[i] * pp == f->nstages;
    if (!even)
        check_fail(r->check, "MC0234", "parallel.schedule",
                   "%s does not give every rank the same number of stages",
                   r->path);
    return even;
}

ScheduleFile *schedule_file_read(Check *c)
{
    Reader r = {.check = c, .path = c->spec->schedule_path};
    ScheduleFile *f = arena_new_of(c->arena, ScheduleFile);
    Buf text = {0};
    bool ok = buf_read_file(&text, r.path);

    if (!ok)
        check_fail(c, "MC0234", "parallel.schedule", "cannot read %s", r.path);
    r.at = buf_str(&text);
    f->rows = arena_array(c->arena, ScheduleRow, c->spec->parallel.pp);
    f->rank = arena_array(c->arena, uint32_t, STAGES_MAX);
    ok = ok && rows_read(&r, f) && chunks_even(&r, f);
    buf_free(&text);
    return ok ? f : NULL;
}

/* ---- everything once ----------------------------------------------------- */

static bool once_fail(Check *c, uint32_t stage, uint32_t mb, const char *what)
{
    check_fail(c, "MC0234", "parallel.schedule",
               "%s: stage %u %s microbatch %u", c->spec->schedule_path, stage,
               what, mb);
    return false;
}

/* Bits of the parts of a microbatch's work on a stage. */
enum { DID_F = 1, DID_I = 2, DID_W = 4 };

static bool cell_count(Check *c, const ScheduleCell *cell, uint8_t *did)
{
    uint8_t part = cell->kind == 'F'   ? DID_F
                   : cell->kind == 'I' ? DID_I
                   : cell->kind == 'W' ? DID_W
                                       : DID_I | DID_W;

    if (*did & part)
        return once_fail(c, cell->stage, cell->microbatch, "repeats");
    *did |= part;
    return true;
}

bool schedule_file_check(Check *c)
{
    const ScheduleFile *f = c->spec->schedule_file;
    uint32_t m = (uint32_t)c->spec->derived.microbatches;
    uint8_t *did = arena_array(c->arena, uint8_t, (size_t)f->nstages * m + 1);

    for (int64_t row = 0; row < c->spec->parallel.pp; row++)
        for (uint32_t i = 0; i < f->rows[row].n; i++) {
            const ScheduleCell *cell = &f->rows[row].v[i];
            if (cell->microbatch >= m)
                return once_fail(c, cell->stage, cell->microbatch,
                                 "runs, but a step does not have,");
            if (!cell_count(c, cell, &did[cell->stage * m + cell->microbatch]))
                return false;
        }
    for (uint32_t i = 0; i < f->nstages * m; i++)
        if (did[i] != (DID_F | DID_I | DID_W))
            return once_fail(c, i / m, i % m, "does not finish");
    return true;
}
