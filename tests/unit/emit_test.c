/* emit_test.c - plans that run, against the evaluator.
 *
 * The modules are written as text, as `fuse` and `streams` would leave them;
 * what they should compute is what the evaluator says.
 */
#include "emit_bench.h"

/* Two layers x + relu(x w1') w2', forward and backward, and an SGD step on all
 * layers at once. */
static const char mlp[] =
    "module {layers=2, microbatches=1, props=[inferred, layout, pipelined]}\n"
    "mesh world=1 {}\n"
    "tensor @x : f32[s=6, h=10] {\n    param f32 {}\n    grad f32 {}\n}\n"
    "tensor @w1 : f32[f=14, h=10] {\n    parameter\n    layers\n"
    "    param f32 {}\n    grad f32 {}\n}\n"
    "tensor @w2 : f32[h=10, f=14] {\n    parameter\n    layers\n"
    "    param f32 {}\n    grad f32 {}\n    m f32 {}\n}\n"
    "row @relu(%u : f32[s=6, f=14] {}) {\n"
    "    %a = relu %u : f32[s=6, f=14] {}\n    return %a\n}\n"
    "row @add(%x : f32[s=6, h=10] {}, %y : f32[s=6, h=10] {}) {\n"
    "    %z = add %x, %y : f32[s=6, h=10] {}\n    return %z\n}\n"
    "row @relu_grad(%a : f32[s=6, f=14] {}, %d : f32[s=6, f=14] {}) {\n"
    "    %p = step %a : f32[s=6, f=14] {}\n"
    "    %u = mul %p, %d : f32[s=6, f=14] {}\n    return %u\n}\n"
    "row @sgd(%p : f32[l=2, h=10, f=14] {}, %g : f32[l=2, h=10, f=14] {},"
    " %m : f32[l=2, h=10, f=14] {}) {\n"
    "    %b = add %m, %g : f32[l=2, h=10, f=14] {}\n"
    "    %q = sub %p, %b : f32[l=2, h=10, f=14] {}\n    return %q, %b\n}\n"
    "func @layer(%x : f32[s=6, h=10] {}) {\n"
    "    %w1 = read {tensor=@w1, field=param} : f32[f=14, h=10] {}\n"
    "    %w2 = read {tensor=@w2, field=param} : f32[h=10, f=14] {}\n"
    "    %u = dot %x, %w1 {dims=sf, dtype=f32} : f32[s=6, f=14] {}\n"
    "    %a = row %u {callee=@relu} : f32[s=6, f=14] {}\n"
    "    %v = dot %a, %w2 {dims=sh, dtype=f32} : f32[s=6, h=10] {}\n"
    "    %y = row %x, %v {callee=@add} : f32[s=6, h=10] {}\n"
    "    return %y, %x, %a\n}\n"
    "func @layer.bwd(%dy : f32[s=6, h=10] {}, %x : f32[s=6, h=10] {},"
    " %a : f32[s=6, f=14] {}) {\n"
    "    %w1 = read {tensor=@w1, field=param} : f32[f=14, h=10] {}\n"
    "    %w2 = read {tensor=@w2, field=param} : f32[h=10, f=14] {}\n"
    "    dots_accum %dy, %a {tensors=[@w2]}\n"
    "    %da = dot %dy, %w2 {dims=sf, dtype=f32} : f32[s=6, f=14] {}\n"
    "    %du = row %a, %da {callee=@relu_grad} : f32[s=6, f=14] {}\n"
    "    dots_accum %du, %x {tensors=[@w1]}\n"
    "    %dv = dot %du, %w1 {dims=sh, dtype=f32} : f32[s=6, h=10] {}\n"
    "    %dx = row %dy, %dv {callee=@add} : f32[s=6, h=10] {}\n"
    "    return %dx\n}\n"
    "func @step() {\n"
    "    clear {tensor=@w1, field=grad}\n    clear {tensor=@w2, field=grad}\n"
    "    %x = read {tensor=@x, field=param} : f32[s=6, h=10] {}\n"
    "    %y, %xs, %as = call %x {callee=@layer, over=l, count=2, args=\">\","
    " results=\">ll\"} : f32[s=6, h=10] {}, f32[l=2, s=6, h=10] {},"
    " f32[l=2, s=6, f=14] {}\n"
    "    %d = call %y, %xs, %as {callee=@layer.bwd, over=l, count=2,"
    " reverse=1, args=\">ll\", results=\">\"} : f32[s=6, h=10] {}\n"
    "    write %d {tensor=@x, field=grad}\n"
    "    %p = read {tensor=@w2, field=param, count=2} :"
    " f32[l=2, h=10, f=14] {}\n"
    "    %g = read {tensor=@w2, field=grad, count=2} :"
    " f32[l=2, h=10, f=14] {}\n"
    "    %m = read {tensor=@w2, field=m, count=2} : f32[l=2, h=10, f=14] {}\n"
    "    %q, %n = row %p, %g, %m {callee=@sgd} : f32[l=2, h=10, f=14] {},"
    " f32[l=2, h=10, f=14] {}\n"
    "    write %q {tensor=@w2, field=param, count=2}\n"
    "    write %n {tensor=@w2, field=m, count=2}\n"
    "    return\n}\n"
    "stage {pp=0, chunk=0, first=0, layers=2}\n"
    "entry @step\n";

