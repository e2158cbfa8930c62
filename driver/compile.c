/* compile.c - `megac compile SPEC`: from YAML to a folder of executables.
 *
 * Spec → module → passes → addresses → plans, which are verified together →
 * kernels → the output folder.  Nothing is written unless all of it succeeds.
 */
#include "driver/compile.h"
#include "driver/predict.h"
#include "driver/program.h"

#include "codegen/verify_plan.h"
#include "passes/check.h"

#include <stdlib.h>
#include <unistd.h>

static struct {
    const char *output, *target, *dump_ir, *stop_after;
    CliList sets, flags;
    bool verify_each, plan_only, stats;
} args;

static const CliOption options[] = {
    {"--output", 'o', "DIR", CLI_TEXT, &args.output,
     "the folder to write (default: out)"},
    {"--set", 0, "KEY=VALUE", CLI_LIST, &args.sets,
     "change a value of the spec: --set parallel.tp=4"},
    {"--target", 0, "cpu|cuda[:ARCH]", CLI_TEXT, &args.target,
     "short for target.backend and target.arch"},
    {"--dump-ir", 0, "PASS", CLI_MAYBE, &args.dump_ir,
     "print the module after PASS, or after every pass (all)"},
    {"--stop-after", 0, "PASS", CLI_TEXT, &args.stop_after,
     "run no further pass, and write nothing"},
    {"--verify-each", 0, NULL, CLI_FLAG, &args.verify_each,
     "execute a shrunken copy before and after each pass, and compare"},
    {"--plan-only", 0, NULL, CLI_FLAG, &args.plan_only,
     "plan and verify, but compile no kernel and write nothing"},
    {"--stats", 0, NULL, CLI_FLAG, &args.stats,
     "print where the time went and what the plans hold"},
    CLI_OPTIONS_END,
};

/* ---- settings ------------------------------------------------------------ */

/* --target is shorthand for two settings. */
static CliExit add_target(Arena *a)
{
    const char *colon = args.target ? strchr(args.target, ':') : NULL;
    size_t n = colon ? (size_t)(colon - args.target)
                     : strlen(args.target ? args.target : "");

    if (!args.target)
        return CLI_DONE;
    if (n == 0 || (colon && !colon[1]))
        return cli_usage("--target %s: expected cpu or cuda[:ARCH]",
                         args.target);
    vec_push(&args.sets, arena_printf(a, "target.backend=%.*s", (int)n,
                                      args.target));
    if (colon)
        vec_push(&args.sets, arena_printf(a, "target.arch=%s", colon + 1));
    return CLI_DONE;
}

static CliExit check_pass_names(void)
{
    const char *dump = args.dump_ir && *args.dump_ir ? args.dump_ir : "all";

    if (strcmp(dump, "all") != 0 && !pass_find(dump))
        return cli_usage("--dump-ir: there is no pass `%s`", dump);
    if (args.stop_after && !pass_find(args.stop_after))
        return cli_usage("--stop-after: there is no pass `%s`",
                         args.stop_after);
    return CLI_DONE;
}

/* ---- verification -------------------------------------------------------- */

CliExit compile_verify_passes(const Input *in)
{
    PassOptions each = {.verify_each = true};
    Input small = *in;
    Program p;
    CliExit code;

    small.spec = spec_shrink(in->arena, in->spec);
    code = program_build(&small, &each, &p);
    program_free(&p);
    return code;
}

/* The seconds that a step will take, or 0 where nothing is known. */
static CliExit check_plans(const Input *in, const Module *m,
                           const EmitOutput *out, PlanVerifyStats *stats,
                           double *predicted)
{
    PlanSet set = {0};
    CliExit code = plans_make(in->arena, m, out, &set);

    if (code == CLI_DONE && !plan_verify(in->diag, set.classes, set.n, stats))
        code = CLI_BUG;
    if (code == CLI_DONE && in->spec->hardware && predicted)
        *predicted = predict_plans(in->arena, in->spec, &set).sim.step;
    plans_free(&set);
    return code;
}

CliExit compile_verify_plans(const Input *in, const Module *m,
                             const EmitOutput *out, PlanVerifyStats *stats)
{
    return check_plans(in, m, out, stats, NULL);
}

/* ---- memory -------------------------------------------------------------- */

CliExit compile_check_memory(const Input *in, const Program *p)
{
    const Hardware *named = in->spec->hardware;
    int64_t capacity =
        named ? named->memory
              : (int64_t)sysconf(_SC_PHYS_PAGES) *
                    (int64_t)sysconf(_SC_PAGESIZE);
    Loc where = spec_loc(in->spec, "model.hidden_size");

    if ((!named && in->spec->target.backend != BACKEND_CPU) ||
        memplan_fits(p->m, p->mem, capacity, where))
        return CLI_DONE;
    if (named)
        diag_note(in->diag, spec_loc(in->spec, "target.hardware"),
                  "%s has that much for a rank", named->name);
    return CLI_FIT;
}

/* ---- kernels and files --------------------------------------------------- */

