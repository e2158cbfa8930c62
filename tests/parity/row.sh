#!/bin/sh
# row.sh FILE NAME - trains the row NAME of FILE (five SGD steps, real ranks) and
# compares with one rank.
#
# A row is `NAME MODEL SET… -- SET…`: the first sets are of the model and batch,
# for one rank too; the others of the layout.  Runs where MEGAC_PARITY says
# (default: here) with `megac` and `parity_compare` from PATH.  In bf16 only the
# losses are compared.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
row=$(grep "^$2 " "$1")
cd "${MEGAC_PARITY:-.}"
export MEGAC_CACHE="$PWD/cache"

# train FOLDER SET… - the gradients of step 1, the weights after step 5.
train() {
    folder=$1
    shift
    rm -rf "$folder"
    megac compile "$here/$model.yaml" -o "$folder" "$@"
    for step in 1 5; do
        to=$([ $step = 1 ] && echo first || echo last)
        timeout 200 megac run "$folder" --steps $step --save-step $step \
            --to "$folder/$to" -- --quiet --threads 1 --check-replicas
    done
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
