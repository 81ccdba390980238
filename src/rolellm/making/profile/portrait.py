"""A description in a model's reply: what a program can mend is mended and noted, the rest is named for a repair.

Small models put headings over it, name the person, write on without an end, or leave the third person for the second.
A description that still has a defect after the last attempt is better than none, and is kept with its defects; one that
is empty, in another language, refuses, or repeats our instructions never is.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from rolellm.characters.reply_rules import RULES, find_breaches
from rolellm.characters.scripts.parse import detect_language
from rolellm.core.records import Language, Profile
from rolellm.core.settings import load_words, read_word_list
from rolellm.core.text import HAN, SPACE_BETWEEN_HAN, fold, join_names, load_chinese_tokenizer
from rolellm.llm.model import Accept, Reply, Request, UnacceptableError, strip_thoughts
from rolellm.making.instruct.grounding import make_grounding_check
from rolellm.models.prompts.leaks import LONGEST_SHARED, MOST_COPIED, list_word_runs, make_leak_check, make_share_check
from rolellm.models.prompts.render import Template, load_template

_RUN: Final = re.compile(r"[^\W_]+")
_ARTICLE: Final = re.compile(r"(?:the|an?)\s+(?=\S)", re.IGNORECASE)
_LATIN_EDGE: Final = ("(?<![A-Za-z0-9_\u00c0-\u024f])", "(?![A-Za-z0-9_\u00c0-\u024f])")
_LEAST_PART: Final = 3
_TITLES: Final = load_words("titles_en")
#: Parts of names that name nobody by themselves.
_COMMON: Final = _TITLES | load_words("name_particles")


def find_role_name(names: re.Pattern[str], text: str) -> str | None:
    """Find the first of a role's names in a text, as written; ``None`` where there is none.

    In English a name counts where it begins with a capital: a role called Soldier may be described as a soldier.
    """
    return next((hit.group() for hit in names.finditer(text) if not hit.group()[0].islower()), None)


def collect_names(character: Profile) -> re.Pattern[str]:
    """Collect the names of a character, its aliases among them, and the words of theirs that name it alone.

    Chinese names of one character are passed over: they would be found in other words.
    """
    full_patterns = {pattern for name in character.names if (pattern := _make_name_pattern(name)) is not None}
    parts = {_build_pattern(part) for name in character.names for part in _list_parts(name)}
    # The longest first: of aliases that contain each other the whole one is what is found.
    ordered = sorted(full_patterns | parts, key=lambda pattern: (-len(pattern), pattern))
    return re.compile("|".join(ordered) or "(?!)", re.IGNORECASE)


def list_titles(character: Profile) -> list[str]:
    """List the words of a character's names that are no names by themselves: "Queen" of the Queen of Hearts."""
    words = (run for name in character.names if len(runs := _RUN.findall(name)) > 1 for run in runs)
    return [word for word in words if word[0].isupper() and word.casefold() in _TITLES]


def _make_name_pattern(name: str) -> str | None:
    runs = _RUN.findall(_ARTICLE.sub("", name, count=1) if _ARTICLE.match(name) else name)
    if not runs or (len(runs) == 1 and len(runs[0]) < 2 and (HAN.search(runs[0]) or runs[0].lower() in "ai")):
        return None
    return _build_pattern(*runs)


def _build_pattern(*runs: str) -> str:
    """Build a pattern of words with little between them, and no letter on either side except in Chinese."""
    before = "" if HAN.match(runs[0]) else _LATIN_EDGE[0]
    after = "" if HAN.match(runs[-1][-1]) else _LATIN_EDGE[1]
    return before + r"[\W_]{0,3}".join(map(re.escape, runs)) + after


def _list_parts(name: str) -> list[str]:
    runs = _RUN.findall(name)
    return [
        run
        for run in (runs if len(runs) > 1 else ())
        if (len(run) > 1 if HAN.match(run) else len(run) >= _LEAST_PART and run[0].isupper())
        and run.casefold() not in _COMMON
    ]


Person = Literal["third", "second"]
#: What may be wrong with a description; the first six make it worthless.
Defect = (
    Literal["empty", "language", "voice", "leak", "copied", "circles"]
    | Literal["short", "named", "third", "second", "ungrounded", "unsupported"]
)
_WORTHLESS: Final = ("empty", "language", "voice", "leak", "copied", "circles")

