"""Who speaks the quotations of a novel that name nobody: asked of a language model, passage by passage.

The open quotations of a passage are numbered; those whose speaker is written next to them carry the name instead, and
the model answers a name for each number. A request depends on the text alone, neither on the role nor on other
answers: passages are asked side by side, and another role or alias of the same book is answered from the journal.
A second kind of request asks whether two names are one person's; each shows a sentence of the text with both.
"""

from __future__ import annotations

import functools
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from rolellm.construct.scripts.aliases import Proposal
from rolellm.construct.scripts.novel import read_novel
from rolellm.construct.scripts.parse import Parsed, Reading, parsed_for
from rolellm.construct.scripts.quotes import read_paragraphs
from rolellm.construct.scripts.reading import Found, Hints, key, words_of
from rolellm.core.errors import SettingsError
from rolellm.core.records import Language
from rolellm.core.text import HAN
from rolellm.llm.client import Client
from rolellm.llm.json_reply import json_of
from rolellm.llm.llm import LLM
from rolellm.llm.model import (
    Answer,
    Reply,
    Request,
    Sampling,
    Schema,
    UnacceptableError,
    assistant,
    system,
    user,
)
from rolellm.llm.structured import accept_json
from rolellm.llm.tokens import TokenCounter
from rolellm.prompts.render import load_template

# A passage: the most numbers in it, the most tokens of its own text and of what comes before, and how many characters
# of the beginning and the end of long narration and speech are shown (our choice: what a small model keeps apart).
_MOST_ASKED: Final = 10
_TOKENS: Final = 500
_CONTEXT_TOKENS: Final = 120
_SHOWN: Final[Mapping[Language, tuple[int, int]]] = {"en": (160, 160), "zh": (40, 40)}
#: Greedy: there is one answer.
_SAMPLING: Final = Sampling(temperature=0, top_p=1, max_tokens=400)


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of a novel with quotations that name nobody.

    Attributes:
        text: As the model is shown it.
        asked: For each number, from 1, the places of its quotations among the turns: in English, all of a paragraph.
    """

    text: str
    asked: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Counts:
    """What became of the quotations that were asked about.

    Attributes:
        asked: How many there were.
        answered: A person of the text speaks them.
        nobody: Nobody does: they are narration.
        refused: The name is not in the passage, or is none.
        missing: The reply does not have them, or the request failed.
        requests: How many passages and pairs of names were asked about.
        failed: How many of these have no usable reply.
    """

    asked: int = 0
    answered: int = 0
    nobody: int = 0
    refused: int = 0
    missing: int = 0
    requests: int = 0
    failed: int = 0


def passages_of(text: str, found: Sequence[Found], language: Language, counter: TokenCounter) -> list[Passage]:
    """The passages of a novel, in order; stretches in which every speaker is known are in none.

    Args:
        text: `Source.text`.
        found: Its turns.
        language: Its language.
        counter: Counts tokens.
    """
    starts = [paragraph.start for paragraph in read_paragraphs(text)]
    paragraph = [bisect_right(starts, item.start) for item in found]
    shown = [_shortened(item.content, language) for item in found]
    sizes = [counter.count(piece) for piece in shown]
    made: list[Passage] = []
    for low, high in _stretches(found, paragraph, sizes):
        first, room = low, _CONTEXT_TOKENS
        while first > 0 and found[first - 1].scene == found[low].scene and room > sizes[first - 1]:
            first -= 1
            room -= sizes[first]
        asked: list[list[int]] = []
        lines: list[str] = []
        for at in range(first, high):
            item, piece = found[at], shown[at]
            goes_on = at > first and paragraph[at] == paragraph[at - 1]
            if item.kind == "speech":
                mark = f"[{item.speaker}] " if item.speaker else ""
                if at >= low and item.speaker is None:
                    if language == "en" and asked and paragraph[asked[-1][0]] == paragraph[at]:
                        asked[-1].append(at)
                    else:
                        asked.append([at])
                        mark = f"[{len(asked)}] "
                piece = f"{mark}“{piece}”"
            if goes_on:
                lines[-1] += (" " if language == "en" else "") + piece
            else:
                lines.append(piece)
        made.append(Passage("\n".join(lines), tuple(map(tuple, asked))))
    return made


def _stretches(found: Sequence[Found], paragraph: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where passages begin and end among the turns: with whole paragraphs, if those are not too long."""
    low, opened, size = 0, 0, 0
    for at, item in enumerate(found):
        is_break = item.kind != "direction" and at > low and (paragraph[at] != paragraph[at - 1] or size > 2 * _TOKENS)
        if at > low and (item.scene != found[low].scene or (is_break and (opened >= _MOST_ASKED or size > _TOKENS))):
            if opened:
                yield low, at
            low, opened, size = at, 0, 0
        is_open = item.kind == "speech" and item.speaker is None
        if is_open and not opened:
            # What leads up to it is context.
            begin = max(low, at - 4)
            size = sum(sizes[begin:at])
            low = begin
        opened += is_open
        size += sizes[at]
    if opened:
        yield low, len(found)


