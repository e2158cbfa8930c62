/* watch.c - a rank that dies says where it was.
 *
 * The handlers run on a stack of their own, print one line, and let the signal
 * take its course, so that mpirun sees the death and ends the other ranks.
 * Those are told by SIGTERM, of which nothing is said: the reason is elsewhere.
 * A run with checkpoints takes SIGTERM as a wish instead, and SIGUSR1 likewise,
 * since mpirun hands that on; a second SIGTERM has its default effect.
 * They format with snprintf, which is not on POSIX's list of safe functions
 * but allocates nothing for the conversions used here.
 */
#include "runtime/train.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static struct {
    const Plan *plan;
    const Train *train;
    uint32_t rank;
    volatile sig_atomic_t end_wanted;
    _Alignas(16) char stack[1 << 16];
} watch;

static void say_where(int signal)
{
    char where[256] = "start", line[512];
    int64_t step = watch.train ? train_step(watch.train) : 0;
    int n;

    if (step > 0)
        plan_instr_text(watch.plan, train_instr(watch.train), where,
                        sizeof where);
    n = snprintf(line, sizeof line,
                 "megac-rank: rank %u: step %lld: signal %d (%s) at %s\n",
                 watch.rank, (long long)step, signal, sigabbrev_np(signal),
                 where);
    if (n > 0 && write(STDERR_FILENO, line, (size_t)n) < 0)
        return;
}

static void on_signal(int signal)
{
    say_where(signal);
    raise(signal); /* SA_RESETHAND: now with its default effect */
}

void watch_start(const Plan *p, uint32_t rank)
{
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    stack_t stack = {.ss_sp = watch.stack, .ss_size = sizeof watch.stack};
    struct sigaction action = {.sa_handler = on_signal,
                               .sa_flags =
                                   (int)SA_RESETHAND | SA_ONSTACK | SA_NODEFER};

    watch.plan = p;
    watch.rank = rank;
    sigaltstack(&stack, NULL);
    for (size_t i = 0; i < MC_LEN(fatal); i++)
        sigaction(fatal[i], &action, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* SIGTERM may ask for a checkpoint */
}

/* ---- being told to end --------------------------------------------------- */

static void on_end(int signal)
{
    (void)signal;
    watch.end_wanted = 1;
}

void watch_end(void)
{
    struct sigaction action = {.sa_handler = on_end,
                               .sa_flags = (int)SA_RESETHAND | SA_RESTART};

    sigaction(SIGTERM, &action, NULL);
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, NULL);
}

bool watch_end_wanted(void)
{
    return watch.end_wanted;
}

void watch_train(const Train *t)
{
    watch.train = t;
}
