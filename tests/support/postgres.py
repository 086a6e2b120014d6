"""A real PostgreSQL for tests: its own folder, its own port on 127.0.0.1, an unprivileged user."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from orchestra.system.processes import LOCALHOST, free_port
from tests.support.waiting import soon

USER, DATABASE = "orchestra", "mlflow"
UNPRIVILEGED = "nobody"
"""PostgreSQL refuses to run as root."""


def binaries() -> Path | None:
    """The folder of initdb and postgres, the newest; None where PostgreSQL is not installed."""
    found = [Path(name).resolve().parent for name in (shutil.which("initdb"), shutil.which("postgres")) if name]
    # Debian keeps them out of PATH.
    places = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), *found]
    return next((place for place in places if (place / "initdb").is_file() and (place / "postgres").is_file()), None)


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The address of an empty database with a password; server and files go at the end."""
    place, port, password = binaries(), free_port(), secrets.token_hex(8)
    assert place is not None
    whose: dict[str, str | int] = {"user": UNPRIVILEGED, "group": "nogroup"} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        data, key, log = Path(folder) / "data", Path(folder) / "password", Path(folder) / "log"
        key.write_text(password, encoding="utf-8")
        if whose:
            for path in (Path(folder), key):
                shutil.chown(path, UNPRIVILEGED)
        make = [str(place / "initdb"), "-D", str(data), "-U", USER, "-A", "scram-sha-256", f"--pwfile={key}", "-N"]
        subprocess.run(make, check=True, capture_output=True, timeout=240, cwd=folder, **whose)  # type: ignore[call-overload]
        serve = [str(place / "postgres"), "-D", str(data), "-h", LOCALHOST, "-p", str(port), "-F", "-k", folder]
        with log.open("w") as out:
            server = subprocess.Popen(serve, stdout=out, stderr=out, cwd=folder, **whose)  # type: ignore[call-overload]
        try:
            address: dict[str, str | int] = {"host": LOCALHOST, "port": port, "user": USER, "password": password}
            assert soon(lambda: _made(address), 120), log.read_text(encoding="utf-8")
            yield f"postgresql://{USER}:{password}@{LOCALHOST}:{port}/{DATABASE}"
        finally:
            # Its fast end: SIGTERM would wait for MLflow's pooled connections.
            server.send_signal(signal.SIGINT)
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _made(address: dict[str, str | int]) -> bool:
    """Whether the server answers; the database is there then."""
    import psycopg2

    try:
        with contextlib.closing(psycopg2.connect(dbname="postgres", **address)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(f"CREATE DATABASE {DATABASE}")
    except psycopg2.errors.DuplicateDatabase:
        return True
    except psycopg2.OperationalError:
        return False
    return True
