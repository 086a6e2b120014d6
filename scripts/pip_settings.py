"""Print pip's settings as lines of shell that hand them on to uv."""

import ast
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SECTIONS = ("global", "install", ":env:")
"""The sections of `pip config list` that `pip install` reads; a later one replaces what an earlier one says."""

VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "retries": "UV_HTTP_RETRIES",
    "keyring-provider": "UV_KEYRING_PROVIDER",
    "client-cert": "SSL_CLIENT_CERT",
}
"""uv's variable for pip's setting."""

SWITCHES = {"no-index": "--no-index", "require-hashes": "--require-hashes", "pre": "--prerelease=allow"}
"""uv's option for pip's setting that is on or off; uv has no variable for these."""

LISTS = {"constraint": "--constraint", "no-binary": "--no-binary", "only-binary": "--only-binary"}
"""uv's option, given once for each value."""


def pip_settings(listing: str) -> dict[str, str]:
    """The settings that `pip install` would use, from what `pip config list` printed. Empty ones are left out."""
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listing.splitlines():
        key, equals, value = line.partition("=")
        section, _, name = key.partition(".")
        if equals and section in found and (text := str(ast.literal_eval(value)).strip()):
            found[section][name] = text
    return {name: value for section in SECTIONS for name, value in found[section].items()}


def uv_variables(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables for uv. A `UV_…` that the user has set stays as it is."""
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # pip's own: the best version of all indexes
    for name, variable in VARIABLES.items():
        if name in settings:
            variables[variable] = (",".join if name == "find-links" else " ".join)(settings[name].split())
    if proxy := settings.get("proxy"):
        variables |= {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy}
    # What pip's HTTP library reads, where pip itself is told nothing.
    trusted = settings.get("cert") or environment.get("REQUESTS_CA_BUNDLE") or environment.get("CURL_CA_BUNDLE")
    if trusted:
        variables["SSL_CERT_DIR" if Path(trusted).is_dir() else "SSL_CERT_FILE"] = trusted
    if is_on(settings.get("no-cache-dir")):
        variables["UV_NO_CACHE"] = "true"
    return {name: value for name, value in variables.items() if not (name.startswith("UV_") and environment.get(name))}


def uv_options(settings: Mapping[str, str]) -> list[str]:
    """Options of `uv pip install`."""
    switches = [option for name, option in SWITCHES.items() if is_on(settings.get(name))]
    return switches + [
        f"{option}={value}" for name, option in LISTS.items() for value in settings.get(name, "").split()
    ]


def is_on(value: str | None) -> bool:
    """Whether pip reads a value as true."""
    return (value or "").lower() in {"1", "true", "yes", "on", "y", "t"}


def main() -> None:
    """Ask the pip of this interpreter, and print. Raises `CalledProcessError` where it cannot read its settings."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    settings = pip_settings(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for name, value in uv_variables(settings, os.environ).items():
        print(f"export {name}={shlex.quote(value)}")
    print(f"uv_options=({shlex.join(uv_options(settings))})")


if __name__ == "__main__":
    main()
