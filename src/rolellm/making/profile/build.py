"""From a script, or a card, to a profile: the description in both persons, and the catchphrases.

Catchphrases are picked among phrases that the role says often, and more often than everybody else in its script:
whole sentences and their clauses, counted once a line. What ranks them is the log-odds ratio with an informative
Dirichlet prior of Monroe, Colaresi and Quinn, "Fightin' Words" (Political Analysis 16(4), 2008, equations 15, 18, 20
and 22), divided by its standard deviation. With y and o the lines of the role and of others that have the phrase, n and
m how many phrases their lines have, and as prior the script as a whole (a = y + o, A = n + m)::

    delta = log((y + a) / (n + A - y - a)) - log((o + a) / (m + A - o - a))
    score = delta / sqrt(1 / (y + a) + 1 / (o + a))
"""

from __future__ import annotations

import math
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, cast, get_args

from rolellm.characters.folder import PROFILE, read_character, write_character
from rolellm.core.errors import EndpointError, ModelError, ScriptError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language, Profile
from rolellm.core.settings import dump, load_words
from rolellm.llm.json_reply import accept_json, make_object_schema
from rolellm.llm.llm import LLM
from rolellm.llm.model import (
    Accept,
    Failure,
    Fault,
    Refusal,
    Request,
    Sampling,
    Schema,
    T,
    UnacceptableError,
    system,
    user,
)
from rolellm.making.duplicates import list_words
from rolellm.making.profile.excerpts import choose_excerpts
from rolellm.making.profile.portrait import MOST_BYTES, accept_portrait, collect_names
from rolellm.making.settings import BuildSettings
from rolellm.models.prompts.render import hash_templates, load_template
from rolellm.models.prompts.retrieval import find_exchanges
from rolellm.runs import Plan, Round, Run, Step, run_step

_ASIDE: Final = re.compile(r"\([^()]{0,200}\)|\[[^\[\]]{0,200}\]|（[^（）]{0,200}）|【[^【】]{0,200}】")
# A full stop after a title or an initial ends nothing.
_ABBREVIATED: Final = "".join(
    rf"(?<!\b{word})" for word in ("Mr", "Mrs", "Ms", "Dr", "St", "Jr", "Sr", "Capt", "[A-Z]")
)
_SENTENCE: Final = re.compile(
    rf"(?:[^!?。！？…;；:：\n\"“”‘「」『』()（）\[\]【】{{}}<>《》—–*_.]|-(?!-)|\.(?![\s'’.]|$)|(?!{_ABBREVIATED})\.)+[!?！？]?"
)
_CLAUSE: Final = re.compile(r"[,，、]")
#: How many phrases a model is shown to choose from.
OFFERED: Final = 40
_LONGEST: Final = {"en": 8, "zh": 16}
_SHORTEST: Final = {"en": 2, "zh": 3}
_REPEATED: Final = 2
_FUNCTION_WORDS: Final = load_words("function_en")

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Phrase:
    """A phrase of a role's.

    Attributes:
        text: As the script mostly has it.
        lines: How many of the role's lines have it.
        others: How many lines of others have it.
        score: The weighted log-odds of the module's docstring.
    """

    text: str
    lines: int
    others: int
    score: float


