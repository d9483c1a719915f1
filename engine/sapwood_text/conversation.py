"""How a conversation's messages are handed to a model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from sapwood_text.schemas import Message


class RendersChats(Protocol):
    """The part of a tokenizer that knows the chat template."""

    def render_chat(
        self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True, **template_kwargs: Any
    ) -> str: ...


def render(
    tokenizer: RendersChats,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """Return the prompt that the model's chat template makes of ``messages``; None of an argument: not asked for.

    Raises `UnusableText` where the template refuses them.
    """
    arguments = {**(template_kwargs or {}), **_how_the_prompt_ends(add_generation_prompt, continue_final_message)}
    return tokenizer.render_chat([_template_message(message) for message in messages], **arguments)


def _how_the_prompt_ends(add_generation_prompt: bool | None, continue_final_message: bool | None) -> dict[str, bool]:
    """Return the template's arguments; the second is left out unless asked for, as few templates know it."""
    if continue_final_message:
        return {"add_generation_prompt": False, "continue_final_message": True}
    return {"add_generation_prompt": add_generation_prompt is not False}


def _template_message(message: Message) -> dict[str, Any]:
    """Return ``message`` as chat templates expect it: content is always text, arguments are objects.

    A missing content becomes "", because templates would print "None"; a developer is a system, because
    open models know no developer and some templates would drop the turn.
    """
    role = "system" if message.role == "developer" else message.role
    turn: dict[str, Any] = {"role": role, "content": message.content or ""}
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": call.type,
                "function": {"name": call.function.name, "arguments": _as_object(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    return turn


def _as_object(arguments: str) -> dict[str, Any] | str:
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):  # what a model once wrote need not be JSON
        return arguments
