/* infer_cells.c - result types from operands and attributes.
 *
 * Each cell checks exactly what it needs to name the result types, writes them
 * to `out`, and returns NULL or a complaint.  Ops with a letter signature
 * ("sb,vh->sbh") share one reading of it: operands must have those dimensions
 * in that order, equal letters have equal sizes, and a letter that only the
 * result has takes its size from the attribute `size`.
 */
#include "ir/ir_priv.h"

#include <ctype.h>

static bool is_letter(int64_t c)
{
    return c >= 'a' && c <= 'z';
}

static bool is_float(DType t)
{
    return t == DT_F32 || t == DT_BF16 || t == DT_F16;
}

bool dims_legal(const char *dims)
{
    size_t n = strlen(dims);

    for (size_t i = 0; i < n; i++)
        if (!is_letter(dims[i]) || strchr(dims + i + 1, dims[i]))
            return false;
    return n <= IR_MAX_DIMS;
}

/* The letters of attribute `dims`; NULL if absent or not legal. */
static const char *dims_attr(const Module *m, AttrsId attrs)
{
    const Attr *a = attr_find(m, attrs, AK_DIMS);
    const char *dims = a ? sym_text(m->names, a->as.sym) : NULL;

    return dims && dims_legal(dims) ? dims : NULL;
}

static const char *dtype_attr(Module *m, AttrsId attrs, DType *out)
{
    *out = (DType)attr_int(m, attrs, AK_DTYPE, DT_NONE);
    return *out == DT_NONE ? "needs the attribute `dtype`" : NULL;
}

static TypeId arg_type(const Module *m, ValueId v)
{
    return m->values.v[v.i].type;
}

/* ---- no operands --------------------------------------------------------- */

const char *infer_nothing(Module *m, Op op, const ValueId *args, uint32_t nargs,
                          AttrsId attrs, TypeId *out)
{
    (void)m, (void)op, (void)args, (void)nargs, (void)attrs, (void)out;
    return NULL;
}

/* The node states its type itself. */
static const char *infer_given(TypeId *out)
{
    *out = (TypeId){0};
    return NULL;
}

const char *infer_batch(Module *m, Op op, const ValueId *args, uint32_t nargs,
                        AttrsId attrs, TypeId *out)
{
    (void)m, (void)op, (void)args, (void)nargs, (void)attrs;
    return infer_given(out);
}

const char *infer_recv(Module *m, Op op, const ValueId *args, uint32_t nargs,
                       AttrsId attrs, TypeId *out)
{
    (void)m, (void)op, (void)args, (void)nargs, (void)attrs;
    return infer_given(out);
}

const char *infer_scalar(Module *m, Op op, const ValueId *args, uint32_t nargs,
                         AttrsId attrs, TypeId *out)
{
    (void)op, (void)args, (void)nargs, (void)attrs;
    *out = type_make(m, DT_F32, "", NULL);
    return NULL;
}

const char *infer_vector(Module *m, Op op, const ValueId *args, uint32_t nargs,
                         AttrsId attrs, TypeId *out)
{
    const char *dims = dims_attr(m, attrs);
    int64_t size = attr_int(m, attrs, AK_SIZE, 0);

    (void)op, (void)args, (void)nargs;
    if (!dims || strlen(dims) != 1 || size < 1)
        return "needs `dims` of one letter and a positive `size`";
    *out = type_make(m, DT_F32, dims, &size);
    return NULL;
}

const char *infer_rope_table(Module *m, Op op, const ValueId *args,
                             uint32_t nargs, AttrsId attrs, TypeId *out)
{
    int64_t size[] = {attr_int(m, attrs, AK_SIZE, 0),
                      attr_int(m, attrs, AK_CHANNELS, 0)};

    (void)op, (void)args, (void)nargs;
    if (size[0] < 1 || size[1] < 1)
        return "needs a positive `size` (of s) and `channels` (of d)";
    *out = type_make(m, DT_F32, "sd", size);
    return NULL;
}