#: The shortest description without a defect, and the longest, at which it is cut: words in English, characters in
#: Chinese. 80 to 160 and 150 to 300 are asked for, and the release's are of 30 to 177 words.
LENGTHS: Final = {"en": (60, 200), "zh": (100, 400)}
#: The longest in bytes, so that the request that it goes into has a bound.
MOST_BYTES: Final = 4000
_LATIN: Final = re.compile("[A-Za-z]{2,}")
#: The least share of an English description's content words that the material should have, too. Of descriptions by a
#: 1.5B model, those made up had 0.12 and 0.19, the others 0.57 and 0.75. In Chinese good ones, too, use other words.
_LEAST_SHARED: Final = 0.25
#: A material of fewer words says too little of anybody for that.
_TELLING: Final = 250
# Fewer words, or characters, describe nobody.
_LEAST: Final = {"en": 12, "zh": 20}

#: The most times that a reply is gone over, in case of doubt.
_ROUNDS: Final = 9
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


@dataclass(frozen=True, slots=True)
class Portrait:
    """A description as it is kept.

    Attributes:
        text: One paragraph.
        mended: What was mended in it, in words.
    """

    text: str
    mended: tuple[str, ...] = ()


def accept_portrait(
    person: Person, character: Profile, names: re.Pattern[str], material: str, portrait: str = ""
) -> Accept[Portrait]:
    """Make the `accept` that takes a description.

    Args:
        person: ``third``: nobody is addressed, and nobody speaks of itself. ``second``: the role is addressed from the
            beginning, and in half of the sentences.
        character: Whose it is; names and numbers in it have to be in its script or its notes.
        names: None of them may be in it.
        material: What the model was given of the script, and the notes.
        portrait: The description that is to be turned, whose words may all come again.

    Returns:
        A function that raises `UnacceptableError` with every defect that is left, and with the description where that
        is better than none.
    """
    language = character.language
    script = "\n".join(f"{turn.speaker}: {turn.content}" for turn in character.turns)
    leak, copied = make_leak_check(language, f"{material}\n{portrait}"), make_share_check(material)
    # A description that was built before vouches for nothing.
    bare = replace(character, description=None, background=None, catchphrases=())
    find_unknown, find_unfounded = _make_content_checks(bare, f"{script}\n{material}\n{portrait}")

    def accept(_: Request, reply: Reply) -> Portrait:
        cleaned = clean_reply(reply.text, person, names, language)
        supported = _drop_sentences(cleaned.text, lambda sentence: bool(find_unknown(sentence)), language)
        if supported != cleaned.text:
            cleaned = Portrait(
                supported, (*cleaned.mended, "sentences on what the material does not have were left out")
            )
        defects = find_defects(cleaned.text, person, names, language)
        if leaked := leak(cleaned.text):
            defects["leak"] = leaked
        if copied(cleaned.text) > MOST_COPIED:
            defects["copied"] = ""
        defects |= find_unfounded(cleaned.text)
        if not defects:
            return cleaned
        reasons = tuple(_describe_defects(defects, language, "en"))
        too_short = _count_units(cleaned.text, language) < _LEAST[language]
        raise UnacceptableError(
            " ".join(reasons),
            feedback=" ".join(_describe_defects(defects, language, language)),
            usable=None if too_short or not defects.keys().isdisjoint(_WORTHLESS) else cleaned,
            defects=reasons,
        )

    return accept


def _make_content_checks(
    character: Profile, evidence: str
) -> tuple[Callable[[str], list[str]], Callable[[str], dict[Defect, str]]]:
    """Make functions that find unknown names, numbers and foreign words in a text, and that make defects of them."""
    check_grounding, latin_words = make_grounding_check(character)(evidence), frozenset(_LATIN.findall(evidence))
    is_telling = character.language == "en" and len(evidence.split()) >= _TELLING

    def find_unknown(text: str) -> list[str]:
        report = check_grounding("", text)
        foreign = [word for word in _LATIN.findall(text) if character.language == "zh" and word not in latin_words]
        return [*report.names, *report.numbers, *foreign]

    def find_unfounded(text: str) -> dict[Defect, str]:
        defects: dict[Defect, str] = {}
        if strange := find_unknown(text):
            defects["ungrounded"] = join_names(strange, most=5)
        report = check_grounding("", text)
        if is_telling and report.found < _LEAST_SHARED * report.words:
            defects["unsupported"] = f"{report.found} of {report.words}"
        return defects

    return find_unknown, find_unfounded


