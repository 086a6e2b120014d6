#!/usr/bin/env bash
# Makes or fixes .venv: torch first and exactly, then the rest held by constraints.txt. Safe to repeat.
set -euo pipefail
cd "$(dirname "$0")/.."
began=$SECONDS
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

pip() { .venv/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt "$@"; }
echo "setup: torch (minutes on a slow network)"
pip "$(grep '^torch==' constraints.txt)"
echo "setup: the rest"
pip --editable '.[serve,dev]'
.venv/bin/python -m pip check >/dev/null || .venv/bin/python -m pip check
touch .venv/.stamp
echo "setup: .venv is ready after $((SECONDS - began)) s"
