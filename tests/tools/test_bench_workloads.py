"""The workload files say what their README promises, and are read or refused line by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sapwood_tools.bench import workloads
from sapwood_tools.bench.workloads import Completion, Conversation, WorkloadError

FOLDER = Path("bench/workloads")
SHAPES = {
    "a_shared": (32, 32),
    "b_multiturn": (8, 32),
    "c_random": (32, 32),
    "d_fewshot": (32, 32),
    "e_decode1": (1, 128),
    "f_decode16": (16, 128),
}
"""Workload -> (items, output tokens of each answer)."""


@pytest.mark.parametrize("variant", range(workloads.NUM_VARIANTS))
@pytest.mark.parametrize("name", workloads.CONCURRENCY)
def test_every_variant_of_a_workload_has_the_same_shape(name: str, variant: int) -> None:
    workload = workloads.load(FOLDER, name, variant)
    assert (len(workload.items), {item.max_tokens for item in workload.items}) == (
        SHAPES[name][0],
        {SHAPES[name][1]},
    )


def test_no_prompt_occurs_in_two_variants() -> None:
    seen: set[str] = set()
    for name in workloads.CONCURRENCY:
        for variant in range(workloads.NUM_VARIANTS):
            items = workloads.load(FOLDER, name, variant).items
            prompts = {item.prompt if isinstance(item, Completion) else item.system for item in items}
            assert seen.isdisjoint(prompts)
            seen |= prompts


def test_a_shared_prompts_begin_alike_for_a_thousand_tokens() -> None:
    prompts = [item.prompt for item in workloads.load(FOLDER, "a_shared", 0).items if isinstance(item, Completion)]
    shared = prompts[0].index("<|im_start|>user")
    assert len({prompt[:shared] for prompt in prompts}) == 1
    assert len(set(prompts)) == len(prompts)


def test_the_warm_up_shares_no_prompt_with_any_workload() -> None:
    warm = {item.prompt for item in workloads.load_warm_up(FOLDER).items if isinstance(item, Completion)}
    assert len(warm) == 10
    for name in workloads.CONCURRENCY:
        assert warm.isdisjoint(i.prompt for i in workloads.load(FOLDER, name, 0).items if isinstance(i, Completion))


def test_a_conversation_is_rendered_as_the_prompts_in_the_files_are() -> None:
    prompt = next(i.prompt for i in workloads.load(FOLDER, "d_fewshot", 0).items if isinstance(i, Completion))
    system, rest = prompt.removeprefix("<|im_start|>system\n").split("<|im_end|>\n", 1)
    rendered = workloads.opening(system)
    parts = rest.split("<|im_start|>")[1:]
    for asked, answered in zip(parts[0:-2:2], parts[1:-1:2], strict=True):
        rendered += workloads.question(asked.removeprefix("user\n").removesuffix("<|im_end|>\n"))
        rendered += workloads.answer(answered.removeprefix("assistant\n").removesuffix("<|im_end|>\n"))
    rendered += workloads.question(parts[-2].removeprefix("user\n").removesuffix("<|im_end|>\n"))
    assert rendered == prompt


def test_both_kinds_of_item_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = [
        {"kind": "completion", "prompt": "p", "prompt_tokens": 3, "max_tokens": 4},
        {"kind": "conversation", "system": "s", "turns": ["t", "u"], "max_tokens": 5},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert workloads.read_items(path) == (Completion("p", 3, 4), Conversation("s", ("t", "u"), 5))


@pytest.mark.parametrize(
    "line", ["{", '{"kind": "song"}', '{"kind": "completion", "prompt": "p", "max_tokens": 4}', "[]"]
)
def test_a_line_that_cannot_be_used_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.jsonl"
    good = '{"kind": "completion", "prompt": "p", "prompt_tokens": 3, "max_tokens": 4}'
    path.write_text(f"{good}\n{line}\n")
    with pytest.raises(WorkloadError, match=r"x\.jsonl:2: "):
        workloads.read_items(path)


def test_a_missing_folder_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="--data"):
        workloads.load(tmp_path / "nowhere", "a_shared", 0)