def _shortened(text: str, language: Language) -> str:
    head, tail = _SHOWN[language]
    return text if len(text) <= head + tail + 10 else f"{text[:head].rstrip()} … {text[-tail:].lstrip()}"


# Answers that are no names.
_NOBODY: Final = words_of(
    "he she they it we you him her them his hers their unknown nobody none null narrator speaker someone the "
    "他 她 它 他们 她们 我们 你 你们 谁 誰 他們 她們 我們 你們 无 無 未知 不知 旁白 作者"
)


@functools.cache
def _example(language: Language) -> tuple[str, str]:
    """A passage of our own, and the right answer; a turn of the conversation, so that it is not taken for the text."""
    source = resources.files("rolellm.prompts").joinpath(language, "attribution_example.json")
    (example,) = json.loads(source.read_text(encoding="utf-8"))
    answer = {str(number): name for number, name in enumerate(example["speakers"], start=1)}
    return _task(language, example["passage"], len(answer)), json.dumps(answer, ensure_ascii=False)


def _task(language: Language, passage: str, count: int) -> str:
    numbers = [str(number) for number in range(1, count + 1)]
    between = "、" if language == "zh" else ", "
    return load_template(language, "attribution").fill(
        passage=passage,
        numbers=between.join(f"[{number}]" for number in numbers),
        form="{" + ", ".join(f'"{number}": …' for number in numbers) + "}",
    )


def speakers_request(passage: Passage, language: Language, number: int = 0) -> Request:
    """Asks who speaks the numbered quotations of a passage; the tag has the passage's own number."""
    names = [str(number) for number in range(1, len(passage.asked) + 1)]
    shown, answer = _example(language)
    return Request(
        (
            system(load_template(language, "attribution_rules").text),
            user(shown),
            assistant(answer),
            user(_task(language, passage.text, len(names))),
        ),
        _SAMPLING,
        schema=Schema(
            "speakers",
            {
                "type": "object",
                "properties": {name: {"type": ["string", "null"]} for name in names},
                "required": names,
                "additionalProperties": False,
            },
        ),
        tag=f"attribution/{number}",
        repair=load_template(language, "repair").text,
    )


def accept_speakers(request: Request, reply: Reply) -> dict[int, str | None]:
    """The `accept` that takes names by number; of numbers that are missing or odd, nothing.

    Raises:
        UnacceptableError: For a reply without JSON, or without any of the numbers.
    """
    value = json_of(reply.text, "object")
    numbers = request.schema.schema["properties"] if request.schema else {}
    said = {name.strip("[] "): speaker for name, speaker in value.items()}
    found = {int(name): said[name] for name in numbers if name in said and isinstance(said[name], str | None)}
    if not found:
        raise UnacceptableError(f"the JSON has none of the numbers {', '.join(numbers)}", "malformed")
    return found


