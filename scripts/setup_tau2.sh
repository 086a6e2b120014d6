#!/usr/bin/env bash
# Makes .venv-tau2: tau2-bench 1.0.1 and its data, from its repository or a copy of it, in an environment of its own.
#
#   scripts/setup_tau2.sh [ARCHIVE|FOLDER]    default: the release on GitHub; PYTHON names a Python of at least 3.12
#
# The package that PyPI calls tau2 is another one. Nothing of the benchmark is shipped with this repository.
set -euo pipefail
CDPATH= cd -- "$(dirname "$0")/.."
source scripts/install.sh
log=.state/logs/setup-tau2.log
version=1.0.1
source=${1:-https://github.com/sierra-research/tau2-bench/archive/refs/tags/v$version.tar.gz}
python=${PYTHON:-python3.12}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null || {
  echo "setup_tau2: tau2-bench needs Python 3.12 or newer: name one with PYTHON=" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
case $source in
  http*) curl -fsSL "$source" | tar xz -C "$work" ;;
  *) if [ -d "$source" ]; then cp -r "$source" "$work/"; else tar xf "$source" -C "$work"; fi ;;
esac
release=$(dirname "$(find "$work" -maxdepth 2 -name pyproject.toml | head -1)")
grep -q "^version = \"$version\"" "$release/pyproject.toml" || {
  echo "setup_tau2: $source is not tau2-bench $version" >&2; exit 2; }
rm -rf .venv-tau2
"$python" -m venv .venv-tau2
mkdir -p .state/logs
: > "$log"
choose_installer .venv-tau2 setup_tau2 "$log"
install_packages "$release[knowledge,gym]" || { echo "setup_tau2: error: $(tail -n 1 "$log") (see $log)" >&2; exit 1; }
mkdir -p .venv-tau2/data
cp -r "$release/data/tau2" .venv-tau2/data/
echo "setup_tau2: orchestra evaluate --benchmark tau2 can run"
