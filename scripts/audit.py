"""Ask the advisory database about every pinned version; say so plainly where none can be reached."""

import json
import subprocess
import sys
from pathlib import Path

TOOL = "pip-audit==2.10.1"
ROOT = Path(__file__).parents[1]
PINS = ("constraints.txt", "scripts/vllm-constraints.txt")
UV = Path(sys.executable).with_name("uv")
FIX = '.venv/bin/python -m pip install "$(grep ^uv== constraints.txt)"'
KNOWN, NOT_ASKED = 1, 2
"""Exit codes: something is known; nobody could be asked."""


def verdict(report: str) -> tuple[int, list[str]]:
    """Exit code and lines for what pip-audit printed as JSON.

    It calls a package that the database does not know "skipped" and ends with 0: where all are, nobody was asked.
    """
    try:
        packages = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        packages = []
    asked = [one for one in packages if "skip_reason" not in one]
    if not asked:
        return NOT_ASKED, ["the advisory database cannot be reached: nothing was audited"]
    found = [
        f"{one['name']} {one['version']}: {known['id']}, fixed in {', '.join(known['fix_versions']) or 'no version'}"
        for one in asked
        for known in one["vulns"]
    ]
    skipped = [one["name"] for one in packages if "skip_reason" in one]
    lines = found or [f"nothing is known about {len(asked)} packages"]
    return KNOWN if found else 0, lines + ([f"not asked about: {', '.join(skipped)}"] if skipped else [])


def report_on(pins: Path) -> str:
    """What pip-audit prints about a file of pinned versions; it runs in an environment of its own."""
    command = [
        *(str(UV), "tool", "run", "--from", TOOL, "pip-audit"),
        *("--progress-spinner=off", "--disable-pip", "--no-deps", "--format=json", "--requirement", str(pins)),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def main() -> int:
    """The worst verdict on the files of pins."""
    if not UV.is_file():
        print(f"audit: {UV.name} is not installed, as setup fell back to pip: nothing was audited — {FIX}", flush=True)
        return NOT_ASKED
    codes = []
    for name in PINS:
        code, lines = verdict(report_on(ROOT / name))
        print(*(f"audit: {name}: {line}" for line in lines), sep="\n", flush=True)
        codes.append(code)
    return min(codes, key=(KNOWN, NOT_ASKED, 0).index)


if __name__ == "__main__":
    sys.exit(main())
