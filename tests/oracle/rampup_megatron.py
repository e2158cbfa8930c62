"""Prints tests/golden/rampup.json: how Megatron's batch grows.

    pip install megatron-core==0.16.1 --no-deps      (torch is not needed)
    python tests/oracle/rampup_megatron.py > tests/golden/rampup.json

One row for each of many settings: [start, increment, samples, full, [the batch
of each of the first 40 steps]].
"""
import importlib.util
import json
import os
import random

folder = importlib.util.find_spec("megatron").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("calculator", os.path.join(
    folder, "core", "num_microbatches_calculator.py"))
calculator = importlib.util.module_from_spec(spec)
spec.loader.exec_module(calculator)

random.seed(1)
rows = []
for _ in range(200):
    increment = random.choice([1, 2, 3, 4, 8, 32])
    start = increment * random.randint(1, 6)
    full = start + increment * random.randint(1, 12)
    samples = random.choice([random.randint(1, 5000),
                             full * random.randint(1, 60)])
    batch = calculator.RampupBatchsizeNumMicroBatchesCalculator(
        full, 1, 1, False, 1, start, increment, samples)
    sizes, consumed = [], 0
    for _ in range(40):
        batch.update(consumed, True)
        sizes.append(batch.get_current_global_batch_size())
        consumed += sizes[-1]
    rows.append([start, increment, samples, full, sizes])
print("[" + ",\n ".join(json.dumps(row) for row in rows) + "]")
