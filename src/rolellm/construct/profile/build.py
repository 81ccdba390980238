"""From a script, or a card, to a profile: the description in both persons, and the catchphrases."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from rolellm.construct.clean import broken_rules
from rolellm.construct.profile.phrases import OFFERED, Phrase, offered_phrases, repeated_phrases
from rolellm.construct.scripts.parse import detect_language
from rolellm.construct.settings import BuildSettings
from rolellm.construct.sheet import Sheet
from rolellm.core.errors import EndpointError, ModelError, ScriptError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language, Turn
from rolellm.core.text import HAN, chinese_words
from rolellm.llm.client import Client
from rolellm.llm.model import (
    Accept,
    Failure,
    FailureKind,
    Message,
    Reply,
    Request,
    Sampling,
    Schema,
    T,
    UnacceptableError,
    system,
    user,
)
from rolellm.llm.structured import accept_json
from rolellm.llm.tokens import TokenCounter
from rolellm.prompts.render import load_template, script_line

_RUN: Final = re.compile(r"[^\W_]+")
_ARTICLE: Final = re.compile(r"(?:the|an?)\s+(?=\S)", re.IGNORECASE)
_LATIN_EDGE: Final = ("(?<![A-Za-z0-9_\u00c0-\u024f])", "(?![A-Za-z0-9_\u00c0-\u024f])")
_LEAST_PART: Final = 3
#: Parts of names that name nobody by themselves.
_WORDS: Final = """
the and von van der den del los las one two who what dr mr mrs ms miss sir madam lord lady king queen prince
princess duke duchess count countess baron emperor empress captain colonel major general sergeant lieutenant
commander admiral officer agent doctor professor judge father mother brother sister uncle aunt saint old young
little big great first second third
"""
_COMMON: Final = frozenset(_WORDS.split())


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a role.

    Attributes:
        listed: The role's name and its aliases, as given.
        pattern: What finds them and, of a name of several words, the words that name the role by themselves.
    """

    listed: tuple[str, ...]
    pattern: re.Pattern[str]

    def find(self, text: str) -> str | None:
        """The first name in a text, as written; ``None`` where there is none.

        In English a name counts where it begins with a capital: a role called Soldier may be described as a soldier.
        """
        return next((hit.group() for hit in self.pattern.finditer(text) if not hit.group()[0].islower()), None)


def names_of(character: Sheet) -> Names:
    """The names of a character, its aliases among them, and which of their words name it alone.

    Chinese names of one character are passed over: they would be found in other words.
    """
    listed = character.names
    whole = {pattern for name in listed if (pattern := _pattern(name)) is not None}
    parts = {_edged(part) for name in listed for part in _parts(name)}
    # The longest first: of aliases that contain each other the whole one is what is found.
    ordered = sorted(whole | parts, key=lambda pattern: (-len(pattern), pattern))
    return Names(listed, re.compile("|".join(ordered) or "(?!)", re.IGNORECASE))


def _pattern(name: str) -> str | None:
    runs = _RUN.findall(_ARTICLE.sub("", name, count=1) if _ARTICLE.match(name) else name)
    if not runs or (len(runs) == 1 and len(runs[0]) < 2 and (HAN.search(runs[0]) or runs[0].lower() in "ai")):
        return None
    return _edged(*runs)


def _edged(*runs: str) -> str:
    """A pattern of words with little between them that has no letter on either side; Chinese has no such sides."""
    before = "" if HAN.match(runs[0]) else _LATIN_EDGE[0]
    after = "" if HAN.match(runs[-1][-1]) else _LATIN_EDGE[1]
    return before + r"[\W_]{0,3}".join(map(re.escape, runs)) + after


def _parts(name: str) -> list[str]:
    runs = _RUN.findall(name)
    return [
        run
        for run in (runs if len(runs) > 1 else ())
        if (len(run) > 1 if HAN.match(run) else len(run) >= _LEAST_PART and run[0].isupper())
        and run.casefold() not in _COMMON
    ]


