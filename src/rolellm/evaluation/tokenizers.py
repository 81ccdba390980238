"""What counts as a word: the tokenizers that Rouge-L is computed over, by name.

| protocol | language | tokenizer | a token is |
|---|---|---|---|
| ``rouge-score`` | ``en`` | ``rouge_score`` | a run of a-z and 0-9 in the lower-cased text, as in Google's package |
| ``rouge-score`` | ``zh`` | ``jieba`` (default) | a word as ``jieba.cut`` gives it |
| ``rouge-score`` | ``zh`` | ``characters`` | a Chinese character, or a run of other letters and digits |
| ``paper`` | ``en`` | ``whitespace`` | whatever stands between white space, case and punctuation kept |
| ``paper`` | ``zh`` | ``spaced-characters`` | any character but white space, punctuation included |

The two Chinese tokenizers of ``rouge-score`` are our choice (Google's drops Chinese text altogether) and follow its
spirit: width and case are folded (NFKC, lower case), tokens without a letter or digit are dropped, Latin words and
numbers stay.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from rolellm.errors import RecipeError
from rolellm.text import chinese_words

Tokenize = Callable[[str], list[str] | list[bytes]]

#: Protocol, then language, to the names of the tokenizers that it can be computed over; the first is the default.
TOKENIZERS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = MappingProxyType(
    {
        "rouge-score": {"en": ("rouge_score",), "zh": ("jieba", "characters")},
        "paper": {"en": ("whitespace",), "zh": ("spaced-characters",)},
    }
)

_LANGUAGE_NAMES: Final[Mapping[str, str]] = MappingProxyType({"en": "English", "zh": "Chinese"})
_HAN = r"\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_CHARACTERS = re.compile(rf"[{_HAN}]|[^\W_{_HAN}]+")
_ASCII_WORDS: Final = bytes(byte if chr(byte) in "abcdefghijklmnopqrstuvwxyz0123456789" else 32 for byte in range(256))


def resolve_tokenizer(protocol: str, language: str, tokenizer: str | None = None) -> str:
    """Check a choice of protocol, language and tokenizer, and name the tokenizer that it comes to.

    Args:
        protocol: ``rouge-score`` or ``paper``.
        language: ``en`` or ``zh``.
        tokenizer: A name out of the module's table; None takes the default.

    Returns:
        The tokenizer's name, to be printed with every figure.

    Raises:
        RecipeError: (a ``ValueError``) On an unknown name; lists the valid ones and the nearest.

    >>> resolve_tokenizer("rouge-score", "zh")
    'jieba'
    """
    _check("protocol", protocol, TOKENIZERS)
    if language not in _LANGUAGE_NAMES:
        spelled = {**{code: code for code in _LANGUAGE_NAMES}, **{name: code for code, name in _LANGUAGE_NAMES.items()}}
        near = _nearest(language, spelled)
        valid = ", ".join(f"{code!r} ({name})" for code, name in _LANGUAGE_NAMES.items())
        hint = f" Did you mean {spelled[near]!r}?" if near else ""
        raise RecipeError(f"unknown language {language!r}; valid: {valid}.{hint}")
    names = TOKENIZERS[protocol][language]
    if tokenizer is None:
        return names[0]
    _check(f"tokenizer for {_LANGUAGE_NAMES[language]} under protocol {protocol!r}", tokenizer, names)
    return tokenizer


def _check(what: str, value: str, valid: Iterable[str]) -> None:
    names = list(valid)
    if value in names:
        return
    near = _nearest(value, names)
    hint = f" Did you mean {near!r}?" if near and len(names) > 1 else ""
    raise RecipeError(f"unknown {what}: {value!r}; valid: {', '.join(map(repr, names))}.{hint}")


def _nearest(value: object, names: Iterable[str]) -> str | None:
    by_lower = {name.lower(): name for name in names}
    matches = difflib.get_close_matches(str(value).lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[matches[0]] if matches else None


def get_tokenizer(name: str) -> Tokenize:
    """The function behind a tokenizer of protocol ``rouge-score``: text in, list of tokens out.

    Args:
        name: ``rouge_score``, ``jieba`` or ``characters``.

    Returns:
        A function; ``jieba``'s dictionary is loaded (about a second) on the first call for it.

    Raises:
        RecipeError: On any other name.
    """
    if name == "rouge_score":
        return rouge_score_tokens
    if name == "characters":
        return character_tokens
    if name == "jieba":
        return chinese_words()
    raise RecipeError(f"no tokenizer {name!r}; valid: 'rouge_score', 'jieba', 'characters'")


def rouge_score_tokens(text: str) -> list[bytes]:
    """Lower-cased runs of a-z and 0-9, as ``rouge_score`` 0.1.2 finds them without a stemmer.

    Tokens are bytes: one table look-up a byte is twice as fast as that package's regular expression, and every byte of
    a non-ASCII character falls to white space, as the character does there.

    >>> rouge_score_tokens("It's 3 o'clock, naïf!")
    [b'it', b's', b'3', b'o', b'clock', b'na', b'f']
    """
    return text.lower().encode("utf-8", "replace").translate(_ASCII_WORDS).split()


def character_tokens(text: str) -> list[str]:
    """Chinese characters one by one; other letters and digits in runs; punctuation and symbols dropped.

    >>> character_tokens("我有2台 iPhone。")
    ['我', '有', '2', '台', 'iphone']
    """
    return _CHARACTERS.findall(_fold_width(text).lower())


def _fold_width(text: str) -> str:
    return unicodedata.normalize("NFKC", text)
