"""Which model, where its weights come from, and where what is downloaded is kept."""

from __future__ import annotations

from dataclasses import dataclass

from sapwood_operator.domain.fields import Fields
from sapwood_operator.errors import InvalidSpec


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """A model that the engine brings."""

    name: str


@dataclass(frozen=True, slots=True)
class HubModel:
    """A Hugging Face repository; an empty revision is its main branch."""

    repository: str
    revision: str


@dataclass(frozen=True, slots=True)
class ClaimModel:
    """A folder or file in a volume of the namespace; an empty path is its root."""

    claim: str
    path: str


@dataclass(frozen=True, slots=True)
class PathModel:
    """A folder or file that the image brings, or that ``podTemplate`` mounts."""

    path: str


ModelSource = BuiltinModel | HubModel | ClaimModel | PathModel


@dataclass(frozen=True, slots=True)
class PodCache:
    """Kept as long as the pod: each new pod downloads and compiles again."""


@dataclass(frozen=True, slots=True)
class ClaimCache:
    """Kept in a volume that all replicas share; they must be able to mount it together."""

    claim: str


@dataclass(frozen=True, slots=True)
class NodeCache:
    """Kept in a folder of the node; the restricted Pod Security profile does not allow it."""

    path: str


ModelCache = PodCache | ClaimCache | NodeCache


@dataclass(frozen=True, slots=True)
class SecretKey:
    """A key of a Secret in the namespace; the operator names it and never reads it."""

    name: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The model of one service."""

    served_name: str
    """In the OpenAI API."""
    source: ModelSource
    token: SecretKey | None
    """Opens gated repositories; None: only public ones."""
    cache: ModelCache


def read_model(model: Fields, *, service_name: str) -> ModelSpec:
    """Read ``spec.model``; raises `InvalidSpec`."""
    token = model.inner("tokenSecretRef")
    return ModelSpec(
        served_name=model.text("name", service_name),
        source=_read_source(model.inner("source")),
        token=SecretKey(token.text("name"), token.text("key", "token")) if model.has("tokenSecretRef") else None,
        cache=_read_cache(model.inner("cache")),
    )


def _read_source(source: Fields) -> ModelSource:
    given = [name for name in ("builtin", "huggingFace", "pvc", "path", "s3") if source.has(name)]
    if len(given) != 1:
        raise InvalidSpec(source.path, given, "give exactly one of builtin, huggingFace, pvc, path, s3")
    match given[0]:
        case "builtin":
            return BuiltinModel(source.text("builtin"))
        case "huggingFace":
            hub = source.inner("huggingFace")
            return HubModel(hub.text("repo"), hub.text("revision", ""))
        case "pvc":
            claim = source.inner("pvc")
            return ClaimModel(claim.text("claimName"), _inside(claim))
        case "path":
            return PathModel(source.text("path"))
        case other:
            # No pod could be made of the rest; `Unsupported` names the field besides.
            raise InvalidSpec(source.where(other), other, "it is not built yet: take builtin, huggingFace, pvc or path")


def _inside(claim: Fields) -> str:
    path = claim.text("path", "").strip("/")
    if ".." in path.split("/"):
        raise InvalidSpec(claim.where("path"), path, "give a path inside the volume, without '..'")
    return path


def _read_cache(cache: Fields) -> ModelCache:
    if cache.has("persistentVolumeClaim") and cache.has("nodePath"):
        raise InvalidSpec(cache.path, sorted(cache.values), "give persistentVolumeClaim or nodePath, not both")
    if cache.has("persistentVolumeClaim"):
        return ClaimCache(cache.inner("persistentVolumeClaim").text("claimName"))
    if cache.has("nodePath"):
        return NodeCache(cache.text("nodePath"))
    return PodCache()
