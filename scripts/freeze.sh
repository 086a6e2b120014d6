#!/usr/bin/env bash
# Writes constraints.txt from what is installed in .venv: names and versions, no addresses, no local version labels.
set -euo pipefail
cd "$(dirname "$0")/.."
{
    echo "# The versions that were tested together, on Python 3.11 and 3.12. Names and versions only: the index is the user's."
    echo "# Renew: scripts/freeze.sh"
    .venv/bin/python -m pip freeze --exclude-editable --exclude orchestra | sed 's/+[a-z0-9.]*$//' | grep '=='
} >constraints.txt.partial
mv constraints.txt.partial constraints.txt
