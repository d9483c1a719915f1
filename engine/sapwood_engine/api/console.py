"""The console at ``/ui``: files for everybody, and for admins what the admin API answers, on the OpenAI API's port."""

from __future__ import annotations

from functools import cache
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.exceptions import HTTPException

from sapwood_console.files import DATA_HEADERS, SECURITY_HEADERS, read_files
from sapwood_console.origin import origin_of
from sapwood_console.paths import (
    ABOUT,
    DATA_CACHE,
    DATA_LOAD,
    DATA_REQUESTS,
    MAX_CONSOLE_NODES,
    PAGE,
    About,
)
from sapwood_contract.http import MAX_RECENT_REQUESTS
from sapwood_engine.api.admin import show_cache, show_load, show_requests
from sapwood_engine.api.errors import json_response
from sapwood_engine.errors import RequestError

_files = cache(read_files)


class NotOurPage(RequestError):
    """A page of another server asks for data, or one that gave this server a name of its own."""

    status = 403
    code = "not_our_page"


async def refuse_other_pages(request: Request) -> None:
    """Raise `NotOurPage` unless the console's own page asks, or no page at all."""
    about: About = request.app.state.about
    match origin_of(request.headers, asks_key=about.data == "key"):
        case "foreign page":
            raise NotOurPage("Pages of other servers get no data of the console.")
        case "strange name":
            raise NotOurPage(
                "Host: without an admin key the console answers to an IP address or localhost alone. Use one of them, "
                "or start the engine with --admin-key-file."
            )


files = APIRouter(include_in_schema=False)
data = APIRouter(include_in_schema=False, dependencies=[Depends(refuse_other_pages)])


@files.get(ABOUT)
async def show_about(request: Request) -> Response:
    """Say which program this is and which keys it asks for."""
    return json_response(request.app.state.about, headers=SECURITY_HEADERS)


@files.get(PAGE)
@files.get(PAGE + "/")
@files.get(PAGE + "/{name}")
async def show_file(request: Request) -> Response:
    """Return the page or one of its files; 304 where the browser has it already."""
    file = _files().get(request.url.path)
    if file is None:
        raise HTTPException(404, "there is no such file")
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=dict(file.headers))
    return Response(file.body, headers=dict(file.headers))


@data.get(DATA_LOAD)
async def load_data(request: Request) -> Response:
    """Answer as ``/admin/load``."""
    return _uncached(await show_load(request))


@data.get(DATA_CACHE)
async def cache_data(
    request: Request, max_nodes: Annotated[int, Query(ge=0, le=MAX_CONSOLE_NODES)] = 1_000, text: bool = False
) -> Response:
    """Answer as ``/admin/cache``."""
    return _uncached(await show_cache(request, max_nodes, text))


@data.get(DATA_REQUESTS)
async def requests_data(request: Request) -> Response:
    """Answer as ``/admin/requests``."""
    return _uncached(await show_requests(request, MAX_RECENT_REQUESTS))


def _uncached(response: Response) -> Response:
    response.headers.update(DATA_HEADERS)
    return response
