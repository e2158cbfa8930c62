/* runtime_state_test.c - random numbers, initial state, safetensors.
 *
 * Philox is checked against the known answers that its authors publish
 * (Random123 1.14, tests/kat_vectors); half floats against IEEE 754's own
 * examples; layouts against the one-rank layout.
 */
#include "base/philox.h"
#include "runtime_plan.h"
#include "runtime/state.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

static void philox_known_answers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], answer[4];
    } rows[] = {
        {{0, 0, 0, 0},
         {0, 0},
         {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u},
         {~0u, ~0u},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    uint32_t out[4];

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        philox(rows[i].counter, rows[i].key, out);
        assert_memory_equal(out, rows[i].answer, sizeof out);
    }
}

/* Mean 0 and variance 1 within four standard errors; any piece of the
 * sequence equals the same piece of the whole. */
static void normals_are_normal(void **state)
{
    enum { N = 40000 };
    static double x[N], piece[7];
    double sum = 0, squares = 0;

    (void)state;
    philox_normals(99, 0, N, x);
    for (int i = 0; i < N; i++) {
        sum += x[i];
        squares += x[i] * x[i];
    }
    assert_true(fabs(sum / N) < 4 / sqrt(N));
    assert_true(fabs(squares / N - 1) < 4 * sqrt(2.0 / N));
    philox_normals(99, 1001, 7, piece);
    assert_memory_equal(piece, x + 1001, sizeof piece);
}

static void halves(void **state)
{
    static const struct {
        uint16_t bits;
        float value;
    } rows[] = {{0x3c00, 1.0f},
                {0xc000, -2.0f},
                {0x7bff, 65504.0f},
                {0x0001, 0x1p-24f},
                {0x3555, 0.333251953125f}};

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++)
        assert_true(plan_fetch(PLAN_F16, (const char *)&rows[i].bits, 0) ==
                    rows[i].value);
}

/* bf16 rounds to nearest, ties to even. */
static void brain_floats(void **state)
{
    static const float from[] = {1.0f, 1.00390625f, 1.01171875f, 1.005f};
    static const float to[] = {1.0f, 1.0f, 1.015625f, 1.0078125f};
    char cell[2];

    (void)state;
    for (size_t i = 0; i < MC_LEN(from); i++) {
        plan_store(PLAN_BF16, cell, 0, from[i]);
        assert_true(plan_fetch(PLAN_BF16, cell, 0) == to[i]);
    }
}

/* ---- a small model: a padded embedding, two layers of a fused weight ----- */

enum { ARENA = 1 << 14, MOMENTS = 8192 };

typedef struct {
    Plan plan;
    char *memory;
    State state;
} Rank;

static char *rank_pointer(void *self, uint64_t address)
{
    return ((Rank *)self)->memory + address;
}

static void add_embedding(PlanBuilder *b, PlanSplit split)
{
    PlanTensor t = {.name = plan_add_text(b, "wte"),
                    .init = PLAN_INIT_NORMAL,
                    .init_std = 0.5,
                    .row_dims = 1,
                    .rows = 10,
                    .columns = 4};
    PlanSplit splits[2] = {split, {0, 0}};

    t.export_name = t.name;
    plan_add_tensor(b, &t);
    plan_add_dim(b, "v", 10, 16);
    plan_add_dim(b, "h", 4, 4);
    plan_add_field(
        b, &(PlanField){.kind = PLAN_FIELD_PARAM, .dtype = PLAN_BF16}, splits);
    plan_add_field(b, &(PlanField){.kind = PLAN_FIELD_MASTER, .address = 1024},
                   splits);
}

/* k of "c_attn": [g=2, d=3, h=4], exported transposed to columns 6..11 of
 * [4, 12].  With a pitch something else lies between its groups. */