#: The languages, and what a text's length is counted in, as the other language, too, calls them.
_CALLED_IN: Final = {
    "en": {"en": ("English", "words"), "zh": ("Chinese", "characters")},
    "zh": {"en": ("英文", "个词"), "zh": ("中文", "字")},
}


def _describe_defects(defects: dict[Defect, str], language: Language, told_in: Language) -> list[str]:
    """Describe the defects of a description in a language as a model, or a person, is told of them."""
    text = load_template(told_in, "profile_problems").text
    sentences = dict(line.split(": ", 1) for line in text.splitlines())
    tongue, units = _CALLED_IN[told_in][language]
    minimum = str(LENGTHS[language][0])
    return [
        Template(sentence, optional="found").fill(found=defects[defect], wanted=minimum, tongue=tongue, units=units)
        for defect, sentence in sentences.items()
        if defect in defects
    ]


def clean_reply(text: str, person: Person, names: re.Pattern[str], language: Language) -> Portrait:
    """Reduce a reply to one paragraph of whole sentences, not too long, without the role's name where that is easy."""
    notes: dict[str, None] = {}
    text = strip_thoughts(text)[: 2 * MOST_BYTES]
    # What one step leaves may be for an earlier one; each leaves less, or fewer names.
    for _ in range(_ROUNDS):
        # What a mark hid may open a thought.
        cleaned, new = _clean_once(strip_thoughts(text), person, names, language)
        notes |= dict.fromkeys(new)
        if cleaned == text:
            break
        text = cleaned
    return Portrait(text, tuple(notes))


def _clean_once(text: str, person: Person, names: re.Pattern[str], language: Language) -> tuple[str, list[str]]:
    notes: list[str] = []
    bare = flatten_markup(text, language)
    if bare != " ".join(text.split()) and re.sub(r"\W", "", bare) != re.sub(r"\W", "", text):
        notes.append("what stood around the description was left out")
    elif _MARKUP.search(text):
        notes.append("headings and lists became one paragraph")
    if person == "third":
        unnamed = replace_names(bare, names, language)
    else:
        unnamed = _drop_sentences(bare, lambda sentence: find_role_name(names, sentence) is not None, language)
    if unnamed != bare:
        notes.append("the role's name was left out")
    once = drop_repeats(unnamed, language)
    if once != unnamed:
        notes.append("sentences that repeat others were left out")
    complete = trim_to_sentences(once, language)
    if complete != once:
        notes.append("cut at the end of a sentence")
    return complete, notes


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
    ends = [end.end() for end in _WHOLE.finditer(text)]
    fitting = [end for end in ends if _count_units(text[:end], language) <= LENGTHS[language][1]]
    return text[: fitting[-1]] if fitting else text


def _count_units(text: str, language: Language) -> int:
    return len(text.split()) if language == "en" else sum(not character.isspace() for character in text)


_TITLED: Final = rf"(?:(?-i:\b[Tt]he\s+)?(?:(?-i:\b(?=[A-Z]))(?:{'|'.join(read_word_list('titles_en'))})\.?\s+)*)"
_SURNAMES: Final = "(?-i:(?: [A-Z][a-z]+)*)"
_NOBODY: Final = {"en": "the character", "zh": "这个人物"}


