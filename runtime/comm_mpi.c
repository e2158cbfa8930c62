/* comm_mpi.c - communication by Open MPI.
 *
 * Every pair (group, stream) that a plan uses gets a communicator of its own,
 * so that operations of different streams never wait for each other.  They are
 * made in an order that all ranks agree on (by stream name, then by members),
 * which is why two ranks never make two of them in opposite orders.  Messages
 * share one communicator and carry their channel as the tag.  All operations
 * are nonblocking; MPI moves them on inside MPI_Test.
 */
#include "runtime/comm_mpi_priv.h"

#include "base/half.h"

#include <stdlib.h>

/* A group on a stream.  MPI_COMM_NULL if this rank is its only member. */
typedef struct {
    const char *stream;
    uint32_t *ranks, n, own;
    MPI_Comm comm;
} Line;

/* What remains to be done when an operation is finished. */
typedef struct {
    MPI_Request request;
    MPI_Request second; /* the other half of a shift */
    void *to;
    const void *from;
    size_t bytes;
} Slot;

typedef struct {
    const Plan *plan;
    uint32_t rank;
    MPI_Comm messages;
    MPI_Op bf16_sum, bf16_max, f16_sum, f16_max;
    Line *lines;
    uint32_t nlines;
    uint32_t *line_of; /* by instruction: its line, for collectives */
    Slot *slots;
    char *scratch; /* one part per stream: results that overlap their source */
    size_t scratch_bytes;
} Mpi;

/* ---- sums of 16 bits ----------------------------------------------------- */

typedef float Widen(uint16_t x);
typedef uint16_t Narrow(float value);

/* The compiler makes one loop for each type of these two. */
static inline void add(const uint16_t *in, uint16_t *inout, int n, Widen *widen,
                       Narrow *narrow)
{
    for (int i = 0; i < n; i++)
        inout[i] = narrow(widen(in[i]) + widen(inout[i]));
}

static inline void larger(const uint16_t *in, uint16_t *inout, int n,
                          Widen *widen)
{
    for (int i = 0; i < n; i++)
        inout[i] = widen(in[i]) > widen(inout[i]) ? in[i] : inout[i];
}

static void bf16_add(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)type;
    add(in, inout, *n, bf16_widen, bf16_narrow);
}

static void bf16_larger(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)type;
    larger(in, inout, *n, bf16_widen);
}

static void f16_add(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)type;
    add(in, inout, *n, half_widen, half_narrow);
}

static void f16_larger(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)type;
    larger(in, inout, *n, half_widen);
}

/* ---- types --------------------------------------------------------------- */

static MPI_Datatype mpi_type(uint32_t dtype)
{
    switch (dtype) {
    case PLAN_F32:
        return MPI_FLOAT;
    case PLAN_BF16:
    case PLAN_F16:
        return MPI_UINT16_T;
    case PLAN_I32:
        return MPI_INT32_T;
    default:
        return MPI_UINT8_T;
    }
}

static MPI_Op mpi_op(const Mpi *m, const PlanCollective *c)
{
    if (c->dtype == PLAN_BF16)
        return c->reduce == PLAN_MAX ? m->bf16_max : m->bf16_sum;
    if (c->dtype == PLAN_F16)
        return c->reduce == PLAN_MAX ? m->f16_max : m->f16_sum;
    return c->reduce == PLAN_MAX ? MPI_MAX : MPI_SUM;
}

/* ---- communicators ------------------------------------------------------- */

static int line_compare(const void *x, const void *y)
{
    const Line *a = x, *b = y;
    int order = strcmp(a->stream, b->stream);

    for (uint32_t i = 0; !order && i < a->n && i < b->n; i++)
        order = (a->ranks[i] > b->ranks[i]) - (a->ranks[i] < b->ranks[i]);
    return order ? order : (a->n > b->n) - (a->n < b->n);
}

