/* driver.c - runs the rows of passes.def.
 *
 * A pass runs if the module has what the pass needs and lacks what it makes.
 * After each one the module is verified, so a pass that leaves a malformed
 * module is named at once; with verify_each it is also executed.
 */
#include "passes/passes.h"
#include "passes/check.h"

const Pass passes[] = {
#define PASS(name, needs, makes, extends, help)                                \
    {#name, pass_##name, needs, makes, extends, help},
#include "passes/passes.def"
#undef PASS
};
const uint32_t passes_count = MC_LEN(passes);

const Pass *pass_find(const char *name)
{
    for (uint32_t i = 0; i < passes_count; i++)
        if (strcmp(passes[i].name, name) == 0)
            return &passes[i];
    return NULL;
}

static void dump(const Module *m, const Pass *p, const PassOptions *o)
{
    bool all = o->dump_after && strcmp(o->dump_after, "all") == 0;
    Buf text = {0}, path = {0};

    if (!all && (!o->dump_after || strcmp(o->dump_after, p->name) != 0))
        return;
    module_print(m, &text);
    if (o->dump_dir) {
        buf_printf(&path, "%s/%02d-%s.mir", o->dump_dir, (int)(p - passes),
                   p->name);
        if (!buf_write_file(&text, buf_str(&path)))
            diag_error(m->diag, (Loc){0}, "MC0801", "cannot write %s",
                       buf_str(&path));
    } else {
        fprintf(o->dump_to, "; after %s\n%s\n", p->name, buf_str(&text));
    }
    buf_free(&text);
    buf_free(&path);
}

bool pass_run(const Pass *p, Module *m, const Spec *spec)
{
    uint32_t missing = p->needs & ~m->props;

    if (missing) {
        diag_error(m->diag, (Loc){0}, "MC0690",
                   "pass %s needs a module that earlier passes prepared "
                   "(missing properties 0x%x)",
                   p->name, missing);
        return false;
    }
    if (!p->run(m, spec))
        return false;
    m->props |= p->makes;
    return module_verify(m);
}

bool passes_run(Module *m, const Spec *spec, const PassOptions *o)
{
    PassCheck *check = o->verify_each ? pass_check_new(m) : NULL;
    bool ok = true;

    for (uint32_t i = 0; ok && i < passes_count; i++) {
        const Pass *p = &passes[i];
        double start = mc_seconds();
        if (m->props & p->makes)
            continue;
        ok = pass_run(p, m, spec);
        if (o->seconds)
            o->seconds[i] = mc_seconds() - start;
        dump(m, p, o);
        if (ok && check)
            ok = pass_check_after(check, m, p);
        if (o->stop_after && strcmp(o->stop_after, p->name) == 0)
            break;
    }
    pass_check_free(check);
    return ok;
}
