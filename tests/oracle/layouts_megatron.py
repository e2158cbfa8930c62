"""Prints tests/golden/layouts.json: pipeline layouts as Megatron reads them.

    pip install megatron-core==0.16.1 --no-deps      (torch is not needed)
    python tests/oracle/layouts_megatron.py > tests/golden/layouts.json

PipelineParallelLayerLayout runs unchanged on 500 random strings, in a module of
its own: what else its file imports is not needed.  "layers" are those of each
stage, in the order in which a microbatch passes; null: rejected.
"""
import ast
import copy
import enum
import importlib.util
import json
import os
import random
import re
import types
import typing
from functools import lru_cache

folder = importlib.util.find_spec("megatron").submodule_search_locations[0]
folder = os.path.join(folder, "core", "transformer")
scope = {"enum": enum, "re": re, "copy": copy, "lru_cache": lru_cache,
         "Optional": typing.Optional, "parallel_state": types.SimpleNamespace(
             get_virtual_pipeline_model_parallel_world_size=lambda: 1)}


def load(file, name):
    path = os.path.join(folder, file)
    tree = ast.parse(open(path).read())
    tree.body = [n for n in tree.body if getattr(n, "name", "") == name]
    exec(compile(tree, path, "exec"), scope)
    return scope[name]


LayerType = load("enums.py", "LayerType")
Layout = load("pipeline_parallel_layer_layout.py",
              "PipelineParallelLayerLayout")


def layers_of(text, pp, layers):
    try:
        layout = Layout(text, pp)
        layout.validate_layer_layout(layers, None)
    except AssertionError:
        return None
    return [layout.get_num_layers_to_build(LayerType.decoder, chunk, rank)
            for chunk in range(layout.virtual_pipeline_model_parallel_size)
            for rank in range(pp)]


def repeated(text):
    return text if random.random() < 0.6 else f"{text}*{random.randint(1, 4)}"


def item():
    kind = random.random()
    if kind < 0.3:
        return repeated("t")
    if kind < 0.75:
        return "t" * random.choice((0, 1, 2)) + random.choice(("|", "|t", "|*2"))
    if kind < 0.85:
        return ","
    inside = "".join(random.choice(("t", "t", "t*2", "|", ",", "|*2"))
                     for _ in range(random.randint(1, 4))) + random.choice("t|")
    return f"({inside})*{random.randint(1, 4)}"


def draw():
    items = ["E"] + [item() for _ in range(random.randint(1, 9))] + ["L"]
    if random.random() < 0.1:  # a letter that does not belong there
        items.insert(random.randrange(len(items) + 1), random.choice("EL"))
    text = "".join(items)
    stages = Layout.parse_str_to_list(text)
    layers = sum(stage.count(LayerType.decoder) for stage in stages)
    fits = [pp for pp in range(2, 9) if len(stages) % pp == 0]
    if not fits or not layers:
        return None
    pp = random.choice(fits if random.random() < 0.9 else range(2, 9))
    layers += random.random() < 0.05
    return {"layout": text, "pp": pp, "num_layers": layers,
            "layers": layers_of(text, pp, layers)}


random.seed(1)
cases = []
while len(cases) < 500:
    new = draw()
    if new and new not in cases:
        cases.append(new)
print("[")
print(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
print("]")
