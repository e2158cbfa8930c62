/* ir_verify_test.c - the verifier on golden modules with one thing broken.
 *
 * Each row replaces one piece of a correct text, which must then be read, but
 * rejected by module_verify with the message and code given.
 */
#include "ir_sample.h"

typedef struct {
    const char *from, *to, *error;
} Fault;

/* Prints what is not as expected. */
static bool finds(const char *golden, const Fault *f)
{
    Buf text = golden_read(golden);
    Buf broken = text_with(buf_str(&text), f->from, f->to);
    Sample s = sample_parse(buf_str(&broken));
    bool accepted = s.m && module_verify(s.m);
    bool found = s.m && !accepted && strstr(sample_errors(&s), f->error);

    if (!found)
        print_error("`%s`\n  wanted: %s\n  %s: %s\n", f->to, f->error,
                    accepted ? "accepted" : s.m ? "got" : "not read",
                    sample_errors(&s));
    sample_free(&s);
    buf_free(&broken);
    buf_free(&text);
    return found;
}

/* ---- ops, without layouts ------------------------------------------------ */

static const Fault op_faults[] = {
    {"%2 = neg %low : f32", "%2 = neg %low : bf16",
     "result 1 must be f32[s=6, b=2, h=4], not bf16[s=6, b=2, h=4] [MC0611]"},
    {"neg %low", "neg %low, %x", "takes 1 operands, not 2"},
    {"%ok = valid %tokens", "%ok = exp %tokens",
     "operand 1 must be floating-point"},
    {"%in = inrange {dims=v, size=16, limit=10} : f32[v=16]",
     "%in = inrange {dims=h, size=5, limit=3} : f32[h=5]\n"
     "%bad = mul %x, %in : f32[s=6, b=2, h=4]",
     "dimension h of operand 2 does not match"},
    {"{dims=sb} : f32[s=6, b=2]\n    %22", "{dims=bs} : f32[s=6, b=2]\n    %22",
     "cannot keep `bs` of f32[s=6, b=2, h=4]"},
    {"{num=1, den=4, root=1}", "{num=1}", "needs either `value`, or `num`"},
    {"{num=1, den=4, root=1}", "{num=1, den=4, value=2}", "needs either"},
    {"onehot %tokens {dims=v, size=16}", "onehot %tokens {dims=v}",
     "needs `dims` of one letter and a positive `size`"},
    {"onehot %tokens", "onehot %c", "its operand must be i32"},
    {"count=2, args=\">#\"", "count=2, reverse=1, args=\">#\"",
     "runs the first of its iterations, so not in reverse"},
    {"args=\">#\", results=\">\"} : f32[s=6, b=2, e=4]",
     "args=\".#\", results=\"t\"} : f32[t=2, s=6, b=2, e=4]",
     "may run no iteration, so its results must be carries"},
    {"args=\">#\", results=\">\"}", "args=\"#>\", results=\">\"}",
     "its number of trips must be one f32 scalar"},
    {"rounds %1 {", "rounds %6 {", "its operand must be a choice [s, b, e]"},
    {"{size=6, what=cos, rotary=4, channels=4,", "{size=6, what=cos,",
     "needs a positive `size` (of s) and `channels`"},
    {"batch {what=tokens, mb=0}", "batch {mb=0}", "needs the attribute `what`"},
    {"cast %1 {dtype=bf16}", "cast %1", "needs the attribute `dtype`"},
    {"dot %x, %w {dims=sbf,", "dot %x, %w {dims=sbh,",
     "only one operand has f, nor does the result"},
    {"dot %x, %w {dims=sbf,", "dot %x, %w {dims=sbv,",
     "no operand has dimension v"},
    {"dot %x, %w {dims=sbf, dtype=bf16}", "dot %x, %w {dims=sbf}",
     "needs the attribute `dtype`"},
    {"%w : bf16[f=8, h=4],\n    %u", "%w : bf16[f=8, h=5],\n    %u",
     "the operands' sizes of h differ"},
    {"each=[sbf, sbf]", "each=[sbf]", "has 1 results, not 2"},
    {", each=[sbf, sbf]", "", "no `callee` or `each`"},
    {"%y, %w, %b, %x {", "%y, %w, %x {", "needs `each`"},
    {"%y, %w, %b, %x {", "%y, %w, %x, %b {",
     "bias 1 is not what the rows of its result need"},
    {"%y, %w, %b, %x {", "%y, %w, %b, %y {",
     "residual 1 is not of its result's type"},
    {"act=gelu_tanh", "act=silu", "`act` names no activation"},
    {"%z = dots %y, %w, %b, %x {dtype=f32, each=[sbh], bias=1, residual=1, "
     "act=gelu_tanh} : f32[s=6, b=2, h=4]",
     "%z = dots %y, %w {dtype=f32, each=[hsb], act=relu} : "
     "f32[h=4, s=6, b=2]",
     "product 1 is no single one"},
    {"dots_sum %1, %2, %w, %u", "dots_sum %1, %w, %u", "needs legal `dims`"},
    {"tensors=[@w, @u]", "tensors=[@w]", "needs `tensors`, one per operand"},
    {"dots_accum %1, %2, %3 {tensors=[@w, @u]}",
     "dots_accum %1, %2 {tensors=[@w]}", "no operand has dimension h"},
    {"tensors=[@w, @u]", "tensors=[@w, @loss]", "@loss has no gradient"},
    {"embed %tokens, %table", "embed %table, %tokens",
     "operand 1 must be i32"},
    {"embed_grad %tokens, %4 {size=16}", "embed_grad %tokens, %4",
     "needs a positive `size` (of v)"},
    {"rows %places {size=6} : f32[s=6", "rows %places {size=60} : f32[s=60",
     "takes more rows than the table has"},
    {"rows_grad %6 {size=12} : f32[p=12", "rows_grad %6 {size=5} : f32[p=5",
     "has more rows than the table"},
    {"rotate %q {rotary=4, sign=-1}", "rotate %q {rotary=3, sign=-1}",
     "needs an even `rotary`"},
    {"rotate %q {rotary=4, sign=-1}", "rotate %q {rotary=4, sign=2}",
     "`sign` must be 1 or -1"},
    {"part %1 {first=4, size=1}", "part %k {first=4, size=1}",
     "its operand needs the dimension j"},
    {"part %1 {first=4, size=1} : bf16[s=6, b=2, g=2, d=4]",
     "part %1 {first=3, size=2} : bf16[s=6, b=2, g=2, d=4]",
     "indices of j are named r, or are one"},
    {"part %1 {first=4, size=1}", "part %1 {first=5, size=1}",
     "j has not so many indices"},
    {"part %1 {first=0, size=3, dim=r}", "part %1 {first=0, size=3, dim=h}",
     "indices of j are named r, or are one"},
    {"join %q, %k, %k {dims=sbgjd}", "join %q, %k, %k {dims=sbgrd}",
     "needs legal `dims` with j, without r"},
    {"join %q, %k, %k {dims=sbgjd}", "join %q, %k, %k {dims=sbjd}",
     "operand 1 does not fit in"},
    {"join %q, %k, %k {dims=sbgjd}", "join {dims=sbgjd}", "needs operands"},
    {"attention %q, %k, %k", "attention %k, %k, %k",
     "operand 1 lacks dimension r there"},
    {"attention %q, %k, %k", "attention %q, %q, %k",
     "operand 2 lacks dimension d there"},
    {"all_gather %10 {dim=s, axes=tp}", "all_gather %10 {axes=tp}",
     "needs the attribute `dim`"},
    {"all_reduce %x {axes=tp}", "all_reduce %x", "needs the attribute `axes`"},
    {"all_to_all %12 {dim=s, from=h, axes=tp}",
     "all_to_all %12 {dim=s, axes=tp}", "needs the attribute `from`"},
    {"read {tensor=@w, field=param} : bf16", "read {field=param} : bf16",
     "needs the attributes `tensor` and `field`"},
    {"read {tensor=@w, field=param} : bf16",
     "read {tensor=@w, field=master} : bf16", "@w has no field master"},
    {"write %w {tensor=@w, field=param}", "write %g {tensor=@w, field=param}",
     "its operand must be bf16[f=8, h=4], not f32[f=8, h=4]"},
    {"{count=2, tensor=@w, field=grad} : f32[l=2, f=8, h=4]",
     "{count=2, tensor=@loss, field=acc} : f32[l=2]",
     "`count` needs a per-layer tensor"},
    {"%w = read {tensor=@w, field=param} : bf16[f=8, h=4]",
     "%w = read {tensor=@w, field=param, flat=1} : bf16[n=8, w=4]",
     "@w does not lie flat"},
    {"{count=2, tensor=@z, field=grad, flat=1} : f32[l=2, n=4, w=4]",
     "{count=2, tensor=@z, field=grad} : f32[l=2, f=5, h=3]",
     "layers of @z lie together only `flat`"},
    {"write %row {tensor=@z, field=param, flat=1}",
     "write %z {tensor=@z, field=param}",
     "replaces the lines of a tensor only `flat`"},
    {"flatten %g : f32[n=4, w=4]", "flatten %g : f32[n=7, w=2]",
     "needs lines [n, w] with room for the value"},
    {"unflatten %row : bf16[f=5, h=3]", "unflatten %row : f32[f=5, h=3]",
     "its operand is of another dtype"},
    {"flat bf16[n=4, w=4] {}", "flat bf16[n=2, w=7] {}",
     "its lines are not those of its parts [MC0615]"},
    {"row %same, %c {callee=@scale}", "call %same, %c {callee=@scale}",
     "needs a `callee` that is no row program"},
    {"%9 = all_reduce %x {axes=tp}", "%9 = row %x {callee=@route}",
     "needs a `callee` that is a row program"},
    {"row %same, %c {callee=@scale}", "row %same {callee=@scale}",
     "its callee takes 2 values, not 1"},
    {"row %same, %c {callee=@scale}", "row %same, %ok {callee=@scale}",
     "operand 2 does not have its parameter's type"},
    {"%1 = mul %x, %c : f32[s=6, b=2, h=4]\n    return",
     "%1 = dot %x, %c {dims=sbh, dtype=f32} : f32[s=6, b=2, h=4]\n    return",
     "has no place in a row program"},
};

