"""The gateway's process: `python -m orchestra.serving --root . --port 8800`."""

import argparse
import asyncio
import ipaddress
import logging
import socket
import sys
from pathlib import Path

from orchestra.errors import ConfigError, OrchestraError, ServiceError
from orchestra.serving.app import ByPort, create_app, create_control
from orchestra.serving.gateway import Gateway
from orchestra.serving.releases import control_channel
from orchestra.serving.releases.state import SERVING, read
from orchestra.serving.wire.guard import LOCAL_NAMES
from orchestra.system.environment import quiet
from orchestra.system.processes import LOCALHOST, server_socket
from orchestra.system.storage import storage_named
from orchestra.text import PlainFormatter


def main(argv: list[str] | None = None) -> None:
    """Serve until told to end; requests under way are finished first (30 s at most)."""
    parser = argparse.ArgumentParser(prog="python -m orchestra.serving", description=main.__doc__)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the workspace")
    parser.add_argument("--config", default=SERVING, help="what to serve, below the root")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--allow-host", action="append", default=[], help="a name that callers address it by; * is any")
    parser.add_argument(
        "--vllm-url",
        action="append",
        default=[],
        help="a model server that others keep up; its key is in VLLM_API_KEY; several: replicas of one model",
    )
    parser.add_argument("--takeover", action="store_true", help="listen only when loaded, beside the gateway there is")
    args = parser.parse_args(argv)
    quiet()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
    import uvicorn

    from orchestra.serving.wire.connection import BoundedProtocol, GracefulServer

    root = args.root.resolve()
    try:
        serving = read(root / args.config)
        deploy = None if serving is None else serving.parsed.deploy
        limits, tracing = (None, None) if deploy is None else (deploy.gateway, deploy.tracing)
        with storage_named(root):
            gateway = Gateway(root, args.config, limits=limits, tracing=tracing, vllm_urls=args.vllm_url)
        if not ipaddress.ip_address(args.host).is_loopback and not gateway.keys.required:
            fix = "orchestra keys create NAME, or set deploy.host to 127.0.0.1"
            raise ConfigError(f"{args.host} is open to others, and there are no API keys", where="deploy.host", fix=fix)
        sockets = [_bind(args.host, args.port), _bind(LOCALHOST, 0)]
        if args.takeover:
            asyncio.run(gateway.load())
        tls = deploy is not None and deploy.tls_key is not None
        port = sockets[1].getsockname()[1]
        channel = control_channel.open_channel(root, f"http{'s' if tls else ''}://{LOCALHOST}:{port}")
    except OrchestraError as error:
        sys.exit(f"Error: {error}")
    hosts = (*LOCAL_NAMES, args.host, *args.allow_host, *(() if deploy is None else deploy.hosts))
    config = uvicorn.Config(
        ByPort(create_app(gateway, hosts=hosts), {port: create_control(gateway, channel.token)}),
        http=BoundedProtocol,
        ws="none",
        timeout_graceful_shutdown=30,
        access_log=False,
        log_config=None,
        ssl_certfile=deploy.tls_certificate if deploy is not None and tls else None,
        ssl_keyfile=deploy.tls_key if deploy is not None and tls else None,
    )
    try:
        GracefulServer(config).run(sockets=sockets)
    finally:
        control_channel.close_channel(root)


def _bind(host: str, port: int) -> socket.socket:
    """A socket that does not listen yet; another gateway of this user may hold the port, to be taken over."""
    sock = server_socket(host)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        raise ServiceError(f"port {port}: {error.strerror}", where=host, fix="set deploy.gateway_port") from None
    return sock


if __name__ == "__main__":
    main()
