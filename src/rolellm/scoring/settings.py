"""Settings of answers and of scores: each option's name, type, default, limits and help."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from rolellm.core.settings import Advanced, Field, settings
from rolellm.models.local_model import Decoding

Protocol = Literal["rouge-score", "paper"]
ProfileKind = Literal["description", "retrieval"]
# Options that a command declares by itself, since they are not those of every caller.
_OWN: dict[str, Any] = {"cli": False}


def has_held_out_roles(config: str | None) -> bool:
    """Tell whether a config holds roles out, so that intervals for new roles come first."""
    return (config or "").startswith("role-generalization")


@settings
class DataSettings:
    """The rows: where RoleBench is, and what is noted of them with each figure.

    Attributes:
        config: The dataset's config.
        split: Its split.
        dataset_fingerprint: Its content hash; for scores, by default a hash of the rows.
        data_dir: A local copy of the release.
    """

    config: str | None = Field(default=None, json_schema_extra=_OWN)
    split: str | None = Field(default=None, json_schema_extra=_OWN)
    dataset_fingerprint: str | None = Field(default=None, json_schema_extra=_OWN)
    data_dir: Path | None = Field(default=None, json_schema_extra=_OWN)


@settings
class GenerateSettings(Decoding, DataSettings):
    """Settings of `rolellm generate`.

    Attributes:
        model: A folder with a model, adapter or training run; or a Hub id.
        adapter: A PEFT adapter to put on a full model.
        engine: For a local model: builtin, vllm, or vLLM's path; auto: vLLM where found with a GPU.
        batch_size: Maximum prompts per forward pass; by default as many as memory holds, and 64 on a CPU.
        system_template: Your own system instruction: a text file with {role} and {description}.
        dtype: auto: the model's own on CUDA, float32 on a CPU.
        overwrite: Start over if the predictions file exists.
        profile: What a prompt says about the role; defaults to the model's tuning.
        retrieved: With retrieval, exchanges per prompt; by default as the model was tuned.
        strict: Refuse rows that the model was trained on.
        ray: Generate on the workers of a Ray cluster: its address, or local; not for models behind an API, whose
            `rolellm.LLM` has it.
        workers: With `ray`: how many; by default one per GPU, or per CPU where there are none.
    """

    model: str = Field(default="", json_schema_extra=_OWN)
    adapter: Advanced[str | None] = None
    engine: str = "auto"
    batch_size: Advanced[int | None] = Field(default=None, ge=1)
    system_template: Advanced[Path | None] = None
    dtype: Advanced[Literal["auto", "float32", "bfloat16", "float16"]] = "auto"
    overwrite: bool = False
    profile: Advanced[ProfileKind | None] = None
    retrieved: int | None = Field(default=None, ge=1, json_schema_extra=_OWN)
    strict: Advanced[bool] = False
    ray: Advanced[str | None] = None
    workers: int | None = Field(default=None, ge=1, json_schema_extra=_OWN)


@settings
class ScoreOptions(DataSettings):
    """Settings of `rolellm score`.

    Attributes:
        protocol: rouge-score (F1), or paper (recall, as in the published tables).
        tokenizer: Another tokenizer of the protocol, such as characters (for Chinese).
        strict: Fail on unmatched rows or predictions, contradictions, and rows trained on.
    """

    protocol: Protocol = "rouge-score"
    tokenizer: Advanced[str | None] = None
    strict: Advanced[bool] = False

    def __post_init__(self) -> None:
        if self.tokenizer is not None:
            from rolellm.scoring.rouge import TOKENIZERS, resolve_tokenizer

            languages = [language for language, names in TOKENIZERS[self.protocol].items() if self.tokenizer in names]
            resolve_tokenizer(self.protocol, (languages or ["en"])[0], self.tokenizer)

    @property
    def where(self) -> str:
        """Config and split in words."""
        return "/".join(part for part in (self.config, self.split) if part) or "the dataset"
