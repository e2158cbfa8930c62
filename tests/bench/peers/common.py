"""Arguments, clock and tokens of all peers."""
import random
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
