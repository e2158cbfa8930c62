/* check_cp.c - the rules of context parallelism. */
#include "frontend/frontend_priv.h"

static void layers_check(Check *c)
{
    const Spec *s = c->spec;
    uint32_t n = s->parallel.cp_comm.n;

    if (n == 1 || n == (uint64_t)s->model.num_layers)
        return;
    check_fail(c, "MC0218", "parallel.cp_comm",
               "cp_comm lists %u layers, but num_layers = %lld", n,
               (long long)s->model.num_layers);
    check_because(c, "model.num_layers");
}

/* The sizes of a2a+p2p, which nothing else has a use for. */
static void sizes_check(Check *c)
{
    Spec *s = c->spec;
    const SpecIntList *sizes = &s->parallel.cp_sizes;

    if (spec_uses_cp_comm(s, CP_A2A_P2P)) {
        if (sizes->n == 2 && sizes->v[0] * sizes->v[1] == s->parallel.cp)
            return;
        check_fail(c, "MC0209",
                   sizes->n ? "parallel.cp_sizes" : "parallel.cp_comm",
                   "a2a+p2p needs cp_sizes: [a2a, p2p], two sizes whose "
                   "product is cp = %lld",
                   (long long)s->parallel.cp);
        check_because(c, "parallel.cp");
    } else if (sizes->n) {
        diag_warn(c->diag, spec_loc(s, "parallel.cp_sizes"), "MC0014",
                  "cp_sizes = %s has no effect without cp_comm = a2a+p2p",
                  check_text(c, "parallel.cp_sizes"));
        s->parallel.cp_sizes = (SpecIntList){NULL, 0};
    }
}

/* Heads split over ranks of tp and cp: every rank needs whole groups, or its
 * share of the queries of one group. */
static void heads_check(Check *c, SpecCpComm comm)
{
    const Spec *s = c->spec;
    int64_t heads = s->model.num_attention_heads;
    int64_t groups = s->model.num_query_groups;
    int64_t tp = s->parallel.tp, parts = spec_cp_split(s, comm).heads;
    int64_t ranks = tp * parts;

    if (parts == 1 || !spec_uses_cp_comm(s, comm) ||
        (heads % ranks == 0 && (groups % ranks == 0 || ranks % groups == 0)))
        return;
    check_fail(c, "MC0208", "parallel.cp_comm",
               "a2a splits heads over %s = %lld*%lld = %lld ranks, which "
               "must divide num_attention_heads = %lld, and be a divisor or a "
               "multiple of num_query_groups = %lld",
               comm == CP_A2A ? "tp*cp" : "tp*cp_sizes[0]", (long long)tp,
               (long long)parts, (long long)ranks, (long long)heads,
               (long long)groups);
    check_because(c, "model.num_attention_heads");
    check_because(c, "model.num_query_groups");
    check_because(c, comm == CP_A2A ? "parallel.cp" : "parallel.cp_sizes");
}

void cp_check(Check *c)
{
    if (c->spec->parallel.cp == 1)
        return;
    layers_check(c);
    sizes_check(c);
    heads_check(c, CP_A2A);
    heads_check(c, CP_A2A_P2P);
}

/* Pieces of axes are whole digits: of two borders one divides the other. */
void borders_check(Check *c)
{
    static const char *const causes[] = {"parallel.cp", "parallel.cp_sizes",
                                         "model.num_query_groups",
                                         "parallel.ep"};
    int64_t border[SPEC_BORDERS];
    uint32_t n = spec_borders(c->spec, border);

    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < i; k++) {
            int64_t large = MC_MAX(border[i], border[k]);
            int64_t small = MC_MIN(border[i], border[k]);
            if (large % small == 0)
                continue;
            check_fail(c, "MC0217", "parallel.cp_comm",
                       "cp would be cut after %lld ranks and after %lld, of "
                       "which one has to divide the other",
                       (long long)small, (long long)large);
            for (size_t j = 0; j < MC_LEN(causes); j++)
                check_because(c, causes[j]);
            return;
        }
}