def replace_names(text: str, names: re.Pattern[str], language: Language) -> str:
    """Replace the role's name by "the character", and drop it where it only says what the role is called."""
    if find_role_name(names, text) is None:
        return text
    name = f"(?:{names.pattern})"
    if language == "zh":
        # In 齐天大圣, 大圣 alone is not a word.
        words = sorted({word for word in load_chinese_tokenizer()(text) if names.search(word)}, key=len, reverse=True)
        name = f"(?:{'|'.join([*map(re.escape, words), names.pattern])})+"
    else:
        name = f"{_TITLED}(?:{name} )*(?-i:(?![a-z])){name}{_SURNAMES}"
    text = re.sub(rf"(?i)\s*[(（]\W*{name}\W*[)）]|(?:(?<=he is )|(?<=[他她]是)){name}[,，]\s*", "", text)

    def name_nobody(hit: re.Match[str]) -> str:
        before, nobody = text[: hit.start()].rstrip(), _NOBODY[language]
        return nobody[0].upper() + nobody[1:] if not before or before[-1] in '.!?:;"“' else nobody

    return re.sub(name, name_nobody, text, flags=re.IGNORECASE)


def _split_sentences(text: str) -> list[str]:
    """Split a text into sentences with the spaces before them; the last may be cut off."""
    ends = [0, *(end.end() for end in _WHOLE.finditer(text)), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(ends)]


def drop_repeats(text: str, language: Language) -> str:
    """Drop the sentences that say again what was said: all of it, or many words in a row.

    A text of which nothing would be left is returned as it is. None of the release's 95 descriptions loses a sentence.
    """
    earlier_runs: set[object] = set()
    sentences = []
    for sentence in _split_sentences(text):
        runs: set[object] = {fold(sentence), *list_word_runs(sentence, LONGEST_SHARED[language] + 1)}
        if not runs & earlier_runs and not _is_circular(sentence, language):
            sentences.append(sentence)
        earlier_runs |= runs
    return "".join(sentences) or text


def _is_circular(sentence: str, language: Language) -> bool:
    """Tell whether a sentence says many words in a row twice, as a small model does that finds no end."""
    runs = list(list_word_runs(sentence, LONGEST_SHARED[language] + 1))
    return len(set(runs)) < len(runs)


def _drop_sentences(text: str, is_out: Callable[[str], bool], language: Language) -> str:
    """Drop some sentences of a text; the whole text where too little would be left."""
    remaining = "".join(sentence for sentence in _split_sentences(text) if not is_out(sentence)).strip()
    return remaining if _count_units(remaining, language) >= LENGTHS[language][0] else text


def find_defects(text: str, person: Person, names: re.Pattern[str], language: Language) -> dict[Defect, str]:
    """Find what is wrong with a description by itself, with what shows it; empty where nothing is."""
    if not any(map(str.isalnum, text)):
        return {"empty": ""}
    bare = _QUOTED.sub(" ", text)
    defects: dict[Defect, str] = {}
    if detect_language(text) != language:
        defects["language"] = ""
    if any(_is_circular(sentence, language) for sentence in _split_sentences(text)):
        defects["circles"] = ""
    # A role may be a machine; that the reply speaks as one shows in the person.
    for rule in find_breaches(bare, language, machine=True):
        if rule != "complete":
            defects["voice"] = RULES[rule]
    if (size := _count_units(text, language)) < LENGTHS[language][0]:
        defects["short"] = str(size)
    if name := find_role_name(names, text):
        defects["named"] = name
    if not (_is_in_third if person == "third" else _is_in_second)(bare, language):
        defects[person] = ""
    return defects


def _is_in_third(bare: str, language: Language) -> bool:
    return not any(_count_persons(bare, language))


def _is_in_second(bare: str, language: Language) -> bool:
    """Tell whether a text addresses someone from its beginning and in most sentences, and never speaks of itself."""
    sentences = [sentence for sentence in _SENTENCE_END.split(bare) if any(map(str.isalnum, sentence))]
    addressed = [_count_persons(sentence, language)[0] > 0 for sentence in sentences]
    opens = not _OPENS_AS_THIRD.search(bare) and any(addressed[:1])
    return opens and 2 * sum(addressed) >= len(addressed) and not _count_persons(bare, language)[1]


def _count_persons(text: str, language: Language) -> tuple[int, int]:
    """Count how often a text addresses someone, and how often it speaks of itself."""
    if language == "en":
        return len(_YOU.findall(text)), len(_I.findall(text))
    # By words, as 自我 and 你死我活 speak of nobody.
    words = load_chinese_tokenizer()(text)
    return sum(word in _YOU_ZH for word in words), sum(word in _I_ZH for word in words)
