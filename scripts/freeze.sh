#!/usr/bin/env bash
# Writes constraints.txt from what is installed in .venv (names and versions: no addresses, no local version labels), then
# the hashes of both constraints files. The index must hold every file of each version, as pypi.org does.
#
#   scripts/freeze.sh hashes    only the hashes
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" != hashes ]; then
    {
        echo "# The versions that were tested together, on Python 3.11 and 3.12. Names and versions only: the index is the user's."
        echo "# Renew: scripts/freeze.sh"
        .venv/bin/python -m pip freeze --exclude-editable --exclude orchestra | sed 's/+[a-z0-9.]*$//' | grep '=='
    } >constraints.txt.partial
    mv constraints.txt.partial constraints.txt
fi

# torch has one version and other files at each index (CPU, CUDA): the index that is chosen answers for it.
for file in constraints.txt scripts/vllm-constraints.txt; do
    target=${file%.txt}-hashes.txt
    {
        echo "# ${file##*/} with the SHA-256 of every file of each version. Renew: scripts/freeze.sh hashes"
        .venv/bin/uv pip compile "$file" --no-deps --generate-hashes --no-annotate --no-header --quiet |
            awk '/^[^ ]/ { bare = /^torch==/ } !bare { print } /^torch==/ { print $1 }'
    } >"$target.partial"
    mv "$target.partial" "$target"
done
