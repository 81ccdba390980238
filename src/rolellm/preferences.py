"""Pairs of replies for DPO from what is there: a data set, judging runs, scenes, and chats; nobody is asked.

Each source is a function that yields a `ReplyPair` for each preference; `select_pairs` drops what must not be learned
from. Read `Prefer.plan` first. `judge_branches` has the turns of a scene judged before.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, pairwise, product
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Final

from rapidfuzz.distance import Indel

from rolellm.characters.folder import PROFILE
from rolellm.characters.roles import Part, find_part
from rolellm.characters.scripts.parse import detect_language
from rolellm.checks.breaks import find_breaks
from rolellm.core.errors import DataError, ModelError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.jsonl import read_jsonl
from rolellm.core.progress import track_progress
from rolellm.core.records import Language, Profile, Row
from rolellm.core.result import Result
from rolellm.core.settings import read
from rolellm.core.table import Table
from rolellm.core.text import fold, format_count, join_names
from rolellm.data.rolebench import load_rolebench
from rolellm.data.rolebench.source import resolve_config
from rolellm.judging.records import Comparison, DatasetName, JudgeRun, System, read_run
from rolellm.judging.result import JudgingResult
from rolellm.judging.run import Judging, run_judging
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.verdicts import compute_sign
from rolellm.llm.llm import LLM
from rolellm.llm.model import Message, assistant, user
from rolellm.llm.scripted import ScriptedModel
from rolellm.making.duplicates import list_words
from rolellm.making.settings import PreferSettings
from rolellm.models.prompts.fences import LIMIT
from rolellm.models.prompts.render import make_messages
from rolellm.models.training_record import hash_instruction
from rolellm.playing.player import RolePlayer
from rolellm.playing.talks import TALKS, Talk, list_talks
from rolellm.runs import MANIFEST, Plan, Records, Run, Step, run_step
from rolellm.scenes.play import BRANCHES, PlayScenes
from rolellm.scenes.visibility import add_speaker
from rolellm.scoring.contamination import find_held_out_part

PAIRS: Final = "pairs.jsonl"
#: Similarity of two replies' words from which on a pair teaches next to nothing (our choice).
SAME: Final = 0.7
#: Width of the bins of the log ratio of lengths in which gaps count as equal; below half of it there is none (our
#: choice).
LENGTH_BIN: Final = 0.1
#: Words, in Chinese characters, that a reply to an instruction needs to show a role (our choice): "Would." shows none.
_FEWEST: Final[Mapping[Language, int]] = {"en": 6, "zh": 10}
#: Other roles, drawn by lot, among whose replies the one nearest in length is rejected (our choice).
_OTHER_ROLES: Final = 4
#: Pairs with gaps of similar size among which balancing evens out the longer and the shorter (our choice): many pairs
#: are matched closely, and few are not lost for want of a match.
_GROUP: Final = 50
#: Tokens of a swipe's prompt and reply, as recipes for DPO limit them (our choice).
_CONTEXT: Final = 2048
#: The folder in a scene's that has the verdicts on its branches, and what these are called there.
_BRANCHES, _PLAYED, _BRANCH = "branches", "played", "branch"
#: Why pairs are left out, in the order in which they are looked for.
REASONS: Final = (
    *("blank", "held_out", "near_equal", "out_of_character", "short", "repeated"),
    *("contradicted", "unbalanced"),
)


@dataclass(frozen=True, slots=True)
class ReplyPair:
    """A preference.

    Attributes:
        source: ``plain``, ``role``, ``judge``, ``scene`` or ``swipes``.
        id: The row or message that it comes from.
        role: Who replies.
        language: ``en`` or ``zh``.
        prompt: Messages, the system turn first, up to what is replied to.
        chosen: The reply that is preferred.
        rejected: The other one.
        after: A card's instructions at the end of the prompt.
    """

    source: str
    id: str
    role: str
    language: Language
    prompt: tuple[Mapping[str, str], ...]
    chosen: str
    rejected: str
    after: str = ""

    @classmethod
    def of_row(cls, source: str, row: Row, chosen: str, rejected: str) -> ReplyPair:
        """Pair two replies to a row of RoleBench."""
        prompt = tuple(make_messages(row))
        return cls(source, row.id, row.role, row.language, prompt, chosen, rejected)

    @property
    def question(self) -> str:
        """What is replied to."""
        return self.prompt[-1]["content"].removesuffix(self.after)

    @property
    def sheet(self) -> Profile:
        """The role, with all that the prompt says of it."""
        return Profile(self.role, self.language, description=self.prompt[0]["content"])

    @property
    def log_ratio(self) -> float:
        """The natural logarithm of the chosen reply's length over the rejected one's, in characters."""
        return math.log(len(self.chosen) / len(self.rejected))

    @property
    def key(self) -> str:
        """A hash of the prompt and both replies, white space and case folded."""
        prompt = [fold(message["content"]) for message in self.prompt]
        return hash_json([prompt, fold(self.chosen), fold(self.rejected)])

    @property
    def lot(self) -> str:
        """A place in an order by lot, which other pairs do not change."""
        return hash_json([self.source, self.id, self.role, self.chosen, self.rejected])

    def to_dict(self) -> dict[str, Any]:
        """Return a line of ``pairs.jsonl``: TRL's columns in its conversational format, and where the pair is from."""
        return {
            "id": self.id,
            "source": self.source,
            "role": self.role,
            "language": self.language,
            "prompt": list(map(dict, self.prompt)),
            "chosen": [{"role": "assistant", "content": self.chosen}],
            "rejected": [{"role": "assistant", "content": self.rejected}],
        }


