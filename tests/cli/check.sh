#!/bin/sh
# check.sh MEGAC CASE.sh - runs a case and compares what it printed.
#
# A case is a shell script that runs in an empty directory and calls `megac`.
# Expected is CASE.out: stdout and stderr of everything, and after each `megac`
# that failed a line with its exit code.  MEGAC_REFRESH=1 writes it anew.
set -u
megac=$(realpath "$1")
case=$(realpath "$2")
MEGAC_ROOT=$(dirname "$(dirname "$(dirname "$case")")")
export MEGAC_ROOT
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

megac() {
    timeout 60 "$megac" "$@"
    code=$?
    [ $code -eq 0 ] || echo "exit code $code"
}

cd "$work" || exit 1
mkdir files
cd files || exit 1
(. "$case") >../out 2>&1
if [ -n "${MEGAC_REFRESH:-}" ]; then
    cp ../out "${case%.sh}.out"
else
    diff -u "${case%.sh}.out" ../out
fi
