/* plan_print.c - a plan as text, for people and for golden files.
 *
 * Deterministic and complete enough to review: state, then every segment with
 * its instructions.  An address operand reads
 *
 *     rw act+4096{tp*128}[512]
 *
 * access, register (none: absolute), offset, rank expression, bytes.
 */
#include "runtime/plan_priv.h"

/* ---- operands ------------------------------------------------------------ */

static void print_expr(const Plan *p, uint32_t expr, Buf *out)
{
    const PlanExpr *e = &p->exprs.v[expr];

    buf_puts(out, "{");
    for (uint32_t i = 0; i < e->terms.n; i++) {
        const PlanTerm *t = &p->terms.v[e->terms.first + i];
        buf_printf(out, "%s%s*%lld", i ? "+" : "",
                   plan_text(p, p->atoms.v[t->atom].name),
                   (long long)t->factor);
    }
    if (e->constant || !e->terms.n)
        buf_printf(out, "%+lld", (long long)e->constant);
    buf_puts(out, "}");
}

static void print_value(const Plan *p, const PlanSegment *s,
                        const PlanOperand *o, Buf *out)
{
    if (o->base)
        buf_printf(out, "%s%+lld",
                   plan_text(p, p->regs.v[s->regs.first + o->base - 1].name),
                   (long long)o->offset);
    else
        buf_printf(out, "%lld", (long long)o->offset);
    if (o->expr)
        print_expr(p, o->expr, out);
}

static void print_operand(const Plan *p, const PlanSegment *s,
                          const PlanOperand *o, Buf *out)
{
    static const char *const access[] = {"", "r ", "w ", "rw "};

    if (o->kind == PLAN_ADDRESS)
        buf_puts(out, access[o->access]);
    print_value(p, s, o, out);
    if (o->kind == PLAN_ADDRESS && o->bytes)
        buf_printf(out, "[%llu]", (unsigned long long)o->bytes);
    if (o->stride)
        buf_printf(out, " step %lld", (long long)o->stride);
}

/* ---- instructions -------------------------------------------------------- */

static void print_gemm(const Plan *p, uint32_t index, Buf *out)
{
    const PlanGemm *g = &p->gemms.v[index];

    buf_printf(out, " %lldx%lldx%lld%s%s %s%s>%s", (long long)g->m,
               (long long)g->n, (long long)g->k, g->trans_a ? " At" : "",
               g->trans_b ? " Bt" : "", plan_dtype_name(g->type_a),
               plan_dtype_name(g->type_b), plan_dtype_name(g->type_c));
    if (g->batch > 1)
        buf_printf(out, " batch %lld (%lld, %lld, %lld)", (long long)g->batch,
                   (long long)g->stride_a, (long long)g->stride_b,
                   (long long)g->stride_c);
    buf_printf(out, " ld %lld %lld %lld%s%s%s", (long long)g->lda,
               (long long)g->ldb, (long long)g->ldc,
               g->accumulate ? " accumulate" : "", g->bias ? " bias" : "",
               g->residual ? " residual" : "");
    if (g->filled)
        buf_printf(out, " filled %s of %u",
                   g->filled == PLAN_ROWS_FILLED ? "rows" : "sum", g->parts);
    if (g->activation)
        buf_printf(out, " %s", plan_activation_name(g->activation));
}

static void print_collective(const Plan *p, uint32_t index, Buf *out)
{
    const PlanCollective *c = &p->collectives.v[index];

    buf_printf(out, " %s", plan_collective_name(c->kind));
    if (c->kind == PLAN_ALL_REDUCE || c->kind == PLAN_REDUCE_SCATTER)
        buf_puts(out, c->reduce == PLAN_MAX ? " max" : " sum");
    buf_printf(out, " %lld %s over %s", (long long)c->count,
               plan_dtype_name(c->dtype),
               plan_text(p, p->groups.v[c->group].name));
    if (c->kind == PLAN_BROADCAST)
        buf_printf(out, " from %u", c->root);
}

static void print_host(const PlanInstr *in, Buf *out)
{
    buf_printf(out, " %s", plan_host_name(in->index));
    if (in->index == PLAN_HOST_LOAD_BATCH)
        buf_printf(out, " %s", plan_batch_name(in->aux));
    if (in->index == PLAN_HOST_SCALAR)
        buf_printf(out, " %s", plan_scalar_name(in->aux));
    if (in->index == PLAN_HOST_METRIC)
        buf_printf(out, " %s", plan_metric_name(in->aux));
}

