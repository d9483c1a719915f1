"""How a copy of the cluster's objects is kept, through watches that end, break and are too old."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from sapwood_gateway.shell.discovery.cluster_api import ApiFailure, Listing, Source, VersionGone
from sapwood_gateway.shell.discovery.reflector import Changed, Deleted, Listed, News, Reflector

SOURCE = Source("/api/v1/configmaps", "a=b")


def item(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"namespace": "team", "name": name, "resourceVersion": str(version)}}


def event(type_: str, name: str, version: int) -> dict[str, Any]:
    return {"type": type_, "object": item(name, version)}


Answer = Listing | list[Mapping[str, Any] | Exception] | Exception


@dataclass
class ScriptedApi:
    """Gives one answer after another; at their end it tells the reflector to stop."""

    answers: list[Answer]
    stop: Event = field(default_factory=Event)
    asked: list[str] = field(default_factory=list)

    def list(self, source: Source) -> Listing:
        assert source == SOURCE
        answer = self._next("list")
        assert isinstance(answer, Listing)
        return answer

    def watch(self, source: Source, version: str) -> Iterator[Mapping[str, Any]]:
        assert source == SOURCE
        answer = self._next(f"watch {version}")
        assert isinstance(answer, list)
        for each in answer:
            if isinstance(each, Exception):
                raise each
            yield each

    def close(self) -> None:
        raise AssertionError("that is the discovery's to do")

    def _next(self, asked: str) -> Answer:
        self.asked.append(asked)
        if not self.answers:
            self.stop.set()
            return Listing([], "0") if asked == "list" else []
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass
class Run:
    asked: list[str]
    news: list[News]
    num_failures: int


def run(*answers: Answer) -> Run:
    api = ScriptedApi(list(answers))
    news: list[News] = []
    failures: list[None] = []
    Reflector(
        api,
        SOURCE,
        tell=news.append,
        failed=lambda: failures.append(None),
        stop=api.stop,
        draw=lambda: 0.0,
    ).run()
    return Run(api.asked, news, len(failures))


def test_it_lists_then_follows_from_the_lists_version() -> None:
    done = run(
        Listing([item("a", 3)], "7"),
        [event("ADDED", "b", 8), event("MODIFIED", "a", 9), event("DELETED", "b", 10)],
    )
    assert done.asked == ["list", "watch 7", "watch 10"]
    assert done.news == [Listed([item("a", 3)]), Changed(item("b", 8)), Changed(item("a", 9)), Deleted(item("b", 10))]
    assert done.num_failures == 0


def test_a_watch_that_ends_is_begun_anew_where_it_was() -> None:
    assert run(Listing([], "7"), [event("ADDED", "a", 8)], [], [event("ADDED", "b", 9)]).asked == [
        "list",
        "watch 7",
        "watch 8",
        "watch 8",
        "watch 9",
    ]


def test_a_bookmark_moves_the_version_and_tells_nothing() -> None:
    done = run(Listing([], "7"), [event("BOOKMARK", "", 90)])
    assert done.asked[-1] == "watch 90"
    assert done.news == [Listed([])]


def test_a_watch_that_breaks_goes_on_where_it_was_without_listing_again() -> None:
    done = run(Listing([], "7"), [event("ADDED", "a", 8), ApiFailure("reset")], [event("ADDED", "b", 9)])
    assert done.asked == ["list", "watch 7", "watch 8", "watch 9"]
    assert done.num_failures == 1


def test_a_version_that_is_too_old_makes_it_list_again() -> None:
    done = run(Listing([item("a", 3)], "7"), VersionGone(), Listing([item("b", 20)], "21"))
    assert done.asked == ["list", "watch 7", "list", "watch 21"]
    assert done.news == [Listed([item("a", 3)]), Listed([item("b", 20)])]


def test_a_list_that_fails_is_tried_again_and_says_nothing_meanwhile() -> None:
    done = run(ApiFailure("refused"), ApiFailure("refused"), Listing([], "7"))
    assert done.asked == ["list", "list", "list", "watch 7"]
    assert done.news == [Listed([])]
    assert done.num_failures == 2
