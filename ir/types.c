/* types.c - types of values: named dimensions with logical sizes.
 *
 * A type never says how a value is spread over ranks; sizes are global, and
 * layout.c derives what one rank holds.  Types are interned: equal types have
 * equal ids.
 */
#include "ir/ir_priv.h"

static const struct {
    const char *name;
    int64_t bytes;
} dtypes[] = {
    [DT_NONE] = {"none", 0}, [DT_F32] = {"f32", 4}, [DT_BF16] = {"bf16", 2},
    [DT_I32] = {"i32", 4},   [DT_F16] = {"f16", 2}, [DT_BOOL] = {"bool", 1},
};

const char *dtype_name(DType t)
{
    mc_assert((size_t)t < MC_LEN(dtypes));
    return dtypes[t].name;
}

int64_t dtype_bytes(DType t)
{
    mc_assert((size_t)t < MC_LEN(dtypes));
    return dtypes[t].bytes;
}

bool dtype_parse(const char *s, DType *out)
{
    for (size_t i = 1; i < MC_LEN(dtypes); i++)
        if (!strcmp(dtypes[i].name, s)) {
            *out = (DType)i;
            return true;
        }
    return false;
}

/* ---- interning ----------------------------------------------------------- */

enum { TYPE_WORDS = 1 + 2 * IR_MAX_DIMS };

static uint32_t type_words(const Type *t, uint64_t *key)
{
    uint32_t n = 0;

    key[n++] = (uint64_t)t->dtype;
    for (uint32_t i = 0; i < t->ndim; i++) {
        key[n++] = (uint64_t)(unsigned char)t->dim[i];
        key[n++] = (uint64_t)t->size[i];
    }
    return n;
}

TypeId type_intern(Module *m, const Type *t)
{
    uint64_t key[TYPE_WORDS];
    Type clean = {.dtype = t->dtype, .ndim = t->ndim};
    uint32_t n, id;

    mc_assert(t->ndim <= IR_MAX_DIMS);
    n = type_words(t, key);
    if (intern_find(interned_of(m)->types, key, n, &id))
        return (TypeId){id};
    for (uint32_t i = 0; i < t->ndim; i++) {
        clean.dim[i] = t->dim[i];
        clean.size[i] = t->size[i];
    }
    id = m->types.n;
    vec_push(&m->types, clean);
    intern_add(m->arena, &interned_of(m)->types, key, n, id);
    return (TypeId){id};
}

TypeId type_make(Module *m, DType dtype, const char *dims, const int64_t *size)
{
    size_t n = strlen(dims);
    Type t = {.dtype = dtype, .ndim = (uint8_t)n};

    mc_assert(n <= IR_MAX_DIMS);
    for (size_t i = 0; i < n; i++) {
        t.dim[i] = dims[i];
        t.size[i] = size[i];
    }
    return type_intern(m, &t);
}

/* ---- asking -------------------------------------------------------------- */

int type_dim(const Type *t, char dim)
{
    for (int i = 0; i < t->ndim; i++)
        if (t->dim[i] == dim)
            return i;
    return -1;
}

int64_t type_size(const Type *t, char dim)
{
    int at = type_dim(t, dim);

    return at < 0 ? 1 : t->size[at];
}

int64_t type_elems(const Type *t)
{
    int64_t n = 1;

    for (int i = 0; i < t->ndim; i++)
        n *= t->size[i];
    return n;
}

/* ---- deriving ------------------------------------------------------------ */

TypeId type_without(Module *m, TypeId t, char dim)
{
    Type u = *type_of(m, t);
    int at = type_dim(&u, dim);

    if (at < 0)
        return t;
    u.ndim--;
    for (int i = at; i < u.ndim; i++) {
        u.dim[i] = u.dim[i + 1];
        u.size[i] = u.size[i + 1];
    }
    return type_intern(m, &u);
}

TypeId type_with_first(Module *m, TypeId t, char dim, int64_t size)
{
    Type u = *type_of(m, t);

    mc_assert(u.ndim < IR_MAX_DIMS && type_dim(&u, dim) < 0);
    for (int i = u.ndim++; i > 0; i--) {
        u.dim[i] = u.dim[i - 1];
        u.size[i] = u.size[i - 1];
    }
    u.dim[0] = dim;
    u.size[0] = size;
    return type_intern(m, &u);
}

TypeId type_resized(Module *m, TypeId t, char dim, int64_t size)
{
    Type u = *type_of(m, t);
    int at = type_dim(&u, dim);

    mc_assert(at >= 0);
    u.size[at] = size;
    return type_intern(m, &u);
}

TypeId type_as(Module *m, TypeId t, DType dtype)
{
    Type u = *type_of(m, t);

    u.dtype = dtype;
    return type_intern(m, &u);
}
