/* route.c - prints the kernels that take rows to experts and back; one text for
 * every dialect.  The choice of experts is printed by route_choice.c.
 *
 * The slot of a token in its expert's block is the number of chosen tokens
 * before it, so it is the same however many threads there are.  Going out, one
 * team fills the block of one expert from front to back.  Coming back, a first
 * phase lists the slots of all tokens, then each token sums over its experts in
 * their order: no atomics, one order of summation.
 */
#include "codegen/route_priv.h"

/* ---- pieces of text ------------------------------------------------------ */

void route_pointer(Route *r, const char *name, const char *access, DType t,
                   uint32_t ptr)
{
    buf_printf(r->out, "    %s%s *%s = (%s%s *)PTR(%u);\n", access,
               row_element_type(t), name, access, row_element_type(t), ptr);
}

static DType dtype_of(const Route *r, ValueId v)
{
    return value_type(r->m, v)->dtype;
}

static const char *suffix(DType t)
{
    return row_element_suffix(t);
}

/* T tokens, E experts, C slots per expert, H channels. */
static void print_sizes(Route *r, ValueId block)
{
    ValueId choice = route_arg(r, 0);

    buf_printf(r->out,
               "    enum { TEAM = WARP, T = %lld, E = %lld, C = %lld, H = %lld "
               "};\n",
               route_local(r, choice, 's') * route_local(r, choice, 'b'),
               route_local(r, choice, 'e'), route_local(r, block, 'c'),
               route_local(r, block, 'h'));
}

/* ---- to the experts ------------------------------------------------------ */

static const char DISPATCH[] =
    "    PARTS(e, E) {\n"
    "        i64 slot = 0;\n"
    "        for (i64 i = 0; i < T; i++) {\n"
    "            const float w = weight[i * E + e];\n"
    "            if (choice[i * E + e] == 0.0f)\n"
    "                continue;\n"
    "            LANES(h, 0, H)\n"
    "                store_%s(out + (e * C + slot) * H + h,\n"
    "                         w * load_%s(x + i * H + h));\n"
    "            slot++;\n"
    "        }\n"
    "        LANES(h, slot * H, (i64)C * H) out[(i64)e * C * H + h] = 0;\n"
    "    }\n"
    "}\n";

static void print_dispatch(Route *r)
{
    DType t = dtype_of(r, route_arg(r, 2));

    buf_printf(r->out, "KERNEL(%s)\n{\n", r->name);
    print_sizes(r, node_res(r->n, 0));
    route_pointer(r, "choice", "const ", DT_F32, 0);
    route_pointer(r, "weight", "const ", DT_F32, 1);
    route_pointer(r, "x", "const ", t, 2);
    route_pointer(r, "out", "", t, 3);
    buf_printf(r->out, DISPATCH, suffix(t), suffix(t));
}

/* ---- back to the tokens -------------------------------------------------- */

static const char SLOTS[] =
    "    i32 *slots = (i32 *)PTR(4);\n"
    "    PARTS(e, E) {\n"
    "        i32 slot = 0;\n"
    "        for (i64 i = 0; i < T; i++)\n"
    "            slots[i * E + e] = choice[i * E + e] != 0.0f ? slot++ : -1;\n"
    "    }\n"
    "}\n";

static const char COMBINE[] =
    "    const i32 *slots = (const i32 *)PTR(4);\n"
    "    ROWS(i, T) {\n"
    "        i64 from[E], n = 0;\n"
    "        float w[E];\n"
    "        for (i64 e = 0; e < E; e++) {\n"
    "            const i64 slot = slots[i * E + e];\n"
    "            if (slot < 0)\n"
    "                continue;\n"
    "            from[n] = (e * C + slot) * H;\n"
    "            w[n++] = weight[i * E + e];\n"
    "        }\n"
    "        LANES(h, 0, H) {\n"
    "            float sum = 0.0f;\n"
    "            for (i64 k = 0; k < n; k++)\n"
    "                sum += w[k] * load_%s(block + from[k] + h);\n"
    "            store_%s(out + i * H + h, sum);\n"
    "        }\n"
    "    }\n"
    "}\n";

static const char COMBINE_WEIGHT[] =
    "    const i32 *slots = (const i32 *)PTR(4);\n"
    "    ROWS(i, T) {\n"
    "        for (i64 e = 0; e < E; e++) {\n"
    "            const i64 slot = slots[i * E + e];\n"
    "            const %s *from = block + (e * C + (slot < 0 ? 0 : slot)) * "
    "H;\n"
    "            float sum = 0.0f;\n"
    "            if (slot >= 0)\n"
    "                LANES(h, 0, H)\n"
    "                    sum += load_%s(from + h) * load_%s(x + i * H + h);\n"
    "            sum = row_sum(sum);\n"
    "            ONCE out[i * E + e] = sum;\n"
    "        }\n"
    "    }\n"
    "}\n";

/* The first phase; opens the second. */
static void print_slots(Route *r, ValueId block)
{
    ValueId choice = route_arg(r, 0);

    buf_printf(r->out, "KERNEL(%s)\n{\n", r->name);
    print_sizes(r, block);
    route_pointer(r, "choice", "const ", DT_F32, 0);
    buf_puts(r->out, SLOTS);
    buf_printf(r->out, "\nKERNEL(%s_2)\n{\n", r->name);
    print_sizes(r, block);
    r->info->phases = 2;
    r->info->workspace = 4 * route_local(r, choice, 's') *
                         route_local(r, choice, 'b') *
                         route_local(r, choice, 'e');
    r->info->nptr++;
}

static void print_combine(Route *r)
{
    DType t = dtype_of(r, route_arg(r, 2));

    print_slots(r, route_arg(r, 2));
    route_pointer(r, "weight", "const ", DT_F32, 1);
    route_pointer(r, "block", "const ", t, 2);
    route_pointer(r, "out", "", t, 3);
    buf_printf(r->out, COMBINE, suffix(t), suffix(t));
}

static void print_combine_weight(Route *r)
{
    DType block = dtype_of(r, route_arg(r, 1));
    DType x = dtype_of(r, route_arg(r, 2));

    print_slots(r, route_arg(r, 1));
    route_pointer(r, "block", "const ", block, 1);
    route_pointer(r, "x", "const ", x, 2);
    route_pointer(r, "out", "", DT_F32, 3);
    buf_printf(r->out, COMBINE_WEIGHT, row_element_type(block), suffix(block),
               suffix(x));
}

/* ---- public -------------------------------------------------------------- */

void route_print(const Module *m, NodeId n, const char *name, Buf *out,
                 KernelInfo *out_info)
{
    Route r = {m, &m->nodes.v[n.i], out_info, out, name};
    Buf ir = {0};

    *out_info = (KernelInfo){.phases = 1, .nptr = r.n->nargs + 1u};
    node_print(m, n, &ir);
    buf_printf(out, "/* %s */\n", buf_str(&ir));
    buf_free(&ir);
    switch (r.n->op) {
    case OP_TOPK:
        route_print_topk(&r);
        break;
    case OP_FIT:
        route_print_fit(&r);
        break;
    case OP_TURN:
        route_print_turn(&r);
        break;
    case OP_ROUNDS:
        route_print_rounds(&r);
        break;
    case OP_FILLED:
        route_print_filled(&r);
        break;
    case OP_GROUP_SUM:
        route_print_group_sum(&r);
        break;
    case OP_DISPATCH:
        print_dispatch(&r);
        break;
    case OP_COMBINE:
        print_combine(&r);
        break;
    default:
        mc_assert(r.n->op == OP_COMBINE_WEIGHT);
        print_combine_weight(&r);
    }
}