def _named_in(passage: str, name: str) -> str | None:
    """A name as the passage writes it; nothing of one that is not in it, or that names nobody."""
    wanted = " ".join(name.strip(" []“”\"'.").split())
    if not any(map(str.isalpha, wanted)) or wanted.casefold() in _NOBODY:
        return None
    pattern = re.escape(wanted) if HAN.search(wanted) else rf"(?<!\w){re.escape(wanted)}(?!\w)"
    match = re.search(pattern, passage, re.IGNORECASE)
    return re.sub("^The ", "the ", match[0]) if match else None


def attribute(reading: Reading, passages: Sequence[Passage], client: Client) -> tuple[Reading, Counts]:
    """Ask who speaks the open quotations of a novel.

    Args:
        reading: The novel.
        passages: Those to ask about, of `passages_in`.
        client: Asks, and keeps the replies in its folder.

    Returns:
        The novel with the speakers that were found, and what became of the rest.

    Raises:
        StoppedShortError: As `Client.ask`.
        EndpointError: As `Client.ask`.
    """
    language, counts, found = reading.hints.language, Counts(), list(reading.found)
    requests = [speakers_request(passage, language, number) for number, passage in enumerate(passages, start=1)]
    outcomes = client.ask(requests, accept_speakers, label="attributing quotations")
    for passage, outcome in zip(passages, outcomes, strict=True):
        counts.requests += 1
        counts.failed += not isinstance(outcome, Answer)
        said = outcome.value if isinstance(outcome, Answer) else {}
        for number, places in enumerate(passage.asked, start=1):
            # What is written next to a quotation counts more than what a model says.
            open_places = [place for place in places if found[place].speaker is None]
            counts.asked += len(open_places)
            name = said.get(number)
            spelled = _named_in(passage.text, name) if name else None
            if number not in said:
                counts.missing += len(open_places)
            elif name is not None and spelled is None:
                counts.refused += len(open_places)
            else:
                counts.answered += len(open_places) * (spelled is not None)
                counts.nobody += len(open_places) * (spelled is None)
                for place in open_places:
                    told = replace(found[place], kind="narration", speaker="narrator")
                    found[place] = replace(found[place], speaker=spelled) if spelled else told
    return replace(reading, found=found), counts


def passages_in(reading: Reading, counter: TokenCounter) -> list[Passage]:
    """The passages of a novel, the same whoever is asked for: a role's names would change the prompts."""
    plain = read_novel(reading.source, Hints(reading.hints.language))
    return passages_of(reading.source.text, plain, reading.hints.language, counter)


# Maximum pairs of names to ask about.
_MOST_PAIRS: Final = 30
_SENTENCE: Final = re.compile(r"[^.!?。！？\n]*(?:(?:Mr|Mrs|Ms|Dr|St)\.[^.!?。！？\n]*)*[.!?。！？]?[”’」』\"]?")
_LONGEST: Final = 300
#: Two who answer each other at least this often are two persons.
_ANSWERS: Final = 2


@dataclass(frozen=True, slots=True)
class Pair:
    """Two names that may be one person's, and a sentence of the text with both."""

    name: str
    other: str
    speeches: int
    evidence: str


def pairs_of(parsed: Parsed, text: str) -> list[Pair]:
    """The names to ask about: speakers whom a sentence names together with the role, and who never answer it."""
    names = (parsed.role, *parsed.aliases)
    keys = {key(name) for name in names}
    speaking = [name for turn, name in zip(parsed.turns, parsed.speakers, strict=True) if turn.kind == "speech"]
    answers = Counter(
        key(other) if key(one) in keys else key(one)
        for one, other in pairwise(speaking)
        if (key(one) in keys) != (key(other) in keys)
    )
    others = {name: count for name, count in parsed.others.items() if answers[key(name)] < _ANSWERS}
    sentences = [
        sentence
        for match in _SENTENCE.finditer(text)
        if len(sentence := " ".join(match[0].split())) <= _LONGEST and any(_has(sentence, name) for name in names)
    ]
    found = []
    for other, count in others.items():
        pair = next(((s, name) for s in sentences for name in names if _has(s, other) and _has(s, name)), None)
        if pair is not None:
            found.append(Pair(pair[1], other, count, pair[0]))
    return found[:_MOST_PAIRS]


