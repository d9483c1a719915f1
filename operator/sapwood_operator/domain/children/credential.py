"""The Secret by which a service's engines know the gateway, for services that ask for API keys.

The operator may make Secrets and do nothing else with them: it cannot look whether one is there, change it or remove
it. So the name has a hash of what is inside, and another secret of the installation means another Secret. Pods of the
service name it, so they are replaced then.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from sapwood_contract.trust import engine_credential
from sapwood_operator.domain import launch, names
from sapwood_operator.domain.children.base import child
from sapwood_operator.domain.spec import ServiceSpec
from sapwood_operator.settings import OperatorSettings

API_VERSION, KIND = "v1", "Secret"
_HASH_CHARACTERS = 10


def credential_secret(spec: ServiceSpec, settings: OperatorSettings) -> dict[str, Any]:
    """Return the Secret."""
    value = base64.b64encode(_credential(spec, settings).encode()).decode()
    name = credential_name(spec, settings)
    return child(API_VERSION, KIND, name, spec, type="Opaque", immutable=True, data={launch.CREDENTIAL_FILE: value})


def credential_name(spec: ServiceSpec, settings: OperatorSettings) -> str:
    """Return the name of the Secret that pods are to mount."""
    digest = hashlib.sha256(_credential(spec, settings).encode()).hexdigest()
    return f"{names.engine(spec.name)}-{digest[:_HASH_CHARACTERS]}"


def _credential(spec: ServiceSpec, settings: OperatorSettings) -> str:
    return engine_credential(settings.secret, spec.namespace, spec.name)
