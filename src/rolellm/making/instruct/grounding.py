"""An offline check of script-based pairs: are their names, numbers and words in what they were made from?

It is a sieve, not a judge: it sees words, not meaning. A pair is turned down when its answer or question has a *name*
or a *number* that is in neither the segment nor the profile, or when too few of its content words are. What counts as
which is ours, and so is the threshold; dev/measurements.md has how many good pairs it turns down and how many
wrong ones it lets through.
"""

from __future__ import annotations

import functools
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rolellm.core.records import Language, Profile
from rolellm.core.settings import load_words, read_word_list
from rolellm.core.text import HAN, load_chinese_tokenizer

_UNITS: Final = {"twice": 2, "thrice": 3} | {
    word: value for name in ("cardinals", "ordinals") for value, word in enumerate(read_word_list(name))
}
_TENS: Final = {
    word + ending: value * 10
    for value, word in enumerate(("twent", "thirt", "fort", "fift", "sixt", "sevent", "eight", "ninet"), start=2)
    for ending in ("y", "ieth")
}
_SCALES: Final = {"hundred": 100, "thousand": 1000, "million": 1_000_000, "dozen": 12, "score": 20}
_WORDS: Final = "|".join(sorted((*_UNITS, *_TENS, *_SCALES), key=len, reverse=True))
_NUMBER: Final = re.compile(rf"\b(?:{_WORDS})(?:[\s-]+(?:{_WORDS}))*\b|\d+(?:,\d{{3}})+|\d+")
_HAN_NUMBER: Final = "[零〇一壹二两贰兩三叁四肆五伍六陆七柒八捌九玖十拾百佰千仟万亿]+"
#: What is counted with; after other words a numeral is mostly part of a phrase, such as 千万 or 三思.
_MEASURE: Final = (
    "[个個名位人天日年月岁歲里斤两兩壶坛碗杯车車辆輛头頭匹张張把本卷条條只隻块塊文钱錢回次场場遍更夜时時刻步丈尺寸座间間道件样樣路军軍骑騎"
    "兵马船艘棵枝朵片滴口家户戶代世层層段首句字封门門具副双雙对對群队隊]"
)
_HAN_COUNTED: Final = re.compile(rf"(?<![\d.])({_HAN_NUMBER}|\d+)(?={_MEASURE}|余|多)")
_HAN_ANY: Final = re.compile(rf"{_HAN_NUMBER}|\d+")


