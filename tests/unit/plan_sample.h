/* plan_sample.h - a small plan that uses every table and every instruction:
 * 8 ranks as tp 2, dp 2, pp 2; this class is stage 0. */
#ifndef MEGAC_TESTS_PLAN_SAMPLE_H
#define MEGAC_TESTS_PLAN_SAMPLE_H

#include "runtime/plan.h"

enum { SAMPLE_ARENA = 1 << 16, SAMPLE_LAYERS = 3 };

typedef struct {
    uint32_t tp, dp, pp, vocab_start;
    uint32_t gemm, sum, gather, next, kernel, comm, event;
} SampleRows;

static SampleRows sample_tables(PlanBuilder *b)
{
    SampleRows r = {0};
    PlanGemm g = {.m = 4,
                  .n = 8,
                  .k = 16,
                  .batch = 1,
                  .lda = 16,
                  .ldb = 16,
                  .ldc = 8,
                  .trans_b = 1,
                  .accumulate = 1};
    uint32_t tp, all;

    r.tp = plan_add_atom(b, "tp", 2, 1);
    r.dp = plan_add_atom(b, "dp", 2, 2);
    r.pp = plan_add_atom(b, "pp", 2, 4);
    plan_add_member(b, r.pp, 0);
    r.vocab_start = plan_add_expr(b, 0, &(PlanTerm){r.tp, 0, 64}, 1);
    tp = plan_add_group(b, "tp", &r.tp, 1, NULL, 0);
    all = plan_add_group(b, "dp_tp", (uint32_t[]){r.dp, r.tp}, 2, NULL, 0);
    r.next = plan_add_peer(b, "next stage", r.pp, 1);
    r.gemm = plan_add_gemm(b, &g);
    r.sum = plan_add_collective(
        b,
        &(PlanCollective){.kind = PLAN_ALL_REDUCE, .group = all, .count = 32});
    r.gather = plan_add_collective(
        b,
        &(PlanCollective){.kind = PLAN_ALL_GATHER, .group = tp, .count = 16});
    r.kernel = plan_add_kernel(b, "sample_norm", 2, false, 2, 1);
    r.comm = plan_add_stream(b, "tp", PLAN_STREAM_COMM);
    r.event = plan_add_event(b);
    return r;
}

static void sample_state(PlanBuilder *b, const SampleRows *r)
{
    PlanTensor t = {.name = plan_add_text(b, "model.layers.{l}.w"),
                    .init = PLAN_INIT_NORMAL,
                    .init_std = 0.02,
                    .row_dims = 1,
                    .rows = 30,
                    .columns = 4,
                    .layers = plan_add_list(b, (uint32_t[]){0, 1, 2}, 3)};
    PlanSplit splits[2] = {plan_add_list(b, &r->tp, 1), {0, 0}};
    PlanField f = {.kind = PLAN_FIELD_PARAM,
                   .dtype = PLAN_F32,
                   .address = 256,
                   .layer_stride = 256,
                   .owner = plan_add_expr(b, 0, &(PlanTerm){r->dp, 0, 1}, 1)};

    t.export_name = t.name;
    plan_add_tensor(b, &t);
    plan_add_dim(b, "f", 30, 32);
    plan_add_dim(b, "h", 4, 4);
    plan_add_field(b, &f, splits);
}

static void sample_layer(PlanBuilder *b, const SampleRows *r)
{
    uint32_t place = plan_add_place(b, "tiny.yaml", 9, 25, "rmsnorm %3", "x");
    uint16_t x, w, layer;

    plan_segment_begin(b, "layer.fwd");
    x = plan_add_reg(b, PLAN_ADDRESS, "x");
    w = plan_add_reg(b, PLAN_ADDRESS, "w");
    layer = plan_add_reg(b, PLAN_INTEGER, "l");
    plan_emit(
        b, (PlanInstr){.op = PLAN_LAUNCH, .index = r->kernel, .place = place},
        (PlanOperand[]){plan_reg_address(x, 0, 64, PLAN_READ),
                        plan_reg_address(x, 64, 64, PLAN_WRITE),
                        plan_reg_integer(layer, 0)},
        3);
    plan_emit(b, (PlanInstr){.op = PLAN_GEMM, .index = r->gemm, .place = place},
              (PlanOperand[]){plan_reg_address(x, 0, 256, PLAN_READ),
                              plan_reg_address(w, 0, 512, PLAN_READ),
                              plan_address(8192, 128, PLAN_READ | PLAN_WRITE)},
              3);
}

