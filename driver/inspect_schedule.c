/* inspect_schedule.c - what each pipeline rank computes, in which order. */
#include "driver/views.h"
#include "passes/passes.h"

static json_t *actions_json(const Schedule *s, uint32_t pp)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < s->ranks[pp].n; i++) {
        const Action *a = &s->ranks[pp].v[i];
        const char kind[] = {(char)a->kind, 0};

        json_array_append_new(list, json_pack("[sii]", kind, (int)a->chunk,
                                              (int)a->microbatch));
    }
    return list;
}

json_t *view_schedule_json(const View *view)
{
    Schedule *s = schedule_make(view->in->arena, view->in->spec);
    json_t *list = json_array();

    for (uint32_t pp = 0; pp < s->pp; pp++)
        json_array_append_new(list, json_pack("{si so}", "pp", (int)pp,
                                              "actions", actions_json(s, pp)));
    schedule_free(s);
    return list;
}

/* "F3", and "F3.1" for chunk 1 if there are several. */
static void action_text(const Action *a, uint32_t chunks, FILE *to)
{
    fprintf(to, " %c%u", (char)a->kind, a->microbatch);
    if (chunks > 1)
        fprintf(to, ".%u", a->chunk);
}

void view_schedule_text(const View *view, FILE *to)
{
    Schedule *s = schedule_make(view->in->arena, view->in->spec);

    for (uint32_t pp = 0; pp < s->pp; pp++) {
        fprintf(to, "pp %u:", pp);
        for (uint32_t i = 0; i < s->ranks[pp].n; i++)
            action_text(&s->ranks[pp].v[i], s->chunks, to);
        fputc('\n', to);
    }
    schedule_free(s);
}
