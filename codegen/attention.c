/* attention.c - prints flash attention, forward and backward.
 *
 * The algorithms are texts (attention_*.inc) in terms of constants; this file
 * chooses the block sizes and prints the constants of one shape before them.
 * `@` in the texts is the kernel's name, so several kernels share a file.
 *
 * CPU blocks: all queries of a group for some positions, about LANES of them,
 * against KEYS keys.  Both keep the working set of a block in the second-level
 * cache for head dimensions up to 256.
 */
#include "codegen/codegen_priv.h"

#include "base/dropout.h"

enum { LANES = 64, KEYS = 64, VECTOR = 16, UNITS = 8 };

typedef struct {
    int64_t queries;   /* positions of a run of neighbours in the sequence */
    int64_t run;       /* the same of keys */
    int64_t positions; /* query positions of a block */
    int64_t lanes;     /* positions * r, padded to whole vectors */
    int64_t channels;  /* d, padded to whole vectors */
    int64_t keys;      /* keys of a block */
    int64_t keys_all;  /* t, the last run padded to whole blocks */
    int64_t chunks;    /* parts of the query blocks in the backward */
} Blocking;

static int64_t round_up(int64_t x, int64_t to)
{
    return (x + to - 1) / to * to;
}

static bool zigzags(const AttentionSpec *a)
{
    return a->parts > 1;
}

static int64_t chunk_of(const AttentionSpec *a)
{
    return zigzags(a) ? a->seq / (2 * a->parts) : 1;
}

/* How far before the queries the keys lie, in tokens. */
static int64_t shift_of(const AttentionSpec *a)
{
    return a->shift ? a->seq / a->steps * a->shift : 0;
}

/* The backward's units are batch rows x groups x chunks; more chunks than
 * UNITS needs would only cost workspace.  Independent of the thread count, as
 * the order of summation must be. */
static Blocking blocking_choose(const AttentionSpec *a)
{
    Blocking k;
    int64_t blocks;

    k.queries = zigzags(a) ? chunk_of(a) : a->s;
    k.run = zigzags(a) ? chunk_of(a) : a->t;
    k.positions = MC_MIN(MC_MAX(LANES / a->r, 1), k.queries);
    k.lanes = round_up(k.positions * a->r, VECTOR);
    k.channels = round_up(a->d, VECTOR);
    k.keys = MC_MIN(KEYS, round_up(k.run, VECTOR));
    k.keys_all = a->t - k.run + round_up(k.run, k.keys);
    blocks = a->s / k.queries * ((k.queries + k.positions - 1) / k.positions);
    k.chunks = MC_MIN((UNITS + a->b * a->g - 1) / (a->b * a->g), blocks);
    return k;
}

static void print_constant(Buf *out, const AttentionSpec *a, const char *name,
                           int64_t value)
{
    buf_printf(out, "static const i64 %s_%s = %lld;\n", a->name, name,
               (long long)value);
}

static void print_strides(Buf *out, const AttentionSpec *a, const char *tensor,
                          const AttnStrides *st)
{
    static const char letters[] = "SBGR";
    const int64_t values[] = {st->s, st->b, st->g, st->r};

    for (size_t i = 0; i < MC_LEN(values); i++)
        buf_printf(out, "static const i64 %s_%s%c = %lld;\n", a->name, tensor,
                   letters[i], (long long)values[i]);
}

static void print_shape(Buf *out, const AttentionSpec *a, const Blocking *k)
{
    const struct {
        const char *name;
        int64_t value;
    } rows[] = {
        {"S", a->s},         {"T", a->t},          {"B", a->b},
        {"G", a->g},         {"R", a->r},          {"D", a->d},
        {"DP", k->channels}, {"BQ", k->positions}, {"M", k->lanes},
        {"BC", k->keys},     {"TP", k->keys_all},  {"C", k->chunks},
        {"QN", k->queries},  {"KN", k->run},       {"CAUSAL", a->causal},
        {"PARTS", a->parts}, {"CHUNK", chunk_of(a)},
        {"SEQ", MC_MAX(a->seq, 1)},
        {"SHIFT", shift_of(a)}, {"CARRY", a->carry},
        {"BALL", a->batch},  {"RALL", a->queries},
        {"WHICH", a->which},
    };

    buf_puts(out, "enum {\n");
    for (size_t i = 0; i < MC_LEN(rows); i++)
        buf_printf(out, "    %s_%s = %lld,\n", a->name, rows[i].name,
                   (long long)rows[i].value);
    buf_puts(out, "};\n");
    print_constant(out, a, "WINDOW", a->window);
    buf_printf(out, "static const float %s_SCALE = %.9gf;\n", a->name,
               a->scale);
}

