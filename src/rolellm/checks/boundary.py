"""Where a character's knowledge ends: probes made without a model, and replies judged by rule and by a judge model.

What a role must know and what it cannot know are asked alike, so that neither a model that knows everything nor one
that knows nothing does well: *hallucination* is the share of probes beyond the boundary that are answered as if the
role knew, *over-refusal* the share of those within it that are answered with ignorance. Moments in a story are
TimeChara's idea (arXiv 2405.18027); how the probes are made is ours.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from rolellm.characters.cards.folder import open_character
from rolellm.checks.breaks import find_breaks
from rolellm.checks.check import Check
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language, Profile
from rolellm.core.settings import Advanced, Field, dump, settings
from rolellm.data.rolebench.release import load_profiles
from rolellm.data.rolebench.schema import SAMPLE
from rolellm.llm.json_reply import accept_json, make_object_schema
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer, Request, Sampling, user
from rolellm.making.instruct.grounding import LONG_SURNAMES, NO_NAMES, SURNAMES, extract_content_words, make_word_finder
from rolellm.making.instruct.run import KEPT, Question, read_questions
from rolellm.models.prompts.fences import draw_nonce, fence_text, make_harmless
from rolellm.models.prompts.render import format_turn, load_template, load_texts
from rolellm.playing.converse import Session, hold_sessions
from rolellm.playing.player import RolePlayer
from rolellm.playing.settings import PlaySettings
from rolellm.runs import Plan, Round
from rolellm.scoring.statistics.agreement import compute_cohen_kappa
from rolellm.scoring.statistics.intervals import SHARE, ClusteredSample, encode_interval, estimate_interval

#: The kinds of probes, and whether the role must know the answer.
KINDS: Final[Mapping[str, bool]] = dict.fromkeys(("story", "earlier", "ordinary"), True) | dict.fromkeys(
    ("later", "other_story", "modern"), False
)
#: How a reply behaves: as if the role knew, as if it did not, or neither.
Verdict = Literal["knows", "ignorant", "evades"]
VERDICTS: Final[tuple[Verdict, ...]] = ("knows", "ignorant", "evades")
#: Breaks of character that answer nothing.
_EVADING: Final = {"says_ai", "refuses", "assists"}
#: The key of an answer are words that at most 3 turns have, or 5 %; who says at least two of them knows the answer (our
#: choice).
_RARE, _RARE_SHARE, _LEAST = 3, 0.05, 2
#: Turns between a moment and what is clearly before or after it: at least 2, or 2 % of the script (our choice).
_GAP, _GAP_SHARE = 2, 0.02
_LINE: Final = 150
_SHOWN: Final = 1000
_SCHEMA: Final = make_object_schema("boundary", verdict={"type": "string", "enum": list(VERDICTS)})


@settings
class BoundarySettings:
    """Probes.

    Attributes:
        world_year: The year in which the character lives; without it, the modern world is not asked about.
        show_script: Put the whole script into the prompt, for a model that was not tuned on the character.
        moments: Points in the story at which the character is asked about earlier and later events.
        per_kind: Maximum probes per kind.
    """

    world_year: int | None = None
    show_script: Advanced[bool] = False
    moments: Advanced[int] = Field(default=3, ge=0, le=100)
    per_kind: Advanced[int] = Field(default=20, ge=1)


@dataclass(frozen=True, slots=True)
class Probe:
    """A question to a role.

    Attributes:
        kind: One of `KINDS`.
        question: What is asked.
        key: Words that those say who know the answer; may be empty.
        moment: The turn of the script right after which it is asked; -1 for the end of the story.
        source: The pair that it was made of, or the name that it asks about.
    """

    kind: str
    question: str
    key: tuple[str, ...] = ()
    moment: int = -1
    source: str = ""


def make_probes(
    sheet: Profile, pairs: Iterable[Question], settings: BoundarySettings, strangers: Iterable[Profile] = ()
) -> list[Probe]:
    """Make the probes of a role; no model is asked.

    Args:
        sheet: The role; without turns, there are no probes of its story.
        pairs: Its questions and answers; script-based ones count whose answer has rare words of the script.
        settings: How many, and of which world.
        strangers: Roles of other stories.

    Returns:
        At most `settings.per_kind` of each kind, drawn by a hash of their text.
    """
    texts = load_texts("boundary", sheet.language)
    probes = [*_make_story_probes(sheet, pairs, settings.moments), *_make_stranger_probes(sheet, strangers)]
    probes += [Probe("ordinary", text) for text in texts["ordinary"]]
    for invention in texts["modern"] if settings.world_year is not None else ():
        if invention["year"] > settings.world_year:
            probes.append(Probe("modern", invention["ask"], source=str(invention["year"])))
    probes.sort(key=lambda probe: hash_json([probe.question, probe.moment]))
    return [
        probe
        for kind in KINDS
        for probe in [candidate for candidate in probes if candidate.kind == kind][: settings.per_kind]
    ]


def _make_story_probes(sheet: Profile, pairs: Iterable[Question], moments: int) -> Iterator[Probe]:
    """Pairs at the end of the story, and at moments that lie clearly before or after what they are about.

    The *key* of a pair are rare words of its answer that neither its question nor the role's description has. At a
    moment it is earlier where all its words that the script has were there before, and its segment began. It is later
    where its segment goes on, no word of the key was there, nor all that it asks about, and where the first to say one
    is not the role, who may have known it all along.
    """
    language, count = sheet.language, len(sheet.turns)
    turns = [make_word_finder(f"{turn.speaker} {turn.content}", language) for turn in sheet.turns]
    own = [index for index, turn in enumerate(sheet.turns) if sheet.owns(turn)]
    chosen = sorted({own[len(own) * (k + 1) // (moments + 1)] for k in range(moments)}) if own else []
    gap = max(_GAP, round(_GAP_SHARE * count))
    people = {word for turn in sheet.turns for word in extract_content_words(turn.speaker, language)}
    for pair in pairs:
        words = extract_content_words(f"{pair.question}\n{pair.answer}", language)
        positions = {word: [index for index, has in enumerate(turns) if has(word)] for word in words}
        positions = {word: at for word, at in positions.items() if at}
        is_mentioned = make_word_finder(
            "\n".join((pair.question, sheet.full_description or "", *sheet.names)), language
        )
        rare = max(_RARE, _RARE_SHARE * count)
        key = tuple(word for word, at in positions.items() if len(at) <= rare and not is_mentioned(word))
        if pair.type != "script_based" or len(key) < _LEAST:
            continue
        probe = Probe("story", pair.question, key, source=pair.id)
        yield probe
        first = min(positions[word][0] for word in key)
        start, end = (pair.receipt.get("segment") or {}).get("turns") or (0, count)
        first_mentions = [
            positions[word][0]
            for word in extract_content_words(pair.question, language)
            if word in positions.keys() - people
        ]
        for moment in chosen:
            if max(start, *(at[0] for at in positions.values())) <= moment - gap:
                yield replace(probe, kind="earlier", moment=moment)
            elif min(first, end) >= moment + gap and first not in own and max(first_mentions, default=count) > moment:
                yield replace(probe, kind="later", moment=moment)


def _make_stranger_probes(sheet: Profile, strangers: Iterable[Profile]) -> Iterator[Probe]:
    """Questions about people of other stories, and what they said there.

    The roles of these stories themselves may be famous; the people around them are not.
    """
    own_text = "\n".join(
        (sheet.full_description or "", *sheet.names, *(f"{turn.speaker} {turn.content}" for turn in sheet.turns))
    )
    is_known = make_word_finder(own_text, sheet.language)
    for stranger in (profile for profile in strangers if profile.language == sheet.language):
        lines: dict[str, str] = {}
        for turn in stranger.turns:
            if turn.kind == "speech" and not stranger.owns(turn) and len(turn.content) <= _LINE:
                lines[turn.speaker] = max(lines.get(turn.speaker, ""), turn.content, key=len)
        for speaker, line in lines.items():
            names = _extract_names(speaker, stranger)
            if names and not any(map(is_known, names)):
                name = speaker.title() if speaker.isupper() else speaker
                for text in load_texts("boundary", sheet.language)["other_story"]:
                    question = text.replace("{name}", name).replace("{line}", line)
                    yield Probe("other_story", question, source=name)


def _extract_names(speaker: str, story: Profile) -> list[str]:
    """The words of a speaker's name that are no titles or common words; none where that cannot be told."""
    if story.language == "zh":
        is_name = len(speaker) > 1 and (speaker[0] in SURNAMES or speaker.startswith(LONG_SURNAMES))
        return [speaker] if is_name else []
    text = " ".join(turn.content for turn in story.turns)
    words = [word for word in re.findall(r"\w+", speaker) if len(word) > 2 and word.casefold() not in NO_NAMES]
    names = [word for word in words if not re.search(rf"\b{word.lower()}\b", text)]
    return names if len(speaker.split()) > 1 else []