/* megac-rank lies beside this program. */
static const char *rank_program(Arena *a)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash;

    if (n < 0)
        return "megac-rank";
    self[n] = '\0';
    slash = strrchr(self, '/');
    *slash = '\0';
    return arena_printf(a, "%s/megac-rank", self);
}

static bool build_kernels(const Input *in, const EmitOutput *out, Buf *objects)
{
    uint32_t threads = (uint32_t)MC_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L);
    Loc where = spec_loc(in->spec, "target.arch");
    const char *arch = in->spec->target.arch;

    if (in->spec->target.backend == BACKEND_CPU)
        return codegen_cpu_build(out->units, out->nunits, arch, threads,
                                 in->diag, where, objects);
    if (strcmp(arch, "native") == 0) {
        diag_error(in->diag, where, "MC0502",
                   "arch = native, but there is no GPU to ask what it is");
        diag_help(in->diag, "name one: --target cuda:sm_90a");
        return false;
    }
    return codegen_cuda_build(out->units, out->nunits, arch, threads, in->diag,
                              where, objects);
}

static CliExit write_package(const Input *in, const EmitInput *input,
                             const EmitOutput *out, double predicted)
{
    Buf *objects = arena_array(in->arena, Buf, MC_MAX(out->nunits, 1));
    const char *dir = args.output ? args.output : "out";
    bool built = build_kernels(in, out, objects);
    Status status = built ? package_write(dir, input, out, objects,
                                          rank_program(in->arena), predicted)
                          : STATUS_NONE;

    for (uint32_t i = 0; i < out->nunits; i++)
        buf_free(&objects[i]);
    return !built ? CLI_INPUT : status ? cli_failed(status) : CLI_DONE;
}

/* ---- the command --------------------------------------------------------- */

static void print_stats(const Program *p, const double *seconds,
                        const PlanVerifyStats *v, double total)
{
    for (uint32_t i = 0; i < passes_count; i++)
        fprintf(stderr, "%-12s %8.1f ms\n", passes[i].name, 1e3 * seconds[i]);
    fprintf(stderr, "%-12s %8.1f ms\n", "all", 1e3 * total);
    fprintf(stderr,
            "%u ranks in %u classes; %llu instructions, %llu collectives, "
            "%llu messages in a step of one rank of each\n",
            p->m->mesh.world, p->mem->npp, (unsigned long long)v->instrs,
            (unsigned long long)v->collectives,
            (unsigned long long)v->messages);
    for (uint32_t i = 0; i < p->mem->npp; i++)
        fprintf(stderr, "stage %u: arena %lld bytes, bound %lld\n", i,
                (long long)p->mem->report[i].total,
                (long long)p->mem->report[i].lower_bound);
}

static CliExit finish(const Input *in, const Program *p, const double *seconds,
                      double start)
{
    EmitInput input = {p->m, p->mem, in->spec};
    EmitOutput out = {0};
    PlanVerifyStats stats = {0};
    double predicted = 0;
    CliExit code = compile_check_memory(in, p);

    if (code == CLI_DONE && !emit_plans(in->arena, &input, &out))
        code = CLI_INPUT;
    if (code == CLI_DONE)
        code = check_plans(in, p->m, &out, &stats, &predicted);
    if (code == CLI_DONE && !args.plan_only)
        code = write_package(in, &input, &out, predicted);
    if (code == CLI_DONE && args.stats)
        print_stats(p, seconds, &stats, mc_seconds() - start);
    if (code == CLI_DONE && args.stats && predicted > 0)
        fprintf(stderr, "predicted step %.6f s on %s\n", predicted,
                in->spec->hardware->name);
    emit_free(&out);
    return code;
}

static CliExit compile(const Input *in)
{
    double *seconds = arena_array(in->arena, double, passes_count);
    double start = mc_seconds();
    PassOptions o = {.stop_after = args.stop_after, .dump_to = stdout,
                     .seconds = seconds};
    Program p = {0};
    CliExit code = CLI_DONE;

    if (args.dump_ir)
        o.dump_after = *args.dump_ir ? args.dump_ir : "all";
    if (args.verify_each)
        code = compile_verify_passes(in);
    if (code == CLI_DONE)
        code = program_build(in, &o, &p);
    if (code == CLI_DONE && p.mem && !args.stop_after)
        code = finish(in, &p, seconds, start);
    program_free(&p);
    return code;
}

static CliExit run(const CliList *operands)
{
    Arena *a = arena_new();
    CliExit code = add_target(a);
    Input in = {0};

    if (code == CLI_DONE)
        code = check_pass_names();
    if (code == CLI_DONE) {
        code = input_open_flags(&in, operands->v[0], &args.sets, &args.flags);
        if (code == CLI_DONE)
            code = compile(&in);
        input_close(&in);
    }
    arena_free(a);
    return code;
}

const CliCommand cmd_compile = {
    .name = "compile",
    .operands = "SPEC",
    .help = "compile a spec into one executable per rank",
    .options = options,
    .operands_min = 1,
    .operands_max = 1,
    .rest = &args.flags,
    .rest_value = "MEGATRON-FLAGS",
    .run = run,
};
