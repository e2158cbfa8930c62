/* hardware.h - a machine as data: what a description under configs/hardware
 * says, for predictions and for what fits.
 *
 * Rates are what the parts could do at best; curves say which fraction of that
 * is reached by work of a given size.
 */
#ifndef MEGAC_HARDWARE_H
#define MEGAC_HARDWARE_H

#include "base/base.h"

enum { CURVE_POINTS = 16, HARDWARE_LINKS = 4 };

/* Straight between its points over the logarithm of the size, and level beyond
 * them; sizes ascend.  A curve without points is 1 everywhere. */
typedef struct {
    uint32_t n;
    double size[CURVE_POINTS], value[CURVE_POINTS];
} Curve;

/* What joins ranks that are numbered from a multiple of `ranks` on: all GPUs
 * of a node, all nodes.  Each rank sends `bandwidth` bytes a second, and
 * receives as much at the same time. */
typedef struct {
    int64_t ranks;
    double bandwidth, latency; /* seconds */
    Curve efficiency;          /* over the bytes that a rank sends */
} HardwareLink;

typedef enum {
    HARDWARE_FP32,
    HARDWARE_BF16,
    HARDWARE_FP16,
    HARDWARE_TYPES
} HardwareType;

typedef struct {
    const char *name;
    int64_t memory;              /* bytes that a rank may use */
    double bandwidth;            /* of that memory, bytes per second */
    double host_bandwidth;       /* to the host's memory */
    double launch;               /* seconds from one kernel to the next */
    double peak[HARDWARE_TYPES]; /* of matrix products, flop/s */
    uint32_t nlinks;
    HardwareLink links[HARDWARE_LINKS]; /* nearest first */
    Curve gemm;      /* of peak, over the flops of one product */
    Curve attention; /* of peak, over the flops of one attention */
    Curve rows;      /* of bandwidth, over the bytes a kernel touches */
} Hardware;

/* ---- hardware.c --------------------------------------------------------- */

/* Reads the description that `name` stands for: a file, or one of
 * configs/hardware.  NULL after errors in `d`, at `where` if there is none. */
const Hardware *hardware_load(Arena *a, Diag *d, const char *name, Loc where);
/* The same from memory. */
const Hardware *hardware_parse(Arena *a, Diag *d, const char *name,
                               const char *text);

double curve_at(const Curve *c, double size);
/* The nearest link that joins the ranks from `first` to `last`. */
const HardwareLink *hardware_link(const Hardware *h, uint32_t first,
                                  uint32_t last);

#endif
