"""Speakers of the quotations of a novel: asked of a language model, passage by passage.

The quotations of a passage are numbered, and the model answers a name for each number. A request depends on the text
alone, neither on the role nor on other answers: passages are asked side by side, and another role or alias of the same
book is answered from the journal.
"""

from __future__ import annotations

import functools
import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, ClassVar, Final, NamedTuple

from rolellm.characters.scripts.novel import read_paragraphs
from rolellm.characters.scripts.parse import OUTCOMES, ParsedScript, ScriptReading, select_role
from rolellm.characters.scripts.reading import ScriptTurn
from rolellm.core.errors import SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language
from rolellm.core.settings import load_words
from rolellm.core.text import HAN
from rolellm.llm.json_reply import make_object_schema, parse_json
from rolellm.llm.llm import LLM
from rolellm.llm.model import (
    Answer,
    Outcome,
    Reply,
    Request,
    Sampling,
    UnacceptableError,
    assistant,
    system,
    user,
)
from rolellm.llm.tokens import TokenCounter
from rolellm.models.prompts.render import load_template
from rolellm.runs import Plan, Round, Step

# A passage: the quotations and tokens at which it ends, the paragraphs before it that are shown, too, and how many
# characters of the beginning and the end of long narration and speech are shown: what a small model keeps apart.
_MOST_ASKED: Final = 10
_TOKENS: Final = 500
_CONTEXT: Final = 2
_SHOWN: Final[Mapping[Language, tuple[int, int]]] = {"en": (160, 160), "zh": (40, 40)}
#: Greedy: there is one answer.
_SAMPLING: Final = Sampling(temperature=0, top_p=1, max_tokens=400)


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of a novel with quotations.

    Attributes:
        text: As the model is shown it.
        asked: For each number, from 1, the indices of its quotations among the turns: in English, all of a paragraph.
    """

    text: str
    asked: tuple[tuple[int, ...], ...]


def split_passages(reading: ScriptReading, counter: TokenCounter) -> list[Passage]:
    """Split a novel into passages of whole paragraphs, in order; stretches without any quotation are in none.

    Args:
        reading: The novel.
        counter: Counts tokens.
    """
    turns = reading.found
    language = reading.hints.language
    excerpts = [_shorten(turn.content, language) for turn in turns]
    paragraphs = _group_paragraphs(reading, excerpts, counter)
    passages: list[Passage] = []
    context: list[list[int]] = []
    window: list[list[int]] = []
    size = count = 0
    for paragraph in [*paragraphs, []]:
        if window and (not paragraph or count >= _MOST_ASKED or size > _TOKENS):
            if count:
                passages.append(_make_passage(context, window, turns, excerpts, language))
            context = window[-_CONTEXT:]
            window = []
            size = 0
            count = 0
        window.append(paragraph)
        size += sum(counter.count(excerpts[index]) for index in paragraph)
        count += sum(turns[index].kind == "speech" for index in paragraph)
    return passages


def _group_paragraphs(reading: ScriptReading, excerpts: Sequence[str], counter: TokenCounter) -> list[list[int]]:
    """Group the turns of a novel by paragraph; a paragraph may be a whole book, so a long one is cut."""
    starts = [paragraph.start for paragraph in read_paragraphs(reading.source.text)]
    groups: list[list[int]] = []
    last = -1
    size = 0
    for index, turn in enumerate(reading.found):
        number = bisect_right(starts, turn.start)
        if number != last or size > _TOKENS:
            groups.append([])
            size = 0
        last = number
        groups[-1].append(index)
        size += counter.count(excerpts[index])
    return groups


def _make_passage(
    context: Sequence[Sequence[int]],
    window: Sequence[Sequence[int]],
    turns: Sequence[ScriptTurn],
    excerpts: Sequence[str],
    language: Language,
) -> Passage:
    numbered: list[list[int]] = []
    lines: list[str] = []
    for position, paragraph in enumerate([*context, *window]):
        pieces: list[str] = []
        is_numbered = False
        for index in paragraph:
            piece = excerpts[index]
            if turns[index].kind == "speech":
                piece = f"“{piece}”"
                # In English, a paragraph has one speaker.
                if position >= len(context) and is_numbered and language == "en":
                    numbered[-1].append(index)
                elif position >= len(context):
                    numbered.append([index])
                    piece = f"[{len(numbered)}] {piece}"
                    is_numbered = True
            pieces.append(piece)
        separator = " " if language == "en" else ""
        lines.append(separator.join(pieces))
    return Passage("\n".join(lines), tuple(map(tuple, numbered)))


def _shorten(text: str, language: Language) -> str:
    head, tail = _SHOWN[language]
    if len(text) <= head + tail + 10:
        return text
    return f"{text[:head].rstrip()} … {text[-tail:].lstrip()}"


_NOBODY: Final = load_words("no_answers")


@functools.cache
def _load_example(language: Language) -> tuple[str, str]:
    """Load a passage of our own, and the right answer; a turn of its own, so that it is not taken for the text."""
    source = resources.files("rolellm.models.prompts").joinpath(language, "attribution_example.json")
    (example,) = json.loads(source.read_text(encoding="utf-8"))
    answer = {str(number): name for number, name in enumerate(example["speakers"], start=1)}
    return _render_task(language, example["passage"], len(answer)), json.dumps(answer, ensure_ascii=False)


def _render_task(language: Language, passage: str, count: int) -> str:
    separator = "、" if language == "zh" else ", "
    numbers = separator.join(f"[{number}]" for number in range(1, count + 1))
    fields = ", ".join(f'"{number}": …' for number in range(1, count + 1))
    return load_template(language, "attribution").fill(passage=passage, numbers=numbers, form=f"{{{fields}}}")


def request_speakers(passage: Passage, language: Language, number: int) -> Request:
    """Request the speakers of the numbered quotations of a passage; the tag has the passage's own number."""
    count = len(passage.asked)
    example, answer = _load_example(language)
    rules = load_template(language, "attribution_rules").text
    task = _render_task(language, passage.text, count)
    name = {"type": ["string", "null"]}
    names = {str(number): name for number in range(1, count + 1)}
    schema = make_object_schema("speakers", **names)
    repair = load_template(language, "repair").text
    messages = (system(rules), user(example), assistant(answer), user(task))
    return Request(messages, _SAMPLING, schema=schema, tag=f"attribution/{number}", repair=repair)


