/* verify_plan_map.c - an ordered map from byte ranges to what happened there.
 *
 * Cells tile [0, end).  They are kept in order in chunks of at most CHUNK
 * cells, and the chunks in an array: a search is two short binary searches,
 * an insertion moves one chunk's tail.  A write merges all that it covers, so
 * the number of cells stays near the number of buffers.  Layers and
 * microbatches come back to the same addresses, so most searches end at a hint:
 * where a cell that starts there was found the last time.
 */
#include "codegen/verify_plan_priv.h"

#include <stdlib.h>

enum { CHUNK = 48, HINT_BITS = 12 };

typedef struct {
    char *cells;
    uint32_t n;
} Chunk;

struct Map {
    Arena *arena;
    size_t cell_bytes;
    uint32_t streams;
    uint64_t end;
    Chunk *chunks;
    uint64_t *starts; /* of each chunk's first cell */
    uint32_t n, cap;
    Vec(char *) spare; /* cells of dropped chunks */
    struct {
        uint32_t chunk, index;
    } hint[1 << HINT_BITS]; /* by hash of the address; may be out of date */
};

static MapCell *cell_at(const Map *m, uint32_t chunk, uint32_t index)
{
    return (MapCell *)(void *)(m->chunks[chunk].cells + index * m->cell_bytes);
}

static uint64_t cell_end(const Map *m, uint32_t chunk, uint32_t index)
{
    if (index + 1 < m->chunks[chunk].n)
        return cell_at(m, chunk, index + 1)->start;
    return chunk + 1 < m->n ? m->starts[chunk + 1] : m->end;
}

/* ---- chunks ------------------------------------------------------------ */

static char *cells_new(Map *m)
{
    if (m->spare.n > 0)
        return m->spare.v[--m->spare.n];
    return arena_alloc(m->arena, CHUNK * m->cell_bytes);
}

static void chunk_insert(Map *m, uint32_t at, Chunk chunk, uint64_t start)
{
    if (m->n == m->cap) {
        uint32_t cap = 2 * m->cap;
        Chunk *chunks = arena_array(m->arena, Chunk, cap);
        uint64_t *starts = arena_array(m->arena, uint64_t, cap);
        memcpy(chunks, m->chunks, sizeof *chunks * m->n);
        memcpy(starts, m->starts, sizeof *starts * m->n);
        m->chunks = chunks;
        m->starts = starts;
        m->cap = cap;
    }
    memmove(m->chunks + at + 1, m->chunks + at, sizeof(Chunk) * (m->n - at));
    memmove(m->starts + at + 1, m->starts + at, sizeof(uint64_t) * (m->n - at));
    m->chunks[at] = chunk;
    m->starts[at] = start;
    m->n++;
}

/* Drops chunks [from, to), which are empty. */
static void chunks_drop(Map *m, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        vec_push(&m->spare, m->chunks[i].cells);
    memmove(m->chunks + from, m->chunks + to, sizeof(Chunk) * (m->n - to));
    memmove(m->starts + from, m->starts + to, sizeof(uint64_t) * (m->n - to));
    m->n -= to - from;
}

/* Moves the upper half of a full chunk into a new one behind it. */
static void chunk_split(Map *m, uint32_t at)
{
    Chunk *low = &m->chunks[at];
    uint32_t kept = low->n / 2;
    Chunk high = {cells_new(m), low->n - kept};
    memcpy(high.cells, low->cells + kept * m->cell_bytes,
           high.n * m->cell_bytes);
    low->n = kept;
    chunk_insert(m, at + 1, high, ((MapCell *)(void *)high.cells)->start);
}

/* ---- searching and cutting ---------------------------------------------- */

static uint32_t find_chunk(const Map *m, uint64_t address)
{
    uint32_t low = 0, high = m->n;
    while (high - low > 1) {
        uint32_t mid = (low + high) / 2;
        if (m->starts[mid] <= address)
            low = mid;
        else
            high = mid;
    }
    return low;
}

static uint32_t hint_of(uint64_t address)
{
    return (uint32_t)(address * UINT64_C(0x9e3779b97f4a7c15) >>
                      (64 - HINT_BITS));
}

/* The cell that starts at `address`, if the hint still says where. */
static bool find_hinted(const Map *m, uint64_t address, MapAt *out)
{
    MapAt at = {.chunk = m->hint[hint_of(address)].chunk,
                .index = m->hint[hint_of(address)].index};

    if (at.chunk >= m->n || at.index >= m->chunks[at.chunk].n)
        return false;
    at.cell = cell_at(m, at.chunk, at.index);
    *out = at;
    return at.cell->start == address;
}