static const Fault call_faults[] = {
    {"args=\">lk\", results=\">lk\"", "args=\".lk\", results=\">lk\"",
     "its carried parameters and results do not pair up"},
    {"args=\">lk\", results=\">lk\"", "args=\">lk\", results=\">.k\"",
     "result 2 is whole, but `count` is not 1"},
    {"args=\">lk\", results=\">lk\"", "args=\">lb\", results=\">lk\"",
     "does not give parameter f32[b=2, k=3]"},
    {"args=\">lk\", results=\">lk\"", "args=\">l\", results=\">lk\"",
     "`args` has 2 modes for 3 values"},
    {"first=2, count=4", "first=2, count=3",
     "operand 2, a f32[l=4, s=6, b=2], does not give parameter"},
    {"first=2, count=4", "first=2, count=0", "`count` must be positive"},
    {"first=2, count=4", "first=-2, count=4", "`first` must not be negative"},
    {"call %x, %stack, %rows {callee=@layer", "call %x, %stack {callee=@layer",
     "its callee takes 3 values, not 2"},
    {"{callee=@layer, over=l, first=2", "{callee=@scale, over=l, first=2",
     "has 1 results, not 3"},
    {"{callee=@scale}", "{callee=@layer}", "has 3 results, not 1"},
    {"{callee=@layer, over=l, first=2", "{over=l, first=2",
     "its number of results is unknown"},
    {"%1 = add %x, %t : f32[s=6, b=2]",
     "%1 = add %x, %t : f32[s=6, b=2]\n call %x, %x, %row {callee=@step}",
     "calls itself [MC0614]"},
};

