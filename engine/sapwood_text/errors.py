"""What text code refuses, said without knowing who asked: the engine makes answers of it, the gateway a reason."""

from __future__ import annotations


class UnusableText(Exception):
    """What a client wrote, and the model's tokenizer or chat template cannot take."""

    def __init__(self, field: str, value: object, fix: str, *, code: str | None = "invalid_value") -> None:
        """``field``: of the request's body; ``value``: what may be quoted of it; ``fix``: what to change."""
        super().__init__(f"{field}: {fix}")
        self.field = field
        self.value = value
        self.fix = fix
        self.code = code


class UnusableTokenizer(Exception):
    """A tokenizer that is not read here."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}. {fix}")
        self.problem = problem
        self.fix = fix