def pair_plain(rows: Iterable[Row]) -> Iterator[ReplyPair]:
    """Prefer a role's reply to the role-free answer of the same question."""
    for row in rows:
        if row.raw_reference and row.references:
            chosen, rejected = match_replies(row.references, [row.raw_reference], row.language)
            yield ReplyPair.of_row("plain", row, chosen, rejected)


def pair_roles(rows: Iterable[Row]) -> Iterator[ReplyPair]:
    """Prefer a role's own reply to another role's reply to the same question."""
    by_question = defaultdict[tuple[str, str], list[Row]](list)
    for row in rows:
        if row.references:
            question = fold(row.question)
            by_question[row.language, question].append(row)
    for group in by_question.values():
        for row in group:
            candidates = [candidate for candidate in group if candidate.role != row.role]
            # By content, so that other rows move nothing.
            lot = random.Random(f"{row.role}\0{row.question}")
            count = min(_OTHER_ROLES, len(candidates))
            drawn = lot.sample(candidates, count)
            replies = [reply for candidate in drawn for reply in candidate.references]
            if replies:
                chosen, rejected = match_replies(row.references, replies, row.language, row.raw_reference)
                yield ReplyPair.of_row("role", row, chosen, rejected)


def match_replies(
    chosen: Sequence[str], rejected: Sequence[str], language: Language, plain: str | None = None
) -> tuple[str, str]:
    """Choose a reply of each side: as near in length as can be and, of those, the two that differ most.

    The nearest alone is mostly the one with the least of the role in it. The chosen one should differ from a plain
    answer, too, or another role's style would be what is rejected.
    """
    chosen = list(filter_long(chosen, language)) or chosen
    rejected = list(filter_long(rejected, language)) or rejected
    likeness = dict.fromkeys(chosen, 0.0)
    if plain:
        likeness = {text: compare_replies(text, plain, language) for text in chosen}
        unlike = [text for text in chosen if likeness[text] < SAME]
        chosen = unlike or chosen
    by_gap = defaultdict[int, list[tuple[str, str]]](list)
    for pair in product(chosen, rejected):
        longer, shorter = (len(text) + 1 for text in pair)
        gap = abs(math.log(longer / shorter))
        by_gap[round(gap / LENGTH_BIN)].append(pair)

    def rate(pair: tuple[str, str]) -> float:
        return likeness[pair[0]] + compare_replies(*pair, language)

    best = [min(by_gap[gap], key=rate) for gap in sorted(by_gap)]
    for pair in best:
        if compare_replies(*pair, language) < SAME:
            return pair
    return best[0]