/* What of a field the attributes name: the tensor, or with `flat` its lines. */
static const char *field_type(Module *m, AttrsId attrs, Type *out)
{
    TensorId id = attr_tensor(m, attrs, AK_TENSOR);
    int64_t field = attr_int(m, attrs, AK_FIELD, FIELD_COUNT);
    bool flat = attr_int(m, attrs, AK_FLAT, 0) != 0;
    const Tensor *t;

    if (!id.i || id.i >= m->tensors.n || field < 0 || field >= FIELD_COUNT)
        return "needs the attributes `tensor` and `field`";
    t = &m->tensors.v[id.i];
    if (!(t->fields >> field & 1))
        return wrong(m, "@%s has no field %s", sym_text(m->names, t->name),
                     field_names[field]);
    if (flat && !t->flat.i)
        return wrong(m, "@%s does not lie flat", sym_text(m->names, t->name));
    if (t->flat.i && !flat && attr_find(m, attrs, AK_COUNT))
        return wrong(m, "layers of @%s lie together only `flat`",
                     sym_text(m->names, t->name));
    *out = *type_of(m, flat ? t->flat : t->type);
    out->dtype = t->field_dtype[field];
    return NULL;
}

/* Field of a tensor, with a leading l if it is stacked over `count` layers. */
const char *infer_read(Module *m, Op op, const ValueId *args, uint32_t nargs,
                       AttrsId attrs, TypeId *out)
{
    TensorId t = attr_tensor(m, attrs, AK_TENSOR);
    int64_t count = attr_int(m, attrs, AK_COUNT, 1);
    Type type;
    const char *bad = field_type(m, attrs, &type);

    (void)args, (void)nargs;
    if (bad)
        return bad;
    *out = type_intern(m, &type);
    if (attr_find(m, attrs, AK_NEXT) &&
        (op != OP_READ || !tensor_of(m, t)->per_layer ||
         attr_find(m, attrs, AK_COUNT)))
        return "`next` is for reading one layer of a per-layer tensor";
    if (!attr_find(m, attrs, AK_COUNT))
        return NULL;
    if (count < 1 || !tensor_of(m, t)->per_layer)
        return "`count` needs a per-layer tensor and at least one layer";
    if (type.ndim == IR_MAX_DIMS || type_dim(&type, 'l') >= 0)
        return "cannot be stacked over l";
    *out = type_with_first(m, *out, 'l', count);
    return NULL;
}

/* ---- by name: pointwise, reductions -------------------------------------- */

const char *infer_same(Module *m, Op op, const ValueId *args, uint32_t nargs,
                       AttrsId attrs, TypeId *out)
{
    (void)op, (void)nargs, (void)attrs;
    *out = arg_type(m, args[0]);
    return NULL;
}

const char *infer_fetch(Module *m, Op op, const ValueId *args, uint32_t nargs,
                        AttrsId attrs, TypeId *out)
{
    const Attr *first = attr_find(m, attrs, AK_FIRST);
    const Type *t = type_of(m, arg_type(m, args[0]));

    (void)op, (void)nargs;
    *out = arg_type(m, args[0]);
    if (!first)
        return NULL;
    if (!t->ndim || first->as.i < 0 || first->as.i >= t->size[0])
        return "`first` is no index of its outermost dimension";
    *out = type_without(m, *out, t->dim[0]);
    return NULL;
}

/* Where dimension d of `t` belongs in `out`: before those that follow it in
 * `t`, so that [b,e] and [s,b] make [s,b,e]. */
static int place_of(const Type *out, const Type *t, int d)
{
    for (int next = d + 1; next < t->ndim; next++)
        if (type_dim(out, t->dim[next]) >= 0)
            return type_dim(out, t->dim[next]);
    return out->ndim;
}

static void insert_dim(Type *out, int at, char dim, int64_t size)
{
    for (int i = out->ndim++; i > at; i--) {
        out->dim[i] = out->dim[i - 1];
        out->size[i] = out->size[i - 1];
    }
    out->dim[at] = dim;
    out->size[at] = size;
}

