/* print_decl.c - what a module declares around its functions: mesh, layouts
 * with names, tensors, stages and entries.
 *
 *   tensor @q_proj : bf16[g=4, r=2, d=8, h=64] {
 *       logical bf16[g=4, r=2, d=8, h=60]      only if it differs
 *       parameter
 *       layers                                  one per layer
 *       kinds [1]                               … of some kinds only
 *       decay
 *       init normal 0.02
 *       flat bf16[n=24, w=80] {g@tp}            its lines, and how it is used
 *       param bf16 {g@tp}                       each field: dtype, rest layout
 *       grad f32 {g@tp +dp}
 *       file "model.layers.{l}.q_proj.weight" rows=64 cols=60
 *       part @q first=0 size=2 r                what lies side by side along
 *       file …                                  j, each with a file
 *   }
 */
#include "ir/ir_priv.h"

/* ---- tensors ------------------------------------------------------------- */

static bool same_type(const Type *a, const Type *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           !memcmp(a->dim, b->dim, a->ndim) &&
           !memcmp(a->size, b->size, a->ndim * sizeof a->size[0]);
}

static void print_logical(const Module *m, const Tensor *t, Buf *out)
{
    const Type *type = type_of(m, t->type);
    const Type *logical = &t->logical;

    if (logical->dtype == DT_NONE || same_type(logical, type))
        return;
    buf_puts(out, "    logical ");
    type_print_plain(logical, out);
    buf_puts(out, "\n");
}

static void print_kinds(uint32_t kinds, Buf *out)
{
    const char *before = "    kinds [";

    for (uint32_t k = 0; k < IR_MAX_KINDS; k++)
        if (kinds >> k & 1) {
            buf_printf(out, "%s%u", before, k);
            before = ", ";
        }
    if (kinds)
        buf_puts(out, "]\n");
}

static void print_flags(const Module *m, const Tensor *t, Buf *out)
{
    const struct {
        bool set;
        const char *name;
    } flags[] = {{t->parameter, "parameter"},
                 {t->per_layer, "layers"},
                 {t->decay, "decay"},
                 {t->expert, "expert"}};

    for (size_t i = 0; i < MC_LEN(flags); i++)
        if (flags[i].set)
            buf_printf(out, "    %s\n", flags[i].name);
    print_kinds(t->kinds, out);
    if (t->tied) {
        buf_puts(out, "    tied ");
        axes_print(m, t->tied, out);
        buf_puts(out, "\n");
    }
    if (t->init == INIT_NONE && t->init_std == 0)
        return;
    buf_printf(out, "    init %s", init_names[t->init]);
    if (t->init_std != 0) {
        buf_puts(out, " ");
        float_print(t->init_std, out);
    }
    buf_puts(out, "\n");
}

static void print_flat(const Module *m, const Tensor *t, Buf *out)
{
    if (!t->flat.i)
        return;
    buf_puts(out, "    flat ");
    type_print(m, t->flat, out);
    buf_puts(out, " ");
    layout_print(m, t->use, out);
    buf_puts(out, "\n");
}

static void print_fields(const Module *m, const Tensor *t, Buf *out)
{
    for (int f = 0; f < FIELD_COUNT; f++) {
        if (!(t->fields >> f & 1))
            continue;
        buf_printf(out, "    %s %s", field_names[f],
                   dtype_name(t->field_dtype[f]));
        if (t->rest[f].i) {
            buf_puts(out, " ");
            layout_print(m, t->rest[f], out);
        }
        buf_puts(out, t->host >> f & 1 ? " host\n" : "\n");
    }
}

static void print_export(const Module *m, const Export *e, Buf *out)
{
    if (!e->name.i)
        return;
    buf_puts(out, "    file ");
    string_print(sym_text(m->names, e->name), out);
    buf_printf(out, " rows=%lld cols=%lld", (long long)e->rows,
               (long long)e->cols);
    if (e->fused_rows || e->row_offset)
        buf_printf(out, " of=%lld at=%lld", (long long)e->fused_rows,
                   (long long)e->row_offset);
    buf_puts(out, e->transpose ? " transpose\n" : "\n");
}

static void print_part(const Module *m, const TensorPart *p, Buf *out)
{
    buf_printf(out, "    part @%s first=%lld size=%lld%s\n",
               sym_text(m->names, p->name), (long long)p->at.first,
               (long long)p->at.n, p->at.dim ? " r" : "");
    print_export(m, &p->file, out);
}

