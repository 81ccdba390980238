"""A published ChatGLM2-6B or ChatGLM3-6B checkpoint as a native one: weights, configuration, tokenizer, template."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from rolellm.core.errors import ModelError, RecipeError, require
from rolellm.core.files import whole_folder
from rolellm.rocit.chatglm.config import DType, Family, Published, read_config
from rolellm.rocit.chatglm.tokenizer import convert_tokenizer, differences, stop_tokens
from rolellm.rocit.chatglm.weights import check_names, convert_weights, find_shards, places

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True)
class Converted:
    """What a conversion made.

    Attributes:
        out: The folder with the native checkpoint.
        family: ``chatglm2`` or ``chatglm3``.
        dtype: The weights' type, such as ``float16``.
        parameters: Numbers in all tensors.
        bytes: Bytes of all tensors.
        files: How many files the tensors lie in.
        tokenizer: How many ``texts`` the tokenizer was compared on with SentencePiece, and how many are ``differing``.
    """

    out: Path
    family: Family
    dtype: str
    parameters: int
    bytes: int
    files: int
    tokenizer: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """The same as one JSON object."""
        return asdict(self) | {"out": str(self.out)}


def convert_chatglm(
    src: str | Path,
    dst: str | Path,
    *,
    dtype: DType | None = None,
    family: Family | None = None,
    allow_differences: bool = False,
) -> Converted:
    """Turn a published checkpoint into a native `GlmForCausalLM` with a fast tokenizer; complete, or not at all.

    Args:
        src: A folder in the layout of THUDM/chatglm2-6b or THUDM/chatglm3-6b, with safetensors or ``.bin`` shards. Its
            Python files are not run.
        dst: The folder to make; it may be there when it is empty.
        dtype: The weights' type; by default the checkpoint's own.
        family: Which of the two it is; by default what the folder says.
        allow_differences: Go on when the fast tokenizer cuts some text otherwise than SentencePiece does.

    Raises:
        RecipeError: When ``dst`` is not an empty or a new folder, or ``dtype`` or ``family`` is unknown.
        ModelError: When the checkpoint is of another kind, quantized, incomplete or broken; names what is wrong.
        MissingExtraError: Without the ``train`` extra.
    """
    require("torch", "transformers", "safetensors", "sentencepiece", extra="train")
    from safetensors import SafetensorError

    source, target = Path(src), Path(dst)
    _check_options(dtype, family)
    _check_target(source, target)
    # All that can be refused is refused before a byte is written.
    model = read_config(source, family)
    shards = find_shards(source)
    table = places(model)
    check_names(shards, table)
    tokenizer = convert_tokenizer(source, model.family)
    texts, differing = _check_tokenizer(source, tokenizer, model, allow_differences)
    try:
        with whole_folder(target) as partial:
            written = convert_weights(shards, table, model, partial, dtype)
            _save_rest(partial, source, model, tokenizer, written.dtype)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{target} cannot be written: {error}") from error
    compared = {"texts": texts, "differing": differing}
    return Converted(out=target, family=model.family, tokenizer=compared, **asdict(written))


def _check_options(dtype: str | None, family: str | None) -> None:
    for name, found, known in (("dtype", dtype, get_args(DType)), ("family", family, get_args(Family))):
        if found is not None and found not in known:
            raise RecipeError(f"unknown {name} {found!r}; known: {', '.join(known)}")


def _check_target(source: Path, target: Path) -> None:
    if not source.is_dir():
        raise ModelError(f"no folder at {source}; give the folder of a downloaded ChatGLM2 or ChatGLM3 checkpoint")
    if target.is_dir() and any(target.iterdir()):
        raise RecipeError(f"{target} is not empty; give a new folder, or clear it first")
    if target.exists() and not target.is_dir():
        raise RecipeError(f"{target} is a file; give a folder to make")


def _check_tokenizer(
    source: Path, tokenizer: PreTrainedTokenizerFast, model: Published, allow: bool
) -> tuple[int, int]:
    rows = model.native["vocab_size"]
    if len(tokenizer) > rows:
        raise ModelError(
            f"tokenizer.model makes {len(tokenizer)} tokens and the embedding has {rows} rows; they do not "
            "belong together"
        )
    texts, differing = differences(source, tokenizer)
    if differing and not allow:
        shown = ", ".join(map(repr, differing[:3]))
        raise ModelError(
            f"the fast tokenizer cuts {len(differing)} of {texts} texts otherwise than tokenizer.model does, such as "
            f"{shown}; to accept that, convert with --allow-differences"
        )
    return texts, len(differing)


def _save_rest(partial: Path, source: Path, model: Published, tokenizer: PreTrainedTokenizerFast, dtype: str) -> None:
    from transformers import GenerationConfig, GlmConfig

    tokens = {"eos_token_id": stop_tokens(tokenizer), "pad_token_id": int(tokenizer.pad_token_id)}
    GlmConfig(**model.native | tokens, dtype=dtype).save_pretrained(partial)
    GenerationConfig(**tokens).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    # The weights go on under the license they came with.
    for pattern in ("LICENSE*", "MODEL_LICENSE*"):
        for file in source.glob(pattern):
            shutil.copyfile(file, partial / file.name)
