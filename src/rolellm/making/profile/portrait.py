"""A description in a model's reply: what a program can mend is mended, the rest is named for a repair.

Small models put headings over it, name the person, write on without an end, or leave the third person for the second.
Five checks name what is left: length, language, voice, names, person. A description that still has a defect after the
last attempt is better than none, and is kept with its defects; one in another language, or in the voice of a model, or
of a few words, never is.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Final, Literal

from rolellm.characters.reply_rules import RULES, find_breaches
from rolellm.characters.scripts.parse import detect_language
from rolellm.core.records import Language, Profile
from rolellm.core.settings import load_words
from rolellm.core.text import HAN, SPACE_BETWEEN_HAN, load_chinese_tokenizer
from rolellm.llm.model import Accept, Reply, Request, UnacceptableError, strip_thoughts
from rolellm.models.prompts.leaks import make_leak_check
from rolellm.models.prompts.render import Template, load_template

_RUN: Final = re.compile(r"[^\W_]+")
_ARTICLE: Final = re.compile(r"^(?:the|an?)\s+(?=\S)", re.IGNORECASE)
_LATIN_EDGE: Final = ("(?<![A-Za-z0-9_\u00c0-\u024f])", "(?![A-Za-z0-9_\u00c0-\u024f])")
_LEAST_PART: Final = 3
#: Parts of names that name nobody by themselves.
_COMMON: Final = load_words("titles_en") | load_words("name_particles")


def find_role_name(names: re.Pattern[str], text: str) -> str | None:
    """Find the first of a role's names in a text, as written; ``None`` where there is none.

    In English a name counts where it begins with a capital: a role called Soldier may be described as a soldier.
    """
    hits = (hit.group() for hit in names.finditer(text))
    return next((name for name in hits if not name[0].islower()), None)


def collect_names(character: Profile) -> re.Pattern[str]:
    """Collect the names of a character, its aliases among them, and the words of theirs that name it alone.

    Chinese names of one character are passed over: they would be found in other words.
    """
    names: set[str] = set()
    for name in character.names:
        words = _RUN.findall(name)
        is_name = any(len(word) > 1 for word in words)
        if words and not is_name:
            # One letter names somebody, but for "a" and "I".
            is_name = words[0].lower() not in "ai" and not HAN.match(words[0])
        if is_name:
            names.add(_ARTICLE.sub("", name))
        names.update(filter(_names_alone, words))
    # The longest first: of aliases that contain each other the whole one is what is found.
    ordered = sorted(names, key=lambda name: (-len(name), name))
    patterns = []
    for name in ordered:
        before = "" if HAN.match(name[0]) else _LATIN_EDGE[0]
        after = "" if HAN.match(name[-1]) else _LATIN_EDGE[1]
        patterns.append(before + re.escape(name) + after)
    return re.compile("|".join(patterns) or "(?!)", re.IGNORECASE)


def _names_alone(word: str) -> bool:
    """Tell whether a word of a name names its bearer without the others."""
    if HAN.match(word):
        return len(word) > 1
    if len(word) < _LEAST_PART or word.casefold() in _COMMON:
        return False
    return word[0].isupper()


Person = Literal["third", "second"]
#: What may be wrong with a description; the first two make it worthless.
Defect = Literal["language", "voice", "short", "named", "third", "second"]
_WORTHLESS: Final = ("language", "voice")

#: The shortest description without a defect, and the longest, at which it is cut: words in English, characters in
#: Chinese. 80 to 160 and 150 to 300 are asked for, and the release's are of 30 to 177 words.
LENGTHS: Final = {"en": (60, 200), "zh": (100, 400)}
#: The longest in bytes, so that the request that it goes into has a bound.
MOST_BYTES: Final = 4000
# Fewer words, or characters, describe nobody.
_LEAST: Final = {"en": 12, "zh": 20}

_QUOTED: Final = re.compile(
    r"“[^“”]{0,400}”|\"[^\"]{0,400}\"|「[^「」]{0,400}」|『[^『』]{0,400}』|‘[^‘’]{0,400}’(?!\w)"
    r"|(?<![^\W_])'[^'\n]{1,400}'(?![^\W_])"
)
_OPENING: Final = re.compile(
    r"(?:(?:sure|certainly|of course|absolutely|okay|好的|当然)(?:(?=[,，])|[.。!！:：\n])"
    r"|(?:here(?:'s| is| are)\b|the (?:portrait|description)\b|portrait\b|description\b|以下|下面|小传|人物小传))"
    r"(?:(?<=[.。!！:：\n])|[^.。\n]{0,80}?[:：!！\n])\s*",
    re.IGNORECASE,
)
_MARKUP: Final = re.compile(
    r"^[ \t]*(?:#{1,6}[ \t]+|[-*•+][ \t]+|\d+(?:[.)][ \t]+|、[ \t]*)|>+[ \t]?)|\*\*|__|```\w*|<<<|>>>", re.MULTILINE
)
_TITLE: Final = re.compile(r"[ \t]*(?:#{1,6}[ \t].*|\*\*[^*\n]{1,60}\*\*[:：]?|[^\n.!?。！？]{1,60}[:：])[ \t]*")
_WHOLE: Final = re.compile(r"[.!?…]+[\"”’')]*(?=\s|$)|[。！？…]+[”』」’]*")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])[\"”’)]*\s+|(?<=[。！？])[”』」]*")
_I: Final = re.compile(
    r"\bI(?:['’](?:m|ve|ll|d)\b| (?:am|was|have|had|will|would|can|cannot|can't|could|do|don't|did|must|shall|should"
    r"|know|see|need|think|believe|understand|apologi[sz]e)\b)|\b(?:me|my|myself)\b"
)
_YOU: Final = re.compile(r"\b(?:you|your|yours|yourself|you['’](?:re|ve|ll|d))\b", re.IGNORECASE)
_YOU_ZH: Final = frozenset({"你", "您", "你们", "您们"})
_I_ZH: Final = frozenset({"我", "我们", "咱", "咱们", "俺"})
_OPENS_AS_THIRD: Final = re.compile(r"\A\W{0,3}(?:(?:she|he|they|it)\b|[他她它])", re.IGNORECASE)


def accept_portrait(person: Person, language: Language, names: re.Pattern[str], material: str) -> Accept[str]:
    """Make the `accept` that takes a description.

    Args:
        person: ``third``: nobody is addressed, and nobody speaks of itself. ``second``: the role is addressed from the
            beginning, and in half of the sentences.
        language: Of the description.
        names: None of them may be in it.
        material: What the model was given, whose words may all come again.

    Returns:
        A function that raises `UnacceptableError` with every defect that is left, and with the description where that
        is better than none.
    """
    find_leak = make_leak_check(language, material)

    def accept(_: Request, reply: Reply) -> str:
        text = clean_reply(reply.text, person, names, language)
        defects = find_defects(text, person, names, language)
        leak = find_leak(text)
        if leak:
            defects["voice"] = f'repeats the instructions ("{leak}")'
        if not defects:
            return text
        reasons = tuple(_describe_defects(defects, language, "en"))
        feedback = " ".join(_describe_defects(defects, language, language))
        is_too_short = _count_units(text, language) < _LEAST[language]
        usable: str | None = text
        if is_too_short or not defects.keys().isdisjoint(_WORTHLESS):
            usable = None
        raise UnacceptableError(" ".join(reasons), feedback=feedback, usable=usable, defects=reasons)

    return accept


#: The languages, and what a text's length is counted in, as the other language, too, calls them.
_CALLED_IN: Final = {
    "en": {"en": ("English", "words"), "zh": ("Chinese", "characters")},
    "zh": {"en": ("英文", "个词"), "zh": ("中文", "字")},
}


def _describe_defects(defects: dict[Defect, str], language: Language, told_in: Language) -> list[str]:
    """Describe the defects of a description in a language as a model, or a person, is told of them."""
    text = load_template(told_in, "profile_problems").text
    sentences: dict[str, str] = dict(line.split(": ", 1) for line in text.splitlines())
    tongue, units = _CALLED_IN[told_in][language]
    minimum = str(LENGTHS[language][0])
    slots = {"wanted": minimum, "tongue": tongue, "units": units}
    descriptions = []
    for defect, sentence in sentences.items():
        if defect in defects:
            descriptions.append(Template(sentence, optional=("found",)).fill(found=defects[defect], **slots))
    return descriptions


def clean_reply(text: str, person: Person, names: re.Pattern[str], language: Language) -> str:
    """Reduce a reply to one paragraph of whole sentences, not too long, without the role's name where that is easy."""
    text = flatten_markup(strip_thoughts(text)[: 2 * MOST_BYTES], language)
    if person == "third":
        text = replace_names(text, names, language)
    else:
        text = _drop_sentences(text, lambda sentence: find_role_name(names, sentence) is not None, language)
    return trim_to_sentences(text, language)


