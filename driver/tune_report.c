/* tune_report.c - what the search found, as a table, as JSON and in words. */
#include "driver/tune.h"

#include <inttypes.h>

const char *report_size(Arena *a, double bytes)
{
    static const char *const units[] = {"kB", "MB", "GB", "TB"};
    size_t i = 0;

    for (bytes /= 1e3; bytes >= 1e3 && i + 1 < MC_LEN(units); bytes /= 1e3)
        i++;
    return arena_printf(a, "%.1f %s", bytes, units[i]);
}

/* ---- words --------------------------------------------------------------- */

/* How far the ranks of an axis are apart; the plan's name of it begins with
 * that of its widest part, "dp-cp", "edp". */
static const char *reach_of(const Spec *s, const char *axis)
{
    bool expert = axis[0] == 'e';
    const char *part = expert && axis[1] != 'p' ? axis + 1 : axis;
    Grid grid = spec_grid(s, expert);

    for (int i = 0; i < GRID_AXES; i++)
        if (strncmp(part, grid_names[i], 2) == 0)
            return grid.stride[i] * (grid.size[i] - 1) <
                           s->hardware->links[0].ranks
                       ? ", inside a node"
                       : ", between nodes";
    return "";
}

int report_largest(const Exact *e)
{
    int largest = 0;

    for (int i = 1; i < BYTES_TERMS; i++)
        if (e->bytes[i] > e->bytes[largest])
            largest = i;
    return largest;
}

static void say_share(Buf *out, double seconds, double step, const char *what)
{
    if (seconds > 0.01 * step)
        buf_printf(out, ", %.0f %% %s", 100 * seconds / step, what);
}

/* Shares of the step on the rank that computes longest; what is less than one
 * in a hundred is not worth a word. */
const char *report_why(Arena *a, const Candidate *c, int64_t memory)
{
    const Exact *e = &c->exact;
    int most = report_largest(e);
    const char *words;
    Buf out = {0};

    buf_printf(&out, "%.0f %% compute", 100 * e->compute / e->step);
    say_share(&out, e->exposed, e->step,
              arena_printf(a, "waits for messages (most over %s%s)", e->axis,
                           reach_of(c->spec, e->axis)));
    say_share(&out, e->bubble, e->step,
              c->spec->parallel.pp > 1 ? "bubble" : "waits for others");
    say_share(&out, e->host, e->step, "waits for host memory");
    buf_printf(&out, "; %s of %s, %.0f %% of it %s",
               report_size(a, (double)e->total),
               report_size(a, (double)memory),
               100.0 * (double)e->bytes[most] / (double)e->total,
               bytes_names[most]);
    words = arena_strdup(a, buf_str(&out));
    buf_free(&out);
    return words;
}

static const char *recompute_word(Arena *a, const Spec *s)
{
    const SpecChoiceList *list = &s->training.recompute.modules;
    const char *out = "";

    if (s->training.recompute.granularity == RECOMPUTE_NONE)
        return "none";
    if (s->training.recompute.granularity == RECOMPUTE_FULL)
        return "full";
    for (uint32_t i = 0; i < list->n; i++)
        out = arena_printf(a, "%s%s%s", out, i ? "+" : "",
                           spec_module_word((SpecModule)list->v[i]));
    return out;
}

const char *report_layout(Arena *a, const Spec *s)
{
    return arena_printf(
        a, "tp %" PRId64 "%s, cp %" PRId64 ", pp %" PRId64 ", ep %" PRId64
        ", micro batch %" PRId64 ", sharding %s, recompute %s%s",
        s->parallel.tp, s->parallel.sp ? " with sp" : "", s->parallel.cp,
        s->parallel.pp, s->parallel.ep, s->training.micro_batch_size,
        spec_text(a, s, "parallel.sharding"), recompute_word(a, s),
        s->training.offload.optimizer > 0 ? ", optimizer offloaded" : "");
}

/* ---- the table ----------------------------------------------------------- */

static void table_head(bool measured, FILE *to)
{
    fprintf(to, "%4s %10s%s %12s %6s %8s  %3s %2s %3s %3s %3s %3s %3s %4s %3s  "
                "%-11s %-18s %-15s %s\n",
            "rank", "step", measured ? "   measured" : "", "tokens/s/GPU",
            "MFU", "memory", "tp", "sp", "cp", "pp", "vpp", "ep", "etp", "dp",
            "mbs", "schedule", "sharding", "recompute", "offload");
}

