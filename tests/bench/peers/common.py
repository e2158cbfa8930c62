"""Arguments, clock and tokens of all peers."""
import random
import statistics
import sys
import time

# Of all threads of the process: with one busy thread, what it alone took.
CLOCK = time.process_time if sys.argv[5] == "busy" else time.perf_counter


def settings():
    """precision, sequence length, batch, how many steps to measure"""
    return sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])


def corpus(batch, seq):
    """Two numpy arrays [batch, seq]: tokens and what follows them."""
    import numpy

    numbers = random.Random(1)
    all_tokens = numpy.array([[numbers.randrange(50257)
                               for _ in range(seq + 1)] for _ in range(batch)])
    return all_tokens[:, :-1], all_tokens[:, 1:]


# Who is that slow is measured fewer times, but thrice.
SECONDS, LEAST = 90, 3


def measure(name, step, runs, warm):
    """Prints NAME, the median step in milliseconds, and of how many."""
    began, times = time.monotonic(), []
    for i in range(runs + warm):
        start = CLOCK()
        step()
        if i >= warm:
            times.append(1e3 * (CLOCK() - start))
        if len(times) >= LEAST and time.monotonic() - began > SECONDS:
            break
    print(name, statistics.median(times), len(times), flush=True)
