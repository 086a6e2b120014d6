"""Profiles: named parameter files, of which one is in force as params.yaml, and the user's edits of the others."""

from pathlib import Path

from orchestra.config.schema import load_params
from orchestra.errors import ConfigError
from orchestra.files import atomic

SHIPPED, KEPT = Path("models/recipes"), Path("params")
"""Folders of the shipped profiles (`<profile>/params.yaml`), and of those that the user edited (`<profile>.yaml`)."""
IN_FORCE = Path("params.yaml")


def names(root: Path) -> list[str]:
    """Every profile that can be put in force, in alphabetical order."""
    shipped = {file.parent.name for file in (root / SHIPPED).glob(f"*/{IN_FORCE}")}
    kept = {file.stem for file in (root / KEPT).glob("*.yaml")}
    return sorted({*shipped, *kept, load_params(root / IN_FORCE).profile})


def profile_file(root: Path, name: str) -> Path:
    """Where a profile's parameters are: params.yaml when it is in force, else the user's copy, else the shipped file.

    Raises `ConfigError` for a name that no file has.
    """
    if name == load_params(root / IN_FORCE).profile:
        return root / IN_FORCE
    for file in (root / KEPT / f"{name}.yaml", root / SHIPPED / name / IN_FORCE):
        if file.is_file():
            return file
    raise ConfigError(f"no profile {name}", where="--profile", fix=f"one of: {', '.join(names(root))}")


def put_in_force(root: Path, name: str) -> list[str]:
    """Make params.yaml the profile `name`, and keep the one that it was in params/; returns what was done, by line.

    Each profile keeps its own edits: what comes back is the file as the user left it. Raises `ConfigError` when there
    is no such profile or its file is not valid; nothing is changed then.
    """
    file, target = profile_file(root, name), root / IN_FORCE
    if file == target:
        return []
    wanted = load_params(file)
    if wanted.profile != name:
        raise ConfigError(f"it says profile: {wanted.profile}", where=str(file), fix=f"write profile: {name}")
    before = load_params(target).profile
    text, lines = target.read_bytes(), []
    if not _as_shipped(root, before, text):
        atomic.write_bytes(root / KEPT / f"{before}.yaml", text)
        lines.append(f"params.yaml: profile {before} is kept in {KEPT / before}.yaml")
    # A link to a profile's own file is replaced: what it leads to is to stay that profile.
    own = any(target.resolve().is_relative_to((root / folder).resolve()) for folder in (SHIPPED, KEPT))
    (atomic.write_bytes if own else atomic.edit_bytes)(target, file.read_bytes())
    return [*lines, f"params.yaml: profile {name}, from {file.relative_to(root)}"]


def _as_shipped(root: Path, name: str, text: bytes) -> bool:
    """Whether a profile's text is that of its shipped file; a copy of earlier edits is then of no more use."""
    shipped = root / SHIPPED / name / IN_FORCE
    same = shipped.is_file() and shipped.read_bytes() == text
    if same:
        (root / KEPT / f"{name}.yaml").unlink(missing_ok=True)
    return same
