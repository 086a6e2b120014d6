"""A mail server on this machine that keeps what it is sent: plain, or encrypted with a certificate of its own."""

import datetime
import email
import email.policy
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from ipaddress import ip_address
from pathlib import Path

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from orchestra.system.processes import LOCALHOST, free_port


@dataclass
class Mailbox:
    """What arrived, and who logged in."""

    port: int
    mails: list[EmailMessage] = field(default_factory=list)
    receivers: list[list[str]] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes)
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        self.mails.append(message)
        self.receivers.append(envelope.rcpt_tos)
        return "250 OK"

    @property
    def texts(self) -> list[str]:
        return [str(mail.get_content()) for mail in self.mails]


@contextmanager
def mailbox(login: tuple[str, str] | None = None, tls: ssl.SSLContext | None = None) -> Iterator[Mailbox]:
    """One on a port of its own; `login`: the only user and password it takes; `tls`: STARTTLS must come first."""
    box = Mailbox(free_port())

    def authenticate(*told: object) -> AuthResult:
        said = told[-1]
        assert isinstance(said, LoginPassword)
        box.logins.append((said.login.decode(), said.password.decode()))
        return AuthResult(success=box.logins[-1] == login, handled=False)

    controller = Controller(
        box,
        hostname=LOCALHOST,
        port=box.port,
        authenticator=authenticate if login else None,
        auth_required=login is not None,
        auth_require_tls=tls is not None,
        tls_context=tls,
        require_starttls=tls is not None,
    )
    controller.start()
    try:
        yield box
    finally:
        controller.stop()


def certificate(folder: Path, host: str) -> tuple[Path, ssl.SSLContext]:
    """A certificate for one address, which signs itself: its file, and what a server needs."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    shown, secret = folder / "certificate.pem", folder / "key.pem"
    shown.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    plain, form = serialization.NoEncryption(), serialization.PrivateFormat.PKCS8
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown, secret)
    return shown, context
