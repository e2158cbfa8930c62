"""Measures what docs/PERFORMANCE.md promises, in one run on one machine.

Every figure is the median of at least five runs.  A step is judged by a ratio:
the sum of its matrix products at oneDNN's best for their shapes, measured by
the same process, over the time of the whole step.  With --busy everything is
measured by processor time on one thread, which other programs on the machine
disturb least.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
MODELS = os.path.join(ROOT, "configs/models")
RUNS = 5
rows = []


def report(name, value, unit, target=None, at_least=True):
    """A row of the table; no target: the figure is only for information."""
    met = None
    if target is not None:
        met = value >= target if at_least else value <= target
    rows.append({"name": name, "value": value, "unit": unit,
                 "target": target, "met": met})
    goal = "" if target is None else (">=" if at_least else "<=") + \
        f" {target:g}"
    mark = {None: "", True: "yes", False: "NO"}[met]
    print(f"{name:58} {value:10.4g} {unit:10} {goal:10} {mark}", flush=True)


def sets(**values):
    return [x for key, value in values.items()
            for x in ("--set", key.replace("__", ".") + "=" + str(value))]


def model(name):
    return os.path.join(MODELS, name + ".yaml")


def measured(command, env=None):
    """Runs a command; its seconds (see --busy) and largest memory in MiB."""
    start = time.monotonic()
    child = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE)
    message = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(" ".join(command) + "\n" + message.decode())
    seconds = time.monotonic() - start
    if args.busy:
        seconds = usage.ru_utime + usage.ru_stime
    return seconds, usage.ru_maxrss / 1024


def median_of(command):
    runs = [measured(command) for _ in range(RUNS)]
    return (statistics.median(r[0] for r in runs),
            statistics.median(r[1] for r in runs))


# ---- compile time -----------------------------------------------------------

def plan(name, *more):
    with tempfile.TemporaryDirectory() as out:
        return median_of([MEGAC, "compile", model(name), "--plan-only", "-o",
                          out, "--target", "cuda:sm_90", *more])


def cold(name, *more):
    """With an empty cache each time."""
    runs = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as out:
            env = dict(os.environ, MEGAC_CACHE=os.path.join(out, "cache"))
            runs.append(measured([MEGAC, "compile", model(name), "-o",
                                  os.path.join(out, "o"), *more], env)[0])
    return statistics.median(runs)


def has_nvrtc():
    return any(subprocess.run(
        [sys.executable, "-c", f"import ctypes; ctypes.CDLL('{name}')"],
        stderr=subprocess.DEVNULL).returncode == 0
        for name in ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"))


def bench_compile():
    seconds, _ = plan("llama3-70b", *sets(parallel__world_size=64))
    report("plan Llama-3-70B on 64 ranks", seconds, "s", 0.3, False)
    seconds, _ = plan("llama3-70b", *sets(
        parallel__tp=4, parallel__sp="true", parallel__pp=4, parallel__cp=2,
        parallel__dp=2, parallel__world_size=64,
        training__global_batch_size=512))
    report("  with cp 2 and 256 microbatches", seconds, "s", 0.3, False)
    seconds, mib = plan("llama3-405b", *sets(parallel__world_size=16384,
                                             training__global_batch_size=2048))
    report("plan Llama-3.1-405B on 16,384 ranks", seconds, "s", 1.0, False)
    report("  its memory", mib, "MiB", 1024, False)
    report("compile GPT-2 124M for one CPU rank, cold", cold("gpt2-124m"), "s",
           2.0, False)
    if has_nvrtc():
        report("compile Llama-3-70B with CUDA kernels, cold",
               cold("llama3-70b", "--target", "cuda:sm_90",
                    *sets(parallel__world_size=64)), "s", 5.0, False)


def grows(what, unit, counts, name, settings):
    """Seconds and MiB of a plan as one number grows.  What a child had before
    it became megac counts as its memory, so less than that is not shown."""
    _, least = measured(["true"])
    for count in counts:
        seconds, mib = plan(name, *sets(**settings(count)))
        report(f"plan {what}, {count} {unit}", seconds, "s")
        if mib > 1.1 * least:
            report("  its memory", mib, "MiB")


def bench_growth():
    grows("Llama-3-8B, tp 2, pp 4", "ranks", (8, 64, 512, 4096, 16384),
          "llama3-8b", lambda n: dict(
              parallel__tp=2, parallel__pp=4, parallel__world_size=n,
              training__global_batch_size=2 * n))
    grows("GPT-2", "layers", (8, 32, 128, 512), "gpt2-124m",
          lambda n: dict(model__num_layers=n))
    grows("GPT-2", "microbatches", (8, 32, 128, 512, 1024), "gpt2-124m",
          lambda n: dict(training__global_batch_size=n))
    grows("405B, tp 8, pp 16, batch 2,048", "ranks", (16384, 1024, 128),
          "llama3-405b", lambda n: dict(
              parallel__world_size=n, training__global_batch_size=2048))


# ---- the executor and the memory planner ------------------------------------

def bench_exec():
    nanoseconds = statistics.median(
        float(subprocess.check_output([os.path.join(BIN, "exec_bench")]))
        for _ in range(RUNS))
    report("the executor, per instruction", nanoseconds / 1000, "us", 1.0,
           False)


def bench_pack():
    if "MEGAC_MINIMALLOC_DIR" not in os.environ:
        print("MEGAC_MINIMALLOC_DIR is not set: its instances are left out")
    runs = [measured([os.path.join(BIN, "packing_test")])[0]
            for _ in range(RUNS)]
    report("all packing tests, minimalloc's 11 among them",
           statistics.median(runs), "s", 30, False)


# ---- steps ------------------------------------------------------------------

def compiled(out, name, precision, seq, batch, *more):
    subprocess.run([MEGAC, "compile", model(name), "-o", out, *sets(
        training__precision=precision, training__seq_length=seq,
        training__micro_batch_size=batch, training__global_batch_size=batch),
        *more], check=True)


def profile(out):
    """The text of a profile of RUNS steps after a first one."""
    how = ["--threads", "1", "--cpu-time"] if args.busy else ["--threads", "2"]
    path = os.path.join(out, "profile")
    subprocess.run([os.path.join(out, "rank-00000"), "--quiet", "--steps",
                    str(RUNS + 1), "--profile", path, *how], check=True)
    with open(path + ".0") as f:
        return f.read()


def step_of(text):
    """Milliseconds of the median step; percent its products would need."""
    step = float(re.search(r"step ([0-9.]+) ms", text)[1])
    share = float(re.search(r"ceilings .*: ([0-9.]+)% of", text)[1])
    return step, share


def kernel_rows(text):
    """Of the profile: (ideal ms, GFLOP/s, GB/s, name)."""
    for line in text.splitlines():
        row = line.split(None, 9)
        if len(row) == 10 and row[2].endswith("%"):
            yield float(row[1]), float(row[6]), float(row[7]), row[9]


def attention_share(text, seq, batch, heads, d):
    """Percent of the products' best rate that causal attention reaches."""
    peak = max(gflops for _, gflops, _, _ in kernel_rows(text))
    seconds = sum(ms for ms, _, _, name in kernel_rows(text)
                  if re.match(r"attention_[0-9a-f]{8}$", name)) / 1e3
    flops = 12 * batch * heads * 4 * seq * seq * d / 2  # 12 layers
    return 100 * flops / seconds / 1e9 / peak


