/* schedule.c - the order of forwards and backwards on every pipeline rank.
 *
 * A schedule is a list of actions per rank; each kind is one generator behind
 * schedule_make, and every list goes through one simulator (schedule_sim.c).
 * Which virtual stage a rank's chunk is comes from the stage table, so that
 * generators only speak of chunks.
 */
#include "passes/schedule_priv.h"

/* GPipe (Huang et al. 2019): all forwards, then all backwards. */
static void gpipe(Schedule *s, uint32_t rank)
{
    for (uint32_t i = 0; i < s->microbatches; i++)
        schedule_act(s, rank, ACTION_F, 0, i);
    for (uint32_t i = 0; i < s->microbatches; i++)
        schedule_act(s, rank, ACTION_B, 0, i);
}

/* 1F1B (PipeDream-Flush, Narayanan et al. 2021): rank r runs min(pp-r-1, m)
 * forwards ahead, then one forward and one backward in turn. */
static void one_f_one_b(Schedule *s, uint32_t rank)
{
    uint32_t m = s->microbatches;
    uint32_t ahead = MC_MIN(s->pp - rank - 1, m);

    for (uint32_t i = 0; i < ahead; i++)
        schedule_act(s, rank, ACTION_F, 0, i);
    for (uint32_t i = ahead; i < m; i++) {
        schedule_act(s, rank, ACTION_F, 0, i);
        schedule_act(s, rank, ACTION_B, 0, i - ahead);
    }
    for (uint32_t i = m - ahead; i < m; i++)
        schedule_act(s, rank, ACTION_B, 0, i);
}

/* ---- interleaved --------------------------------------------------------- */

/* Microbatches go in groups, the last of which may be shorter; a group passes
 * all chunks before the next one starts.  Step `i` of that order. */
static void interleaved_act(Schedule *s, uint32_t rank, ActionKind kind,
                            uint32_t i)
{
    uint32_t first = i / (s->group * s->chunks) * s->group;
    uint32_t size = MC_MIN(s->group, s->microbatches - first);
    uint32_t within = i - first * s->chunks;
    uint32_t chunk = within / size;

    if (kind == ACTION_B)
        chunk = s->chunks - 1 - chunk;
    schedule_act(s, rank, kind, chunk, first + within % size);
}

/* Interleaved 1F1B (Narayanan et al. 2021, and Megatron-LM's warm-up): 1F1B
 * over the steps of all chunks, with 2(pp-r-1) + (chunks-1) group ahead. */
static void interleaved(Schedule *s, uint32_t rank)
{
    uint32_t total = s->microbatches * s->chunks;
    uint32_t ahead = MC_MIN(2 * (s->pp - rank - 1) + (s->chunks - 1) * s->group,
                            total);

    for (uint32_t i = 0; i < ahead; i++)
        interleaved_act(s, rank, ACTION_F, i);
    for (uint32_t i = ahead; i < total; i++) {
        interleaved_act(s, rank, ACTION_F, i);
        interleaved_act(s, rank, ACTION_B, i - ahead);
    }
    for (uint32_t i = total - ahead; i < total; i++)
        interleaved_act(s, rank, ACTION_B, i);
}

/* ---- a file -------------------------------------------------------------- */

static uint32_t chunk_of(const Schedule *s, uint32_t rank, uint32_t stage)
{
    uint32_t chunk = 0;

    while (schedule_stage(s, rank, chunk) != stage)
        chunk++;
    return chunk;
}

static bool file_splits(const ScheduleFile *f, uint32_t pp)
{
    for (uint32_t r = 0; r < pp; r++)
        for (uint32_t i = 0; i < f->rows[r].n; i++)
            if (f->rows[r].v[i].kind == 'W')
                return true;
    return false;
}

/* Once some backward is in two parts, a whole one is both in turn. */
static void schedule_follow(Schedule *s, uint32_t rank)
{
    const ScheduleRow *row = &s->file->rows[rank];
    bool splits = file_splits(s->file, s->pp);

    for (uint32_t i = 0; i < row->n; i++) {
        const ScheduleCell *cell = &row->v[i];
        uint32_t chunk = chunk_of(s, rank, cell->stage), mb = cell->microbatch;
        if (cell->kind == 'F') {
            schedule_act(s, rank, ACTION_F, chunk, mb);
            vec_last(&s->ranks[rank]).beside = cell->beside;
        }
        if (cell->kind == 'B' || cell->kind == 'I')
            schedule_act(s, rank, ACTION_B, chunk, mb);
        if (cell->kind == 'W' || (cell->kind == 'B' && splits))
            schedule_act(s, rank, ACTION_W, chunk, mb);
    }
}

/* ---- all of them --------------------------------------------------------- */

static const struct {
    SpecSchedule kind;
    ScheduleGenerator run;
} generators[] = {
    {SCHED_GPIPE, gpipe},
    {SCHED_1F1B, one_f_one_b},
    {SCHED_INTERLEAVED, interleaved},
    {SCHED_ZB_H1, schedule_zb_h1},
    {SCHED_ZB_V, schedule_zb_v},
    {SCHED_DUALPIPE_V, schedule_dualpipe_v},
    {SCHED_CSV, schedule_follow},
};

static void number_stages(Schedule *s, const Spec *spec)
{
    StageTable table = stage_table(spec);

    for (uint32_t i = 0; i < table.n; i++) {
        const Stage *stage = &table.v[i];
        s->stage[(uint32_t)stage->pp * s->chunks + (uint32_t)stage->chunk] = i;
    }
}

Schedule *schedule_make(Arena *a, const Spec *spec)
{
    Schedule *s = arena_new_of(a, Schedule);

    s->pp = (uint32_t)spec->parallel.pp;
    s->chunks = (uint32_t)spec->parallel.vpp;
    s->microbatches = (uint32_t)spec->derived.microbatches;
    s->group = (uint32_t)spec->parallel.microbatch_group;
    s->file = spec->schedule_file;
    s->ranks = arena_alloc(a, s->pp * sizeof *s->ranks);
    s->stage = arena_array(a, uint32_t, s->pp * s->chunks);
    number_stages(s, spec);
    for (size_t i = 0; i < MC_LEN(generators); i++)
        for (uint32_t r = 0;
             generators[i].kind == spec->parallel.schedule && r < s->pp; r++)
            generators[i].run(s, r);
    return s;
}

void schedule_keep_forward(Schedule *s)
{
    s->forward = true;
    for (uint32_t r = 0; r < s->pp; r++) {
        uint32_t kept = 0;
        for (uint32_t i = 0; i < s->ranks[r].n; i++)
            if (s->ranks[r].v[i].kind == ACTION_F)
                s->ranks[r].v[kept++] = s->ranks[r].v[i];
        s->ranks[r].n = kept;
    }
}

void schedule_free(Schedule *s)
{
    for (uint32_t i = 0; s && i < s->pp; i++)
        vec_free(&s->ranks[i]);
}
