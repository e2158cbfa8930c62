/* row_text.h - the printer of row programs, between row_print.c, row_value.c
 * and row_late.c. */
#ifndef MEGAC_ROW_TEXT_H
#define MEGAC_ROW_TEXT_H

#include "codegen/row_priv.h"

typedef enum { IN_HEAD = 1, IN_ROW = 2, IN_LOOP = 4, IN_SHIFT = 8 } Scope;

typedef struct {
    const RowProgram *p;
    const Strides *strides; /* by pointer */
    KernelInfo *info;
    const char *name;  /* of the kernel */
    uint32_t key_ptr;  /* the pointer to the key of its draws, if it has any */
    Buf head, row, loop;
    uint8_t *printed;  /* by value: the scopes that have it */
    int64_t shift;     /* of the fastest index, under a rotation */
    int64_t seg_from;  /* the stretch of the fastest dimension being printed */
    bool beyond;       /* the loop being printed lies behind a range's end */
    bool late;         /* inside the second kernel */
    DimSet late_dims;  /* dimensions of the columns there */
    uint32_t phase;
} Printer;

/* ---- row_value.c -------------------------------------------------------- */
/* Where a value belongs as things stand, its text, its indentation. */
Scope row_scope(const Printer *w, const RowValue *v);
const char *row_indent(const Printer *w, Scope s);
/* Forgets what was printed into these scopes. */
void row_scopes_close(Printer *w, unsigned which);
/* A value in text: "x1_w" is parameter 1, "v3" the third result of the body,
 * as the printed function numbers it. */
void row_print_name(const Printer *w, Buf *out, uint32_t value, Scope s);
uint32_t row_number(const RowProgram *p, uint32_t value);
/* Prints value i into its scope unless it is there already. */
void row_print_value(Printer *w, uint32_t i);
/* "s * 512 + h": where an element of v lies; dimensions of one index vanish. */
void row_print_index(Printer *w, Buf *out, ValueId v, const Strides *st);
/* "if (!(s | b)) ": a value without some dimension is stored once only. */
void row_print_guard(const Printer *w, DimSet dims, DimSet among, Buf *out);
/* A store or accumulation of a printed value, indented for its scope. */
void row_print_store(Printer *w, const RowSink *sink, Scope s, Buf *out);
int64_t row_rotary(const Printer *w, const RowValue *v);
void row_print_float(Buf *out, double x);
/* The range that ends within the fastest dimension, or 0: there is none, or a
 * value is turned around there; the index where it
 * ends on this rank. */
uint32_t row_range(const Printer *w);
void row_print_edge(Printer *w, uint32_t range, Buf *out);
/* The logical index along `dim`, which v has. */
void row_print_position(Printer *w, const RowValue *v, char dim, Buf *out);
/* The operand's name where it is used now; prints the operand if needed. */
void row_operand_name(Printer *w, const RowValue *v, uint32_t k, Buf *out);
/* The immediate that holds a number; added if it is new. */
int row_imm(KernelInfo *k, KernelStart want);
bool row_is_max(const Printer *w, const RowValue *v);

/* ---- row_draws.c -------------------------------------------------------- */
/* The operand of a dropout, scaled, or 0. */
void row_print_dropout(Printer *w, const RowValue *v, AttrsId attrs, Buf *out);

/* ---- row_late.c --------------------------------------------------------- */
/* The body of the second kernel: everything late. */
void row_print_late(Printer *w, Buf *out);

#endif
