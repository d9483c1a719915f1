"""Where the API server is and who we are: one configuration for the client's calls and for kopf's watches."""

from __future__ import annotations

from dataclasses import dataclass

from kubernetes.client import ApiClient, Configuration
from kubernetes.config import (
    ConfigException,
    list_kube_config_contexts,
    load_incluster_config,
    load_kube_config,
)

from sapwood_operator.errors import AccessError

_AUTHENTICATION = "BearerToken"


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials for one API server."""

    configuration: Configuration
    context_namespace: str = "default"
    """Namespace that the kubeconfig's context names."""

    def client(self, *, connections: int) -> ApiClient:
        """Return a client for up to ``connections`` threads at once, which retries nothing by itself."""
        self.configuration.connection_pool_maxsize = connections
        self.configuration.retries = False
        return ApiClient(self.configuration)

    def authorization(self) -> str:
        """Return the value of the Authorization header, read anew where the token is a file that is replaced;
        empty where a certificate says who we are.
        """
        return self.configuration.get_api_key_with_prefix(_AUTHENTICATION) or ""


def find_access(kubeconfig: str | None, context: str | None = None) -> Access:
    """Return the pod's own access where ``kubeconfig`` is None and there is one, else the kubeconfig's.

    Raises `AccessError`, which says what was looked for.
    """
    configuration = Configuration()
    if kubeconfig is None and context is None:
        try:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]  # as the library is
        except ConfigException:
            pass
        else:
            return Access(configuration)
    try:
        load_kube_config(  # type: ignore[no-untyped-call]  # as the library is
            config_file=kubeconfig, context=context, client_configuration=configuration
        )
    except (ConfigException, OSError) as error:
        raise AccessError(f"neither a pod's service account nor a usable kubeconfig: {error}") from error
    return Access(configuration, _namespace(kubeconfig, context))


def _namespace(kubeconfig: str | None, context: str | None) -> str:
    contexts, active = list_kube_config_contexts(  # type: ignore[no-untyped-call]  # as the library is
        config_file=kubeconfig
    )
    named = next((entry for entry in contexts if entry["name"] == context), active)
    return str(named["context"].get("namespace") or "default")
