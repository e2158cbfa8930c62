/* route.c - prints the kernels of a mixture of experts: the choice of experts,
 * and the ways of rows to them and back; one text for every dialect.
 *
 * The slot of a token in its expert's block is the number of chosen tokens
 * before it, so it is the same however many threads there are.  Going out, one
 * team fills the block of one expert from front to back.  Coming back, a first
 * phase lists the slots of all tokens, then each token sums over its experts in
 * their order: no atomics, one order of summation.
 */
#include "codegen/row_priv.h"

typedef struct {
    const Module *m;
    const Node *n;
    KernelInfo *info;
    Buf *out;
    const char *name;
} Route;

/* ---- pieces of text ------------------------------------------------------ */

static long long local(const Route *r, ValueId v, char dim)
{
    return row_local(r->m, v, dim);
}

static ValueId arg_of(const Route *r, uint32_t i)
{
    return node_arg(r->m, r->n, i);
}

static DType dtype_of(const Route *r, ValueId v)
{
    return value_type(r->m, v)->dtype;
}

static const char *suffix(DType t)
{
    return row_element_suffix(t);
}

static const char *type_name(DType t)
{
    return row_element_type(t);
}

/* T tokens, E experts, C slots per expert, H channels. */
static void print_sizes(Route *r, ValueId block)
{
    ValueId choice = arg_of(r, 0);

    buf_printf(r->out,
               "    enum { TEAM = WARP, T = %lld, E = %lld, C = %lld, H = %lld "
               "};\n",
               local(r, choice, 's') * local(r, choice, 'b'),
               local(r, choice, 'e'), local(r, block, 'c'),
               local(r, block, 'h'));
}

static void print_pointer(Route *r, const char *name, const char *access,
                          DType t, uint32_t ptr)
{
    buf_printf(r->out, "    %s%s *%s = (%s%s *)PTR(%u);\n", access,
               type_name(t), name, access, type_name(t), ptr);
}

/* ---- the choice ---------------------------------------------------------- */

/* Walks down the scores: each turn finds the best that comes after the last,
 * in order of (score, then index), so that nothing has to be crossed out. */
static const char NEXT_BEST[] =
    "INLINE i64 %s_next(const float *x, i64 from, i64 to, float top, i64 at)\n"
    "{\n"
    "    i64 best = -1;\n"
    "\n"
    "    for (i64 i = from; i < to; i++) {\n"
    "        const int after = x[i] < top || (x[i] == top && i > at);\n"
    "        if (after && (best < 0 || x[i] > x[best]))\n"
    "            best = i;\n"
    "    }\n"
    "    return best < 0 ? from : best;\n"
    "}\n"
    "\n";

static const char TOPK[] =
    "    ROWS(row, T) {\n"
    "        const float *x = score + row * E;\n"
    "        float top = INF;\n"
    "        i64 at = -1;\n"
    "        for (i64 k = 0; k < K; k++) {\n"
    "            at = %s_next(x, 0, E, top, at);\n"
    "            top = x[at];\n"
    "        }\n"
    "        LANES(i, 0, E)\n"
    "            out[row * E + i] =\n"
    "                x[i] > top || (x[i] == top && i <= at) ? 1.0f : 0.0f;\n"
    "    }\n"
    "}\n";

/* The groups' sums are the scores among which the best groups are found; the
 * scores of other groups' experts then count as -INF. */
static const char TOPK_GROUPS[] =
    "    ROWS(row, T) {\n"
    "        const float *x = score + row * E;\n"
    "        float sum[G], open[E], top = INF;\n"
    "        i64 at = -1;\n"
    "        for (i64 g = 0; g < G; g++) {\n"
    "            top = INF, at = -1, sum[g] = 0.0f;\n"
    "            for (i64 k = 0; k < K / N; k++) {\n"
    "                at = %s_next(x, g * (E / G), (g + 1) * (E / G), top, "
    "at);\n"
    "                top = x[at];\n"
    "                sum[g] += top;\n"
    "            }\n"
    "        }\n"
    "        for (i64 i = 0; i < E; i++)\n"
    "            open[i] = -INF;\n"
    "        top = INF, at = -1;\n"
    "        for (i64 n = 0; n < N; n++) {\n"
    "            at = %s_next(sum, 0, G, top, at);\n"
    "            top = sum[at];\n"
    "            for (i64 i = at * (E / G); i < (at + 1) * (E / G); i++)\n"
    "                open[i] = x[i];\n"
    "        }\n"
    "        top = INF, at = -1;\n"
    "        for (i64 k = 0; k < K; k++) {\n"
    "            at = %s_next(open, 0, E, top, at);\n"
    "            top = open[at];\n"
    "        }\n"
    "        LANES(i, 0, E)\n"
    "            out[row * E + i] =\n"
    "                open[i] > top || (open[i] == top && i <= at) ? 1.0f : "
    "0.0f;\n"
    "    }\n"
    "}\n";