static Status find_line(Mpi *m, uint32_t group, uint16_t stream, Line *out)
{
    const Plan *p = m->plan;
    uint32_t n = plan_group_ranks(p, group, m->rank, NULL, 0, &out->own);

    out->stream = plan_text(p, p->streams.v[stream].name);
    out->n = n;
    out->comm = MPI_COMM_NULL;
    if (out->own == UINT32_MAX)
        return status_make(STATUS_INPUT,
                           "rank %u communicates in the group "
                           "%s, of which it is no member",
                           m->rank, plan_text(p, p->groups.v[group].name));
    out->ranks = malloc(n * sizeof *out->ranks);
    if (!out->ranks)
        return status_make(STATUS_SYSTEM, "no memory for a group");
    plan_group_ranks(p, group, m->rank, out->ranks, n, &out->own);
    return STATUS_NONE;
}

/* Adds the line of a collective, unless it is known. */
static Status add_line(Mpi *m, const PlanInstr *in)
{
    Line line = {0};
    Status s = find_line(m, m->plan->collectives.v[in->index].group, in->stream,
                         &line);

    for (uint32_t i = 0; !s && i < m->nlines; i++)
        if (line_compare(&m->lines[i], &line) == 0) {
            free(line.ranks);
            return STATUS_NONE;
        }
    if (!s)
        m->lines[m->nlines++] = line;
    return s;
}

static Status note_line(Mpi *m, uint32_t instr)
{
    const PlanInstr *in = &m->plan->instrs.v[instr];
    Line line = {0};

    STATUS_TRY(find_line(m, m->plan->collectives.v[in->index].group, in->stream,
                         &line));
    Line *found =
        bsearch(&line, m->lines, m->nlines, sizeof line, line_compare);
    free(line.ranks);
    m->line_of[instr] = (uint32_t)(found - m->lines);
    return STATUS_NONE;
}

static Status make_comm(Line *line)
{
    MPI_Group world, members;
    int code;

    if (line->n == 1)
        return STATUS_NONE;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    code =
        MPI_Group_incl(world, (int)line->n, (const int *)line->ranks, &members);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_create_group(MPI_COMM_WORLD, members, 0, &line->comm);
    if (code == MPI_SUCCESS) {
        MPI_Comm_set_errhandler(line->comm, MPI_ERRORS_RETURN);
        MPI_Group_free(&members);
    }
    MPI_Group_free(&world);
    return mpi_check(code, "making a communicator");
}

static Status make_lines(Mpi *m)
{
    const Plan *p = m->plan;

    for (uint32_t i = 0; i < p->instrs.n; i++)
        if (p->instrs.v[i].op == PLAN_COLLECTIVE)
            STATUS_TRY(add_line(m, &p->instrs.v[i]));
    qsort(m->lines, m->nlines, sizeof *m->lines, line_compare);
    for (uint32_t i = 0; i < m->nlines; i++)
        STATUS_TRY(make_comm(&m->lines[i]));
    for (uint32_t i = 0; i < p->instrs.n; i++)
        if (p->instrs.v[i].op == PLAN_COLLECTIVE)
            STATUS_TRY(note_line(m, i));
    return STATUS_NONE;
}

/* ---- opening ------------------------------------------------------------- */

static size_t largest_part(const Plan *p)
{
    size_t most = 0;

    for (uint32_t i = 0; i < p->collectives.n; i++) {
        const PlanCollective *c = &p->collectives.v[i];
        if (c->kind == PLAN_REDUCE_SCATTER)
            most = MC_MAX(most, (size_t)c->count * plan_dtype_bytes(c->dtype));
    }
    return most;
}

static Status allocate(Mpi *m)
{
    const Plan *p = m->plan;
    uint32_t slots = p->streams.n * COMM_SLOTS;

    m->lines = calloc((size_t)p->instrs.n + 1, sizeof *m->lines);
    m->line_of = calloc((size_t)p->instrs.n + 1, sizeof *m->line_of);
    m->slots = calloc(slots, sizeof *m->slots);
    m->scratch_bytes = largest_part(p);
    m->scratch = malloc(m->scratch_bytes * p->streams.n + 1);
    if (!m->lines || !m->line_of || !m->slots || !m->scratch)
        return status_make(STATUS_SYSTEM, "no memory for communication");
    for (uint32_t i = 0; i < slots; i++)
        m->slots[i].request = MPI_REQUEST_NULL;
    return STATUS_NONE;
}

