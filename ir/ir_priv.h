/* ir_priv.h - what the files of ir/ share with each other only. */
#ifndef MEGAC_IR_PRIV_H
#define MEGAC_IR_PRIV_H

#include "ir/ir.h"

/* ---- intern.c: equal words, equal id ------------------------------------- */
typedef struct InternEntry InternEntry;

/* Module.interned.  A key is the canonical spelling of an object in words, so
 * that no padding byte is ever compared. */
typedef struct {
    InternEntry *types, *layouts, *attrs, *lists;
} Interned;

static inline Interned *interned_of(const Module *m)
{
    return m->interned;
}

bool intern_find(InternEntry *table, const uint64_t *key, uint32_t n,
                 uint32_t *out_id);
void intern_add(Arena *a, InternEntry **table, const uint64_t *key, uint32_t n,
                uint32_t id);
void intern_free(InternEntry **table);

/* ---- attrs.c ------------------------------------------------------------- */
typedef struct {
    const char *name;
    AttrKind kind;
} AttrInfo;
extern const AttrInfo attr_info[AK_KEYS];

bool attr_is_list(AttrKind kind);
uint32_t attrs_count(const Module *m, AttrsId a);
const Attr *attrs_at(const Module *m, AttrsId a, uint32_t i);

/* ---- names.c: words of the textual form ---------------------------------- */
extern const char *const field_names[FIELD_COUNT];
extern const char *const stream_names[STREAM_COUNT];
extern const char *const init_names[INIT_ONES + 1];

enum { PROP_NAMES = 13 };
extern const char *const prop_names[PROP_NAMES]; /* by bit of Prop */

/* Position of `word` in a table of n words, or -1. */
int word_find(const char *const *table, int n, const char *word);
/* Letters, digits, `_` and `.`, not starting with a dot. */
bool name_is_plain(const char *s);
/* A value's name without its number: "x" of "x" and "x.2"; none of "2". */
Sym name_base(SymTab *names, Sym name);

/* ---- op_cells.c: every cell that ops.def names --------------------------- */
#define OP(NAME, text, nargs, nres, sig, linear, flags, verify, infer, flops,  \
           ...)                                                                \
    const char *verify_##verify(Module *m, const Node *n);                     \
    const char *infer_##infer(Module *m, Op op, const ValueId *args,           \
                              uint32_t nargs_, AttrsId attrs, TypeId *out);    \
    double flops_##flops(const Module *m, const Node *n);
#include "ir/ops.def"
#undef OP

/* A complaint, to be shown behind the node's text. */
#define wrong(m, ...) arena_printf((m)->arena, __VA_ARGS__)

/* At most IR_MAX_DIMS letters, none twice. */
bool dims_legal(const char *dims);
/* The type of the contraction of x and y to the letters `dims`. */
const char *infer_product(Module *m, const Type *x, const Type *y,
                          const char *dims, DType dtype, TypeId *out);
/* How many results the op has with these attributes; -1 if they do not say (a
 * call without a callee). */
int op_results(const Module *m, Op op, AttrsId attrs);
/* Numbers of operands and results, types and attributes of one node: what is
 * wrong, or NULL.  build.c turns it into a bug, verify.c into a diagnostic. */
const char *node_check(Module *m, const Node *n);
/* The same before the node exists; the result types go to `out`. */
const char *op_check(Module *m, Op op, const ValueId *args, uint32_t nargs,
                     AttrsId attrs, TypeId *out);

/* ---- print_words.c ------------------------------------------------------- */
const char *type_text(Module *m, TypeId t);
void type_print_plain(const Type *t, Buf *out);
uint32_t axis_parts(const Mesh *mesh, const Atom *a);
void axes_print(const Module *m, AxisSet set, Buf *out);
void attrs_print(const Module *m, AttrsId attrs, Buf *out);
void float_print(double f, Buf *out);  /* the shortest that reads back */
void string_print(const char *s, Buf *out); /* quoted */

/* ---- print_decl.c -------------------------------------------------------- */
void decls_print(const Module *m, Buf *out);  /* before the functions */
void stages_print(const Module *m, Buf *out); /* behind them */

/* ---- layout.c ------------------------------------------------------------ */
bool split_equal(const Split *a, const Split *b); /* NULL: whole */
bool layout_equal(const Layout *a, const Layout *b);

/* ---- verify_layout.c ----------------------------------------------------- */
/* What is illegal in a layout of values of type t, or NULL. */
const char *layout_problem(const Module *m, const Type *t, const Layout *l);
/* What does not fit in the layouts around a node, or NULL. */
const char *node_layout_problem(const Module *m, const Node *n);

/* ---- epilogue.c ---------------------------------------------------------- */
/* What does not fit in the layouts of biases and residuals, or NULL. */
const char *epilogue_layout_problem(const Module *m, const Node *n);

/* ---- verify_comm.c ------------------------------------------------------- */
const char *comm_layout_problem(const Module *m, const Node *n);

#endif