static void sample_messages(PlanBuilder *b, const SampleRows *r)
{
    PlanOperand read = plan_address(8192, 128, PLAN_READ);
    PlanOperand write = plan_address(8192, 128, PLAN_WRITE);

    plan_emit(b, (PlanInstr){.op = PLAN_EVENT, .index = r->event}, NULL, 0);
    plan_emit(b,
              (PlanInstr){.op = PLAN_WAIT,
                          .index = r->event,
                          .stream = (uint16_t)r->comm},
              NULL, 0);
    plan_emit(b,
              (PlanInstr){.op = PLAN_COLLECTIVE,
                          .index = r->sum,
                          .stream = (uint16_t)r->comm},
              (PlanOperand[]){read, write}, 2);
    plan_emit(b,
              (PlanInstr){.op = PLAN_COLLECTIVE,
                          .index = r->gather,
                          .stream = (uint16_t)r->comm},
              (PlanOperand[]){plan_address(8192, 64, PLAN_READ), write}, 2);
    plan_emit(b,
              (PlanInstr){.op = PLAN_SEND,
                          .index = r->next,
                          .aux = 5,
                          .stream = (uint16_t)r->comm},
              &read, 1);
    plan_emit(b,
              (PlanInstr){.op = PLAN_RECV,
                          .index = r->next,
                          .aux = 6,
                          .flags = PLAN_JOIN,
                          .stream = (uint16_t)r->comm},
              &write, 1);
}

static void sample_main(PlanBuilder *b, const SampleRows *r)
{
    PlanOperand args[3] = {plan_address(4096, 0, 0), plan_address(256, 0, 0),
                           plan_integer(0)};
    PlanOperand slice = plan_address(16384, 64, PLAN_READ);

    args[1].stride = 256;
    args[2].stride = 1;
    slice.expr = r->vocab_start;
    plan_segment_begin(b, "main");
    plan_emit(b, (PlanInstr){.op = PLAN_HOST, .index = PLAN_HOST_LOAD_BATCH},
              (PlanOperand[]){plan_integer(0), plan_address(0, 64, PLAN_WRITE)},
              2);
    plan_emit(b, (PlanInstr){.op = PLAN_FILL, .aux = 0x3f800000},
              (PlanOperand[]){plan_address(4096, 512, PLAN_WRITE)}, 1);
    plan_emit(b,
              (PlanInstr){.op = PLAN_CALL,
                          .index = 0,
                          .flags = PLAN_REVERSE,
                          .aux = SAMPLE_LAYERS},
              args, 3);
    sample_messages(b, r);
    plan_emit(b, (PlanInstr){.op = PLAN_COPY},
              (PlanOperand[]){plan_address(32768, 64, PLAN_WRITE), slice}, 2);
    plan_emit(b,
              (PlanInstr){.op = PLAN_HOST,
                          .index = PLAN_HOST_SCALAR,
                          .aux = PLAN_SCALAR_LR},
              (PlanOperand[]){plan_address(64, 4, PLAN_WRITE)}, 1);
    plan_emit(b, (PlanInstr){.op = PLAN_HOST, .index = PLAN_HOST_METRIC},
              (PlanOperand[]){plan_address(64, 4, PLAN_READ)}, 1);
    plan_emit(b, (PlanInstr){.op = PLAN_HOST, .index = PLAN_HOST_GRADS}, NULL,
              0);
}

/* The bytes of the sample; free with buf_free. */
static Buf sample_plan(void)
{
    PlanBuilder *b = plan_builder_new();
    SampleRows r;
    Buf out = {0};

    *plan_job(b) = (PlanJob){.name = plan_add_text(b, "sample"), .world = 8};
    *plan_training(b) = (PlanTraining){.steps = 2,
                                       .global_batch = 8,
                                       .micro_batch = 2,
                                       .seq_length = 8,
                                       .microbatches = 2,
                                       .seed = 1234,
                                       .lr = {.max = 1e-3}};
    plan_add_memory(b, "arena", PLAN_MEMORY_DEVICE, 0, SAMPLE_ARENA);
    r = sample_tables(b);
    *plan_data(b) =
        (PlanData){.vocab = 256,
                   .shards = 2,
                   .parts = 1,
                   .shard = plan_add_expr(b, 0, &(PlanTerm){r.dp, 0, 1}, 1)};
    sample_state(b, &r);
    sample_layer(b, &r);
    sample_main(b, &r);
    plan_write(b, &out);
    plan_builder_free(b);
    return out;
}

#endif