def judge_by_rule(reply: str, probe: Probe, sheet: Profile) -> Verdict:
    """Classify how a reply behaves, by rule.

    Whoever says words of the answer knows it. Who refuses, or claims to be a model, evades. Else markers of ignorance
    decide, and who says no more than the question says evades as well.
    """
    language, text = sheet.language, " ".join(reply.replace("’", "'").split())
    if has_key_words(reply, probe, language):
        return "knows"
    if not re.search(r"[^\W_]", text) or find_breaks(reply, sheet, probe.question).keys() & _EVADING:
        return "evades"
    if shows_ignorance(text, language):
        return "ignorant"
    words = extract_content_words(text, language)
    echoes = len(words) >= _LEAST and all(map(make_word_finder(probe.question, language), words))
    return "evades" if echoes else "knows"


@functools.lru_cache(maxsize=1 << 14)
def shows_ignorance(reply: str, language: Language) -> bool:
    """Tell whether a reply has a marker of not knowing what it was asked."""
    text = " ".join(reply.replace("’", "'").split())
    return any(sign.search(text) for sign in _compile_ignorance(language))


@functools.cache
def _compile_ignorance(language: Language) -> list[re.Pattern[str]]:
    texts = load_texts("boundary", language)
    return [re.compile(f"(?i){sign}") for sign in (*texts["ignorance"], rf"(?:{texts['asks_back']})\W*\Z")]


