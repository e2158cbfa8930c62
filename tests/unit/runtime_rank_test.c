/* runtime_rank_test.c - megac-rank from outside: train, save, load, fail.
 *
 * The model is one weight vector w of 8 with loss = w.w / 2, so the gradient
 * is w, and a step of SGD multiplies w by (1 - lr) and the loss by (1 - lr)^2.
 * Four ranks hold two elements each and reduce the loss.  Its kernels do harm
 * on rank 2 in step 3 if the environment asks for it.
 */
#include "runtime_plan.h"
#include "runtime/payload.h"
#include "runtime/state.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static const char kernel_text[] =
    "#include <math.h>\n#include <signal.h>\n#include <stdint.h>\n"
    "#include <stdlib.h>\n#include <string.h>\n"
    "void loss(void *const *p, const int64_t *imm, int tid, int n) {\n"
    "  const float *w = p[0]; float *g = p[1], *l = p[2]; (void)tid; (void)n;\n"
    "  *l = 0; for (int64_t i = 0; i < imm[0]; i++) {\n"
    "    g[i] = w[i]; *l += w[i] * w[i] / 2; } }\n"
    "void update(void *const *p, const int64_t *imm, int tid, int n) {\n"
    "  float *w = p[0]; const float *g = p[1], *lr = p[2]; (void)tid; "
    "(void)n;\n"
    "  for (int64_t i = 0; i < imm[0]; i++) w[i] -= *lr * g[i]; }\n"
    "void harm(void *const *p, const int64_t *imm, int tid, int n) {\n"
    "  const char *how = getenv(\"HARM\"); float *w = p[0], *step = p[1];\n"
    "  (void)tid; (void)n; if (!how || imm[0] != 2 || *step != 3) return;\n"
    "  if (!strcmp(how, \"kill\")) raise(SIGKILL);\n"
    "  if (!strcmp(how, \"crash\")) *(volatile int *)8 = 1;\n"
    "  if (!strcmp(how, \"nan\")) *w = NAN;\n"
    "  if (!strcmp(how, \"stop\")) raise(SIGSTOP); }\n";

static char folder[64], program[300];

enum {
    W = 0,
    GRAD = 64,
    LOSS = 128,
    LR = 192,
    STEP = 256,
    TOKENS = 320,
    ARENA = 1024
};

static void add_weight(PlanBuilder *b, uint32_t ranks)
{
    PlanTensor t = {.name = plan_add_text(b, "w"),
                    .init = PLAN_INIT_NORMAL,
                    .init_std = 1,
                    .row_dims = 1,
                    .rows = 8};
    PlanSplit split = {0, 0};

    if (ranks > 1)
        split =
            plan_add_list(b, &(uint32_t){plan_add_atom(b, "tp", ranks, 1)}, 1);
    t.export_name = t.name;
    plan_add_tensor(b, &t);
    plan_add_dim(b, "h", 8, 8);
    plan_add_field(b, &(PlanField){.kind = PLAN_FIELD_PARAM, .address = W},
                   &split);
    plan_add_field(b, &(PlanField){.kind = PLAN_FIELD_GRAD, .address = GRAD},
                   &split);
}

static void host(PlanBuilder *b, PlanHostOp op, uint32_t aux, uint64_t address,
                 int access)
{
    PlanOperand o = plan_address(address, 4, access);

    plan_emit(b, (PlanInstr){.op = PLAN_HOST, .index = op, .aux = aux}, &o, 1);
}

static void reduce_loss(PlanBuilder *b, uint32_t ranks)
{
    uint32_t atom = plan_add_atom(b, "tp", ranks, 1);
    uint32_t group = plan_add_group(b, "tp", &atom, 1, NULL, 0);
    uint32_t sum = plan_add_collective(
        b,
        &(PlanCollective){.kind = PLAN_ALL_REDUCE, .group = group, .count = 1});
    uint32_t place = plan_add_place(b, "w.yaml", 4, 2, "sum %9", "loss");

    plan_emit(b,
              (PlanInstr){.op = PLAN_COLLECTIVE, .index = sum, .place = place},
              (PlanOperand[]){plan_address(LOSS, 4, PLAN_READ),
                              plan_address(LOSS, 4, PLAN_WRITE)},
              2);
}

