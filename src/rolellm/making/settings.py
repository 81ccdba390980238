"""The settings of stages 1 to 3, as `rolellm role`, `rolellm instruct`, `rolellm respond` and `Character` take them."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from rolellm.characters.settings import PromptSettings, SamplingSettings
from rolellm.core.errors import SettingsError
from rolellm.core.settings import Advanced, Field, settings

Level = Literal["high", "medium", "low"]

#: Script-agnostic share of the release's role-specific questions: 13,220 of 20,384 (Table 1 of the paper).
AGNOSTIC_SHARE: Final = 0.65
#: Minimum share of content words that have to be found (our choice).
LEAST_FOUND: Final = 0.25


@settings
class BuildSettings(SamplingSettings):
    """Settings for building a profile.

    Attributes:
        catchphrases: Maximum catchphrases.
        description: Your own description, in the second person.
        rewrite: Have the model describe the character anew where a card or a person did.
        excerpt_tokens: Script tokens in the prompt.
    """

    # No role of the release has more than 3.
    catchphrases: int = Field(default=3, ge=0, le=20)
    description: str | None = Field(default=None, json_schema_extra={"cli": False})
    rewrite: bool = False
    excerpt_tokens: Advanced[int] = Field(default=6000, ge=200)

    def __post_init__(self) -> None:
        if self.description is not None and not self.description.strip():
            raise SettingsError("the description is empty; leave it out to have one written")


@settings
class FilterSettings:
    """Filters (replies come from the run's journal: changing filters asks no model).

    Attributes:
        min_confidence: Minimum level of both ratings.
        min_overlap: Minimum share of a script-based pair's content words that its segment or the profile has.
    """

    min_confidence: Level = "medium"
    min_overlap: Advanced[float] = Field(default=LEAST_FOUND, ge=0, le=1)


@settings
class InstructSettings(FilterSettings, SamplingSettings):
    """Settings for Context-Instruct. The paper makes at least 400 candidates per role.

    Attributes:
        per_role: Distinct questions to make, before any filter.
        per_request: Pairs per request.
        chunk_tokens: Script tokens per prompt.
    """

    per_role: int = Field(default=400, ge=1)
    # Ours: 10 pairs with their ratings stay under 2,000 tokens.
    per_request: Advanced[int] = Field(default=10, ge=1)
    # Ours: instructions, examples, description, chunk and reply come to about 5,000 tokens.
    chunk_tokens: Advanced[int] = Field(default=1000, ge=50)


@settings
class RespondSettings(PromptSettings, SamplingSettings):
    """Settings for RoleGPT. The paper: six replies per instruction, the last of them held out.

    Attributes:
        replies: Replies per instruction; the last is held out as the baseline.
        max_tokens: Maximum tokens per reply.
    """

    replies: int = Field(default=6, ge=1)
    max_tokens: Advanced[int] = Field(default=200, ge=1)

    def __post_init__(self) -> None:
        if self.replies > 1 and self.temperature == 0:
            raise SettingsError(
                f"temperature 0 gives the same reply {self.replies} times, and the held-out one would be among the "
                "references; raise it, or ask for one reply (--replies 1)"
            )


@settings
class SplitRule:
    """Settings for splitting a release.

    Attributes:
        test_share: Share of questions for test.
        held_out: Hold this role out for role generalization; may be repeated.
        seed: Random seed for the held-out questions and roles.
    """

    test_share: Advanced[float] = Field(default=0.2, gt=0, lt=1)
    held_out: tuple[str, ...] = ()
    seed: int = Field(default=0, json_schema_extra={"cli": False})


@settings
class PreferSettings:
    """Pairs to prefer.

    Attributes:
        config: Config of the dataset, such as sample; without SOURCE, the default one.
        data_dir: Local copy of the release (or $ROLEBENCH_DIR).
        balance: Even out the lengths of chosen and rejected replies, so that length teaches nothing.
    """

    config: str | None = None
    data_dir: Advanced[Path | None] = None
    balance: Advanced[bool] = True
