"""Small text operations that several floors share: folding for joins, safe file names, Chinese words, and BM25."""

from __future__ import annotations

import functools
import hashlib
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Final, cast

from rolellm.core.errors import require

_HAN = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
#: A Chinese character.
HAN: Final = re.compile(f"[{_HAN}]")
#: A space between two of them, where Chinese has none.
SPACE_BETWEEN_HAN: Final = re.compile(f"(?<=[{_HAN}]) (?=[{_HAN}])")
#: Chinese characters that mostly join others: particles, pronouns, common verbs and adverbs (our choice).
FUNCTION_HAN: Final = frozenset(
    "的了是我你他她它这那有在不就也都和与而之其为以得着过吧吗呢啊呀嘛哉乎者矣些个们要会可能把被让对从到说人上下来去"
)
_UNSAFE = re.compile(r"[^\w.-]+")
# Of the 255 that a file's name may have.
_LONGEST: Final = 100
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_ASCII_WORD: Final = re.compile(r"[a-z0-9]+(?:\.[0-9]+)?%?")


def fold(text: str) -> str:
    r"""Fold white space and case, so that two spellings of one instruction compare equal.

    >>> fold("  Name a\n Color ")
    'name a color'
    """
    return " ".join(text.split()).casefold()


def replace_surrogates(text: str) -> str:
    r"""The text with each half of a surrogate pair, which JSON can say and no file can hold, made U+FFFD.

    Two halves that stand together become the character they are.

    >>> replace_surrogates("a\ud800b \ud83d\ude00") == "a\ufffdb \U0001f600"
    True
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def find_surrogate(*texts: str) -> str | None:
    r"""Describe the first half of a surrogate pair in some texts; ``None`` where there is none.

    >>> find_surrogate("a", "b\ud800")
    'half a surrogate pair (U+D800), which is not a character and cannot be written as UTF-8; remove it'
    """
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            half = f"U+{ord(text[error.start]):04X}"
            return f"half a surrogate pair ({half}), which is not a character and cannot be written as UTF-8; remove it"
    return None


def join_names(names: Iterable[object], most: int = 3) -> str:
    """Names for a message: the first few, each once, and how many more there are.

    >>> join_names(["Ada", "Brom", "Cai", "Dee"], most=2)
    'Ada, Brom and 2 more'
    """
    unique_names = list(dict.fromkeys(map(str, names)))
    text = ", ".join(unique_names[:most])
    more = len(unique_names) - most
    return f"{text} and {more:,} more" if more > 0 else text


def format_count(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun.

    >>> format_count(1, "session"), format_count(2500, "session")
    ('1 session', '2,500 sessions')
    """
    if count != 1:
        noun = plural or f"{noun}s"
    return f"{count:,} {noun}"


def fold_name(name: str) -> str:
    """Leave only a name's letters and digits, without case and accents: the release does not spell all names one way.

    >>> fold_name("Dr. Frank-N-Fürter") == fold_name("Dr Frank N Furter")
    True
    """
    letters = unicodedata.normalize("NFKD", name).casefold()
    return "".join(filter(str.isalnum, letters))


def find_name(name: str, candidates: Iterable[str]) -> str | None:
    """Find the candidate that is meant: the same to the letter, else the first with the same `fold_name`.

    >>> find_name("queen of hearts", ["Puck", "Queen of Hearts"])
    'Queen of Hearts'
    """
    names, key = list(candidates), fold_name(name)
    if name in names:
        return name
    for candidate in names:
        if key and fold_name(candidate) == key:
            return candidate
    return None


def make_safe_name(name: str, *, fallback: str = "unnamed") -> str:
    """Turn any name into a file name: letters, digits, ``.``, ``_`` and ``-`` only, never a path.

    A name that is too long, in bytes, for a file with a few more words ends in a hash of all of it.

    >>> make_safe_name("../Dr. Frank/N-Furter"), make_safe_name("王" * 99)
    ('Dr._Frank_N-Furter', '王王王王王王王王王王王王王王王王王王王王王王王王王王王王王王-ec628ea3')
    """
    cleaned = _UNSAFE.sub("_", unicodedata.normalize("NFC", name)).strip("._")
    raw = cleaned.encode()
    if len(raw) > _LONGEST:
        digest = hashlib.sha256(raw).hexdigest()[:8]
        return f"{raw[: _LONGEST - 9].decode(errors='ignore')}-{digest}"
    return cleaned or fallback


@functools.cache
def load_chinese_tokenizer() -> Callable[[str], list[str]]:
    """Words by jieba's precise mode with its hidden Markov model for unlisted words: the defaults of ``jieba.cut``.

    Width and case are folded; words without a letter or digit are dropped.
    """
    import rjieba

    # Our own, so that words that a program adds to the global one change nothing.
    cutter = rjieba.Jieba()

    def tokenize(text: str) -> list[str]:
        words: list[str] = []
        # Case is folded last: jieba's dictionary knows words such as "T恤" in this case only.
        for word in cutter.cut(unicodedata.normalize("NFKC", text)):
            if word.isascii() and not word.isalnum() and not cutter.has_word(word):
                # Rust's jieba takes "25-64" and "my_list" for one word; Python's for two.
                words += _ASCII_WORD.findall(word.lower())
            elif _LETTER_OR_DIGIT.search(word):
                words.append(word.lower())
        return words

    return tokenize


def load_bm25s(*, extra: str) -> ModuleType:
    """Import bm25s, without the JAX that it would start: where both are installed, that takes most of a GPU's memory.

    Args:
        extra: The extra of this package that installs it.

    Raises:
        MissingExtraError: Where it is not installed.
    """
    require("bm25s", extra=extra)
    modules = cast("dict[str, ModuleType | None]", sys.modules)
    # The import system takes a module that is None for one that is not there.
    is_hidden = modules.setdefault("jax", None) is None
    try:
        import bm25s
    finally:
        if is_hidden:
            del modules["jax"]
    return cast("ModuleType", bm25s)
