#!/bin/sh
# row.sh FILE NAME - trains the row NAME of FILE (five SGD steps, real ranks) and
# compares with one rank.
#
# A row is `NAME MODEL SET… -- SET…`: the first sets are of the model and batch,
# for one rank too; the others of the layout.  Runs where MEGAC_PARITY says
# (default: here) with `megac` and `parity_compare` from PATH.  In bf16 only the
# losses are compared.  Every rank uses the memory that was planned, to the end.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
row=$(grep "^$2 " "$1")
cd "${MEGAC_PARITY:-.}"
export MEGAC_CACHE="$PWD/cache"

# run FOLDER STEP SUBFOLDER - trains to a step and saves its tensors.
run() {
    timeout 200 megac run "$1" --steps "$2" --save-step "$2" --to "$1/$3" -- \
        --quiet --threads 1 --check-replicas --measure-memory >"$1/memory"
}

# train FOLDER SET… - the gradients of step 1, the weights after step 5.
train() {
    folder=$1
    shift
    rm -rf "$folder"
    megac compile "$here/$model.yaml" -o "$folder" "$@"
    run "$folder" 1 first
    run "$folder" 5 last
    # the last value may leave some of its 64 bytes of alignment alone
    awk -F '[:,]' '/"highest"/ && $4 - $6 > 63 { print; bad = 1 }
        END { exit bad }' "$folder/memory"
}

# shellcheck disable=SC2086
set -- $row
name=$1 model=$2 shared="" limits=""
shift 2
while [ "$1" != -- ]; do
    shared="$shared --set $1"
    case $1 in training.precision=bf16) limits="--loss-only 2e-2" ;; esac
    shift
done
shift
layout=""
for set in "$@"; do
    layout="$layout --set $set"
done
# shellcheck disable=SC2086
train "$name-one" $shared
# shellcheck disable=SC2086
train "$name" $shared $layout
# shellcheck disable=SC2086
parity_compare $limits "$name-one" "$name"
rm -rf "$name-one" "$name"
