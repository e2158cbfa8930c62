/* tune.c - `megac tune SPEC --gpus N --hardware H`: the fastest way to share
 * the training of a SPEC out among N GPUs.
 *
 * Model, batch and data stay as they are; what varies are the degrees of
 * parallelism, the micro batch and what memory is saved by.  docs/TUNING.md
 * says how the search goes and what it assumes.
 */
#include "driver/input.h"
#include "driver/tune.h"

#include <inttypes.h>
#include <unistd.h>

static struct {
    int64_t gpus, top, memory;
    const char *hardware, *vary, *output;
    CliList sets;
    bool json, measure, stats;
} args = {.top = 5};

static const CliOption options[] = {
    {"--gpus", 0, "N", CLI_INT, &args.gpus, "how many ranks; must be given"},
    {"--hardware", 0, "H", CLI_TEXT, &args.hardware,
     "the machine: a name under configs/hardware or a file (default: "
     "target.hardware)"},
    {"--top", 0, "K", CLI_INT, &args.top, "how many to show (default: 5)"},
    {"--vary", 0, "LIST", CLI_TEXT, &args.vary,
     "what may differ from the SPEC, of: pp, schedule, vpp, split, tp, sp, cp, "
     "ep, etp, dp, mbs, sharding, recompute, offload (default: all)"},
    {"--memory", 0, "GB", CLI_INT, &args.memory,
     "memory of a GPU in 10^9 bytes (default: the hardware's)"},
    {"--measure", 0, NULL, CLI_FLAG, &args.measure,
     "compile and run the best on this machine, and order them by that"},
    {"--set", 0, "KEY=VALUE", CLI_LIST, &args.sets,
     "change a value of the spec: --set training.global_batch_size=256"},
    {"--json", 0, NULL, CLI_FLAG, &args.json, "print one JSON document"},
    {"--output", 'o', "FILE", CLI_TEXT, &args.output,
     "write the best as a spec that `megac compile` takes"},
    {"--stats", 0, NULL, CLI_FLAG, &args.stats,
     "print how fast the search was, on stderr"},
    CLI_OPTIONS_END,
};

/* ---- what is asked ------------------------------------------------------- */

static CliExit check_usage(void)
{
    if (args.gpus == 0)
        return cli_usage("`megac tune` needs --gpus N");
    if (args.top == 0 || args.top > TUNE_TOP_MAX)
        return cli_usage("--top %" PRId64 ": expected 1 to %d", args.top,
                         TUNE_TOP_MAX);
    return CLI_DONE;
}

static bool is_given(const Spec *s, const char *path)
{
    return spec_loc(s, path).i != s->by_default.i;
}

/* What the search leaves alone has to be there, and a machine to predict for.
 */
static CliExit check_spec(const Input *in)
{
    Loc batch = spec_loc(in->spec, "training.global_batch_size");
    Loc machine = spec_loc(in->spec, "target.hardware");

    if (!is_given(in->spec, "training.global_batch_size"))
        diag_error(in->diag, batch, "MC0008",
                   "training.global_batch_size is required: every candidate "
                   "has the same");
    if (!in->spec->hardware)
        diag_error(in->diag, machine, "MC0503",
                   "target.hardware = local is not described: name a machine "
                   "with --hardware");
    return diag_errors(in->diag) ? CLI_INPUT : CLI_DONE;
}

/* dp stays if the SPEC says what it is; else it is what the others leave. */
static CliExit open_space(const Input *in, Space *out)
{
    bool given = is_given(in->spec, "parallel.dp");
    CliExit code = space_open(out, in->spec, args.gpus, args.vary);

    if (!given)
        out->varies[AXIS_DP] = true;
    return code;
}

/* ---- what is answered ---------------------------------------------------- */

