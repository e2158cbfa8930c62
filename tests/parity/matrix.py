"""Prints tests/parity/matrix.txt: layouts in which all strategies meet.

    python tests/parity/matrix.py --megac build/release/bin/megac \\
        tests/parity/matrix.txt > matrix.new

Every two values of two of the factors below stand together in at least one
row, unless megac rejects whatever has them both; those are listed at the end.
Rows of a given file stay.  A new one is built greedily: of many random legal
completions of a pair that is still missing, the one with the most missing
pairs.  In the end rows are left out whose pairs the others have.
tests/cases/matrix_test.c looks whether all pairs are there.
"""
import argparse
import collections
import itertools
import pathlib
import random
import subprocess

HERE = pathlib.Path(__file__).parent
BATCH = 4  # sequences per microbatch, of all replicas together
RANKS = 16
TRIES = 600

GPT2 = ("model.normalization=layernorm model.activation=gelu "
        "model.position_embedding=learned model.qkv_bias=true")

# A value is what it sets: of the model (for one rank too), and of the layout.
FACTORS = {
    "tensor": {
        "tp1": "",
        "tp2": "parallel.tp=2",
        "tp2sp": "parallel.tp=2 parallel.sp=true",
        "tp4sp": "parallel.tp=4 parallel.sp=true",
    },
    "pipeline": {
        "pp1": "",
        "1f1b": "parallel.pp=2",
        "gpipe": "parallel.pp=2 parallel.schedule=gpipe",
        "interleaved": "parallel.pp=2 parallel.vpp=2",
        "layout": "parallel.pp=2 parallel.pp_layout=Ettt|||tL",
        "ends": "parallel.pp=2 parallel.pp_first_layers=1",
        "zb-h1": "parallel.pp=2 parallel.schedule=zb-h1",
        "zb-v": "parallel.pp=2 parallel.schedule=zb-v",
        "dualpipe-v": "parallel.pp=2 parallel.schedule=dualpipe-v",
    },
    "context": {
        "cp1": "",
        "p2p": "parallel.cp=2",
        "all_gather": "parallel.cp=2 parallel.cp_comm=all_gather",
        "a2a": "parallel.cp=2 parallel.cp_comm=a2a",
        "a2a+p2p": "parallel.cp=4 parallel.cp_comm=a2a+p2p "
                   "parallel.cp_sizes=[2,2]",
    },
    "experts": {"dense": "", "ep": "parallel.ep=2", "etp1": "parallel.etp=1",
                "fold": "parallel.ep=2 parallel.etp=1",
                "mixed": "parallel.ep=2 model.moe.layer_freq=2"},
    "data": {"dp1": "", "dp2": ""},
    "sharding": {
        "zero0": "", "zero1": "parallel.sharding=optim",
        "zero2": "parallel.sharding=optim_grads",
        "zero3": "parallel.sharding=optim_grads_params",
    },
    "recompute": {
        "none": "",
        "full": "training.recompute.granularity=full",
        "block": "training.recompute.granularity=full "
                 "training.recompute.method=block "
                 "training.recompute.num_layers=1",
        "selective": "training.recompute.granularity=selective "
                     "training.recompute.modules=[core_attn,mlp]",
    },
    "microbatches": {"m1": "", "m4": "", "m5": ""},
    "family": {"llama": "", "gpt2": GPT2},
    "bias": {"nobias": "", "bias": "model.linear_bias=true"},
    "tied": {"untied": "model.tie_embeddings=false",
             "tied": "model.tie_embeddings=true"},
    "precision": {"fp32": "", "bf16": "training.precision=bf16",
                  "fp16": "training.precision=fp16 training.loss_scale=1024"},
    "order": {"order0": "", "order": ""},
    "buckets": {"one": "", "many": "parallel.bucket_elements=3000"},
    "dropout": {"sure": "", "dropout": "model.hidden_dropout=0.1 "
                                       "model.attention_dropout=0.1"},
    "offload": {"stay": "", "offload":
                "training.offload.activations=[core_attn,mlp] "
                "training.offload.optimizer=0.5"},
    "window": {"all": "", "window": "model.sliding_window=9"},
    "mask": {"whole": "", "masked": "data.train=[tokens,more] "
                                    "data.loss_mask=[mask,more-mask]"},
}
# Drawn less often: they hide more.
FEWER = {"bf16", "fp16", "window", "m1", "dropout"}
SHARED = ("model.", "training.precision", "training.loss_scale", "data.")
ORDERS = ("pp-dp-cp-tp-ep", "dp-pp-tp-cp-ep", "cp-tp-ep-dp-pp",
          "ep-dp-tp-cp-pp", "dp-cp-tp-ep-pp")


def degree(sets, name):
    return next((int(s.split("=")[1]) for s in sets
                 if s.startswith(f"parallel.{name}=")), 1)


def moved(row, s):
    """What is computed again does not move."""
    if row["offload"] == "stay":
        return s
    if row["recompute"] == "full" and s.startswith("training.offload.act"):
        return ""
    if row["recompute"] == "selective":
        s = s.replace("recompute.modules=[core_attn,mlp]",
                      "recompute.modules=[core_attn]")
        s = s.replace("activations=[core_attn,mlp]", "activations=[mlp]")
    return s


