/* verify.c - is a module well formed?
 *
 * Names are unique, values are defined once and before their uses, every node
 * passes the check that building it would have passed (op_cells.c), layouts are
 * legal, calls do not recurse.  Functions that no entry reaches may be left
 * over from a pass: they must be well formed, but need no layouts.
 *
 * Assumes nothing of the module but that ids in bodies and operands are in
 * range, which both the builder and the parser guarantee.  Reports all it finds
 * to m->diag, at the place each node came from; how layouts fit together is
 * looked at only where everything else is right.
 *
 *   MC0610 order of definitions   MC0613 layouts around a node
 *   MC0611 a node's rule          MC0614 calls that recurse
 *   MC0612 a layout by itself     MC0615 tensors   MC0616 mesh, stages, entries
 */
#include "ir/ir_priv.h"

typedef struct {
    Module *m;
    FuncId func; /* at hand */
    Vec(uint8_t) state;   /* per function: State */
    Vec(uint32_t) home;   /* per value: the function that defined it, or 0 */
} Verifier;

enum { UNSEEN, ENTERED, REACHED };
enum { MAX_DEPTH = 256 }; /* of calls */

/* ---- reports ------------------------------------------------------------- */

static void complain(const Verifier *v, NodeId n, const char *code,
                     const char *why)
{
    const Module *m = v->m;
    const Func *f = &m->funcs.v[v->func.i];
    Buf text = {0};

    if (n.i) {
        node_print(m, n, &text);
        diag_error(m->diag, m->nodes.v[n.i].loc, code, "@%s: `%s`: %s",
                   sym_text(m->names, f->name), text.s, why);
    } else {
        diag_error(m->diag, f->loc, code, "@%s: %s",
                   sym_text(m->names, f->name), why);
    }
    buf_free(&text);
}

/* ---- values -------------------------------------------------------------- */

static const char *type_problem(const Type *t)
{
    int64_t elems = 1;

    for (int i = 0; i < t->ndim; i++) {
        if (t->dim[i] < 'a' || t->dim[i] > 'z' ||
            type_dim(t, t->dim[i]) != i)
            return "a type has a dimension twice, or one that is no letter";
        if (t->size[i] < 1 ||
            __builtin_mul_overflow(elems, t->size[i], &elems) ||
            elems > INT64_MAX / 8)
            return "a type has an impossible size";
    }
    return t->dtype == DT_NONE ? "a value has no type" : NULL;
}

static void check_value(const Verifier *v, NodeId n, ValueId value)
{
    const Module *m = v->m;
    LayoutId layout = m->values.v[value.i].layout;
    const Type *type = value_type(m, value);
    const char *bad = type_problem(type);
    bool needed = (m->props & PROP_LAYOUT) &&
                  m->funcs.v[v->func.i].kind == FUNC_GRAPH &&
                  v->state.v[v->func.i] == REACHED;

    if (bad)
        complain(v, n, "MC0611", bad);
    else if (layout.i && (bad = layout_problem(v->m, type,
                                               layout_of(m, layout))))
        complain(v, n, "MC0612", bad);
    else if (!layout.i && needed)
        complain(v, n, "MC0612", "a value has no layout");
}

static void define(Verifier *v, NodeId n, ValueId value)
{
    if (!value.i || value.i >= v->m->values.n) {
        complain(v, n, "MC0610", "defines a value that does not exist");
        return;
    }
    if (v->home.v[value.i])
        complain(v, n, "MC0610", "a value is defined twice");
    else if (v->m->values.v[value.i].def.i != n.i)
        complain(v, n, "MC0610", "a value names another node as its own");
    v->home.v[value.i] = v->func.i;
    check_value(v, n, value);
}

static bool usable(const Verifier *v, ValueId value)
{
    return value.i && value.i < v->m->values.n &&
           v->home.v[value.i] == v->func.i;
}

/* ---- nodes and functions ------------------------------------------------- */

static bool check_operands(const Verifier *v, NodeId id, const Node *n)
{
    for (uint32_t i = 0; i < n->nargs; i++)
        if (!usable(v, node_arg(v->m, n, i))) {
            complain(v, id, "MC0610",
                     wrong(v->m, "operand %u is not defined here", i + 1));
            return false;
        }
    return true;
}

static void check_node(Verifier *v, NodeId id)
{
    const Node *n = node_of(v->m, id);
    const char *bad = check_operands(v, id, n) ? node_check(v->m, n) : NULL;

    if (bad)
        complain(v, id, "MC0611", bad);
    for (uint32_t i = 0; i < n->nres; i++)
        define(v, id, node_res(n, i));
}

