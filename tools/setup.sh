#!/usr/bin/env bash
# Creates .venv and installs Headrace into it, editable, with one set of extras: tools/setup.sh server|dev
# The Makefile calls it when something it depends on changed. PYTHON names another interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

extras=$1
venv=.venv
export PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    local have
    have=$("${PYTHON:-python3}" --version 2>&1) || have="no ${PYTHON:-python3}"
    fail "Headrace needs Python 3.11 or newer, and found ${have}." \
        "Install a newer one, or name it: make PYTHON=/path/to/python3.12 ..."
}

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$python has no venv module. Debian and Ubuntu keep it in a package: apt install python3-venv"
    echo "setup: creating $venv with $("$python" --version)"
    "$python" -m venv "$venv" || fail "could not create $venv. Remove what is left of it, then try again."
fi
is_new_enough "$venv/bin/python" ||
    fail "$venv was made with $("$venv/bin/python" --version); Headrace needs 3.11 or newer. Remove $venv, then try again."

export PATH="$PWD/$venv/bin:$PATH"
echo "setup: installing headrace[$extras] into $venv"
python -c 'import sys, importlib.util as u; sys.exit(u.find_spec("torch") is not None)' &&
    echo "setup: downloading torch, which takes minutes"

# The build tools go into .venv rather than into a throwaway environment, so that a rebuild of the kernels
# is incremental. CMake and Ninja come as wheels where the machine has none.
install_lines() {
    local wanted
    mapfile -t wanted < <(python -c "$1")
    if ((${#wanted[@]})); then python -m pip install -qq "${wanted[@]}"; fi
}
install_lines 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")'
install_lines 'from scikit_build_core.build import get_requires_for_build_editable as f; [print(r) for r in f()]'
rm -f "$venv"/.installed-*
python -m pip install -qq --no-build-isolation -e ".[$extras]" ||
    fail "the installation failed; the lines above say why. Without the C++ kernels: HEADRACE_NATIVE=OFF make ..."
python - <<'END'
from headrace.ops.cpu_features import detect

cpu = detect()
print(cpu.describe())
if not cpu.native:
    print("     To build them: install what is missing (g++ or clang++, python3-dev), then run: make native")
END
