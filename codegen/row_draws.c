/* row_draws.c - dropout in row programs.
 *
 *     keep   = draw(key, 8 * layer + which, last, position, others, sample)
 *     result = keep < threshold ? 0 : x * scale
 *
 * The place of an element is that of base/dropout.h: logical indices, which a
 * rank gets from the start of its part, and the registers of the layer and of
 * the microbatch.  draws.inc has the generator.
 */
#include "codegen/row_text.h"

#include "base/dropout.h"

/* The position in the sequence, or 0 without one. */
static void print_sequence(Printer *w, const RowValue *v, AttrsId attrs,
                           Buf *out)
{
    int64_t size = type_size(value_type(w->p->m, v->id), 's');
    long long parts = attr_int(w->p->m, attrs, AK_ZIGZAG, 1);
    Buf index = {0};

    if (type_dim(value_type(w->p->m, v->id), 's') < 0)
        buf_puts(&index, "0");
    else
        row_print_position(w, v, 's', &index);
    if (parts > 1)
        buf_printf(out, "%s_place(%s, %lld, %lld)", w->name, buf_str(&index),
                   (long long)(size / (2 * parts)), parts);
    else
        buf_puts(out, buf_str(&index));
    buf_free(&index);
}

/* Row-major index over all dimensions but s, b and the last one, which is v's
 * `last`-th. */
static void print_others(Printer *w, const RowValue *v, int last, Buf *out)
{
    const Type *t = value_type(w->p->m, v->id);
    Buf index = {0};

    for (int d = 0; d < last; d++) {
        Buf more = {0};
        if (t->dim[d] == 's' || t->dim[d] == 'b')
            continue;
        if (index.len)
            buf_printf(&more, "(%s) * %lld + ", buf_str(&index),
                       (long long)t->size[d]);
        row_print_position(w, v, t->dim[d], &more);
        buf_free(&index);
        index = more;
    }
    buf_puts(out, index.len ? buf_str(&index) : "0");
    buf_free(&index);
}

/* Which sample of the step's batch. */
static void print_sample(Printer *w, const RowValue *v, Buf *out)
{
    const Type *t = value_type(w->p->m, v->id);
    int mb = row_imm(w->info, (KernelStart){.kind = START_MICROBATCH});

    buf_printf(out, "IMM(%d) * %lld", mb, (long long)type_size(t, 'b'));
    if (type_dim(t, 'b') < 0)
        return;
    buf_puts(out, " + ");
    row_print_position(w, v, 'b', out);
}

/* The draw of an element's place (base/dropout.h). */
void row_print_dropout(Printer *w, const RowValue *v, AttrsId attrs,
                          Buf *out)
{
    const Module *m = w->p->m;
    const Type *t = value_type(m, v->id);
    double rate = attr_float(m, attrs, AK_RATE, 0);
    int layer = row_imm(w->info, (KernelStart){.kind = START_LAYER});

    buf_printf(out,
               "%s_draw(%s_step_key(PTR(%u)), (u32)(IMM(%d) * %d + %lld), ",
               w->name, w->name, w->key_ptr, layer, DROP_KINDS,
               (long long)attr_int(m, attrs, AK_DRAW, 0));
    if (t->ndim)
        row_print_position(w, v, t->dim[t->ndim - 1], out);
    else
        buf_puts(out, "0");
    buf_puts(out, ", ");
    print_sequence(w, v, attrs, out);
    buf_puts(out, ", ");
    print_others(w, v, t->ndim - 1, out);
    buf_puts(out, ", ");
    print_sample(w, v, out);
    buf_printf(out, ") < %uu ? 0.0f : ", dropout_threshold(rate));
    row_operand_name(w, v, 0, out);
    buf_puts(out, " * ");
    row_print_float(out, 1 / (1 - rate));
}