/* ---- layouts ------------------------------------------------------------- */

static const Fault layout_faults[] = {
    /* a layout by itself */
    {"%tokens : i32[s=8, b=4] {b@dp}", "%tokens : i32[s=8, b=4] {b@dp +dp}",
     "its layout uses axis dp twice [MC0612]"},
    {"%tokens : i32[s=8, b=4] {b@dp}", "%tokens : i32[s=8, b=4] {h@dp}",
     "its layout splits h, which it lacks"},
    {"%tokens : i32[s=8, b=4] {b@dp}", "%tokens : i32[s=8, b=3] {b@dp}",
     "size 3 of b does not split into 2"},
    {"%tokens : i32[s=8, b=4] {b@dp}", "%tokens : i32[s=8, b=4]",
     "a value has no layout"},
    /* a partial sum where the op is not linear */
    {"%1 = sum %p {dims=sb} : f32[s=8, b=4] {b@dp +tp}\n    %2 = all_reduce "
     "%1 {axes=tp}",
     "%1 = sum %p {dims=sb} : f32[s=8, b=4] {b@dp +tp}\n    %2 = exp %1",
     "operand 1 is only a partial sum [MC0613]"},
    {"call %c, %trips {", "call %c, %top {",
     "ranks do not agree on its number of trips"},
    {"%e = expsub %y.2, %m.2", "%e = expsub %y.2, %m",
     "operand 2 is only a partial maximum"},
    {"%6 = add %4, %5", "%6 = add %4, %c", "partial sums over different axes"},
    {"%5 = only %c {axes=tp.dp} : f32 {+tp.dp}\n    %6 = add %4, %5",
     "%5 = copy %c : f32 {}\n    %6 = add %5, %5",
     "result 1 is a partial sum over other axes"},
    /* a reduction forgotten: the result pretends to be complete */
    {"%1 = sum %p {dims=sb} : f32[s=8, b=4] {b@dp +tp}",
     "%1 = sum %p {dims=sb} : f32[s=8, b=4] {b@dp}",
     "result 1 is a partial sum over other axes"},
    {"%m = max %y.2 {dims=sb} : f32[s=8, b=4] {b@dp ^tp}",
     "%m = max %y.2 {dims=sb} : f32[s=8, b=4] {b@dp}",
     "result 1 is a partial maximum over other axes"},
    {"%y = dot %o, %wo {dims=sbh, dtype=f32} : f32[s=8, b=4, h=8] {b@dp +tp}",
     "%y = dot %o, %wo {dims=sbh, dtype=f32} : f32[s=8, b=4, h=8] {b@dp +tp.0}",
     "result 1 is a partial sum over other axes"},
    /* K and V are replicated over tp.1, so their gradients are partial */
    {"%dk, %dv = attention_grad %q, %k, %k, %o, %lse, %o {causal=1} : f32[s=8, "
     "b=4, g=2, r=2, d=4] {b@dp g@tp.0 r@tp.1}, f32[s=8, b=4, g=2, d=4] {b@dp "
     "g@tp.0 +tp.1}",
     "%dk, %dv = attention_grad %q, %k, %k, %o, %lse, %o {causal=1} : f32[s=8, "
     "b=4, g=2, r=2, d=4] {b@dp g@tp.0 r@tp.1}, f32[s=8, b=4, g=2, d=4] {b@dp "
     "g@tp.0}",
     "result 2 is a partial sum over other axes"},
    /* operands that do not fit together */
    {"%z = add %x, %y.2", "%z = add %x, %n.2", "split s differently"},
    {"embed %tokens, %w : f32[s=8, b=4, h=8] {b@dp +tp}",
     "embed %tokens, %w : f32[s=8, b=4, h=8] {+tp}",
     "split b differently"},
    {"%q, %k = dots %n.2, %wq, %wk", "%q, %k = dots %n, %wq, %wk",
     "split s differently"},
    {"%c = const {value=1} : f32 {}",
     "%a = onehot %tokens {dims=d, size=8} : f32[s=8, b=4, d=8] {b@dp d@tp}\n"
     "%b = rotate %a {rotary=8} : f32[s=8, b=4, d=8] {b@dp d@tp}\n"
     "%c = const {value=1} : f32 {}",
     "d must be whole on a rank"},
    /* epilogues */
    {"%y = dot %o, %wo {dims=sbh, dtype=f32}",
     "%y = dots %o, %wo, %w {dtype=f32, each=[sbh], bias=1}",
     "its epilogue is applied to a partial sum"},
    {"%o, %lse = attention %q",
     "%b = sum %wq {dims=grd} : f32[g=2, r=2, d=4] {g@tp.0 r@tp.1}\n"
     "%b9 = all_gather %b {dim=r, axes=tp.1} : f32[g=2, r=2, d=4] {g@tp.0}\n"
     "%q9 = dots %n.2, %wq, %b9 {dtype=f32, each=[sbgrd], bias=1} : "
     "f32[s=8, b=4, g=2, r=2, d=4] {b@dp g@tp.0 r@tp.1}\n"
     "%o, %lse = attention %q",
     "bias 1 is not split as its result"},
    {"%o, %lse = attention %q",
     "%k9 = all_gather %k {dim=g, axes=tp.0} : f32[s=8, b=4, g=2, d=4] "
     "{b@dp}\n"
     "%k8 = dots %n.2, %wk, %k9 {dtype=f32, each=[sbgd], residual=1} : "
     "f32[s=8, b=4, g=2, d=4] {b@dp g@tp.0}\n"
     "%o, %lse = attention %q",
     "residual 1 is not laid out as its result"},
    {"%y = dot %o, %wo {dims=sbh, dtype=f32}",
     "%y = dots %o, %wo, %n.2 {dtype=f32, each=[sbh], residual=1}",
     "residual 1 is not laid out as its result"},
    /* collectives that do not do what their layouts say */
    {"%n.2 = all_gather !tp %n {dim=s, axes=tp}",
     "%n.2 = all_gather !tp %n {dim=s, axes=tp.0}",
     "does not turn its operand's layout into its result's [MC0613]"},
    {"%y.2 = reduce_scatter !tp %y {dim=s, axes=tp}",
     "%y.2 = slice !tp %y {dim=s, axes=tp}", "does not turn"},
    {"%2 = all_reduce %1 {axes=tp}", "%2 = all_reduce %1 {axes=dp}",
     "does not turn"},
    {"%m.2 = all_reduce_max %m", "%m.2 = all_reduce %m", "does not turn"},
    {"all_to_all %y {dim=h, from=s, axes=tp}",
     "all_to_all %y {dim=s, from=h, axes=tp}", "does not turn"},
    {"%3 = slice %2 {dim=s, axes=tp} : f32[s=8, b=4] {b@dp s@tp}",
     "%3 = slice %2 {dim=s, axes=tp} : f32[s=8, b=4] {b@dp s@tp.1.tp.0}\n"
     "%30 = add %3, %2 : f32[s=8, b=4] {b@dp}",
     "split s differently"},
    {"%5 = only %c {axes=tp.dp} : f32 {+tp.dp}",
     "%5 = convert %c : f32 {+tp.dp}", "is left over"},
    /* state and calls */
    {"read {tensor=@embed, field=param} : f32[v=16, h=8] {v@tp}",
     "read {tensor=@embed, field=param} : f32[v=16, h=8] {}",
     "not that in which the field rests"},
    {"accum %2 {tensor=@norm, field=grad}",
     "%20 = all_reduce %2 {axes=tp.dp} : f32[h=8] {}\n"
     "accum %20 {tensor=@norm, field=grad}",
     "not that in which the field rests"},
    /* lines */
    {"flat f32[n=8, w=3] {f@tp}", "flat f32[n=6, w=4] {f@tp}",
     "its lines are not those of its parts [MC0615]"},
    {"flat f32[n=8, w=3] {f@tp}", "flat f32[n=8, w=3] {}",
     "takes for whole what a rank has a share of"},
    {"    param f32 {n@tp.dp}", "    param f32 {n@dp.tp}",
     "lines of field param are not split as the tensor is"},
    {"%gate = unflatten %lines", "%gate = unflatten %share",
     "its lines are not split as the value"},
    {"%lines.2 = flatten %4 : f32[n=8, w=3] {n@tp +dp}",
     "%lines.2 = flatten %4 : f32[n=8, w=3] {n@tp}",
     "its lines are not split as the value"},
    {"read {tensor=@gate, field=m}", "read {tensor=@gate, field=grad}",
     "takes for whole what a rank has a share of"},
    {"grad f32 {g@tp.0 +tp.1.dp}", "grad f32 {g@tp.0 +dp}",
     "a product is a partial sum over other axes"},
    {"dots_accum %dq, %dv, %n.2 {tensors=[@q, @k]}",
     "%x9 = dot %o, %wo {dims=sbh, dtype=f32} : f32[s=8, b=4, h=8] {b@dp +tp}\n"
     "dots_accum %dv, %x9 {tensors=[@k]}",
     "both operands of a product are only partial"},
    {"call %x.2 {callee=@layer.fwd", "call %x {callee=@layer.fwd",
     "operand 1 is not laid out as its parameter"},
    {"f32[s=8, b=4, h=8] {b@dp s@tp}, f32[l=2",
     "f32[s=8, b=4, h=8] {b@dp h@tp}, f32[l=2",
     "result 1 is not laid out as its callee's"},
    {"row %x, %w {callee=@scale} : f32[s=8, b=4, h=8] {b@dp s@tp}",
     "row %x, %w {callee=@scale} : f32[s=8, b=4, h=8] {b@dp h@tp}",
     "result 1 is not laid out as its callee's"},
};