static void add_fused(PlanBuilder *b, PlanSplit split, uint64_t pitch)
{
    PlanTensor t = {.name = plan_add_text(b, "h.{l}.k"),
                    .init = PLAN_INIT_NORMAL,
                    .init_std = 1,
                    .layers = plan_add_list(b, (uint32_t[]){0, 5}, 2),
                    .export_name = plan_add_text(b, "h.{l}.c_attn"),
                    .row_dims = 2,
                    .transpose = 1,
                    .rows = 4,
                    .columns = 12,
                    .column_offset = 6};
    PlanSplit splits[3] = {split, {0, 0}, {0, 0}};

    plan_add_tensor(b, &t);
    plan_add_dim(b, "g", 2, 2);
    plan_add_dim(b, "d", 3, 3);
    plan_add_dim(b, "h", 4, 4);
    plan_add_field(b,
                   &(PlanField){.kind = PLAN_FIELD_PARAM,
                                .address = 4096,
                                .layer_stride = 128,
                                .pitch = pitch},
                   splits);
    plan_add_field(b,
                   &(PlanField){.kind = PLAN_FIELD_M,
                                .address = MOMENTS,
                                .layer_stride = 128},
                   splits);
}

static void rank_load(Rank *r, PlanBuilder *b, uint32_t rank)
{
    plan_segment_begin(b, "main");
    r->plan = tiny_load(b);
    r->memory = malloc(ARENA);
    memset(r->memory, 0x55, ARENA);
    r->state = (State){&r->plan, rank, r, rank_pointer, 1};
}

static void rank_open_with(Rank *r, uint32_t rank, uint32_t world,
                           uint64_t pitch)
{
    PlanBuilder *b = tiny_builder(world, ARENA);
    uint32_t tp = plan_add_atom(b, "tp", world, 1);
    PlanSplit split = plan_add_list(b, &tp, 1);

    add_embedding(b, split);
    add_fused(b, split, pitch);
    rank_load(r, b, rank);
}

/* One rank that has the embedding and nothing else. */
static void rank_open_table(Rank *r)
{
    PlanBuilder *b = tiny_builder(1, ARENA);

    add_embedding(b, (PlanSplit){0, 0});
    rank_load(r, b, 0);
}

/* The embedding of 16 rows as a row of 64 elements, of which three ranks hold
 * 22 each: 2 elements behind it are zeros. */
static void rank_open_share(Rank *r, uint32_t rank)
{
    PlanBuilder *b = tiny_builder(3, ARENA);
    uint32_t dp = plan_add_atom(b, "dp", 3, 1);
    PlanTensor t = {.name = plan_add_text(b, "wte"),
                    .init = PLAN_INIT_NORMAL,
                    .init_std = 0.5,
                    .row_dims = 1,
                    .rows = 10,
                    .columns = 4};
    PlanSplit splits[2] = {{0, 0}, {0, 0}};

    t.export_name = t.name;
    plan_add_tensor(b, &t);
    plan_add_dim(b, "v", 10, 16);
    plan_add_dim(b, "h", 4, 4);
    plan_add_field(b,
                   &(PlanField){.kind = PLAN_FIELD_PARAM,
                                .held = 22,
                                .share = plan_add_list(b, &dp, 1)},
                   splits);
    rank_load(r, b, rank);
}

static void rank_open(Rank *r, uint32_t rank, uint32_t world)
{
    rank_open_with(r, rank, world, 0);
}

static void rank_close(Rank *r)
{
    free(r->memory);
    plan_free(&r->plan);
}

static char folder[] = "/tmp/megac_state_XXXXXX";