def row_share(text):
    """Percent of a copy's bandwidth that the row programs reach together."""
    copy = float(re.search(r"copy bandwidth ([0-9.]+)", text)[1])
    rows = [(ms, rate) for ms, _, rate, name in kernel_rows(text)
            if not re.match("gemm|attention|host", name)]
    moved = sum(ms * rate for ms, rate in rows)
    return 100 * moved / sum(ms for ms, _ in rows) / copy


def trained(name, seq, precision, out):
    """Compiles a model into `out`; the profile of its steps."""
    compiled(out, name, precision, seq, 4 if "gpt2" in name else 1)
    return profile(out)


def bench_step():
    for name, seq, precision, target in (
            ("gpt2-124m", 256, "fp32", 80), ("gpt2-124m", 256, "bf16", 70),
            ("gpt2-124m", 1024, "fp32", 80), ("gpt2-124m", 1024, "bf16", 70),
            ("qwen2.5-0.5b", 512, "bf16", 70)):
        with tempfile.TemporaryDirectory() as out:
            text = trained(name, seq, precision, out)
        step, share = step_of(text)
        report(f"{name} {precision} s {seq}: products at their best / step",
               share, "%", target)
        report("  its step", step, "ms")
        report("  row programs / a copy's bandwidth", row_share(text), "%", 85)
        if name == "gpt2-124m":
            report("  attention forward / products' best",
                   attention_share(text, seq, 4, 12, 64), "%", 50)