def compare_replies(reply: str, other: str, language: Language) -> float:
    """The similarity of two replies' words, in Chinese characters, from 0 to 1."""
    words = list_words(reply, language)
    other_words = list_words(other, language)
    return float(Indel.normalized_similarity(words, other_words))


def filter_long(texts: Iterable[str], language: Language) -> Iterator[str]:
    """Yield the replies that have room to show a role."""
    for text in texts:
        words = list_words(text, language)
        if len(words) >= _FEWEST[language]:
            yield text


def pair_judged(run: JudgeRun) -> Iterator[ReplyPair]:
    """Prefer the answer that all judges put first, in both orders; canaries take no part."""
    comparison = run.comparison
    #: Of each row and two of its systems, by name: whether they were shown in this order, and which won.
    verdicts = defaultdict[tuple[str, str, str], set[tuple[bool, int]]](set)
    for judgement in run.judgements():
        if judgement.ranks is None:
            continue
        ranked = sorted(zip(judgement.order, judgement.ranks, strict=True))
        for (first, first_rank), (second, second_rank) in combinations(ranked, 2):
            is_sorted = judgement.order.index(first) < judgement.order.index(second)
            sign = compute_sign(second_rank - first_rank)
            verdicts[judgement.row, first, second].add((is_sorted, sign))
    rows = {row.id: row for row in comparison.rows}
    for (row_id, *pair), values in verdicts.items():
        orders, signs = map(set, zip(*values, strict=True))
        if len(orders) < 2 or signs not in ({1}, {-1}) or not comparison.canaries.isdisjoint(pair):
            continue
        if signs == {-1}:
            pair.reverse()
        chosen, rejected = (comparison.answers[name][row_id] for name in pair)
        row = replace(rows[row_id], id=f"{run.folder.name}/{row_id}")
        yield ReplyPair.of_row("judge", row, chosen, rejected)


def judge_branches(folder: str | Path, judge: Any) -> JudgingResult:
    """Have a judge compare the two replies to each prompt of a scene that has branches, in both orders.

    It is shown what the character saw, and nothing else. `prefer` makes pairs of its verdicts.

    Args:
        folder: The folder of `rolellm.play_scene`, which keeps the verdicts, too.
        judge: The models that judge: a settings file, a dict, or `rolellm.LLM`.

    Raises:
        SettingsError: Where no turn has two different replies.
        StoppedShortError: At the budget or on Ctrl-C; what was judged is kept.
    """
    scene = Run.open(folder)
    judging = prepare_branch_judging(scene.records(BRANCHES), folder)
    return run_judging(scene.folder / _BRANCHES, judging.comparison, LLM.resolve(judge), judging.settings)


def prepare_branch_judging(branches: Iterable[Mapping[str, Any]], folder: str | Path) -> Judging:
    """Make the judging of branches; see `judge_branches`.

    Raises:
        SettingsError: Where no turn has two different replies.
    """
    rows = []
    answers: dict[str, dict[str, str]] = {_PLAYED: {}, _BRANCH: {}}
    for branch in branches:
        played, drawn = branch["replies"]
        if played == drawn:
            continue
        role, row_id = branch["role"], branch["id"]
        instruction, *talk = branch["prompt"]
        texts = []
        for message in talk:
            text = message["content"]
            texts.append(add_speaker(text, role) if message["role"] == "assistant" else text)
        # A judge is shown so much of a text; what comes last is replied to.
        question = "\n\n".join(texts)[-LIMIT:]
        row = Row(row_id, role, branch["language"], "role_specific", question, ())
        rows.append(replace(row, role_description=instruction["content"]))
        answers[_PLAYED][row_id] = played
        answers[_BRANCH][row_id] = drawn
    if not rows:
        raise SettingsError(f"{folder}: no turn has two different replies; play with models, at a temperature above 0")
    comparison = Comparison(rows, (System(_PLAYED), System(_BRANCH, "baseline")), answers)
    settings = read(JudgingSettings, {"judges": ("role-pair",), "max_unscored": 1.0})
    return Judging(comparison, settings, DatasetName())


