/* emit_dot.c - contractions by name become matrix products.
 *
 *     dot %x[s,b,h], %w[g,r,d,h] -> [s,b,g,r,d]
 *
 *     m = s b    letters of x and the result       A = x      [m,k]
 *     n = g r d  letters of w and the result       B = w      [n,k] transposed
 *     k = h      letters of x and w                C = result [m,n]
 *     batch      letters of all three
 *
 * Adjacent letters of a kind merge into one index if their strides agree in
 * every operand that has them.  Letters that do not merge are run through one
 * by one: the outermost as the batch if there is none yet, others unrolled.
 * If the result holds the letters of x innermost, x and w change places.
 */
#include "codegen/emit_priv.h"

enum { A, B, C, OPERANDS };

/* One index of a product: a letter, or several merged. */
typedef struct {
    int64_t size;
    int64_t stride[OPERANDS]; /* elements; 0 where the operand lacks it */
} Index;

/* An operand: where it lies and how its letters are strided. */
typedef struct {
    PlanOperand at;
    DType dtype;
    int n;
    char letter[IR_MAX_DIMS];
    int64_t size[IR_MAX_DIMS], stride[IR_MAX_DIMS];
} Matrix;

typedef struct {
    Matrix op[OPERANDS];
    Index m, n, k, batch;
    Index loop[IR_MAX_DIMS];
    uint32_t nloops;
    bool accumulate;
    Epilogue after;
    PlanOperand more[2]; /* bias, residual: those it has; or counts of slots */
    DType bias;
    int64_t parts; /* of the slots, if there are counts */
} Product;

/* ---- operands ------------------------------------------------------------ */

static void matrix_dims(Emit *e, const Type *t, const Layout *layout,
                        Matrix *out)
{
    int64_t stride = 1;

    out->n = t->ndim;
    for (int d = t->ndim; d-- > 0;) {
        out->letter[d] = t->dim[d];
        out->size[d] = layout_local(e->m, t, layout, t->dim[d]);
        out->stride[d] = stride;
        stride *= out->size[d];
    }
}

static Matrix value_matrix(Emit *e, ValueId v, int access)
{
    Matrix x = {.at = emit_value(e, v, access),
                .dtype = value_type(e->m, v)->dtype};

    matrix_dims(e, value_type(e->m, v),
                layout_of(e->m, e->m->values.v[v.i].layout), &x);
    return x;
}

static Matrix gradient_matrix(Emit *e, TensorId t)
{
    const Tensor *tensor = &e->m->tensors.v[t.i];
    Layout layout = tensor_layout(e->m, tensor, FIELD_GRAD);
    Matrix x = {.at = emit_state(e, t, FIELD_GRAD, PLAN_READ | PLAN_WRITE),
                .dtype = tensor->field_dtype[FIELD_GRAD]};

    matrix_dims(e, type_of(e->m, tensor->type), &layout, &x);
    return x;
}

static int letter_at(const Matrix *x, char letter)
{
    for (int d = 0; d < x->n; d++)
        if (x->letter[d] == letter)
            return d;
    return -1;
}

/* ---- indices ------------------------------------------------------------- */

static Index letter_index(const Product *p, char letter)
{
    Index x = {.size = 1};

    for (int i = 0; i < OPERANDS; i++) {
        int d = letter_at(&p->op[i], letter);
        if (d < 0)
            continue;
        x.size = p->op[i].size[d];
        x.stride[i] = p->op[i].stride[d];
    }
    return x;
}

/* Puts an outer index in front of an inner one, if strides allow. */
static bool index_merge(Index *inner, const Index *outer)
{
    if (outer->size == 1)
        return true;
    if (inner->size == 1) {
        *inner = *outer;
        return true;
    }
    for (int i = 0; i < OPERANDS; i++)
        if (outer->stride[i] != inner->stride[i] * inner->size)
            return false;
    inner->size *= outer->size;
    return true;
}

