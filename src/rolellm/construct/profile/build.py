"""From a script, or a card, to a profile: the description in both persons, and the catchphrases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from rolellm.construct.character import Character
from rolellm.construct.profile.excerpts import EXCERPT_TOKENS, Excerpts, choose_excerpts
from rolellm.construct.profile.naming import Names, names_of
from rolellm.construct.profile.phrases import OFFERED, Phrase, offered_phrases, repeated_phrases
from rolellm.construct.profile.portrait import MOST_BYTES, accept_portrait, problem_of
from rolellm.construct.profile.requests import (
    SAMPLING,
    accept_picks,
    knowledge_questions,
    pick_phrases,
    second_person,
    template_hashes,
    third_person,
)
from rolellm.errors import EndpointError, ModelError, RecipeError, ScriptError
from rolellm.fingerprint import hash_json
from rolellm.llm.client import Client
from rolellm.llm.model import Accept, Failure, FailureKind, Request, Sampling, T
from rolellm.llm.tokens import TokenCounter

#: The most catchphrases of a role by default; no role of the release has more.
CATCHPHRASES: Final = 3
_MOST_CATCHPHRASES: Final = 20
_LEAST_TOKENS: Final = 200
_NOTES_SHARE: Final = 0.5
_NO_REPLY: Final[frozenset[FailureKind]] = frozenset(
    ("bad_request", "unauthorized", "forbidden", "not_found", "rate_limited", "server_error", "timeout", "connection")
)


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """How a profile is made.

    Attributes:
        catchphrases: The most of them; 0 leaves them out.
        picked_by: ``model``: a model picks from what the script has. ``count``: those that are said most, in comparison
            with the other speakers; nobody is asked.
        description: One of the user's own, in the second person; nobody is asked for one.
        check_knowledge: Ask first what the model knows of the role, for a person to read.
        work: The name of the work, for those questions.
        excerpt_tokens: Tokens of the script that the model is shown.
        sampling: How replies are drawn.

    Raises:
        RecipeError: For a value out of range.
    """

    catchphrases: int = CATCHPHRASES
    picked_by: Literal["model", "count"] = "model"
    description: str | None = None
    check_knowledge: bool = False
    work: str | None = None
    excerpt_tokens: int = EXCERPT_TOKENS
    sampling: Sampling = field(default_factory=lambda: SAMPLING)

    def __post_init__(self) -> None:
        if not 0 <= self.catchphrases <= _MOST_CATCHPHRASES:
            raise RecipeError(f"{self.catchphrases} catchphrases are asked for; give 0 to {_MOST_CATCHPHRASES}")
        if self.excerpt_tokens < _LEAST_TOKENS:
            raise RecipeError(f"{self.excerpt_tokens} tokens of excerpts say too little; give {_LEAST_TOKENS} or more")
        if self.description is not None and not self.description.strip():
            raise RecipeError("the description given is empty; leave it out to have one written")

    @property
    def asks(self) -> bool:
        """Whether a model may be asked at all."""
        return self.description is None or self.check_knowledge or self.picks

    @property
    def picks(self) -> bool:
        """Whether a model picks catchphrases."""
        return self.catchphrases > 0 and self.picked_by == "model"

    def to_dict(self) -> dict[str, Any]:
        """As one JSON object, for manifests."""
        sampling = {name: getattr(self.sampling, name) for name in Sampling.__slots__}
        return {
            "catchphrases": self.catchphrases,
            "picked_by": self.picked_by if self.catchphrases else None,
            "description": "given" if self.description is not None else "written",
            "check_knowledge": self.check_knowledge,
            "work": self.work,
            "excerpt_tokens": self.excerpt_tokens,
            "sampling": {**sampling, "stop": list(self.sampling.stop)},
        }


def build_profile(
    start: Character,
    client: Client | None = None,
    settings: BuildSettings | None = None,
    counter: TokenCounter | None = None,
) -> Character:
    """Make a role's profile.

    Args:
        start: Who it is, as from `rolellm.construct.profile.start.start_character` or an imported card; a card's
            description goes into the prompt as notes, and a new one is written.
        client: Asks the model; not needed where the settings ask nothing of one.
        settings: How.
        counter: Counts tokens; by default an estimate.

    Returns:
        The character with description, background and catchphrases; how it was made is under ``build`` in `made`.

    Raises:
        ScriptError: When there is nothing to make a description of: no line of the role's, and no notes.
        ModelError: When the model's replies were not taken, however often it was asked; says why.
        RecipeError: When a model has to be asked and there is no client.
        StoppedShortError: As `Client.ask`.
        EndpointError: As `Client.ask`, and when a request never got a reply.
    """
    settings = settings or BuildSettings()
    maker = _Maker(start, settings, counter or TokenCounter(), client)
    background, description = maker.describe()
    phrases = maker.catchphrases()
    built = replace(start, background=background, description=description, catchphrases=phrases)
    made = {key: value for key, value in start.made.items() if key != "build"}
    return replace(built, made={**made, "build": {**maker.receipt(), "result": result_hash(built)}})


def planned_requests(
    start: Character, settings: BuildSettings | None = None, counter: TokenCounter | None = None
) -> list[Request]:
    """What `build_profile` would ask, the knowledge check included; for estimates.

    The request for the second person, which hangs on a reply, holds the longest text that it may.

    Raises:
        ScriptError: As `build_profile`.
    """
    settings = settings or BuildSettings()
    maker = _Maker(start, settings, counter or TokenCounter(), None)
    requests = knowledge_questions(start, settings.work, settings.sampling) if settings.check_knowledge else []
    if settings.description is None:
        requests += [maker.third(), second_person(start, maker.names, "a" * MOST_BYTES, settings.sampling)]
    if settings.picks and (offered := maker.offered()):
        requests.append(pick_phrases(start, offered, settings.catchphrases, settings.sampling))
    return requests


def notes_of(character: Character) -> str:
    """What was known of a character before its description was written: that of a card, as a rule; may be empty."""
    build = character.made.get("build")
    if isinstance(build, Mapping):
        return str(build.get("notes") or "")
    return character.description or ""


def result_hash(character: Character) -> str:
    """SHA-256 over what was made, by which a change by hand is told."""
    return hash_json([character.description, character.background, list(character.catchphrases)])


def description_problem(character: Character, text: str) -> str | None:
    """What is unlike a written description in one of the user's own, in words."""
    return problem_of(" ".join(text.split()), "second", names_of(character), character.language)


