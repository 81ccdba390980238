"""How rows are answered and how answers are scored: each option's name, type, default, limits and help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rolellm.core.settings import Field, settings
from rolellm.models.local_model import Decoding

if TYPE_CHECKING:
    from rolellm.evaluation.statistics.bootstrap import Bootstrap

Protocol = Literal["rouge-score", "paper"]
ProfileKind = Literal["description", "retrieval"]
# Options that a command declares by itself, since they are not those of every caller.
_OWN: dict[str, Any] = {"cli": False}


@settings
class _Data:
    """The rows: where RoleBench is, and what is noted of them with each figure."""

    config: str | None = Field(default=None, description="The dataset's config.", json_schema_extra=_OWN)
    split: str | None = Field(default=None, description="Its split.", json_schema_extra=_OWN)
    dataset_fingerprint: str | None = Field(
        default=None, description="Its content hash; for scores, by default a hash of the rows.", json_schema_extra=_OWN
    )
    data_dir: Path | None = Field(default=None, description="A local copy of the release.", json_schema_extra=_OWN)


@settings
class Resampled:
    """The bootstrap behind all intervals, which are 95 % intervals."""

    resamples: int = Field(default=2000, ge=1, description="Bootstrap resamples over questions.")
    seed: int = Field(default=0, ge=0, description="Random seed for the bootstrap.")

    @property
    def bootstrap(self) -> Bootstrap:
        """The same as its settings."""
        from rolellm.evaluation.statistics.bootstrap import Bootstrap

        return Bootstrap(self.resamples, self.seed)


@settings
class GenerateSettings(Decoding, _Data):
    """How rows are answered."""

    model: str = Field(
        default="", description="A folder with a model, adapter or training run; or a Hub id.", json_schema_extra=_OWN
    )
    adapter: str | None = Field(default=None, description="A PEFT adapter to put on a full model.")
    batch_size: int = Field(default=8, ge=1, description="Prompts per forward pass.")
    system_template: Path | None = Field(
        default=None, description="Your own system instruction: a text file with {role} and {description}."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto: CUDA where available.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="auto: the model's own on CUDA, float32 on a CPU."
    )
    overwrite: bool = Field(default=False, description="Start over if the predictions file exists.")
    profile: ProfileKind | None = Field(
        default=None, description="What a prompt says about the role; by default, what the model was tuned with."
    )
    retrieved: int | None = Field(default=None, ge=1, description="With retrieval, exchanges per prompt.")
    strict: bool = Field(
        default=False, description="Refuse rows that the model was trained on, according to its manifest."
    )


@settings
class ScoreOptions(Resampled, _Data):
    """How predictions are scored."""

    protocol: Protocol = Field(
        default="rouge-score", description="rouge-score (F1), or paper (recall, as in the published tables)."
    )
    tokenizer: str | None = Field(
        default=None, description="Another tokenizer of the protocol, such as characters (for Chinese)."
    )
    missing: Literal["skip", "zero"] = Field(
        default="skip", description="Rows without a prediction: skip them, or count them as 0."
    )
    strict: bool = Field(
        default=False, description="Fail on unmatched rows or predictions, contradictions, and rows trained on."
    )
    skip_bad: bool = Field(default=False, description="Move bad lines of P.jsonl to P.bad.jsonl and count them.")
    processes: int = Field(default=1, ge=1, description="Processes that compute Rouge-L.")

    def __post_init__(self) -> None:
        if self.tokenizer is not None:
            from rolellm.evaluation.rouge import TOKENIZERS, resolve_tokenizer

            names = TOKENIZERS[self.protocol]
            resolve_tokenizer(
                self.protocol, next((one for one in names if self.tokenizer in names[one]), "en"), self.tokenizer
            )

    @property
    def where(self) -> str:
        """Config and split in words."""
        return "/".join(part for part in (self.config, self.split) if part) or "the dataset"