/* Adds the dimensions of `t` that `out` lacks. */
static const char *extend(Module *m, Type *out, const Type *t, uint32_t operand)
{
    for (int d = 0; d < t->ndim; d++) {
        if (type_dim(out, t->dim[d]) < 0 && out->ndim < IR_MAX_DIMS)
            insert_dim(out, place_of(out, t, d), t->dim[d], t->size[d]);
        if (type_size(out, t->dim[d]) != t->size[d])
            return wrong(m, "dimension %c of operand %u does not match",
                         t->dim[d], operand + 1);
    }
    return NULL;
}

/* The operand with most dimensions, extended by what only others have. */
static const char *widest_type(Module *m, const ValueId *args, uint32_t nargs,
                               TypeId *out)
{
    uint32_t most = 0;
    const char *bad = NULL;
    Type wide;

    for (uint32_t i = 1; i < nargs; i++)
        if (value_type(m, args[i])->ndim > value_type(m, args[most])->ndim)
            most = i;
    wide = *value_type(m, args[most]);
    for (uint32_t i = 0; i < nargs && !bad; i++)
        bad = extend(m, &wide, value_type(m, args[i]), i);
    if (!bad)
        *out = type_intern(m, &wide);
    return bad;
}

/* All dimensions of the operands. */
const char *infer_pointwise(Module *m, Op op, const ValueId *args,
                            uint32_t nargs, AttrsId attrs, TypeId *out)
{
    TypeId wide;
    const char *bad = widest_type(m, args, nargs, &wide);

    (void)op, (void)attrs;
    if (!bad)
        *out = type_as(m, wide, DT_F32);
    return bad;
}

const char *infer_cast(Module *m, Op op, const ValueId *args, uint32_t nargs,
                       AttrsId attrs, TypeId *out)
{
    DType dtype;
    const char *bad = dtype_attr(m, attrs, &dtype);

    (void)op, (void)nargs;
    if (!bad)
        *out = type_as(m, arg_type(m, args[0]), dtype);
    return bad;
}

const char *infer_onehot(Module *m, Op op, const ValueId *args, uint32_t nargs,
                         AttrsId attrs, TypeId *out)
{
    const char *dims = dims_attr(m, attrs);
    int64_t size = attr_int(m, attrs, AK_SIZE, 0);
    Type t = *value_type(m, args[0]);

    (void)op, (void)nargs;
    if (!dims || strlen(dims) != 1 || size < 1)
        return "needs `dims` of one letter and a positive `size`";
    if (t.dtype != DT_I32)
        return "its operand must be i32";
    if (t.ndim == IR_MAX_DIMS || type_dim(&t, dims[0]) >= 0)
        return wrong(m, "its operand cannot be extended by %s", dims);
    t.dtype = DT_F32;
    t.dim[t.ndim] = dims[0];
    t.size[t.ndim++] = size;
    *out = type_intern(m, &t);
    return NULL;
}

/* The dimensions named by `dims`, which are those of the operand in order. */
const char *infer_reduce(Module *m, Op op, const ValueId *args, uint32_t nargs,
                         AttrsId attrs, TypeId *out)
{
    const char *dims = dims_attr(m, attrs);
    const Type *t = value_type(m, args[0]);
    Type kept = {.dtype = DT_F32};

    (void)op, (void)nargs;
    if (!dims)
        return "needs legal `dims`";
    for (int i = 0; i < t->ndim; i++)
        if (strchr(dims, t->dim[i])) {
            kept.dim[kept.ndim] = t->dim[i];
            kept.size[kept.ndim++] = t->size[i];
        }
    if (strncmp(dims, kept.dim, kept.ndim) || strlen(dims) != kept.ndim)
        return wrong(m, "cannot keep `%s` of %s", dims,
                     type_text(m, arg_type(m, args[0])));
    *out = type_intern(m, &kept);
    return NULL;
}

/* ---- contractions -------------------------------------------------------- */

/* Type of the contraction of x and y to `dims`.  A letter of the result is in
 * either operand; one that is missing in the result must be in both. */