/* What the texts call the element type and its conversions. */
static void print_type(Buf *out, const AttentionSpec *a)
{
    static const char *const elements[] = {"float", "bf16", "f16"};
    static const char *const suffixes[] = {"f32", "bf16", "f16"};

    buf_printf(out, "typedef %s %s_elem;\n", elements[a->type], a->name);
    buf_printf(out, "#define %s_BF16 %d\n", a->name, a->type == ATTN_BF16);
    buf_printf(out, "#define %s_DROP %d\n", a->name, a->rate > 0);
    buf_printf(out, "#define %s_LOAD load_%s\n", a->name, suffixes[a->type]);
    buf_printf(out, "#define %s_STORE store_%s\n", a->name,
               suffixes[a->type]);
}

/* Positions of what is stored at an index of the sequence (base/zigzag.h); of
 * keys, of what lies @SHIFT before. */
static const char POSITION[] =
    "INLINE i64 @position(i64 index)\n"
    "{\n"
    "    i64 block = index / @CHUNK;\n"
    "\n"
    "    if (@PARTS < 2)\n"
    "        return index;\n"
    "    block = block % 2 ? 2 * @PARTS - 1 - block / 2 : block / 2;\n"
    "    return block * @CHUNK + index % @CHUNK;\n"
    "}\n"
    "\n"
    "INLINE i64 @key_position(i64 index)\n"
    "{\n"
    "    return @position(@SHIFT ? (index + @SEQ - @SHIFT) % @SEQ : index);\n"
    "}\n";

/* The generator, the lowest word that keeps, and the factor of what is kept. */
static void print_draws(Buf *out, const AttentionSpec *a)
{
    if (a->rate == 0)
        return;
    buf_printf(out, "static const u32 %s_THRESHOLD = %uu;\n", a->name,
               dropout_threshold(a->rate));
    buf_printf(out, "static const float %s_KEPT = %.9gf;\n", a->name,
               1 / (1 - a->rate));
    codegen_expand(codegen_text(TEXT_DRAWS), a->name, out);
    codegen_expand(codegen_text(TEXT_ATTENTION_DRAWS), a->name, out);
}

static void print_head(Buf *out, const AttentionSpec *a)
{
    Blocking k = blocking_choose(a);

    buf_printf(out,
               "/* %s: attention, s %lld, keys %lld, b %lld, groups %lld, "
               "queries %lld, d %lld */\n",
               a->name, (long long)a->s, (long long)a->t, (long long)a->b,
               (long long)a->g, (long long)a->r, (long long)a->d);
    print_shape(out, a, &k);
    print_type(out, a);
    print_strides(out, a, "Q", &a->q);
    print_strides(out, a, "K", &a->k);
    print_strides(out, a, "V", &a->v);
    print_strides(out, a, "O", &a->o);
    print_strides(out, a, "L", &a->lse);
    codegen_expand(POSITION, a->name, out);
    print_draws(out, a);
}

void attention_print_forward(const AttentionSpec *spec, Dialect dialect,
                             Buf *out)
{
    print_head(out, spec);
    if (dialect == DIALECT_CPU) {
        codegen_expand(codegen_text(TEXT_ATTENTION_BLOCK_CPU), spec->name, out);
        codegen_expand(codegen_text(TEXT_ATTENTION_CPU), spec->name, out);
    } else {
        codegen_expand(codegen_text(TEXT_ATTENTION_CUDA), spec->name, out);
    }
}

void attention_print_backward(const AttentionSpec *spec, Dialect dialect,
                              Buf *out)
{
    print_head(out, spec);
    print_strides(out, spec, "DO", &spec->d_o);
    print_strides(out, spec, "DQ", &spec->dq);
    print_strides(out, spec, "DK", &spec->dk);
    print_strides(out, spec, "DV", &spec->dv);
    if (dialect == DIALECT_CPU) {
        codegen_expand(codegen_text(TEXT_ATTENTION_BLOCK_CPU), spec->name, out);
        codegen_expand(codegen_text(TEXT_ATTENTION_GRAD_CPU), spec->name, out);
    } else {
        codegen_expand(codegen_text(TEXT_ATTENTION_GRAD_CUDA), spec->name, out);
    }
}

/* CPU: sums of dk and dv per unit.  CUDA: do . o per query, f32. */
int64_t attention_workspace(const AttentionSpec *spec, Dialect dialect)
{
    Blocking k = blocking_choose(spec);
    int64_t pairs = spec->b * spec->g;

    if (dialect == DIALECT_CUDA)
        return round_up(pairs * spec->s * spec->r * 4, 64);
    return k.chunks * pairs * 2 * k.keys_all * k.channels * 4;
}