static void print_topk(Route *r)
{
    AttrsId attrs = r->n->attrs;
    ValueId x = arg_of(r, 0);
    long long groups = attr_int(r->m, attrs, AK_GROUPS, 1);

    buf_printf(r->out, NEXT_BEST, r->name);
    buf_printf(r->out,
               "KERNEL(%s)\n{\n    enum { TEAM = WARP, T = %lld, E = %lld, K = "
               "%lld, G = %lld, N = %lld };\n",
               r->name, local(r, x, 's') * local(r, x, 'b'), local(r, x, 'e'),
               (long long)attr_int(r->m, attrs, AK_TOP_K, 1), groups,
               (long long)attr_int(r->m, attrs, AK_TOP_GROUPS, 1));
    print_pointer(r, "score", "const ", DT_F32, 0);
    print_pointer(r, "out", "", DT_F32, 1);
    if (groups > 1)
        buf_printf(r->out, TOPK_GROUPS, r->name, r->name, r->name);
    else
        buf_printf(r->out, TOPK, r->name);
}

/* ---- capacity ------------------------------------------------------------ */

/* SP x BP parts of SN x BN tokens on a rank.  An expert that is not crowded
 * keeps its tokens; else a token stays if fewer than C come before it. */
static const char FIT[] =
    "    PARTS(at, E * SP * BP) {\n"
    "        const i64 e = at / (SP * BP), s0 = at / BP % SP * SN;\n"
    "        const i64 b0 = at % BP * BN;\n"
    "        i64 chosen = 0, before = 0;\n"
    "        for (i64 i = 0; i < SN * BN; i++)\n"
    "            chosen += choice[TOKEN(i)] != 0.0f;\n"
    "        for (i64 i = 0; i < SN * BN; i++) {\n"
    "            const i64 mine = TOKEN(i);\n"
    "            i64 rank = before;\n"
    "            before += choice[mine] != 0.0f;\n"
    "            if (BY_SCORE && chosen > C && choice[mine] != 0.0f) {\n"
    "                rank = 0;\n"
    "                for (i64 k = 0; k < SN * BN; k++) {\n"
    "                    const i64 other = TOKEN(k);\n"
    "                    rank += choice[other] != 0.0f &&\n"
    "                            (score[other] > score[mine] ||\n"
    "                             (score[other] == score[mine] && k < i));\n"
    "                }\n"
    "            }\n"
    "            out[mine] = choice[mine] != 0.0f && rank < C ? 1.0f : "
    "0.0f;\n"
    "        }\n"
    "    }\n"
    "}\n"
    "#undef TOKEN\n";

/* Tokens of one part along a dimension. */
static long long part_of(const Route *r, char dim, AttrKey parts)
{
    return type_size(value_type(r->m, arg_of(r, 0)), dim) /
           attr_int(r->m, r->n->attrs, parts, 1);
}

/* The head of a kernel that sees the tokens of each part by themselves. */
static void print_parts(Route *r)
{
    ValueId x = arg_of(r, 0);
    long long sn = part_of(r, 's', AK_S_PARTS);
    long long bn = part_of(r, 'b', AK_B_PARTS);

    buf_printf(r->out,
               "#define TOKEN(i) (((s0 + (i) / BN) * (BP * BN) + b0 + (i) %% "
               "BN) * E + e)\nKERNEL(%s)\n{\n"
               "    enum { TEAM = WARP, E = %lld, C = %lld, SN = %lld, BN = "
               "%lld, SP = %lld, BP = %lld };\n",
               r->name, local(r, x, 'e'),
               (long long)attr_int(r->m, r->n->attrs, AK_SIZE, 1), sn, bn,
               local(r, x, 's') / sn, local(r, x, 'b') / bn);
}