def pair_branches(folder: Path) -> Iterator[ReplyPair]:
    """Prefer the better reply to a prompt of a scene, by the judge of `judge_branches`, with that very prompt.

    Raises:
        SettingsError: For a scene whose turns were drawn once.
    """
    judged = folder / _BRANCHES
    if not judged.is_dir():
        raise SettingsError(f"{folder}: a scene with one reply a turn; play it again with --judge FILE for pairs")
    branches = Run.open(folder).records(BRANCHES)
    prompts = {f"{judged.name}/{branch['id']}": tuple(branch["prompt"]) for branch in branches}
    for pair in pair_judged(read_run(judged)):
        yield replace(pair, source="scene", prompt=prompts[pair.id])


def pair_swipes(path: Path, parts: Mapping[str, Part], skipped: Counter[str]) -> Iterator[ReplyPair]:
    """Prefer the reply that a user of SillyTavern went on with to those that were swiped away.

    Greetings are left out, since their alternatives are the card's, and so is a last message, since nobody went on
    with it. Prompts are those of play, in a context of `_CONTEXT`.

    Args:
        path: The chat, ``.jsonl``.
        parts: Roles by folded name. Without any, each speaker is a role without a description.
        skipped: Counts replies that give no pair, by reason.

    Raises:
        SettingsError: When no reply in the chat is by one of the roles.
    """
    lines = []
    bad: list[DataError] = []
    values = list(read_jsonl(path, bad=bad))
    if bad:
        skipped["broken_line"] = len(bad)
    for number, line in values:
        if isinstance(line.get("mes"), str) and not line.get("is_system"):
            lines.append((number, line))
    speakers = dict.fromkeys(_get_speaker(line) for _, line in lines if not line.get("is_user"))
    text = "\n".join(line["mes"] for _, line in lines)
    players = _find_players(path, speakers, parts, detect_language(text))
    talk = Talk(values[0][1], [line for _, line in values])
    for speaker, speaking in players.items():
        # A user of the role's own name stays without one.
        with suppress(SettingsError):
            players[speaker] = speaking.with_role(speaking.part.with_user(*talk.user))
    turns: list[Message] = []
    for (number, line), (_, following) in pairwise([*lines, (0, {})]):
        if line.get("is_user"):
            turns = _add_turn(turns, user(line["mes"]))
            continue
        player = players.get(_get_speaker(line))
        reason = "another_speaker"
        if player is not None:
            reason = _explain_no_pair(line, turns, following)
        if player is None or reason:
            skipped[reason] += 1
        else:
            try:
                yield from _pair_swiped(f"{path.name}/{number}", line, player, turns)
            except ModelError:
                skipped["too_long"] += 1
        turns = _add_turn(turns, assistant(line["mes"]))


def _get_speaker(line: Mapping[str, Any]) -> str:
    return str(line.get("name") or "")


def _explain_no_pair(line: Mapping[str, Any], turns: Sequence[Message], following: Mapping[str, Any]) -> str:
    """Name the reason why a reply gives no pair; empty where it gives some."""
    if not turns or turns[-1].role != "user":
        return "no_message_before"
    if not following.get("is_user"):
        return "no_message_after"
    has_swiped = any(text != line["mes"] for text in line.get("swipes") or ())
    return "" if has_swiped else "no_other_swipe"


def _pair_swiped(
    reply_id: str, line: Mapping[str, Any], player: RolePlayer, turns: Sequence[Message]
) -> Iterator[ReplyPair]:
    """Yield a pair for each reply that was swiped away."""
    prompt = tuple(map(asdict, player.prompt(turns).messages))
    sheet = player.part.sheet
    after = player.part.after
    reply = line["mes"]
    for swiped in dict.fromkeys(line["swipes"]):
        if isinstance(swiped, str) and swiped != reply:
            yield ReplyPair("swipes", reply_id, sheet.role, sheet.language, prompt, reply, swiped, after)


