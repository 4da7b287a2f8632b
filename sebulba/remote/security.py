"""Whom a trainer and an env-host talk to: certificates, a token, and where neither is needed."""

from __future__ import annotations

import dataclasses
import hmac
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

from sebulba.validation import ConfigError

if TYPE_CHECKING:
    import grpc

HOW_TO_MAKE = """\
  openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=sebulba \\
      -addext subjectAltName=DNS:TRAINER -keyout tls.key -out tls.crt
  (umask 077; openssl rand -hex 32 > token)"""
"""The two commands that make a certificate of the host TRAINER and a token."""
_SHORTEST_TOKEN = 16


@dataclasses.dataclass(frozen=True)
class Security:
    """What one side shows to the other, and what it asks for.

    Attributes:
      token: a secret that both sides have; "" if there is none.
      certificate: of this side, PEM; b"" if it shows none.
      key: the certificate's, PEM.
      authority: signs the other side's certificates, PEM; a trainer that has one asks for them.
      is_plain: whether nothing is encrypted.
    """

    token: str = ""
    certificate: bytes = b""
    key: bytes = b""
    authority: bytes = b""
    is_plain: bool = True

    def takes(self, token: str | bytes) -> bool:
        """Whether ``token``, which anybody may have sent, is the right one."""
        given = token.encode() if isinstance(token, str) else token
        return hmac.compare_digest(given, self.token.encode())

    def of_server(self) -> grpc.ServerCredentials | None:
        """What gRPC's server wants; None if nothing is encrypted."""
        import grpc

        if self.is_plain:
            return None
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)],
            root_certificates=self.authority or None,
            require_client_auth=bool(self.authority),
        )

    def of_client(self) -> grpc.ChannelCredentials | None:
        """What gRPC's client wants; None if nothing is encrypted."""
        import grpc

        if self.is_plain:
            return None
        return grpc.ssl_channel_credentials(
            self.authority, self.key or None, self.certificate or None
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecurityOptions:
    """Files with certificates and a token."""

    token_file: Path | None = None
    """A file with a secret that trainer and env-hosts share: at least 16 characters."""
    tls_cert: Path | None = None
    """The certificate that this side shows, in PEM. A trainer needs one unless it listens on
    loopback."""
    tls_key: Path | None = None
    """The key of --tls-cert."""
    ca: Path | None = None
    """What signed the certificate of the other side: of the trainer, for an env-host; of env-hosts,
    for a trainer, which then takes no other and needs no token."""
    insecure: bool = False
    """Let anybody who reaches the port take part and read along, where it is not on loopback."""

    def of_trainer(self, address: str) -> Security:
        """For a trainer that listens at ``address``.

        Raises:
          ConfigError: a file cannot be used, or others than this machine could take part.
        """
        if self.ca is not None and self.tls_cert is None:
            raise ConfigError(
                f"ca is {self.ca} and tls_cert is None: without a certificate of its own a trainer "
                "encrypts nothing, and asks env-hosts for none. Set --tls-cert and --tls-key too."
            )
        made = self._read(address, is_plain=self.tls_cert is None)
        if not self._may_be_open(address) and (made.is_plain or not (made.token or self.ca)):
            raise ConfigError(
                f"listen is {address}, which other machines reach: that needs a certificate and a "
                "token, or --insecure. Set --tls-cert tls.crt --tls-key tls.key --token-file "
                f"token, which these make:\n{HOW_TO_MAKE}"
            )
        return made

    def of_env_host(self, address: str) -> Security:
        """For an env-host that connects to ``address``.

        Raises:
          ConfigError: a file cannot be used, or the trainer would not be known for sure.
        """
        if self.tls_cert is not None and self.ca is None:
            raise ConfigError(
                f"tls_cert is {self.tls_cert} and ca is None: without the trainer's certificate an "
                "env-host encrypts nothing, and shows none of its own. Set --ca too."
            )
        made = self._read(address, is_plain=self.ca is None)
        if not self._may_be_open(address) and (made.is_plain or not (made.token or self.tls_cert)):
            raise ConfigError(
                f"connect is {address}, another machine: that needs --ca tls.crt, the trainer's "
                "certificate, and --token-file token, or --insecure. On the trainer, these make "
                f"both:\n{HOW_TO_MAKE}"
            )
        return made

    def _may_be_open(self, address: str) -> bool:
        return self.insecure or is_loopback(address)

    def _read(self, address: str, is_plain: bool) -> Security:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError(
                f"tls_cert is {self.tls_cert} and tls_key is {self.tls_key}: a certificate and its "
                "key go together. Set both, or neither."
            )
        host_and_port(address)
        token = _content(self.token_file).decode(errors="replace").strip()
        if self.token_file and (len(token) < _SHORTEST_TOKEN or not token.isascii()):
            raise ConfigError(
                f"the token in {self.token_file} must have {_SHORTEST_TOKEN} or more characters of "
                "ASCII. Make one with: openssl rand -hex 32"
            )
        certificate, key, authority = map(_content, (self.tls_cert, self.tls_key, self.ca))
        return Security(token, certificate, key, authority, is_plain)


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of HOST:PORT; an IPv6 address is in brackets.

    Raises:
      ConfigError: it has another form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) >= 1 << 16:
        raise ConfigError(
            f"the address is {address!r}: it must be HOST:PORT, such as trainer-0:7777."
        )
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Whether only this machine can be at the other end of ``address``, HOST:PORT."""
    host, _ = host_and_port(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _content(path: Path | None) -> bytes:
    if path is None:
        return b""
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}): name another file."
        ) from error