static const Fault decl_faults[] = {
    {"logical bf16[f=6, h=4]", "logical bf16[f=9, h=4]",
     "its logical type is larger than its type [MC0615]"},
    {"logical bf16[f=6, h=4]", "logical bf16[h=4]",
     "its logical type has other dimensions"},
    {"master f32 {f@tp}", "master f32 {f@tp +tp.0}", "uses axis tp twice"},
    {"master f32 {f@tp}", "master f32", "field master has no layout"},
    {"grad f32 {f@tp +dp}", "grad f32 {f@tp +ep}", "uses axis tp twice"},
    {"world=16", "world=8", "reach beyond the world of 8 ranks [MC0616]"},
    {"first=2, layers=2", "first=2, layers=3",
     "stage 1 holds layers beyond the model's 4"},
    {"kinds=[0, 1, 1, 0]", "kinds=[0, 1, 1]",
     "3 kinds are given for 4 layers [MC0616]"},
};

#define FAULTS(name, golden)                                                   \
    static void name##_are_found(void **state)                                 \
    {                                                                          \
        size_t found = 0;                                                      \
        (void)state;                                                           \
        for (size_t i = 0; i < MC_LEN(name); i++)                              \
            found += finds(golden, &name[i]);                                  \
        assert_int_equal(found, MC_LEN(name));                                 \
    }
