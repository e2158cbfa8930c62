/* parse_priv.h - the reader of the textual form, in four files.
 *
 * lex.c       text → tokens
 * parse_words.c  types, layouts, attributes
 * parse_decl.c   mesh, tensors, stages
 * parse.c        functions, nodes, the module
 *
 * The first error is reported and makes the reader see the end of the text
 * from then on, so that no function has to pass errors up: results after a
 * failure are harmless values, and every loop ends.
 */
#ifndef MEGAC_PARSE_PRIV_H
#define MEGAC_PARSE_PRIV_H

#include "ir/ir_priv.h"

typedef enum {
    TOK_END,
    TOK_WORD,   /* bf16, -1.5e-05, tp.0, 12 */
    TOK_STRING, /* "…", without its quotes */
    TOK_GLOBAL, /* @name */
    TOK_VALUE,  /* %name */
    TOK_HINT,   /* #name */
    TOK_PUNCT   /* one character */
} TokenKind;

typedef struct {
    const char *at;
    uint32_t line, col;
} Place;

typedef struct {
    Module *m;
    uint32_t source; /* of m->diag */
    Place place;     /* behind the token */
    bool failed;
    TokenKind kind; /* the token at hand … */
    char punct;
    Buf text; /* … without its sigil */
    Place start;
    Vec(ValueId) by_name; /* by Sym: latest value of that name */
    uint32_t first_value; /* of the function at hand */
    Vec(Place) bodies;    /* where each function's parameters start */
    Vec(Sym) names;       /* of the node at hand: results … */
    Vec(Value) results;   /* … what stands behind the colon */
    Vec(TypeId) types;
    Vec(ValueId) uses; /* … and operands */
} Parser;

enum { MAX_AXIS_NAME = 15 };

/* ---- lex.c --------------------------------------------------------------- */
void lex_next(Parser *p);
void lex_rewind(Parser *p, Place to); /* … and reads the token there */
Loc lex_loc(const Parser *p);         /* of the token at hand */
void lex_fail(Parser *p, const char *code, const char *fmt, ...)
    MC_PRINTF(3, 4);

bool lex_is(const Parser *p, char punct);
bool lex_is_word(const Parser *p, const char *word);
/* Skips the character or word if it is at hand. */
bool lex_take(Parser *p, char punct);
bool lex_take_word(Parser *p, const char *word);
void lex_expect(Parser *p, char punct);
void lex_expect_word(Parser *p, const char *word);
/* The text of a token of this kind, interned; then the next token. */
Sym lex_name(Parser *p, TokenKind kind);
int64_t lex_int(Parser *p, int64_t low, int64_t high);
double lex_float(Parser *p);

/* ---- parse_words.c ------------------------------------------------------- */
Type parse_plain_type(Parser *p);
TypeId parse_type(Parser *p);
DType parse_dtype(Parser *p);
LayoutId parse_layout(Parser *p); /* 0 if there is no `{` */
AxisSet parse_axes(Parser *p);
AttrsId parse_attrs(Parser *p); /* 0 if there is no `{` */
FuncId parse_func_ref(Parser *p);
int parse_choice(Parser *p, const char *const *table, int n,
                 const char *what);

/* ---- parse_decl.c -------------------------------------------------------- */
/* One declaration that starts at the word at hand; false if it is none. */
bool parse_decl(Parser *p);
/* Stages and entries, which name functions. */
bool parse_tail(Parser *p);

#endif