def bench_tp():
    """Two ranks of a thread each against one rank of two threads."""
    seconds = {}
    for tp in (1, 2):
        with tempfile.TemporaryDirectory() as out:
            compiled(out, "gpt2-124m", "fp32", 256, 4, *sets(
                parallel__tp=tp, parallel__world_size=tp,
                target__threads=2 // tp))
            log = os.path.join(out, "m.jsonl")
            subprocess.run([MEGAC, "run", out, "--steps", str(RUNS + 1),
                            "--metrics", log], check=True,
                           stderr=subprocess.DEVNULL)
            with open(log) as f:
                lines = [json.loads(line) for line in f]
        seconds[tp] = statistics.median(x["step_time_s"] for x in lines[1:])
    report("tp 2 on two ranks / one rank of two threads",
           seconds[2] / seconds[1], "", 1.2, False)


# ---- peers ------------------------------------------------------------------

def peers_of(precision, seq):
    """Reports each peer's step; the milliseconds of the best, or None."""
    script = os.path.join(ROOT, "tests/bench/peers/run.sh")
    text = subprocess.check_output(
        [script, precision, str(seq), "4", str(RUNS),
         "busy" if args.busy else "quiet"], text=True)
    best = None
    for line in text.splitlines():
        peer, ms, runs = line.split()
        of = "" if int(runs) >= RUNS else f" (median of {runs})"
        report(f"{peer} {precision} s {seq}{of}", float(ms), "ms")
        best = min(best or float(ms), float(ms))
    return best


def bench_peers():
    """GPT-2 124M by megac and by others, one after the other; megac before and
    after them, since a machine may change in the minutes that they take."""
    for seq in (256, 1024):
        for precision in ("fp32", "bf16"):
            with tempfile.TemporaryDirectory() as out:
                text = trained("gpt2-124m", seq, precision, out)
                best = peers_of(precision, seq)
                ours = [step_of(text)[0], step_of(profile(out))[0]]
            report(f"megac {precision} s {seq}, before them", ours[0], "ms")
            report(f"megac {precision} s {seq}, after them", ours[1], "ms")
            if best:
                report("  the best of them / megac's mean",
                       best / statistics.mean(ours), "x", 1.3)


BENCHES = {"compile": bench_compile, "growth": bench_growth,
           "exec": bench_exec, "pack": bench_pack, "step": bench_step,
           "tp": bench_tp, "peers": bench_peers}


def parse():
    p = argparse.ArgumentParser(prog="./bench", description=__doc__)
    p.add_argument("what", nargs="*", metavar="WHAT",
                   help=", ".join(BENCHES) + " (default: all of them)")
    p.add_argument("--without", action="append", default=[],
                   metavar="WHAT", help="leave this one out")
    p.add_argument("--busy", action="store_true",
                   help="one thread, processor time")
    p.add_argument("--build", default=os.path.join(ROOT, "build/release"),
                   metavar="DIR", help="measure what was built there")
    found = p.parse_args()
    for what in found.what + found.without:
        if what not in BENCHES:
            p.error(f"nothing called {what} is measured")
    return found


args = parse()
BIN = os.path.join(args.build, "bin")
MEGAC = os.path.join(BIN, "megac")
for bench in args.what or BENCHES:
    if bench not in args.without:
        BENCHES[bench]()
with open(os.path.join(ROOT, "bench.json"), "w") as f:
    json.dump({"busy": args.busy, "cores": os.cpu_count(), "rows": rows}, f,
              indent=1)
