/* plan_rank_test.c - what a plan means on each rank, and how it reads.
 *
 * Groups and peers of the mesh tp 2, dp 2, pp 2 are written out by hand from
 * rank = tp + 2*dp + 4*pp.
 */
#include "plan_sample.h"

#include <setjmp.h>
#include <cmocka.h>

static Plan load_sample(void)
{
    Buf b = sample_plan();
    Plan p;

    assert_null(plan_load(b.s, b.len, &p));
    buf_free(&b);
    return p;
}

static void coordinates_and_peers(void **state)
{
    Plan p = load_sample();

    (void)state;
    assert_int_equal(plan_coordinate(&p.atoms.v[1], 6), 1);
    assert_true(plan_has_rank(&p, 3));
    assert_false(plan_has_rank(&p, 4));
    assert_false(plan_has_rank(&p, 8));
    assert_int_equal(plan_peer_rank(&p, 0, 3), 7);
    assert_int_equal(plan_peer_rank(&p, 0, 7), 3);
    assert_int_equal(plan_expr_value(&p, 1, 3), 64);
    plan_free(&p);
}

static void groups_in_order(void **state)
{
    uint32_t ranks[8] = {0}, own;
    Plan p = load_sample();

    (void)state;
    assert_int_equal(plan_group_ranks(&p, 0, 3, ranks, 8, &own), 2);
    assert_int_equal(ranks[0], 2);
    assert_int_equal(own, 1);
    assert_int_equal(plan_group_ranks(&p, 1, 6, ranks, 8, &own), 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(ranks[i], 4 + i);
    assert_int_equal(own, 2);
    plan_free(&p);
}

static void picks_keep_coordinates(void **state)
{
    PlanBuilder *b = plan_builder_new();
    uint32_t ranks[4], own, pp;
    Buf out = {0};
    Plan p;

    (void)state;
    plan_job(b)->world = 16;
    *plan_training(b) = (PlanTraining){.global_batch = 1,
                                       .micro_batch = 1,
                                       .seq_length = 1,
                                       .microbatches = 1};
    plan_data(b)->vocab = 2;
    plan_add_memory(b, "arena", PLAN_MEMORY_DEVICE, 0, 64);
    pp = plan_add_atom(b, "pp", 4, 4);
    plan_add_group(b, "embed", &pp, 1, (uint32_t[]){0, 3}, 2);
    plan_segment_begin(b, "main");
    plan_write(b, &out);
    assert_null(plan_load(out.s, out.len, &p));
    assert_int_equal(plan_group_ranks(&p, 0, 13, ranks, 4, &own), 2);
    assert_int_equal(ranks[0], 1);
    assert_int_equal(ranks[1], 13);
    assert_int_equal(own, 1);
    plan_group_ranks(&p, 0, 5, ranks, 4, &own);
    assert_int_equal(own, UINT32_MAX);
    plan_free(&p);
    plan_builder_free(b);
    buf_free(&out);
}

static void parts_of_fields(void **state)
{
    Plan p = load_sample();
    PlanPart part;

    (void)state;
    plan_field_part(&p, p.tensors.v, p.fields.v, 3, &part);
    assert_int_equal(part.ndims, 2);
    assert_int_equal(part.size[0], 16);
    assert_int_equal(part.start[0], 16);
    assert_int_equal(part.size[1], 4);
    assert_int_equal(part.start[1], 0);
    assert_int_equal(part.elements, 64);
    plan_free(&p);
}

static void names_of_layers(void **state)
{
    char name[20];

    (void)state;
    assert_true(plan_layer_name("a.{l}.b", 12, name, sizeof name));
    assert_string_equal(name, "a.12.b");
    assert_true(plan_layer_name("plain", 12, name, sizeof name));
    assert_string_equal(name, "plain");
    assert_false(plan_layer_name("a.{l}.b", 12, name, 6));
    assert_true(plan_part_name("a.{e}.b", 7, name, sizeof name));
    assert_string_equal(name, "a.7.b");
}

static const char printed_code[] =
    "\nsegment layer.fwd(x, w, l int)\n"
    "    launch sample_norm (r x+0[64], w x+64[64], l+0)"
    "  ; tiny.yaml:9:25 rmsnorm %3\n"
    "    gemm 4x8x16 Bt f32f32>f32 ld 16 16 8 accumulate "
    "(r x+0[256], r w+0[512], rw 8192[128])  ; tiny.yaml:9:25 rmsnorm %3\n"
    "\nsegment main()\n"
    "    host load_batch tokens (0, w 0[64])\n"
    "    fill 0x3f800000 (w 4096[512])\n"
    "    call layer.fwd x3 reverse (4096, 256 step 256, 0 step 1)\n"
    "    event 0 ()\n"
    "    wait 0 @tp ()\n"
    "    collective all_reduce sum 32 f32 over dp_tp @tp "
    "(r 8192[128], w 8192[128])\n"
    "    collective all_gather 16 f32 over tp @tp (r 8192[64], w 8192[128])\n"
    "    send next stage channel 5 @tp (r 8192[128])\n"
    "    recv next stage channel 6 @tp join (w 8192[128])\n"
    "    copy (w 32768[64], r 16384{tp*64}[64])\n"
    "    host scalar lr (w 64[4])\n"
    "    host metric loss (r 64[4])\n"
    "    host grads ()\n";

static void plan_reads_well(void **state)
{
    Plan p = load_sample();
    char line[160];
    Buf b = {0};

    (void)state;
    plan_print(&p, &b);
    assert_non_null(strstr(b.s, "\nsegment"));
    assert_string_equal(strstr(b.s, "\nsegment"), printed_code);
    assert_non_null(strstr(b.s, "param f32 at 256 step 256 f@tp owner {dp*1}"));
    plan_instr_text(&p, 0, line, sizeof line);
    assert_string_equal(line, "tiny.yaml:9:25: launch, rmsnorm %3, of x, in "
                              "segment layer.fwd (instruction 0)");
    buf_free(&b);
    plan_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(coordinates_and_peers),
        cmocka_unit_test(groups_in_order),
        cmocka_unit_test(picks_keep_coordinates),
        cmocka_unit_test(parts_of_fields),
        cmocka_unit_test(names_of_layers),
        cmocka_unit_test(plan_reads_well),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
