"""Where a character's knowledge ends: probes made without a model, and replies judged by rule and by a judge model.

What a role must know and what it cannot know are asked alike, so that neither a model that knows everything nor one
that knows nothing does well: *hallucination* is the share of probes beyond the boundary that are answered as if the
role knew, *over-refusal* the share of those within it that are answered with ignorance. Moments in a story are
TimeChara's idea (arXiv 2405.18027); how the probes are made is ours.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from rolellm.construct.context_instruct.grounding import LONG_SURNAMES, NO_NAMES, SURNAMES, content_words, words_of
from rolellm.construct.context_instruct.run import KEPT, Question, read_questions
from rolellm.construct.sheet import Sheet
from rolellm.core.errors import ModelError
from rolellm.core.files import write_json
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language, Profile
from rolellm.core.settings import Field, dump, packaged_yaml, settings
from rolellm.evaluation.score import metric_dict
from rolellm.evaluation.settings import Bootstrap
from rolellm.evaluation.statistics.agreement import cohen_kappa
from rolellm.evaluation.statistics.bootstrap import Sample, bootstrap_stratum, share_ends
from rolellm.judging.drift import breaks_in
from rolellm.judging.prompts import fenced, nonce, show
from rolellm.llm.client import Client
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer, Finish, Request, Sampling, Schema, speech_of, user
from rolellm.llm.structured import accept_json, strict
from rolellm.playing.player import RolePlayer
from rolellm.playing.settings import PlaySettings
from rolellm.prompts.render import load_template, script_line
from rolellm.rolebench.profiles import load_profiles
from rolellm.rolebench.schema import SAMPLE
from rolellm.version import __version__

BOUNDARY: Final = "boundary.json"
#: The kinds of probes, and whether the role must know the answer.
KINDS: Final[Mapping[str, bool]] = dict.fromkeys(("story", "earlier", "ordinary"), True) | dict.fromkeys(
    ("later", "other_story", "modern"), False
)
#: How a reply behaves: as if the role knew, as if it did not, or neither.
Verdict = Literal["knows", "ignorant", "evades"]
VERDICTS: Final[tuple[Verdict, ...]] = ("knows", "ignorant", "evades")
#: Breaks of character that answer nothing.
_EVADING: Final = {"says_ai", "refuses", "assists"}
_ALSO: Final[tuple[Finish, ...]] = ("length", "refused")
#: The key of an answer are words that at most 3 turns have, or 5 %; who says at least two of them knows the answer (our
#: choice).
_RARE, _RARE_SHARE, _LEAST = 3, 0.05, 2
#: Turns between a moment and what is clearly before or after it: at least 2, or 2 % of the script (our choice).
_GAP, _GAP_SHARE = 2, 0.02
_LINE: Final = 150
_SHOWN: Final = 1000
_SCHEMA: Final = strict(
    Schema("boundary", {"type": "object", "properties": {"verdict": {"type": "string", "enum": list(VERDICTS)}}})
)


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
    show_script: bool = False
    moments: int = Field(default=3, ge=0, le=100)
    per_kind: int = Field(default=20, ge=1)


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


@cache
def material(language: Language) -> Any:
    """Our texts in a language."""
    return packaged_yaml("rolellm.prompts", f"boundary/{language}.yaml")


def make_probes(
    sheet: Sheet, pairs: Iterable[Question], how: BoundarySettings, others: Iterable[Profile] = ()
) -> list[Probe]:
    """Make the probes of a role; no model is asked.

    Args:
        sheet: The role; without turns, there are no probes of its story.
        pairs: Its questions and answers; script-based ones count whose answer has rare words of the script.
        how: How many, and of which world.
        others: Roles of other stories.

    Returns:
        At most `how.per_kind` of each kind, drawn by a hash of their text.
    """
    ours = material(sheet.language)
    found = [*_of_story(sheet, pairs, how.moments), *_of_others(sheet, others)]
    found += [Probe("ordinary", text) for text in ours["ordinary"]]
    for one in ours["modern"] if how.world_year is not None else ():
        if one["year"] > how.world_year:
            found.append(Probe("modern", one["ask"], source=str(one["year"])))
    found.sort(key=lambda probe: hash_json([probe.question, probe.moment]))
    return [probe for kind in KINDS for probe in [one for one in found if one.kind == kind][: how.per_kind]]


def _of_story(sheet: Sheet, pairs: Iterable[Question], moments: int) -> Iterator[Probe]:
    """Pairs at the end of the story, and at moments that lie clearly before or after what they are about.

    The *key* of a pair are rare words of its answer that neither its question nor the role's description has. At a
    moment it is earlier where all its words that the script has were there before, and its segment began. It is later
    where its segment goes on, no word of the key was there, nor all that it asks about, and where the first to say one
    is not the role, who may have known it all along.
    """
    language, count = sheet.language, len(sheet.turns)
    turns = [words_of(f"{turn.speaker} {turn.content}", language) for turn in sheet.turns]
    own = [place for place, turn in enumerate(sheet.turns) if sheet.profile().owns(turn)]
    chosen = sorted({own[len(own) * (k + 1) // (moments + 1)] for k in range(moments)}) if own else []
    gap = max(_GAP, round(_GAP_SHARE * count))
    people = {word for turn in sheet.turns for word in content_words(turn.speaker, language)}
    for pair in pairs:
        words = content_words(f"{pair.question}\n{pair.answer}", language)
        places = {word: [place for place, has in enumerate(turns) if has(word)] for word in words}
        places = {word: at for word, at in places.items() if at}
        given = words_of("\n".join((pair.question, sheet.described() or "", *sheet.names)), language)
        rare = max(_RARE, _RARE_SHARE * count)
        key = tuple(word for word, at in places.items() if len(at) <= rare and not given(word))
        if pair.type != "script_based" or len(key) < _LEAST:
            continue
        probe = Probe("story", pair.question, key, source=pair.id)
        yield probe
        first = min(places[word][0] for word in key)
        start, end = (pair.receipt.get("segment") or {}).get("turns") or (0, count)
        asked = [places[word][0] for word in content_words(pair.question, language) if word in places.keys() - people]
        for moment in chosen:
            if max(start, *(at[0] for at in places.values())) <= moment - gap:
                yield replace(probe, kind="earlier", moment=moment)
            elif min(first, end) >= moment + gap and first not in own and max(asked, default=count) > moment:
                yield replace(probe, kind="later", moment=moment)


def _of_others(sheet: Sheet, others: Iterable[Profile]) -> Iterator[Probe]:
    """Questions about people of other stories, and what they said there.

    The roles of these stories themselves may be famous; the people around them are not.
    """
    told = "\n".join((sheet.described() or "", *sheet.names, *(f"{one.speaker} {one.content}" for one in sheet.turns)))
    known = words_of(told, sheet.language)
    for other in (one for one in others if one.language == sheet.language):
        lines: dict[str, str] = {}
        for turn in other.turns:
            if turn.kind == "speech" and not other.owns(turn) and len(turn.content) <= _LINE:
                lines[turn.speaker] = max(lines.get(turn.speaker, ""), turn.content, key=len)
        for speaker, line in lines.items():
            names = _names(speaker, other)
            if names and not any(map(known, names)):
                name = speaker.title() if speaker.isupper() else speaker
                for text in material(sheet.language)["other_story"]:
                    asked = text.replace("{name}", name).replace("{line}", line)
                    yield Probe("other_story", asked, source=name)


def _names(speaker: str, story: Profile) -> list[str]:
    """The words of a speaker's name that are no titles or common words; none where that cannot be told."""
    if story.language == "zh":
        is_name = len(speaker) > 1 and (speaker[0] in SURNAMES or speaker.startswith(LONG_SURNAMES))
        return [speaker] if is_name else []
    text = " ".join(turn.content for turn in story.turns)
    words = [word for word in re.findall(r"\w+", speaker) if len(word) > 2 and word.casefold() not in NO_NAMES]
    names = [word for word in words if not re.search(rf"\b{word.lower()}\b", text)]
    return names if len(speaker.split()) > 1 else []