static void check_func(Verifier *v, FuncId id)
{
    const Func *f = func_of(v->m, id);

    v->func = id;
    for (uint32_t i = 0; i < f->params.n; i++)
        define(v, (NodeId){0}, f->params.v[i]);
    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *n = node_of(v->m, f->body.v[i]);

        if (f->kind == FUNC_ROW && !(op_info[n->op].flags & OPF_ROW))
            complain(v, f->body.v[i], "MC0611",
                     "has no place in a row program");
        check_node(v, f->body.v[i]);
    }
    for (uint32_t i = 0; i < f->results.n; i++)
        if (!usable(v, f->results.v[i]))
            complain(v, (NodeId){0}, "MC0610",
                     wrong(v->m, "result %u is not defined", i + 1));
}

/* Layouts around each node, of a function that is right otherwise. */
static void check_placement(Verifier *v, FuncId id)
{
    const Func *f = func_of(v->m, id);

    v->func = id;
    for (uint32_t i = 0; i < f->body.n; i++) {
        const char *bad =
            node_layout_problem(v->m, node_of(v->m, f->body.v[i]));

        if (bad)
            complain(v, f->body.v[i], "MC0613", bad);
    }
}

/* ---- calls --------------------------------------------------------------- */

/* Marks what `f` calls as reached; false after reporting a cycle. */
static bool reach(Verifier *v, FuncId f, unsigned depth)
{
    const Module *m = v->m;

    if (v->state.v[f.i] == REACHED)
        return true;
    if (v->state.v[f.i] == ENTERED || depth == MAX_DEPTH) {
        v->func = f;
        complain(v, (NodeId){0}, "MC0614",
                 depth == MAX_DEPTH ? "is called too deep" : "calls itself");
        return false;
    }
    v->state.v[f.i] = ENTERED;
    for (uint32_t i = 0; i < m->funcs.v[f.i].body.n; i++) {
        const Node *n = &m->nodes.v[m->funcs.v[f.i].body.v[i].i];
        FuncId callee = attr_func(m, n->attrs, AK_CALLEE);

        if (callee.i && callee.i < m->funcs.n && !reach(v, callee, depth + 1))
            return false;
    }
    v->state.v[f.i] = REACHED;
    return true;
}

/* Everything is reached if nothing is an entry yet.  Cycles among functions
 * that no entry reaches are found too. */
static bool reach_all(Verifier *v)
{
    Vec(uint8_t) reached = {0};
    bool ok = true;

    for (uint32_t i = 0; ok && i < v->m->entry.n; i++)
        ok = reach(v, v->m->entry.v[i], 0);
    for (uint32_t i = 0; i < v->m->funcs.n; i++)
        vec_push(&reached, v->state.v[i]);
    for (uint32_t i = 1; ok && i < v->m->funcs.n; i++)
        ok = reach(v, (FuncId){i}, 0);
    if (ok && v->m->entry.n)
        memcpy(v->state.v, reached.v, reached.n);
    vec_free(&reached);
    return ok;
}

/* ---- declarations -------------------------------------------------------- */

static void check_func_names(const Module *m)
{
    for (uint32_t i = 1; i < m->funcs.n; i++)
        if (func_find(m, m->funcs.v[i].name).i != i)
            diag_error(m->diag, m->funcs.v[i].loc, "MC0603",
                       "two functions are named @%s",
                       sym_text(m->names, m->funcs.v[i].name));
}

static const char *logical_problem(const Module *m, const Tensor *t)
{
    const Type *type = type_of(m, t->type);

    if (t->logical.dtype == DT_NONE)
        return NULL;
    if (t->logical.ndim != type->ndim ||
        memcmp(t->logical.dim, type->dim, type->ndim))
        return "its logical type has other dimensions";
    for (int i = 0; i < type->ndim; i++)
        if (t->logical.size[i] < 1 || t->logical.size[i] > type->size[i])
            return "its logical type is larger than its type";
    return NULL;
}

/* Parts follow each other along j and leave nothing of it. */
static const char *parts_problem(const Module *m, const Tensor *t)
{
    const Type *type = type_of(m, t->type);
    int64_t next = 0;

    for (uint32_t i = 0; i < t->nparts; i++) {
        const Span *s = &t->part[i].at;

        if (s->first != next || s->n < 1 || (!s->dim && s->n > 1))
            return "its parts are not side by side";
        next += s->n;
    }
    return t->nparts &&
                   (type_dim(type, 'j') < 0 || next != type_size(type, 'j'))
               ? "its parts do not make up j"
               : NULL;
}

/* Lines of w elements: in n as many for each part of the tensor that ranks
 * use, and enough for it. */
