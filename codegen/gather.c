/* gather.c - prints the kernels that move whole rows by index, and the table
 * of rotary angles; one text for every dialect, as row_print.c does.
 *
 * The gradient of an embedding adds rows that may collide.  The first position
 * of each token owns its row of the table and adds the gradients of all later
 * positions of the same token, in order: no atomics, one order of summation,
 * and at most positions^2 / 2 comparisons of integers.
 */
#include "codegen/row_priv.h"

#include "passes/memplan.h"

#include <math.h>

typedef struct {
    const Module *m;
    const Node *n;
    KernelInfo *info;
    Buf *out;
} Gather;

static ValueId arg_of(const Gather *g, uint32_t i)
{
    return node_arg(g->m, g->n, i);
}

static ValueId result_of(const Gather *g)
{
    return node_res(g->n, 0);
}

static long long local(const Gather *g, ValueId v, char dim)
{
    return row_local(g->m, v, dim);
}

static DType dtype_of(const Gather *g, ValueId v)
{
    return value_type(g->m, v)->dtype;
}

static const char *type_name(DType t)
{
    return row_element_type(t);
}

static const char *type_suffix(DType t)
{
    return row_element_suffix(t);
}

static void print_open(Gather *g, const char *name, long long width)
{
    buf_printf(g->out, "KERNEL(%s)\n{\n    enum { TEAM = %s };\n", name,
               width > 1024 ? "CUDA_BLOCK" : "WARP");
}

/* "const bf16 *table = (const bf16 *)PTR(1);" */
static void print_pointer(Gather *g, const char *name, const char *access,
                          DType t, uint32_t ptr)
{
    buf_printf(g->out, "    %s%s *%s = (%s%s *)PTR(%u);\n", access,
               type_name(t), name, access, type_name(t), ptr);
}

/* "IMM(0)", or "0" if the value starts at 0 on every rank. */
static const char *start_text(Gather *g, ValueId v, char dim)
{
    static const char *const texts[] = {"IMM(0)", "IMM(1)"};
    int imm = row_start_imm(g->m, g->info, v, dim);

    mc_assert(imm < (int)MC_LEN(texts));
    return imm < 0 ? "0" : texts[imm];
}

/* Prints NAME_position: the position of the token stored at an index of s, a
 * dimension of `size` (base/zigzag.h). */
static void print_position(Gather *g, const char *name, int64_t size)
{
    long long parts = attr_int(g->m, g->n->attrs, AK_ZIGZAG, 1);
    long long chunk = size / (2 * parts);

    buf_printf(g->out, "INLINE i64 %s_position(i64 index)\n{\n", name);
    if (parts > 1)
        buf_printf(g->out,
                   "    i64 block = index / %lld;\n"
                   "    block = block %% 2 ? %lld - block / 2 : block / 2;\n"
                   "    index = block * %lld + index %% %lld;\n",
                   chunk, 2 * parts - 1, chunk, chunk);
    buf_puts(g->out, "    return index;\n}\n");
}

/* Prints NAME_index, its inverse; -1 from `size` on. */
static void print_index(Gather *g, const char *name, int64_t size)
{
    long long parts = attr_int(g->m, g->n->attrs, AK_ZIGZAG, 1);
    long long chunk = size / (2 * parts);

    buf_printf(g->out, "INLINE i64 %s_index(i64 p)\n{\n", name);
    if (parts > 1)
        buf_printf(g->out,
                   "    i64 block = p / %lld;\n"
                   "    if (p >= %lld)\n"
                   "        return -1;\n"
                   "    block = block < %lld ? 2 * block : %lld - 2 * block;\n"
                   "    p = block * %lld + p %% %lld;\n",
                   chunk, (long long)size, parts, 4 * parts - 1, chunk, chunk);
    buf_puts(g->out, "    return p;\n}\n");
}

static int64_t size_of(const Gather *g, ValueId v, char dim)
{
    return type_size(value_type(g->m, v), dim);
}

/* ---- embed -------------------------------------------------------------- */

static void print_embed(Gather *g, const char *name)
{
    long long n = local(g, arg_of(g, 0), 's') * local(g, arg_of(g, 0), 'b');
    long long v = local(g, arg_of(g, 1), 'v'), h = local(g, arg_of(g, 1), 'h');

    print_open(g, name, h);
    print_pointer(g, "token", "const ", DT_I32, 0);
    print_pointer(g, "table", "const ", dtype_of(g, arg_of(g, 1)), 1);
    print_pointer(g, "out", "", dtype_of(g, result_of(g)), 2);
    buf_printf(g->out,
               "    ROWS(row, %lld) {\n"
               "        const i64 v = token[row] - %s;\n"
               "        const int here = v >= 0 && v < %lld;\n"
               "        const %s *from = table + (here ? v : 0) * %lld;\n"
               "        LANES(h, 0, %lld) out[row * %lld + h] = here ? from[h] "
               ": 0;\n"
               "    }\n"
               "}\n",
               n, start_text(g, arg_of(g, 1), 'v'), v,
               type_name(dtype_of(g, arg_of(g, 1))), h, h, h);
}

