"""Prints tests/golden/schedule/interleaved.json: Megatron's own tables.

    pip install megatron-core==0.16.1 --no-deps      (torch is not needed)
    python tests/oracle/schedule_megatron.py > tests/golden/schedule/interleaved.json

The two functions that make the interleaved schedule run unchanged, in a module
of their own: what else their file imports is not needed.
"""
import ast
import importlib.util
import json
import os
import random
import types

folder = importlib.util.find_spec("megatron").submodule_search_locations[0]
path = os.path.join(folder, "core", "pipeline_parallel", "schedules.py")
wanted = ("get_schedule_table", "get_pp_rank_microbatches")
tree = ast.parse(open(path).read())
tree.body = [n for n in tree.body
             if isinstance(n, ast.FunctionDef) and n.name in wanted]
rank = types.SimpleNamespace(pp=1, at=0)
scope = {"parallel_state": types.SimpleNamespace(
    get_pipeline_model_parallel_world_size=lambda: rank.pp,
    get_pipeline_model_parallel_rank=lambda: rank.at,
    get_virtual_pipeline_model_parallel_world_size=lambda: 2),
    "Optional": object}
for node in tree.body:
    node.returns = None
    for argument in node.args.args:
        argument.annotation = None
exec(compile(tree, path, "exec"), scope)


def case(pp, vpp, m, group):
    ahead = []
    for at in range(pp):
        rank.pp, rank.at = pp, at
        counts = scope["get_pp_rank_microbatches"](m, vpp, group)
        ahead.append(counts[2])  # total, all warm-up, warm-up, remaining
    table = scope["get_schedule_table"](m, vpp, group)
    return {"pp": pp, "vpp": vpp, "m": m, "group": group, "ahead": ahead,
            "microbatch": [mb for mb, chunk in table],
            "chunk": [chunk for mb, chunk in table]}


random.seed(1)
legal = [(pp, vpp, m, group)
         for pp in (2, 3, 4, 5, 6, 8) for vpp in (2, 3, 4, 5)
         for m in range(pp, 21) for group in range(pp, m + 1)
         if m % group == 0 or m % group >= pp]
print("[")
print(",\n".join(json.dumps(case(*c), separators=(",", ":"))
                 for c in random.sample(legal, 500)))
print("]")
