"""Prints tests/golden/groups.json: rank groups as Megatron makes them.

    pip install megatron-core==0.16.1 --no-deps      (torch is not needed)
    python tests/oracle/groups_megatron.py > tests/golden/groups.json

RankGenerator runs unchanged, in a module of its own: what else its file imports
is not needed.  500 random grids with random orders, of those that
initialize_model_parallel accepts.  A family is kept as the FNV-1a hash of its
text, "[0,1][2,3]".
"""
import ast
import importlib.util
import json
import os
import random
import typing

folder = importlib.util.find_spec("megatron").submodule_search_locations[0]
path = os.path.join(folder, "core", "parallel_state.py")
wanted = ("RankGenerator", "generate_masked_orthogonal_rank_groups",
          "default_embedding_ranks", "default_position_embedding_ranks")
tree = ast.parse(open(path).read())
tree.body = [n for n in tree.body if getattr(n, "name", "") in wanted]
scope = {"List": typing.List}
exec(compile(tree, path, "exec"), scope)

DENSE = ("tp", "cp", "dp", "pp", "dp-cp", "tp-pp", "tp-cp", "tp-dp", "tp-dp-cp")
EXPERT = {"ep": "ep", "etp": "tp", "edp": "dp", "tp_ep": "tp-ep",
          "tp_ep_pp": "tp-ep-pp"}


def fnv(groups):
    text = "".join("[" + ",".join(map(str, g)) + "]" for g in groups)
    value = 0x811c9dc5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 % (1 << 32)
    return f"{value:08x}"


def case(tp, cp, dp, pp, etp, ep, order):
    edp = tp * cp * dp // (etp * ep)
    make = scope["RankGenerator"]
    try:
        dense = make(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order=order)
        expert = make(tp=etp, ep=ep, dp=edp, pp=pp, cp=1, order=order)
    except RuntimeError:
        return None
    if not (order.endswith("pp") or pp == 1 or edp == dp):
        return None
    if dense.get_ranks("pp") != expert.get_ranks("pp"):
        return None
    families = {t.replace("-", "_"): dense.get_ranks(t) for t in DENSE}
    families |= {name: expert.get_ranks(t) for name, t in EXPERT.items()}
    pipes = dense.get_ranks("pp")
    families["embed"] = [scope["default_embedding_ranks"](r) for r in pipes]
    families["pos_embed"] = [scope["default_position_embedding_ranks"](r)
                             for r in pipes]
    return {"tp": tp, "cp": cp, "dp": dp, "pp": pp, "etp": etp, "ep": ep,
            "edp": edp, "order": order,
            "groups": {name: fnv(g) for name, g in families.items()}}


def draw():
    tp, cp, dp, pp = (random.choice((1, 2, 2, 3, 4)) for _ in range(4))
    rest = tp * cp * dp
    etp = random.choice([n for n in (1, tp, tp, 2, 4) if rest % n == 0])
    ep = random.choice([n for n in range(1, 9) if rest // etp % n == 0])
    axes = ["tp", "cp", "ep", "dp", "pp"]
    if random.random() < 0.7:
        random.shuffle(axes)
    return None if rest * pp > 96 else case(
        tp, cp, dp, pp, etp, ep,
        "-".join(axes[:random.choice((5, 5, 5, 4, 3))]))


random.seed(1)
cases = []
while len(cases) < 500:
    new = draw()
    if new and new not in cases:
        cases.append(new)
print("[")
print(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
print("]")