const char *infer_product(Module *m, const Type *x, const Type *y,
                          const char *dims, DType dtype, TypeId *out)
{
    int64_t size[IR_MAX_DIMS];

    if (!is_float(x->dtype) || !is_float(y->dtype))
        return "its operands must be floating-point";
    for (size_t i = 0; dims[i]; i++) {
        if (type_dim(x, dims[i]) < 0 && type_dim(y, dims[i]) < 0)
            return wrong(m, "no operand has dimension %c", dims[i]);
        size[i] = MC_MAX(type_size(x, dims[i]), type_size(y, dims[i]));
    }
    for (int side = 0; side < 2; side++) {
        const Type *a = side ? y : x, *b = side ? x : y;

        for (int i = 0; i < a->ndim; i++) {
            bool shared = type_dim(b, a->dim[i]) >= 0;

            if (shared && type_size(b, a->dim[i]) != a->size[i])
                return wrong(m, "the operands' sizes of %c differ", a->dim[i]);
            if (!shared && !strchr(dims, a->dim[i]))
                return wrong(m, "only one operand has %c, nor does the result",
                             a->dim[i]);
        }
    }
    *out = type_make(m, dtype, dims, size);
    return NULL;
}

const char *infer_dot(Module *m, Op op, const ValueId *args, uint32_t nargs,
                      AttrsId attrs, TypeId *out)
{
    const char *dims = dims_attr(m, attrs);
    DType dtype;
    const char *bad = dtype_attr(m, attrs, &dtype);

    (void)op, (void)nargs;
    if (bad || !dims)
        return bad ? bad : "needs legal `dims`";
    return infer_product(m, value_type(m, args[0]), value_type(m, args[1]),
                         dims, dtype, out);
}

const char *infer_dots(Module *m, Op op, const ValueId *args, uint32_t nargs,
                       AttrsId attrs, TypeId *out)
{
    const Attr *each = attr_find(m, attrs, AK_EACH);
    uint32_t n = each ? each->as.list.n : 0;
    uint32_t lists = 1u + (attr_int(m, attrs, AK_BIAS, 0) != 0) +
                     (attr_int(m, attrs, AK_RESIDUAL, 0) != 0);
    DType dtype;
    const char *bad = dtype_attr(m, attrs, &dtype);

    (void)op;
    if (!bad && (!n || nargs != 1 + n * lists))
        bad = "needs `each` with the dimensions of every result";
    for (uint32_t i = 1; i <= n && !bad; i++) {
        Sym sym = {(uint32_t)m->list.v[each->as.list.first + i - 1]};
        const char *dims = sym_text(m->names, sym);

        if (!dims_legal(dims))
            return wrong(m, "`%s` are no legal dimensions", dims);
        bad = infer_product(m, value_type(m, args[0]), value_type(m, args[i]),
                            dims, dtype, &out[i - 1]);
    }
    return bad;
}

const char *infer_dots_sum(Module *m, Op op, const ValueId *args,
                           uint32_t nargs, AttrsId attrs, TypeId *out)
{
    const char *dims = dims_attr(m, attrs);
    uint32_t n = nargs / 2;
    TypeId first = {0};
    DType dtype;
    const char *bad = dtype_attr(m, attrs, &dtype);

    (void)op;
    if (!bad && (!dims || !n || nargs % 2))
        bad = "needs legal `dims` and as many weights as inputs";
    for (uint32_t i = 0; i < n && !bad; i++) {
        bad = infer_product(m, value_type(m, args[i]),
                            value_type(m, args[n + i]), dims, dtype, out);
        first = i ? first : *out;
        if (!bad && out->i != first.i)
            bad = "its products differ in type";
    }
    return bad;
}

/* ---- letter signatures --------------------------------------------------- */

typedef struct {
    int64_t of[26]; /* size of each letter, 0: not bound yet */
} Sizes;

/* Binds the letters of an operand ("sb") to its sizes; `end` is behind them. */
static const char *bind_operand(Module *m, const Type *t, const char *sig,
                                uint32_t i, Sizes *sizes, const char **end)
{
    int d = 0;

    for (; isalpha((unsigned char)*sig); sig++, d++) {
        char letter = (char)tolower((unsigned char)*sig);
        int64_t *size = &sizes->of[letter - 'a'];

        if (d >= t->ndim || t->dim[d] != letter)
            return wrong(m, "operand %u lacks dimension %c there", i + 1,
                         letter);
        if (*size && *size != t->size[d])
            return wrong(m, "the operands' sizes of %c differ", letter);
        *size = t->size[d];
    }
    *end = sig;
    return d == t->ndim ? NULL
                        : wrong(m, "operand %u has %d dimensions, not %d",
                                i + 1, t->ndim, d);
}

