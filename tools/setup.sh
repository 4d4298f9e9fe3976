#!/usr/bin/env bash
# Creates .venv and installs Headrace into it, editable, with one set of extras: tools/setup.sh server|dev
# The Makefile calls it when something it depends on changed. PYTHON names another interpreter.
# tools/setup.sh interpreter: fails where .venv was made from another interpreter than PYTHON.
set -euo pipefail
cd -P "$(dirname "$0")/.."

venv=.venv
child=
log=$(mktemp)
export PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1
exec 3>&2 # what is said of an interruption, wherever the signal comes
trap 'rm -f "$log"' EXIT
trap 'stop INT' INT
trap 'stop TERM' TERM

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# A step has a process group of its own and a log: Ctrl-C reaches it through `stop` only, and a step that works or is
# interrupted prints nothing.
step() {
    local status=0
    {
        set -m
        "$@" >"$log" 2>&1 &
        child=$!
        set +m
        wait "$child" || status=$?
    } 2>/dev/null # with job control bash would print how the step ended
    ((status != 130)) || stop INT # Ctrl-C came before the step had its own group
    child=
    ((status == 0)) || cat "$log" >&2
    return "$status"
}

stop() {
    trap '' INT TERM
    set +m # the signal may come inside `step`
    exec 2>/dev/null
    rm -f "$log"
    if [ "$child" ]; then
        kill -INT -- "-$child" || true
        wait "$child" || true
    fi
    # Under make, make says so.
    [ "${MAKELEVEL-}" ] || echo 'setup: interrupted; the same command starts it again' >&3
    trap - INT TERM
    kill -s "$1" $$
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local candidate candidates=(python3 python3.14 python3.13 python3.12 python3.11)
    [ -z "${PYTHON-}" ] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
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

# The file of the interpreter itself, also for one of a virtual environment.
interpreter() {
    "$1" -c 'import os, sys; print(os.path.realpath(sys._base_executable))' 2>/dev/null
}

check_interpreter() {
    local asked have
    [ "${PYTHON-}" ] && [ -e "$venv/bin/python" ] || return 0
    asked=$(interpreter "$PYTHON") || fail "PYTHON=$PYTHON does not run"
    have=$(interpreter "$venv/bin/python") || return 0 # set up again below
    [ "$asked" = "$have" ] ||
        fail "$venv was made from $have; PYTHON=$PYTHON is $asked. To set up with that one, remove $venv first."
}

# Whether the scripts in .venv/bin run the interpreter beside them. Those of a moved or copied checkout do not.
is_made_here() {
    local named
    named=$(grep -om1 '/.*/bin/python' "$venv/bin/pip" 2>/dev/null) || return 0
    [ "${named%/python}" -ef "$venv/bin" ]
}

# Runs Python code that prints requirements, and installs them.
install_lines() {
    local wanted
    step python -c "$1" || return
    mapfile -t wanted <"$log"
    if ((${#wanted[@]})); then step python -m pip install -qq "${wanted[@]}"; fi
}

no_tools() {
    fail "the build tools could not be installed; the lines above say why. Where they name no other reason, the package" \
        "index cannot be reached: check the network and PIP_INDEX_URL, then run the same command again."
}

check_interpreter
[ "$1" != interpreter ] || exit 0
extras=$1 stamp=${2-}
for place in . "$venv" build; do
    [ ! -e "$place" ] || [ -w "$place" ] ||
        fail "$PWD cannot be written to, and set-up creates .venv and build in it. Copy it to a folder of yours first."
done

# One set-up of a folder at a time, where there is flock. The lock is on the folder itself and ends with this process.
if command -v flock >/dev/null; then
    exec 9<.
    if ! flock -n 9; then
        echo 'setup: another command sets up this folder; waiting for it'
        flock 9
        if [ -e "$stamp" ] && ! [ "$log" -nt "$stamp" ]; then exit 0; fi # it has done the same
    fi
fi

again=
if ! is_made_here; then
    echo "setup: $venv was made in another folder; making it again"
    again=--clear
fi
if [ "$again" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$python has no venv module. Debian and Ubuntu keep it in a package: apt install python3-venv"
    echo "setup: creating $venv with $("$python" --version)"
    step "$python" -m venv $again "$venv" || fail "could not create $venv. Remove what is left of it, then try again."
fi
is_new_enough "$venv/bin/python" ||
    fail "$venv was made with $("$venv/bin/python" --version); Headrace needs 3.11 or newer. Remove $venv, then try again."

export PATH="$PWD/$venv/bin:$PATH"
echo "setup: installing headrace[$extras] into $venv"
if [ "$extras" = dev ] && ! python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; then
    echo "setup: downloading torch, which takes minutes"
fi

# The build tools go into .venv rather than into a throwaway environment, so that a rebuild of the kernels
# is incremental. CMake and Ninja come as wheels where the machine has none.
install_lines 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' || no_tools
install_lines 'from scikit_build_core.build import get_requires_for_build_editable as f; [print(r) for r in f()]' || no_tools
# Each instruction set takes about 20 CPU seconds to build. The stamp in .venv depends on the CPU: on another one the
# set-up runs again.
if [ "$extras" = dev ]; then export HEADRACE_AMX_EMULATED=ON; else export HEADRACE_KERNELS="${HEADRACE_KERNELS-this-cpu}"; fi
rm -f "$venv"/.installed-*
step python -m pip install -qq --no-build-isolation -e ".[$extras]" ||
    fail "the installation failed; the lines above say why. Without the C++ kernels: HEADRACE_NATIVE=OFF make ..."

step python -c 'from headrace.ops.cpu_features import detect; print(detect().describe(), bool(detect().kernels), sep="\n")'
sed '$d' "$log"
if [ "$(tail -n 1 "$log")" = False ]; then
    echo "     To build them: install what is missing (g++ or clang++, python3-dev), then run: make native"
    if [ "$extras" != dev ]; then
        echo "setup: installing torch, which runs models in their place; the download takes minutes"
        install_lines 'import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["torch"], sep="\n")' ||
            fail "torch could not be installed; the lines above say why."
    fi
fi
for made in ${stamp:+"$venv/.installed-server-${stamp##*-}" "$stamp"}; do touch "$made"; done
echo "setup: done in $SECONDS s"