static void print_tensor(const Module *m, const Tensor *t, Buf *out)
{
    buf_printf(out, "tensor @%s : ", sym_text(m->names, t->name));
    type_print(m, t->type, out);
    buf_puts(out, " {\n");
    print_logical(m, t, out);
    print_flags(m, t, out);
    print_flat(m, t, out);
    print_fields(m, t, out);
    print_export(m, &t->file, out);
    for (uint32_t i = 0; i < t->nparts; i++)
        print_part(m, &t->part[i], out);
    buf_puts(out, "}\n");
}

/* ---- the rest of the module ---------------------------------------------- */

static void print_header(const Module *m, Buf *out)
{
    const char *comma = "";

    buf_printf(out, "module {layers=%u, ", m->nlayers);
    for (uint32_t i = 0; i < m->kind.n; i++)
        buf_printf(out, "%s%u%s", i ? "" : "kinds=[", m->kind.v[i],
                   i + 1 < m->kind.n ? ", " : "], ");
    buf_printf(out, "microbatches=%u, props=[", m->microbatches);
    for (int i = 0; i < PROP_NAMES; i++)
        if (m->props >> i & 1) {
            buf_printf(out, "%s%s", comma, prop_names[i]);
            comma = ", ";
        }
    buf_puts(out, "]}\n");
}

static void print_mesh(const Module *m, Buf *out)
{
    buf_printf(out, "mesh world=%u {", m->mesh.world);
    for (uint32_t i = 0; i < m->mesh.atoms.n; i++) {
        const Atom *a = &m->mesh.atoms.v[i];

        buf_printf(out, "%s%s%s", i ? " " : "", a->expert ? "expert " : "",
                   sym_text(m->names, a->axis));
        if (a->part || axis_parts(&m->mesh, a) > 1)
            buf_printf(out, ".%u", a->part);
        buf_printf(out, "=%u:%u", a->size, a->stride);
        if (a->span != a->size * a->stride)
            buf_printf(out, "/%u", a->span);
    }
    buf_puts(out, "}\n");
}

static void print_hints(const Module *m, Buf *out)
{
    for (uint32_t i = 0; i < m->hints.n; i++) {
        buf_printf(out, "layout #%s", sym_text(m->names, m->hints.v[i].name));
        if (m->hints.v[i].layout.i) {
            buf_puts(out, " ");
            layout_print(m, m->hints.v[i].layout, out);
        }
        buf_puts(out, "\n");
    }
}

static void print_stage_func(const Module *m, const char *key, FuncId f,
                             Buf *out)
{
    if (f.i)
        buf_printf(out, ", %s=@%s", key,
                   sym_text(m->names, m->funcs.v[f.i].name));
}

void stages_print(const Module *m, Buf *out)
{
    if (m->stages.n || m->programs.n || m->entry.n)
        buf_puts(out, "\n");
    for (uint32_t i = 0; i < m->stages.n; i++) {
        const PipeStage *s = &m->stages.v[i];

        buf_printf(out, "stage {pp=%u, chunk=%u, first=%u, layers=%u%s%s",
                   s->pp, s->chunk, s->first_layer, s->nlayers,
                   s->embedding ? ", embedding" : "", s->head ? ", head" : "");
        print_stage_func(m, "fwd", s->fwd, out);
        print_stage_func(m, "bwd", s->bwd, out);
        print_stage_func(m, "weights", s->weights, out);
        buf_puts(out, "}\n");
    }
    for (uint32_t i = 0; i < m->programs.n; i++)
        buf_printf(out, "program {microbatches=%u%s}\n",
                   m->programs.v[i].microbatches,
                   m->programs.v[i].forward ? ", forward" : "");
    for (uint32_t i = 0; i < m->entry.n; i++)
        buf_printf(out, "entry @%s\n",
                   sym_text(m->names, m->funcs.v[m->entry.v[i].i].name));
}

void decls_print(const Module *m, Buf *out)
{
    print_header(m, out);
    print_mesh(m, out);
    print_hints(m, out);
    for (uint32_t i = 1; i < m->tensors.n; i++)
        print_tensor(m, &m->tensors.v[i], out);
}
