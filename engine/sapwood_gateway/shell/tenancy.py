"""What options say of who may call, read before anything is served."""

from __future__ import annotations

from dataclasses import dataclass, field

from sapwood_gateway.core.file_objects import DEFAULT_NAMESPACE
from sapwood_gateway.core.listed_engines import NAMESPACE, OPEN, Tenancy
from sapwood_gateway.shell.credentials import Secrets, UnusableSecret, read_admin_keys, read_secrets
from sapwood_gateway.shell.options import GatewayOptions
from sapwood_gateway.shell.tenant_sources import TenantDirectory, TenantFile, UnusableTenants


class UnusableOption(Exception):
    """A file that an option names cannot be used; the message names the option and no secret."""


@dataclass(frozen=True, slots=True)
class Trust:
    """By what callers and engines are known."""

    secrets: Secrets = field(default_factory=Secrets)
    directory: TenantDirectory = field(default_factory=TenantDirectory)
    file: TenantFile | None = None
    """None: without ``--tenants``."""
    admin_keys: frozenset[str] = field(default=frozenset(), repr=False)
    """Of ``--admin-key-file``; empty without it."""


def read_trust(options: GatewayOptions) -> Trust:
    """Read all files; raises `UnusableOption`."""
    try:
        secrets = read_secrets(options.secret_file, options.engine_credential_file)
        admin_keys = read_admin_keys(options.admin_key_file)
    except UnusableSecret as error:
        raise UnusableOption(str(error)) from None
    directory = TenantDirectory()
    if options.tenants is None:
        return Trust(secrets, directory, admin_keys=admin_keys)
    namespace = NAMESPACE if options.engines else DEFAULT_NAMESPACE
    file = TenantFile(options.tenants, directory, default_namespace=namespace)
    try:
        file.look()
    except UnusableTenants as error:
        raise UnusableOption(f"--tenants: {str(options.tenants)!r} cannot be used: {error}") from None
    return Trust(secrets, directory, file, admin_keys)


def listed_tenancy(options: GatewayOptions) -> Tenancy:
    """Return who may call the services of ``--engine``."""
    return OPEN if options.tenants is None else Tenancy("ApiKey", options.cache_sharing)
