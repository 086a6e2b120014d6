#!/usr/bin/env bash
# Writes constraints.txt from what is installed in .venv (names and versions: no addresses, no local version labels), then
# the hashes of both constraints files. The index must hold every file of each version, as pypi.org does.
#
#   scripts/freeze.sh hashes    only the hashes
set -euo pipefail
CDPATH= cd -- "$(dirname "$0")/.."

if [ "${1:-}" != hashes ]; then
    {
        echo "# The versions that were tested together, on Python 3.11 and 3.12. Names and versions only: the index is the user's."
        echo "# Renew: scripts/freeze.sh"
        .venv/bin/python -m pip freeze --exclude-editable --exclude orchestra | sed 's/+[a-z0-9.]*$//' | grep '=='
    } >constraints.txt.partial
    mv constraints.txt.partial constraints.txt
fi

hashed() {
    .venv/bin/uv pip compile "$@" --no-deps --generate-hashes --no-annotate --no-header --quiet
}

# torch has one version and other files at each index (CPU, CUDA). TORCH_INDEX names the index of the CPU builds: then
# torch has the hashes of both. Without it torch has none, and the index that is chosen answers for it.
torch() {
    [ -n "${TORCH_INDEX:-}" ] || { cat "$1" && return; }
    # A platform that has no CPU build of its own gives the files of the default index.
    { hashed "$1" --python-platform aarch64-manylinux_2_28 && hashed "$1" --no-config --default-index "$TORCH_INDEX"; } |
        grep -o -e '--hash=[^ ]*' | sort -u | awk -v line="$(cat "$1")" '{ printf "%s \\\n    %s", line, $0; line = "" } END { print "" }'
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for file in constraints.txt scripts/vllm-constraints.txt; do
    target=${file%.txt}-hashes.txt
    grep -o '^torch==[0-9.]*' "$file" >"$folder/torch.in"
    torch "$folder/torch.in" >"$folder/torch.txt"
    {
        echo "# ${file##*/} with the SHA-256 of every file of each version. Renew: scripts/freeze.sh hashes"
        hashed "$file" | awk -v torch="$folder/torch.txt" '/^[^ ]/ { bare = /^torch==/ } !bare { print }
            /^torch==/ { while ((getline line < torch) > 0) print line }'
    } >"$target.partial"
    mv "$target.partial" "$target"
done
