"""What the operator writes as argv is what the engine reads."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood_contract import launch
from sapwood_contract.launch import LaunchOptions

FIELDS = dataclasses.fields(LaunchOptions)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Every value that a field of this type may take."""
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) in (typing.Union, types.UnionType):
        return st.one_of([st.none() if arm is types.NoneType else values_of(arm) for arm in get_args(hint)])
    simple: dict[type, st.SearchStrategy[Any]] = {
        int: st.integers(),
        float: st.floats(allow_nan=False),
        str: st.text().filter(lambda text: text != "--"),
    }
    return simple[hint]


def all_options() -> st.SearchStrategy[LaunchOptions]:
    return st.builds(LaunchOptions, **{field.name: values_of(launch.HINTS[field.name]) for field in FIELDS})


@given(all_options())
def test_argv_of_any_options_is_read_back_as_the_same_options(options: LaunchOptions) -> None:
    assert launch.parse(launch.to_argv(options)) == options


def test_the_defaults_need_no_argv() -> None:
    assert launch.to_argv(LaunchOptions()) == []
    assert launch.parse([]) == LaunchOptions()


MALFORMED = {
    "unknown": ["--page-sise=16"],
    "not a number": ["--page-size=many"],
    "no value": ["--page-size"],
    "outside the set": ["--overlap=maybe"],
    "positional": ["model"],
    "abbreviated": ["--page=16"],
}


@pytest.mark.parametrize("argv", MALFORMED.values(), ids=MALFORMED)
def test_what_is_unknown_or_malformed_refuses_to_start(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        launch.parse(argv)
    assert ended.value.code == 2
    assert argv[0].split("=")[0] in capsys.readouterr().err


@given(all_options())
def test_who_asks_first_is_given_the_same_options(options: LaunchOptions) -> None:
    assert launch.read(launch.to_argv(options)) == options


@pytest.mark.parametrize("argv", [*MALFORMED.values(), ["--help"]], ids=[*MALFORMED, "help"])
def test_who_asks_first_is_told_what_is_wrong_and_goes_on(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    refused = launch.read(argv)
    assert isinstance(refused, launch.Unusable)
    assert argv[0].split("=")[0] in refused.problem
    assert capsys.readouterr() == ("", "")


def test_a_value_outside_its_closed_set_cannot_be_made_either() -> None:
    with pytest.raises(ValueError, match="--overlap: 'maybe' is not one of on, off"):
        LaunchOptions(overlap="maybe")  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_option_says_what_it_does(field: dataclasses.Field[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert len(field.metadata["help"]) > 10
    with pytest.raises(SystemExit):
        launch.parse(["--help"])
    assert launch.flag(field.name) in capsys.readouterr().out


def test_an_option_that_may_be_none_says_what_happens_then() -> None:
    for field in FIELDS:
        if field.default is None:
            assert "default: " in field.metadata["help"] or "none: " in field.metadata["help"], field.name