static int enter(void **state)
{
    (void)state;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int leave(void **state)
{
    char command[64];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return chdir("/") == 0 && system(command) == 0 ? 0 : -1;
}

/* To STEM.safetensors, in parts if there are more bytes. */
static void save_field(const Rank *r, const char *stem, uint64_t part_bytes,
                       PlanFieldKind kind)
{
    StateFiles to = {".", stem, part_bytes};

    assert_null(state_save(&r->state, &to, kind));
}

static void save(const Rank *r, const char *stem, uint64_t part_bytes)
{
    save_field(r, stem, part_bytes, PLAN_FIELD_PARAM);
}

static Status load_field(const Rank *r, const char *path, PlanFieldKind kind)
{
    SafeSet set;
    Status s;

    STATUS_TRY(safe_open(path, &set));
    s = state_load(&r->state, &set, kind);
    safe_close(&set);
    return s;
}

static Status load(const Rank *r, const char *path)
{
    return load_field(r, path, PLAN_FIELD_PARAM);
}

static void layouts_start_equal(void **state)
{
    Rank one, half;

    (void)state;
    rank_open(&one, 0, 1);
    assert_null(state_init(&one.state, 1234));
    for (uint32_t rank = 0; rank < 2; rank++) {
        rank_open(&half, rank, 2);
        assert_null(state_init(&half.state, 1234));
        /* rows 0..7 or 8..15 of v, bf16 and f32 */
        assert_memory_equal(half.memory, one.memory + rank * 64, 64);
        assert_memory_equal(half.memory + 1024, one.memory + 1024 + rank * 128,
                            128);
        /* group `rank` of both layers */
        assert_memory_equal(half.memory + 4096, one.memory + 4096 + rank * 48,
                            48);
        assert_memory_equal(half.memory + 4096 + 128,
                            one.memory + 4096 + 128 + rank * 48, 48);
        rank_close(&half);
    }
    rank_close(&one);
}

/* What three ranks hold, end to end, is what one has, and zeros; a share that
 * is loaded is the one that was drawn. */
static void shares_start_equal(void **state)
{
    const char zeros[2 * 4] = {0};
    char drawn[22 * 4];
    Rank one, third;

    (void)state;
    rank_open_table(&one);
    assert_null(state_init(&one.state, 1234));
    save(&one, "shares", 0);
    for (uint32_t rank = 0; rank < 3; rank++) {
        size_t bytes = rank < 2 ? 22 * 4 : 20 * 4;
        rank_open_share(&third, rank);
        assert_null(state_init(&third.state, 1234));
        assert_memory_equal(third.memory, one.memory + 1024 + rank * 22 * 4,
                            bytes);
        assert_memory_equal(third.memory + bytes, zeros, 22 * 4 - bytes);
        assert_int_equal(third.memory[22 * 4], 0x55);
        memcpy(drawn, third.memory, sizeof drawn);
        memset(third.memory, 0, sizeof drawn);
        assert_null(load(&third, "shares.safetensors"));
        assert_memory_equal(third.memory, drawn, sizeof drawn);
        rank_close(&third);
    }
    rank_close(&one);
}

static void initial_values(void **state)
{
    const char zeros[6 * 16] = {0};
    double x[40];
    float master[40];
    Rank one;

    (void)state;
    rank_open(&one, 0, 1);
    assert_null(state_init(&one.state, 7));
    philox_normals(philox_tensor_key("wte", 7), 0, 40, x);
    memcpy(master, one.memory + 1024, sizeof master);
    for (int i = 0; i < 40; i++)
        assert_float_equal(master[i], (float)(0.5 * x[i]), 1e-6f);
    /* padding rows 10..15, and nothing behind the field */
    assert_memory_equal(one.memory + 1024 + 160, zeros, sizeof zeros);
    assert_int_equal(one.memory[1024 + 256], 0x55);
    /* the layer's global number is part of the name */
    philox_normals(philox_tensor_key("h.5.k", 7), 0, 1, x);
    memcpy(master, one.memory + 4096 + 128, 4);
    assert_float_equal(master[0], (float)x[0], 1e-6f);
    rank_close(&one);
}

/* What lies beside others is initialised, saved and loaded as if it lay by
 * itself, and leaves them alone. */
static void gaps_are_left_alone(void **state)
{
    char gap[16];
    Rank dense, apart;

    (void)state;
    memset(gap, 0x55, sizeof gap);
    rank_open(&dense, 0, 1);
    rank_open_with(&apart, 0, 1, 64);
    assert_null(state_init(&dense.state, 9));
    assert_null(state_init(&apart.state, 9));
    for (int i = 0; i < 4; i++) {
        int layer = 4096 + i / 2 * 128, g = i % 2;
        assert_memory_equal(apart.memory + layer + g * 64,
                            dense.memory + layer + g * 48, 48);
        assert_memory_equal(apart.memory + layer + g * 64 + 48, gap, 16);
    }
    save(&apart, "gaps", 0);
    assert_null(state_init(&dense.state, 10));
    assert_null(load(&dense, "gaps.safetensors"));
    assert_memory_equal(dense.memory + 4096 + 128 + 48,
                        apart.memory + 4096 + 128 + 64, 48);
    rank_close(&dense);
    rank_close(&apart);
}

/* Saved by one rank, the transposed part lies where PyTorch's GPT-2 has it,
 * and comes back into both halves of two ranks. */
static void files_keep_the_model(void **state)
{
    float k[24], file[48];
    Rank one, half;
    SafeSet f;

    (void)state;
    rank_open(&one, 0, 1);
    assert_null(state_init(&one.state, 3));
    save(&one, "model", 0);
    assert_null(safe_open("model.safetensors", &f));
    assert_int_equal(f.n, 3);
    const SafeTensor *t = safe_find(&f, "h.5.c_attn");
    assert_non_null(t);
    assert_int_equal(t->rows, 4);
    assert_int_equal(t->columns, 12);
    memcpy(file, safe_bytes(&f, t), sizeof file);
    memcpy(k, one.memory + 4096 + 128, sizeof k);
    for (int gd = 0; gd < 6; gd++)
        for (int h = 0; h < 4; h++)
            assert_true(file[h * 12 + 6 + gd] == k[gd * 4 + h]);
    safe_close(&f);
    for (uint32_t rank = 0; rank < 2; rank++) {
        rank_open(&half, rank, 2);
        assert_null(state_init(&half.state, 4));
        assert_null(load(&half, "model.safetensors"));
        assert_memory_equal(half.memory, one.memory + rank * 64, 64);
        assert_memory_equal(half.memory + 1024, one.memory + 1024 + rank * 128,
                            128);
        assert_memory_equal(half.memory + 4096, one.memory + 4096 + rank * 48,
                            48);
        rank_close(&half);
    }
    rank_close(&one);
}

/* Moments are saved of the tensors that have some, and leave the weights
 * alone: what one rank saved lies in the halves of two. */
static void moments_are_apart(void **state)
{
    float m[24];
    Rank one, half;
    SafeSet f;

    (void)state;
    rank_open(&one, 0, 1);
    assert_null(state_init(&one.state, 3));
    for (int i = 0; i < 24; i++)
        m[i] = 0.5f * (float)i;
    memcpy(one.memory + MOMENTS + 128, m, sizeof m);
    save_field(&one, "moments", 0, PLAN_FIELD_M);
    assert_null(safe_open("moments.safetensors", &f));
    assert_int_equal(f.n, 2);
    assert_null(safe_find(&f, "wte"));
    safe_close(&f);
    for (uint32_t rank = 0; rank < 2; rank++) {
        rank_open(&half, rank, 2);
        assert_null(state_init(&half.state, 3));
        assert_null(
            load_field(&half, "moments.safetensors", PLAN_FIELD_M));
        assert_memory_equal(half.memory + MOMENTS + 128, m + rank * 12, 48);
        assert_memory_equal(half.memory + 4096 + 128,
                            one.memory + 4096 + 128 + rank * 48, 48);
        rank_close(&half);
    }
    rank_close(&one);
}

/* The same files in parts: 160 bytes of the table, 192 of each layer. */
static void parts_keep_the_model(void **state)
{
    Rank one, again;
    SafeSet set;

    (void)state;
    rank_open(&one, 0, 1);
    rank_open(&again, 0, 1);
    assert_null(state_init(&one.state, 3));
    assert_null(state_init(&again.state, 4));
    save(&one, "parts", 200);
    assert_null(safe_open_in(".", "parts", &set));
    assert_int_equal(set.nparts, 3);
    assert_int_equal(safe_total(&set), 160 + 2 * 192);
    safe_close(&set);
    assert_null(load(&again, "parts.safetensors.index.json"));
    assert_memory_equal(again.memory + 1024, one.memory + 1024, 160);
    assert_memory_equal(again.memory + 4096, one.memory + 4096, 96);
    assert_int_equal(system("test -z \"$(find . -name '*.tmp')\""), 0);
    rank_close(&one);
    rank_close(&again);
}

/* ---- damaged files ------------------------------------------------------- */

static void refuse_header(const char *header, const char *message)
{
    uint64_t n = strlen(header);
    SafeSet f;
    FILE *file;
    Status s;

    file = fopen("bad", "wb");
    assert_non_null(file);
    fwrite(&n, 8, 1, file);
    fputs(header, file);
    fwrite("12345678", 1, 8, file);
    fclose(file);
    s = safe_open("bad", &f);
    assert_int_equal(status_code(s), STATUS_INPUT);
    if (!strstr(status_text(s), message))
        fail_msg("'%s' lacks '%s'", status_text(s), message);
    status_drop(s);
}

#define ENTRY(dtype, shape, offsets)                                           \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void damaged_files(void **state)
{
    (void)state;
    refuse_header("{", "no JSON object");
    refuse_header("[]", "no JSON object");
    refuse_header("{\"a\":" ENTRY("F32", "[2]", "[0,9]") "}", "outside");
    refuse_header("{\"a\":" ENTRY("F32", "[2]", "[4,0]") "}", "outside");
    refuse_header("{\"a\":" ENTRY("F32", "[3]", "[0,8]") "}",
                  "does not fit its shape");
    refuse_header("{\"a\":" ENTRY("F32", "[-2]", "[0,8]") "}", "wrong shape");
    refuse_header(
        "{\"a\":" ENTRY("F32", "[99999999999,99999999999]", "[0,8]") "}",
        "wrong shape");
    refuse_header("{\"a\":" ENTRY("F32", "[1]", "[0,4]") ",\"b\":" ENTRY(
                      "F32", "[1]", "[0,4]") "}",
                  "overlap");
    refuse_header("{\"a\":" ENTRY("F32", "[1]", "[4,8]") "}", "a gap");
    refuse_header("{\"a\":" ENTRY("F32", "[1]", "[0,4]") "}", "bytes behind");
    refuse_header("{\"a\":1}", "wrong shape");
}

static void wrong_models(void **state)
{
    static const char header[] =
        "{\"wte\":" ENTRY("BF16", "[2,2]", "[0,8]") "}";
    uint64_t n = strlen(header);
    FILE *file;
    Rank one;
    Status s;

    (void)state;
    file = fopen("bad", "wb");
    assert_non_null(file);
    fwrite(&n, 8, 1, file);
    fputs(header, file);
    fwrite("12345678", 1, 8, file);
    fclose(file);
    rank_open(&one, 0, 1);
    s = load(&one, "bad");
    assert_non_null(strstr(status_text(s), "tensor wte is [2, 2], the model "
                                           "needs [10, 4]"));
    status_drop(s);
    s = load(&one, "/no/such/file");
    assert_int_equal(status_code(s), STATUS_INPUT);
    status_drop(s);
    rank_close(&one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(normals_are_normal),
        cmocka_unit_test(halves),
        cmocka_unit_test(brain_floats),
        cmocka_unit_test(layouts_start_equal),
        cmocka_unit_test(gaps_are_left_alone),
        cmocka_unit_test(shares_start_equal),
        cmocka_unit_test(initial_values),
        cmocka_unit_test(files_keep_the_model),
        cmocka_unit_test(moments_are_apart),
        cmocka_unit_test(parts_keep_the_model),
        cmocka_unit_test(damaged_files),
        cmocka_unit_test(wrong_models),
    };

    return cmocka_run_group_tests(tests, enter, leave);
}
