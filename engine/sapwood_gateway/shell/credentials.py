"""What the gateway shows engines, so that they know it: on requests, and when it asks for load, blocks or tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sapwood_contract.trust import CREDENTIAL_HEADER, engine_credential, secret_of
from sapwood_gateway.core.routes import Routes, Service

MAX_FILE_BYTES = 2**16

Shown = Callable[[str], Mapping[str, str]]
"""Headers that show a replica, by its id, who asks."""


class UnusableSecret(Exception):
    """A file that does not hold what its option says; the message names the option and never what is in the file."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """What was read of files at the start; neither shows in a log."""

    installation: bytes | None = None
    """Of ``--secret-file``: each service's credential is derived from it."""
    listed_engines: str | None = None
    """Of ``--engine-credential-file``: the one of all listed engines."""

    def __repr__(self) -> str:
        return "Secrets(…)"


def read_secrets(secret_file: Path | None, engine_credential_file: Path | None) -> Secrets:
    """Read the files that options name; raises `UnusableSecret`."""
    installation = None
    if secret_file is not None:
        try:
            installation = secret_of(_read("--secret-file", secret_file))
        except ValueError as error:
            raise UnusableSecret(f"--secret-file: {str(secret_file)!r} cannot be used: {error}") from None
    listed = None
    if engine_credential_file is not None:
        option = "--engine-credential-file"
        lines = _read(option, engine_credential_file).split()
        if not lines or not (lines[0].isascii() and lines[0].decode("ascii").isprintable()):
            raise UnusableSecret(
                f"{option}: {str(engine_credential_file)!r} cannot be used: its first line is no printable ASCII text; "
                "give the file of the engines' --gateway-credential-file"
            )
        listed = lines[0].decode("ascii")
    return Secrets(installation, listed)


def read_admin_keys(path: Path | None) -> frozenset[str]:
    """Return the keys of ``--admin-key-file``, one a line; none without a file. Raises `UnusableSecret`."""
    if path is None:
        return frozenset()
    option = "--admin-key-file"
    content = _read(option, path)
    if not content.isascii():
        raise UnusableSecret(f"{option}: {str(path)!r} cannot be used: a key in it is not printable ASCII; change it")
    keys = frozenset(line.strip() for line in content.decode("ascii").splitlines()) - {""}
    if not keys or not all(key.isprintable() for key in keys):
        raise UnusableSecret(f"{option}: {str(path)!r} cannot be used: it holds no key, or one that is not printable")
    return keys


def _read(option: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise UnusableSecret(f"{option}: {str(path)!r} cannot be read ({error.strerror})") from None


class Credentials:
    """Gives each engine's credential, for one event loop."""

    def __init__(self, secrets: Secrets, routes: Callable[[], Routes]) -> None:
        self._secrets = secrets
        self._routes = routes
        self._known: Routes | None = None
        self._services: Mapping[str, Service] = {}
        """Of the routes that are known, by replica."""

    def of(self, service: Service) -> str | None:
        """Return what the engines of ``service`` ask for; None where they ask for nothing, or it cannot be known."""
        if self._secrets.listed_engines is not None:
            return self._secrets.listed_engines
        if service.authentication == "None" or self._secrets.installation is None:
            return None
        return engine_credential(self._secrets.installation, service.key.namespace, service.key.name)

    def shown_to(self, replica_id: str) -> Mapping[str, str]:
        """Return the headers that show an engine's admin API who asks.

        By the replica and never by its address, which anybody's EndpointSlice may name.
        """
        credential = self._of_replica(replica_id)
        return {} if credential is None else {CREDENTIAL_HEADER: credential}

    def _of_replica(self, replica_id: str) -> str | None:
        if self._secrets.listed_engines is not None:  # before an engine has told its model it has no service
            return self._secrets.listed_engines
        routes = self._routes()
        if routes is not self._known:
            self._known = routes
            self._services = {
                replica.id: service for service in routes.services.values() for replica in routes.of(service.key)
            }
        service = self._services.get(replica_id)
        return None if service is None else self.of(service)
