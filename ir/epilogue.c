/* epilogue.c - what a product does to its result before storing it.
 *
 *     %y = dots %x, %w, %bias, %r {act=relu, bias=1, each=[sbf], residual=1}
 *
 *     y[s,b,f] = relu(sum over h of x[s,b,h] w[f,h] + bias[f] + r[s,b,f])
 *
 * Libraries do this for one matrix, row by row: m are the letters of x in the
 * result, n those of w behind them, k what is contracted, and each lies
 * together and in one order in all operands.  An epilogue belongs to complete
 * results; on partial sums a bias would count once per rank.  A residual may be
 * a partial sum as the result is.
 */
#include "ir/ir_priv.h"

#include <ctype.h>
#include <stdlib.h>

/* ---- activations --------------------------------------------------------- */

const Activation activations[ACTIVATION_COUNT] = {
    [ACTIVATION_NONE] = {"none", "x"},
#define ACTIVATION(NAME, text, formula) [ACTIVATION_##NAME] = {text, formula},
#include "ir/activations.def"
#undef ACTIVATION
};

int activation_find(const char *name)
{
    for (int i = ACTIVATION_NONE + 1; i < ACTIVATION_COUNT; i++)
        if (!strcmp(activations[i].name, name))
            return i;
    return -1;
}

FormulaWord formula_word(const char **at)
{
    char word[32];
    size_t n = strcspn(*at, " ");

    snprintf(word, sizeof word, "%.*s", (int)n, *at);
    *at += n + strspn(*at + n, " ");
    if (!strcmp(word, "x"))
        return (FormulaWord){.kind = FORMULA_X};
    if (isdigit((unsigned char)*word))
        return (FormulaWord){FORMULA_NUMBER, OP_NONE, strtod(word, NULL)};
    return (FormulaWord){.kind = FORMULA_OP, .op = op_find(word)};
}

/* ---- what a node carries ------------------------------------------------- */

Epilogue node_epilogue(const Module *m, const Node *n)
{
    const Attr *act = attr_find(m, n->attrs, AK_ACT);

    return (Epilogue){
        .bias = attr_int(m, n->attrs, AK_BIAS, 0) != 0,
        .residual = attr_int(m, n->attrs, AK_RESIDUAL, 0) != 0,
        .activation =
            act ? activation_find(sym_text(m->names, act->as.sym)) : 0};
}

/* ---- its form ------------------------------------------------------------ */

/* Letters of x that are also in `in`, or that are not. */
static void letters_of(const Type *x, const Type *in, bool shared, char *out)
{
    for (int d = 0; d < x->ndim; d++)
        if ((type_dim(in, x->dim[d]) >= 0) == shared)
            *out++ = x->dim[d];
    *out = '\0';
}

static bool reads(const Type *t, const char *first, const char *second)
{
    size_t n = strlen(first);

    return (size_t)t->ndim == n + strlen(second) &&
           !memcmp(t->dim, first, n) &&
           !memcmp(t->dim + n, second, t->ndim - n);
}

/* Rows then columns, or columns then rows. */
static bool is_matrix(const Type *t, const char *rows, const char *columns)
{
    return reads(t, rows, columns) || reads(t, columns, rows);
}

bool epilogue_fits(const Type *x, const Type *w, const Type *y)
{
    char m[IR_MAX_DIMS + 1], n[IR_MAX_DIMS + 1], k[IR_MAX_DIMS + 1];

    letters_of(x, w, false, m);
    letters_of(w, x, false, n);
    letters_of(x, w, true, k);
    return *n && x->dtype == w->dtype && reads(y, m, n) &&
           is_matrix(x, m, k) && is_matrix(w, n, k);
}

bool bias_fits(const Type *x, const Type *w, const Type *bias)
{
    char n[IR_MAX_DIMS + 1];

    letters_of(w, x, false, n);
    return reads(bias, n, "") &&
           (bias->dtype == DT_F32 || bias->dtype == w->dtype);
}

static const char *check_form(Module *m, const Node *n, const Epilogue *e,
                              uint32_t i)
{
    const Type *x = value_type(m, node_arg(m, n, 0));
    const Type *w = value_type(m, node_arg(m, n, i + 1));

    if (!epilogue_fits(x, w, value_type(m, node_res(n, i))))
        return wrong(m, "product %u is no single one, so has no epilogue",
                     i + 1);
    if (e->bias &&
        !bias_fits(x, w, value_type(m, epilogue_bias(m, n, i))))
        return wrong(m, "bias %u is not what the rows of its result need",
                     i + 1);
    if (e->residual && value_of(m, epilogue_residual(m, n, i))->type.i !=
                           value_of(m, node_res(n, i))->type.i)
        return wrong(m, "residual %u is not of its result's type", i + 1);
    return NULL;
}

const char *verify_dots(Module *m, const Node *n)
{
    Epilogue e = node_epilogue(m, n);
    const char *bad = NULL;

    if (e.activation < 0)
        return "`act` names no activation";
    for (uint32_t i = 0; has_epilogue(&e) && i < n->nres && !bad; i++)
        bad = check_form(m, n, &e, i);
    return bad;
}

/* ---- its layout ---------------------------------------------------------- */

/* Whether v is split as `res` is, and a sum over `sum`. */
static bool laid_alike(const Module *m, ValueId v, ValueId res, AxisSet sum)
{
    const Type *t = value_type(m, v);
    const Layout *l = layout_of(m, m->values.v[v.i].layout);
    const Layout *to = layout_of(m, m->values.v[res.i].layout);

    for (int d = 0; d < t->ndim; d++)
        if (!split_equal(layout_split(l, t->dim[d]),
                         layout_split(to, t->dim[d])))
            return false;
    return l->partial == sum && !l->partial_max;
}

const char *epilogue_layout_problem(const Module *m, const Node *n)
{
    Epilogue e = node_epilogue(m, n);

    for (uint32_t i = 0; has_epilogue(&e) && i < n->nres; i++) {
        ValueId res = node_res(n, i);
        AxisSet sum = layout_of(m, m->values.v[res.i].layout)->partial;

        if (sum && (e.bias || e.activation))
            return "its epilogue is applied to a partial sum";
        if (e.bias && !laid_alike(m, epilogue_bias(m, n, i), res, 0))
            return wrong(m, "bias %u is not split as its result", i + 1);
        if (e.residual &&
            !laid_alike(m, epilogue_residual(m, n, i), res, sum))
            return wrong(m, "residual %u is not laid out as its result", i + 1);
    }
    return NULL;
}
