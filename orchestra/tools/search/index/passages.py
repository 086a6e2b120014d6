"""The passages of an index: JSON lines that are read in place, each by its number."""

import mmap
from array import array
from pathlib import Path
from typing import Self

from orchestra.tools.search.corpus import Document

LINES, OFFSETS = "passages.jsonl", "passages.offsets.npy"
FILES = (LINES, OFFSETS)


def searched(passage: Document) -> str:
    """What of a passage is indexed."""
    return f"{passage.title} {passage.text}"


class PassageWriter:
    """Writes passages as they come; what it keeps of each is where it begins."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._offsets = folder, array("q", [0])
        self._file = (folder / LINES).open("wb")

    def add(self, passage: Document) -> None:
        line = passage.model_dump_json().encode() + b"\n"
        self._file.write(line)
        self._offsets.append(self._offsets[-1] + len(line))

    def finish(self) -> int:
        """Write where they begin; returns how many there are."""
        import numpy as np

        self.close()
        np.save(self._folder / OFFSETS, np.frombuffer(self._offsets, dtype=np.int64))
        return len(self._offsets) - 1

    def close(self) -> None:
        self._file.close()


class Passages:
    """The passages of a folder, memory-mapped."""

    def __init__(self, lines: mmap.mmap, offsets: memoryview) -> None:
        self._lines, self._offsets = lines, offsets

    @classmethod
    def open(cls, folder: Path) -> Self:
        import numpy as np

        with (folder / LINES).open("rb") as file:
            lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return cls(lines, memoryview(np.load(folder / OFFSETS, mmap_mode="r")))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> Document:
        return Document.model_validate_json(self._lines[self._offsets[number] : self._offsets[number + 1]])