def flatten_markup(text: str, language: Language) -> str:
    """Return a text without headings, list marks, fences and words before it, on one line."""
    lines = [line for line in text.splitlines() if line.strip()]
    while len(lines) > 1 and _TITLE.fullmatch(lines[0]):
        del lines[0]
    lines = [line for line in lines if not line.lstrip().startswith("#") or len(lines) == 1]
    text = " ".join(_MARKUP.sub("", "\n".join(lines)).split())
    while opening := _OPENING.match(text):
        text = text[opening.end() :]
    for first, last in ('""', "“”"):
        inner = text[1:-1]
        if text.startswith(first) and text.endswith(last) and first not in inner and last not in inner:
            text = inner.strip()
    if language == "zh":
        text = re.sub(r"(?<=[。！？；，、：”]) +", "", SPACE_BETWEEN_HAN.sub("", text))
    return text


def trim_to_sentences(text: str, language: Language) -> str:
    """Cut a text to its whole sentences, as many as a description may have; what fits of it where none is whole."""
    text = text.encode("utf-8", errors="replace")[:MOST_BYTES].decode("utf-8", errors="ignore")
    longest = LENGTHS[language][1]
    whole = text
    for sentence in _WHOLE.finditer(text):
        beginning = text[: sentence.end()]
        if _count_units(beginning, language) > longest:
            break
        whole = beginning
    return whole


