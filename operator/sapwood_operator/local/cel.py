"""The rules in CEL (``x-kubernetes-validations``) of a definition, run as the API server runs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import celpy
from celpy import celtypes
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError, CELFunction, Evaluator, Result

from sapwood_operator.local.definitions import Schema
from sapwood_operator.local.problems import Problem, below, unusable

_RULES = "x-kubernetes-validations"


def rule_problems(schema: Schema, value: Any, before: Any = None, path: str = "") -> Iterator[Problem]:
    """Yield what the rules of ``schema`` and below find wrong with ``value``, which conforms to the schema.

    ``before``: what was in force at this place, for rules about changes; None: nothing.
    """
    for rule in schema.get(_RULES, ()):
        if (problem := _broken(rule, value, before, path)) is not None:
            yield problem
    if isinstance(value, Mapping):
        former = before if isinstance(before, Mapping) else {}
        for name, inner in value.items():
            node = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if isinstance(node, Mapping):
                yield from rule_problems(node, inner, former.get(name), below(path, name))
    elif isinstance(value, list) and "items" in schema:
        for index, inner in enumerate(value):
            yield from rule_problems(schema["items"], inner, None, below(path, index))


def _broken(rule: Mapping[str, Any], value: Any, before: Any, path: str) -> Problem | None:
    program, is_about_change = _compiled(rule["rule"])
    if is_about_change and before is None:
        return None
    known = {"self": json_to_cel(value)} | ({"oldSelf": json_to_cel(before)} if is_about_change else {})
    try:
        holds = bool(program.evaluate(known))
    except CELEvalError as error:
        # As the API server has it: what cannot be judged is not let through.
        return unusable(path, value, f"{rule['message']} (the rule cannot be judged: {error.args[0]})")
    if holds:
        return None
    return unusable((path + rule.get("fieldPath", "")).removeprefix("."), _shown(rule, value), rule["message"])


def _shown(rule: Mapping[str, Any], value: Any) -> Any:
    """Return the value at the rule's ``fieldPath``; an empty object where nothing is there to be shown."""
    for step in rule.get("fieldPath", "").split(".")[1:]:
        value = value.get(step, {}) if isinstance(value, Mapping) else {}
    return value


@cache
def _compiled(rule: str) -> tuple[celpy.Runner, bool]:
    environment = celpy.Environment(runner_class=_Runner)
    return environment.program(environment.compile(rule), functions=_EXTENSIONS), "oldSelf" in rule


def _split(text: celtypes.StringType, separator: celtypes.StringType) -> celtypes.ListType:
    return celtypes.ListType([celtypes.StringType(part) for part in text.split(separator)])


_EXTENSIONS: dict[str, CELFunction] = {"split": _split}
"""Functions that Kubernetes adds to CEL, as far as our rules use them."""


class _Lazily(Evaluator):
    """Does not look at the right side where the left one decides: inside of a macro the library would fail there."""

    def conditionalor(self, tree: Any) -> Result:
        return self._either(tree, decisive=True)

    def conditionaland(self, tree: Any) -> Result:
        return self._either(tree, decisive=False)

    def _either(self, tree: Any, *, decisive: bool) -> Result:
        left: Result = self.visit(tree.children[0])
        if len(tree.children) == 1 or (isinstance(left, celtypes.BoolType) and bool(left) is decisive):
            return left
        combine = celtypes.logical_or if decisive else celtypes.logical_and
        combined: Result = combine(left, self.visit(tree.children[1]))  # type: ignore[arg-type]  # errors go through it
        return combined


class _Runner(celpy.InterpretedRunner):
    def evaluate(self, context: Any) -> celtypes.Value:
        return _Lazily(ast=self.ast, activation=self.new_activation()).evaluate(context)