FAULTS(op_faults, "ops.mir")
FAULTS(call_faults, "ops.mir")
FAULTS(layout_faults, "placed.mir")
FAULTS(decl_faults, "decls.mir")

/* ---- faults that no text can express ------------------------------------- */

typedef struct {
    Sample s;
    FuncId f;
} Built;

static Built build(void)
{
    Built b = {.s = sample_parse("func @f(%x : f32[s=4]) {\n"
                                 "%y = exp %x : f32[s=4]\n"
                                 "%z = exp %y : f32[s=4]\n"
                                 "return %z }\n"
                                 "func @g(%x : f32[s=4]) { return %x }\n")};
    assert_non_null(b.s.m);
    assert_true(module_verify(b.s.m));
    b.f = (FuncId){1};
    return b;
}

static void expect_error(Built *b, const char *error)
{
    assert_false(module_verify(b->s.m));
    if (!strstr(sample_errors(&b->s), error))
        fail_msg("got %s", sample_errors(&b->s));
    sample_free(&b->s);
}

static void order_and_ownership(void **state)
{
    Built b = build();
    NodeId *body = func_of(b.s.m, b.f)->body.v, first = body[0];

    (void)state;
    body[0] = body[1];
    body[1] = first;
    expect_error(&b, "operand 1 is not defined here [MC0610]");

    b = build();
    vec_push(&func_of(b.s.m, b.f)->body, first);
    expect_error(&b, "a value is defined twice [MC0610]");

    b = build();
    b.s.m->args.v[node_of(b.s.m, first)->arg] =
        func_of(b.s.m, (FuncId){2})->params.v[0];
    expect_error(&b, "operand 1 is not defined here");

    b = build();
    func_of(b.s.m, b.f)->results.v[0] = (ValueId){0};
    expect_error(&b, "result 1 is not defined [MC0610]");

    b = build();
    value_of(b.s.m, node_of(b.s.m, first)->res)->def = (NodeId){0};
    expect_error(&b, "names another node as its own");

    b = build();
    func_of(b.s.m, b.f)->name = func_of(b.s.m, (FuncId){2})->name;
    expect_error(&b, "two functions are named @g [MC0603]");
}