static void a_step_of_layers_runs(void **state)
{
    EmitBench b;
    uint32_t compared;

    (void)state;
    emit_open(&b, mlp);
    emit_check(&b, 1e-5, &compared);
    /* x: param, grad; w1: param, grad per layer; w2: param, grad, m */
    assert_int_equal(compared, 2 + 2 * 2 + 3 * 2);
    emit_close(&b);
}

/* The update works on the tensors themselves: no copies of them exist. */
static void an_update_needs_no_memory(void **state)
{
    EmitBench b;
    MemPlace p;
    const Func *step;

    (void)state;
    emit_open(&b, mlp);
    step = &b.m->funcs.v[b.m->entry.v[0].i];
    for (uint32_t i = 0; i < step->body.n; i++) {
        const Node *n = &b.m->nodes.v[step->body.v[i].i];
        if (n->op != OP_ROW && n->op != OP_READ)
            continue;
        for (uint32_t r = 0; r < n->nres; r++) {
            p = b.mem->place[node_res(n, r).i];
            assert_int_equal(p.base, MEM_STATE);
        }
    }
    emit_close(&b);
}

/* ---- collectives along inner dimensions ---------------------------------- */

#define STATE(name, type, rest, field)                                         \
    "tensor @" name " : f32" type " {\n    init normal 0.02\n    " field       \
    " f32 " rest "\n}\n"

/* Blocks must be put in order before or after each of them, but for the last
 * two, whose layers are large enough to travel one by one. */
static const char inner[] =
    "module {layers=0, microbatches=1, props=[inferred, layout, pipelined]}\n"
    "mesh world=2 {tp=2:1}\n"
    STATE("x", "[s=4, h=6, d=2]", "{h@tp}", "param")
    STATE("p", "[s=4, h=6, d=2]", "{+tp}", "param")
    STATE("whole", "[s=4, h=6, d=2]", "{}", "m")
    STATE("sum", "[s=4, h=6, d=2]", "{h@tp}", "m")
    STATE("turned", "[s=4, h=6, d=2]", "{d@tp}", "m")
    STATE("back", "[s=4, h=6, d=2]", "{s@tp}", "m")
    STATE("part", "[s=4, h=6, d=2]", "{d@tp}", "v")
    STATE("stack", "[l=2, h=64, d=128]", "{h@tp}", "param")
    STATE("sums", "[l=2, h=64, d=128]", "{+tp}", "param")
    STATE("stack_whole", "[l=2, h=64, d=128]", "{}", "m")
    STATE("sums_part", "[l=2, h=64, d=128]", "{h@tp}", "m")
    "func @step() {\n"
    "    %x = read {tensor=@x, field=param} : f32[s=4, h=6, d=2] {h@tp}\n"
    "    %p = read {tensor=@p, field=param} : f32[s=4, h=6, d=2] {+tp}\n"
    "    %g = all_gather %x {dim=h, axes=tp} : f32[s=4, h=6, d=2] {}\n"
    "    write %g {tensor=@whole, field=m}\n"
    "    %r = reduce_scatter %p {dim=h, axes=tp} : f32[s=4, h=6, d=2]"
    " {h@tp}\n"
    "    write %r {tensor=@sum, field=m}\n"
    "    %t = all_to_all %x {dim=d, from=h, axes=tp} : f32[s=4, h=6, d=2]"
    " {d@tp}\n"
    "    write %t {tensor=@turned, field=m}\n"
    "    %b = all_to_all %x {dim=s, from=h, axes=tp} : f32[s=4, h=6, d=2]"
    " {s@tp}\n"
    "    write %b {tensor=@back, field=m}\n"
    "    %s = slice %g {dim=d, axes=tp} : f32[s=4, h=6, d=2] {d@tp}\n"
    "    write %s {tensor=@part, field=v}\n"
    "    %k = read {tensor=@stack, field=param} : f32[l=2, h=64, d=128]"
    " {h@tp}\n"
    "    %kg = all_gather %k {dim=h, axes=tp} : f32[l=2, h=64, d=128] {}\n"
    "    write %kg {tensor=@stack_whole, field=m}\n"
    "    %u = read {tensor=@sums, field=param} : f32[l=2, h=64, d=128]"
    " {+tp}\n"
    "    %ur = reduce_scatter %u {dim=h, axes=tp} : f32[l=2, h=64, d=128]"
    " {h@tp}\n"
    "    write %ur {tensor=@sums_part, field=m}\n"
    "    return\n}\nentry @step\n";