def extract_numbers(text: str, language: Language, *, loose: bool = False) -> dict[str, int]:
    """Extract the numbers in a text, as they are written, with their values.

    Numbers below three are not among them unless loose: "one", "twice", "two sharp eyes", 一 and 两 hardly ever state a
    fact that could be wrong.

    Args:
        text: Any text.
        language: ``en`` or ``zh``.
        loose: Take every numeral there is, so that nothing which may be meant is missed.

    >>> extract_numbers("Twenty-two parrots, the third of them, and 1,500 crumbs", "en")
    {'twenty two': 22, 'third': 3, '1,500': 1500}
    >>> extract_numbers("三十六文，又两壶酒，千万小心", "zh")
    {'三十六': 36}
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    values = _extract_chinese_numerals(folded, loose) if language == "zh" else _extract_english_numerals(folded)
    return {numeral: value for numeral, value in values.items() if loose or value > 2}


def _extract_english_numerals(text: str) -> dict[str, int]:
    values: dict[str, int] = {}
    for match in _NUMBER.finditer(text):
        numeral = " ".join(re.split(r"[\s-]+", match.group()))
        values[numeral] = int(numeral.replace(",", "")) if numeral[0].isdigit() else _evaluate_words(numeral.split())
    return {numeral: value for numeral, value in values.items() if numeral not in _SCALES}


def _evaluate_words(words: list[str]) -> int:
    numbers = _UNITS | _TENS | _SCALES
    return _evaluate([(numbers[word], word in _SCALES) for word in words], 1000)


def _extract_chinese_numerals(text: str, loose: bool) -> dict[str, int]:
    return {numeral: _evaluate_han(numeral) for numeral in (_HAN_ANY if loose else _HAN_COUNTED).findall(text)}


def _evaluate_han(numeral: str) -> int:
    values = [int(unicodedata.numeric(sign)) for sign in numeral.replace("两", "二")]
    if max(values) < 10:
        # 一九三七: digits in a row.
        return int("".join(map(str, values))[:18])
    return _evaluate([(value, value >= 10) for value in values], 10_000)


def _evaluate(values: Iterable[tuple[int, bool]], section: int) -> int:
    """Add up numbers, and what scales such as hundred multiply; from `section` on, scales multiply all before them."""
    total = subtotal = units = 0
    for value, is_scale in values:
        if not is_scale:
            units += value
        elif value < section:
            subtotal, units = subtotal + (units or 1) * value, 0
        else:
            before = subtotal + units
            total, subtotal, units = total + before * value if total else (before or 1) * value, 0, 0
    return total + subtotal + units


#: Words that carry no matter of their own.
STOP_WORDS: Final[Mapping[Language, frozenset[str]]] = {"en": load_words("stop_en"), "zh": load_words("stop_zh")}
NO_NAMES, SURNAMES, NO_SURNAMES = map(load_words, ("no_names", "surnames_zh", "no_surnames_zh"))
LONG_SURNAMES: Final = tuple(read_word_list("long_surnames_zh"))

WORD: Final = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_BEFORE_SENTENCE: Final = frozenset(".!?:;…\"“”'‘’([–—-")
_SHORT_FORM: Final = re.compile(r"'(?:s|m|d|ll|ve|re|t)$", re.IGNORECASE)
_MARKED: Final = re.compile(r"[《“「『]([^《》“”「」『』]{2,8})[》”」』]")


def extract_names(text: str, language: Language) -> list[str]:
    """Extract the names in a text, in order, some more than once.

    >>> extract_names("Never! I gave Gardener Nine's brush to the Duchess, sir.", "en")
    ['Gardener', 'Nine', 'Duchess']
    """
    return _extract_chinese_names(text) if language == "zh" else _extract_english_names(text)


def _extract_english_names(text: str) -> list[str]:
    names = []
    for match in WORD.finditer(text.replace("’", "'")):
        word = match.group()
        # Who shouts a whole word in capitals names nobody by it.
        if not word[0].isupper() or (len(word) > 1 and word.isupper()):
            continue
        before = text[: match.start()].rstrip()
        if not before or before[-1] in _BEFORE_SENTENCE or _SHORT_FORM.sub("", word).casefold() in NO_NAMES:
            continue
        names.append(word.removesuffix("'s"))
    return names


def _extract_chinese_names(text: str) -> list[str]:
    matches = list(_MARKED.findall(text))
    names, words = _load_surname_words()
    for word in load_chinese_tokenizer()(text):
        long = word.startswith(LONG_SURNAMES)
        if (long or word[0] in SURNAMES) and 2 <= len(word) <= 4 and word not in NO_SURNAMES:
            # 老孙来, "here comes old Sun", is cut into 老 and 孙来.
            unknown = word not in words and len(word) <= (4 if long else 3) and word[0] != "孙"
            if word in names or unknown:
                matches.append(word)
    return matches


@functools.cache
def _load_surname_words() -> tuple[frozenset[str], frozenset[str]]:
    """Load the words of jieba's dictionary that begin with a surname: those tagged as persons' names, and all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jieba
    names: set[str] = set()
    words: set[str] = set()
    with jieba.Tokenizer().get_dict_file() as lines:
        for line in lines:
            word, _, tag = line.decode("utf-8").rstrip().split(" ")
            if word[0] in SURNAMES or word.startswith(LONG_SURNAMES):
                words.add(word)
                if tag.startswith("nr"):
                    names.add(word)
    return frozenset(names), frozenset(words)