/* A message leads to the line that is wrong. */
static void errors_have_a_place(void **state)
{
    Sample s = sample_parse("func @f(%x : f32[s=4]) {\n"
                            "    %y = exp %x : f32[s=5]\n"
                            "    return %y\n"
                            "}\n");

    (void)state;
    assert_false(module_verify(s.m));
    assert_string_equal(
        sample_errors(&s),
        "t.mir:2:5: error: @f: `%y = exp %x : f32[s=5]`: result 1 must be "
        "f32[s=4], not f32[s=5] [MC0611]\n"
        "    2 |     %y = exp %x : f32[s=5]\n"
        "      |     ^\n");
    sample_free(&s);
}

/* Left-over functions need no layouts; those that an entry reaches do. */
static void unreached_functions_may_lack_layouts(void **state)
{
    static const char text[] =
        "module {layers=0, microbatches=1, props=[layout]}\n"
        "mesh world=2 {tp=2:1}\n"
        "func @old(%x : f32[s=4]) { return %x }\n"
        "func @new(%x : f32[s=4] {s@tp}) { return %x }\n"
        "entry @new\n";
    Buf other = text_with(text, "entry @new", "entry @old");
    Sample good = sample_parse(text), bad = sample_parse(buf_str(&other));

    (void)state;
    assert_true(module_verify(good.m));
    assert_false(module_verify(bad.m));
    assert_non_null(strstr(sample_errors(&bad), "a value has no layout"));
    sample_free(&good);
    sample_free(&bad);
    buf_free(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(op_faults_are_found),
        cmocka_unit_test(call_faults_are_found),
        cmocka_unit_test(layout_faults_are_found),
        cmocka_unit_test(decl_faults_are_found),
        cmocka_unit_test(order_and_ownership),
        cmocka_unit_test(errors_have_a_place),
        cmocka_unit_test(unreached_functions_may_lack_layouts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
