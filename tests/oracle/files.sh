#!/bin/sh
# files.sh MODEL - starts from the weights that transformers wrote in parts,
# files/MODEL, and compares the loss with PyTorch's (see files.py).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

megac compile "$here/files/$1.yaml" -o "$work/out"
timeout 100 megac run "$work/out" --load "$here/files/$1" -- --quiet
sed 's/.*"loss": *\([0-9.]*\).*/\1/' "$work/out/metrics.jsonl" |
    paste - "$here/files/$1/loss" |
    awk '{ d = $1 - $2; print "loss", $1, "PyTorch", $2
           exit !(NF == 2 && d < 1e-5 && d > -1e-5) }'
