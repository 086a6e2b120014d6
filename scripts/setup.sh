#!/usr/bin/env bash
# Makes or repairs .venv, held by constraints.txt. Safe to repeat.
set -euo pipefail
CDPATH= cd -- "$(dirname "$0")/.."
source scripts/install.sh
began=$SECONDS
log=.state/logs/setup.log
fits='import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))'

if ! .venv/bin/python -c "$fits" 2>/dev/null; then
    python=""
    for candidate in "${PYTHON:-python3}" python3.12 python3.11; do
        if "$candidate" -c "$fits" >/dev/null 2>&1; then python=$candidate && break; fi
    done
    if [ -z "$python" ]; then
        echo "error: no Python 3.11 or 3.12 with venv found — install one, or name it: make setup PYTHON=/path/to/python3.12" >&2
        exit 2
    fi
    echo "setup: .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv
fi

mkdir -p .state/logs
: >"$log"
choose_installer .venv setup "$log"
echo "setup: the packages, 2.2 GB (log: $log)"
# torch is asked for exactly: an open range takes CUDA builds of several GB.
if ! install_packages --constraint constraints.txt "$(grep '^torch==' constraints.txt)" --editable '.[serve,dev]'; then
    tail -n 20 "$log" >&2
    echo "setup: error: the packages cannot be installed — see above and $log" >&2
    exit 1
fi
# Modules compile at their first import (16 s in all; all of them would take a minute). Where that is off, every start would.
if [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then
    echo "setup: byte code (PYTHONDONTWRITEBYTECODE is set)"
    .venv/bin/python -m compileall -q -j 2 .venv/lib >>"$log" 2>&1 || true
fi
.venv/bin/python -m pip check >/dev/null || .venv/bin/python -m pip check
touch .venv/.stamp
echo "setup: .venv is ready after $((SECONDS - began)) s"