def find_repeated_phrases(character: Profile) -> list[Phrase]:
    """Find the phrases that two or more of the role's lines have, the best first; none twice within a longer one.

    Nor are speakers' names phrases.
    """
    language = character.language
    own_counts: Counter[Words] = Counter()
    other_counts: Counter[Words] = Counter()
    spellings: dict[Words, Counter[str]] = {}
    names: set[str] = set()
    for turn in character.turns:
        names.update(list_words(turn.speaker, language))
        if turn.kind != "speech":
            continue
        texts = {tuple(list_words(text, language)): text for text in split_phrases(turn.content)}
        counts = other_counts
        if character.owns(turn):
            counts = own_counts
            for words, text in texts.items():
                spellings.setdefault(words, Counter())[text] += 1
        counts.update(texts.keys())
    phrases: list[Phrase] = []
    repeated = [words for words, count in own_counts.items() if count >= _REPEATED]
    candidates: list[Words] = []
    for words in repeated:
        ((text, _),) = spellings[words].most_common(1)
        if _is_phrase(words, text, language) and not names.issuperset(words):
            candidates.append(words)
    for words in _drop_parts(candidates, own_counts):
        own_count = own_counts[words]
        other_count = other_counts[words]
        score = _log_odds(own_count, other_count, own_counts.total(), other_counts.total())
        # Where others say nothing there is nothing to compare with, and the score is 0.
        if score > 0 or not other_count:
            ((text, _),) = spellings[words].most_common(1)
            phrases.append(Phrase(text, own_count, other_count, score))
    phrases.sort(key=lambda phrase: (-phrase.score, -phrase.lines, phrase.text))
    return phrases[:OFFERED]


def split_phrases(line: str) -> Iterator[str]:
    """Split a line into its sentences, their clauses, and the ends of these; directions in brackets are left out."""
    for match in _SENTENCE.finditer(_ASIDE.sub("\n", line)):
        sentence = " ".join(match[0].split()).strip(" ,，、'’")
        for text in (sentence, *_CLAUSE.split(sentence)):
            words = text.split()
            # An end of more words is not taken for a phrase.
            first = max(len(words) - _LONGEST["en"], 0)
            for start in range(first, max(len(words) - 1, 1)):
                yield " ".join(words[start:])


def _is_phrase(words: Words, text: str, language: Language) -> bool:
    if len(words) > _LONGEST[language] or all(map(str.isdigit, words)):
        return False
    if language == "en" and _FUNCTION_WORDS.issuperset(words):
        return False
    # One word is a phrase where it is cried: "Bazinga!"
    is_cried = len(words) > 0 and text[-1] in "!！"
    return is_cried or len(words) >= _SHORTEST[language]


def _drop_parts(candidates: Iterable[Words], counts: Counter[Words]) -> list[Words]:
    """Drop the phrases that are mostly said within a longer one."""
    kept: list[Words] = []
    for words in sorted(candidates, key=len, reverse=True):
        longer = [phrase for phrase in kept if _has_part(phrase, words)]
        if all(2 * counts[phrase] <= counts[words] for phrase in longer):
            kept.append(words)
    return kept


def _has_part(phrase: Words, words: Words) -> bool:
    size = len(words)
    starts = range(len(phrase) - size + 1)
    return any(phrase[start : start + size] == words for start in starts)


def _log_odds(own_count: int, other_count: int, all_own: int, all_others: int) -> float:
    prior = own_count + other_count
    total = all_own + all_others
    own_weight = own_count + prior
    other_weight = other_count + prior
    own_odds = own_weight / max(all_own + total - own_weight, 1)
    other_odds = other_weight / max(all_others + total - other_weight, 1)
    deviation = math.sqrt(1 / own_weight + 1 / other_weight)
    return (math.log(own_odds) - math.log(other_odds)) / deviation


def request_third_person(character: Profile, excerpts: str, notes: str, sampling: Sampling) -> Request:
    """Request the description in the third person.

    Args:
        character: Whose.
        excerpts: Of the script; may be empty.
        notes: What else is known, such as a card's description; may be empty.
        sampling: How the reply is drawn.
    """
    language = character.language
    if notes:
        notes = _fill(language, "notes", notes=notes) + "\n"
    if excerpts:
        excerpts = _fill(language, "excerpts", excerpts=excerpts) + "\n"
    prompt = _fill(language, "third", role=character.role, notes=notes, excerpts=excerpts)
    return _request(language, "third", prompt, sampling)


def request_second_person(character: Profile, portrait: str, sampling: Sampling) -> Request:
    """Request a third-person description to be turned into the second person."""
    return _request(character.language, "second", _fill(character.language, "second", portrait=portrait), sampling)