static void print_fit(Route *r)
{
    print_parts(r);
    buf_printf(r->out, "    enum { BY_SCORE = %lld };\n",
               (long long)attr_int(r->m, r->n->attrs, AK_BY_SCORE, 0));
    print_pointer(r, "choice", "const ", DT_F32, 0);
    print_pointer(r, "score", "const ", DT_F32, 1);
    print_pointer(r, "out", "", DT_F32, 2);
    buf_puts(r->out, FIT);
}

/* ---- rounds -------------------------------------------------------------- */

static const char TURN[] =
    "    PARTS(at, E * SP * BP) {\n"
    "        const i64 e = at / (SP * BP), s0 = at / BP % SP * SN;\n"
    "        const i64 b0 = at % BP * BN, first = (i64)round[0] * C;\n"
    "        i64 before = 0;\n"
    "        for (i64 i = 0; i < SN * BN; i++) {\n"
    "            const i64 mine = TOKEN(i);\n"
    "            const int chosen = choice[mine] != 0.0f;\n"
    "            out[mine] = chosen && before >= first && before < first + C\n"
    "                            ? 1.0f : 0.0f;\n"
    "            before += chosen;\n"
    "        }\n"
    "    }\n"
    "}\n"
    "#undef TOKEN\n";

static void print_turn(Route *r)
{
    print_parts(r);
    print_pointer(r, "choice", "const ", DT_F32, 0);
    print_pointer(r, "round", "const ", DT_F32, 1);
    print_pointer(r, "out", "", DT_F32, 2);
    buf_puts(r->out, TURN);
}

/* What is left over of each part when every expert has taken C tokens, in
 * rounds; then the most of it. */
static const char ROUNDS[] =
    "    i32 *left = (i32 *)PTR(2);\n"
    "    PARTS(at, E * SP * BP) {\n"
    "        const i64 e = at / (SP * BP), s0 = at / BP % SP * SN;\n"
    "        const i64 b0 = at % BP * BN;\n"
    "        i64 n = 0;\n"
    "        for (i64 i = 0; i < SN * BN; i++)\n"
    "            n += choice[TOKEN(i)] != 0.0f;\n"
    "        left[at] = (i32)(n > C ? (n - 1) / C : 0);\n"
    "    }\n"
    "}\n"
    "#undef TOKEN\n";

static const char MOST_ROUNDS[] =
    "    const i32 *left = (const i32 *)PTR(2);\n"
    "    ROWS(row, 1) {\n"
    "        i32 most = 0;\n"
    "        for (i64 i = 0; i < N; i++)\n"
    "            most = left[i] > most ? left[i] : most;\n"
    "        out[row] = (float)most;\n"
    "    }\n"
    "}\n";

static void print_rounds(Route *r)
{
    ValueId x = arg_of(r, 0);
    long long parts = local(r, x, 'e') *
                      (local(r, x, 's') / part_of(r, 's', AK_S_PARTS)) *
                      (local(r, x, 'b') / part_of(r, 'b', AK_B_PARTS));

    print_parts(r);
    print_pointer(r, "choice", "const ", DT_F32, 0);
    buf_puts(r->out, ROUNDS);
    buf_printf(r->out,
               "\nKERNEL(%s_2)\n{\n    enum { TEAM = WARP, N = %lld };\n",
               r->name, parts);
    print_pointer(r, "out", "", DT_F32, 1);
    buf_puts(r->out, MOST_ROUNDS);
    r->info->phases = 2;
    r->info->workspace = 4 * parts;
    r->info->nptr++;
}

/* ---- filled slots -------------------------------------------------------- */

static const char FILLED[] =
    "    PARTS(e, E) {\n"
    "        i64 n = 0;\n"
    "        for (i64 i = 0; i < T; i++)\n"
    "            n += choice[i * E + e] != 0.0f;\n"
    "        ONCE for (i64 p = 0; p < P; p++) {\n"
    "            const i64 here = n - p * LIMIT;\n"
    "            out[e * P + p] =\n"
    "                here < 0 ? 0.0f : (float)(here < LIMIT ? here : LIMIT);\n"
    "        }\n"
    "    }\n"
    "}\n";

