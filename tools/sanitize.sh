#!/usr/bin/env bash
# Builds csrc/driver with the kernels under the compiler's sanitizers, once for memory and undefined behaviour and once for
# races, and runs both. `make sanitize` calls it; tests/native/test_sanitizers.py runs the same programs with planted faults.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

mkdir -p build
for kind in memory:address,undefined,float-cast-overflow races:thread; do
    folder=build/sanitize-${kind%%:*}
    cmake -S . -B "$folder" -DHEADRACE_SANITIZE="${kind#*:}" -DCMAKE_BUILD_TYPE=None >"$folder.log" 2>&1 ||
        { cat "$folder.log" >&2; exit 1; }
    cmake --build "$folder" --parallel "$(nproc)" --target headrace_driver >"$folder.log" 2>&1 ||
        { cat "$folder.log" >&2; exit 1; }
    echo "sanitize: ${kind#*:}"
    "$folder/headrace_driver"
done
