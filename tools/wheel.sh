#!/usr/bin/env bash
# Builds a wheel with all kernels for other Linux machines: tools/wheel.sh [FOLDER], dist by default.
# auditwheel checks the shared libraries and symbols that it needs; its name says the oldest glibc that has them.
set -euo pipefail
cd -P "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
folder=${1:-dist}
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT

HEADRACE_NATIVE=REQUIRED python -m pip wheel -q --no-deps --no-build-isolation --wheel-dir "$built" .
python -m auditwheel repair --wheel-dir "$folder" "$built"/headrace-*.whl
python -m auditwheel show "$folder"/headrace-*.whl
