/* route_choice.c - prints the kernels of the choice of experts: by score, by
 * capacity, by round, and what is counted of it; one text for every dialect.
 *
 * What depends on the tokens before one is walked by one team from front to
 * back, so it is the same however many threads there are.
 */
#include "codegen/route_priv.h"

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

void route_print_topk(Route *r)
{
    AttrsId attrs = r->n->attrs;
    ValueId x = route_arg(r, 0);
    long long groups = attr_int(r->m, attrs, AK_GROUPS, 1);

    buf_printf(r->out, NEXT_BEST, r->name);
    buf_printf(r->out,
               "KERNEL(%s)\n{\n    enum { TEAM = WARP, T = %lld, E = %lld, K = "
               "%lld, G = %lld, N = %lld };\n",
               r->name, route_local(r, x, 's') * route_local(r, x, 'b'),
               route_local(r, x, 'e'),
               (long long)attr_int(r->m, attrs, AK_TOP_K, 1), groups,
               (long long)attr_int(r->m, attrs, AK_TOP_GROUPS, 1));
    route_pointer(r, "score", "const ", DT_F32, 0);
    route_pointer(r, "out", "", DT_F32, 1);
    if (groups > 1)
        buf_printf(r->out, TOPK_GROUPS, r->name, r->name, r->name);
    else
        buf_printf(r->out, TOPK, r->name);
}

/* ---- capacity ------------------------------------------------------------ */

/* SP x BP parts of SN x BN tokens on a rank, expert by expert. */
#define EACH_PART \
    "    PARTS(at, E * SP * BP) {\n" \
    "        const i64 e = at / (SP * BP), s0 = at / BP % SP * SN;\n" \
    "        const i64 b0 = at % BP * BN;\n"

/* An expert that is not crowded keeps its tokens; else a token stays if fewer
 * than C come before it. */
static const char FIT[] =
    EACH_PART
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
    return type_size(value_type(r->m, route_arg(r, 0)), dim) /
           attr_int(r->m, r->n->attrs, parts, 1);
}

/* The head of a kernel that sees the tokens of each part by themselves. */
static void print_parts(Route *r)
{
    ValueId x = route_arg(r, 0);
    long long sn = part_of(r, 's', AK_S_PARTS);
    long long bn = part_of(r, 'b', AK_B_PARTS);

    buf_printf(r->out,
               "#define TOKEN(i) (((s0 + (i) / BN) * (BP * BN) + b0 + (i) %% "
               "BN) * E + e)\nKERNEL(%s)\n{\n"
               "    enum { TEAM = WARP, E = %lld, C = %lld, SN = %lld, BN = "
               "%lld, SP = %lld, BP = %lld };\n",
               r->name, route_local(r, x, 'e'),
               (long long)attr_int(r->m, r->n->attrs, AK_SIZE, 1), sn, bn,
               route_local(r, x, 's') / sn, route_local(r, x, 'b') / bn);
}

void route_print_fit(Route *r)
{
    print_parts(r);
    buf_printf(r->out, "    enum { BY_SCORE = %lld };\n",
               (long long)attr_int(r->m, r->n->attrs, AK_BY_SCORE, 0));
    route_pointer(r, "choice", "const ", DT_F32, 0);
    route_pointer(r, "score", "const ", DT_F32, 1);
    route_pointer(r, "out", "", DT_F32, 2);
    buf_puts(r->out, FIT);
}

/* ---- rounds -------------------------------------------------------------- */

static const char TURN[] =
    EACH_PART
    "        const i64 first = (i64)round[0] * C;\n"
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

void route_print_turn(Route *r)
{
    print_parts(r);
    route_pointer(r, "choice", "const ", DT_F32, 0);
    route_pointer(r, "round", "const ", DT_F32, 1);
    route_pointer(r, "out", "", DT_F32, 2);
    buf_puts(r->out, TURN);
}

/* What is left over of each part when every expert has taken C tokens, in
 * rounds; then the most of it. */
static const char ROUNDS[] =
    "    i32 *left = (i32 *)PTR(2);\n"
    EACH_PART
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

void route_print_rounds(Route *r)
{
    ValueId x = route_arg(r, 0);
    long long parts = route_local(r, x, 'e') *
                      (route_local(r, x, 's') / part_of(r, 's', AK_S_PARTS)) *
                      (route_local(r, x, 'b') / part_of(r, 'b', AK_B_PARTS));

    print_parts(r);
    route_pointer(r, "choice", "const ", DT_F32, 0);
    buf_puts(r->out, ROUNDS);
    buf_printf(r->out,
               "\nKERNEL(%s_2)\n{\n    enum { TEAM = WARP, N = %lld };\n",
               r->name, parts);
    route_pointer(r, "out", "", DT_F32, 1);
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

void route_print_filled(Route *r)
{
    ValueId x = route_arg(r, 0);

    buf_printf(r->out,
               "KERNEL(%s)\n{\n    enum { TEAM = WARP, T = %lld, E = %lld, P = "
               "%lld, LIMIT = %lld };\n",
               r->name, route_local(r, x, 's') * route_local(r, x, 'b'),
               route_local(r, x, 'e'),
               route_local(r, r->n->res, 'c'),
               (long long)attr_int(r->m, r->n->attrs, AK_LIMIT, 1));
    route_pointer(r, "choice", "const ", DT_F32, 0);
    route_pointer(r, "out", "", DT_F32, 1);
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

void route_print_group_sum(Route *r)
{
    ValueId x = route_arg(r, 0);

    buf_printf(r->out,
               "KERNEL(%s)\n{\n    enum { TEAM = WARP, B = %lld, E = %lld, N = "
               "%lld };\n",
               r->name, route_local(r, x, 'b'), route_local(r, x, 'e'),
               (long long)(type_size(value_type(r->m, x), 'b') /
                           attr_int(r->m, r->n->attrs, AK_B_PARTS, 1)));
    route_pointer(r, "x", "const ", DT_F32, 0);
    route_pointer(r, "out", "", DT_F32, 1);
    buf_puts(r->out, GROUP_SUM);
}
