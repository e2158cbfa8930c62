/* emit_board.h - for tests: messages between ranks that are threads of one
 * process.
 *
 * Every rank posts its operations on one board.  A collective is carried out
 * by whoever posts last, for all members, in the order of the group; a message
 * by whoever comes second.  Operations match by group or pair, and by how many
 * of the kind were posted before.
 */
#ifndef MEGAC_TESTS_EMIT_BOARD_H
#define MEGAC_TESTS_EMIT_BOARD_H

#include "base/half.h"
#include "runtime/comm.h"

#include <pthread.h>
#include <stdlib.h>

enum { BOARD_RANKS = 16, BOARD_SLOTS = 16 * COMM_SLOTS, BOARD_POSTS = 8192,
       BOARD_KINDS = 64 };

typedef struct {
    uint32_t rank, slot, own; /* own: place in the group */
    uint64_t key;             /* equal for operations that belong together */
    const Plan *plan;
    CommOp op;
} BoardPost;

static struct {
    pthread_mutex_t lock;
    BoardPost posts[BOARD_POSTS];
    uint32_t n;
    bool done[BOARD_RANKS][BOARD_SLOTS];
    struct {
        uint64_t kind;
        uint32_t count;
    } posted[BOARD_RANKS][BOARD_KINDS]; /* how many of a kind so far */
} board = {.lock = PTHREAD_MUTEX_INITIALIZER};

typedef struct {
    const Plan *plan;
    uint32_t rank;
} BoardRank;

static inline void board_clear(void)
{
    board.n = 0;
    memset(board.posted, 0, sizeof board.posted);
}

static inline uint32_t board_count(uint32_t rank, uint64_t kind)
{
    uint32_t i = 0;

    while (board.posted[rank][i].count && board.posted[rank][i].kind != kind)
        i++;
    board.posted[rank][i].kind = kind;
    return ++board.posted[rank][i].count;
}

/* ---- what belongs together ----------------------------------------------- */

static inline uint64_t board_mix(uint64_t h, uint64_t x)
{
    return (h ^ x) * 0x9e3779b97f4a7c15u ^ (h >> 29);
}

/* The kind of an operation: its members, or both ends and the channel. */
static inline uint64_t board_kind(const BoardRank *r, const PlanInstr *in,
                                  uint32_t *out_members, uint32_t *out_own)
{
    const char *stream = plan_text(r->plan,
                                   r->plan->streams.v[in->stream].name);
    uint32_t ranks[BOARD_RANKS], other;
    uint64_t kind = 0;

    if (in->op == PLAN_COLLECTIVE) {
        for (; *stream; stream++)
            kind = board_mix(kind, (uint64_t)*stream);
        *out_members = plan_group_ranks(
            r->plan, r->plan->collectives.v[in->index].group, r->rank, ranks,
            BOARD_RANKS, out_own);
        for (uint32_t i = 0; i < *out_members; i++)
            kind = board_mix(kind, ranks[i] + 1);
        return kind;
    }
    other = plan_peer_rank(r->plan, in->index, r->rank);
    *out_members = 2;
    *out_own = in->op == PLAN_RECV;
    kind = board_mix(99, *out_own ? other : r->rank);
    return board_mix(board_mix(kind, *out_own ? r->rank : other), in->aux);
}

/* ---- carrying out -------------------------------------------------------- */

