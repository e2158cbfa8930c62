"""Prints tests/golden/scaler.json: how Megatron's scale of the loss moves.

    pip install megatron-core==0.16.1 --no-deps      (torch is not needed)
    python tests/oracle/scaler_megatron.py > tests/golden/scaler.json

DynamicGradScaler runs unchanged, on numbers in place of one-element tensors.
A row is a list of [steps, whether their gradients were finite, the scale after
them].
"""
import ast
import importlib.util
import json
import os
import random
import types

folder = importlib.util.find_spec("megatron").submodule_search_locations[0]
path = os.path.join(folder, "core", "optimizer", "grad_scaler.py")
tree = ast.parse(open(path).read())
tree.body = [n for n in tree.body if isinstance(n, ast.ClassDef)
             and n.name in ("MegatronGradScaler", "DynamicGradScaler")]
torch = types.SimpleNamespace(tensor=lambda v, **_: v[0], max=max,
                              float=None, Tensor=object)
scope = {"torch": torch, "ABC": object, "Dict": dict,
         "abstractmethod": lambda f: f}
exec(compile(tree, path, "exec"), scope)

random.seed(1)
rows = []
for _ in range(40):
    # Megatron's defaults: --initial-loss-scale and those beside it
    scaler = scope["DynamicGradScaler"](2.0**32, 1.0, 2.0, 0.5, 1000, 2)
    row = []
    for _ in range(30):
        finite = random.random() < 0.6
        steps = random.choice([1, 2, 3, 40, 999, 1000, 1001] if finite
                              else [1, 1, 2, 3, 20])
        for _ in range(steps):
            scaler.update(not finite)
        row.append([steps, int(finite), scaler._scale])
    rows.append(row)
print("[" + ",\n ".join(json.dumps(row) for row in rows) + "]")
