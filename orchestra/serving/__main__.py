"""The gateway's process: `python -m orchestra.serving --root . --port 8800`."""

import argparse
import asyncio
import logging
import socket
import sys
from pathlib import Path

from orchestra.errors import OrchestraError, ServiceError
from orchestra.serving.app import create_app
from orchestra.serving.gateway import Gateway
from orchestra.serving.state import SERVING
from orchestra.system.environment import quiet
from orchestra.text import PlainFormatter


def main(argv: list[str] | None = None) -> None:
    """Serve until told to end; requests under way are finished first (30 s at most)."""
    parser = argparse.ArgumentParser(prog="python -m orchestra.serving", description=main.__doc__)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the workspace")
    parser.add_argument("--config", default=SERVING, help="what to serve, below the root")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--takeover", action="store_true", help="listen only when loaded, beside the gateway there is")
    args = parser.parse_args(argv)
    quiet()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
    import uvicorn

    gateway = Gateway(args.root.resolve(), args.config)
    try:
        sock = _bind(args.host, args.port)
        if args.takeover:
            asyncio.run(gateway.load())
    except OrchestraError as error:
        sys.exit(f"Error: {error}")
    app = create_app(gateway, load=not args.takeover)
    config = uvicorn.Config(app, timeout_graceful_shutdown=30, access_log=False)
    uvicorn.Server(config).run(sockets=[sock])


def _bind(host: str, port: int) -> socket.socket:
    """A socket that does not listen yet; another gateway of this user may hold the port, to be taken over."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        raise ServiceError(f"port {port}: {error.strerror}", where=host, fix="set deploy.gateway_port") from None
    return sock


if __name__ == "__main__":
    main()
