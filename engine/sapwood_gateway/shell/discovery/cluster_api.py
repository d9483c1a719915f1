"""The cluster's API, as far as the gateway uses it: list, watch and read, as JSON, from one thread a kind.

The official client brings what is tedious about it: in-cluster and kubeconfig credentials, their renewal, TLS.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import urllib3
from kubernetes import client, config

from sapwood_contract.shallow import read_json

_CONNECT_SECONDS = 5.0
_LIST_SECONDS = 30.0
_READ_SECONDS = 5.0
WATCH_SECONDS = 240
"""How long the server keeps a watch open; then it is begun anew where it ended."""
_SILENCE_SECONDS = WATCH_SECONDS + 15.0
"""A watch that says nothing for longer has lost its connection without noticing."""
_GONE = 410
_NOT_FOUND = 404


class ApiFailure(Exception):
    """A question that got no usable answer; the message says why."""


class KindMissing(ApiFailure):
    """The cluster has no objects of that kind: its definition is not installed."""


class VersionGone(Exception):
    """The server no longer knows what happened since that version: list again."""


class NoCluster(Exception):
    """There is neither a service account nor a kubeconfig; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a kind at one version."""

    items: list[Mapping[str, Any]]
    version: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server says to a question for one object."""

    status: int
    document: object = None
    """The object where the status is 200 and it can be read."""


@dataclass(frozen=True, slots=True)
class Source:
    """One kind of object in one namespace, or in all."""

    path: str
    selector: str
    """Labels that the objects have; empty: all of them."""
    is_optional: bool = False
    """Whether the cluster may do without the kind."""


class ClusterApi:
    """List, watch and read with one credential; may be used from several threads."""

    def __init__(self, api_client: client.ApiClient) -> None:
        self._client = api_client
        self._watches: set[urllib3.BaseHTTPResponse] = set()
        self._is_closed = False

    def close(self) -> None:
        """Break off the watches, which otherwise wait for what the server says next, and those that just begin."""
        self._is_closed = True
        for response in list(self._watches):
            with contextlib.suppress(RuntimeError, ValueError, OSError):  # it has ended by itself
                response.shutdown()

    def list(self, source: Source) -> Listing:
        """Return every object of ``source``; raises `ApiFailure`."""
        response = self._follow(source, {}, read_seconds=_LIST_SECONDS)
        try:
            document = read_json(response.data)
            return Listing(document["items"], document["metadata"]["resourceVersion"])
        except (ValueError, KeyError, urllib3.exceptions.HTTPError) as error:
            raise ApiFailure(f"{source.path}: {error!r}") from error
        finally:
            response.release_conn()

    def watch(self, source: Source, version: str) -> Iterator[Mapping[str, Any]]:
        """Yield what happens after ``version`` until the server ends the watch, bookmarks included.

        Raises `VersionGone`, and `ApiFailure` where the connection breaks.
        """
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        response = self._follow(source, query, read_seconds=_SILENCE_SECONDS)
        self._watches.add(response)
        try:
            if self._is_closed:
                return
            for line in _lines(response):
                event = read_json(line)
                if event["type"] == "ERROR":
                    _raise(source, event["object"].get("code"), str(event["object"].get("reason")))
                yield event
        except (ValueError, KeyError, urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiFailure(f"{source.path}: {error!r}") from error
        finally:
            self._watches.discard(response)
            response.close()

    def read(self, path: str) -> Answer:
        """Return what the server says of the object at ``path``; raises `ApiFailure` where that is no whole answer."""
        response = self._get(path, {}, read_seconds=_READ_SECONDS)
        try:
            body = response.data
            return Answer(200, read_json(body)) if response.status == 200 else Answer(response.status)
        except ValueError:
            return Answer(response.status)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiFailure(f"{path}: {error!r}") from error
        finally:
            response.release_conn()

    def _follow(self, source: Source, query: Mapping[str, str], *, read_seconds: float) -> urllib3.BaseHTTPResponse:
        response = self._get(source.path, {"labelSelector": source.selector, **query}, read_seconds=read_seconds)
        if response.status != 200:
            response.close()
            _raise(source, response.status, str(response.reason))
        return response

    def _get(self, path: str, query: Mapping[str, str], *, read_seconds: float) -> urllib3.BaseHTTPResponse:
        asked = self._client.param_serialize(
            "GET",
            path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._client.call_api(*asked, _request_timeout=(_CONNECT_SECONDS, read_seconds))
        except (client.ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiFailure(f"{path}: {error!r}") from error
        response: urllib3.BaseHTTPResponse = answer.response
        return response


def connect() -> ClusterApi:
    """Return the API of the cluster that this pod is in, or else the one of the kubeconfig; raises `NoCluster`."""
    try:
        try:
            config.load_incluster_config()  # type: ignore[no-untyped-call]  # the library has no annotations here
        except config.ConfigException:
            config.load_kube_config()  # type: ignore[no-untyped-call]  # as above
    except config.ConfigException as error:
        raise NoCluster(
            f"there is no cluster to discover engines in ({error}); list them with --engine, or set KUBECONFIG"
        ) from error
    return ClusterApi(client.ApiClient())


def _raise(source: Source, code: object, reason: str) -> None:
    if code == _GONE:
        raise VersionGone
    if code == _NOT_FOUND:
        raise KindMissing(f"{source.path}: {code} {reason}")
    raise ApiFailure(f"{source.path}: {code} {reason}")


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yield each line as soon as it is whole."""
    rest = b""
    for piece in response.stream(amt=None, decode_content=False):
        *whole, rest = (rest + piece).split(b"\n")
        yield from filter(None, whole)
