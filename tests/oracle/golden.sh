#!/bin/sh
# golden.sh MODEL - trains MODEL.yaml for 20 steps and compares with what
# PyTorch computed (golden/MODEL.json; see oracle.py).  `megac` and
# `oracle_golden` come from PATH.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

megac compile "$here/$1.yaml" -o "$work/out"
timeout 100 megac run "$work/out" --save-step 1 --to "$work" -- --quiet
oracle_golden "$here/golden/$1.json" "$work/out/metrics.jsonl" \
    "$work/grads.safetensors"
