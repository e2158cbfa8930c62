/* cases.h - runs megac as its users do, and compares what it wrote.
 *
 * Every test program works in a directory of its own with t0.yaml, the base
 * model, in it.  `sets` are --set arguments in one string: words between
 * blanks, such as "parallel.tp=2 parallel.sp=true".  A run is named by its
 * output folder OUT; what it saves lies in OUT.saved.
 */
#ifndef MEGAC_TESTS_CASES_H
#define MEGAC_TESTS_CASES_H

#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>
#include <jansson.h>

/* Setup and teardown of a group: makes the directory and removes it. */
int case_enter(void **state);
int case_leave(void **state);

/* ---- running ------------------------------------------------------------- */

/* Runs a shell command, where $MEGAC is the program; its exit code.  It has 60
 * seconds. */
int case_shell(const char *fmt, ...) MC_PRINTF(1, 2);
/* What the last command printed on stdout and stderr. */
const char *case_output(void);
bool case_printed(const char *text);

/* Compiles t0.yaml into OUT; runs OUT with options; both must work. */
void case_compile(const char *out, const char *sets);
void case_run(const char *out, const char *options);
/* Both, saving step 1: the weights after it and its gradients. */
void case_train(const char *out, const char *sets);

/* ---- reading ------------------------------------------------------------- */

/* The JSON that `megac inspect t0.yaml VIEW` prints; the caller's. */
json_t *case_inspect(const char *view, const char *sets);
/* A member of an object by its path: "bytes.total"; must be there. */
json_t *case_member(json_t *object, const char *path);
/* A number of OUT's metrics; step counts from 1. */
double case_metric(const char *out, int step, const char *key);

/* ---- comparing ----------------------------------------------------------- */

/* Metrics of all `steps` steps differ by at most `limit`. */
void case_same_metric(const char *out, const char *other, const char *key,
                      int steps, double limit);
/* Two safetensors files hold the same names; the relative L2 distance of all
 * numbers is at most `limit`.  A limit of 0 wants the same bits. */
void case_same_file(const char *path, const char *other, double limit);
/* Losses, gradient norms, and the gradients and weights of step 1, within the
 * tolerances of fp32: 1e-5, relative 1e-4, relative 1e-5. */
void case_same_run(const char *out, const char *other, int steps);

#endif
