"""The gateway's process: `python -m orchestra.serving --root .`, on the address and port of what is served."""

import argparse
import asyncio
import contextlib
import ipaddress
import logging
import os
import shutil
import socket
import ssl
import stat
import sys
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from orchestra.config.deploy import Deploy, host_name
from orchestra.config.schema import load_params
from orchestra.errors import ConfigError, OrchestraError, PlainFormatter, ServiceError
from orchestra.serving.app import ByPort, create_app, create_control
from orchestra.serving.gateway import Gateway
from orchestra.serving.releases import control_channel
from orchestra.serving.releases.control import succeeded
from orchestra.serving.releases.state import SERVING, gateway_code, read
from orchestra.serving.wire.guard import LOCAL_NAMES
from orchestra.system.environment import quiet, raise_file_limit
from orchestra.system.processes import LOCALHOST, server_socket
from orchestra.system.storage import storage_named
from orchestra.system.workspace import check_surroundings

ENDS_S = 30
"""Seconds that requests under way have when the gateway is told to end, unless the command line says more."""
LATER_S = 60
"""Seconds beyond `deploy.drain_s` that they have after a takeover: the release ends the wait, and tells what it cut."""
MAX_LOG = 16_000_000
"""Bytes of the log, after which it begins again; the log before is kept beside it as `<name>.1`."""


class LogHandler(logging.StreamHandler[TextIO]):
    """Lines on standard error; where that is a log of the workspace it stays bounded, whoever causes the lines."""

    def __init__(self, stream: TextIO, root: Path) -> None:
        super().__init__(stream)
        self._file, self._most = _own_log(stream, root), MAX_LOG

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            out = self.stream.fileno()
            size = os.fstat(out).st_size
            if size <= self._most:
                return
            # Where the copy fails the log stays whole, and the next try comes when it has grown by as much again.
            self._most = size + MAX_LOG
            shutil.copyfile(f"/proc/self/fd/{out}", f"{self._file}.1")
            os.ftruncate(out, 0)
            os.lseek(out, 0, os.SEEK_SET)
            self._most = MAX_LOG


def _own_log(stream: TextIO, root: Path) -> Path | None:
    """The file in `.state/logs` that it writes; None for any other, which may be another program's too."""
    try:
        out = stream.fileno()
        file = Path(os.readlink(f"/proc/self/fd/{out}"))
        own = stat.S_ISREG(os.fstat(out).st_mode) and file.parent == (root / ".state/logs").resolve()
    except OSError:
        return None
    return file if own else None


def _host(text: str) -> str:
    try:
        return host_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def main(argv: list[str] | None = None) -> None:
    """Serve until told to end; requests under way are finished (in --grace-s; after a takeover in drain_s and a
    minute)."""
    parser = argparse.ArgumentParser(prog="python -m orchestra.serving", description=main.__doc__)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the workspace")
    parser.add_argument("--config", default=SERVING, help="what to serve, below the root")
    parser.add_argument("--host", help="IP address to listen on; default: deploy.host of what is served")
    parser.add_argument("--port", type=int, help="0 is any free one; default: deploy.gateway_port of what is served")
    allowed = "a name that callers address it by; * is any"
    parser.add_argument("--allow-host", action="append", default=[], type=_host, help=allowed)
    parser.add_argument(
        "--vllm-url",
        action="append",
        default=[],
        help="a model server that others keep up; its key is in VLLM_API_KEY; several: replicas of one model",
    )
    more = f"seconds that requests under way have when it is told to end; default: {ENDS_S}"
    parser.add_argument("--grace-s", type=_seconds, default=ENDS_S, help=more)
    parser.add_argument("--takeover", action="store_true", help="listen only when loaded, beside the gateway there is")
    args = parser.parse_args(argv)
    quiet()
    raise_file_limit()
    root = args.root.resolve()
    handler = LogHandler(sys.stderr, root)
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
    import uvicorn

    from orchestra.serving.wire.connection import BoundedProtocol, GracefulServer, most_arriving

    try:
        check_surroundings(root)
        deploy = _settings(root, args.config)
        host, port = _listened(args.host, args.port, deploy)
        certificate = None if deploy is None else _certificate(root, deploy)
        settings: dict[str, Any] = {}
        if deploy is not None:
            settings = {"limits": deploy.gateway, "tracing": deploy.tracing, "code": gateway_code(deploy)}
        with storage_named(root):
            gateway = Gateway(root, args.config, vllm_urls=args.vllm_url, **settings)
        if not ipaddress.ip_address(host).is_loopback and not gateway.keys.required:
            fix = "orchestra keys create NAME, or set deploy.host to 127.0.0.1"
            raise ConfigError(f"{host} is open to others, and there are no API keys", where="deploy.host", fix=fix)
        sockets = [_bind(host, port), _bind(LOCALHOST, 0)]
        if args.takeover:
            asyncio.run(gateway.load())
        public, control = (
            control_channel.address(at, sock.getsockname()[1], tls=certificate is not None)
            for at, sock in zip((host, LOCALHOST), sockets, strict=True)
        )
        channel = control_channel.open_channel(root, control, public, args.vllm_url)
    except OrchestraError as error:
        sys.exit(f"Error: {error}")
    hosts = (*LOCAL_NAMES, host, *args.allow_host, *(() if deploy is None else deploy.hosts))
    config = uvicorn.Config(
        ByPort(create_app(gateway, hosts=hosts), {sockets[1].getsockname()[1]: create_control(gateway, channel.token)}),
        http=BoundedProtocol,
        backlog=most_arriving(),
        ws="none",
        access_log=False,
        log_config=None,
        ssl_certfile=certificate and certificate[0],
        ssl_keyfile=certificate and certificate[1],
    )

    try:
        patience_s = partial(_patience_s, root, deploy, args.grace_s)
        server = GracefulServer(config, takeover=args.takeover, patience_s=patience_s)
        server.run(sockets=sockets)
    finally:
        control_channel.close_channel(root)