/* What the instruction's row says, after the op's name. */
static void print_row(const Plan *p, const PlanInstr *in, Buf *out)
{
    switch ((PlanOp)in->op) {
    case PLAN_LAUNCH:
        buf_printf(out, " %s", plan_text(p, p->kernels.v[in->index].symbol));
        break;
    case PLAN_GEMM:
        print_gemm(p, in->index, out);
        break;
    case PLAN_COLLECTIVE:
        print_collective(p, in->index, out);
        break;
    case PLAN_SEND:
    case PLAN_RECV:
        buf_printf(out, " %s channel %u",
                   plan_text(p, p->peers.v[in->index].name), in->aux);
        break;
    case PLAN_FILL:
        buf_printf(out, " 0x%08x", in->aux);
        break;
    case PLAN_EVENT:
    case PLAN_WAIT:
        buf_printf(out, " %u", in->index);
        break;
    case PLAN_CALL:
        buf_printf(out, " %s x%u%s%s",
                   plan_text(p, p->segments.v[in->index].name), in->aux,
                   in->flags & PLAN_REVERSE ? " reverse" : "",
                   in->flags & PLAN_TRIPS ? " trips" : "");
        break;
    case PLAN_HOST:
        print_host(in, out);
        break;
    case PLAN_COPY:
    case PLAN_OPS:
        break;
    }
}

static void print_instr(const Plan *p, const PlanSegment *s,
                        const PlanInstr *in, Buf *out)
{
    const PlanPlace *place = &p->places.v[in->place];

    buf_printf(out, "    %s", plan_op_name(in->op));
    print_row(p, in, out);
    if (in->stream)
        buf_printf(out, " @%s", plan_text(p, p->streams.v[in->stream].name));
    if (in->flags & PLAN_JOIN)
        buf_puts(out, " join");
    buf_puts(out, " (");
    for (uint32_t i = 0; i < in->operands.n; i++) {
        buf_puts(out, i ? ", " : "");
        print_operand(p, s, &p->operands.v[in->operands.first + i], out);
    }
    buf_puts(out, ")");
    if (in->place)
        buf_printf(out, "  ; %s:%u:%u %s", plan_text(p, place->file),
                   place->line, place->col, plan_text(p, place->op));
    buf_puts(out, "\n");
}

static void print_segment(const Plan *p, const PlanSegment *s, Buf *out)
{
    buf_printf(out, "\nsegment %s(", plan_text(p, s->name));
    for (uint32_t i = 0; i < s->regs.n; i++) {
        const PlanReg *r = &p->regs.v[s->regs.first + i];
        buf_printf(out, "%s%s%s", i ? ", " : "", plan_text(p, r->name),
                   r->kind == PLAN_INTEGER ? " int" : "");
    }
    buf_puts(out, ")\n");
    for (uint32_t i = 0; i < s->instrs.n; i++)
        print_instr(p, s, &p->instrs.v[s->instrs.first + i], out);
}

/* ---- state --------------------------------------------------------------- */

static void print_field(const Plan *p, const PlanTensor *t, const PlanField *f,
                        Buf *out)
{
    buf_printf(out, "    %s %s at %llu", plan_field_name(f->kind),
               plan_dtype_name(f->dtype), (unsigned long long)f->address);
    if (t->layers.n)
        buf_printf(out, " step %llu", (unsigned long long)f->layer_stride);
    if (f->pitch)
        buf_printf(out, " pitch %llu", (unsigned long long)f->pitch);
    if (f->inside)
        buf_printf(out, " inside %llu", (unsigned long long)f->inside);
    if (f->held)
        buf_printf(out, " held %lld", (long long)f->held);
    for (uint32_t k = 0; k < f->share.n; k++)
        buf_printf(out, "%s%s", k ? "." : " of ",
                   plan_text(p, p->atoms.v[p->lists.v[f->share.first + k]]
                                    .name));
    for (uint32_t d = 0; d < t->dims.n; d++) {
        const PlanSplit *split = &p->splits.v[f->splits + d];
        for (uint32_t k = 0; k < split->n; k++) {
            uint32_t atom = p->lists.v[split->first + k];
            buf_printf(out, " %s@%s",
                       plan_text(p, p->dims.v[t->dims.first + d].name),
                       plan_text(p, p->atoms.v[atom].name));
        }
    }
    buf_puts(out, " owner ");
    print_expr(p, f->owner, out);
    buf_puts(out, "\n");
}

static void print_tensor(const Plan *p, const PlanTensor *t, Buf *out)
{
    static const char *const inits[] = {"zeros", "ones", "normal"};

    buf_printf(out, "tensor %s [", plan_text(p, t->name));
    for (uint32_t d = 0; d < t->dims.n; d++) {
        const PlanDim *dim = &p->dims.v[t->dims.first + d];
        buf_printf(out, "%s%s=%lld", d ? ", " : "", plan_text(p, dim->name),
                   (long long)dim->logical);
        if (dim->padded != dim->logical)
            buf_printf(out, "(%lld)", (long long)dim->padded);
    }
    buf_printf(out, "] %s", inits[t->init]);
    if (t->init == PLAN_INIT_NORMAL)
        buf_printf(out, " %.9g", t->init_std);
    if (t->layers.n)
        buf_puts(out, " layers");
    for (uint32_t i = 0; i < t->layers.n; i++)
        buf_printf(out, " %u", p->lists.v[t->layers.first + i]);
    if (t->export_name)
        buf_printf(out, " as %s [%lld, %lld]%s +%lld +%lld",
                   plan_text(p, t->export_name), (long long)t->rows,
                   (long long)t->columns, t->transpose ? " transposed" : "",
                   (long long)t->row_offset, (long long)t->column_offset);
    buf_puts(out, "\n");
    for (uint32_t i = 0; i < t->fields.n; i++)
        print_field(p, t, &p->fields.v[t->fields.first + i], out);
}

