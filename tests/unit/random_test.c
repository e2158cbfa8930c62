/* random_test.c - specs drawn from the schema's legal space.
 *
 * Each draw goes the whole way that needs no kernel: passes verified by
 * execution (fp64, and exactly in the prime field), memory at its bound, plans
 * proved to fit together.  A draw that the frontend rejects must be rejected
 * with a reason.  MEGAC_SEED and MEGAC_DRAWS repeat or extend a run, and
 * tests/random.sh makes a long one.  With MEGAC_ROWS the draws are printed, as
 * rows that tests/parity/row.sh trains with real ranks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "driver/compile.h"
#include "tests/unit/random_draw.h"

#ifdef __SANITIZE_ADDRESS__
enum { DRAWS = 20 };
#else
enum { DRAWS = 200 };
#endif

/* Emits the plans and proves that they fit together. */
static CliExit check_plans(const Input *in, const Program *p)
{
    EmitInput input = {p->m, p->mem, in->spec};
    EmitOutput out = {0};
    PlanVerifyStats stats;
    CliExit code = CLI_BUG;

    if (emit_plans(in->arena, &input, &out))
        code = compile_verify_plans(in, p->m, &out, &stats);
    emit_free(&out);
    return code;
}

/* Real models are packed at the bound (see memplan_test, plan_numbers_test).
 * Here buffers of a few hundred bytes leave gaps of alignment, and schedules
 * in a V are the hardest to pack: five percent. */
static bool at_bound(const MemPlan *mem)
{
    for (uint32_t i = 0; i < mem->npp; i++)
        if (mem->report[i].total > mem->report[i].lower_bound * 105 / 100)
            return false;
    return true;
}

static bool check_program(const Input *in)
{
    const PassOptions options = {0};
    Program p;
    bool ok = compile_verify_passes(in) == CLI_DONE &&
              program_build(in, &options, &p) == CLI_DONE;

    if (!ok)
        return false;
    ok = check_plans(in, &p) == CLI_DONE && at_bound(p.mem);
    program_free(&p);
    return ok;
}

static void print_draw(const Draw *d, const Input *in)
{
    for (uint32_t i = 0; i < d->sets.n; i++)
        print_error("--set %s \\\n", d->sets.v[i]);
    diag_print(in->diag, stderr);
}

/* ---- rows for real ranks ------------------------------------------------- */

/* What a layout sets; the rest is the model's, for one rank too. */
static bool is_layout(const char *set)
{
    return !strncmp(set, "parallel.", 9) ||
           !strncmp(set, "training.recompute.", 19) ||
           !strncmp(set, "training.offload.", 17) ||
           !strncmp(set, "training.micro_batch_size", 25);
}

/* Adam makes large steps of gradients that are almost 0. */
static bool is_row(const char *set)
{
    return strncmp(set, "training.optimizer.", 19) != 0;
}

/* Prints a draw as a row of tests/parity/row.sh, if one rank can do the same:
 * not where which tokens are dropped depends on the ranks. */
static void print_row(uint64_t seed, const Draw *d, const Spec *s)
{
    if (s->parallel.world_size > 16 || s->model.moe.capacity_factor)
        return;
    printf("seed%llu t0", (unsigned long long)seed);
    for (int layout = 0; layout < 2; layout++) {
        for (uint32_t i = 0; i < d->sets.n; i++)
            if (is_row(d->sets.v[i]) && is_layout(d->sets.v[i]) == layout)
                printf(" %s", d->sets.v[i]);
        if (!layout)
            printf(" training.micro_batch_size=%lld --",
                   (long long)(s->training.micro_batch_size *
                               s->derived.dense_dp));
    }
    printf("\n");
}

/* ---- the test ------------------------------------------------------------ */

/* 1 if the draw compiled, 0 if the frontend gave a reason not to. */
static int check_draw(uint64_t seed)
{
    Arena *a = arena_new();
    Draw d = {.state = seed, .arena = a};
    Input in = {.arena = a};
    int compiled;

    draw_spec(&d);
    in.spec = draw_parse(&d, &in.diag);
    compiled = in.spec != NULL;
    if (compiled && getenv("MEGAC_ROWS"))
        print_row(seed, &d, in.spec);
    else if (compiled ? !check_program(&in) : !diag_errors(in.diag)) {
        print_draw(&d, &in);
        fail_msg("draw of seed %llu", (unsigned long long)seed);
    }
    vec_free(&d.sets);
    diag_free(in.diag);
    arena_free(a);
    return compiled;
}

static uint64_t number_of(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);

    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void test_random_specs(void **state)
{
    uint64_t seed = number_of("MEGAC_SEED", 1);
    uint64_t draws = number_of("MEGAC_DRAWS", DRAWS);
    uint64_t compiled = 0;

    (void)state;
    print_message("seeds %llu to %llu\n", (unsigned long long)seed,
                  (unsigned long long)(seed + draws - 1));
    for (uint64_t i = 0; i < draws; i++)
        compiled += (uint64_t)check_draw(seed + i);
    print_message("%llu of %llu compiled\n", (unsigned long long)compiled,
                  (unsigned long long)draws);
    if (draws >= 100) /* enough of them are legal */
        assert_true(compiled * 4 > draws);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_specs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
