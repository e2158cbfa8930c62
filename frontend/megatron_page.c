/* megatron_page.c - docs/MEGATRON.md: what becomes of each flag of Megatron,
 * from the table that the importer reads. */
#include "frontend/megatron.h"

static const char intro[] =
    "# Megatron-LM's command line\n\n"
    "Printed by `megac import --list` from `frontend/megatron.def`; edit "
    "that.\n\n"
    "    megac import --megatron \"--num-layers 32 --hidden-size 4096 …\" -o "
    "llama.yaml\n"
    "    megac import --megatron \"$(cat command.txt)\" -o llama.yaml\n"
    "    megac compile llama.yaml -- --tensor-model-parallel-size 4 --bf16\n\n"
    "The first two read a whole command line: what it does not say is "
    "Megatron's default, not megac's. It may begin with `torchrun … "
    "pretrain_gpt.py`, of which `--nnodes` and `--nproc-per-node` are read; "
    "another program is taken for that one, with a warning, unless it trains "
    "something else (`pretrain_bert.py`). "
    "Quotes, continued lines and comments are those of a shell, and `$VAR`, "
    "`${VAR}` and `${VAR:-default}` take the environment; nothing is run. The "
    "third changes a file, by the flags alone, which win over `--set`; so do "
    "`inspect`, `explain` and `verify`.\n\n"
    "Names are exact, as Megatron wants them; of a flag that is given twice "
    "the last one counts; `--flag=value` is the same as `--flag value`. An "
    "unknown flag is an error with the nearest name, and so is one that "
    "changes what is computed in a way that megac cannot follow. What makes "
    "no difference is listed in one warning.\n\n"
    "Four things differ: rows of padding never take part in the loss; the "
    "vocabulary of `NullTokenizer` is that of `--vocab-size` (Megatron Core "
    "up to 0.16 adds one for the end of a document); a relative `--save` lies "
    "in the output folder; gradients of `--fp16` are summed up in fp32, also "
    "without `--accumulate-allreduce-grads-in-fp32`.\n";

static void names_print(const FlagRow *row, Buf *out)
{
    const char *cursor = row->names, *before = "";
    Spelling s;

    while (spelling_next(&cursor, &s)) {
        buf_printf(out, "%s`--%.*s`", before, s.len, s.text);
        before = ", ";
    }
}

/* What a row of this kind says of its flags. */
static void effect_print(const FlagRow *row, Buf *out)
{
    if (row->kind == FLAG_KEY)
        buf_printf(out, "`%s`", row->path);
    else if (row->kind == FLAG_SWITCH)
        buf_printf(out, "`%s: %s`", row->path, row->word);
    else if (row->kind == FLAG_ONLY)
        buf_printf(out, "%s | %s", row->word, row->text);
    else
        buf_puts(out, row->text);
}

static void kinds_print(FlagKind first, FlagKind last, Buf *out)
{
    for (uint32_t i = 0; i < flag_num_rows; i++) {
        const FlagRow *row = &flag_rows[i];
        if (row->kind < first || row->kind > last)
            continue;
        buf_puts(out, "| ");
        names_print(row, out);
        buf_puts(out, " | ");
        effect_print(row, out);
        buf_puts(out, " |\n");
    }
}

static void defaults_print(Buf *out)
{
    for (uint32_t i = 0; i < flag_num_defaults; i++) {
        const FlagDefault *row = &flag_defaults[i];
        buf_printf(out, "| `%s` | %s | %s%s%s |\n", row->path, row->value,
                   *row->beside ? "with `" : "", row->beside,
                   *row->beside ? "`" : "");
    }
}

static void class_print(FlagClass class, Buf *out)
{
    const char *before = "";

    buf_printf(out, "| %s | ", flag_classes[class]);
    for (uint32_t i = 0; i < flag_num_rows; i++)
        if (flag_rows[i].kind == FLAG_IGNORE && flag_rows[i].class == class) {
            buf_puts(out, before);
            names_print(&flag_rows[i], out);
            before = ", ";
        }
    buf_puts(out, " |\n");
}

void megatron_markdown(Buf *out)
{
    buf_puts(out, intro);
    buf_puts(out, "\n## Flags that are keys\n\n| flag | becomes |\n"
                  "|---|---|\n");
    kinds_print(FLAG_KEY, FLAG_CONVERT, out);
    buf_puts(out, "\n## Megatron's defaults\n\nWhere they are not megac's. "
                  "Besides: gelu and biases, unless flags say otherwise; "
                  "beta2 0.999 of adam, momentum 0.9 of sgd.\n\n"
                  "| key | value | |\n|---|---|---|\n");
    defaults_print(out);
    buf_puts(out, "\n## Accepted with one value\n\n| flag | value | because "
                  "|\n|---|---|---|\n");
    kinds_print(FLAG_ONLY, FLAG_ONLY, out);
    buf_puts(out, "\n## Rejected\n\n| flag | because |\n|---|---|\n");
    kinds_print(FLAG_REJECT, FLAG_REJECT, out);
    buf_puts(out, "\n## No difference\n\n| because | flags |\n|---|---|\n");
    for (int c = 0; c < CLASS_COUNT; c++)
        class_print((FlagClass)c, out);
}
