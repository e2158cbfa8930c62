/* simulate_priv.h - shared by the simulate*.c files. */
#ifndef MEGAC_SIMULATE_PRIV_H
#define MEGAC_SIMULATE_PRIV_H

#include "codegen/simulate.h"

/* ---- simulate_cost.c: how long one instruction takes -------------------- */

/* Rows of SimStage.axis; the first two are there in every plan. */
enum { AXIS_PP, AXIS_HOST, AXIS_FIRST_GROUP };

typedef struct {
    double seconds;
    double flops;
    uint8_t axis;    /* of what is communicated */
    uint8_t counted; /* it takes a launch: a kernel, product, copy or fill */
} SimCost;

/* The cost of every instruction of a plan, by row; names the axes. */
SimCost *sim_costs(Arena *a, const Plan *p, const Hardware *h,
                   SimStage *out_stage);

/* ---- simulate_lines.c: who meets whom ----------------------------------- */

/* An operation of a class that waits for those of others. */
typedef struct {
    uint32_t stream;
    uint8_t axis; /* as the class numbers them */
    double ready; /* when the class itself could begin */
} SimPost;

typedef struct {
    Vec(SimPost) posts;
    uint32_t head; /* posts before it have met theirs */
} SimQueue;

/* A queue of collectives among several classes, or of messages from the first
 * of two classes to the second. */
typedef struct {
    uint32_t key[8]; /* what tells lines apart */
    uint32_t n;
    const uint32_t *classes;
    SimQueue *queues; /* by place in `classes` */
} SimLine;

typedef struct {
    SimLine *line; /* NULL: all members are of this class */
    uint32_t place;
} SimSide;

typedef struct {
    Vec(SimLine *) all;
} SimLines;

/* The side that each communicating instruction of class c is, by row. */
SimSide *sim_sides(Arena *a, SimLines *lines, const PlanClass *classes,
                   uint32_t n, uint32_t c);
void sim_lines_free(SimLines *lines);

#endif