def _find_players(
    path: Path, speakers: Iterable[str], parts: Mapping[str, Part], language: Language
) -> dict[str, RolePlayer]:
    roles = {part.sheet.role for part in parts.values()}
    if not parts:
        parts = {fold(speaker): Part(Profile(speaker, language)) for speaker in speakers}
    # The model is never called; only prompts are built.
    model = ScriptedModel(str, rules_hash="")
    players: dict[str, RolePlayer] = {}
    for speaker in speakers:
        part = parts.get(fold(speaker))
        if part is not None:
            players[speaker] = RolePlayer(model, part, context=_CONTEXT)
    if speakers and not players:
        raise SettingsError(
            f"{path}: no reply by {join_names(sorted(roles))}; its replies are by {join_names(speakers)}. If that is "
            "the same role, import its card under that name: rolellm role card CARD --out FOLDER --set role=NAME"
        )
    return players


def _add_turn(turns: Sequence[Message], turn: Message) -> list[Message]:
    """Add a turn to a talk; two in a row of one speaker become one, as chat templates want it."""
    if turns and turns[-1].role == turn.role:
        content = f"{turns[-1].content}\n\n{turn.content}"
        return [*turns[:-1], replace(turn, content=content)]
    return [*turns, turn]


@dataclass(frozen=True)
class HeldOut:
    """What tests need to be new.

    Attributes:
        names: Config and split of each test.
        roles: Folded.
        instructions: As `hash_instruction`.
    """

    names: tuple[str, ...] = ()
    roles: frozenset[str] = frozenset()
    instructions: frozenset[str] = frozenset()

    def __contains__(self, pair: ReplyPair) -> bool:
        if fold(pair.role) in self.roles:
            return True
        return hash_instruction(pair.question) in self.instructions


def read_held_out(configs: Iterable[str], data_dir: Path | None = None) -> HeldOut:
    """Read the part of each config's test split that its name promises to be new: roles, or instructions."""
    names: list[str] = []
    roles: set[str] = set()
    instructions: set[str] = set()
    for config in configs:
        splits = load_rolebench(config, data_dir=data_dir)
        if "test" not in splits:
            continue
        names.append(f"{config}/test")
        if find_held_out_part(config) == "role":
            roles.update(map(fold, splits["test"]["role"]))
        else:
            instructions.update(map(hash_instruction, splits["test"]["question"]))
    return HeldOut(tuple(names), frozenset(roles), frozenset(instructions))


