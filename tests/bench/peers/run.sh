#!/bin/sh
# run.sh PRECISION SEQ BATCH RUNS busy|quiet - a line "PEER MILLISECONDS OF" for
# each peer, the median of OF steps; installs them from PyPI beside this script's build folder first.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${MEGAC_PEERS:-$here/../../../build/peers}
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q numpy jax optax torch >&2
fi
if [ "$5" = busy ]; then
    export OMP_NUM_THREADS=1
    export XLA_FLAGS="--xla_cpu_multi_thread_eigen=false \
intra_op_parallelism_threads=1"
fi
for peer in jax torch; do
    "$venv/bin/python" "$here/gpt2_$peer.py" "$@" || echo "no $peer" >&2
done