/* How the SPEC itself would do. */
static CliExit compare_own(Search *x, FILE *to)
{
    Candidate own;
    bool legal;
    Status status = search_own(x, &own, &legal);

    if (status)
        return cli_failed(status);
    if (!legal)
        fprintf(to, "the SPEC itself is not for %" PRId64 " GPUs: %s [%s]\n",
                x->space->gpus, diag_first_text(x->diag),
                diag_first_code(x->diag));
    else if (own.exact.code == CLI_FIT)
        fprintf(to, "the SPEC itself does not fit: it needs %s of %s\n",
                report_size(x->arena, (double)own.exact.total),
                report_size(x->arena, (double)x->memory));
    else if (own.exact.code == CLI_DONE)
        fprintf(to, "the SPEC itself takes %.4g s; the first is %.2f times as "
                    "fast\n",
                own.exact.step, own.exact.step / x->found.v[0].exact.step);
    diag_clear(x->diag);
    return CLI_DONE;
}

static CliExit write_best(const Search *x)
{
    Buf text = {0};
    CliExit code;

    spec_print(x->found.v[0].spec, &text);
    code = cli_write(&text, args.output);
    buf_free(&text);
    return code;
}

static void print_stats(const Search *x)
{
    fprintf(stderr,
            "asked and estimated in %.3f s on one thread, %.0f configurations "
            "a second; sketched in %.3f s, planned in %.3f s\n",
            x->seconds_asked, (double)x->count.tried / x->seconds_asked,
            x->seconds_sketched, x->seconds_planned);
}

static CliExit answer(Search *x)
{
    FILE *to = args.json ? stderr : stdout;
    CliExit code;

    if (args.json) {
        json_t *list = report_json(x->arena, x);
        json_dumpf(list, stdout, JSON_COMPACT | JSON_REAL_PRECISION(15));
        putchar('\n');
        json_decref(list);
    } else {
        report_table(x->arena, x, stdout);
        putchar('\n');
    }
    code = compare_own(x, to);
    report_dropped(x, to);
    if (args.stats)
        print_stats(x);
    return code == CLI_DONE && args.output ? write_best(x) : code;
}

/* ---- the command --------------------------------------------------------- */

static CliExit search(const Input *in, const Space *space)
{
    Search x = {.arena = in->arena, .diag = in->diag, .space = space,
                .memory = in->spec->hardware->memory,
                .top = (uint32_t)args.top};
    CliExit code = CLI_DONE;
    Status status;

    if (args.memory)
        x.memory = args.memory * 1000000000;
    status = search_run(&x);
    if (status) {
        code = cli_failed(status);
    } else if (x.found.n == 0) {
        report_dropped(&x, stderr);
        code = none_fits(&x);
    } else {
        code = args.measure ? measure_best(&x) : CLI_DONE;
        if (code == CLI_DONE)
            code = answer(&x);
    }
    search_free(&x);
    return code;
}

static CliExit tune(Input *in)
{
    Space space;
    CliExit code = check_spec(in);

    if (code == CLI_DONE)
        code = open_space(in, &space);
    if (code != CLI_DONE)
        return code;
    diag_print(in->diag, stderr); /* warnings; the search has its own use */
    diag_clear(in->diag);
    return search(in, &space);
}

static CliExit run(const CliList *operands)
{
    CliExit code = check_usage();
    Arena *a = arena_new();
    Input in = {0};

    if (code == CLI_DONE) {
        if (args.hardware)
            vec_push(&args.sets,
                     arena_printf(a, "target.hardware=%s", args.hardware));
        code = input_open(&in, operands->v[0], &args.sets);
        if (code == CLI_DONE)
            code = tune(&in);
        input_close(&in);
    }
    arena_free(a);
    return code;
}

const CliCommand cmd_tune = {
    .name = "tune",
    .operands = "SPEC",
    .help = "find the fastest way to train on so many GPUs",
    .details = "Tries every legal combination of degrees, schedule, micro "
               "batch, sharding and recomputation with the model and the "
               "batch as they are, plans the best and simulates their steps. "
               "What was dropped is counted by reason. Exit code 4: nothing "
               "fits.",
    .options = options,
    .operands_min = 1,
    .operands_max = 1,
    .run = run,
};