def sets_of(row):
    """"mlp" stands for whatever the layers have in its place."""
    mlp = {"dense": "mlp", "mixed": "mlp,moe"}.get(row["experts"], "moe")
    sets = [moved(row, s) for factor, value in row.items()
            for s in FACTORS[factor][value].split()]
    return [s.replace("mlp]", mlp + "]") for s in sets if s]


def layouts(row):
    """Sets of the layout, in each order of ranks that is to be tried."""
    sets = [s for s in sets_of(row) if not s.startswith(SHARED)]
    dp = int(row["data"][2:])
    dense = dp
    model = degree(sets, "tp") * degree(sets, "pp") * degree(sets, "cp")
    if row["experts"] in ("etp1", "fold"):
        sets += ["parallel.dp=null", f"parallel.world_size={model * dp}"]
    else:
        sets += [f"parallel.dp={dp}"]
        dense *= degree(sets, "ep")
    if model * dense > RANKS or BATCH % dense:
        return
    sets += [f"training.micro_batch_size={BATCH // dense}"]
    m = int(row["microbatches"][1:])
    if row["pipeline"] in ("interleaved", "layout") and m == 5:
        sets += ["parallel.microbatch_group=3"]
    if row["order"] == "order0":
        yield sets
        return
    for order in ORDERS:
        yield sets + [f"parallel.order={order}"]


def model_of(row):
    return "t0" if row["experts"] == "dense" else "m0"


def accepted(megac, model, sets):
    run = subprocess.run(
        [megac, "inspect", HERE / f"{model}.yaml", "groups", "--json",
         *(x for s in sets for x in ("--set", s))],
        capture_output=True, text=True)
    return run.returncode == 0 and "MC0014" not in run.stderr


def line_of(megac, row):
    """The row's line in matrix.txt; None if it is not legal."""
    model = model_of(row)
    shared = [s for s in sets_of(row) if s.startswith(SHARED)]
    microbatches = int(row["microbatches"][1:])
    shared += [f"training.global_batch_size={BATCH * microbatches}"]
    for sets in layouts(row):
        if accepted(megac, model, shared + sets):
            return " ".join([model, *shared, "--", *sets])
    return None


def pairs_of(row):
    return {frozenset(p) for p in itertools.combinations(row.items(), 2)}


def completions(pair, tries):
    for _ in range(tries):
        row = {factor: random.choices(
                   list(values), [0.3 if v in FEWER else 1 for v in values])[0]
               for factor, values in FACTORS.items()}
        row.update(pair)
        yield row


def keep_built(megac):
    """Leaves out values that are not built yet."""
    for factor, values in FACTORS.items():
        for value in list(values):
            row = {f: next(iter(v)) for f, v in FACTORS.items()}
            row.update({"microbatches": "m4", factor: value})
            if value in ("etp1", "fold") or line_of(megac, row):
                continue
            del values[value]


def rows_of(path):
    """The rows of an earlier matrix: values as the comment above each says."""
    factor_of = {v: f for f, values in FACTORS.items() for v in values}
    for line in open(path):
        words = line.split()
        if words[:1] == ["#"] and all(w in factor_of for w in words[1:]):
            row = {f: next(iter(v)) for f, v in FACTORS.items()}
            row.update({factor_of[w]: w for w in words[1:]})
            yield row


def next_row(megac, pair, missing, known):
    """The best completion of a pair, and its line; None if there is none."""
    best, gain = None, 0
    for number, row in enumerate(completions(pair, 4 * TRIES)):
        key = tuple(row.values())
        new = len(pairs_of(row) & missing)
        if new <= gain or (best and number >= TRIES):
            continue
        if key not in known:
            known[key] = line_of(megac, row)
        if known[key]:
            best, gain = (row, known[key]), new
    return best


def needed(rows):
    """The rows without those whose every pair is in another one."""
    times = collections.Counter(p for row, _ in rows for p in pairs_of(row))
    kept = []
    for row, line in rows:
        if all(times[p] > 1 for p in pairs_of(row)):
            times.subtract(pairs_of(row))
        else:
            kept.append((row, line))
    return kept


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--megac", required=True)
    args.add_argument("earlier", nargs="?")
    args = args.parse_args()
    random.seed(1)
    keep_built(args.megac)
    missing = {frozenset(((a, x), (b, y)))
               for a, b in itertools.combinations(FACTORS, 2)
               for x in FACTORS[a] for y in FACTORS[b]}
    rows, impossible, known = [], [], {}
    for row in rows_of(args.earlier) if args.earlier else ():
        line = line_of(args.megac, row)
        if line:
            rows.append((row, line))
            missing -= pairs_of(row)
    while missing:
        pair = min(missing, key=lambda p: sorted(p))
        best = next_row(args.megac, pair, missing, known)
        if best:
            rows.append(best)
            missing -= pairs_of(best[0])
        else:
            impossible.append(pair)
            missing.remove(pair)
    for number, (row, line) in enumerate(needed(rows), 1):
        print("#", *row.values())
        print(f"pairs{number:02} {line}")
    for pair in impossible:
        print("# not together:", " and ".join(sorted(v for _, v in pair)))


main()