static void print_mesh(const Plan *p, Buf *out)
{
    for (uint32_t i = 0; i < p->atoms.n; i++)
        buf_printf(out, "atom %s: size %u, stride %u\n",
                   plan_text(p, p->atoms.v[i].name), p->atoms.v[i].size,
                   p->atoms.v[i].stride);
    for (uint32_t i = 0; i < p->members.n; i++)
        buf_printf(out, "ranks where %s is %u\n",
                   plan_text(p, p->atoms.v[p->members.v[i].atom].name),
                   p->members.v[i].value);
    for (uint32_t i = 0; i < p->memories.n; i++)
        buf_printf(out, "memory %s: %llu + %llu\n",
                   plan_text(p, p->memories.v[i].name),
                   (unsigned long long)p->memories.v[i].start,
                   (unsigned long long)p->memories.v[i].bytes);
    for (uint32_t i = 0; i < p->streams.n; i++)
        buf_printf(out, "stream %s\n", plan_text(p, p->streams.v[i].name));
}

static void print_training(const Plan *p, Buf *out)
{
    const PlanTraining *t = p->training.v;

    buf_printf(out,
               "steps %lld, global batch %lld = %lld x %lld x %u, "
               "sequence %lld, seed %llu\n",
               (long long)t->steps, (long long)t->global_batch,
               (long long)t->micro_batch, (long long)t->microbatches,
               p->data.v->shards, (long long)t->seq_length,
               (unsigned long long)t->seed);
}

/* Programs beside the step. */
static void print_programs(const Plan *p, Buf *out)
{
    for (uint32_t i = 1; i < p->programs.n; i++) {
        const PlanProgram *x = &p->programs.v[i];
        buf_printf(out, "program %s: %s, %lld x\n",
                   plan_text(p, p->segments.v[x->segment].name),
                   x->kind == PLAN_TRAIN ? "train" : "evaluate",
                   (long long)x->microbatches);
    }
}

void plan_print(const Plan *p, Buf *out)
{
    buf_printf(out, "plan %s, class %s, %u ranks, by megac %s\n",
               plan_text(p, p->job.v->name), plan_text(p, p->job.v->class_name),
               p->job.v->world, plan_text(p, p->job.v->version));
    print_training(p, out);
    print_programs(p, out);
    print_mesh(p, out);
    for (uint32_t i = 0; i < p->tensors.n; i++)
        print_tensor(p, &p->tensors.v[i], out);
    for (uint32_t i = 0; i < p->segments.n; i++)
        print_segment(p, &p->segments.v[i], out);
}

/* The segment that holds an instruction. */
static const PlanSegment *segment_of(const Plan *p, uint32_t instr)
{
    for (uint32_t i = 0; i < p->segments.n; i++) {
        const PlanSegment *s = &p->segments.v[i];
        if (instr - s->instrs.first < s->instrs.n)
            return s;
    }
    return &p->segments.v[p->programs.v[0].segment];
}

/* ", <before><text>", or nothing. */
static void print_note(char *out, size_t cap, const char *before,
                       const char *text)
{
    if (*text)
        snprintf(out, cap, ", %s%s", before, text);
}

void plan_instr_text(const Plan *p, uint32_t instr, char *out, size_t cap)
{
    const PlanInstr *in = &p->instrs.v[instr];
    const PlanPlace *place = &p->places.v[in->place];
    char where[120] = "", op[160] = "", tensor[120] = "";
    uint32_t kind = in->op == PLAN_COLLECTIVE ? p->collectives.v[in->index].kind
                                              : PLAN_COLLECTIVES;

    if (in->place)
        snprintf(where, sizeof where, "%s:%u:%u: ", plan_text(p, place->file),
                 place->line, place->col);
    print_note(op, sizeof op, "", plan_text(p, place->op));
    print_note(tensor, sizeof tensor, "of ", plan_text(p, place->tensor));
    snprintf(out, cap, "%s%s%s%s, in segment %s (instruction %u)", where,
             kind < PLAN_COLLECTIVES ? plan_collective_name(kind)
                                     : plan_op_name(in->op),
             op, tensor, plan_text(p, segment_of(p, instr)->name), instr);
}