@dataclass(frozen=True, slots=True)
class Grounding:
    """The evidence found for a pair.

    Attributes:
        words: How many content words it has.
        found: How many of them are in the evidence.
        names: Names that are not.
        numbers: Numbers that are not.
    """

    words: int
    found: int
    names: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()

    @property
    def score(self) -> float | None:
        """The share of content words that were found; ``None`` of a pair that has none."""
        return self.found / self.words if self.words else None

    def reason(self, least: float) -> str | None:
        """Explain why it is rejected; ``None`` if it is not."""
        for kind, missing in (("names", self.names), ("numbers", self.numbers)):
            if missing:
                return f"{kind} in neither segment nor profile: {', '.join(missing)}"
        if self.score is not None and self.score < least:
            return f"{self.found} of {self.words} content words are in segment or profile, fewer than {least:.0%}"
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return one JSON object."""
        score = None if self.score is None else round(self.score, 3)
        return {"score": score, "names": list(self.names), "numbers": list(self.numbers)}


def make_grounding_check(character: Profile) -> Callable[[str], Callable[[str, str], Grounding]]:
    """Return a function that turns a segment's text into a check of question and answer.

    Args:
        character: Its description, background, catchphrases and names are evidence, too.

    >>> check = make_grounding_check(Profile("Owl", "en"))("Mouse: I ate three cherries in the barn.")
    >>> check("Owl, what did Mouse eat?", "Three cherries!").reason(0.25)
    >>> check("Owl, what did Mouse eat?", "Five cherries, said Weasel!").names
    ('Weasel',)
    """
    profile = "\n".join(
        filter(
            None,
            (character.description, character.background, *character.catchphrases, *character.names),
        )
    )
    language = character.language

    def make_segment_check(segment: str) -> Callable[[str, str], Grounding]:
        evidence = f"{segment}\n{profile}"
        is_known = make_word_finder(evidence, language)
        # 刘洪道 may be 刘洪 and what he did.
        is_known_name = (lambda name: is_known(name) or is_known(name[:2])) if language == "zh" else is_known
        values = set(extract_numbers(evidence, language, loose=True).values())

        def check(question: str, answer: str) -> Grounding:
            words = extract_content_words(f"{question}\n{answer}", language)
            names, numbers = dict[str, None](), dict[str, None]()
            for text in (question, answer):
                names |= dict.fromkeys(name for name in extract_names(text, language) if not is_known_name(name))
                stated = extract_numbers(text, language)
                numbers |= dict.fromkeys(numeral for numeral, value in stated.items() if value not in values)
            return Grounding(len(words), sum(map(is_known, words)), tuple(names), tuple(numbers))

        return check

    return make_segment_check


def make_word_finder(evidence: str, language: Language) -> Callable[[str], bool]:
    """Return a function that finds a word in a text; an English one in any of its commonest forms.

    >>> make_word_finder("Three cherries in the barn", "en")("cherry")
    True
    """
    if language == "zh":
        # Words are cut differently in different surroundings; characters in a row are the same everywhere.
        text = "".join(evidence.casefold().split())
        return lambda word: word.casefold() in text
    stems = {_reduce_to_stem(word) for word in _split_words(evidence)}
    return lambda word: all(_reduce_to_stem(part) in stems for part in _split_words(word))


def _split_words(text: str) -> list[str]:
    return [part for word in WORD.findall(text.casefold().replace("’", "'")) for part in word.split("-") if part]


@functools.lru_cache(maxsize=1 << 16)
def _reduce_to_stem(word: str) -> str:
    """Strip a word's commonest endings: crude, but the same for both sides of the comparison."""
    word = word.removesuffix("'s").removesuffix("'")
    for ending, replacement in (("ies", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("ly", ""), ("er", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending) + replacement
            break
    if len(word) > 3 and word[-1] == word[-2]:
        word = word[:-1]
    word = word.removesuffix("e") if len(word) > 3 else word
    return f"{word[:-1]}i" if len(word) > 3 and word.endswith("y") else word


def extract_content_words(text: str, language: Language) -> list[str]:
    """Extract the words that carry a text's meaning, each once."""
    if language == "zh":
        words: Iterable[str] = (word for word in load_chinese_tokenizer()(text) if len(HAN.findall(word)) >= 2)
    else:
        words = (word for word in _split_words(text) if len(word) >= 3)
    return [word for word in dict.fromkeys(words) if word not in STOP_WORDS[language]]
