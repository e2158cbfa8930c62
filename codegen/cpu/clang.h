/* clang.h - what the module megac-clang.so offers; shared by C and C++.
 *
 * Only flat types cross the border: the module is built by a C++ compiler
 * with the Clang 19 libraries and is loaded with dlopen.
 */
#ifndef MEGAC_CODEGEN_CPU_CLANG_H
#define MEGAC_CODEGEN_CPU_CLANG_H

#include <stddef.h>

/* Receives text or bytes, maybe in several pieces. */
typedef struct {
    void (*write)(void *to, const void *bytes, size_t n);
    void *to;
} ClangSink;

/* One translation unit: `prelude` and `text` are compiled as one file called
 * `name`.  `cpu` is an LLVM CPU name; "native" is this machine. */
typedef struct {
    const char *name, *prelude, *text, *cpu;
    ClangSink object;   /* the relocatable object */
    ClangSink messages; /* what the compiler had to say */
} ClangJob;

/* Returns 1 if the object was made.  Safe from several threads at once. */
typedef int ClangCompileFn(const ClangJob *job);
#define CLANG_COMPILE_SYMBOL "megac_clang_compile"

#endif