static void inner_dimensions_travel(void **state)
{
    EmitBench b;
    uint32_t compared;

    (void)state;
    emit_open(&b, inner);
    emit_check(&b, 1e-6, &compared);
    /* @x, @stack and what was made, on two ranks; @p and @sums are partial */
    assert_int_equal(compared, 9 * 2);
    emit_close(&b);
}

/* ---- products of all shapes ---------------------------------------------- */

#define PRODUCT(x, y, z, dims)                                                 \
    "module {layers=0, microbatches=1, props=[inferred, layout, pipelined]}\n" \
    "mesh world=1 {}\n" STATE("x", x, "{}", "param")                           \
    STATE("y", y, "{}", "param") STATE("z", z, "{}", "m")                      \
    "func @step() {\n"                                                         \
    "    %x = read {tensor=@x, field=param} : f32" x " {}\n"                   \
    "    %y = read {tensor=@y, field=param} : f32" y " {}\n"                   \
    "    %z = dot %x, %y {dims=" dims ", dtype=f32} : f32" z " {}\n"           \
    "    write %z {tensor=@z, field=m}\n"                                      \
    "    return\n}\nentry @step\n"

/* Each needs something else: transposed operands, merged letters, operands
 * that change places, a batch, letters in between that do not merge. */
static const char *const products[] = {
    PRODUCT("[s=4, h=6]", "[f=5, h=6]", "[s=4, f=5]", "sf"),
    PRODUCT("[h=6, s=4]", "[h=6, f=5]", "[s=4, f=5]", "sf"),
    PRODUCT("[s=4, h=6]", "[h=6, f=5]", "[f=5, s=4]", "fs"),
    PRODUCT("[s=4, b=3, h=6]", "[g=2, d=5, h=6]", "[s=4, b=3, g=2, d=5]",
            "sbgd"),
    PRODUCT("[s=4, b=3, g=2, d=5]", "[g=2, d=5, h=6]", "[s=4, b=3, h=6]",
            "sbh"),
    PRODUCT("[s=4, b=3, g=2, d=5]", "[s=4, b=3, h=6]", "[g=2, d=5, h=6]",
            "gdh"),
    PRODUCT("[b=3, s=4, h=6]", "[b=3, h=6, f=5]", "[b=3, s=4, f=5]", "bsf"),
    PRODUCT("[s=4, b=3, h=6]", "[f=5, h=6]", "[b=3, s=4, f=5]", "bsf"),
    PRODUCT("[s=4, g=2, h=6]", "[h=6, g=2, f=5]", "[s=4, f=5]", "sf"),
    PRODUCT("[s=4, h=6]", "[h=6]", "[s=4]", "s"),
    PRODUCT("[s=4]", "[f=5]", "[s=4, f=5]", "sf"),
};

static void products_of_all_shapes_agree(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(products); i++) {
        EmitBench b;
        emit_open(&b, products[i]);
        emit_check(&b, 1e-5, NULL);
        emit_close(&b);
    }
}

/* ---- whole models -------------------------------------------------------- */

/* The loss and the norm, which no tensor shows. */
static void metrics_agree(const EmitBench *b, const EvalResult *r, double limit)
{
    EvalNum loss, norm;

    assert_true(eval_get_metric(r, "loss", &loss));
    assert_true(eval_get_metric(r, "grad_norm", &norm));
    assert_true(fabs((double)b->metric[PLAN_METRIC_LOSS] - loss.f) <
                limit * fabs(loss.f));
    assert_true(fabs((double)b->metric[PLAN_METRIC_GRAD_NORM] - norm.f) <
                limit * fabs(norm.f));
}

static const char llama[] =
    "version: 1\n"
    "model: {num_layers: 4, hidden_size: 32, num_attention_heads: 4,\n"
    "  num_query_groups: 2, ffn_hidden_size: 48, vocab_size: 40,\n"
    "  vocab_divisor: 16}\n"
    "training: {seq_length: 12, micro_batch_size: 2, global_batch_size: 8,\n"
    "  precision: fp32}\n";
static const char gpt2[] =
    "version: 1\n"
    "model: {num_layers: 4, hidden_size: 32, num_attention_heads: 4,\n"
    "  vocab_size: 40, vocab_divisor: 16, normalization: layernorm,\n"
    "  activation: gelu_tanh, position_embedding: learned,\n"
    "  tie_embeddings: true, qkv_bias: true, linear_bias: true}\n"
    "training: {seq_length: 12, micro_batch_size: 2, global_batch_size: 8,\n"
    "  precision: fp32}\n";

