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


def bench_growth():
    for ranks in (128, 1024, 16384):
        seconds, mib = plan("llama3-405b", *sets(
            parallel__world_size=ranks,
            training__global_batch_size=max(ranks // 8, 16)))
        report(f"plan 405B, {ranks} ranks", seconds, "s")
        report("  its memory", mib, "MiB")
    for layers in (8, 64, 512):
        seconds, _ = plan("gpt2-124m", *sets(model__num_layers=layers))
        report(f"plan GPT-2, {layers} layers", seconds, "s")
    for microbatches in (8, 128, 1024):
        seconds, _ = plan("gpt2-124m", *sets(
            training__global_batch_size=microbatches))
        report(f"plan GPT-2, {microbatches} microbatches", seconds, "s")


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


def bench_step():
    for name, seq, precision, target in (
            ("gpt2-124m", 256, "fp32", 80), ("gpt2-124m", 256, "bf16", 70),
            ("gpt2-124m", 1024, "fp32", 80), ("gpt2-124m", 1024, "bf16", 70),
            ("qwen2.5-0.5b", 512, "bf16", 70)):
        with tempfile.TemporaryDirectory() as out:
            compiled(out, name, precision, seq, 4 if "gpt2" in name else 1)
            step, share = step_of(profile(out))
        what = f"{name} {precision} s {seq}"
        report(f"{what}: products at their best / step", share, "%", target)
        report("  its step", step, "ms")
        steps[what] = step


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
        seconds[tp] = statistics.median(x["seconds"] for x in lines[1:])
    report("tp 2 on two ranks / one rank of two threads",
           seconds[2] / seconds[1], "", 1.2, False)


# ---- peers ------------------------------------------------------------------

def bench_peers():
    """GPT-2 124M by others; needs the steps measured before."""
    script = os.path.join(ROOT, "tests/bench/peers/run.sh")
    for seq in (256, 1024):
        for precision in ("fp32", "bf16"):
            ours = steps.get(f"gpt2-124m {precision} s {seq}")
            text = subprocess.check_output(
                [script, precision, str(seq), "4", str(RUNS),
                 "busy" if args.busy else "quiet"], text=True)
            best = {line.split()[0]: float(line.split()[1])
                    for line in text.splitlines()}
            for peer, ms in best.items():
                report(f"{peer} {precision} s {seq}", ms, "ms")
            if ours and best:
                report(f"  the best of them / megac",
                       min(best.values()) / ours, "x", 1.3)


BENCHES = {"compile": bench_compile, "growth": bench_growth,
           "exec": bench_exec, "pack": bench_pack, "step": bench_step,
           "tp": bench_tp, "peers": bench_peers}


def parse():
    p = argparse.ArgumentParser(prog="./bench", description=__doc__)
    p.add_argument("what", nargs="*", metavar="WHAT",
                   help=", ".join(BENCHES) + " (default: all but peers)")
    p.add_argument("--busy", action="store_true",
                   help="one thread, processor time")
    p.add_argument("--build", default=os.path.join(ROOT, "build/release"),
                   metavar="DIR", help="measure what was built there")
    found = p.parse_args()
    for what in found.what:
        if what not in BENCHES:
            p.error(f"nothing called {what} is measured")
    return found


args = parse()
BIN = os.path.join(args.build, "bin")
MEGAC = os.path.join(BIN, "megac")
steps = {}
for bench in args.what or [b for b in BENCHES if b != "peers"]:
    BENCHES[bench]()
with open(os.path.join(ROOT, "bench.json"), "w") as f:
    json.dump({"busy": args.busy, "cores": os.cpu_count(), "rows": rows}, f,
              indent=1)
