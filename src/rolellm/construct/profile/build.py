"""From a script, or a card, to a profile: the description in both persons, and the catchphrases."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from rolellm.construct.profile.phrases import Phrase, repeated_phrases
from rolellm.construct.profile.portrait import MOST_BYTES, Names, Portrait, accept_portrait, names_of
from rolellm.construct.settings import BuildSettings
from rolellm.construct.sheet import Sheet
from rolellm.core.errors import EndpointError, ModelError, ScriptError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language, Turn
from rolellm.llm.client import Client
from rolellm.llm.model import (
    Accept,
    Failure,
    FailureKind,
    Message,
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
    *("phrases_rules", "phrases", "phrase_line", "knowledge_rules", "knowledge", "problems"),
)


def template_hashes(language: Language) -> dict[str, str]:
    """The hash of each template, by its file's name."""
    return {
        name: load_template(language, name).hash for name in ("repair", *(f"profile_{name}" for name in _TEMPLATES))
    }


def third_person(character: Sheet, *, excerpts: str, notes: str = "", sampling: Sampling = SAMPLING) -> Request:
    """Asks for the description in the third person.

    Args:
        character: Whose.
        excerpts: Of the script; may be empty.
        notes: What else is known, such as a card's description; may be empty.
        sampling: How the reply is drawn.
    """
    language = character.language
    asked = _filled(
        language,
        "third",
        role=character.role,
        notes=_filled(language, "notes", notes=notes) + "\n" if notes else "",
        excerpts=_filled(language, "excerpts", excerpts=excerpts) + "\n" if excerpts else "",
    )
    return Request(_prompt(language, "third", asked), sampling, tag="profile/third", repair=_repair(language))


def second_person(character: Sheet, portrait: str, sampling: Sampling = SAMPLING) -> Request:
    """Asks for a third-person description to be turned into the second person."""
    language = character.language
    asked = _filled(language, "second", portrait=portrait)
    return Request(_prompt(language, "second", asked), sampling, tag="profile/second", repair=_repair(language))


def _repair(language: Language) -> str:
    return load_template(language, "repair").text


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
    return Request(
        _prompt(language, "phrases", asked),
        sampling,
        schema=_PICKS,
        tag="profile/catchphrases",
        repair=_repair(language),
    )


def accept_picks(phrases: Sequence[Phrase], most: int) -> Accept[tuple[str, ...]]:
    """The `accept` that takes numbers of phrases, and makes the first of them, each once, the phrases."""

    def make(value: Any) -> tuple[str, ...]:
        numbers = [number for number in dict.fromkeys(map(int, value["chosen"])) if 1 <= number <= len(phrases)]
        if value["chosen"] and not numbers:
            raise UnacceptableError(f"picks nothing that is on the list, which has {len(phrases)}")
        return tuple(phrases[number - 1].text for number in numbers[:most])

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
        The character with description, background and catchphrases; how it was made is under ``build`` in `made`, with
        what was mended in the replies, and the defects of what was kept because nothing better came.

    Raises:
        ScriptError: When there is nothing to make a description of: no line of the role's, and no notes.
        ModelError: When no description of the model's was usable, however often it was asked; says why.
        SettingsError: When a model is needed and there is no client.
        StoppedShortError: As `Client.ask`.
        EndpointError: As `Client.ask`, and when a request never got a reply.
    """
    settings, language = settings or BuildSettings(), start.language
    asker, names = _Asker(client, start.role), names_of(start)
    catchphrases: tuple[str, ...] = ()
    excerpts = background = None
    description = settings.description and settings.description.strip()
    if description is None:
        request, excerpts = _third_request(start, names, settings, counter)
        material = f"{excerpts.text}\n{notes_of(start)}"
        accept = accept_portrait("third", start, names, material)
        background = asker.ask(request, accept, "description, third person").text
        request = second_person(start, background, settings.sampling)
        accept = accept_portrait("second", start, names, material, background)
        try:
            description = asker.ask(request, accept, "description, second person").text
        except ModelError:
            # What is said of the role is better than nothing said to it.
            description = background
            asker.defects["second"] = ["It is still in the third person: no reply in the second person was usable."]
    offered = repeated_phrases(start)
    if not settings.picks:
        catchphrases = tuple(phrase.text for phrase in offered[: settings.catchphrases])
    elif offered:
        request = pick_phrases(start, offered, settings.catchphrases, settings.sampling)
        try:
            catchphrases = asker.ask(request, accept_picks(offered, settings.catchphrases), "catchphrases")
        except ModelError:
            asker.defects["catchphrases"] = ["None were picked: no reply was usable."]
    built = replace(start, background=background, description=description, catchphrases=catchphrases)
    receipt = {
        "settings": settings.to_dict(),
        "templates": template_hashes(language),
        "models": asker.models,
        "prompts": asker.prompts,
        "excerpts": None if excerpts is None else {k: v for k, v in asdict(excerpts).items() if k != "text"},
        "offered": len(offered) if settings.picks else 0,
        "mended": asker.mended,
        "defects": asker.defects,
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
        requests.append(second_person(start, "a" * MOST_BYTES, settings.sampling))
    if settings.picks and (offered := repeated_phrases(start)):
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
    return third_person(start, excerpts=shown.text, notes=notes, sampling=settings.sampling), shown


def notes_of(character: Sheet) -> str:
    """What was known of a character before its description was written: that of a card, as a rule; may be empty."""
    build = character.made.get("build")
    if isinstance(build, Mapping):
        return str(build.get("notes") or "")
    return character.description or ""


def result_hash(character: Sheet) -> str:
    """SHA-256 over what was made, which shows changes made by hand."""
    return hash_json([character.description, character.background, list(character.catchphrases)])


class _Asker:
    """Asks for one text at a time, and notes which model gave it, by which prompt, and what is wrong with it."""

    def __init__(self, client: Client | None, role: str) -> None:
        self._client, self._role = client, role
        self.models: dict[str, str] = {}
        self.prompts: dict[str, str] = {}
        self.mended: dict[str, list[str]] = {}
        self.defects: dict[str, list[str]] = {}

    def ask(self, request: Request, accept: Accept[T], what: str) -> T:
        if self._client is None:
            raise SettingsError(f"the {what} needs a model, and none is named; pass llm=…")
        (outcome,) = self._client.ask([request], accept, label=what, also={"length"})
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
        if isinstance(outcome.value, Portrait) and outcome.value.mended:
            self.mended[name] = list(outcome.value.mended)
        inherited = outcome.value.inherited if isinstance(outcome.value, Portrait) else ()
        if defects := [*outcome.defects, *inherited]:
            self.defects[name] = defects
        return outcome.value