static MapAt find(Map *m, uint64_t address)
{
    MapAt at;
    uint32_t high;

    if (find_hinted(m, address, &at))
        return at;
    at = (MapAt){.chunk = find_chunk(m, address)};
    high = m->chunks[at.chunk].n;
    while (high - at.index > 1) {
        uint32_t mid = (at.index + high) / 2;
        if (cell_at(m, at.chunk, mid)->start <= address)
            at.index = mid;
        else
            high = mid;
    }
    at.cell = cell_at(m, at.chunk, at.index);
    m->hint[hint_of(address)].chunk = at.chunk;
    m->hint[hint_of(address)].index = at.index;
    return at;
}

/* The cell that starts at `address`, made by cutting one if need be. */
static MapAt cut(Map *m, uint64_t address)
{
    MapAt at = find(m, address);
    if (at.cell->start == address)
        return at;
    if (m->chunks[at.chunk].n == CHUNK) {
        chunk_split(m, at.chunk);
        at = find(m, address);
    }
    Chunk *chunk = &m->chunks[at.chunk];
    char *cell = (char *)at.cell;
    memmove(cell + m->cell_bytes, cell, (chunk->n - at.index) * m->cell_bytes);
    chunk->n++;
    at.cell = cell_at(m, at.chunk, ++at.index);
    at.cell->start = address;
    return at;
}

MapAt verify_map_first(Map *m, uint64_t start, uint64_t end)
{
    if (start >= end)
        return (MapAt){0};
    MapAt at = find(m, start);
    if (at.cell->start != start || cell_end(m, at.chunk, at.index) != end) {
        if (end < m->end)
            cut(m, end);
        at = cut(m, start);
    }
    at.end = end;
    return at;
}

void verify_map_step(Map *m, MapAt *at)
{
    uint64_t next = cell_end(m, at->chunk, at->index);
    if (next >= at->end) {
        at->cell = NULL;
        return;
    }
    if (++at->index == m->chunks[at->chunk].n) {
        at->chunk++;
        at->index = 0;
    }
    at->cell = cell_at(m, at->chunk, at->index);
}

uint64_t verify_map_end(const Map *m, const MapAt *at)
{
    return cell_end(m, at->chunk, at->index);
}

/* ---- writing ------------------------------------------------------------ */

/* Removes cells [from, to) of a chunk. */
static void cells_drop(Map *m, uint32_t chunk, uint32_t from, uint32_t to)
{
    Chunk *c = &m->chunks[chunk];
    memmove(c->cells + from * m->cell_bytes, c->cells + to * m->cell_bytes,
            (c->n - to) * m->cell_bytes);
    c->n -= to - from;
}

/* Removes the cells behind `at` that start below `end`. */
static void merge(Map *m, MapAt at, uint64_t end)
{
    uint32_t last = at.index + 1, next = at.chunk + 1;
    while (last < m->chunks[at.chunk].n &&
           cell_at(m, at.chunk, last)->start < end)
        last++;
    bool beyond = last == m->chunks[at.chunk].n;
    cells_drop(m, at.chunk, at.index + 1, last);
    if (!beyond)
        return;
    while (next < m->n &&
           (next + 1 < m->n ? m->starts[next + 1] : m->end) <= end)
        next++;
    chunks_drop(m, at.chunk + 1, next);
    next = at.chunk + 1;
    if (next == m->n)
        return;
    for (last = 0; cell_at(m, next, last)->start < end; last++)
        ;
    cells_drop(m, next, 0, last);
    m->starts[next] = cell_at(m, next, 0)->start;
}

void verify_map_write(Map *m, MapAt first, uint32_t tag, uint32_t writer,
                      uint32_t stream)
{
    if (cell_end(m, first.chunk, first.index) < first.end)
        merge(m, first, first.end);
    first.cell->tag = tag;
    first.cell->writer = writer;
    first.cell->stream = stream;
    first.cell->agreed = 0;
    memset(first.cell->read, 0, sizeof *first.cell->read * m->streams);
}

void verify_map_free(Map *m)
{
    vec_free(&m->spare);
}

Map *verify_map_new(Arena *a, uint64_t end, uint32_t streams)
{
    Map *m = arena_new_of(a, Map);
    size_t bytes = sizeof(MapCell) + sizeof(uint32_t) * streams;
    *m = (Map){.arena = a, .streams = streams, .end = end, .cap = 64};
    m->cell_bytes = (bytes + 7) / 8 * 8;
    m->chunks = arena_array(a, Chunk, m->cap);
    m->starts = arena_array(a, uint64_t, m->cap);
    chunk_insert(m, 0, (Chunk){cells_new(m), 1}, 0);
    cell_at(m, 0, 0)->writer = MAP_NOBODY;
    return m;
}