static void emit_step(PlanBuilder *b, uint32_t ranks)
{
    uint64_t bytes = 32 / ranks;
    uint32_t atom = plan_add_atom(b, "rank", ranks, 1);
    PlanOperand rank = plan_integer(0), n = plan_integer(8 / ranks);
    PlanOperand w = plan_address(W, bytes, PLAN_READ | PLAN_WRITE);
    PlanOperand g = plan_address(GRAD, bytes, PLAN_READ | PLAN_WRITE);
    PlanOperand loss = plan_address(LOSS, 4, PLAN_WRITE);
    PlanOperand lr = plan_address(LR, 4, PLAN_READ);

    rank.expr = plan_add_expr(b, 0, &(PlanTerm){atom, 0, 1}, 1);
    plan_segment_begin(b, "main");
    plan_emit(b, (PlanInstr){.op = PLAN_HOST, .index = PLAN_HOST_LOAD_BATCH},
              (PlanOperand[]){plan_integer(0),
                              plan_address(TOKENS, 16, PLAN_WRITE)},
              2);
    host(b, PLAN_HOST_SCALAR, PLAN_SCALAR_STEP, STEP, PLAN_WRITE);
    host(b, PLAN_HOST_SCALAR, PLAN_SCALAR_LR, LR, PLAN_WRITE);
    plan_emit(b,
              (PlanInstr){.op = PLAN_LAUNCH,
                          .index = plan_add_kernel(b, "harm", 1, true, 2, 1)},
              (PlanOperand[]){w, plan_address(STEP, 4, PLAN_READ), rank}, 3);
    plan_emit(b,
              (PlanInstr){.op = PLAN_LAUNCH,
                          .index = plan_add_kernel(b, "loss", 1, true, 3, 1)},
              (PlanOperand[]){w, g, loss, n}, 4);
    reduce_loss(b, ranks);
    host(b, PLAN_HOST_METRIC, PLAN_METRIC_LOSS, LOSS, PLAN_READ);
    plan_emit(b, (PlanInstr){.op = PLAN_HOST, .index = PLAN_HOST_GRADS}, NULL,
              0);
    plan_emit(b,
              (PlanInstr){.op = PLAN_LAUNCH,
                          .index = plan_add_kernel(b, "update", 1, true, 3, 1)},
              (PlanOperand[]){w, g, lr, n}, 4);
}

static void make_plan(uint32_t ranks, Buf *out)
{
    PlanBuilder *b = tiny_builder(ranks, ARENA);
    PlanTerm first = {plan_add_atom(b, "tp", ranks, 1), 0, 1};

    *plan_training(b) =
        (PlanTraining){.steps = 5,
                       .global_batch = 1,
                       .micro_batch = 1,
                       .seq_length = 4,
                       .microbatches = 1,
                       .seed = 11,
                       .lr = {.style = LR_CONSTANT, .max = 0.25}};
    plan_data(b)->vocab = 256;
    plan_job(b)->name = plan_add_text(b, "vector");
    plan_job(b)->has_reporter = 1;
    plan_job(b)->reporter = plan_add_expr(b, 0, &first, 1);
    add_weight(b, ranks);
    emit_step(b, ranks);
    plan_write(b, out);
    plan_builder_free(b);
}

/* ---- running ------------------------------------------------------------- */

static int shell(const char *fmt, ...) MC_PRINTF(1, 2);

static int shell(const char *fmt, ...)
{
    char command[2048];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* megac-rank stands beside the tests, or where MEGAC_RANK says. */
static void find_program(void)
{
    const char *given = getenv("MEGAC_RANK");
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 32);

    program[MC_MAX(n, 0)] = '\0';
    char *slash = strrchr(program, '/');
    if (given)
        snprintf(program, sizeof program, "%s", given);
    else if (slash)
        strcpy(slash + 1, "megac-rank");
}