def _has(sentence: str, name: str) -> bool:
    if HAN.search(name):
        return name in sentence
    return name in sentence and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", sentence) is not None


_SAME: Final = Schema(
    "persons",
    {
        "type": "object",
        "properties": {"persons": {"type": "integer"}},
        "required": ["persons"],
        "additionalProperties": False,
    },
)


def same_request(pair: Pair, language: Language) -> Request:
    """Asks whether two names are one person's or two's."""
    asked = load_template(language, "attribution_same").fill(name=pair.name, other=pair.other, evidence=pair.evidence)
    return Request(
        (user(asked),),
        replace(_SAMPLING, max_tokens=40),
        schema=_SAME,
        tag=f"aliases/{pair.other}",
        repair=load_template(language, "repair").text,
    )


def propose_aliases(parsed: Parsed, text: str, client: Client) -> tuple[list[Proposal], Counts]:
    """Ask which other speakers are the role under another name; none is applied.

    Args:
        parsed: The novel, read for the role.
        text: `Source.text`.
        client: Asks, and keeps the replies in its folder.
    """
    pairs, counts = pairs_of(parsed, text), Counts()
    requests = [same_request(pair, parsed.language) for pair in pairs]
    accept = accept_json(_SAME, lambda value: value["persons"] == 1)
    outcomes = client.ask(requests, accept, label="comparing names")
    counts.requests, counts.failed = len(pairs), sum(not isinstance(outcome, Answer) for outcome in outcomes)
    proposals = [
        Proposal(pair.other, pair.speeches, f"one person by the model; the text: ‘{pair.evidence:.100}’")
        for pair, outcome in zip(pairs, outcomes, strict=True)
        if isinstance(outcome, Answer) and outcome.value
    ]
    return proposals, counts


def planned_requests(reading: Reading, counter: TokenCounter) -> list[Request]:
    """What `parse_folder` would ask about quotations; the few short questions about names depend on the answers."""
    language = reading.hints.language
    return [speakers_request(passage, language) for passage in passages_in(reading, counter)]


def check_novel(reading: Reading) -> None:
    """Refuse a script that names its speakers.

    Raises:
        SettingsError: For any format but ``novel``.
    """
    if reading.format != "novel":
        raise SettingsError(
            f"a model attributes the quotations of novels, and this was read as {reading.format}, which names its "
            "speakers; leave the model out, or read it as a novel (--format novel)"
        )


def parse_folder(names: Sequence[str], reading: Reading, folder: str | Path, llm: LLM) -> tuple[Parsed, dict[str, Any]]:
    """Attribute a novel's quotations in a folder that keeps every reply, and read it for one role.

    Args:
        names: The role, then its aliases.
        reading: The novel.
        folder: For the journal; a run that stopped short continues from what is in it.
        llm: Who is asked.

    Returns:
        What the novel has for the role, and what was asked, answered and spent.

    Raises:
        SettingsError: For another format.
        ScriptError: When the role never speaks.
        RoleLLMError: As `Client.ask`.
    """
    check_novel(reading)
    with Client(folder, llm.models, llm.options) as client:
        attributed, counts = attribute(reading, passages_in(reading, llm.counter), client)
        parsed = parsed_for(names, attributed)
        proposals, more = propose_aliases(parsed, reading.source.text, client)
        counts.requests += more.requests
        counts.failed += more.failed
        return replace(parsed, proposals=tuple(proposals)), {**asdict(counts), "spent": client.spent.to_dict()}
