#!/bin/sh
# build.sh PRESET [TARGET…] - configures and builds in build/PRESET, through
# ccache where there is one.
set -eu
preset=$1
shift
launcher=
if command -v ccache >/dev/null; then
    launcher="-DCMAKE_C_COMPILER_LAUNCHER=ccache
              -DCMAKE_CXX_COMPILER_LAUNCHER=ccache"
fi
cmake --preset "$preset" $launcher >"/tmp/megac-configure.$$" 2>&1 || {
    cat "/tmp/megac-configure.$$" >&2
    exit 1
}
rm -f "/tmp/megac-configure.$$"
cmake --build --preset "$preset" ${1:+--target "$@"}