def has_key_words(reply: str, probe: Probe, language: Language) -> bool:
    """Tell whether a reply has words that only those say who know the answer."""
    return sum(map(make_word_finder(reply, language), probe.key)) >= _LEAST


def build_verdict_request(question: str, reply: str, language: Language) -> Request:
    """Build the request to a judge model about a reply."""
    question, fenced_reply = make_harmless(question, _SHOWN).text, make_harmless(reply, _SHOWN).text
    mark = draw_nonce(question, fenced_reply)
    text = load_template(language, "boundary_judge").fill(
        mark=mark, question=fence_text("question", question, mark), reply=fence_text("reply", fenced_reply, mark)
    )
    return Request((user(text),), Sampling(temperature=0.0, top_p=1.0, max_tokens=100), schema=_SCHEMA)


@dataclass(frozen=True)
class ProbeBoundary(Check):
    """Probe a character, and judge the replies.

    Attributes:
        folder: The character's, with its script and pairs (``instruct*/kept.jsonl``), or its card.
        settings: The probes.
        play: How the character is played.
        strangers: Roles of other stories; by default the embedded sample's.
        judge: A model that judges every reply as well.
    """

    folder: str | Path
    settings: BoundarySettings
    play: PlaySettings
    strangers: Sequence[Profile] | None = None
    judge: LLM | None = None
    kind: ClassVar[str] = "boundary"
    rows: ClassVar[str] = "probes"

    def plan(self, llm: LLM) -> Plan[dict[str, Any]]:
        """Ask every probe, then a judge about every reply.

        Raises:
            DataError: For a folder that cannot be read.
        """
        player = RolePlayer(llm, self.folder, **dump(self.play))
        sheet = player.part.sheet
        home = open_character(self.folder)[1]
        files = [] if home is None else sorted(home.glob(f"instruct*/{KEPT}"))
        pairs = [pair for file in files for pair in read_questions(file)]
        strangers = load_profiles(SAMPLE) if self.strangers is None else self.strangers
        probes = make_probes(sheet, pairs, self.settings, strangers)
        sessions = [
            Session(player, 0, [], (probe.question,), _format_scene(probe, sheet, self.settings)) for probe in probes
        ]
        yield from hold_sessions(sessions, 1)
        rows = []
        for probe, session in zip(probes, sessions, strict=True):
            row = (
                asdict(probe) | dict.fromkeys(("reply", "rule", "says_key", "judge")) | {"ended": session.ended or None}
            )
            for reply in session.replies:
                says_key = has_key_words(reply, probe, sheet.language) if probe.key else None
                row |= {"reply": reply, "rule": judge_by_rule(reply, probe, sheet), "says_key": says_key}
            rows.append(row)
        if self.judge is not None:
            answered = [row for row in rows if row["reply"] is not None]
            verdicts = yield Round(
                [build_verdict_request(row["question"], row["reply"], sheet.language) for row in answered],
                accept_json(_SCHEMA, lambda value: value["verdict"]),
                label="judging",
                llm=self.judge,
                folder="judge",
            )
            for row, verdict in zip(answered, verdicts, strict=True):
                row["judge"] = verdict.value if isinstance(verdict, Answer) else None
        return {"role": sheet.role, "language": sheet.language, **summarize_probes(rows), "probes": rows}

    def describe(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return how the character is played, and who judges."""
        return {"play": dump(self.play), "judge": self.judge and self.judge.describe()}


def _format_scene(probe: Probe, sheet: Profile, settings: BoundarySettings) -> str:
    texts, parts = load_texts("boundary", sheet.language), []
    if settings.show_script and sheet.turns:
        script = "\n".join(format_turn(turn, sheet.language, is_full=True) for turn in sheet.turns)
        parts.append(texts["story"].replace("{script}", script))
    if probe.moment >= 0:
        parts.append(texts["moment"].replace("{line}", sheet.turns[probe.moment].content))
    return "\n\n".join(parts)


def summarize_probes(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarize probes with their verdicts: errors by kind and in all, by rule and by judge.

    Returns:
        ``kinds`` (of each its errors, and the share of replies with words of the answer), ``hallucination`` and
        ``over_refusal`` over all their kinds, and ``agreement`` of rule and judge on the verdict.
    """

    def share(kinds: Collection[str], by: str) -> dict[str, Any] | None:
        scored = [row for row in rows if row["kind"] in kinds and row[by] is not None]
        wrong = {kind: True if by == "says_key" else "ignorant" if KINDS[kind] else "knows" for kind in kinds}
        values = [float(row[by] == wrong[row["kind"]]) for row in scored]
        return encode_interval(estimate_interval(ClusteredSample(values, [row["question"] for row in scored]), SHARE))

    present = {row["kind"] for row in rows}
    verdict_pairs = [(row["rule"], row["judge"]) for row in rows if row["rule"] and row["judge"]]
    agreed = sum(first == second for first, second in verdict_pairs)
    summary: dict[str, Any] = {
        "kinds": {
            kind: {"must_know": KINDS[kind]} | {by: share([kind], by) for by in ("rule", "judge", "says_key")}
            for kind in KINDS
            if kind in present
        },
        "unscored": sum(row["rule"] is None for row in rows),
        "agreement": None,
    }
    if verdict_pairs:
        summary["agreement"] = {
            "n": len(verdict_pairs),
            "share": agreed / len(verdict_pairs),
            "kappa": compute_cohen_kappa(
                [first for first, _ in verdict_pairs], [second for _, second in verdict_pairs]
            ).value,
        }
    for name, must_know in (("hallucination", False), ("over_refusal", True)):
        kinds = [kind for kind in KINDS if KINDS[kind] is must_know]
        summary[name] = {by: share(kinds, by) for by in ("rule", "judge")}
    return summary