/* Which index a letter belongs to. */
static Index *index_of(Product *p, char letter)
{
    bool a = letter_at(&p->op[A], letter) >= 0;
    bool b = letter_at(&p->op[B], letter) >= 0;
    bool c = letter_at(&p->op[C], letter) >= 0;

    if (a && b && c)
        return &p->batch;
    return !c ? &p->k : a ? &p->m : &p->n;
}

/* Merges the letters of one operand from the innermost outwards. */
static void letters_merge(Product *p, int operand, const Index *skip)
{
    for (int d = p->op[operand].n; d-- > 0;) {
        char letter = p->op[operand].letter[d];
        Index one = letter_index(p, letter);
        Index *into = index_of(p, letter);
        if (into == skip || (operand == A && into != &p->k))
            continue;
        if (!index_merge(into, &one))
            p->loop[p->nloops++] = one;
    }
}

static void product_indices(Product *p)
{
    p->m = p->n = p->k = p->batch = (Index){.size = 1};
    letters_merge(p, C, &p->k);
    letters_merge(p, A, NULL);
}

/* ---- the GEMM ------------------------------------------------------------ */

static void product_swap(Product *p)
{
    Matrix a = p->op[A];
    Index m = p->m;
    Index *all[] = {&p->m, &p->n, &p->k, &p->batch};

    p->op[A] = p->op[B];
    p->op[B] = a;
    p->m = p->n;
    p->n = m;
    for (size_t i = 0; i < MC_LEN(all); i++) {
        int64_t stride = all[i]->stride[A];
        all[i]->stride[A] = all[i]->stride[B];
        all[i]->stride[B] = stride;
    }
    for (uint32_t i = 0; i < p->nloops; i++) {
        int64_t stride = p->loop[i].stride[A];
        p->loop[i].stride[A] = p->loop[i].stride[B];
        p->loop[i].stride[B] = stride;
    }
}

static bool is_unit(const Index *x, int operand)
{
    return x->size == 1 || x->stride[operand] == 1;
}

/* Distance between stored rows of `inner` elements. */
static int64_t row_distance(const Index *rows, const Index *inner, int operand)
{
    return rows->size == 1 ? MC_MAX(inner->size, 1) : rows->stride[operand];
}

static bool gemm_fill(const Product *p, PlanGemm *g)
{
    bool a_plain = is_unit(&p->k, A), b_plain = is_unit(&p->n, B);

    if ((!a_plain && !is_unit(&p->m, A)) || (!b_plain && !is_unit(&p->k, B)) ||
        !is_unit(&p->n, C))
        return false;
    g->m = p->m.size;
    g->n = p->n.size;
    g->k = p->k.size;
    g->batch = p->batch.size;
    g->trans_a = !a_plain;
    g->trans_b = !b_plain;
    g->lda =
        a_plain ? row_distance(&p->m, &p->k, A) : row_distance(&p->k, &p->m, A);
    g->ldb =
        b_plain ? row_distance(&p->k, &p->n, B) : row_distance(&p->n, &p->k, B);
    g->ldc = row_distance(&p->m, &p->n, C);
    if (g->batch > 1) {
        g->stride_a = p->batch.stride[A];
        g->stride_b = p->batch.stride[B];
        g->stride_c = p->batch.stride[C];
    }
    return g->lda >= (g->trans_a ? g->m : g->k) &&
           g->ldb >= (g->trans_b ? g->k : g->n) && g->ldc >= g->n;
}

static int64_t stored_extent(int64_t rows, int64_t columns, int64_t ld,
                             int64_t batch, int64_t stride)
{
    return (rows - 1) * ld + columns + (batch - 1) * stride;
}

static PlanOperand part(const Matrix *x, int64_t offset, int64_t elements)
{
    PlanOperand o = x->at;

    o.offset += offset * dtype_bytes(x->dtype);
    o.bytes = (uint64_t)(elements * dtype_bytes(x->dtype));
    return o;
}

