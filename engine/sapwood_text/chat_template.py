"""A model's chat template, rendered by transformers: in its sandbox, and as every other user of the model renders it.

Of transformers only what does not import torch is used. Importing this module costs a second and 40 MB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from sapwood_text.errors import UnusableText


@dataclass(frozen=True, slots=True)
class JinjaTemplate:
    """A template in Jinja, and what it may call the model's special tokens."""

    source: str
    special_tokens: Mapping[str, str]
    """``bos_token`` and its like -> its text."""

    def render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        """Return the conversation as text; a variable wins over the special token of its name.

        Raises `UnusableText` where the template refuses the messages.
        """
        names = {**self.special_tokens, **variables}
        try:
            # Annotated as a text, it returns two lists: a text for each conversation, and what training asks for.
            rendered: Any = render_jinja_template(conversations=[messages], chat_template=self.source, **names)
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            # The value quoted is the roles alone: what a client wrote belongs in no error that may be logged.
            roles = [message.get("role") for message in messages]
            raise UnusableText("messages", roles, f"the model's chat template refuses them: {error}") from error
        return str(rendered[0][0])