def rule(reply: str, probe: Probe, sheet: Sheet) -> Verdict:
    """How a reply behaves, by rule.

    Whoever says words of the answer knows it. Who refuses, or claims to be a model, evades. Else markers of ignorance
    decide, and who says no more than the question says evades as well.
    """
    language, text = sheet.language, " ".join(reply.replace("’", "'").split())
    if says_key(reply, probe, language):
        return "knows"
    if not re.search(r"[^\W_]", text) or breaks_in(reply, sheet, probe.question).keys() & _EVADING:
        return "evades"
    ours = material(language)
    signs = [*ours["ignorance"], rf"(?:{ours['asks_back']})\W*\Z"]
    if any(re.search(f"(?i){sign}", text) for sign in signs):
        return "ignorant"
    words = content_words(text, language)
    echoes = len(words) >= _LEAST and all(map(words_of(probe.question, language), words))
    return "evades" if echoes else "knows"


def says_key(reply: str, probe: Probe, language: Language) -> bool:
    """Whether a reply has words that only those say who know the answer."""
    return sum(map(words_of(reply, language), probe.key)) >= _LEAST


def judge_request(probe: Probe, reply: str, language: Language) -> Request:
    """What a judge model is asked about a reply."""
    question, said = show(probe.question, _SHOWN).text, show(reply, _SHOWN).text
    mark = nonce(question, said)
    text = load_template(language, "boundary_judge").fill(
        mark=mark, question=fenced("question", question, mark), reply=fenced("reply", said, mark)
    )
    return Request((user(text),), Sampling(temperature=0.0, top_p=1.0, max_tokens=100), schema=_SCHEMA)