def pick_phrases(character: Profile, phrases: Sequence[Phrase], most: int, sampling: Sampling) -> Request:
    """Request a pick of catchphrases from numbered phrases, by their numbers."""
    language = character.language
    lines = []
    for number, item in enumerate(phrases, start=1):
        slots = {"number": number, "phrase": item.text, "lines": item.lines, "others": item.others}
        lines.append(_fill(language, "phrase_line", **slots))
    prompt = _fill(language, "phrases", role=character.role, phrases="\n".join(lines), most=most)
    return _request(language, "phrases", prompt, sampling, "catchphrases", _PICKS)


def accept_picks(phrases: Sequence[Phrase], most: int) -> Accept[tuple[str, ...]]:
    """Make the `accept` that takes numbers of phrases, and makes the first of them, each once, the phrases."""

    def make(value: Any) -> tuple[str, ...]:
        chosen = dict.fromkeys(map(int, value["chosen"]))
        numbers = [number for number in chosen if 1 <= number <= len(phrases)]
        if value["chosen"] and not numbers:
            raise UnacceptableError(f"picks nothing that is on the list, which has {len(phrases)}")
        return tuple(phrases[number - 1].text for number in numbers[:most])

    return accept_json(_PICKS, make)


_PICKS: Final = make_object_schema("catchphrases", chosen={"type": "array", "items": {"type": "integer"}})


def _request(
    language: Language, name: str, prompt: str, sampling: Sampling, tag: str = "", schema: Schema | None = None
) -> Request:
    rules = _fill(language, f"{name}_rules")
    repair = load_template(language, "repair").text
    return Request((system(rules), user(prompt)), sampling, schema=schema, tag=f"profile/{tag or name}", repair=repair)


def _fill(language: Language, name: str, **slots: object) -> str:
    texts = {slot: str(value) for slot, value in slots.items()}
    return load_template(language, f"profile_{name}").fill(**texts)


_NOTES_SHARE: Final = 0.5
_NO_REPLY: Final = (*get_args(Refusal), *get_args(Fault))
BUILD: Final = "build"
#: The fields of a profile, by the step that writes them.
_FIELDS: Final = {"third": "background", "second": "description", "catchphrases": "catchphrases"}
_CARDS: Final = ("card.json", "card.png", "card.charx")


