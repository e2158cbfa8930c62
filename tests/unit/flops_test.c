/* flops_test.c - what a model needs for a token, as Megatron-LM counts it.
 *
 * The figures are ratios of published TFLOP/s to tokens/s per GPU (Megatron-
 * Bridge's performance summary, 25.09 to 26.08), in GFLOP per token; those of
 * 405B and 70B are recomputed from public shapes with the formula of
 * num_floating_point_operations, since published speeds are rounded.
 */
#include "frontend/frontend.h"

#include <setjmp.h>
#include <cmocka.h>

static void published_ratios(void **state)
{
    static const struct {
        const char *model, *seq;
        double gflops;
    } rows[] = {{"llama3-8b", "training.seq_length=8192", 51.5},
                {"llama3-70b", "training.seq_length=8192", 449.2},
                {"llama3-405b", "training.seq_length=8192", 2524.0},
                {"qwen3-30b-a3b", "training.seq_length=4096", 23.0},
                {"qwen3-235b-a22b", "training.seq_length=4096", 148.0}};

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        Arena *a = arena_new();
        Diag *d = diag_new(a);
        const char *path = arena_printf(a, "%s/configs/models/%s.yaml",
                                        MEGAC_SOURCE_DIR, rows[i].model);
        const Spec *s = spec_load(a, d, path, &rows[i].seq, 1);
        assert_non_null(s);
        double each = 1e-9 * spec_flops(s) / (double)spec_tokens(s);
        if (each < rows[i].gflops - 0.051 || each > rows[i].gflops + 0.051)
            fail_msg("%s: %.2f GFLOP per token, not %.1f", rows[i].model, each,
                     rows[i].gflops);
        diag_free(d);
        arena_free(a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_ratios),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
