"""The numbers that a text names, in digits and in words: "three", "third" and "3" are one, and so are 三, 叁 and 3."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from rolellm.records import Language

_UNITS: Final = {
    word: value
    for value, words in enumerate(
        (
            "zero", "one first", "two second twice", "three third thrice", "four fourth", "five fifth", "six sixth",
            "seven seventh", "eight eighth", "nine ninth", "ten tenth", "eleven eleventh", "twelve twelfth",
            "thirteen thirteenth", "fourteen fourteenth", "fifteen fifteenth", "sixteen sixteenth",
            "seventeen seventeenth", "eighteen eighteenth", "nineteen nineteenth",
        )
    )
    for word in words.split()
}  # fmt: skip
_TENS: Final = {
    word + ending: value * 10
    for value, word in enumerate(("twent", "thirt", "fort", "fift", "sixt", "sevent", "eight", "ninet"), start=2)
    for ending in ("y", "ieth")
}
_SCALES: Final = {"hundred": 100, "thousand": 1000, "million": 1_000_000, "dozen": 12, "score": 20}
_DIGITS: Final = re.compile(r"\d+(?:[,.]\d+)*")
_TOKEN: Final = re.compile(r"[a-z]+|\d+(?:,\d{3})+|\d+")

_HAN_DIGITS: Final = {digit: value for value, digits in enumerate(
    ("零〇", "一壹", "二两贰兩", "三叁", "四肆", "五伍", "六陆", "七柒", "八捌", "九玖")
) for digit in digits}  # fmt: skip
_HAN_UNITS: Final = {"十": 10, "拾": 10, "百": 100, "佰": 100, "千": 1000, "仟": 1000, "万": 10_000, "亿": 100_000_000}
_HAN_NUMBER: Final = "[" + "".join((*_HAN_DIGITS, *_HAN_UNITS)) + "]+"
#: What is counted with; after other words a numeral is mostly part of a phrase, such as 千万 or 三思.
_MEASURE: Final = (
    "[个個名位人天日年月岁歲里斤两兩壶坛碗杯车車辆輛头頭匹张張把本卷条條只隻块塊文钱錢回次场場遍更夜时時刻步丈尺寸座间間道件样樣路军軍骑騎"
    "兵马船艘棵枝朵片滴口家户戶代世层層段首句字封门門具副双雙对對群队隊]"
)
_HAN_COUNTED: Final = re.compile(rf"(?<![\d.])({_HAN_NUMBER}|\d+)(?={_MEASURE}|余|多)")
_HAN_ANY: Final = re.compile(rf"{_HAN_NUMBER}|\d+")


def numbers_in(text: str, language: Language, *, loose: bool = False) -> dict[str, int]:
    """The numbers in a text, as they are written, with their values.

    Numbers below three are not among them unless loose: "one", "twice", "two sharp eyes", 一 and 两 hardly ever state a
    fact that could be wrong.

    Args:
        text: Any text.
        language: ``en`` or ``zh``.
        loose: Take every numeral there is, so that nothing which may be meant is missed.

    >>> numbers_in("Twenty-two parrots, the third of them, and 1,500 crumbs", "en")
    {'twenty two': 22, 'third': 3, '1,500': 1500}
    >>> numbers_in("三十六文，又两壶酒，千万小心", "zh")
    {'三十六': 36}
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    found = _chinese(folded, loose) if language == "zh" else _english(folded)
    return {said: value for said, value in found.items() if loose or value > 2}


def _english(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    run: list[str] = []
    for match in [*_TOKEN.finditer(text), None]:
        word = "" if match is None else match.group()
        known = word in _UNITS or word in _TENS or word in _SCALES
        if known and (not run or _joins(run[-1], word)):
            run.append(word)
            continue
        if run:
            found[" ".join(run)] = _value(run)
        run = [word] if known else []
        if word[:1].isdigit():
            found[word] = int(word.replace(",", ""))
    return {said: value for said, value in found.items() if said not in _SCALES}


def _joins(before: str, word: str) -> bool:
    """Whether two words are of one number: "twenty two", "two hundred", "hundred ten"."""
    if before in _TENS:
        return word in _SCALES or (word in _UNITS and 0 < _UNITS[word] < 10)
    if before in _UNITS:
        return word in _SCALES
    return before in ("hundred", "thousand", "million")


def _value(words: list[str]) -> int:
    total = current = 0
    for word in words:
        if word in _SCALES:
            current = max(current, 1) * _SCALES[word]
            if word in ("thousand", "million"):
                total, current = total + current, 0
        else:
            current += _UNITS.get(word, _TENS.get(word, 0))
    return total + current


def _chinese(text: str, loose: bool) -> dict[str, int]:
    pattern = _HAN_ANY if loose else _HAN_COUNTED
    found = {}
    for match in pattern.finditer(text):
        said = match.group(1) if not loose else match.group()
        value = _han_value(said)
        if value is not None:
            found[said] = value
    return found


def _han_value(said: str) -> int | None:
    if said.isdigit() and said.isascii():
        return int(said[:18])
    if not any(unit in said for unit in _HAN_UNITS):
        # 一九三七: digits in a row.
        return int("".join(str(_HAN_DIGITS[digit]) for digit in said)[:18])
    total = section = digit = 0
    for sign in said:
        if sign in _HAN_DIGITS:
            digit = _HAN_DIGITS[sign]
            continue
        unit = _HAN_UNITS[sign]
        if unit >= 10_000:
            total, section = (total + section + digit or 1) * unit if not total else total + (section + digit) * unit, 0
        else:
            section += (digit or 1) * unit
        digit = 0
    return total + section + digit