def _seconds(said: str) -> int:
    """Whole seconds, at least 1."""
    if not said.isdecimal() or int(said) == 0:
        raise argparse.ArgumentTypeError(f"{said!r} is not a whole number of seconds above 0")
    return int(said)


def _patience_s(root: Path, deploy: Deploy | None, grace_s: int) -> int:
    """Seconds that requests under way have when this process is told to end."""
    return deploy.drain_s + LATER_S if deploy is not None and succeeded(root) else grace_s


def _settings(root: Path, config: str) -> Deploy | None:
    """`deploy` of what is served; before the first release that of params.yaml, where there is one."""
    serving, params = read(root / config), root / "params.yaml"
    if serving is not None:
        return serving.parsed.deploy
    return load_params(params).deploy if params.is_file() else None


def _listened(host: str | None, port: int | None, deploy: Deploy | None) -> tuple[str, int]:
    """Address and port, as the command line says or else `deploy`."""
    host = host or (LOCALHOST if deploy is None else deploy.host)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        fix = "127.0.0.1 is this machine alone, 0.0.0.0 each of its addresses"
        raise ConfigError(f"{host} is no IP address", where="--host", fix=fix) from None
    if port is None and deploy is None:
        raise ConfigError("nothing was released, so no port is known", where="--port", fix="--port 8800")
    if port is None and deploy is not None and (port := deploy.gateway_port) == 0:
        fix = "--port 8800, or name a port in params.yaml and release"
        raise ConfigError("it is 0, so no port is known", where="deploy.gateway_port", fix=fix)
    return host, port or 0


def _certificate(root: Path, deploy: Deploy) -> tuple[Path, Path] | None:
    """The files of the certificate and its key, which were read; None for plain HTTP."""
    if deploy.tls_certificate is None or deploy.tls_key is None:
        return None
    found = root / deploy.tls_certificate, root / deploy.tls_key
    for setting, file in zip(("tls_certificate", "tls_key"), found, strict=True):
        try:
            file.read_bytes()
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror}", where=f"deploy.{setting}", fix="name a PEM file") from None
    try:
        # An empty password, or OpenSSL would ask the terminal for that of an encrypted key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*found, password="")
    except (ssl.SSLError, ValueError) as error:
        what = f"{found[0]} and {found[1]} are no certificate and its key: {error}"
        raise ConfigError(
            what, where="deploy.tls_key", fix="PEM files that belong together, without a password"
        ) from None
    return found


def _bind(host: str, port: int) -> socket.socket:
    """A socket that does not listen yet; another gateway of this user may hold the port, to be taken over."""
    try:
        sock = server_socket(host)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
    except OSError as error:
        raise ServiceError(f"port {port}: {error.strerror}", where=host, fix="set deploy.gateway_port") from None
    return sock


if __name__ == "__main__":
    main()