_OF_OTHERS: Final = 0.25
_NARRATED: Final = 0.15
# After this many misses in a row, no room is left worth looking for.
_MISSES: Final = 50
_LEAST: Final = 8


@dataclass(frozen=True, slots=True)
class Excerpts:
    """What a model is shown of a script.

    Attributes:
        text: The turns in the order of the script, an empty line where some were left out.
        own: How many of the role's lines there are in it.
        of_others: How many of what others say: to the role right before its lines, or of it.
        narrated: How many turns of narration.
        tokens: Of the text.
    """

    text: str
    own: int
    of_others: int
    narrated: int
    tokens: int


def choose_excerpts(
    character: Sheet, names: Names, budget: int = 6000, counter: TokenCounter | None = None
) -> Excerpts:
    """Choose the excerpts, spread over the script; the same for the same script.

    Args:
        character: Whose script.
        names: The role's.
        budget: Tokens that they may have in all.
        counter: Counts tokens; by default an estimate.
    """
    turns, count = character.turns, (counter or TokenCounter()).count
    profile = character.profile()
    own = [place for place, turn in enumerate(turns) if profile.owns(turn)]
    mine = frozenset(own)
    naming = [place for place, turn in enumerate(turns) if place not in mine and names.find(turn.content)]
    said = [place for place in naming if turns[place].kind == "speech"]
    told = [place for place in naming if turns[place].kind != "speech"]
    chosen: set[int] = set()

    def cost(places: Iterable[int]) -> int:
        return sum(count(script_line(turns[place], character.language) + "\n\n") + 1 for place in places)

    def take(passages: Iterable[Sequence[int]], room: int) -> int:
        """Take the passages that fit, as they come; return what is left of the room."""
        misses = 0
        for passage in passages:
            if room < _LEAST or misses > _MISSES:
                break
            fresh = [place for place in passage if place not in chosen]
            added = cost(fresh)
            misses = misses + 1 if added > room else 0
            if added <= room:
                room -= added
                chosen.update(fresh)
        return room

    left = take(([place] for place in _spread(said)), int(budget * _OF_OTHERS))
    take(([place] for place in _spread(told)), int(budget * _NARRATED) + left)
    room = take((_answered(turns, place, mine) for place in _spread(own)), budget - cost(chosen))
    take(([place] for place in _spread([*said, *told])), room)
    shown = sorted(chosen)
    lines: list[str] = []
    for before, place in zip([None, *shown], shown, strict=False):
        if before is not None and (place != before + 1 or turns[place].scene != turns[before].scene):
            lines.append("")
        lines.append(script_line(turns[place], character.language))
    text = "\n".join(lines)
    kinds = [turns[place].kind == "speech" for place in shown if place not in mine]
    return Excerpts(text, len(mine & chosen), sum(kinds), len(kinds) - sum(kinds), count(text))


def _answered(turns: Sequence[Turn], place: int, own: frozenset[int]) -> list[int]:
    """A line of the role's, with what someone else says right before it."""
    before = place - 1
    if before < 0 or before in own or turns[before].kind != "speech" or turns[before].scene != turns[place].scene:
        return [place]
    return [before, place]


def _spread(places: Sequence[int]) -> list[int]:
    """The places in an order of which every beginning is spread over the script; the same for the same script."""
    return random.Random(len(places)).sample(places, len(places))


SAMPLING: Final = BuildSettings().sampling
_TEMPLATES: Final = (
    *("third_rules", "third", "notes", "excerpts", "second_rules", "second"),
    *("phrases_rules", "phrases", "phrase_line", "knowledge_rules", "knowledge"),
)


def template_hashes(language: Language) -> dict[str, str]:
    """The hash of each template, by its file's name."""
    return {f"profile_{name}": load_template(language, f"profile_{name}").hash for name in _TEMPLATES}


