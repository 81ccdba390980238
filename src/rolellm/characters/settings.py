"""Settings of requests to a role: sampling, the content of its prompt, and the rules for its replies."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rolellm.core.settings import Advanced, Field, settings
from rolellm.llm.model import Sampling

Strategy = Literal["zero-shot", "few-shot-prompt", "few-shot-dialogue"]
Rule = Literal["complete", "hides_ai", "hides_role", "answers"]


@settings
class SamplingSettings:
    """Sampling of replies: the paper's values (arXiv 2310.00746, by secondary notes).

    Attributes:
        temperature: Sampling temperature; 0 is greedy.
        max_tokens: Maximum tokens per reply.
    """

    temperature: Advanced[float] = Field(default=0.7, ge=0)
    max_tokens: Advanced[int] = Field(default=2000, ge=1)

    @property
    def sampling(self) -> Sampling:
        """For requests."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)


@settings
class PromptSettings:
    """The prompt that puts a question to a role.

    Attributes:
        strategy: Demonstrations: none, as text in one turn, or as turns of a dialogue.
        demonstrations: Exchanges to show as demonstrations.
        lore: Maximum lore entries per prompt.
        max_prompt_tokens: Maximum tokens per prompt; the worst demonstrations and lore are left out first.
        system_template: Your own system template, with {role} and {description}.
    """

    strategy: Strategy = "few-shot-dialogue"
    demonstrations: Advanced[int] = Field(default=5, ge=0)
    lore: Advanced[int] = Field(default=2, ge=0)
    # Ours: fits a context of 4,096 tokens.
    max_prompt_tokens: Advanced[int | None] = Field(default=3000, ge=1)
    system_template: Advanced[Path | None] = None

    @property
    def shown(self) -> int:
        """The number of demonstrations that a prompt shows where there is room."""
        return 0 if self.strategy == "zero-shot" else self.demonstrations