static int make_rank_files(void **state)
{
    char path[128];
    Buf kernels = {0};
    FILE *f;

    (void)state;
    find_program();
    snprintf(folder, sizeof folder, "/tmp/megac_rank_%d", (int)getpid());
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/k.c", folder);
    f = fopen(path, "w");
    if (!f || fputs(kernel_text, f) < 0 || fclose(f) != 0 ||
        shell("cc -shared -fPIC -o %s/k.so %s/k.c", folder, folder) != 0)
        return -1;
    snprintf(path, sizeof path, "%s/k.so", folder);
    if (!buf_read_file(&kernels, path))
        return -1;
    for (uint32_t ranks = 1; ranks <= 4; ranks += 3) {
        Buf plan = {0};
        make_plan(ranks, &plan);
        snprintf(path, sizeof path, "%s/rank%u", folder, ranks);
        Status s = payload_write(path, program, &(PayloadParts){
            plan.s, kernels.s, plan.len, kernels.len, 1});
        if (s) {
            print_error("%s\n", status_text(s));
            return -1;
        }
        buf_free(&plan);
    }
    buf_free(&kernels);
    return 0;
}

static int remove_rank_files(void **state)
{
    (void)state;
    return shell("rm -rf %s", folder);
}

#define MPIRUN                                                                 \
    "cd %s && OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "      \
    "timeout 60 mpirun --oversubscribe --bind-to none -n %d "

static bool file_has(const char *name, const char *text)
{
    char path[128];
    Buf b = {0};

    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_true(buf_read_file(&b, path));
    bool found = strstr(buf_str(&b), text) != NULL;
    if (!found)
        print_error("%s lacks '%s':\n%s\n", name, text, buf_str(&b));
    buf_free(&b);
    return found;
}

/* The number `key` of line `line` of a metrics file. */
static double metric_at(const char *name, int line, const char *key)
{
    char path[128], text[1024] = "";
    double value = NAN;
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "r");
    assert_non_null(f);
    for (int i = 0; i <= line; i++)
        if (!fgets(text, sizeof text, f))
            text[0] = '\0';
    fclose(f);
    json_t *object = json_loads(text, 0, NULL);
    assert_non_null(object);
    value = json_number_value(json_object_get(object, key));
    json_decref(object);
    return value;
}

static void one_rank_trains(void **state)
{
    (void)state;
    assert_int_equal(shell("cd %s && ./rank1 --metrics m1 --save-step 2 --to "
                           "saved --quiet",
                           folder),
                     0);
    for (int i = 1; i < 5; i++)
        assert_true(
            fabs(metric_at("m1", i, "loss") / metric_at("m1", i - 1, "loss") -
                 0.5625) < 1e-6);
    assert_true(metric_at("m1", 4, "step") == 5);
    assert_true(metric_at("m1", 4, "lr") == 0.25);
    assert_true(metric_at("m1", 4, "tokens") == 4);
    assert_true(metric_at("m1", 0, "step_time_s") > 0);
    assert_true(metric_at("m1", 0, "tokens_per_s") > 0);
}

/* Four ranks draw the same weights, save the same file, and go on from it. */
static void four_ranks_agree(void **state)
{
    (void)state;
    assert_int_equal(shell("cd %s && ./rank1 --metrics m1 --save-step 2 --to "
                           "saved --quiet",
                           folder),
                     0);
    assert_int_equal(shell(MPIRUN "./rank4 --metrics m4 --save-step 2 --to "
                                  "saved4 --quiet",
                           folder, 4),
                     0);
    for (int i = 0; i < 5; i++)
        assert_true(
            fabs(metric_at("m4", i, "loss") / metric_at("m1", i, "loss") - 1) <
            1e-6);
    assert_int_equal(shell("cd %s && cmp saved/weights.safetensors "
                           "saved4/weights.safetensors && cmp "
                           "saved/grads.safetensors saved4/grads.safetensors",
                           folder),
                     0);
    assert_int_equal(shell(MPIRUN "./rank4 --metrics l4 --steps 1 --quiet "
                                  "--load saved/weights.safetensors",
                           folder, 4),
                     0);
    assert_true(metric_at("l4", 0, "loss") == metric_at("m4", 2, "loss"));
}