def third_person(
    character: Sheet, names: Names, *, excerpts: str, notes: str = "", sampling: Sampling = SAMPLING
) -> Request:
    """Asks for the description in the third person.

    Args:
        character: Whose.
        names: What must not be in it.
        excerpts: Of the script; may be empty.
        notes: What else is known, such as a card's description; may be empty.
        sampling: How the reply is drawn.
    """
    language = character.language
    asked = _filled(
        language,
        "third",
        role=character.role,
        names=_listed(names, language),
        notes=_filled(language, "notes", notes=notes) + "\n" if notes else "",
        excerpts=_filled(language, "excerpts", excerpts=excerpts) + "\n" if excerpts else "",
    )
    return Request(_prompt(language, "third", asked), sampling, tag="profile/third")


def second_person(character: Sheet, names: Names, portrait: str, sampling: Sampling = SAMPLING) -> Request:
    """Asks for a third-person description to be turned into the second person."""
    language = character.language
    asked = _filled(language, "second", names=_listed(names, language), portrait=portrait)
    return Request(_prompt(language, "second", asked), sampling, tag="profile/second")


def pick_phrases(character: Sheet, phrases: Sequence[Phrase], most: int, sampling: Sampling = SAMPLING) -> Request:
    """Asks to pick catchphrases from numbered phrases, by their numbers."""
    language = character.language
    lines = [
        _filled(
            language,
            "phrase_line",
            number=str(number),
            phrase=phrase.text,
            lines=str(phrase.lines),
            others=str(phrase.others),
        )
        for number, phrase in enumerate(phrases, start=1)
    ]
    asked = _filled(language, "phrases", role=character.role, phrases="\n".join(lines), most=str(most))
    return Request(_prompt(language, "phrases", asked), sampling, schema=_PICKS, tag="profile/catchphrases")


def accept_picks(phrases: Sequence[Phrase], most: int) -> Accept[tuple[str, ...]]:
    """The `accept` that takes numbers of phrases, and makes them the phrases; none is taken that is not on the list."""

    def make(value: Any) -> tuple[str, ...]:
        numbers = list(dict.fromkeys(map(int, value["chosen"])))
        beyond = [number for number in numbers if not 1 <= number <= len(phrases)]
        if beyond:
            raise UnacceptableError(f"picks what is not on the list, which has {len(phrases)}")
        if len(numbers) > most:
            raise UnacceptableError(f"picks more than {most}")
        return tuple(phrases[number - 1].text for number in numbers)

    return accept_json(_PICKS, make)


def knowledge_questions(character: Sheet, script: str | None = None, sampling: Sampling = SAMPLING) -> list[Request]:
    """Basic questions about a role, to be answered without its script, for a person to read.

    Args:
        character: Whom they ask about.
        script: The name of the work, which all but the first question then give, so that the right one is meant.
        sampling: How replies are drawn.
    """
    language = character.language
    opening, closing = ("（", "）") if language == "zh" else (" (", ")")
    who = f"{character.role}{opening}{script}{closing}" if script else character.role
    # A role's name is one line, however it was given, or a question would fall apart.
    asked = _filled(language, "knowledge", role=_one_line(character.role), who=_one_line(who)).splitlines()
    return [
        Request(_prompt(language, "knowledge", question), sampling, tag=f"profile/knowledge/{number}")
        for number, question in enumerate(asked, start=1)
    ]


_PICKS: Final = Schema(
    "catchphrases",
    {
        "type": "object",
        "properties": {"chosen": {"type": "array", "items": {"type": "integer"}}},
        "required": ["chosen"],
        "additionalProperties": False,
    },
)


def _prompt(language: Language, name: str, asked: str) -> tuple[Message, ...]:
    return system(_filled(language, f"{name}_rules")), user(asked)


def _filled(language: Language, name: str, **slots: str) -> str:
    return load_template(language, f"profile_{name}").fill(**slots)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _listed(names: Names, language: Language) -> str:
    return ("、" if language == "zh" else ", ").join(names.listed)


Person = Literal["third", "second"]

#: The shortest and the longest description that is taken: words in English, characters in Chinese. The release's are of
#: 30 to 177 words, and 80 to 160 are asked for.
LENGTHS: Final = {"en": (15, 400), "zh": (25, 800)}
#: The longest in bytes, so that the request that it goes into has a bound.
MOST_BYTES: Final = 4000

