"""How an engine knows the gateway: a credential of its service, and what only its bearer may say of a request.

Gateway and operator hold one secret of the installation, and each service has a credential derived from it. The
operator gives it to the service's engines, the gateway derives it again when it asks one of them. So no program reads
anybody's Secrets, and an engine whose credential becomes known opens no other service.
"""

from __future__ import annotations

import hmac

CREDENTIAL_HEADER = "X-Sapwood-Gateway-Credential"
"""On every request of the gateway to an engine that asks for it: `engine_credential`."""
TENANT_HEADER = "X-Sapwood-Tenant"
"""Who may share cached prefixes with this request, as `Namespace.tenant` of the engine: opaque ASCII text."""
PRIORITY_CEILING_HEADER = "X-Sapwood-Priority-Ceiling"
"""Highest priority that the request may have, as a decimal integer."""
CACHED_TOKENS_HEADER = "X-Sapwood-Cached-Tokens"
"""``hide``: the answer does not tell how much of the prompt was cached, since others' prompts would show in it."""
TRUSTED_HEADERS = (TENANT_HEADER, PRIORITY_CEILING_HEADER, CACHED_TOKENS_HEADER)
"""An engine refuses a request that has one of them and not the credential."""

MIN_SECRET_BYTES = 16


def secret_of(content: bytes) -> bytes:
    """Return the installation's secret as it stands in its file: white space around it is no part of it.

    Raises `ValueError` for one that is too short to be one; the message does not quote it.
    """
    secret = content.strip()
    if len(secret) < MIN_SECRET_BYTES:
        raise ValueError(f"it has {len(secret)} bytes; take {MIN_SECRET_BYTES} random ones or more")
    return secret


def engine_credential(secret: bytes, namespace: str, service: str) -> str:
    """Return the credential of one InferenceService's engines: 64 hexadecimal digits.

    ``secret``: the installation's, 16 random bytes or more.
    """
    return hmac.digest(secret, f"sapwood engine {namespace}/{service}".encode(), "sha256").hex()