def accept_speakers(request: Request, reply: Reply) -> dict[int, str | None]:
    """Accept names by number; of numbers that are missing or odd, nothing.

    Raises:
        UnacceptableError: For a reply without JSON, or without any of the numbers.
    """
    value = parse_json(reply.text)
    numbers = {}
    if request.schema:
        numbers = request.schema.schema["properties"]
    speakers_by_label = {label.strip("[] "): speaker for label, speaker in value.items()}
    speakers_by_number: dict[int, str | None] = {}
    for number in numbers:
        speaker = speakers_by_label.get(number, ...)
        if speaker is None or isinstance(speaker, str):
            speakers_by_number[int(number)] = speaker
    if not speakers_by_number:
        raise UnacceptableError(f"the JSON has none of the numbers {', '.join(numbers)}", "malformed")
    return speakers_by_number


def _find_name(passage: str, name: str) -> str | None:
    """Find a name as the passage writes it; nothing of one that is not in it, or that names nobody."""
    stripped = " ".join(name.strip(" []“”\"'.").split())
    if not any(map(str.isalpha, stripped)) or stripped.casefold() in _NOBODY:
        return None
    pattern = re.escape(stripped)
    if not HAN.search(stripped):
        pattern = rf"(?<!\w){pattern}(?!\w)"
    match = re.search(pattern, passage, re.IGNORECASE)
    if match:
        return re.sub("^The ", "the ", match[0])
    return None


def apply_speakers(
    reading: ScriptReading, passages: Sequence[Passage], outcomes: Sequence[Outcome[dict[int, str | None]]]
) -> tuple[ScriptReading, dict[str, int]]:
    """Give the quotations of a novel the speakers that a model named; count what became of each."""
    counts = dict.fromkeys(("asked", *OUTCOMES), 0)
    turns = list(reading.found)
    for passage, outcome in zip(passages, outcomes, strict=True):
        names = outcome.value if isinstance(outcome, Answer) else {}
        for number, indices in enumerate(passage.asked, start=1):
            name = names.get(number)
            speaker = _find_name(passage.text, name) if name else None
            kind = "answered"
            if number not in names:
                kind = "missing"
            elif name is None:
                kind = "nobody"
            elif speaker is None:
                kind = "refused"
            counts["asked"] += len(indices)
            counts[kind] += len(indices)
            for index in indices:
                turns[index] = replace(turns[index], speaker=speaker)
                if kind == "nobody":
                    turns[index] = replace(turns[index], kind="narration", speaker="narrator")
    return replace(reading, found=turns), counts


def check_novel(reading: ScriptReading) -> None:
    """Refuse a script that names its speakers.

    Raises:
        SettingsError: For any format but ``novel``.
    """
    if reading.format != "novel":
        raise SettingsError(
            f"a model attributes the quotations of novels, and this was read as {reading.format}, which names its "
            "speakers; leave the model out, or read it as a novel (--format novel)"
        )


class Attribution(NamedTuple):
    """A novel as read for one role, and how many of its quotations became what."""

    script: ParsedScript
    counts: dict[str, int]


@dataclass(frozen=True)
class Attribute(Step[Attribution]):
    """Find who speaks a novel's quotations, and read it for one role.

    Attributes:
        reading: The novel.
        names: The role, then its aliases.
    """

    reading: ScriptReading
    names: Sequence[str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    kind: ClassVar[str] = "attribution"

    def plan(self, llm: LLM) -> Plan[Attribution]:
        """Ask about passages.

        Raises:
            SettingsError: For a script that is not a novel.
            ScriptError: When the role never speaks.
        """
        check_novel(self.reading)
        language = self.reading.hints.language
        passages = split_passages(self.reading, llm.counter)
        requests = [request_speakers(passage, language, number) for number, passage in enumerate(passages, start=1)]
        outcomes = yield Round(requests, accept_speakers, label="attributing quotations")
        attributed, counts = apply_speakers(self.reading, passages, outcomes)
        return Attribution(select_role(self.names, attributed), counts)

    def describe(self, result: Attribution) -> dict[str, Any]:
        """Return the novel and the names."""
        return {"names": list(self.names), "text": hash_json(self.reading.source.text)}

    def summarize(self, result: Attribution) -> dict[str, Any]:
        """Count what became of the quotations."""
        return result.counts