static void table_row(Arena *a, uint32_t rank, const Candidate *c,
                      bool measured, FILE *to)
{
    const Spec *s = c->spec;

    fprintf(to, "%4u %8.4g s", rank, c->exact.step);
    if (measured && c->measured > 0)
        fprintf(to, " %8.4g s", c->measured);
    else if (measured)
        fprintf(to, " %10s", "-");
    fprintf(to, " %12.1f %4.1f %% %8s", c->exact.tokens_per_s_per_gpu,
            100 * c->exact.mfu, report_size(a, (double)c->exact.total));
    fprintf(to, "  %3" PRId64 " %2s %3" PRId64 " %3" PRId64 " %3" PRId64
                " %3" PRId64 " %3" PRId64 " %4" PRId64 " %3" PRId64,
            s->parallel.tp, s->parallel.sp ? "y" : "-", s->parallel.cp,
            s->parallel.pp, s->parallel.vpp, s->parallel.ep,
            s->parallel.etp ? s->parallel.etp : s->parallel.tp,
            s->derived.dense_dp, s->training.micro_batch_size);
    fprintf(to, "  %-11s %-18s %-15s %s\n",
            s->parallel.pp > 1 ? spec_text(a, s, "parallel.schedule") : "-",
            spec_text(a, s, "parallel.sharding"), recompute_word(a, s),
            s->training.offload.optimizer > 0 ? "optimizer" : "-");
}

static uint32_t shown(const Search *x)
{
    return MC_MIN(x->top, x->found.n);
}

void report_table(Arena *a, const Search *x, FILE *to)
{
    bool measured = false;

    for (uint32_t i = 0; i < shown(x); i++)
        measured |= x->found.v[i].measured > 0;
    table_head(measured, to);
    for (uint32_t i = 0; i < shown(x); i++)
        table_row(a, i + 1, &x->found.v[i], measured, to);
    fputc('\n', to);
    for (uint32_t i = 0; i < shown(x); i++)
        fprintf(to, "%4u %s\n", i + 1,
                report_why(a, &x->found.v[i], x->memory));
}

void report_dropped(const Search *x, FILE *to)
{
    fprintf(to, "%" PRIu64 " configurations, %" PRIu64 " of them legal, %u "
                "planned, %u fit\n",
            x->count.tried, x->count.legal, x->planned, x->found.n);
    if (x->too_large)
        fprintf(to, "%10" PRIu64 "  memory  parameters, gradients, optimizer "
                    "and activations alone need more than %s\n",
                x->too_large, report_size(x->arena, (double)x->memory));
    if (x->too_long)
        fprintf(to, "%10" PRIu64 "  size    so many chunks and microbatches "
                    "take long to plan\n", x->too_long);
    for (uint32_t i = 0; i < x->count.reasons.n; i++) {
        const Reason *r = &x->count.reasons.v[i];
        fprintf(to, "%10" PRIu64 "  %-6s  %s%s\n", r->n, r->code,
                strncmp(r->code, "MC", 2) ? "" : "such as: ", r->words);
    }
}

/* ---- JSON ---------------------------------------------------------------- */

static json_t *spec_object(const Spec *s)
{
    Buf text = {0};
    json_t *object;

    spec_json(s, &text);
    object = json_loads(buf_str(&text), 0, NULL);
    buf_free(&text);
    return object;
}

json_t *report_json(Arena *a, const Search *x)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < shown(x); i++) {
        const Candidate *c = &x->found.v[i];
        json_t *row = json_pack(
            "{si so sf sf sf sI ss}", "rank", (int)i + 1, "spec",
            spec_object(c->spec), "step_time_s", c->exact.step,
            "tokens_per_s_per_gpu", c->exact.tokens_per_s_per_gpu, "mfu",
            c->exact.mfu, "memory_bytes", (json_int_t)c->exact.total, "why",
            report_why(a, c, x->memory));
        if (c->measured > 0)
            json_object_set_new(row, "measured_step_time_s",
                                json_real(c->measured));
        json_array_append_new(list, row);
    }
    return list;
}