@dataclass(frozen=True, repr=False)
class Preferences(Result):
    """Pairs that were kept, and what became of the others.

    Attributes:
        pairs: In the order of their sources.
        dropped: By source and reason of `REASONS`; of chats, also replies that gave no pair.
        before: Each source's lengths before balancing, as `summarize_lengths` has them.
        held_out: What was held out.
    """

    pairs: Sequence[ReplyPair]
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    held_out: HeldOut = field(default_factory=HeldOut)

    def to_dict(self) -> dict[str, Any]:
        """Return counts, and lengths overall and by source."""
        by_source: dict[str, Any] = {}
        for source in dict.fromkeys([*self.before, *self.dropped]):
            pairs = [pair for pair in self.pairs if pair.source == source]
            dropped = self.dropped.get(source, {})
            length = summarize_lengths(pairs)
            unbalanced = self.before.get(source)
            by_source[source] = {
                "pairs": len(pairs),
                "dropped": dict(dropped),
                "length": length,
                "length_unbalanced": unbalanced,
            }
        roles = {pair.role for pair in self.pairs}
        names = self.held_out.names
        instructions = self.held_out.instructions
        held_out_roles = self.held_out.roles
        held_out = {"tests": list(names), "instructions": len(instructions), "roles": len(held_out_roles)}
        return {
            "pairs": len(self.pairs),
            "roles": len(roles),
            "length": summarize_lengths(self.pairs),
            "sources": by_source,
            "held_out": held_out,
        }

    def tables(self) -> tuple[Table]:
        """Build the table of sources: pairs, what was left out, and the gap in length before and after."""
        summary = self.to_dict()
        rows = []
        for source, counts in summary["sources"].items():
            before = _format_length(counts["length_unbalanced"])
            after = _format_length(counts["length"])
            rows.append((source, counts["pairs"], format_counts(counts["dropped"]), before, after))
        after = _format_length(summary["length"])
        rows.append(("all", len(self.pairs), "", _format_length(None), after))
        pairs = format_count(len(self.pairs), "pair")
        roles = format_count(summary["roles"], "role")
        title = f"{pairs} for {roles}"
        columns = ("source", "pairs", "left out", "chosen over rejected, all", "chosen over rejected, kept")
        return (Table.from_rows(title, columns, rows),)

    def remarks(self) -> list[str]:
        """Return which tests' questions and roles were held out."""
        if not self.held_out.names:
            return []
        names = ", ".join(self.held_out.names)
        return [f"Held out: {names}."]

    def notes(self) -> list[str]:
        """Return what was not held out, and that nothing is left."""
        notes = []
        if not self.held_out.names:
            notes.append("note: no test split is known, so nothing was held out; name --config")
        if not self.pairs:
            reason = "the table says why"
            if any("unbalanced" in counts for counts in self.dropped.values()):
                reason = (
                    "as many chosen replies have to be longer than the rejected one as are shorter, or the model "
                    "learns their length. Add pairs of the kind that is missing, or keep all: --set balance=false"
                )
            notes.append(f"note: no pair is left: {reason}")
        return notes


def summarize_lengths(pairs: Iterable[ReplyPair]) -> dict[str, Any] | None:
    """Summarize the gap in length: the mean log ratio, and the share of pairs whose chosen reply is the longer one.

    Replies of one length count half. ``None`` without pairs.
    """
    ratios = [pair.log_ratio for pair in pairs]
    if not ratios:
        return None
    signs = list(map(compute_sign, ratios))
    longer = (1 + fmean(signs)) / 2
    return {"log_ratio": round(fmean(ratios), 4), "chosen_longer": round(longer, 4)}


def select_pairs(pairs: Iterable[ReplyPair], held_out: HeldOut, *, balance: bool = True) -> Preferences:
    """Select the pairs to learn from.

    Args:
        pairs: All of them.
        held_out: What no pair may be about.
        balance: Drop pairs until length tells nothing: of each source and language, as many chosen replies are longer
            than the rejected one as are shorter, among pairs with gaps of similar size.
    """
    dropped = defaultdict[str, Counter[str]](Counter)
    seen: set[str] = set()
    sound: dict[str, ReplyPair] = {}
    for pair in pairs:
        fault = _find_fault(pair, held_out)
        if not fault and pair.key in seen:
            fault = "repeated"
        seen.add(pair.key)
        dropped[pair.source][fault] += 1
        if not fault:
            sound[pair.key] = pair
    consistent = []
    for pair in sound.values():
        opposite = replace(pair, chosen=pair.rejected, rejected=pair.chosen)
        if opposite.key in sound:
            dropped[pair.source]["contradicted"] += 1
        else:
            consistent.append(pair)
    surplus = _find_surplus(consistent) if balance else set()
    selected = []
    for pair in consistent:
        if pair.lot in surplus:
            dropped[pair.source]["unbalanced"] += 1
        else:
            selected.append(pair)
    before = {}
    counts = {}
    for source, by_reason in dropped.items():
        of_source = [pair for pair in consistent if pair.source == source]
        before[source] = summarize_lengths(of_source)
        counts[source] = {reason: by_reason[reason] for reason in REASONS if by_reason[reason]}
    return Preferences(selected, counts, before, held_out)


