"""Writes tests/golden/schedule/*.csv: schedules as PyTorch makes them.

    pip install torch==2.6.0 --index-url https://download.pytorch.org/whl/cpu
    python tests/oracle/schedule_torch.py tests/golden/schedule
"""
import sys

from torch.distributed.pipelining import schedules


class Stage:
    """What a schedule asks of a stage before it runs."""

    def __init__(self, ranks, stages, index):
        self.group_size, self.num_stages = ranks, stages
        self.stage_index, self.group_rank = index, index % ranks
        self.is_first = index == 0
        self.is_last = index == stages - 1
        self.stage_index_to_group_rank = {}


def write(folder, name, kind, ranks, chunks, microbatches):
    stages = [Stage(ranks, ranks * chunks, i) for i in range(chunks)]
    schedule = getattr(schedules, kind)(stages, microbatches)
    order = schedule.pipeline_order
    with open(f"{folder}/{name}-{ranks}-{chunks}-{microbatches}.csv", "w") as f:
        for rank in range(ranks):
            cells = ["" if a is None else str(a) for a in order[rank]]
            f.write(",".join(cells) + "\n")


for ranks, microbatches in ((2, 4), (4, 8), (4, 12), (3, 7)):
    write(sys.argv[1], "zb-v", "ScheduleZBVZeroBubble", ranks, 2, microbatches)
for ranks, microbatches in ((2, 4), (4, 8), (4, 12)):
    write(sys.argv[1], "interleaved", "ScheduleInterleaved1F1B", ranks, 2,
          microbatches)
write(sys.argv[1], "interleaved", "ScheduleInterleaved1F1B", 4, 4, 8)
write(sys.argv[1], "bfs", "ScheduleLoopedBFS", 2, 2, 4)