static void mpi_close(void *self)
{
    Mpi *m = self;

    for (uint32_t i = 0; m->lines && i < m->nlines; i++) {
        if (m->lines[i].comm != MPI_COMM_NULL)
            MPI_Comm_free(&m->lines[i].comm);
        free(m->lines[i].ranks);
    }
    if (m->messages != MPI_COMM_NULL)
        MPI_Comm_free(&m->messages);
    MPI_Op_free(&m->bf16_sum);
    MPI_Op_free(&m->bf16_max);
    MPI_Op_free(&m->f16_sum);
    MPI_Op_free(&m->f16_max);
    free(m->lines);
    free(m->line_of);
    free(m->slots);
    free(m->scratch);
    free(m);
}

static Status open_parts(Mpi *m)
{
    STATUS_TRY(allocate(m));
    STATUS_TRY(mpi_check(MPI_Comm_dup(MPI_COMM_WORLD, &m->messages),
                         "making a communicator"));
    return make_lines(m);
}

static Status mpi_open(const Plan *p, uint32_t rank, void **out_self)
{
    Mpi *m = calloc(1, sizeof *m);
    Status s;

    if (!m)
        return status_make(STATUS_SYSTEM, "no memory for communication");
    m->plan = p;
    m->rank = rank;
    m->messages = MPI_COMM_NULL;
    MPI_Op_create(bf16_add, 1, &m->bf16_sum);
    MPI_Op_create(bf16_larger, 1, &m->bf16_max);
    MPI_Op_create(f16_add, 1, &m->f16_sum);
    MPI_Op_create(f16_larger, 1, &m->f16_max);
    s = open_parts(m);
    if (s)
        mpi_close(m);
    else
        *out_self = m;
    return s;
}

/* ---- operations ---------------------------------------------------------- */

static Status start_message(Mpi *m, const CommOp *op, const PlanInstr *in,
                            MPI_Request *request)
{
    int peer = (int)plan_peer_rank(m->plan, in->index, m->rank);
    int bytes = (int)op->bytes, tag = (int)in->aux;

    if (in->op == PLAN_SEND)
        return mpi_check(MPI_Isend(op->source, bytes, MPI_BYTE, peer, tag,
                                   m->messages, request),
                         "sending");
    return mpi_check(MPI_Irecv(op->destination, bytes, MPI_BYTE, peer, tag,
                               m->messages, request),
                     "receiving");
}

/* MPI forbids a result that overlaps its source elsewhere than at its start:
 * such a result goes to the stream's scratch first. */
static void *result_place(Mpi *m, const CommOp *op, uint16_t stream,
                          size_t source_bytes, size_t part, Slot *slot)
{
    const char *from = op->source, *to = op->destination;

    if (to + part <= from || from + source_bytes <= to)
        return op->destination;
    slot->from = m->scratch + stream * m->scratch_bytes;
    slot->to = op->destination;
    slot->bytes = part;
    return m->scratch + stream * m->scratch_bytes;
}

static int start_reduce_scatter(Mpi *m, const CommOp *op, const Line *line,
                                Slot *slot)
{
    const PlanInstr *in = &m->plan->instrs.v[op->instr];
    const PlanCollective *c = &m->plan->collectives.v[in->index];
    size_t part = (size_t)c->count * plan_dtype_bytes(c->dtype);
    void *to = result_place(m, op, in->stream, part * line->n, part, slot);

    return MPI_Ireduce_scatter_block(op->source, to, (int)c->count,
                                     mpi_type(c->dtype), mpi_op(m, c),
                                     line->comm, &slot->request);
}

static int start_all_gather(const CommOp *op, const PlanCollective *c,
                            const Line *line, MPI_Request *request)
{
    MPI_Datatype type = mpi_type(c->dtype);
    size_t part = (size_t)c->count * plan_dtype_bytes(c->dtype);
    bool in_place = op->source == (char *)op->destination + line->own * part;

    return MPI_Iallgather(in_place ? MPI_IN_PLACE : op->source, (int)c->count,
                          type, op->destination, (int)c->count, type,
                          line->comm, request);
}