def _find_fault(pair: ReplyPair, held_out: HeldOut) -> str:
    """Name the first fault of a pair; empty where it has none."""
    texts = (pair.chosen, pair.rejected, pair.question)
    if not all(map(str.strip, texts)):
        return "blank"
    if pair in held_out:
        return "held_out"
    if compare_replies(pair.chosen, pair.rejected, pair.language) >= SAME:
        return "near_equal"
    if any(find_breaks(pair.chosen, pair.sheet)):
        return "out_of_character"
    if pair.source in ("plain", "role") and not any(filter_long([pair.chosen], pair.language)):
        return "short"
    return ""


def _find_surplus(pairs: Sequence[ReplyPair]) -> set[str]:
    """Find the pairs, by lot, without which length tells nothing."""
    uneven = defaultdict[tuple[str, str], list[ReplyPair]](list)
    for pair in sorted(pairs, key=lambda pair: (abs(pair.log_ratio), pair.lot)):
        if abs(pair.log_ratio) > LENGTH_BIN / 2:
            uneven[pair.source, pair.language].append(pair)
    surplus: set[str] = set()
    for sized in uneven.values():
        for start in range(0, len(sized), _GROUP):
            group = sized[start : start + _GROUP]
            longer = sorted(pair.lot for pair in group if pair.log_ratio > 0)
            shorter = sorted(pair.lot for pair in group if pair.log_ratio < 0)
            count = min(len(longer), len(shorter))
            surplus.update(longer[count:], shorter[count:])
    return surplus


@dataclass
class Inputs:
    """What pairs are made from, recognized by what it is.

    Attributes:
        parts: Roles of cards and characters' folders, by folded name.
        judged: Judging runs.
        scenes: Folders of scenes.
        chats: Chats of SillyTavern.
    """

    parts: dict[str, Part] = field(default_factory=dict)
    judged: list[JudgeRun] = field(default_factory=list)
    scenes: list[Path] = field(default_factory=list)
    chats: list[Path] = field(default_factory=list)

    @classmethod
    def read(cls, sources: Iterable[str | Path]) -> Inputs:
        """Read sources, and the files and folders directly in a folder that is none itself.

        Raises:
            SettingsError: For one that is nothing of this; says what can be used.
            DataError: For one that is damaged.
        """
        inputs = cls()
        for source in map(Path, sources):
            if inputs.add(source):
                continue
            inside = []
            if source.is_dir():
                inside = sorted(source.iterdir())
            if not sum(inputs.add(path) for path in inside):
                raise SettingsError(
                    f"{source}: nothing to prefer; give the folder of a judging run or a scene, a chat of SillyTavern "
                    "(.jsonl), or the card or folder of its role"
                )
        return inputs

    def add(self, path: Path) -> bool:
        """Take a file or folder; tell whether it is something to use."""
        is_file = path.is_file()
        kind = ""
        if (path / MANIFEST).is_file():
            kind = Run.open(path).kind
        is_card = is_file and path.suffix.lower() in (".png", ".json", ".charx")
        if is_card or (path / PROFILE).is_file():
            part = find_part(path)
            names = map(fold, part.sheet.names)
            self.parts.update(dict.fromkeys(names, part))
            self.chats += list_talks(path / TALKS)
        elif kind == "judge":
            self.judged.append(read_run(path))
        elif kind == PlayScenes.kind:
            self.scenes.append(path)
        elif is_file and _is_chat(path):
            self.chats.append(path)
        else:
            return False
        return True


def _is_chat(path: Path) -> bool:
    """Tell whether a file is a chat that SillyTavern saved."""
    if path.suffix != ".jsonl":
        return False
    _, line = next(read_jsonl(path), (0, {}))
    return not {"user_name", "chat_metadata", "is_user"}.isdisjoint(line)


