"""The requests of making a profile, and what is taken of their replies. Wording: ``prompts/*/profile_*.txt``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rolellm.construct.character import Character
from rolellm.construct.profile.naming import Names
from rolellm.construct.profile.phrases import Phrase
from rolellm.llm.model import Accept, Message, Request, Sampling, Schema, UnacceptableError, system, user
from rolellm.llm.structured import accept_json
from rolellm.prompts.template import load_template
from rolellm.records import Language

#: The paper's sampling for profiles (by secondary notes): that of replies, with 2,000 tokens.
SAMPLING: Final = Sampling(max_tokens=2000)
_TEMPLATES: Final = (
    *("third_rules", "third", "notes", "excerpts", "second_rules", "second"),
    *("phrases_rules", "phrases", "phrase_line", "knowledge_rules", "knowledge"),
)


def template_hashes(language: Language) -> dict[str, str]:
    """The hash of each template, by its file's name."""
    return {f"profile_{name}": load_template(language, f"profile_{name}").hash for name in _TEMPLATES}


def third_person(
    character: Character, names: Names, *, excerpts: str, notes: str = "", sampling: Sampling = SAMPLING
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


def second_person(character: Character, names: Names, portrait: str, sampling: Sampling = SAMPLING) -> Request:
    """Asks for a third-person description to be turned into the second person."""
    language = character.language
    asked = _filled(language, "second", names=_listed(names, language), portrait=portrait)
    return Request(_prompt(language, "second", asked), sampling, tag="profile/second")


def pick_phrases(character: Character, phrases: Sequence[Phrase], most: int, sampling: Sampling = SAMPLING) -> Request:
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


def knowledge_questions(
    character: Character, script: str | None = None, sampling: Sampling = SAMPLING
) -> list[Request]:
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