static int start_broadcast(const CommOp *op, const PlanCollective *c,
                           const Line *line, MPI_Request *request)
{
    if (line->own == c->root && op->source != op->destination)
        memcpy(op->destination, op->source,
               (size_t)c->count * plan_dtype_bytes(c->dtype));
    return MPI_Ibcast(op->destination, (int)c->count, mpi_type(c->dtype),
                      (int)c->root, line->comm, request);
}

/* To the next member, from the one before; never in place. */
static int start_shift(const CommOp *op, const PlanCollective *c,
                       const Line *line, Slot *slot)
{
    MPI_Datatype type = mpi_type(c->dtype);
    int next = (int)((line->own + 1) % line->n);
    int before = (int)((line->own + line->n - 1) % line->n);
    int code = MPI_Irecv(op->destination, (int)c->count, type, before, 0,
                         line->comm, &slot->second);

    if (code != MPI_SUCCESS)
        return code;
    return MPI_Isend(op->source, (int)c->count, type, next, 0, line->comm,
                     &slot->request);
}

static int start_collective(Mpi *m, const CommOp *op, const PlanCollective *c,
                            const Line *line, Slot *slot)
{
    MPI_Datatype type = mpi_type(c->dtype);
    const void *from =
        op->source == op->destination ? MPI_IN_PLACE : op->source;

    switch ((PlanCollectiveKind)c->kind) {
    case PLAN_ALL_REDUCE:
        return MPI_Iallreduce(from, op->destination, (int)c->count, type,
                              mpi_op(m, c), line->comm, &slot->request);
    case PLAN_ALL_GATHER:
        return start_all_gather(op, c, line, &slot->request);
    case PLAN_REDUCE_SCATTER:
        return start_reduce_scatter(m, op, line, slot);
    case PLAN_ALL_TO_ALL:
        return MPI_Ialltoall(from, (int)c->count, type, op->destination,
                             (int)c->count, type, line->comm, &slot->request);
    case PLAN_BROADCAST:
        return start_broadcast(op, c, line, &slot->request);
    case PLAN_SHIFT:
        return start_shift(op, c, line, slot);
    case PLAN_COLLECTIVES:
        break;
    }
    return MPI_ERR_OTHER;
}

static void copy_alone(const CommOp *op, const PlanCollective *c)
{
    if (op->source != op->destination)
        memmove(op->destination, op->source,
                (size_t)c->count * plan_dtype_bytes(c->dtype));
}

static Status mpi_start(void *self, const CommOp *op, uint32_t index)
{
    Mpi *m = self;
    const PlanInstr *in = &m->plan->instrs.v[op->instr];
    Slot *slot = &m->slots[index];

    *slot = (Slot){.request = MPI_REQUEST_NULL, .second = MPI_REQUEST_NULL};
    if (in->op != PLAN_COLLECTIVE)
        return start_message(m, op, in, &slot->request);
    const PlanCollective *c = &m->plan->collectives.v[in->index];
    const Line *line = &m->lines[m->line_of[op->instr]];
    if (line->n > 1)
        return mpi_check(start_collective(m, op, c, line, slot),
                         "a collective operation");
    copy_alone(op, c);
    return STATUS_NONE;
}

static Status mpi_test(void *self, uint32_t index, bool *out_done)
{
    Slot *slot = &((Mpi *)self)->slots[index];
    int flag = 0;

    STATUS_TRY(mpi_check(MPI_Test(&slot->request, &flag, MPI_STATUS_IGNORE),
                         "communication"));
    if (flag)
        STATUS_TRY(mpi_check(MPI_Test(&slot->second, &flag, MPI_STATUS_IGNORE),
                             "communication"));
    *out_done = flag;
    if (flag && slot->bytes) {
        memcpy(slot->to, slot->from, slot->bytes);
        slot->bytes = 0;
    }
    return STATUS_NONE;
}

const CommDriver comm_mpi = {"mpi", mpi_open, mpi_close, mpi_start, mpi_test};