@dataclass
class BuildProfile(Step[Profile]):
    """Stage 1 for one role; the result is its profile, whose ``made["build"]`` says how it was made.

    Attributes:
        start: From `rolellm.making.profile.start.start_sheet`, or an imported card, whose description goes into the
            prompt as notes.
        settings: How; a description that no model wrote is kept, unless they say otherwise.
        folder: The character's folder.
    """

    start: Profile
    settings: BuildSettings = field(default_factory=BuildSettings)
    folder: Path | None = None
    kind: ClassVar[str] = BUILD

    def __post_init__(self) -> None:
        self.settings = _keep_description(self.settings, self.start)
        self._models: dict[str, str] = {}
        self._defects: dict[str, list[str]] = {}

    @property
    def needs_model(self) -> bool:
        """True if there is anything to ask."""
        return self.settings.description is None or bool(self._list_offered())

    def _list_offered(self) -> list[Phrase]:
        """List the phrases to pick catchphrases from; none where no catchphrases are wanted."""
        if not self.settings.catchphrases:
            return []
        return find_repeated_phrases(self.start)

    def plan(self, llm: LLM) -> Plan[Profile]:
        """Ask for the description in the third person, then in the second, then for a pick of phrases.

        Raises:
            ScriptError: When there is nothing to make a description of: no line of the role's, and no notes.
            ModelError: When no description of the model's was usable, however often it was asked; says why.
            EndpointError: When a request never got a reply.
        """
        start = self.start
        settings = self.settings
        self._models = {}
        self._defects = {}
        description = settings.description and settings.description.strip()
        background = None
        if description is None:
            background, description = yield from self._ask_descriptions(llm)
        offered = self._list_offered()
        most = settings.catchphrases
        catchphrases: tuple[str, ...] = ()
        if offered:
            request = pick_phrases(start, offered, most, settings.sampling)
            accept = accept_picks(offered, most)
            try:
                catchphrases = yield from self._ask(llm, request, accept, "catchphrases", catchphrases)
            except ModelError:
                self._defects["catchphrases"] = ["None were picked: no reply was usable."]
        built = replace(start, background=background, description=description, catchphrases=catchphrases)
        source = "written" if settings.description is None else "given"
        recorded_settings = {**dump(settings), "description": source}
        receipt = {
            "settings": recorded_settings,
            "templates": hash_templates(start.language, "profile_"),
            "models": self._models,
            "defects": self._defects,
            "offered": len(offered),
            "notes": get_notes(start),
            "result": hash_result(built),
        }
        return replace(built, made={**start.made, "build": receipt})

    def _ask_descriptions(self, llm: LLM) -> Plan[tuple[str, str]]:
        start = self.start
        sampling = self.settings.sampling
        names = collect_names(start)
        budget = self.settings.excerpt_tokens
        count = llm.counter.count
        notes = get_notes(start)
        tokens = count(notes)
        most = int(budget * _NOTES_SHARE)
        while tokens > most:
            length = len(notes) * most // tokens
            notes = notes[: min(length, len(notes) - 1)].rstrip()
            tokens = count(notes)
        excerpts, own_count = choose_excerpts(start, names, budget - tokens, llm.counter)
        if not own_count and not notes:
            raise ScriptError(
                f"nothing to describe {start.role} from: no line of its own that fits, and no notes; "
                "give a script in which it speaks, or a description (--description)"
            )
        request = request_third_person(start, excerpts, notes, sampling)
        material = f"{excerpts}\n{get_notes(start)}"
        longest = "a" * MOST_BYTES
        accept = accept_portrait("third", start.language, names, material)
        background = yield from self._ask(llm, request, accept, "description, third person", longest)
        request = request_second_person(start, background, sampling)
        accept = accept_portrait("second", start.language, names, f"{material}\n{background}")
        try:
            description = yield from self._ask(llm, request, accept, "description, second person", longest)
        except ModelError:
            # What is said of the role is better than nothing said to it.
            self._defects["second"] = ["It is still in the third person: no reply in the second person was usable."]
            return background, background
        return background, description

    def _ask(self, llm: LLM, request: Request, accept: Accept[T], label: str, stand_in: T) -> Plan[T]:
        """Ask for one text; note which model gave it, and what is wrong with it."""
        (outcome,) = yield Round([request], accept, label=label, also=["length"], stand_in=lambda _: stand_in)
        if isinstance(outcome, Failure):
            error = EndpointError if outcome.kind in _NO_REPLY else ModelError
            reason = outcome.reason
            earlier = [refusal for refusal in dict.fromkeys(outcome.refused) if refusal != reason]
            if earlier:
                reason += f" (before that: {'; '.join(earlier)})"
            models = ", ".join(model.name for model in llm.models)
            raise error(
                f"no usable reply for the {label} of {self.start.role} after {outcome.attempts} attempts of "
                f"{models}: {reason}. Fix the model's settings and retry with --set retry_failed=true, use another "
                "model, or give your own (--description FILE; --catchphrases 0)"
            )
        name = request.tag.removeprefix("profile/")
        self._models[name] = outcome.reply.model
        if outcome.defects:
            self._defects[name] = list(outcome.defects)
        return cast(T, outcome.value)

    def describe(self, result: Profile) -> dict[str, Any]:
        """Return how the profile was made."""
        return {"role": result.role, "language": result.language, "made": dict(result.made)}

    def summarize(self, result: Profile) -> dict[str, Any]:
        """Count the parts of the character, and collect notes for the user."""
        notes: list[str] = []
        for name, defects in list_defects(result).items():
            notes += (f"{name}, kept with a defect: {defect}" for defect in defects)
        return {"counts": count_parts(result), "notes": notes}