static const char *flat_problem(const Module *m, const Tensor *t)
{
    const Type *type = type_of(m, t->type), *lines = type_of(m, t->flat);
    const Layout *use = layout_of(m, t->use);
    const char *bad = t->flat.i ? layout_problem(m, type, use) : NULL;
    int64_t parts;

    if (!t->flat.i || bad)
        return bad;
    parts = type_elems(type) / layout_local_elems(m, type, use);
    if (lines->ndim != 2 || lines->dim[0] != 'n' || lines->dim[1] != 'w' ||
        lines->size[0] % parts || type_elems(lines) < type_elems(type))
        return "its lines are not those of its parts";
    return use->partial || use->partial_max ? "it is used as a partial sum"
                                            : NULL;
}

/* n is split as the tensor is where it is used, and then perhaps further. */
static const char *rest_problem(const Module *m, const Tensor *t, int f)
{
    const Layout *rest = layout_of(m, t->rest[f]);
    const char *bad = layout_problem(m, type_of(m, tensor_stored(t)), rest);
    const Split *n = layout_split(rest, 'n');
    uint8_t atoms[IR_MAX_ATOMS], count;

    if (bad || !t->flat.i)
        return bad;
    count = layout_atoms(type_of(m, t->type), layout_of(m, t->use), atoms);
    if (layout_split(rest, 'w') || (count && !n) ||
        (count && (n->n < count || memcmp(n->atom, atoms, count))))
        return wrong(m, "lines of field %s are not split as the tensor is",
                     field_names[f]);
    return NULL;
}

static const char *tensor_problem(const Module *m, TensorId id)
{
    const Tensor *t = &m->tensors.v[id.i];
    const char *bad = type_problem(type_of(m, t->type));

    if (tensor_find(m, t->name).i != id.i)
        return "its name is taken";
    bad = bad ? bad : logical_problem(m, t);
    bad = bad ? bad : parts_problem(m, t);
    bad = bad ? bad : flat_problem(m, t);
    for (int f = 0; f < FIELD_COUNT && !bad; f++) {
        if (!(t->fields >> f & 1))
            continue;
        if (t->field_dtype[f] == DT_NONE)
            bad = wrong(m, "field %s has no type", field_names[f]);
        else if (t->rest[f].i)
            bad = rest_problem(m, t, f);
        else if (m->props & PROP_LAYOUT)
            bad = wrong(m, "field %s has no layout", field_names[f]);
    }
    return bad;
}

static void check_tensors(const Module *m)
{
    for (uint32_t i = 1; i < m->tensors.n; i++) {
        const char *bad = tensor_problem(m, (TensorId){i});

        if (bad)
            diag_error(m->diag, m->tensors.v[i].loc, "MC0615", "@%s: %s",
                       sym_text(m->names, m->tensors.v[i].name), bad);
    }
}

static void check_mesh(const Module *m)
{
    for (uint32_t i = 0; i < m->mesh.atoms.n; i++) {
        const Atom *a = &m->mesh.atoms.v[i];
        uint64_t last = (uint64_t)(a->size - 1) * a->stride;

        if (!a->size || !a->stride || last >= m->mesh.world ||
            a->span <= last || a->span > (uint64_t)a->size * a->stride)
            diag_error(m->diag, (Loc){0}, "MC0616",
                       "axis %s: size %u and stride %u reach beyond the "
                       "world of %u ranks",
                       sym_text(m->names, a->axis), a->size, a->stride,
                       m->mesh.world);
    }
}

static void check_stages(const Module *m)
{
    if (m->kind.n && m->kind.n != m->nlayers)
        diag_error(m->diag, (Loc){0}, "MC0616",
                   "%u kinds are given for %u layers", m->kind.n, m->nlayers);
    for (uint32_t i = 0; i < m->stages.n; i++) {
        const PipeStage *s = &m->stages.v[i];

        if (s->first_layer > m->nlayers ||
            s->nlayers > m->nlayers - s->first_layer)
            diag_error(m->diag, (Loc){0}, "MC0616",
                       "stage %u holds layers beyond the model's %u", i,
                       m->nlayers);
    }
}

static void prepare(Verifier *v)
{
    for (uint32_t i = 0; i < v->m->funcs.n; i++)
        vec_push(&v->state, UNSEEN);
    for (uint32_t i = 0; i < v->m->values.n; i++)
        vec_push(&v->home, 0);
}

bool module_verify(Module *m)
{
    Verifier v = {.m = m};
    unsigned before = diag_errors(m->diag);

    prepare(&v);
    check_mesh(m);
    check_stages(m);
    check_func_names(m);
    check_tensors(m);
    if (diag_errors(m->diag) == before && reach_all(&v))
        for (uint32_t f = 1; f < m->funcs.n; f++)
            check_func(&v, (FuncId){f});
    if (diag_errors(m->diag) == before && (m->props & PROP_RESHARDED))
        for (uint32_t f = 1; f < m->funcs.n; f++)
            if (v.state.v[f] == REACHED)
                check_placement(&v, (FuncId){f});
    vec_free(&v.state);
    vec_free(&v.home);
    return diag_errors(m->diag) == before;
}