class _Maker:
    """Makes one profile, and notes how."""

    def __init__(self, start: Character, settings: BuildSettings, counter: TokenCounter, client: Client | None) -> None:
        self.names: Names = names_of(start)
        self._start = start
        self._settings = settings
        self._counter = counter
        self._client = client
        self._notes = notes_of(start)
        self._shown: Excerpts | None = None
        self._offered = 0
        self._models: dict[str, str] = {}
        self._prompts: dict[str, str] = {}

    def describe(self) -> tuple[str | None, str | None]:
        """The description in the third and in the second person."""
        settings, names, language = self._settings, self.names, self._start.language
        if settings.description is not None:
            return None, settings.description.strip()
        third = self._ask(self.third(), accept_portrait("third", names, language), "description, third person")
        request = second_person(self._start, names, third, settings.sampling)
        return third, self._ask(request, accept_portrait("second", names, language), "description, second person")

    def third(self) -> Request:
        """The request for the third person."""
        budget = self._settings.excerpt_tokens
        notes = self._cut(self._notes, int(budget * _NOTES_SHARE))
        room = budget - self._counter.count(notes)
        self._shown = choose_excerpts(self._start, self.names, room, self._counter)
        if not self._shown.own and not notes:
            raise ScriptError(
                f"there is nothing to describe {self._start.role} by: no line of its own that fits, and no notes; "
                "give a script in which it speaks, or a description (--description)"
            )
        return third_person(
            self._start, self.names, excerpts=self._shown.text, notes=notes, sampling=self._settings.sampling
        )

    def catchphrases(self) -> tuple[str, ...]:
        """The catchphrases, picked."""
        most = self._settings.catchphrases
        if not most:
            return ()
        if not self._settings.picks:
            return tuple(phrase.text for phrase in repeated_phrases(self._start)[:most])
        offered = self.offered()
        if not offered:
            return ()
        request = pick_phrases(self._start, offered, most, self._settings.sampling)
        return self._ask(request, accept_picks(offered, most), "catchphrases")

    def offered(self) -> list[Phrase]:
        """The phrases that a model picks from."""
        found = offered_phrases(self._start, OFFERED)
        self._offered = len(found)
        return found

    def receipt(self) -> dict[str, Any]:
        """How it was made."""
        return {
            "settings": self._settings.to_dict(),
            "templates": template_hashes(self._start.language),
            "models": self._models,
            "prompts": self._prompts,
            "excerpts": None if self._shown is None else self._shown.to_dict(),
            "offered": self._offered,
            "notes": self._notes,
        }

    def _ask(self, request: Request, accept: Accept[T], what: str) -> T:
        if self._client is None:
            raise RecipeError(f"the {what} has to be asked of a model, and there is none; give a client")
        (outcome,) = self._client.ask([request], accept, label=what)
        if isinstance(outcome, Failure):
            if outcome.kind in _NO_REPLY:
                asked = ", ".join(model.name for model in self._client.models)
                raise EndpointError(
                    f"no reply came for the {what} of {self._start.role} (attempts: {outcome.attempts}; {asked}: "
                    f"{outcome.reason}). Put that right (the address, the model's name, the key's environment "
                    "variable, the timeout), and give the same command again"
                )
            earlier = [reason for reason in dict.fromkeys(outcome.refused) if reason != outcome.reason]
            also = f" (before that: {'; '.join(earlier)})" if earlier else ""
            raise ModelError(
                f"no reply would do for the {what} of {self._start.role} after {outcome.attempts} attempts: "
                f"{outcome.reason}{also}. The replies are kept in {self._client.folder}; ask again with "
                "--retry-failed, ask another model, or give your own (--description FILE; --catchphrases none)"
            )
        name = request.tag.rpartition("/")[2]
        self._models[name], self._prompts[name] = outcome.reply.model, request.prompt_hash
        return outcome.value

    def _cut(self, text: str, most: int) -> str:
        """The beginning of a text that has at most so many tokens."""
        tokens = self._counter.count(text)
        while tokens > most:
            text = text[: min(len(text) * most // tokens, len(text) - 1)].rstrip()
            tokens = self._counter.count(text)
        return text
