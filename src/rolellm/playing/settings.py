"""Settings of a role that is played: those of `rolellm.RolePlayer`, ``rolellm chat`` and ``rolellm serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rolellm.characters.settings import SamplingSettings
from rolellm.core.settings import Advanced, Field, settings
from rolellm.models.prompts.encode import REPLY_TOKENS

#: What becomes of turns that the context has no room for.
Memory = Literal["none", "summary"]


@settings
class PromptLimits:
    """Limits of a prompt.

    Attributes:
        context: Maximum tokens of prompt and reply together; by default what the model or its server says.
        system_template: Your own system template, with {role} and {description}.
    """

    context: Advanced[int | None] = Field(default=None, ge=1)
    system_template: Advanced[Path | None] = None


@settings
class ReplySettings(SamplingSettings):
    """Settings of a role's replies.

    Attributes:
        max_tokens: Maximum tokens per reply.
    """

    max_tokens: Advanced[int] = Field(default=REPLY_TOKENS, ge=1)


@settings
class PlaySettings(PromptLimits, ReplySettings):
    """Settings of a role that is played."""


@settings
class TalkSettings:
    """Talk.

    Attributes:
        me: Your name, for the card's {{user}}.
        persona: Who you are, in a sentence or two.
        greeting: Which of the card's greetings opens a new talk.
        memory: summary has the model summarize the turns that no longer fit into its context.
    """

    me: str = ""
    persona: str = ""
    greeting: Advanced[int] = Field(default=1, ge=1)
    memory: Memory = "none"