def run_boundary(
    folder: str | Path,
    llm: LLM,
    out: str | Path,
    how: BoundarySettings,
    play: PlaySettings,
    *,
    others: Sequence[Profile] | None = None,
    judge: LLM | None = None,
) -> dict[str, Any]:
    """Probe a character, judge the replies, and write ``boundary.json``.

    Args:
        folder: The character's, with its script and pairs (``instruct*/kept.jsonl``).
        llm: Who plays the character.
        out: The run's folder, with the journals: what they have an answer to is not asked again.
        how: The probes.
        play: How the character is played.
        others: Roles of other stories; by default the embedded sample's.
        judge: A model that judges every reply as well.

    Returns:
        What ``boundary.json`` has.

    Raises:
        DataError: For a folder that cannot be read.
        StoppedShortError: As `rolellm.llm.client.Client.ask`.
        EndpointError: As `rolellm.llm.client.Client.ask`.
    """
    player = RolePlayer(llm, folder, **dump(play))
    sheet = player.part.sheet
    files = sorted(Path(folder).glob(f"instruct*/{KEPT}"))
    pairs = [pair for file in files for pair in read_questions(file)]
    probes = make_probes(sheet, pairs, how, load_profiles(SAMPLE) if others is None else others)
    rows = [asdict(probe) | dict.fromkeys(("reply", "rule", "says_key", "judge", "ended")) for probe in probes]
    asked, requests = [], []
    for probe, row in zip(probes, rows, strict=True):
        try:
            prompt = player.prompt([user(probe.question)], more=_told(probe, sheet, how))
            requests.append(replace(player.request(prompt), tag=probe.kind))
            asked.append((probe, row))
        except ModelError as error:
            row["ended"] = str(error)
    with Client(out, llm.models, llm.options) as client:
        for (probe, row), outcome in zip(asked, client.ask(requests, speech_of, also=_ALSO), strict=True):
            if isinstance(outcome, Answer):
                row["reply"] = outcome.value
                row["rule"] = rule(outcome.value, probe, sheet)
                row["says_key"] = says_key(outcome.value, probe, sheet.language) if probe.key else None
            else:
                row["ended"] = outcome.reason
        spent = client.spent.to_dict()
    if judge is not None:
        put = [(probe, row) for probe, row in asked if row["reply"] is not None]
        with Client(Path(out) / "judge", judge.models, judge.options) as client:
            accept = accept_json(_SCHEMA, lambda value: value["verdict"])
            judged = client.ask([judge_request(one, row["reply"], sheet.language) for one, row in put], accept)
        for (_, row), verdict in zip(put, judged, strict=True):
            row["judge"] = verdict.value if isinstance(verdict, Answer) else None
    found = {
        "stage": "boundary",
        "rolellm": __version__,
        "role": sheet.role,
        "language": sheet.language,
        "settings": dump(how) | {"play": dump(player.settings)},
        "models": llm.describe(),
        "judge": judge and judge.describe(),
        **summarize(rows),
        "probes": rows,
        "spent": spent,
    }
    write_json(Path(out) / BOUNDARY, found)
    return found


def _told(probe: Probe, sheet: Sheet, how: BoundarySettings) -> str:
    ours, parts = material(sheet.language), []
    if how.show_script and sheet.turns:
        script = "\n".join(script_line(turn, sheet.language, whole=True) for turn in sheet.turns)
        parts.append(ours["story"].replace("{script}", script))
    if probe.moment >= 0:
        parts.append(ours["moment"].replace("{line}", sheet.turns[probe.moment].content))
    return "\n\n".join(parts)


def summarize(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is reported of probes with their verdicts: errors by kind and in all, by rule and by judge.

    Returns:
        ``kinds`` (of each its errors, and the share of replies with words of the answer), ``hallucination`` and
        ``over_refusal`` over all their kinds, and ``agreement`` of rule and judge on the verdict. Intervals resample
        questions.
    """

    def share(kinds: Collection[str], by: str) -> dict[str, Any] | None:
        known = [row for row in rows if row["kind"] in kinds and row[by] is not None]
        if not known:
            return None
        wrong = {kind: True if by == "says_key" else "ignorant" if KINDS[kind] else "knows" for kind in kinds}
        values = [float(row[by] == wrong[row["kind"]]) for row in known]
        interval = bootstrap_stratum([Sample(values, [row["question"] for row in known])], Bootstrap()).intervals[0]
        return metric_dict(share_ends(interval) if interval.mean in (0, 1) else interval)

    present = {row["kind"] for row in rows}
    both = [(row["rule"], row["judge"]) for row in rows if row["rule"] and row["judge"]]
    agreed = sum(first == second for first, second in both)
    found: dict[str, Any] = {
        "kinds": {
            kind: {"must_know": KINDS[kind]} | {by: share([kind], by) for by in ("rule", "judge", "says_key")}
            for kind in KINDS
            if kind in present
        },
        "unscored": sum(row["rule"] is None for row in rows),
        "agreement": None,
    }
    if both:
        found["agreement"] = {
            "n": len(both),
            "share": agreed / len(both),
            "kappa": cohen_kappa(*zip(*both, strict=True)),
        }
    for name, side in (("hallucination", False), ("over_refusal", True)):
        kinds = [kind for kind in KINDS if KINDS[kind] is side]
        found[name] = {by: share(kinds, by) for by in ("rule", "judge")}
    return found