static inline float board_get(uint32_t dtype, const char *at, int64_t i)
{
    uint32_t u;
    float f;

    if (dtype == PLAN_F32)
        return ((const float *)(const void *)at)[i];
    if (dtype == PLAN_F16)
        return half_widen(((const uint16_t *)(const void *)at)[i]);
    u = (uint32_t)((const uint16_t *)(const void *)at)[i] << 16;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline void board_put(uint32_t dtype, char *at, int64_t i, float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    if (dtype == PLAN_F32)
        ((float *)(void *)at)[i] = x;
    else if (dtype == PLAN_F16)
        ((uint16_t *)(void *)at)[i] = half_narrow(x);
    else
        ((uint16_t *)(void *)at)[i] =
            (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Elements [at, at + n) of all members' sources, reduced, in `to`. */
static inline void board_reduce(const PlanCollective *c, BoardPost *const *all,
                                uint32_t members, int64_t at, int64_t n,
                                char *to)
{
    for (int64_t i = 0; i < n; i++) {
        float sum = board_get(c->dtype, all[0]->op.source, at + i);
        for (uint32_t k = 1; k < members; k++) {
            float x = board_get(c->dtype, all[k]->op.source, at + i);
            sum = c->reduce == PLAN_SUM ? sum + x : x > sum ? x : sum;
        }
        board_put(c->dtype, to, i, sum);
    }
}

/* The parts that member `own` gets, in a buffer of their own: sources must not
 * change before all members have been served. */
static inline char *board_part(const PlanCollective *c, BoardPost *const *all,
                               uint32_t members, uint32_t own,
                               size_t *out_bytes)
{
    size_t part = (size_t)c->count * plan_dtype_bytes(c->dtype);
    bool many = c->kind == PLAN_ALL_GATHER || c->kind == PLAN_ALL_TO_ALL;
    char *to = malloc(part * (many ? members : 1));

    *out_bytes = part * (many ? members : 1);
    if (c->kind == PLAN_SHIFT)
        memcpy(to, all[(own + members - 1) % members]->op.source, part);
    if (c->kind == PLAN_ALL_REDUCE)
        board_reduce(c, all, members, 0, c->count, to);
    else if (c->kind == PLAN_REDUCE_SCATTER)
        board_reduce(c, all, members, own * c->count, c->count, to);
    for (uint32_t k = 0; many && k < members; k++)
        memcpy(to + k * part,
               (const char *)all[k]->op.source +
                   (c->kind == PLAN_ALL_TO_ALL ? own * part : 0),
               part);
    return to;
}

static inline void board_collective(BoardPost *const *all, uint32_t members)
{
    const Plan *p = all[0]->plan;
    const PlanCollective *c =
        &p->collectives.v[p->instrs.v[all[0]->op.instr].index];
    char *part[BOARD_RANKS];
    size_t bytes = 0;

    for (uint32_t k = 0; k < members; k++)
        part[k] = board_part(c, all, members, k, &bytes);
    for (uint32_t k = 0; k < members; k++) {
        memcpy(all[k]->op.destination, part[k], bytes);
        free(part[k]);
    }
}

/* Takes the posts with `key` off the board if there are `members`. */
static inline void board_match(uint64_t key, uint32_t members)
{
    BoardPost *all[BOARD_RANKS];
    uint32_t n = 0, left = 0;

    for (uint32_t i = 0; i < board.n; i++)
        if (board.posts[i].key == key) {
            all[board.posts[i].own] = &board.posts[i];
            n++;
        }
    if (n < members)
        return;
    if (all[0]->plan->instrs.v[all[0]->op.instr].op == PLAN_COLLECTIVE)
        board_collective(all, members);
    else
        memcpy(all[1]->op.destination, all[0]->op.source, all[0]->op.bytes);
    for (uint32_t k = 0; k < members; k++)
        board.done[all[k]->rank][all[k]->slot] = true;
    for (uint32_t i = 0; i < board.n; i++)
        if (board.posts[i].key != key)
            board.posts[left++] = board.posts[i];
    board.n = left;
}

/* ---- the driver ---------------------------------------------------------- */

static inline Status board_open(const Plan *p, uint32_t rank, void **out)
{
    BoardRank *r = malloc(sizeof *r);

    *r = (BoardRank){p, rank};
    *out = r;
    return STATUS_NONE;
}

static inline Status board_start(void *self, const CommOp *op, uint32_t slot)
{
    const BoardRank *r = self;
    BoardPost post = {.rank = r->rank, .slot = slot, .plan = r->plan,
                      .op = *op};
    uint32_t members;
    uint64_t kind = board_kind(r, &r->plan->instrs.v[op->instr], &members,
                               &post.own);

    pthread_mutex_lock(&board.lock);
    post.key = board_mix(kind, board_count(r->rank, kind));
    board.done[r->rank][slot] = false;
    if (board.n < BOARD_POSTS)
        board.posts[board.n++] = post;
    board_match(post.key, members);
    pthread_mutex_unlock(&board.lock);
    return STATUS_NONE;
}

static inline Status board_test(void *self, uint32_t slot, bool *out_done)
{
    const BoardRank *r = self;

    pthread_mutex_lock(&board.lock);
    *out_done = board.done[r->rank][slot];
    pthread_mutex_unlock(&board.lock);
    return STATUS_NONE;
}

static const CommDriver board_driver = {"board", board_open, free, board_start,
                                        board_test};

#endif