static const char *bind_operands(Module *m, Op op, const ValueId *args,
                                 uint32_t nargs, Sizes *sizes)
{
    const char *sig = op_info[op].sig;

    for (uint32_t i = 0; i < nargs; i++) {
        const char *end = sig;
        const char *bad = bind_operand(m, value_type(m, args[i]), sig, i,
                                       sizes, &end);

        if (bad)
            return bad;
        sig = end + (*end == ',');
    }
    return NULL;
}

/* Types of the results by the part of the signature behind "->". */
static const char *sig_results(Module *m, Op op, AttrsId attrs,
                               const Sizes *sizes, const DType *dtype,
                               TypeId *out)
{
    const char *sig = strstr(op_info[op].sig, "->") + 2;
    Type t = {.dtype = dtype[0]};

    for (uint32_t k = 0;; sig++) {
        char letter = (char)tolower((unsigned char)*sig);

        if (*sig && *sig != ',') {
            int64_t bound = sizes->of[letter - 'a'];

            t.dim[t.ndim] = letter;
            t.size[t.ndim] = bound ? bound : attr_int(m, attrs, AK_SIZE, 0);
            if (t.size[t.ndim++] < 1)
                return wrong(m, "needs a positive `size` (of %c)", letter);
            continue;
        }
        out[k++] = type_intern(m, &t);
        if (!*sig)
            return NULL;
        t = (Type){.dtype = dtype[k]};
    }
}

static const char *infer_sig(Module *m, Op op, const ValueId *args,
                             uint32_t nargs, AttrsId attrs, const DType *dtype,
                             TypeId *out)
{
    Sizes sizes = {{0}};
    const char *bad = bind_operands(m, op, args, nargs, &sizes);

    return bad ? bad : sig_results(m, op, attrs, &sizes, dtype, out);
}

static const char *want_dtypes(Module *m, const ValueId *args, uint32_t nargs,
                               const DType *want)
{
    for (uint32_t i = 0; i < nargs; i++) {
        DType got = value_type(m, args[i])->dtype;

        if (want[i] == DT_NONE ? !is_float(got) : got != want[i])
            return wrong(m, "operand %u must be %s", i + 1,
                         want[i] ? dtype_name(want[i]) : "floating-point");
    }
    return NULL;
}

const char *infer_embed(Module *m, Op op, const ValueId *args, uint32_t nargs,
                        AttrsId attrs, TypeId *out)
{
    DType table = value_type(m, args[1])->dtype;
    const char *bad = want_dtypes(m, args, nargs, (DType[]){DT_I32, DT_NONE});

    return bad ? bad : infer_sig(m, op, args, nargs, attrs, &table, out);
}

const char *infer_embed_grad(Module *m, Op op, const ValueId *args,
                             uint32_t nargs, AttrsId attrs, TypeId *out)
{
    const DType f32 = DT_F32;
    const char *bad = want_dtypes(m, args, nargs, (DType[]){DT_I32, DT_NONE});

    return bad ? bad : infer_sig(m, op, args, nargs, attrs, &f32, out);
}

const char *infer_rows(Module *m, Op op, const ValueId *args, uint32_t nargs,
                       AttrsId attrs, TypeId *out)
{
    DType table = value_type(m, args[0])->dtype;
    const char *bad = infer_sig(m, op, args, nargs, attrs, &table, out);

    if (!bad && type_size(type_of(m, *out), 's') >
                    type_size(value_type(m, args[0]), 'p'))
        bad = "takes more rows than the table has";
    return bad;
}

