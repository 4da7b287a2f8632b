"""Who may take part, and what is refused before anything listens."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from remote_parts import HostThread, env_host, trainer

from sebulba.remote import security
from sebulba.remote.security import Security, SecurityOptions
from sebulba.validation import ConfigError

TOKEN = "0123456789abcdef"


@dataclasses.dataclass
class Files:
    token: Path
    cert: Path
    key: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """What the documented commands make, for this machine."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    folder = tmp_path_factory.mktemp("tls")
    script = security.HOW_TO_MAKE.replace("TRAINER", "localhost")
    subprocess.run(["sh", "-ec", script], cwd=folder, check=True, capture_output=True)
    return Files(folder / "token", folder / "tls.crt", folder / "tls.key")


@pytest.mark.parametrize(
    ("address", "is_so"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("localhost.example:1", False),
    ],
)
def test_loopback_is_known(address: str, is_so: bool) -> None:
    assert security.is_loopback(address) == is_so


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:port", "host:65536", "h:-1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="must be HOST:PORT"):
        SecurityOptions().of_trainer(address)


def test_loopback_needs_nothing() -> None:
    assert SecurityOptions().of_trainer("127.0.0.1:1") == Security()
    assert SecurityOptions().of_env_host("localhost:1") == Security()


def test_a_trainer_for_other_machines_needs_a_certificate_and_a_token(files: Files) -> None:
    cert, token = {"tls_cert": files.cert, "tls_key": files.key}, {"token_file": files.token}
    for given in ({}, cert, token):
        with pytest.raises(ConfigError, match="openssl req -x509") as refused:
            SecurityOptions(**given).of_trainer("0.0.0.0:1")
        assert "openssl rand" in str(refused.value)
    assert not SecurityOptions(**cert, **token).of_trainer("0.0.0.0:1").is_plain
    assert not SecurityOptions(**cert, ca=files.cert).of_trainer("0.0.0.0:1").is_plain
    assert SecurityOptions(insecure=True).of_trainer("0.0.0.0:1").is_plain


def test_an_env_host_elsewhere_needs_to_know_the_trainer_and_the_token(files: Files) -> None:
    ca, token = {"ca": files.cert}, {"token_file": files.token}
    for given in ({}, ca, token):
        with pytest.raises(ConfigError, match="needs --ca"):
            SecurityOptions(**given).of_env_host("trainer:1")
    assert not SecurityOptions(**ca, **token).of_env_host("trainer:1").is_plain
    own = {"tls_cert": files.cert, "tls_key": files.key}
    assert not SecurityOptions(**ca, **own).of_env_host("trainer:1").is_plain
    assert SecurityOptions(insecure=True).of_env_host("trainer:1").is_plain


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(ConfigError, match="a certificate and its key go together"):
        SecurityOptions(tls_cert=Path("x")).of_trainer("127.0.0.1:1")


def test_what_would_encrypt_nothing_is_refused(files: Files) -> None:
    """On loopback too, where nothing is needed: who names a certificate expects it to be used."""
    own = SecurityOptions(tls_cert=files.cert, tls_key=files.key)
    for insecure in (False, True):
        theirs = SecurityOptions(ca=files.cert, insecure=insecure)
        with pytest.raises(ConfigError, match="Set --tls-cert and --tls-key too"):
            theirs.of_trainer("127.0.0.1:1")
    with pytest.raises(ConfigError, match="Set --ca too"):
        own.of_env_host("localhost:1")


def test_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file"):
        SecurityOptions(ca=tmp_path / "none").of_env_host("localhost:1")
    short = tmp_path / "token"
    short.write_text("secret\n")
    with pytest.raises(ConfigError, match="must have 16 or more characters"):
        SecurityOptions(token_file=short).of_trainer("127.0.0.1:1")


def test_a_wrong_token_or_none_is_refused_by_name() -> None:
    with trainer(security=Security(token=TOKEN)) as (listener, address):
        listener.make_env(0)(4, 0)
        for token in ("", TOKEN[:-1], TOKEN + "x"):
            host = HostThread(address, security=Security(token=token))
            host.join()
            assert isinstance(host.error, ConfigError)
            assert "the token is not the trainer's" in str(host.error)
        assert "wrong token" in "".join(listener.news())
        with env_host(address, security=Security(token=TOKEN)):
            listener.make_env(0)(4, 0).reset()


@pytest.fixture
def encrypted(files: Files) -> Iterator[tuple[Security, Security]]:
    """Of a trainer and of an env-host."""
    own = {"tls_cert": files.cert, "tls_key": files.key}
    ours = SecurityOptions(token_file=files.token, **own)
    theirs = SecurityOptions(token_file=files.token, ca=files.cert)
    yield ours.of_trainer("0.0.0.0:1"), theirs.of_env_host("trainer:1")


def test_lanes_are_encrypted(encrypted: tuple[Security, Security]) -> None:
    with trainer(security=encrypted[0]) as (listener, address):
        env = listener.make_env(0)(4, 0)
        with env_host(address, security=encrypted[1]):
            assert env.reset().first.all()


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["plain", "another authority"])
def test_an_env_host_talks_to_no_other_trainer(
    wrong: str, encrypted: tuple[Security, Security], tmp_path: Path
) -> None:
    ours, theirs = encrypted
    if wrong == "plain":
        theirs = dataclasses.replace(theirs, is_plain=True)
    else:
        script = security.HOW_TO_MAKE.replace("TRAINER", "localhost")
        subprocess.run(["sh", "-ec", script], cwd=tmp_path, check=True, capture_output=True)
        theirs = dataclasses.replace(theirs, authority=(tmp_path / "tls.crt").read_bytes())
    with trainer(security=ours) as (listener, address):
        listener.make_env(0)(4, 0)
        host = HostThread(address, security=theirs, patience_seconds=1.0)
        host.join()
        assert "no trainer at" in str(host.error)
        assert listener.connected() == 0


@pytest.mark.slow
def test_a_trainer_that_asks_for_certificates_takes_no_one_else(files: Files) -> None:
    own = {"tls_cert": files.cert, "tls_key": files.key, "ca": files.cert}
    ours = SecurityOptions(**own).of_trainer("0.0.0.0:1")
    with trainer(security=ours) as (listener, address):
        env = listener.make_env(0)(4, 0)
        stranger = Security(authority=ours.authority, is_plain=False)
        host = HostThread(address, security=stranger, patience_seconds=1.0)
        host.join()
        assert "no trainer at" in str(host.error)
        with env_host(address, security=SecurityOptions(**own).of_env_host("trainer:1")):
            assert env.reset().first.all()
