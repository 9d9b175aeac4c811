#!/bin/sh
# Make the environment $VENV with everything pinned by constraints.txt and the PyTorch build named by $1:
# `cpu`, `cuda` (the build that PyPI carries), or a name that `uv pip install --torch-backend` knows.
set -eu

torch=$1
python=${PYTHON:-python3}
venv=${VENV:-.venv}

fail() {
    echo "setup: $1" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 ||
    fail "$python is not installed; Maquette needs Python 3.11 or newer (name another one: make setup PYTHON=...)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old; Maquette needs 3.11 or newer: make setup PYTHON=python3.11"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python comes without its venv module; install it (on Debian and Ubuntu: apt-get install python3-venv)"

# A wheel of the CPU build that the machine keeps for exactly this Python, if any.
local_cpu_wheel() {
    tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
    for folder in ${UV_FIND_LINKS:-}; do
        for wheel in "$folder"/torch-*+cpu-"$tag"-*"$(uname -m)".whl; do
            [ -e "$wheel" ] && return 0
        done
    done
    return 1
}

backend=
if [ "$torch" = cuda ]; then
    unset UV_FIND_LINKS # a local CPU build would win: `+cpu` sorts above PyPI's plain version
elif [ "$torch" != cpu ]; then
    backend=$torch
    unset UV_FIND_LINKS
elif [ "$(uname -s)" = Linux ] && ! local_cpu_wheel; then
    backend=cpu # PyPI's Linux wheel brings gigabytes of CUDA; on macOS it is the CPU build
fi

rm -f "$venv"/installed-*
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
"$venv/bin/uv" pip install --python "$venv" ${backend:+--torch-backend "$backend"} \
    -c constraints.txt -e '.[dev]' ||
    fail "installation failed, see above (PyTorch build: $torch). The same command goes on from here. Where
       PyTorch's own index cannot be reached but PyPI can, TORCH=cuda installs the build that PyPI carries"