_THOUGHTS: Final = "</think>"
_QUOTED: Final = re.compile(
    r"“[^“”]{0,400}”|\"[^\"]{0,400}\"|「[^「」]{0,400}」|『[^『』]{0,400}』|‘[^‘’]{0,400}’(?!\w)"
    r"|(?<![^\W_])'[^'\n]{1,400}'(?![^\W_])"
)
_HEADED: Final = re.compile(
    r"\A\W{0,3}(?:(?:sure|certainly|of course|absolutely|okay)\b|here(?:'s| is| are)\b|portrait\b|description\b"
    r"|(?:好的|当然|以下|下面|小传|人物小传)[^。]{0,20}[，,：:！!\n])",
    re.IGNORECASE,
)
_MARKED_UP: Final = re.compile(r"^\s*(?:#{1,6}\s|[-*•]\s|\d+[.)、]\s)|\*\*|```|^\s*<<<|>>>\s*$", re.MULTILINE)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
_I: Final = re.compile(
    r"\bI(?:['’](?:m|ve|ll|d)\b| (?:am|was|have|had|will|would|can|cannot|can't|could|do|don't|did|must|shall|should"
    r"|know|see|need|think|believe|understand|apologi[sz]e)\b)|\b(?:my|myself)\b"
)
_YOU: Final = re.compile(r"\b(?:you|your|yours|yourself|you['’](?:re|ve|ll|d))\b", re.IGNORECASE)
_YOU_ZH: Final = frozenset({"你", "您", "你们", "您们"})
_I_ZH: Final = frozenset({"我", "我们", "咱", "咱们", "俺"})
_OPENS_AS_THIRD: Final = re.compile(r"\A\W{0,3}(?:(?:she|he|they|it)\b|[他她它])", re.IGNORECASE)


def accept_portrait(person: Person, names: Names, language: Language) -> Accept[str]:
    """The `accept` that takes a description, as one paragraph.

    Args:
        person: ``third``: nobody is addressed, and nobody speaks of itself. ``second``: the role is addressed from the
            beginning, and in half of the sentences.
        names: None of them may be in it.
        language: Of the reply.

    Returns:
        A function that raises `UnacceptableError` with a reason in words.
    """

    def accept(_: Request, reply: Reply) -> str:
        text = plain_reply(reply.text)
        problem = problem_of(text, person, names, language)
        if problem is not None:
            raise UnacceptableError(problem)
        return text if language == "en" else re.sub(r"(?<=[。！？；，、：”]) +", "", text)

    return accept


def plain_reply(text: str) -> str:
    """A reply without the thoughts before it and the quotation marks around it, on one line where it is prose."""
    text = text.rpartition(_THOUGHTS)[2].strip()
    for opening, closing in ('""', "“”"):
        inner = text[1:-1]
        if text.startswith(opening) and text.endswith(closing) and opening not in inner and closing not in inner:
            text = inner.strip()
    return text if _MARKED_UP.search(text) else " ".join(text.split())


def problem_of(text: str, person: Person, names: Names, language: Language) -> str | None:
    """What is wrong with a description, in words; ``None`` where nothing is."""
    bare = _QUOTED.sub(" ", text)
    return (
        _form(text, language)
        or _broken(text, bare, language)
        or ("names the role" if names.find(text) else None)
        or (_not_third if person == "third" else _not_second)(bare, language)
    )


def _form(text: str, language: Language) -> str | None:
    if not text:
        return "is empty"
    if detect_language(text) != language:
        return "is in another language"
    least, most = LENGTHS[language]
    size = len(text.split()) if language == "en" else sum(not character.isspace() for character in text)
    if size < least:
        return "is too short"
    if size > most or len(text.encode("utf-8", errors="replace")) > MOST_BYTES:
        return "is too long"
    if _HEADED.search(text):
        return "opens with something other than the description"
    return "is not a plain paragraph" if _MARKED_UP.search(text) else None