static void gemm_emit(Emit *e, const Product *p, const PlanGemm *g,
                      const int64_t *offset)
{
    PlanOperand list[OPERANDS + 2] = {[OPERANDS] = p->more[0], p->more[1]};

    list[A] =
        part(&p->op[A], offset[A],
             stored_extent(g->trans_a ? g->k : g->m, g->trans_a ? g->m : g->k,
                           g->lda, g->batch, g->stride_a));
    list[B] =
        part(&p->op[B], offset[B],
             stored_extent(g->trans_b ? g->n : g->k, g->trans_b ? g->k : g->n,
                           g->ldb, g->batch, g->stride_b));
    list[C] = part(&p->op[C], offset[C],
                   stored_extent(g->m, g->n, g->ldc, g->batch, g->stride_c));
    list[C].access = PLAN_WRITE | (g->accumulate ? PLAN_READ : 0);
    emit_instr(e, (PlanInstr){.op = PLAN_GEMM, .index = plan_add_gemm(e->b, g)},
               list,
               (uint32_t)OPERANDS + g->bias + g->residual + (g->filled != 0));
}

/* A loop over a contracted letter adds up, so only its first turn may
 * overwrite the result. */
static void loops_emit(Emit *e, const Product *p, PlanGemm g, uint32_t depth,
                       const int64_t *offset)
{
    const Index *loop = &p->loop[depth];
    int64_t at[OPERANDS];

    if (depth == p->nloops) {
        gemm_emit(e, p, &g, offset);
        return;
    }
    for (int64_t i = 0; i < loop->size; i++) {
        for (int x = 0; x < OPERANDS; x++)
            at[x] = offset[x] + i * loop->stride[x];
        loops_emit(e, p, g, depth + 1, at);
        if (loop->stride[C] == 0)
            g.accumulate = true;
    }
}

/* The first loop that is no contraction takes the place of a missing batch. */
static void loop_to_batch(Product *p)
{
    for (uint32_t i = 0; i < p->nloops && p->batch.size == 1; i++) {
        if (p->loop[i].stride[C] == 0)
            continue;
        p->batch = p->loop[i];
        p->loop[i] = p->loop[--p->nloops];
    }
}

/* The form that `dots` with an epilogue has to have makes one product of it. */
static void gemm_epilogue(const Product *p, PlanGemm *g)
{
    static const uint8_t activation[ACTIVATION_COUNT] = {
        [ACTIVATION_RELU] = PLAN_RELU,
        [ACTIVATION_GELU_TANH] = PLAN_GELU_TANH};

    mc_assert(!p->nloops && g->batch == 1 && !g->accumulate);
    g->bias = p->after.bias;
    if (g->bias)
        g->type_bias = (uint8_t)emit_dtype(p->bias);
    g->residual = p->after.residual;
    g->activation = activation[p->after.activation];
}

/* Slots are the rows of the product or what it sums over; where they have been
 * merged or swapped into something else, all are computed. */
static void gemm_filled(const Product *p, PlanGemm *g)
{
    Index c = letter_index(p, 'c');

    if (!p->parts || p->nloops)
        return;
    if (p->m.size == c.size && p->m.stride[A] == c.stride[A] &&
        p->m.stride[C] == c.stride[C])
        g->filled = PLAN_ROWS_FILLED;
    else if (p->k.size == c.size && p->k.stride[A] == c.stride[A] &&
             p->k.stride[B] == c.stride[B])
        g->filled = PLAN_SUM_FILLED;
    g->parts = g->filled ? (uint32_t)p->parts : 0;
}