typedef const char *Sets[6]; /* up to NULL */

static const Sets layouts[] = {
    {"parallel.tp=1"},
    {"parallel.tp=4"}, /* more ranks than groups of keys */
    {"parallel.tp=2", "parallel.sp=true"},
    {"parallel.dp=2"},
    {"parallel.pp=4"},
    {"parallel.pp=2", "parallel.schedule=gpipe"},
    {"parallel.tp=2", "parallel.sp=true", "parallel.pp=2", "parallel.dp=2"},
    {"parallel.dp=2", "parallel.pp=2", "parallel.vpp=2"},
    {"parallel.dp=2", "parallel.pp=2", "parallel.schedule=zb-v"},
    {"parallel.dp=2", "training.recompute.granularity=full"},
    {"parallel.dp=2", "parallel.sharding=optim"},
    {"parallel.tp=2", "parallel.pp=2", "parallel.dp=2",
     "parallel.sharding=optim_grads_params"},
};

static void check_layout(const char *spec, const char *const *sets,
                         double fields, double metrics)
{
    EmitBench b;

    emit_open_spec(&b, spec, sets);
    metrics_agree(&b, emit_check(&b, fields, NULL), metrics);
    emit_close(&b);
}

static void check_model(const char *spec)
{
    for (size_t i = 0; i < MC_LEN(layouts); i++)
        check_layout(spec, layouts[i], 2e-4, 1e-5);
}

static void llama_steps_agree(void **state)
{
    (void)state;
    check_model(llama);
}

static void gpt2_steps_agree(void **state)
{
    (void)state;
    check_model(gpt2);
}

/* Numbers of 8 bits: 2^-8 is half a step, of which a gradient sums up some. */
static void a_bf16_step_agrees(void **state)
{
    static const Sets sets = {"training.precision=bf16", "parallel.tp=2",
                              "parallel.sp=true", "parallel.pp=2"};

    (void)state;
    check_layout(llama, sets, 0.04, 0.01);
}

/* Numbers of 11 bits. */
static void a_f16_step_agrees(void **state)
{
    static const Sets sets = {"training.precision=fp16", "parallel.tp=2",
                              "parallel.sp=true", "parallel.pp=2"};

    (void)state;
    check_layout(llama, sets, 0.005, 0.002);
}

static const char experts[] =
    "version: 1\n"
    "model: {num_layers: 2, hidden_size: 32, num_attention_heads: 4,\n"
    "  num_query_groups: 2, ffn_hidden_size: 48, vocab_size: 40,\n"
    "  vocab_divisor: 16,\n"
    "  moe: {num_experts: 4, top_k: 2, ffn_hidden_size: 16}}\n"
    "training: {seq_length: 12, micro_batch_size: 2, global_batch_size: 8,\n"
    "  precision: fp32}\n";

static void steps_with_experts_agree(void **state)
{
    static const Sets sets[] = {
        {"parallel.tp=1"},
        {"parallel.tp=2", "parallel.sp=true", "parallel.ep=2"},
        {"parallel.pp=2", "parallel.ep=2"},
        {"parallel.ep=2", "model.moe.layer_freq=[0,1]"},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(sets); i++)
        check_layout(experts, sets[i], 2e-4, 1e-5);
}

static void steps_with_dropout_agree(void **state)
{
    static const Sets sets[] = {
        {"model.hidden_dropout=0.2", "model.attention_dropout=0.3"},
        {"model.hidden_dropout=0.2", "model.attention_dropout=0.3",
         "parallel.tp=4", "parallel.sp=true", "parallel.pp=2"},
        {"model.hidden_dropout=0.2", "model.attention_dropout=0.3",
         "parallel.dp=2"},
        {"model.hidden_dropout=0.2", "model.attention_dropout=0.3",
         "parallel.pp=2", "parallel.vpp=2",
         "training.recompute.granularity=full"},
        {"model.sliding_window=5", "parallel.dp=2", "parallel.tp=2"},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(sets); i++) {
        check_layout(llama, sets[i], 2e-4, 1e-5);
        check_layout(gpt2, sets[i], 2e-4, 1e-5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_of_layers_runs),
        cmocka_unit_test(an_update_needs_no_memory),
        cmocka_unit_test(inner_dimensions_travel),
        cmocka_unit_test(products_of_all_shapes_agree),
        cmocka_unit_test(llama_steps_agree),
        cmocka_unit_test(gpt2_steps_agree),
        cmocka_unit_test(a_bf16_step_agrees),
        cmocka_unit_test(a_f16_step_agrees),
        cmocka_unit_test(steps_with_experts_agree),
        cmocka_unit_test(steps_with_dropout_agree),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
