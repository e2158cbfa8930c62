/* params.c - from a module's tensors to the tensors of files.
 *
 * What lies side by side in a tensor are several parameters; of experts that
 * lie in one tensor each has a file tensor of its own; GPT-2's q, k and v have
 * one together.
 */
#include "driver/params.h"

#include "runtime/plan.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- which --------------------------------------------------------------- */

static void list_layers(const Module *m, TensorId id, const TensorPart *part,
                        Params *out)
{
    const Tensor *t = &m->tensors.v[id.i];

    for (uint32_t l = 0; l < m->nlayers; l++) {
        if (tensor_in_layer(m, id, l))
            vec_push(out,
                     ((Param){t, part, t->per_layer ? (int64_t)l : -1}));
        if (!t->per_layer)
            break;
    }
}

Params params_list(const Module *m)
{
    Params params = {0};

    for (uint32_t i = 1; i < m->tensors.n; i++) {
        const Tensor *t = &m->tensors.v[i];

        if (t->parameter && t->nparts == 0)
            list_layers(m, (TensorId){i}, NULL, &params);
        for (uint32_t k = 0; t->parameter && k < t->nparts; k++)
            list_layers(m, (TensorId){i}, &t->part[k], &params);
    }
    return params;
}

const Export *param_file(const Param *p)
{
    return p->part ? &p->part->file : &p->tensor->file;
}

static Type logical_type(const Param *p)
{
    return p->part ? type_part(&p->tensor->logical, p->part->at)
                   : p->tensor->logical;
}

int64_t param_count(const Param *p)
{
    Type type = logical_type(p);

    return type_elems(&type);
}

const char *param_name(Arena *a, const Module *m, const Param *p)
{
    const char *name = sym_text(m->names, param_file(p)->name);
    const char *mark = strstr(name, "{l}");

    if (!mark)
        return name;
    return arena_printf(a, "%.*s%" PRId64 "%s", (int)(mark - name), name,
                        p->layer, mark + 3);
}

/* ---- in files ------------------------------------------------------------ */

/* Expert `e` of a parameter, or all of one without experts. */
static Status add_tensor(const Param *p, const char *pattern, uint32_t e,
                         SafeSet *out)
{
    const Export *file = param_file(p);
    char name[512];

    if (!plan_part_name(pattern, e, name, sizeof name))
        return status_make(STATUS_INPUT, "the tensor name %s is too long",
                           pattern);
    out->v[out->n] = (SafeTensor){
        .name = strdup(name),
        .rows = file->transpose ? file->cols : file->fused_rows,
        .columns = file->transpose ? file->fused_rows : file->cols};
    return out->v[out->n++].name
               ? STATUS_NONE
               : status_make(STATUS_SYSTEM, "no memory for a name");
}

/* How many tensors of a file a parameter is. */
static uint32_t pieces(const Module *m, const Param *p)
{
    Type type = logical_type(p);

    return strstr(sym_text(m->names, param_file(p)->name), "{e}")
               ? (uint32_t)type.size[0]
               : 1;
}

static Status add_tensors(Arena *a, const Module *m, const Params *params,
                          SafeSet *out)
{
    size_t n = 1;

    for (uint32_t i = 0; i < params->n; i++)
        n += pieces(m, &params->v[i]);
    out->v = calloc(n, sizeof *out->v);
    if (!out->v)
        return status_make(STATUS_SYSTEM, "no memory for a list of tensors");
    for (uint32_t i = 0; i < params->n; i++) {
        const Param *p = &params->v[i];
        for (uint32_t e = 0; e < pieces(m, p); e++)
            STATUS_TRY(add_tensor(p, param_name(a, m, p), e, out));
    }
    return safe_layout(out, "model", 0);
}

Status params_files(Arena *a, const Module *m, SafeSet *out)
{
    Params params = params_list(m);
    SafeSet set = {0};
    Status s = add_tensors(a, m, &params, &set);

    vec_free(&params);
    if (s)
        safe_close(&set);
    else
        *out = set;
    return s;
}
