"""The files that Python needs: the binary, its standard library, and the shared libraries that those load."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

from orchestra.errors import ToolError

# Every extension module is loaded, and the dynamic linker tells what it loaded and where it found it: under these
# names it will look for them again. Tk is left out: it pulls in a window system.
PROBE = """
import ctypes, importlib, json, os, sys, zoneinfo
extensions = [path for path in sys.path if path.endswith("lib-dynload") and os.path.isdir(path)]
for name in {file.split(".")[0] for path in extensions for file in os.listdir(path)}:
    if not name.startswith(("_test", "_ctypes_test", "xx", "_xx", "_tkinter")):
        try:
            importlib.import_module(name)
        except ImportError:
            pass
try:
    ctypes.CDLL("libgcc_s.so.1")  # the C library loads it when a thread ends
except OSError:
    pass
class Library(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
found = []
tell = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Library), ctypes.c_size_t, ctypes.c_void_p)
ctypes.CDLL(None).dl_iterate_phdr(tell(lambda library, size, data: found.append(library[0].name.decode()) or 0), None)
folders = [os.path.dirname(os.__file__), *map(os.path.dirname, extensions)]
zones = [path for path in zoneinfo.TZPATH if os.path.isdir(path)]
print(json.dumps({"folders": folders, "libraries": [path for path in found if "/" in path], "zones": zones}))
"""
NOT_ITS_OWN = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class Interpreter:
    """One interpreter, as paths of this machine."""

    binary: str
    folders: tuple[str, ...]
    """Standard library and time zones."""
    libraries: tuple[str, ...]
    hidden: tuple[str, ...]
    """Folders inside `folders` that hold what others installed."""

    @property
    def readable(self) -> tuple[str, ...]:
        return (self.binary, *self.libraries, *self.folders)

    @property
    def environment(self) -> dict[str, str]:
        """Where its libraries are: the linker's cache is not among what it may read."""
        return {"LD_LIBRARY_PATH": ":".join(dict.fromkeys(os.path.dirname(path) for path in self.libraries))}


@cache
def this_interpreter() -> Interpreter:
    """The one that runs this process, without its virtual environment; asked once a process. Raises `ToolError`."""
    binary = os.path.realpath(sys.executable)
    try:
        told = subprocess.run(
            [binary, "-I", "-S", "-B", "-c", PROBE], capture_output=True, text=True, timeout=60, check=True
        )
        found = json.loads(told.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ToolError(f"cannot tell what {binary} needs: {error}", where="sandbox") from None
    folders = _outermost(found["folders"]) + tuple(found["zones"][:1])
    libraries = dict.fromkeys(os.path.normpath(path) for path in found["libraries"])
    hidden = (f"{folder}/{name}" for folder in folders for name in NOT_ITS_OWN)
    return Interpreter(
        binary,
        folders,
        tuple(path for path in libraries if not path.startswith(tuple(f"{folder}/" for folder in folders))),
        tuple(path for path in hidden if os.path.isdir(path)),
    )


def _outermost(paths: list[str]) -> tuple[str, ...]:
    """Without those inside another."""
    unique = dict.fromkeys(map(os.path.normpath, paths))
    return tuple(path for path in unique if not any(path.startswith(f"{other}/") for other in unique))
