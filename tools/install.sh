#!/bin/sh
# install.sh - installs the Debian 12 packages that megac is built and tested
# with: those that are missing, as root or with sudo.  Does nothing, and needs
# no rights, where all of them are there.
set -eu

packages="
build-essential
cmake
ninja-build
pkg-config
ccache
llvm-19-dev
libclang-19-dev
libclang-cpp19-dev
libopenmpi-dev
openmpi-bin
openssh-client
libdnnl-dev
libhwloc-dev
libyaml-dev
libjansson-dev
libxxhash-dev
uthash-dev
libcmocka-dev
"

installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

if ! command -v dpkg-query >/dev/null; then
    echo "install.sh: no Debian; needed are what Debian 12 calls:" $packages
    exit 0
fi

missing=
for package in $packages; do
    installed "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

as_root=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "install.sh: neither root nor sudo; please install:$missing" >&2
        exit 1
    fi
    as_root=sudo
fi

echo "installing:$missing"
$as_root apt-get update -q
$as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends $missing
