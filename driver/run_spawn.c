/* run_spawn.c - starts mpirun and waits for it.
 *
 * The child dies with us (PR_SET_PDEATHSIG), so that no rank outlives the
 * command that started it.  An interrupt from the keyboard reaches mpirun by
 * itself; a SIGTERM is handed on.  Either way we wait: mpirun ends its ranks,
 * or they end by themselves once they have saved.
 */
#include "driver/run.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t terms; /* SIGTERMs that came */

static void on_signal(int number)
{
    terms += number == SIGTERM;
}

static void catch_signals(bool on)
{
    struct sigaction action = {.sa_handler = on ? on_signal : SIG_DFL};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* In the child: becomes the command, or exits with 127. */
_Noreturn static void become(char *const *argv, int error_pipe)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(error_pipe, STDERR_FILENO);
    execvp(argv[0], argv);
    dprintf(STDERR_FILENO, "megac: error: cannot start %s: %s\n", argv[0],
            strerror(errno));
    _exit(127);
}

/* Reads until nobody can write to the pipe any more. */
static void follow(pid_t child, int fd, bool saves, RunErrors *errors)
{
    char bytes[4096];
    int handed_on = 0;
    ssize_t n;

    while ((n = read(fd, bytes, sizeof bytes)) > 0 ||
           (n < 0 && errno == EINTR)) {
        for (; handed_on < terms; handed_on++)
            kill(child, saves && handed_on == 0 ? SIGUSR1 : SIGTERM);
        if (n > 0)
            run_errors_take(errors, bytes, (size_t)n);
    }
}

static int wait_for(pid_t child)
{
    int status;

    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return 127;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Status run_spawn(char *const *argv, bool saves, RunErrors *errors,
                 int *out_code)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC))
        return status_system(errno, "pipe");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        become(argv, ends[1]);
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        return status_system(errno, "fork");
    }
    catch_signals(true);
    follow(child, ends[0], saves, errors);
    close(ends[0]);
    *out_code = wait_for(child);
    catch_signals(false);
    return STATUS_NONE;
}
