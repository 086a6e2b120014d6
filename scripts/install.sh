# Installs packages with uv, or with pip where uv cannot. The scripts setup.sh and setup_vllm.sh source this file.

install_home=$(CDPATH= cd -- "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# choose_installer VENV LABEL LOG: take the uv of VENV or of .venv, or install it into VENV. LABEL begins each message.
choose_installer() {
    local place settings
    installer_python=$1/bin/python installer_label=$2 installer_log=$3 uv=$1/bin/uv
    for place in .venv "$1"; do
        if [ -x "$place/bin/uv" ]; then uv=$place/bin/uv; fi
    done
    if [ ! -x "$uv" ] && ! pip_install "$(grep '^uv==' "$install_home/constraints.txt")"; then
        use_pip "uv cannot be installed"
    elif settings=$("$installer_python" "$install_home/scripts/pip_settings.py" 2>> "$installer_log"); then
        eval "$settings"
    else
        use_pip "pip's settings cannot be read"
    fi
}

# install_packages ARGUMENTS…: what `pip install` takes. The output goes to the log. uv holds each file to the hashes
# beside the constraints, unless ORCHESTRA_UNHASHED=1; pip would hold the editable package to them too, which has none.
install_packages() {
    if [ -n "$uv" ]; then
        with_hashes "$@"
        "$uv" pip install --quiet --python "$installer_python" ${uv_options[@]+"${uv_options[@]}"} "${hashed[@]}" >> "$installer_log" 2>&1 && return
        if grep -q "Hash mismatch" "$installer_log"; then
            echo "$installer_label: error: a file is not the one that was tested (see $installer_log):" \
                "use another index, or trust this one: ORCHESTRA_UNHASHED=1" >&2
            return 1
        fi
        use_pip "uv failed"
    fi
    pip_install "$@"
}

# with_hashes ARGUMENTS…: the arguments in `hashed`, each constraints file replaced by the one that also holds hashes.
with_hashes() {
    local argument
    hashed=()
    for argument in "$@"; do
        if [ "${ORCHESTRA_UNHASHED:-0}" != 1 ] && [[ $argument == *constraints.txt && -f ${argument%.txt}-hashes.txt ]]; then
            argument=${argument%.txt}-hashes.txt
        fi
        hashed+=("$argument")
    done
}

# No byte code: modules compile at their first import, and most are never imported.
pip_install() {
    "$installer_python" -m pip --disable-pip-version-check install --no-input --no-compile --quiet "$@" >> "$installer_log" 2>&1
}

use_pip() {
    uv=""
    echo "$installer_label: $1 (see $installer_log): pip installs instead, which takes minutes longer and checks no hash" >&2
}
