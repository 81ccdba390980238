"""Counting tokens: exactly with the model's tokenizer, else by an estimate; and a bound that no tokenizer exceeds.

The estimate was fitted (our own measurement) to the mean of four vocabularies of over 100,000 tokens (o200k, Llama 3,
Qwen, DeepSeek) on RoleBench and two scripts. Summed over many texts it is within 10 % for English, and within 30 % for
Chinese, where vocabularies differ that much among themselves. A single short text can be off by half. Vocabularies of
32,000 tokens (Llama 2, Mistral) need up to a third more in English and twice as many in Chinese. Other languages were
not measured.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import SettingsError, require
from rolellm.models.find import find_cached_folder
from rolellm.models.load import explain_load_failure
from rolellm.models.prompts.encode import check_time

if TYPE_CHECKING:
    from rolellm.llm.model import Message, Request

# What a message adds (role, separators) and what a prompt adds (start, and the start of the reply).
_MESSAGE, _PROMPT = 4, 3
# Chat templates in use add 3 to 12 tokens a message, and up to about 40 a prompt where they bring a preface.
_MESSAGE_BOUND, _PROMPT_BOUND = 24, 96
# The start of a text, which some tokenizers mark.
_TEXT_BOUND = 2
# Characters for which one token can stand, and tokens per word, on average over a text; `_RATES` never gives less.
_MOST_CHARACTERS, _FEWEST_PER_WORD = 16, 0.7
# Counts of longer texts are not kept: a server gets texts of megabytes.
_KEPT_CHARACTERS = 20_000

_HAN = "\u3400-\u9fff\uf900-\ufaff\u3040-\u30ff\uac00-\ud7af\U00020000-\U0003ffff"
#: Tokens that each match of a pattern stands for, and tokens for each of its characters.
_RATES = (
    # Twelve letters are the longest that is likely to be one token; what is longer may be no word at all.
    (re.compile(r"[A-Za-z]{1,12}"), 0.85, 0.04),
    (re.compile(r"[0-9]"), 0.75, 0.0),
    (re.compile(r"[!-/:-@\[-`{-~]{1,16}"), 1.15, 0.0),
    (re.compile(r"\s{2,}|\n"), 0.35, 0.0),
    (re.compile(f"[{_HAN}]+"), 0.0, 0.7),
    (re.compile(rf"[^\x00-\x7f\W{_HAN}]{{1,12}}"), 0.85, 0.4),
    (re.compile(rf"[^\x00-\x7f\w\s{_HAN}]"), 1.5, 0.0),
)


class TokenCounter:
    """Counts tokens of texts and prompts.

    Args:
        tokenizer: A folder with the model's tokenizer, or its id on the Hub where it is in the cache already: nothing
            is fetched. Without one, counts are estimates.

    Attributes:
        exact: Whether there is a tokenizer, so that a text's count is no estimate.

    Raises:
        SettingsError: For a tokenizer that is not there or cannot be read.
        MissingExtraError: For a tokenizer without transformers.
    """

    def __init__(self, tokenizer: str | Path | None = None) -> None:
        self._tokenizer: Any = None if tokenizer is None else _load(str(tokenizer))
        self.exact = tokenizer is not None

    def count(self, text: str) -> int:
        """Tokens of a text, special tokens not among them; 0 only for an empty one.

        >>> TokenCounter().count("To be, or not to be, that is the question.")
        13
        >>> TokenCounter().count("床前明月光，疑是地上霜。")
        10
        """
        if self._tokenizer is not None:
            encoded = self._tokenizer(_replace_unencodable(text), add_special_tokens=False)
            return len(encoded["input_ids"])
        if len(text) > _KEPT_CHARACTERS:
            return _estimate_tokens.__wrapped__(text)
        return _estimate_tokens(text)

    def prompt(self, messages: Sequence[Message]) -> int:
        """Tokens of a prompt; with a tokenizer that has a chat template, exactly what that makes of it."""
        if getattr(self._tokenizer, "chat_template", None) is not None:
            from jinja2 import TemplateError

            talk = [{"role": message.role, "content": _replace_unencodable(message.content)} for message in messages]
            # Some templates know no system message; their servers refuse it, which is not for an estimate to do.
            with suppress(TemplateError):
                text = self._tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
                return self.count(text)
        return _PROMPT + sum(_MESSAGE + self.count(message.content) for message in messages)

    def request(self, request: Request) -> int:
        """Tokens of a request's prompt, with its schema, which servers count as part of it."""
        return self.prompt(request.messages) + self.count(_format_schema(request))


def count_most_tokens(text: str) -> int:
    """The most tokens that a text can have, whatever the tokenizer.

    That is the bytes of the text in UTF-8, in whichever normal form has most, and a little for the start: a token of a
    byte-level BPE, or of SentencePiece with byte fallback, stands for one byte or more of the text after normalization
    (Qwen's is NFC, SentencePiece's own NFKC).
    """
    return _count_most_bytes(text) + _TEXT_BOUND


def count_fewest_tokens(text: str) -> int:
    """The fewest tokens that a text may have where no token spans words; a megabyte takes milliseconds."""
    return max(len(text) // _MOST_CHARACTERS, int(_FEWEST_PER_WORD * len(text.split())))


def count_most_prompt_tokens(request: Request) -> int:
    """The most tokens that a request's prompt can have, the chat template's own among them.

    The allowance for a server's chat template, 24 tokens per message and 96 per prompt, is about twice the
    longest seen. A schema counts twice, for what a server makes of it.
    """
    tokens = _PROMPT_BOUND
    for message in request.messages:
        tokens += _MESSAGE_BOUND + count_most_tokens(message.content)
    if request.schema is not None:
        tokens += 2 * count_most_tokens(_format_schema(request))
    return tokens


@lru_cache(maxsize=4096)
def _estimate_tokens(text: str) -> int:
    tokens = 0.0
    for pattern, each, character in _RATES:
        matches = pattern.findall(text)
        tokens += each * len(matches)
        if character:
            tokens += character * sum(map(len, matches))
    return max(round(tokens), bool(text))


@lru_cache(maxsize=4096)
def _count_most_bytes(text: str) -> int:
    if text.isascii():
        return len(text)
    forms = (text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFKC", text))
    return max(len(form.encode("utf-8", errors="surrogatepass")) for form in forms)


def _format_schema(request: Request) -> str:
    return "" if request.schema is None else json.dumps(request.schema.schema, ensure_ascii=False)


def _replace_unencodable(text: str) -> str:
    """The text with half surrogate pairs, which no tokenizer takes, replaced as servers do."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _load(name: str) -> Any:
    require("transformers", extra="train")
    folder = _find_folder(name)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        # What transformers raises for a folder that holds no tokenizer has no one base.
        reason = explain_load_failure(folder, error).strip().partition("\n")[0] or type(error).__name__
        raise SettingsError(
            f"no tokenizer at {name} ({reason}); give a folder with tokenizer.json, or leave it out for an estimate"
        ) from error
    check_time(tokenizer)
    return tokenizer


def _find_folder(name: str) -> str:
    """Find a tokenizer's folder: transformers asks the Hub even for what it is told not to load from there."""
    if Path(name).is_dir():
        return name
    # What can be no id of the Hub is a ValueError.
    folder = None
    with suppress(ValueError):
        folder = find_cached_folder(name, "tokenizer_config.json", "tokenizer.json")
    if folder:
        return str(folder)
    raise SettingsError(
        f"no tokenizer at {name}, which is neither a folder nor an id of the Hub that is in the cache; give a folder "
        "with tokenizer.json, or leave it out for an estimate"
    )