static void print_clear(Gather *g, const char *name, long long rows,
                        long long width)
{
    print_open(g, name, width);
    print_pointer(g, "out", "", DT_F32, 2);
    buf_printf(g->out,
               "    ROWS(row, %lld) {\n"
               "        LANES(h, 0, %lld) out[row * %lld + h] = 0.0f;\n"
               "    }\n"
               "}\n",
               rows, width, width);
}

static void print_embed_add(Gather *g, const char *name)
{
    DType t = dtype_of(g, arg_of(g, 1));
    long long n = local(g, arg_of(g, 0), 's') * local(g, arg_of(g, 0), 'b');
    long long v = local(g, result_of(g), 'v'), h = local(g, result_of(g), 'h');

    print_open(g, name, h);
    print_pointer(g, "token", "const ", DT_I32, 0);
    print_pointer(g, "dy", "const ", t, 1);
    print_pointer(g, "out", "", DT_F32, 2);
    buf_printf(g->out,
               "    PARTS(first, %lld) {\n"
               "        const i64 v = token[first] - %s;\n"
               "        int owner = v >= 0 && v < %lld;\n"
               "        for (i64 i = 0; i < first && owner; i++)\n"
               "            owner = token[i] != token[first];\n"
               "        for (i64 i = first; i < %lld && owner; i++)\n"
               "            if (token[i] == token[first])\n"
               "                LANES(h, 0, %lld)\n"
               "                    out[v * %lld + h] += load_%s(dy + i * %lld "
               "+ h);\n"
               "    }\n"
               "}\n",
               n, start_text(g, result_of(g), 'v'), v, n, h, h, type_suffix(t),
               h);
}

static void print_embed_grad(Gather *g, const char *name, bool accumulate)
{
    Buf second = {0};

    if (accumulate) {
        print_embed_add(g, name);
        return;
    }
    buf_printf(&second, "%s_2", name);
    print_clear(g, name, local(g, result_of(g), 'v'),
                local(g, result_of(g), 'h'));
    print_embed_add(g, second.s);
    g->info->phases = 2;
    buf_free(&second);
}

/* ---- rows of a table of positions --------------------------------------- */

static void print_rows(Gather *g, const char *name)
{
    long long s = local(g, result_of(g), 's'), h = local(g, result_of(g), 'h');

    print_position(g, name, size_of(g, result_of(g), 's'));
    print_open(g, name, h);
    print_pointer(g, "table", "const ", dtype_of(g, arg_of(g, 0)), 0);
    print_pointer(g, "out", "", dtype_of(g, result_of(g)), 1);
    buf_printf(g->out,
               "    ROWS(s, %lld) {\n"
               "        const i64 p = %s_position(s + %s);\n"
               "        LANES(h, 0, %lld) out[s * %lld + h] = table[p * %lld + "
               "h];\n"
               "    }\n"
               "}\n",
               s, name, start_text(g, result_of(g), 's'), h, h, h);
}

static void print_rows_grad(Gather *g, const char *name, bool accumulate)
{
    DType t = dtype_of(g, arg_of(g, 0));
    long long s = local(g, arg_of(g, 0), 's'), h = local(g, result_of(g), 'h');

    print_index(g, name, size_of(g, arg_of(g, 0), 's'));
    print_open(g, name, h);
    print_pointer(g, "dy", "const ", t, 0);
    print_pointer(g, "out", "", DT_F32, 1);
    buf_printf(g->out,
               "    ROWS(p, %lld) {\n"
               "        const i64 s = %s_index(p) - %s;\n"
               "        const int here = s >= 0 && s < %lld;\n"
               "        const %s *from = dy + (here ? s : 0) * %lld;\n"
               "        LANES(h, 0, %lld) out[p * %lld + h] %s here ? "
               "load_%s(from + h) : 0.0f;\n"
               "    }\n"
               "}\n",
               local(g, result_of(g), 'p'), name,
               start_text(g, arg_of(g, 0), 's'), s, type_name(t), h, h, h,
               accumulate ? "+=" : "=", type_suffix(t));
}

/* ---- rotary angles ------------------------------------------------------ */

/* Angle per position of a pair of channels (Su et al. 2021, section 3.4.2),
 * with linear interpolation (Chen et al. 2023) or Llama 3.1's blend: whole
 * wavelengths that fit `high` times into the original context stay, those that
 * fit less than `low` times are interpolated. */