def _broken(text: str, bare: str, language: Language) -> str | None:
    # A role may be a machine; that the reply speaks as one shows in the person.
    if any(breach.rule == "complete" for breach in broken_rules(text, language)):
        return "is not complete"
    for breach in broken_rules(bare, language, machine=True):
        if breach.rule != "complete":
            return breach.reason
    return None


def _not_third(bare: str, language: Language) -> str | None:
    you, own = _spoken_to_and_of(bare, language)
    if you:
        return "addresses someone, and should be in the third person"
    return "speaks of itself, and should be in the third person" if own else None


def _not_second(bare: str, language: Language) -> str | None:
    sentences = [sentence for sentence in _SENTENCE_END.split(bare) if any(map(str.isalnum, sentence))]
    addressed = [_spoken_to_and_of(sentence, language)[0] > 0 for sentence in sentences]
    if _OPENS_AS_THIRD.search(bare) or not any(addressed[:1]):
        return "does not address the role from the beginning"
    if 2 * sum(addressed) < len(addressed):
        return "addresses the role in less than half of its sentences"
    return "speaks of itself, and should address the role" if _spoken_to_and_of(bare, language)[1] else None


def _spoken_to_and_of(text: str, language: Language) -> tuple[int, int]:
    """How often a text addresses someone, and how often it speaks of itself."""
    if language == "en":
        return len(_YOU.findall(text)), len(_I.findall(text))
    # By words, as 自我 and 你死我活 speak of nobody.
    words = chinese_words()(text)
    return sum(word in _YOU_ZH for word in words), sum(word in _I_ZH for word in words)


_NOTES_SHARE: Final = 0.5
_NO_REPLY: Final[frozenset[FailureKind]] = frozenset(
    ("bad_request", "unauthorized", "forbidden", "not_found", "rate_limited", "server_error", "timeout", "connection")
)


def build_profile(
    start: Sheet,
    client: Client | None = None,
    settings: BuildSettings | None = None,
    counter: TokenCounter | None = None,
) -> Sheet:
    """Make a role's profile.

    Args:
        start: Who it is, as from `rolellm.construct.profile.folder.start_sheet` or an imported card; a card's
            description goes into the prompt as notes, and a new one is written.
        client: Asks the model; not needed where the settings ask nothing of one.
        settings: How.
        counter: Counts tokens; by default an estimate.

    Returns:
        The character with description, background and catchphrases; how it was made is under ``build`` in `made`.

    Raises:
        ScriptError: When there is nothing to make a description of: no line of the role's, and no notes.
        ModelError: When the model's replies were not taken, however often it was asked; says why.
        SettingsError: When a model is needed and there is no client.
        StoppedShortError: As `Client.ask`.
        EndpointError: As `Client.ask`, and when a request never got a reply.
    """
    settings, language = settings or BuildSettings(), start.language
    asker, names = _Asker(client, start.role), names_of(start)
    catchphrases: tuple[str, ...] = ()
    offered: list[Phrase] = []
    excerpts = background = None
    description = settings.description and settings.description.strip()
    if description is None:
        request, excerpts = _third_request(start, names, settings, counter)
        background = asker.ask(request, accept_portrait("third", names, language), "description, third person")
        request = second_person(start, names, background, settings.sampling)
        description = asker.ask(request, accept_portrait("second", names, language), "description, second person")
    if not settings.picks:
        catchphrases = tuple(phrase.text for phrase in repeated_phrases(start)[: settings.catchphrases])
    elif offered := offered_phrases(start, OFFERED):
        request = pick_phrases(start, offered, settings.catchphrases, settings.sampling)
        catchphrases = asker.ask(request, accept_picks(offered, settings.catchphrases), "catchphrases")
    built = replace(start, background=background, description=description, catchphrases=catchphrases)
    receipt = {
        "settings": settings.to_dict(),
        "templates": template_hashes(language),
        "models": asker.models,
        "prompts": asker.prompts,
        "excerpts": None if excerpts is None else {k: v for k, v in asdict(excerpts).items() if k != "text"},
        "offered": len(offered),
        "notes": notes_of(start),
        "result": result_hash(built),
    }
    return replace(built, made={**start.made, "build": receipt})


