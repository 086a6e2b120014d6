"""A register of objects by name: filled by a decorator, from every file of one folder."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Generic, TypeVar

from orchestra.errors import ConfigError

T = TypeVar("T")


class Register(Mapping[str, T], Generic[T]):
    """Entries by name, in the order of their files and, within a file, of their lines.

    The files of `folder`, a package, are imported when an entry is looked up, so a new file stands in no list.
    """

    def __init__(self, what: str, folder: str, where: str) -> None:
        self._what, self._folder, self._where = what, folder, where
        self._entries: dict[str, tuple[str, T]] = {}

    def add(self, name: str, entry: T, module: str) -> None:
        """`module`: the `__module__` of what is decorated. Raises `ConfigError` for a name that is taken."""
        if name in self._entries:
            earlier = self._entries[name][0]
            what = f"two have the name {name}: the {self._what} of {earlier}, and this one"
            raise ConfigError(what, where=module, fix="rename one of them")
        self._entries[name] = (module, entry)

    def find(self, name: str) -> T:
        """Raises `ConfigError` with the names that exist."""
        try:
            return self[name]
        except KeyError:
            fix = f"one of: {', '.join(self)}"
            raise ConfigError(f"no {self._what} named {name}", where=self._where, fix=fix) from None

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            self._load()
        return self._entries[name][1]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._entries, key=lambda name: self._entries[name][0]))

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def _load(self) -> None:
        for module in iter_modules(import_module(self._folder).__path__, f"{self._folder}."):
            import_module(module.name)
