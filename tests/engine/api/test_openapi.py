"""The OpenAPI document tells the truth, and no request drawn from it makes the server fail."""

from __future__ import annotations

import json
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, settings
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.generation import GenerationMode
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import positive_data_acceptance
from support_api import MODEL
from support_fake_client import VOCAB_SIZE, FakeClient
from support_service import byte_tokenizer

from sapwood_engine.api.admin import build_admin_app
from sapwood_engine.api.app import build_app
from sapwood_text.chat_template import JinjaTemplate
from sapwood_text.prompt_reader import PromptReader

POSITIVE, NEGATIVE = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
BOUNDED = settings(
    max_examples=60,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
# A schema cannot say that ids are below the vocabulary's size or that two fields agree; see `made_to_agree`.
UNSAYABLE = [positive_data_acceptance]


def load(app: FastAPI, *modes: GenerationMode) -> BaseSchema:
    generation = GenerationConfig(modes=list(modes), deterministic=True, database="none", codec="utf-8")
    config = SchemathesisConfig(projects=ProjectsConfig(default=ProjectConfig(generation=generation)))
    return schemathesis.openapi.from_asgi("/openapi.json", app, config=config)


class Undrained(FakeClient):
    async def drain(self, deadline_seconds: float | None = None) -> None:
        """Stay ready: a drained engine rightly answers 503 to all that follows."""


public = load(build_app(FakeClient()), POSITIVE, NEGATIVE)
admin = load(build_admin_app(Undrained()), POSITIVE, NEGATIVE)
tokenizer = byte_tokenizer(
    JinjaTemplate("{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.tool_calls }}\n{% endfor %}", {})
)
READER = PromptReader(tokenizer, "revision")
roomy = FakeClient(tokenizer=tokenizer).with_capacity(
    max_context_tokens=2**20
)  # as many messages as the document allows do fit
sensible = load(build_app(roomy), POSITIVE).include(path_regex="completions$")


def every_error_is_an_error_object(response: Any) -> None:
    if response.status_code >= 400:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert response.status_code != 422


@public.parametrize()
@BOUNDED
def test_no_request_makes_the_public_api_fail(case: Any) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = MODEL  # else most requests end at the model's name
    response = case.call()
    case.validate_response(response, excluded_checks=UNSAYABLE)
    every_error_is_an_error_object(response)


@admin.parametrize()
@BOUNDED
def test_no_request_makes_the_admin_api_fail(case: Any) -> None:
    response = case.call()
    case.validate_response(response, excluded_checks=UNSAYABLE)
    every_error_is_an_error_object(response)


def made_to_agree(body: dict[str, Any]) -> dict[str, Any]:
    """Return ``body`` with the served model, ids of its vocabulary, and fields that do not contradict."""
    agreeing = body | {"n": 1, "seed": 1, "max_tokens": 9, "min_tokens": None, "model": MODEL}
    for name in ("best_of", "max_completion_tokens", "continue_final_message", "chat_template_kwargs"):
        agreeing.pop(name, None)
    if not body.get("stream"):
        agreeing.pop("stream_options", None)
    if "messages" in body:
        agreeing["logprobs"] = True
        agreeing["messages"] = [{"content": "", **message} for message in body["messages"]]
        for message in agreeing["messages"]:
            message["content"] = message["content"] or ""
    if "prompt" in body:
        agreeing["prompt"] = in_vocabulary(body["prompt"])
    for name in ("priority", "top_k", "top_logprobs", "logprobs"):
        if isinstance(body.get(name), float):  # JSON Schema counts 1.0 among the integers
            agreeing[name] = int(body[name])
    agreeing["stop_token_ids"] = in_vocabulary(body.get("stop_token_ids") or [0])
    agreeing["logit_bias"] = {str(int(i) % VOCAB_SIZE): b for i, b in (body.get("logit_bias") or {}).items()}
    return agreeing


def in_vocabulary(prompt: Any) -> Any:
    if isinstance(prompt, list):
        return [in_vocabulary(item) for item in prompt]
    return (prompt or "x") if isinstance(prompt, str) else int(prompt) % VOCAB_SIZE


@sensible.parametrize()
@BOUNDED
def test_a_request_of_the_document_whose_fields_agree_is_answered_and_readable_from_afar(case: Any) -> None:
    case.body = made_to_agree(case.body)
    num_asked = len(roomy.asked)
    response = case.call()
    assert response.status_code == 200, response.text
    case.validate_response(response)
    assert READER.read(case.path, json.loads(json.dumps(case.body))) == roomy.asked[num_asked].prompt_ids


@pytest.mark.parametrize("app", [build_app(FakeClient()), build_admin_app(FakeClient())])
def test_the_document_promises_no_422_and_an_error_object_for_all_else(app: FastAPI) -> None:
    paths = app.openapi()["paths"]
    for path, operations in paths.items():
        for operation in operations.values():
            assert "422" not in operation["responses"], path
            if "503" not in operation["responses"] and path not in ("/livez", "/metrics"):
                schema = operation["responses"]["default"]["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorAnswer"}, path