/* The highest touched byte is the last token's; 32 + 32 + 3*4 + 16 bytes are
 * written in all (a token below 256 leaves no painted word). */
static void memory_is_measured(void **state)
{
    (void)state;
    assert_int_equal(shell("cd %s && ./rank1 --metrics '' --measure-memory "
                           "--quiet > memory",
                           folder),
                     0);
    assert_true(file_has("memory", "{\"rank\": 0, \"arena\": 1024, "
                                   "\"highest\": 336, \"touched\": 92}"));
}

static void wrong_worlds(void **state)
{
    (void)state;
    assert_int_equal(shell(MPIRUN "./rank4 2>err", folder, 3), 3);
    assert_true(file_has("err", "compiled for 4 ranks, but 3 were started"));
    assert_int_equal(shell("cd %s && ./rank4 2>err", folder), 3);
    assert_true(file_has("err", "compiled for 4 ranks, but 1 was started"));
}

/* The whole run ends within 10 s and says where. */
static void harm_on(const char *how, const char *message, int code)
{
    double start = mc_seconds();
    int got = shell(MPIRUN "env HARM=%s ./rank4 --patience 3 --metrics m "
                           "--quiet >out 2>err",
                    folder, 4, how);

    assert_true(mc_seconds() - start < 10);
    assert_int_not_equal(got, 0);
    if (code)
        assert_int_equal(got, code);
    assert_true(file_has("err", message));
}

static void crash_is_reported(void **state)
{
    (void)state;
    harm_on("crash",
            "rank 2: step 3: signal 11 (SEGV) at launch, in segment "
            "main (instruction 3)",
            0);
}

static void kill_ends_the_run(void **state)
{
    (void)state;
    harm_on("kill", "signal 9", 0);
}

static void nan_ends_the_run(void **state)
{
    (void)state;
    harm_on("nan", "step 3: the loss is nan", 3);
    assert_true(file_has("m", "\"loss\": null"));
}

static void stopped_rank_is_missed(void **state)
{
    (void)state;
    harm_on("stop",
            "step 3: at w.yaml:4:2: all_reduce, sum %9, of loss, in "
            "segment main (instruction 5): no answer for 3 s",
            3);
}

static void bad_files(void **state)
{
    (void)state;
    assert_int_equal(shell("%s 2>%s/err", program, folder), 1);
    assert_true(file_has("err", "carries no plan"));
    assert_int_equal(shell("cd %s && head -c -100 rank1 >cut; tail -c 40 "
                           "rank1 >>cut; chmod +x cut; ./cut 2>err",
                           folder),
                     1);
    assert_true(file_has("err", "damaged"));
    assert_int_equal(shell("cd %s && ./rank1 --load k.c 2>err", folder), 1);
    assert_true(file_has("err", "k.c: "));
    assert_int_equal(shell("cd %s && ./rank1 --metrics /dev/full --quiet "
                           "2>err",
                           folder),
                     3);
    assert_true(file_has("err", "cannot write /dev/full: No space left"));
    assert_int_equal(shell("cd %s && ./rank1 --steps x 2>err", folder), 2);
    assert_int_equal(shell("cd %s && ./rank1 --stops 2>err", folder), 2);
    assert_true(file_has("err", "unknown option --stops"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_trains),
        cmocka_unit_test(four_ranks_agree),
        cmocka_unit_test(memory_is_measured),
        cmocka_unit_test(wrong_worlds),
        cmocka_unit_test(crash_is_reported),
        cmocka_unit_test(kill_ends_the_run),
        cmocka_unit_test(nan_ends_the_run),
        cmocka_unit_test(stopped_rank_is_missed),
        cmocka_unit_test(bad_files),
    };

    return cmocka_run_group_tests(tests, make_rank_files, remove_rank_files);
}