def planned_requests(
    start: Sheet, settings: BuildSettings | None = None, counter: TokenCounter | None = None
) -> list[Request]:
    """What `build_profile` would ask, the knowledge check included; for estimates.

    The request for the second person, which depends on a reply, holds the longest text allowed.

    Raises:
        ScriptError: As `build_profile`.
    """
    settings = settings or BuildSettings()
    requests = knowledge_questions(start, settings.work, settings.sampling) if settings.check_knowledge else []
    if settings.description is None:
        names = names_of(start)
        requests.append(_third_request(start, names, settings, counter)[0])
        requests.append(second_person(start, names, "a" * MOST_BYTES, settings.sampling))
    if settings.picks and (offered := offered_phrases(start, OFFERED)):
        requests.append(pick_phrases(start, offered, settings.catchphrases, settings.sampling))
    return requests


def _third_request(
    start: Sheet, names: Names, settings: BuildSettings, counter: TokenCounter | None
) -> tuple[Request, Excerpts]:
    """The request for the third person, and the excerpts that it shows."""
    budget, count = settings.excerpt_tokens, (counter or TokenCounter()).count
    notes = notes_of(start)
    while (tokens := count(notes)) > (most := int(budget * _NOTES_SHARE)):
        notes = notes[: min(len(notes) * most // tokens, len(notes) - 1)].rstrip()
    shown = choose_excerpts(start, names, budget - tokens, counter)
    if not shown.own and not notes:
        raise ScriptError(
            f"nothing to describe {start.role} from: no line of its own that fits, and no notes; "
            "give a script in which it speaks, or a description (--description)"
        )
    return third_person(start, names, excerpts=shown.text, notes=notes, sampling=settings.sampling), shown


def notes_of(character: Sheet) -> str:
    """What was known of a character before its description was written: that of a card, as a rule; may be empty."""
    build = character.made.get("build")
    if isinstance(build, Mapping):
        return str(build.get("notes") or "")
    return character.description or ""


def result_hash(character: Sheet) -> str:
    """SHA-256 over what was made, which shows changes made by hand."""
    return hash_json([character.description, character.background, list(character.catchphrases)])


def description_problem(character: Sheet, text: str) -> str | None:
    """What in a user's own description differs from a written one, in words."""
    return problem_of(" ".join(text.split()), "second", names_of(character), character.language)


class _Asker:
    """Asks for one text at a time, and notes which model gave it and by which prompt."""

    def __init__(self, client: Client | None, role: str) -> None:
        self._client, self._role = client, role
        self.models: dict[str, str] = {}
        self.prompts: dict[str, str] = {}

    def ask(self, request: Request, accept: Accept[T], what: str) -> T:
        if self._client is None:
            raise SettingsError(f"the {what} needs a model, and none is named; pass llm=…")
        (outcome,) = self._client.ask([request], accept, label=what)
        if isinstance(outcome, Failure):
            if outcome.kind in _NO_REPLY:
                asked = ", ".join(model.name for model in self._client.models)
                raise EndpointError(
                    f"no reply for the {what} of {self._role} (attempts: {outcome.attempts}; {asked}: "
                    f"{outcome.reason}). Fix it (the address, the model's name, the key's environment variable, "
                    "the timeout) and rerun the same command"
                )
            earlier = [reason for reason in dict.fromkeys(outcome.refused) if reason != outcome.reason]
            also = f" (before that: {'; '.join(earlier)})" if earlier else ""
            raise ModelError(
                f"no usable reply for the {what} of {self._role} after {outcome.attempts} attempts: "
                f"{outcome.reason}{also}. The replies are kept in {self._client.folder}; retry with "
                "--retry-failed, use another model, or give your own (--description FILE; --catchphrases none)"
            )
        name = request.tag.rpartition("/")[2]
        self.models[name], self.prompts[name] = outcome.reply.model, request.prompt_hash
        return outcome.value
