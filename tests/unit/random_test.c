/* random_test.c - specs drawn from the schema's legal space.
 *
 * Each goes the whole way that needs no kernel: its normal form reads back, the
 * passes are verified by execution (fp64, and exactly in the prime field),
 * memory is at its bound, the plans are proved to fit together.  What the
 * frontend rejects must be rejected with a reason, and is drawn again, so that
 * every seed is a legal spec.
 *
 * MEGAC_SEED and MEGAC_DRAWS repeat or extend a run, and tests/random.sh makes a
 * long one; MEGAC_COVERAGE prints which values were drawn how often, and
 * MEGAC_REJECTED why draws were rejected.  With MEGAC_ROWS the draws are
 * printed, as rows that tests/parity/row.sh trains with real ranks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "driver/compile.h"
#include "tests/unit/random_cover.h"
#include "tests/unit/random_spec.h"

#ifdef __SANITIZE_ADDRESS__
enum { DRAWS = 20 };
#else
enum { DRAWS = 200 };
#endif

enum { TRIES = 50 }; /* of one seed, until a spec is legal */

typedef struct {
    Cover cover;
    uint64_t rejected;
    uint64_t stages, above; /* stages, and those above their bound */
} Run;

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

/* No byte above what is alive at one time, unless packing does not find it:
 * on two stages in a hundred, of tiny layers, it stays within 5 %. */
static bool at_bound(Run *run, const MemPlan *mem)
{
    for (uint32_t i = 0; i < mem->npp; i++) {
        const MemReport *r = &mem->report[i];
        int64_t over = r->total - r->lower_bound;
        run->stages++;
        run->above += over > 0;
        if (over >= 0 && over <= r->lower_bound * 5 / 100 &&
            r->host == r->host_lower_bound)
            continue;
        print_error("stage %u: %lld bytes above the bound of %lld, %lld in "
                    "host memory\n", i, (long long)over,
                    (long long)r->lower_bound,
                    (long long)(r->host - r->host_lower_bound));
        return false;
    }
    return true;
}

/* The normal form is a spec too, and its own normal form. */
static bool reads_back(const Input *in)
{
    Buf text = {0}, again = {0};
    Spec *s;
    bool same;

    spec_print(in->spec, &text);
    s = spec_parse(in->arena, in->diag, "normal form", buf_str(&text), NULL, 0);
    if (s)
        spec_print(s, &again);
    same = s && !strcmp(buf_str(&text), buf_str(&again));
    buf_free(&text);
    buf_free(&again);
    return same;
}

static bool check_program(Run *run, const Input *in)
{
    const PassOptions options = {0};
    Program p;
    bool ok = compile_verify_passes(in) == CLI_DONE &&
              program_build(in, &options, &p) == CLI_DONE;

    if (!ok)
        return false;
    ok = check_plans(in, &p) == CLI_DONE && at_bound(run, p.mem);
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

/* Not of a row: Adam, which makes large steps of gradients that are almost 0,
 * tokens that see only themselves, for queries and keys have no gradient then,
 * rates, batches that do not grow in five steps, what needs a GPU, and what
 * row.sh could not read. */
static bool is_row(const char *set)
{
    static const char *const others[] = {"training.optimizer.",
                                         "training.lr_schedule.",
                                         "training.rampup",
                                         "model.sliding_window=1",
                                         "training.eval.", "training.steps",
                                         "data.valid", "data.split", "target."};

    for (size_t i = 0; i < MC_LEN(others); i++)
        if (!strncmp(set, others[i], strlen(others[i])))
            return false;
    return !strchr(set, ' ');
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

/* The first legal draw of a seed.  Rejections have a reason. */
static Spec *draw_legal(Run *run, Draw *d, Diag **out_diag)
{
    for (int i = 0; i < TRIES; i++) {
        Diag *diag = *out_diag = diag_new(d->arena);
        Spec *s;

        draw_spec(d);
        s = spec_parse(d->arena, diag, "model", MODEL_T0, d->sets.v,
                       (int)d->sets.n);
        if (s || !diag_errors(diag) || i + 1 == TRIES)
            return s;
        if (getenv("MEGAC_REJECTED"))
            diag_print(diag, stderr);
        run->rejected++;
        diag_free(diag);
    }
    return NULL;
}

static void check_draw(Run *run, uint64_t seed)
{
    Arena *a = arena_new();
    Draw d = {.state = seed, .arena = a};
    Input in = {.arena = a};
    bool ok;

    in.spec = draw_legal(run, &d, &in.diag);
    ok = in.spec != NULL;
    if (ok)
        cover_add(&run->cover, in.spec);
    if (ok && getenv("MEGAC_ROWS"))
        print_row(seed, &d, in.spec);
    else
        ok = ok && reads_back(&in) && check_program(run, &in);
    if (!ok) {
        print_draw(&d, &in);
        fail_msg("draw of seed %llu", (unsigned long long)seed);
    }
    vec_free(&d.sets);
    diag_free(in.diag);
    arena_free(a);
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
    Run run = {.cover = cover_new()};

    (void)state;
    print_message("seeds %llu to %llu\n", (unsigned long long)seed,
                  (unsigned long long)(seed + draws - 1));
    for (uint64_t i = 0; i < draws; i++)
        check_draw(&run, seed + i);
    print_message("%llu draws were rejected\n",
                  (unsigned long long)run.rejected);
    if (getenv("MEGAC_COVERAGE"))
        cover_print(&run.cover, stderr);
    assert_true(run.rejected <= draws + TRIES); /* most are legal */
    print_message("%llu of %llu stages above their bound\n",
                  (unsigned long long)run.above,
                  (unsigned long long)run.stages);
    if (draws >= 200)
        assert_true(run.above * 50 <= run.stages);
    if (draws >= 200)
        assert_int_equal(cover_missing(&run.cover), 0);
    cover_free(&run.cover);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_specs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