const char *infer_rows_grad(Module *m, Op op, const ValueId *args,
                            uint32_t nargs, AttrsId attrs, TypeId *out)
{
    const DType f32 = DT_F32;
    const char *bad = infer_sig(m, op, args, nargs, attrs, &f32, out);

    if (!bad && type_size(type_of(m, *out), 'p') <
                    type_size(value_type(m, args[0]), 's'))
        bad = "has more rows than the table";
    return bad;
}

const char *infer_attention(Module *m, Op op, const ValueId *args,
                            uint32_t nargs, AttrsId attrs, TypeId *out)
{
    const DType dtype[] = {value_type(m, args[0])->dtype, DT_F32};
    const char *bad = nargs == 3 || nargs == 5
                          ? want_dtypes(m, args, nargs,
                                        (DType[5]){[4] = DT_F32})
                          : "takes q, k, v and perhaps o and lse";

    return bad ? bad : infer_sig(m, op, args, nargs, attrs, dtype, out);
}

/* Operands q, k, v, o, lse, do; results dq, dk, dv. */
const char *infer_attention_grad(Module *m, Op op, const ValueId *args,
                                 uint32_t nargs, AttrsId attrs, TypeId *out)
{
    const DType dtype[] = {value_type(m, args[0])->dtype,
                           value_type(m, args[1])->dtype,
                           value_type(m, args[2])->dtype};
    const char *bad =
        want_dtypes(m, args, nargs, (DType[6]){[4] = DT_F32});

    return bad ? bad : infer_sig(m, op, args, nargs, attrs, dtype, out);
}

/* ---- mixture of experts -------------------------------------------------- */

const char *infer_topk(Module *m, Op op, const ValueId *args, uint32_t nargs,
                       AttrsId attrs, TypeId *out)
{
    const DType f32 = DT_F32;

    return infer_sig(m, op, args, nargs, attrs, &f32, out);
}

const char *infer_fit(Module *m, Op op, const ValueId *args, uint32_t nargs,
                      AttrsId attrs, TypeId *out)
{
    const DType f32 = DT_F32, want[] = {DT_F32, DT_F32};
    const char *bad = want_dtypes(m, args, nargs, want);

    return bad ? bad : infer_sig(m, op, args, nargs, attrs, &f32, out);
}

const char *infer_rounds(Module *m, Op op, const ValueId *args, uint32_t nargs,
                         AttrsId attrs, TypeId *out)
{
    const DType f32 = DT_F32;
    const char *bad = want_dtypes(m, args, nargs, &f32);

    return bad ? bad : infer_scalar(m, op, args, nargs, attrs, out);
}

/* The rows may be of any floating-point type and keep it. */
const char *infer_filled(Module *m, Op op, const ValueId *args, uint32_t nargs,
                         AttrsId attrs, TypeId *out)
{
    const DType f32 = DT_F32;
    const char *bad = want_dtypes(m, args, nargs, &f32);

    return bad ? bad : infer_sig(m, op, args, nargs, attrs, &f32, out);
}

static const char *infer_routed(Module *m, Op op, const ValueId *args,
                                AttrsId attrs, TypeId *out)
{
    const DType want[] = {DT_F32, DT_F32, DT_NONE};
    DType rows = value_type(m, args[2])->dtype;
    const char *bad = want_dtypes(m, args, 3, want);

    return bad ? bad : infer_sig(m, op, args, 3, attrs, &rows, out);
}

const char *infer_dispatch(Module *m, Op op, const ValueId *args,
                           uint32_t nargs, AttrsId attrs, TypeId *out)
{
    (void)nargs;
    return infer_routed(m, op, args, attrs, out);
}

const char *infer_combine(Module *m, Op op, const ValueId *args,
                          uint32_t nargs, AttrsId attrs, TypeId *out)
{
    (void)nargs;
    return infer_routed(m, op, args, attrs, out);
}

const char *infer_combine_weight(Module *m, Op op, const ValueId *args,
                                 uint32_t nargs, AttrsId attrs, TypeId *out)
{
    const DType want[] = {DT_F32, DT_NONE, DT_NONE}, f32 = DT_F32;
    const char *bad = want_dtypes(m, args, nargs, want);

    return bad ? bad : infer_sig(m, op, args, nargs, attrs, &f32, out);
}