@dataclass(frozen=True)
class Prefer(Step[Preferences]):
    """Make pairs of replies; no model is asked.

    Attributes:
        sources: Judging runs, scenes, chats, and the roles of these.
        settings: Which data set, and what is kept.
    """

    sources: Sequence[str | Path]
    settings: PreferSettings = field(default_factory=PreferSettings)
    kind: ClassVar[str] = "prefer"

    def plan(self, llm: LLM) -> Plan[Preferences]:
        """Make the pairs of all sources, and select.

        Raises:
            SettingsError: When there is nothing to make pairs from.
            ReleaseNotFoundError: When the data set is not there.
        """
        yield from ()
        settings = self.settings
        inputs = Inputs.read(self.sources)
        config = settings.config
        if config is None and (settings.data_dir is not None or not self.sources):
            config = resolve_config(None, settings.data_dir)
        skipped = Counter[str]()
        made = self._make_pairs(inputs, config, skipped)
        pairs = list(track_progress(made, "pairing", "pairs"))
        if not pairs:
            where = ", ".join(map(str, self.sources)) or str(config)
            if skipped:
                where += f" (replies left out: {format_counts(skipped)})"
            raise SettingsError(f"no pairs in {where}; see docs/training.md")
        configs = [config, *(run.dataset.config for run in inputs.judged)]
        held_out = read_held_out(dict.fromkeys(filter(None, configs)), settings.data_dir)
        checked = track_progress(pairs, "selecting", "pairs")
        selected = select_pairs(checked, held_out, balance=settings.balance)
        if not skipped:
            return selected
        swipes = {**skipped, **selected.dropped.get("swipes", {})}
        return replace(selected, dropped={**selected.dropped, "swipes": swipes})

    def _make_pairs(self, inputs: Inputs, config: str | None, skipped: Counter[str]) -> Iterator[ReplyPair]:
        if config is not None:
            splits = load_rolebench(config, data_dir=self.settings.data_dir)
            if "train" not in splits:
                raise DataError(
                    f"{config} has no split train, and pairs are made of no other; it has {', '.join(splits)}"
                )
            rows = [Row.from_columns(columns) for columns in splits["train"]]
            yield from pair_plain(rows)
            yield from pair_roles(rows)
        for judged in inputs.judged:
            yield from pair_judged(judged)
        for scene in inputs.scenes:
            yield from pair_branches(scene)
        for chat in inputs.chats:
            yield from pair_swipes(chat, inputs.parts, skipped)

    def records(self, result: Preferences) -> Records:
        """Return ``pairs.jsonl``."""
        return {PAIRS: (pair.to_dict() for pair in result.pairs)}

    def summarize(self, result: Preferences) -> dict[str, Any]:
        """Return counts by source and reason, and the gap in length."""
        return result.to_dict()

    def describe(self, result: Preferences) -> dict[str, Any]:
        """Return the sources."""
        return {"sources": [str(source) for source in self.sources]}


def prefer(*sources: str | Path, out: str | Path | None = None, **settings: Any) -> Run[Preferences]:
    """Make pairs of replies for DPO from a data set, judging runs, scenes, and chats.

    >>> run = prefer(config="sample")  # doctest: +SKIP
    >>> rolellm.train("smoke-cpu-dpo", train_dataset=Dataset.from_list(run.records()))  # doctest: +SKIP

    Args:
        sources: Folders of judging runs and scenes, chats of SillyTavern, and the cards or folders of their roles.
        out: The run's folder, with ``pairs.jsonl``; by default a temporary one.
        settings: Fields of `rolellm.making.settings.PreferSettings`. Without sources, the data set is the default one.

    Raises:
        SettingsError: For a source that is nothing of this, and when there is no pair.
        DataError: For a damaged source.
    """
    return run_step(Prefer(sources, read(PreferSettings, settings)), None, out)


def format_counts(counts: Mapping[str, int]) -> str:
    """List counts by reason for people."""
    words = [f"{name} {count:,}" for name, count in counts.items()]
    return ", ".join(words).replace("_", " ")


def _format_length(length: Mapping[str, float] | None) -> str:
    if length is None:
        return "–"
    factor = math.exp(length["log_ratio"])
    longer = length["chosen_longer"]
    return f"{factor:.2f} × as long, {longer:.0%} longer"
