#!/bin/sh
# random.sh DRAWS [FOLDER [FIRST]] - a long run of random_test, on all cores.
#
# Seeds FIRST (1) to FIRST + DRAWS - 1 go through build/release/bin/random_test in blocks.  FOLDER
# (default: build/random) holds the blocks that are done, one per line of
# `done`, and one line per seed that failed in `failed`; run again, it goes on
# where it stopped.  Exit code 1 if any seed has failed.
set -eu
draws=$1
folder=${2:-build/random}
first=${3:-1}
test=${RANDOM_TEST:-build/release/bin/random_test}
block=20
mkdir -p "$folder"
touch "$folder/done" "$folder/failed"
export folder test block

# run SEED DRAWS - quietly; the log says what went wrong.
one='
run() {
    MEGAC_SEED=$1 MEGAC_DRAWS=$2 timeout 900 "$test" \
        >"$folder/log.$first" 2>&1
}
first=$1
if ! run "$first" "$block"; then
    seed=$first
    while [ "$seed" -lt $((first + block)) ]; do
        run "$seed" 1 || echo "seed $seed: $(grep -m 1 -iE \
            "error:|exception|bug:|off by" "$folder/log.$first")" \
            >>"$folder/failed"
        seed=$((seed + 1))
    done
fi
rm -f "$folder/log.$first"
echo "$first" >>"$folder/done"
'
seq "$first" $block $((first + draws - 1)) | grep -vxFf "$folder/done" |
    xargs -P "$(nproc)" -I {} sh -c "$one" sh {} || true
sort -u "$folder/failed"
echo "$(sort -u "$folder/done" | wc -l) blocks of $block done," \
    "$(sort -u "$folder/failed" | wc -l) seeds failed"
[ ! -s "$folder/failed" ]