static void print_filled(Route *r)
{
    ValueId x = arg_of(r, 0);

    buf_printf(r->out,
               "KERNEL(%s)\n{\n    enum { TEAM = WARP, T = %lld, E = %lld, P = "
               "%lld, LIMIT = %lld };\n",
               r->name, local(r, x, 's') * local(r, x, 'b'), local(r, x, 'e'),
               local(r, r->n->res, 'c'),
               (long long)attr_int(r->m, r->n->attrs, AK_LIMIT, 1));
    print_pointer(r, "choice", "const ", DT_F32, 0);
    print_pointer(r, "out", "", DT_F32, 1);
    buf_puts(r->out, FILLED);
}

/* ---- sums over replicas' sequences --------------------------------------- */

static const char GROUP_SUM[] =
    "    ROWS(row, B) {\n"
    "        const float *from = x + row / N * N * E;\n"
    "        LANES(e, 0, E) {\n"
    "            float sum = 0.0f;\n"
    "            for (i64 i = 0; i < N; i++)\n"
    "                sum += from[i * E + e];\n"
    "            out[row * E + e] = sum;\n"
    "        }\n"
    "    }\n"
    "}\n";

static void print_group_sum(Route *r)
{
    ValueId x = arg_of(r, 0);

    buf_printf(r->out,
               "KERNEL(%s)\n{\n    enum { TEAM = WARP, B = %lld, E = %lld, N = "
               "%lld };\n",
               r->name, local(r, x, 'b'), local(r, x, 'e'),
               (long long)(type_size(value_type(r->m, x), 'b') /
                           attr_int(r->m, r->n->attrs, AK_B_PARTS, 1)));
    print_pointer(r, "x", "const ", DT_F32, 0);
    print_pointer(r, "out", "", DT_F32, 1);
    buf_puts(r->out, GROUP_SUM);
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
    DType t = dtype_of(r, arg_of(r, 2));

    buf_printf(r->out, "KERNEL(%s)\n{\n", r->name);
    print_sizes(r, node_res(r->n, 0));
    print_pointer(r, "choice", "const ", DT_F32, 0);
    print_pointer(r, "weight", "const ", DT_F32, 1);
    print_pointer(r, "x", "const ", t, 2);
    print_pointer(r, "out", "", t, 3);
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
    ValueId choice = arg_of(r, 0);

    buf_printf(r->out, "KERNEL(%s)\n{\n", r->name);
    print_sizes(r, block);
    print_pointer(r, "choice", "const ", DT_F32, 0);
    buf_puts(r->out, SLOTS);
    buf_printf(r->out, "\nKERNEL(%s_2)\n{\n", r->name);
    print_sizes(r, block);
    r->info->phases = 2;
    r->info->workspace = 4 * local(r, choice, 's') * local(r, choice, 'b') *
                         local(r, choice, 'e');
    r->info->nptr++;
}

static void print_combine(Route *r)
{
    DType t = dtype_of(r, arg_of(r, 2));

    print_slots(r, arg_of(r, 2));
    print_pointer(r, "weight", "const ", DT_F32, 1);
    print_pointer(r, "block", "const ", t, 2);
    print_pointer(r, "out", "", t, 3);
    buf_printf(r->out, COMBINE, suffix(t), suffix(t));
}

static void print_combine_weight(Route *r)
{
    DType block = dtype_of(r, arg_of(r, 1)), x = dtype_of(r, arg_of(r, 2));

    print_slots(r, arg_of(r, 1));
    print_pointer(r, "block", "const ", block, 1);
    print_pointer(r, "x", "const ", x, 2);
    print_pointer(r, "out", "", DT_F32, 3);
    buf_printf(r->out, COMBINE_WEIGHT, type_name(block), suffix(block),
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
        print_topk(&r);
        break;
    case OP_FIT:
        print_fit(&r);
        break;
    case OP_TURN:
        print_turn(&r);
        break;
    case OP_ROUNDS:
        print_rounds(&r);
        break;
    case OP_FILLED:
        print_filled(&r);
        break;
    case OP_GROUP_SUM:
        print_group_sum(&r);
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
