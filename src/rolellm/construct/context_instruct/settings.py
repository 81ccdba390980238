"""How Context-Instruct is run. The paper says: several runs, at least 400 candidates a role; the rest is our choice."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from rolellm.construct.context_instruct.filters import FilterSettings
from rolellm.errors import RecipeError
from rolellm.llm.model import Sampling

#: Of the release's role-specific questions, the share that is script-agnostic: 13,220 of 20,384 (Table 1 of the paper).
AGNOSTIC_SHARE: Final = 0.65


@dataclass(frozen=True, slots=True)
class InstructSettings:
    """What is asked for.

    Attributes:
        per_role: Different questions to make before any filter. The paper: at least 400 candidates.
        script_agnostic_share: Of these, the part made from the profile; the release's share. All, or none, where the
            character has nothing else, or no profile.
        per_request: Pairs that one request asks for (ours: 10 with their ratings stay under 2,000 tokens).
        rounds: The most rounds.
        chunk_tokens: Of script and lore in a prompt (ours: instructions, examples, description, chunk and reply come to
            about 5,000 tokens).
        overlap_tokens: What a chunk repeats of the one before.
        asked_tokens: The most tokens of a prompt that say what was asked already.
        sampling: The paper's for question generation: temperature 0.7, top_p 0.95, 2,000 tokens.
        seed: Draws the order of the script's chunks.
        filters: What candidates go through.

    Raises:
        RecipeError: For a value out of range.
    """

    per_role: int = 400
    script_agnostic_share: float = AGNOSTIC_SHARE
    per_request: int = 10
    rounds: int = 12
    chunk_tokens: int = 1000
    overlap_tokens: int = 100
    asked_tokens: int = 400
    sampling: Sampling = field(default_factory=lambda: Sampling(max_tokens=2000))
    seed: int = 0
    filters: FilterSettings = field(default_factory=FilterSettings)

    def __post_init__(self) -> None:
        for name, least in (("per_role", 1), ("per_request", 1), ("rounds", 1), ("chunk_tokens", 50)):
            if getattr(self, name) < least:
                raise RecipeError(f"{name} is {getattr(self, name)}; it has to be at least {least}")
        if not 0 <= self.overlap_tokens <= self.chunk_tokens // 2:
            raise RecipeError(
                f"overlap_tokens is {self.overlap_tokens}; it has to be from 0 to half of chunk_tokens, which is "
                f"{self.chunk_tokens}"
            )
        if self.asked_tokens < 0:
            raise RecipeError(f"asked_tokens is {self.asked_tokens}; it has to be 0 or more")
        if not 0 <= self.script_agnostic_share <= 1:
            raise RecipeError(f"script_agnostic_share is {self.script_agnostic_share}; it has to be from 0 to 1")

    def to_dict(self) -> dict[str, Any]:
        """As one JSON object, for the manifest."""
        value = asdict(self)
        value["sampling"]["stop"] = list(self.sampling.stop)
        return {**value, "filters": self.filters.to_dict()}
