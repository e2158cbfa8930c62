/* inspect_plan.c - the instructions of every class of ranks.
 *
 * Of a folder, what its executables carry; of a spec, what it compiles to.
 */
#include "driver/plans.h"
#include "driver/views.h"

#include "codegen/emit.h"

typedef Vec(char *) Texts;

static void add_text(Texts *texts, Arena *a, const Plan *p)
{
    Buf text = {0};

    plan_print(p, &text);
    vec_push(texts, arena_strdup(a, buf_str(&text)));
    buf_free(&text);
}

static Status texts_of_folder(const View *v, Texts *out)
{
    PlanSet set;
    Status status = plans_read(v->in->arena, v->in->dir, &set);

    for (uint32_t i = 0; i < set.n; i++)
        add_text(out, v->in->arena, &set.plans[i]);
    plans_free(&set);
    return status;
}

static Status texts_of_program(const View *v, Texts *out)
{
    EmitInput input = {v->program->m, v->program->mem, v->in->spec};
    EmitOutput emitted = {0};
    Status status = STATUS_NONE;

    if (!emit_plans(v->in->arena, &input, &emitted))
        *v->code = CLI_INPUT;
    for (uint32_t i = 0; i < emitted.n && !status; i++) {
        Plan plan;

        status = plan_load(emitted.plans[i].s, emitted.plans[i].len, &plan);
        if (!status) {
            add_text(out, v->in->arena, &plan);
            plan_free(&plan);
        }
    }
    emit_free(&emitted);
    return status;
}

static Texts read_texts(const View *v)
{
    Texts texts = {0};
    Status status = v->in->dir ? texts_of_folder(v, &texts)
                               : texts_of_program(v, &texts);

    if (status)
        *v->code = cli_failed(status);
    return texts;
}

json_t *view_plan_json(const View *v)
{
    Texts texts = read_texts(v);
    json_t *list = json_array();

    for (uint32_t i = 0; i < texts.n; i++)
        json_array_append_new(list, json_pack("{si ss}", "pp", (int)i, "text",
                                              texts.v[i]));
    vec_free(&texts);
    return list;
}

void view_plan_text(const View *v, FILE *to)
{
    Texts texts = read_texts(v);

    for (uint32_t i = 0; i < texts.n; i++)
        fputs(texts.v[i], to);
    vec_free(&texts);
}
