"""How a role is played: the settings of `rolellm.RolePlayer`, ``rolellm chat`` and ``rolellm serve``."""

from __future__ import annotations

from pathlib import Path

from rolellm.characters.settings import SamplingSettings
from rolellm.core.settings import Advanced, Field, settings
from rolellm.models.prompts.encode import REPLY_TOKENS


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
class PlaySettings(PromptLimits, SamplingSettings):
    """Settings of a role that is played.

    Attributes:
        max_tokens: Maximum tokens per reply.
    """

<<<<<<< HEAD
    max_tokens: Advanced[int] = Field(default=REPLY_TOKENS, ge=1)


@settings
class ConverseSettings(PlaySettings):
    """Settings of a simulated user that talks with roles.

    Attributes:
        turns: Turns per session, each a message from the user and a reply.
        script: Text file with the user's messages, one per line, instead of a simulated user.
        persona: Who the simulated user is and what they want; a text in the roles' language.
    """

    turns: int = Field(default=20, ge=1, le=1000)
    script: Path | None = None
    persona: str | None = None
=======
    max_tokens: int = Field(default=REPLY_TOKENS, ge=1)
>>>>>>> main
