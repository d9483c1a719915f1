"""What is served, and who may ask for data."""

from __future__ import annotations

import re

import pytest

from sapwood_console.files import read_files
from sapwood_console.origin import Origin, origin_of
from sapwood_console.paths import path_class


def test_the_page_and_its_files_refer_to_each_other_alone() -> None:
    files = read_files()
    for path, file in files.items():
        text = file.body.decode()
        named = re.findall(r'(?:src|href)="([^"]+)"', text) + [
            f"/ui/{name}" for name in re.findall(r'from "\./([^"]+)"', text)
        ]
        assert set(named) <= set(files), path
        addresses = set(re.findall(r"[a-z]+://[^\s\"'`]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path  # the name of SVG, which nobody asks for


def test_no_script_makes_markup_of_text_or_keeps_anything_in_the_browser() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|setAttribute\(\"style|"
        r"localStorage|sessionStorage|indexedDB|cookie"
    )
    found = {path for path, file in read_files().items() if forbidden.search(file.body.decode())}
    assert not found


def test_every_file_says_what_it_is_and_lets_the_page_reach_its_own_server_alone() -> None:
    for path, file in read_files().items():
        assert file.headers["X-Content-Type-Options"] == "nosniff"
        assert file.headers["X-Frame-Options"] == "DENY"
        policy = file.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert not re.search(r"unsafe|\*|https?:|data:", policy), path
    assert len({file.etag for file in read_files().values()}) == len(read_files()) - 1  # the page has two paths


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/ui", "open"),
        ("/ui/", "open"),
        ("/ui/app.js", "open"),
        ("/ui/data", "open"),
        ("/ui/data/", "admin"),
        ("/ui/data/cache", "admin"),
        ("/ui/data/new", "admin"),
        ("/uinteresting", "other"),
        ("/v1/models", "other"),
        ("//ui/data/cache", "other"),
    ],
)
def test_below_the_page_data_alone_need_an_admin(path: str, expected: str) -> None:
    assert path_class(path) == expected


@pytest.mark.parametrize(
    ("headers", "asks_key", "expected"),
    [
        ({"Host": "127.0.0.1:8000"}, False, "own"),
        ({"Host": "10.1.2.3"}, False, "own"),
        ({"Host": "[::1]:8000"}, False, "own"),
        ({"Host": "localhost:8000"}, False, "own"),
        ({"Host": "LocalHost"}, False, "own"),
        ({"Host": "127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"}, False, "own"),
        ({"Host": "127.0.0.1:8000", "Sec-Fetch-Site": "none"}, False, "own"),
        ({"Host": "rebound.example:8000", "Sec-Fetch-Site": "same-origin"}, False, "strange name"),
        ({"Host": "127.0.0.1.example:8000"}, False, "strange name"),
        ({"Host": "localhost.example"}, False, "strange name"),
        ({"Host": "[rebound.example]"}, False, "strange name"),
        ({"Host": ""}, False, "strange name"),
        ({}, False, "strange name"),
        ({"Host": "llm.example"}, True, "own"),
        ({"Host": "127.0.0.1", "Sec-Fetch-Site": "cross-site"}, True, "foreign page"),
        ({"Host": "127.0.0.1", "Sec-Fetch-Site": "same-site"}, False, "foreign page"),
        ({"Host": "127.0.0.1", "Origin": "null"}, False, "foreign page"),
    ],
)
def test_without_a_key_only_an_address_or_localhost_is_no_page_that_was_rebound(
    headers: dict[str, str], asks_key: bool, expected: Origin
) -> None:
    assert origin_of(headers, asks_key=asks_key) == expected