static void product_emit(Emit *e, Product *p)
{
    const int64_t start[OPERANDS] = {0};
    PlanGemm g = {0};

    product_indices(p);
    loop_to_batch(p);
    if (!is_unit(&p->n, C))
        product_swap(p);
    if (p->op[A].dtype != p->op[B].dtype || !gemm_fill(p, &g)) {
        emit_fail(e, "no matrix product computes this contraction");
        return;
    }
    g.type_a = (uint8_t)emit_dtype(p->op[A].dtype);
    g.type_b = (uint8_t)emit_dtype(p->op[B].dtype);
    g.type_c = g.type_bias = (uint8_t)emit_dtype(p->op[C].dtype);
    g.accumulate = p->accumulate;
    if (has_epilogue(&p->after))
        gemm_epilogue(p, &g);
    gemm_filled(p, &g);
    loops_emit(e, p, g, 0, start);
}

static void product(Emit *e, Matrix a, Matrix b, Matrix c, bool accumulate)
{
    Product p = {.op = {a, b, c}, .accumulate = accumulate};

    product_emit(e, &p);
}

/* ---- cells --------------------------------------------------------------- */

void emit_dot(Emit *e, const Node *n)
{
    MemPlace place = e->mem->place[n->res.i];
    Matrix to = value_matrix(e, n->res, PLAN_WRITE);
    Product p = {.accumulate = place.adds};

    if (place.adds)
        to.dtype = e->m->tensors.v[place.index].field_dtype[place.field];
    p.op[A] = value_matrix(e, node_arg(e->m, n, 0), PLAN_READ);
    p.op[B] = value_matrix(e, node_arg(e->m, n, 1), PLAN_READ);
    p.op[C] = to;
    if (n->op == OP_DOT_FILLED) {
        Matrix filled = value_matrix(e, node_arg(e->m, n, 2), PLAN_READ);
        p.more[0] = filled.at;
        p.parts = filled.size[1];
    }
    product_emit(e, &p);
}

static void dots_accum(Emit *e, const Node *n)
{
    const Attr *tensors = attr_find(e->m, n->attrs, AK_TENSORS);
    Matrix y = value_matrix(e, node_arg(e->m, n, n->nargs - 1u), PLAN_READ);

    for (uint32_t i = 0; i + 1 < n->nargs; i++) {
        int64_t id = e->m->list.v[tensors->as.list.first + i];
        product(e, value_matrix(e, node_arg(e->m, n, i), PLAN_READ), y,
                gradient_matrix(e, (TensorId){(uint32_t)id}), true);
    }
}

static void dots_emit(Emit *e, const Node *n, uint32_t i)
{
    Product p = {.op = {value_matrix(e, node_arg(e->m, n, 0), PLAN_READ),
                        value_matrix(e, node_arg(e->m, n, i + 1), PLAN_READ),
                        value_matrix(e, node_res(n, i), PLAN_WRITE)},
                 .after = node_epilogue(e->m, n)};

    if (p.after.bias) {
        p.more[0] = emit_value(e, epilogue_bias(e->m, n, i), PLAN_READ);
        p.bias = value_type(e->m, epilogue_bias(e->m, n, i))->dtype;
    }
    if (p.after.residual &&
        emit_lies_where(e, node_res(n, i), epilogue_residual(e->m, n, i))) {
        p.after.residual = false;
        p.accumulate = true;
    }
    if (p.after.residual)
        p.more[p.after.bias] =
            emit_value(e, epilogue_residual(e->m, n, i), PLAN_READ);
    product_emit(e, &p);
}

void emit_dots(Emit *e, const Node *n)
{
    uint32_t half = n->nargs / 2;

    if (n->op == OP_DOTS_ACCUM) {
        dots_accum(e, n);
        return;
    }
    for (uint32_t i = 0; n->op == OP_DOTS && i < n->nres; i++)
        dots_emit(e, n, i);
    for (uint32_t i = 0; n->op == OP_DOTS_SUM && i < half; i++)
        product(e, value_matrix(e, node_arg(e->m, n, i), PLAN_READ),
                value_matrix(e, node_arg(e->m, n, half + i), PLAN_READ),
                value_matrix(e, node_res(n, 0), PLAN_WRITE), i > 0);
}