static double frequency(const Module *m, AttrsId attrs, double pair,
                        double rotary)
{
    double base = attr_float(m, attrs, AK_BASE, 10000.0);
    double factor = attr_float(m, attrs, AK_FACTOR, 1.0);
    double low = attr_float(m, attrs, AK_LOW, 1.0);
    double high = attr_float(m, attrs, AK_HIGH, 4.0);
    double original = (double)attr_int(m, attrs, AK_ORIGINAL, 8192);
    const char *scaling = sym_text(m->names, attr_sym(m, attrs, AK_SCALING));
    double f = pow(base, -2.0 * pair / rotary);
    double keep = 1.0;

    if (strcmp(scaling, "linear") == 0)
        keep = 0.0;
    if (strcmp(scaling, "llama3") == 0)
        keep = (original * f / (2.0 * 3.14159265358979323846) - low) /
               (high - low);
    keep = keep < 0.0 ? 0.0 : keep > 1.0 ? 1.0 : keep;
    return keep * f + (1.0 - keep) * f / factor;
}

static void print_frequencies(Gather *g, const char *name, int64_t rotary)
{
    buf_printf(g->out, "TABLE double %s_frequency[] = {", name);
    for (int64_t i = 0; i < rotary / 2; i++)
        buf_printf(g->out, "%s%.17g,", i % 3 ? " " : "\n    ",
                   frequency(g->m, g->n->attrs, (double)i, (double)rotary));
    buf_puts(g->out, "\n};\n");
}

static void print_rope_table(Gather *g, const char *name)
{
    long long s = local(g, result_of(g), 's'), d = local(g, result_of(g), 'd');
    long long rotary = attr_int(g->m, g->n->attrs, AK_ROTARY, d);
    const char *what =
        sym_text(g->m->names, attr_sym(g->m, g->n->attrs, AK_WHAT));

    print_frequencies(g, name, rotary);
    print_position(g, name, size_of(g, result_of(g), 's'));
    print_open(g, name, d);
    print_pointer(g, "out", "", DT_F32, 0);
    buf_printf(g->out,
               "    ROWS(s, %lld) {\n"
               "        const double p = (double)%s_position(s + %s);\n"
               "        LANES(d, 0, %lld) {\n"
               "            const float x = (float)%s_f64(p * "
               "%s_frequency[d]);\n"
               "            out[s * %lld + d] = x;\n"
               "            out[s * %lld + %lld + d] = x;\n"
               "        }\n"
               "        LANES(d, %lld, %lld) out[s * %lld + d] = %s;\n"
               "    }\n"
               "}\n",
               s, name, start_text(g, result_of(g), 's'), rotary / 2, what,
               name, d,
               d, rotary / 2, rotary, d, d,
               strcmp(what, "cos") == 0 ? "1.0f" : "0.0f");
}

/* ---- public ------------------------------------------------------------- */

static double value_bytes(const Gather *g, ValueId v)
{
    return (double)memplan_value_bytes(g->m, v);
}

/* Of a table only the rows move that tokens name. */
static double embed_bytes(const Gather *g, bool accumulate)
{
    double rows, result = value_bytes(g, result_of(g));

    if (g->n->op == OP_EMBED)
        return 2 * result;
    rows = value_bytes(g, arg_of(g, 1)) /
           (double)dtype_bytes(dtype_of(g, arg_of(g, 1)));
    return value_bytes(g, arg_of(g, 1)) +
           2 * rows * (double)dtype_bytes(dtype_of(g, result_of(g))) +
           (accumulate ? 0 : result);
}

static void print_comment(const Gather *g, NodeId n)
{
    Buf ir = {0};

    node_print(g->m, n, &ir);
    buf_printf(g->out, "/* %s */\n", buf_str(&ir));
    buf_free(&ir);
}

void gather_print(const Module *m, NodeId n, const char *name, bool accumulate,
                  Buf *out, KernelInfo *out_info)
{
    Gather g = {m, &m->nodes.v[n.i], out_info, out};

    *out_info = (KernelInfo){.phases = 1, .nptr = g.n->nargs + 1u};
    print_comment(&g, n);
    switch (g.n->op) {
    case OP_EMBED:
        out_info->bytes = embed_bytes(&g, accumulate);
        print_embed(&g, name);
        break;
    case OP_EMBED_GRAD:
        out_info->bytes = embed_bytes(&g, accumulate);
        print_embed_grad(&g, name, accumulate);
        break;
    case OP_ROWS:
        print_rows(&g, name);
        break;
    case OP_ROWS_GRAD:
        print_rows_grad(&g, name, accumulate);
        break;
    default:
        mc_assert(g.n->op == OP_ROPE_TABLE);
        print_rope_table(&g, name);
    }
}
