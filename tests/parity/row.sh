#!/bin/sh
# row.sh FILE NAME - trains the row NAME of FILE (five SGD steps, real ranks) and
# compares with one rank.
#
# A row is `NAME MODEL SET… -- SET…`: the first sets are of the model and batch,
# for one rank too; the others of the layout.  Runs in a folder of its own where
# MEGAC_PARITY says (default: here) with `megac` and `parity_compare` from PATH.
# In bf16 and fp16 only the losses are compared, and the scale of the loss.
# Every rank uses the memory that was planned, to the end.  Passes mean the same,
# exactly in a prime field, on the smallest spec with the same degrees.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
row=$(grep "^$2 " "$1")
cd "${MEGAC_PARITY:-.}"
export MEGAC_CACHE="$PWD/cache"

# numbers EXPRESSION - of awk, for each position i.
numbers() {
    awk "BEGIN { for (i = 0; i < 1200; i++) print $1 }"
}

# pack NAME EXPRESSION - a data set of these tokens, or weights.
pack() {
    numbers "$2" >"$1.ids"
    megac data pack "$1.ids" --tokens ids -o "$1" >pack.log
}

# The data sets that a row may name.  A third of the weights is 0, whole
# sequences of them; a text has as many bytes.  Most tokens of `same` are alike
# and choose the same experts.
data() {
    pack tokens '(i * i * 7 + i) % 47'
    pack more '(i * i * 3 + 5 * i) % 43'
    pack mask '(i % 96 < 64) * (i % 3)'
    pack more-mask '(i % 7 < 5) * (1 + i % 2)'
    numbers '(i * i * 5 + i) % 47' | awk '{ printf "%c", $1 + 1 }' >text
    numbers 'i % 11 == 7 ? 2 : 1 + 2 * (i % 11 == 10)' |
        awk '{ printf "%c", $1 }' >same
    pack text-mask '(i % 96 < 64) * (i % 3)'
}

# run FOLDER STEP SUBFOLDER - trains to a step and saves its tensors.
run() {
    timeout 200 megac run "$1" --steps "$2" --save-step "$2" --to "$1/$3" -- \
        --quiet --threads 1 --check-replicas --measure-memory >"$1/memory"
}

# train FOLDER SET… - the gradients of step 1, the weights after step 5.
train() {
    folder=$1
    shift
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
rm -rf "$name"
mkdir "$name"
cd "$name"
while [ "$1" != -- ]; do
    shared="$shared --set $1"
    case $1 in
    training.precision=fp32) ;;
    training.precision=*) limits="--loss-only 2e-2" ;;
    data.train=*) data ;;
    esac
    shift
done
shift
layout=""
for set in "$@"; do
    layout="$layout --set $set"
done
# shellcheck disable=SC2086
train one $shared
# shellcheck disable=SC2086
train split $shared $layout
# shellcheck disable=SC2086
megac verify "$here/$model.yaml" $shared $layout >verify.log
# shellcheck disable=SC2086
parity_compare $limits one split
cd ..
rm -rf "$name"
