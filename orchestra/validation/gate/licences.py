"""Which licences data may have: a list in a file, by name and, where it must be accepted first, by source."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from orchestra.errors import ConfigError
from orchestra.files.tables import problem
from orchestra.files.yaml import load_yaml
from orchestra.types import Record


class Licence(Record):
    """One licence."""

    id: str
    """As SPDX writes it, where it has a name there."""
    names: tuple[str, ...] = ()
    """Other ways to write it."""
    sources: tuple[str, ...] | None = None
    """Only for data of these sources (or parts of them, `source/…`); None: for any."""


class LicenceFile(Record):
    """The layout of data/licences.yaml."""

    licences: tuple[Licence, ...]


@dataclass(frozen=True)
class Licences:
    """The list, by normalised name."""

    allowed: dict[str, Licence]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises `ConfigError` of one line."""
        try:
            file = LicenceFile.model_validate(load_yaml(path, if_missing="restore it: git checkout"))
        except ValidationError as error:
            raise ConfigError(problem(error), where=str(path), fix="fix that entry") from None
        return cls({_plain(name): one for one in file.licences for name in (one.id, *one.names)})

    def refuse(self, licence: str, source: str) -> str | None:
        """Why data of that licence and source must not be used; None when it may."""
        found = self.allowed.get(_plain(licence))
        if found is None:
            return f"the licence {licence.strip()[:40] or 'unknown'} is not on the list"
        if found.sources is not None and not any(
            source == one or source.startswith(f"{one}/") for one in found.sources
        ):
            return f"the licence {found.id} is on the list for other sources only"
        return None


def _plain(name: str) -> str:
    """Case, spaces, dashes and the word licence do not matter: `Apache License 2.0` is `apache-2.0`."""
    return "".join(part for part in name.casefold().replace("-", " ").replace("_", " ").split() if part[:5] != "licen")
