"""Writes tests/golden/schedule/torch.txt and bfs-2-2-4.csv: as PyTorch has it.

    pip install torch==2.15.0
    python tests/oracle/schedule_torch.py tests/golden/schedule

torch.txt holds many schedules, each after a line `# kind pp vpp microbatches`.
"""
import sys

import torch
from torch.distributed.pipelining import schedules


class Stage:
    """What a schedule asks of a stage before it runs."""

    def __init__(self, ranks, stages, index):
        self.group_size, self.num_stages = ranks, stages
        self.stage_index, self.group_rank = index, index % ranks
        self.is_first = index == 0
        self.is_last = index == stages - 1
        self.has_backward = True
        self.submod = torch.nn.Identity()
        self.stage_index_to_group_rank = {}


def rows(kind, ranks, chunks, microbatches):
    # Communication, which some schedules add, follows from the actions.
    kind = type(kind, (getattr(schedules, kind),),
                {"_prepare_schedule_with_comms": lambda self, order: None})
    stages = [Stage(ranks, ranks * chunks, i) for i in range(chunks)]
    order = kind(stages, microbatches).pipeline_order
    return "".join(",".join("" if a is None else str(a) for a in order[rank])
                   + "\n" for rank in range(ranks))


folder = sys.argv[1]
many = [("zb-v", "ScheduleZBVZeroBubble", pp, 2, m)
        for pp in range(2, 7) for m in (1, 2, 3, 4, 5, 7, 8, 12)]
many += [("dualpipe-v", "ScheduleDualPipeV", pp, 2, m)
         for pp in range(2, 7) for m in (2 * pp, 2 * pp + 1, 3 * pp, 4 * pp + 3)]
many += [("interleaved", "ScheduleInterleaved1F1B", pp, chunks, groups * pp)
         for pp in (2, 3, 4) for chunks in (2, 3, 4) for groups in (1, 2, 3)]
with open(f"{folder}/torch.txt", "w") as f:
    for name, kind, *numbers in many:
        print("#", name, *numbers, file=f)
        f.write(rows(kind, *numbers))
with open(f"{folder}/bfs-2-2-4.csv", "w") as f:
    f.write(rows("ScheduleLoopedBFS", 2, 2, 4))
