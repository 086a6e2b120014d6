#!/usr/bin/env bash
# Makes .venv-inspect: inspect_ai and inspect_evals, in an environment of their own (their fsspec is older than ours).
#
#   PYTHON=python3.11    the interpreter to build it with (3.11 or newer)
#
# Exit code: 0 done or unchanged; 1 failed, the reason in the last line.
set -euo pipefail
CDPATH= cd -- "$(dirname "$0")/.."
source scripts/install.sh
venv=.venv-inspect
stamp=$venv/.orchestra-stamp
log=.state/logs/setup-inspect.log
packages=(inspect_ai==0.3.285 inspect_evals==0.26.0 openai==3.54.0)
say() { echo "setup-inspect: $*"; }
fail() {
    say "error: $1 (see $log)" >&2
    exit 1
}
wanted=$(printf '%s\n' "${packages[@]}")
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    say "unchanged"
    exit 0
fi
mkdir -p .state/logs
: > "$log"
"${PYTHON:-python3}" -m venv --clear $venv >> "$log" 2>&1 || fail "python -m venv failed"
choose_installer $venv setup-inspect "$log"
install_packages "${packages[@]}" || fail "inspect cannot be installed: $(tail -n 1 "$log")"
$venv/bin/python -c "import inspect_evals.hle" >> "$log" 2>&1 || fail "inspect_evals does not import: $(tail -n 1 "$log")"
printf '%s\n' "$wanted" > "$stamp"
say "ready"