def _count_units(text: str, language: Language) -> int:
    if language == "en":
        return len(text.split())
    return sum(not character.isspace() for character in text)


_NOBODY: Final = {"en": "the character", "zh": "这个人物"}


def replace_names(text: str, names: re.Pattern[str], language: Language) -> str:
    """Replace the role's name by "the character"."""
    if find_role_name(names, text) is None:
        return text
    # "The powerful Lannister family" is not the character.
    pattern = rf"(?:\bthe )?(?:{names.pattern})(?! (?:family|house|clan|name)\b)"
    text = re.sub(pattern, _NOBODY[language], text, flags=re.IGNORECASE)
    return re.sub(r"(\A|[.!?:;\"“]\s*)the character", r"\1The character", text)


def _split_sentences(text: str) -> list[str]:
    """Split a text into sentences with the spaces before them; the last may be cut off."""
    ends = [0, *(end.end() for end in _WHOLE.finditer(text)), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(ends)]


def _drop_sentences(text: str, is_out: Callable[[str], bool], language: Language) -> str:
    """Drop some sentences of a text; the whole text where too little would be left."""
    sentences = (sentence for sentence in _split_sentences(text) if not is_out(sentence))
    remaining = "".join(sentences).strip()
    if _count_units(remaining, language) >= LENGTHS[language][0]:
        return remaining
    return text


def find_defects(text: str, person: Person, names: re.Pattern[str], language: Language) -> dict[Defect, str]:
    """Find what is wrong with a description by itself, with what shows it; empty where nothing is."""
    bare = _QUOTED.sub(" ", text)
    defects: dict[Defect, str] = {}
    size = _count_units(text, language)
    if size < LENGTHS[language][0]:
        defects["short"] = str(size)
    if size and detect_language(text) != language:
        defects["language"] = ""
    # A role may be a machine; that the reply speaks as one shows in the person.
    for rule in find_breaches(bare, language, machine=True):
        if rule != "complete":
            defects["voice"] = RULES[rule]
    name = find_role_name(names, text)
    if name:
        defects["named"] = name
    is_in_person = _is_in_third if person == "third" else _is_in_second
    if not is_in_person(bare, language):
        defects[person] = ""
    return defects


def _is_in_third(bare: str, language: Language) -> bool:
    return not any(_count_persons(bare, language))


def _is_in_second(bare: str, language: Language) -> bool:
    """Tell whether a text addresses someone from its beginning and in most sentences, and never speaks of itself."""
    _, speaks_of_itself = _count_persons(bare, language)
    if speaks_of_itself or _OPENS_AS_THIRD.search(bare):
        return False
    is_addressed = []
    for sentence in _SENTENCE_END.split(bare):
        if any(map(str.isalnum, sentence)):
            addresses, _ = _count_persons(sentence, language)
            is_addressed.append(addresses > 0)
    return any(is_addressed[:1]) and 2 * sum(is_addressed) >= len(is_addressed)


def _count_persons(text: str, language: Language) -> tuple[int, int]:
    """Count how often a text addresses someone, and how often it speaks of itself."""
    if language == "en":
        return len(_YOU.findall(text)), len(_I.findall(text))
    # By words, as 自我 and 你死我活 speak of nobody.
    words = load_chinese_tokenizer()(text)
    addresses = sum(word in _YOU_ZH for word in words)
    return addresses, sum(word in _I_ZH for word in words)
