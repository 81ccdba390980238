"""Answers out of character: those that break a rule of `rolellm.construct.clean`, and those told about the role."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Final

from rolellm.construct.character import Character
from rolellm.construct.clean import broken_rules, is_machine
from rolellm.records import Language

#: Words by which speakers mean themselves; in Chinese also those of emperors, monks, ladies and old men.
_FIRST: Final = MappingProxyType[Language, re.Pattern[str]](
    {
        "en": re.compile(r"\b(?:i|i'\w+|me|my|mine|myself|we|we'\w+|us|our|ours|ourselves|oneself)\b", re.IGNORECASE),
        "zh": re.compile(
            r"[我俺咱吾余朕孤妾臣某予侬奴]|洒家|老孙|俺老|本[宫王座帅官公尊人妃皇]|在下|小生|小人|小的|老夫|老身|老朽|老汉"
            r"|贫[僧道尼]|老衲|哀家|寡人|奴[家婢才]|晚辈|末将|卑职|鄙人|自[己家]"
        ),
    }
)
_TOLD: Final = MappingProxyType[Language, str](
    {
        "en": r"(?:'s\b|\s+(?:is|was|has|had|does|did|would|could|will|can|said|felt|thought|went|took|told|gave|knew"
        r"|[a-z]+(?:ed|s)))\b",
        "zh": r"(?:是|曾|会|说|道|认为|觉得|的|在|把|被|对|很|非常|喜欢|已|便|就|因|为了|想|要|有)",
    }
)


def out_of_character(character: Character) -> Callable[[str], str | None]:
    """A function that says why an answer is not the role's own; ``None`` for one that is.

    An answer is told *about* the role when it has the role's name before a word such as "is" or "said" and none by
    which speakers mean themselves. A role that speaks of itself by name so passes once it says "I" as well.

    Args:
        character: Its names, aliases and catchphrases count, and whether it is a machine.
    """
    language = character.language
    machine = is_machine(character.described() or character.background, language)
    names = _names(character)
    told = re.compile(rf"(?:{names}){_TOLD[language]}")
    script = re.compile(rf"\s*[*\[（(]*(?:{names})[*\]）)]*\s*[:：]")

    def reason(answer: str) -> str | None:
        for breach in broken_rules(answer, language, machine=machine, own=character.catchphrases):
            return f'{breach.reason} ("{breach.found}")'
        if script.match(answer):
            return "opens with the role's name and a colon, as a script does"
        found = told.search(answer)
        if found and not _FIRST[language].search(answer):
            return f'tells about the role ("{found.group()}")'
        return None

    return reason


def _names(character: Character) -> str:
    names: Sequence[str] = sorted(character.names, key=lambda name: (-len(name), name))
    boundary = "" if character.language == "zh" else r"(?<!\w)"
    return boundary + "(?:" + "|".join(map(re.escape, names)) + ")"
