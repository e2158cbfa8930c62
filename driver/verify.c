/* verify.c - `megac verify`: proofs about a spec or a compiled program.
 *
 * Two things are proved.  Of the passes, that none of them changes what the
 * program computes: by execution, in fp64 and exactly in a prime field, of the
 * smallest spec with the same degrees.  Of the plans, that they fit together:
 * those of the folder if one is given, else those the spec compiles to.
 */
#include "driver/compile.h"
#include "driver/plans.h"

#include <inttypes.h>

static struct {
    CliList sets, flags;
} args;

static const CliOption options[] = {
    {"--set", 0, "KEY=VALUE", CLI_LIST, &args.sets,
     "change a value of the spec, such as parallel.tp=4"},
    CLI_OPTIONS_END,
};

/* ---- plans --------------------------------------------------------------- */

static void report(const PlanVerifyStats *s)
{
    printf("plans: proved; %" PRIu64 " instructions, %" PRIu64
           " collectives, %" PRIu64 " messages a step\n",
           s->instrs, s->collectives, s->messages);
}

static CliExit prove_folder(const Input *in)
{
    PlanVerifyStats stats;
    PlanSet set;
    Status status = plans_read(in->arena, in->dir, &set);
    CliExit code = CLI_INPUT;

    if (status)
        code = cli_failed(status);
    else if (plan_verify(in->diag, set.classes, set.n, &stats))
        code = CLI_DONE;
    plans_free(&set);
    if (code == CLI_DONE)
        report(&stats);
    return code;
}

static CliExit prove_program(const Input *in, const Program *p)
{
    EmitInput emit = {p->m, p->mem, in->spec};
    EmitOutput plans = {0};
    PlanVerifyStats stats;
    CliExit code = CLI_INPUT;

    if (emit_plans(in->arena, &emit, &plans))
        code = compile_verify_plans(in, p->m, &plans, &stats);
    emit_free(&plans);
    if (code == CLI_DONE)
        report(&stats);
    return code;
}

static CliExit prove_spec(const Input *in)
{
    static const PassOptions all_passes;
    Program program;
    CliExit code = program_build(in, &all_passes, &program);

    if (code == CLI_DONE)
        code = prove_program(in, &program);
    program_free(&program);
    return code;
}

/* ---- the command --------------------------------------------------------- */

static CliExit verify(const Input *in)
{
    CliExit code = compile_verify_passes(in);

    if (code)
        return code;
    printf("passes: each computes what the one before it did\n");
    return in->dir ? prove_folder(in) : prove_spec(in);
}

static CliExit run(const CliList *operands)
{
    Input in;
    CliExit code =
        input_open_flags(&in, operands->v[0], &args.sets, &args.flags);

    if (code == CLI_DONE)
        code = verify(&in);
    input_close(&in);
    return code;
}

const CliCommand cmd_verify = {
    .name = "verify",
    .operands = "SPEC|DIR",
    .help = "prove that passes keep the meaning and plans fit together",
    .details = "The passes are executed on the smallest spec with the same "
               "degrees, in fp64 and exactly in a prime field. Plans are "
               "proved free of deadlock, races, and reads of unwritten bytes.",
    .options = options,
    .operands_min = 1,
    .operands_max = 1,
    .rest = &args.flags,
    .rest_value = "MEGATRON-FLAGS",
    .run = run,
};
