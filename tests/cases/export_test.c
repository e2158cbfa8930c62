/* export_test.c - the names in the files that a run writes and reads.
 *
 * From public bug reports: pytorch/torchtitan#3764, ml-explore/mlx-lm#1298 and
 * vllm-project/vllm#6758 (MC-74, a head of zero bytes beside a tied table, a
 * redundant or a missing head).
 */
#include "cases.h"

static bool saved(const char *out, const char *name)
{
    return case_shell("grep -aqF '\"%s\"' %s.saved/weights.safetensors", name,
                      out) == 0;
}

/* Tied, only the table is saved, by whichever stage; untied both. */
static void a_tied_head_is_not_saved(void **state)
{
    (void)state;
    case_train("tied", "model.tie_embeddings=true parallel.pp=2");
    case_train("untied", "parallel.pp=2");
    assert_true(saved("tied", "model.embed_tokens.weight"));
    assert_false(saved("tied", "lm_head.weight"));
    assert_true(saved("untied", "model.embed_tokens.weight"));
    assert_true(saved("untied", "lm_head.weight"));
}

/* Neither a missing head nor one that the model does not have passes. */
static void a_head_belongs_to_its_model(void **state)
{
    (void)state;
    assert_int_equal(
        case_shell("$MEGAC run untied --load tied.saved/weights.safetensors"),
        1);
    assert_true(case_printed("has no tensor lm_head.weight"));
    assert_int_equal(
        case_shell("$MEGAC run tied --load untied.saved/weights.safetensors"),
        1);
    assert_true(case_printed("lm_head.weight and model.embed_tokens.weight are "
                             "not the same"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tied_head_is_not_saved),
        cmocka_unit_test(a_head_belongs_to_its_model),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