def build_folder(
    step: BuildProfile, llm: LLM | None = None, *, card: str | Path | None = None, overwrite: bool = False
) -> Run[Profile]:
    """Build a profile into the character's folder; replies are kept in its ``build/``.

    Args:
        step: What to build, in which folder.
        llm: The model to ask; not needed where the settings ask nothing.
        card: The folder that the start was read from, where it is another one; its card comes along.
        overwrite: Replace what the folder holds, whoever wrote it.

    Raises:
        SettingsError: When the folder holds another character, or one that was changed by hand.
        RoleLLMError: As `BuildProfile.plan` and `rolellm.runs.run_step`.
    """
    target = step.folder
    assert target is not None
    if not overwrite:
        _check_folder(target, step.start, card)
    run = run_step(step, llm if step.needs_model else None, target / BUILD)
    write_character(run.result, target)
    if card is not None and not target.samefile(card):
        for name in _CARDS:
            source = Path(card, name)
            if source.is_file():
                shutil.copyfile(source, target / name)
    return run


def _check_folder(target: Path, start: Profile, card: str | Path | None) -> None:
    if not (target / PROFILE).is_file():
        return
    existing = read_character(target)
    way = "name another folder, or replace it (--overwrite, or overwrite=True in Python)"
    if existing.role != start.role:
        raise SettingsError(f"{target} holds another character, {existing.role}; {way}")
    receipt = _get_receipt(existing)
    if receipt and receipt.get("result") != hash_result(existing):
        raise SettingsError(
            f"the profile in {target} was changed by hand since it was built; {way} (those changes are then lost)"
        )
    if not receipt and (card is None or not target.samefile(card)):
        raise SettingsError(
            f"{target} holds {existing.role} as imported or written; complete it with `rolellm role build {target}`, "
            f"or {way}"
        )


def _keep_description(settings: BuildSettings, start: Profile) -> BuildSettings:
    """Complete settings with the description that a character has and no model wrote, unless it is to be rewritten."""
    is_written = _get_receipt(start).get("settings", {}).get("description") == "written"
    own = None if settings.rewrite or is_written else start.description
    return replace(settings, description=settings.description or own or None)


def _get_receipt(character: Profile) -> Mapping[str, Any]:
    """Return how a profile was built; empty where it was not."""
    receipt = character.made.get("build")
    return receipt if isinstance(receipt, Mapping) else {}


def get_notes(character: Profile) -> str:
    """Return what was known of a character before its description was written: usually a card's; may be empty."""
    return str(_get_receipt(character).get("notes", character.description) or "")


def hash_result(character: Profile) -> str:
    """Hash what was made (SHA-256), which shows changes made by hand."""
    return hash_json([character.description, character.background, list(character.catchphrases)])


def list_defects(character: Profile) -> dict[str, list[str]]:
    """List what is wrong with what a model wrote of a character, by field; nothing once a person has changed it."""
    receipt = _get_receipt(character)
    if receipt.get("result") != hash_result(character):
        return {}
    defects = receipt.get("defects") or {}
    return {field: defects[step] for step, field in _FIELDS.items() if defects.get(step)}


def count_parts(character: Profile) -> dict[str, int]:
    """Count the parts of a character: turns, the role's own lines, scenes, dialogue pairs, lore."""
    own_lines = sum(map(character.owns, character.turns))
    scenes = {turn.scene for turn in character.turns}
    return {
        "turns": len(character.turns),
        "own_lines": own_lines,
        "scenes": len(scenes),
        "pairs": len(find_exchanges(character)),
        "lore": len(character.lore),
        "catchphrases": len(character.catchphrases),
    }
