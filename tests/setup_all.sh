#!/usr/bin/env bash
# What does `cargo xtask test all` need beyond the gate's crates and wheels, and how is it brought?
#
#   tests/setup_all.sh          # as root, on Debian
#
# Each part that cannot be had is said in a line. Its tests are skipped, and the report names them.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '\n== %s\n' "$*"; }
export DEBIAN_FRONTEND=noninteractive
updated=
# Runs a command, and once more after the list of Debian's packages was renewed.
try() {
    "$@" && return
    [ -z "$updated" ] && apt-get update -qq && updated=yes && "$@" && return
    say "not to be had here: $*"
}

# A C compiler and an emulator for a second machine, a browser for the page, shells that complete, a store for a fleet, and an engine for containers.
packages=()
need() { command -v "$1" >/dev/null || packages+=("${@:2}"); }
need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross
need qemu-aarch64 qemu-user
need chromedriver chromium chromium-driver
need zsh zsh
need fish fish
need strace strace
need redis-server redis-server
{ command -v podman && command -v runc && command -v iptables; } >/dev/null || packages+=(podman runc netavark aardvark-dns iptables)
for package in "${packages[@]}"; do
    try apt-get install -y -qq --no-install-recommends "$package" >/dev/null
done

# NVIDIA's load generator, Prometheus, the linters of what users deploy with mdbook, the bases of images, and Ray with Envoy.
try python3 tests/perf_analyzer/setup_perf.py
try python3 tests/packaging/setup_prometheus.py
try python3 tests/packaging/setup_linters.py
try python3 tests/packaging/setup_containers.py
try python3 tests/fleet/setup_fleet.py

# Packs the Debian package. Its compression is Debian's xz, so it needs no C library.
cargo deb --version >/dev/null 2>&1 ||
    CARGO_PROFILE_DEV_DEBUG=0 try cargo install --quiet --locked --debug --no-default-features cargo-deb@3.8.0
[ -d "$(rustc --print target-libdir --target aarch64-unknown-linux-gnu)" ] || try rustup target add aarch64-unknown-linux-gnu
miri=$(sed -n 's/^const TOOLCHAIN: &str = "\(.*\)";$/\1/p' xtask/src/miri.rs)
rustup run "$miri" cargo miri --version >/dev/null 2>&1 ||
    try rustup toolchain install "$miri" --profile minimal --component miri,rust-src
exit 0
