"""Pairs of replies for DPO from what is there: a data set, folders of runs, and chats; nobody is asked.

`rolellm.making.reply_pairs` and `rolellm.judging.answer_pairs` have the sources; `select_pairs` drops what must not be
learned from. Read `Prefer.plan` first.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final

from rolellm.characters.folder import PROFILE
from rolellm.characters.roles import Part, find_part
from rolellm.characters.scripts.parse import detect_language
from rolellm.checks.breaks import find_breaks
from rolellm.checks.drift import Talk, measure, read_talks
from rolellm.core.errors import DataError, ModelError, SettingsError
from rolellm.core.fingerprint import draw_evenly, hash_json
from rolellm.core.jsonl import read_jsonl
from rolellm.core.progress import track_progress
from rolellm.core.records import Language, Profile, Row
from rolellm.core.table import Table
from rolellm.core.text import fold, format_count, join_names
from rolellm.data.rolebench import load_rolebench
from rolellm.data.rolebench.source import resolve_config
from rolellm.judging.answer_pairs import pair_judged, pair_votes
from rolellm.judging.records import JudgeRun, read_run
from rolellm.judging.verdicts import compute_sign
from rolellm.llm.llm import LLM
from rolellm.llm.model import Message, assistant, user
from rolellm.llm.scripted import ScriptedModel
from rolellm.making.reply_pairs import (
    LENGTH_BIN,
    SAME,
    ReplyPair,
    compare_replies,
    is_long,
    make_pair_prompt,
    match_replies,
    pair_grounded,
    pair_plain,
    pair_roles,
)
from rolellm.making.settings import PreferSettings, make_settings
from rolellm.models.training_record import hash_instruction
from rolellm.playing.converse import SESSIONS
from rolellm.playing.player import RolePlayer
from rolellm.runs import MANIFEST, Plan, Records, Run, Step, run_step
from rolellm.scoring.contamination import find_held_out_part

PAIRS: Final = "pairs.jsonl"
#: Pairs with gaps of similar size among which balancing evens out the longer and the shorter (our choice): many pairs
#: are matched closely, and few are not lost for want of a match.
_GROUP: Final = 50
#: Tokens of a swipe's prompt and reply, as recipes for DPO limit them (our choice).
_CONTEXT: Final = 2048
#: Why pairs are left out, in the order in which they are looked for.
REASONS: Final = (
    "blank",
    "held_out",
    "near_equal",
    "out_of_character",
    "short",
    "repeated",
    "contradicted",
    "unbalanced",
    "over_limit",
)


def pair_breaks(talks: Iterable[Talk]) -> Iterator[ReplyPair]:
    """Prefer a reply in character to one that breaks it, by rule, to the same message in another talk with the role.

    The prompt is the talk of the reply in character, without a break so far.
    """
    held: dict[tuple[str, str], list[tuple[list[dict[str, str]], str]]] = defaultdict(list)
    broken: list[tuple[str, Talk, str, str]] = []
    for talk in talks:
        history: list[dict[str, str]] = []
        is_clean = True
        for (message, reply), measured in zip(talk.turns, measure(talk), strict=True):
            history = [*history, {"role": "user", "content": message}]
            if measured.breaks:
                broken.append((f"{talk.id or talk.role}/{measured.turn}", talk, message, reply))
                is_clean = False
            elif is_clean:
                held[fold(talk.role), fold(message)].append((history, reply))
            history = [*history, {"role": "assistant", "content": reply}]
    for turn_id, talk, message, rejected in broken:
        if replies := held.get((fold(talk.role), fold(message))):
            chosen, _ = match_replies([reply for _, reply in replies], [rejected], talk.language)
            history = next(history for history, reply in replies if reply == chosen)
            sheet = replace(talk.sheet, catchphrases=())
            yield ReplyPair(
                "breaks", turn_id, talk.role, talk.language, make_pair_prompt(Part(sheet), history), chosen, rejected
            )


def pair_swipes(
    path: Path, parts: Mapping[str, Part], skipped: Counter[str], name: str | None = None
) -> Iterator[ReplyPair]:
    """Prefer the reply that a user of SillyTavern went on with to those that were swiped away.

    Greetings are left out, since their alternatives are the card's, and so is a last message, since nobody went on
    with it. Prompts are those of play, in a context of `_CONTEXT`.

    Args:
        path: The chat, ``.jsonl``.
        parts: Roles by folded name. Without any, each speaker is a role without a description.
        skipped: Counts replies that give no pair, by reason.
        name: The name that the only role has in the chat.

    Raises:
        SettingsError: When no reply in the chat is by one of the roles.
    """
    lines = [(number, line) for number, line in read_jsonl(path) if isinstance(line.get("mes"), str)]
    lines = [(number, line) for number, line in lines if not line.get("is_system")]
    speakers = dict.fromkeys(str(line.get("name") or "") for _, line in lines if not line.get("is_user"))
    language = detect_language("\n".join(line["mes"] for _, line in lines))
    players = _find_players(path, speakers, parts, name, language)
    turns: list[Message] = []
    for (number, line), (_, following) in pairwise([*lines, (0, {})]):
        reply = line["mes"]
        if line.get("is_user"):
            turns = _add_turn(turns, user(reply))
            continue
        player = players.get(str(line.get("name") or ""))
        swipes = [text for text in line.get("swipes") or () if isinstance(text, str)]
        rejected = dict.fromkeys(text for text in swipes if text != reply)
        try:
            if player is None:
                skipped["another_speaker"] += 1
            elif not turns or turns[-1].role != "user":
                skipped["no_message_before"] += 1
            elif not following.get("is_user"):
                skipped["no_message_after"] += 1
            elif not rejected:
                skipped[("no_swipe", "one_swipe", "equal_swipes")[min(len(swipes), 2)]] += 1
            else:
                prompt = tuple(asdict(message) for message in player.prompt(turns).messages)
                sheet, after = player.part.sheet, player.part.after
                for swiped in rejected:
                    yield ReplyPair(
                        "swipes", f"{path.name}/{number}", sheet.role, sheet.language, prompt, reply, swiped, after
                    )
        except ModelError:
            skipped["too_long"] += 1
        turns = _add_turn(turns, assistant(reply))


def _find_players(
    path: Path, speakers: Iterable[str], parts: Mapping[str, Part], name: str | None, language: Language
) -> dict[str, RolePlayer]:
    roles = {part.sheet.role: part for part in parts.values()}
    if name is not None:
        if len(roles) != 1:
            raise SettingsError(f"--role {name} needs the card or folder of one role; {len(roles)} are given")
        parts = dict.fromkeys([fold(name)], *roles.values())
    elif not parts:
        parts = {fold(speaker): Part(Profile(speaker, language)) for speaker in speakers}
    # The model is never called; only prompts are built.
    model = ScriptedModel(str, rules_hash="")
    players = {
        speaker: RolePlayer(model, parts[fold(speaker)], context=_CONTEXT)
        for speaker in speakers
        if fold(speaker) in parts
    }
    if speakers and not players:
        alias = f" as {name}" if name else ""
        raise SettingsError(
            f"{path}: no reply by {join_names(roles)}{alias}; its replies are by {join_names(speakers)}. If that is "
            "the same role, give its name in the chat with --role"
        )
    return players


def _add_turn(turns: Sequence[Message], turn: Message) -> list[Message]:
    """Add a turn to a talk; two in a row of one speaker become one, as chat templates want it."""
    if turns and turns[-1].role == turn.role:
        return [*turns[:-1], replace(turn, content=f"{turns[-1].content}\n\n{turn.content}")]
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
        return fold(pair.role) in self.roles or hash_instruction(pair.question) in self.instructions


def read_held_out(configs: Iterable[str], data_dir: Path | None = None) -> HeldOut:
    """Read the part of each config's test split that its name promises to be new: roles, or instructions."""
    names, roles, instructions = [], set[str](), set[str]()
    for config in configs:
        splits, part = load_rolebench(config, data_dir=data_dir), find_held_out_part(config) or "instruction"
        if "test" in splits:
            names.append(f"{config}/test")
            roles |= {fold(role) for role in splits["test"]["role"]} if part == "role" else set()
            questions = splits["test"]["question"] if part == "instruction" else ()
            instructions |= {hash_instruction(question) for question in questions}
    return HeldOut(tuple(names), frozenset(roles), frozenset(instructions))


@dataclass(frozen=True)
class Preferences:
    """Pairs that were kept, and what became of the others.

    Attributes:
        pairs: In the order of their sources.
        dropped: By source and reason of `REASONS`.
        before: Each source's lengths before balancing, as `summarize_lengths` has them.
        held_out: What was held out.
    """

    pairs: Sequence[ReplyPair]
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    held_out: HeldOut = field(default_factory=HeldOut)

    def to_dict(self) -> dict[str, Any]:
        """Return counts, and lengths overall and by source."""
        counts = Counter(pair.source for pair in self.pairs)
        by_source = {
            source: {
                "pairs": counts[source],
                "dropped": dict(self.dropped.get(source, {})),
                "length": summarize_lengths(pair for pair in self.pairs if pair.source == source),
                "length_unbalanced": self.before.get(source),
            }
            for source in dict.fromkeys([*self.before, *self.dropped])
        }
        checked = {"tests": list(self.held_out.names), "instructions": len(self.held_out.instructions)}
        return {
            "pairs": len(self.pairs),
            "roles": len({pair.role for pair in self.pairs}),
            "length": summarize_lengths(self.pairs),
            "sources": by_source,
            "held_out": {**checked, "roles": len(self.held_out.roles)},
        }


def summarize_lengths(pairs: Iterable[ReplyPair]) -> dict[str, Any] | None:
    """Summarize the gap in length: the mean log ratio, and the share of pairs whose chosen reply is the longer one.

    Replies of one length count half. ``None`` without pairs.
    """
    ratios = [pair.log_ratio for pair in pairs]
    if not ratios:
        return None
    longer = sum(1 + compute_sign(ratio) for ratio in ratios) / 2 / len(ratios)
    return {"log_ratio": round(math.fsum(ratios) / len(ratios), 4), "chosen_longer": round(longer, 4)}


def select_pairs(
    pairs: Iterable[ReplyPair], held_out: HeldOut, *, balance: bool = True, limit: int | None = None
) -> Preferences:
    """Select the pairs to learn from.

    Args:
        pairs: All of them.
        held_out: What no pair may be about.
        balance: Drop pairs until length tells nothing: of each source and language, as many chosen replies are longer
            than the rejected one as are shorter, among pairs with gaps of similar size.
        limit: Keep at most N pairs, evenly from all sources.
    """
    dropped: dict[str, Counter[str]] = defaultdict(Counter)
    seen: set[str] = set()
    kept: dict[str, ReplyPair] = {}
    for pair in pairs:
        reasons = {
            "blank": not (pair.chosen.strip() and pair.rejected.strip() and pair.question.strip()),
            "held_out": pair in held_out,
            "near_equal": compare_replies(pair.chosen, pair.rejected, pair.language) >= SAME,
            "out_of_character": any(find_breaks(pair.chosen, pair.sheet)),
            "short": pair.source in ("plain", "role") and not is_long(pair.chosen, pair.language),
            "repeated": _key(pair) in seen,
        }
        dropped[pair.source][next((reason for reason, holds in reasons.items() if holds), "")] += 1
        if not any(reasons.values()):
            kept[_key(pair)] = pair
        seen.add(_key(pair))
    whole = list(kept.values())
    consistent = [pair for pair in whole if _key(replace(pair, chosen=pair.rejected, rejected=pair.chosen)) not in kept]
    balanced = _balance_lengths(consistent) if balance else consistent
    chosen = [balanced[index] for index in draw_evenly(balanced, limit, _draw, lambda pair: pair.source)]
    steps = (whole, consistent, balanced, chosen)
    for reason, (more, less) in zip(REASONS[6:], pairwise(steps), strict=True):
        for source, count in (Counter(pair.source for pair in more) - Counter(pair.source for pair in less)).items():
            dropped[source][reason] += count
    before = {
        source: summarize_lengths(pair for pair in consistent if pair.source == source) for source in list(dropped)
    }
    counts = {source: {name: counts[name] for name in REASONS if counts[name]} for source, counts in dropped.items()}
    return Preferences(chosen, counts, before, held_out)


def _key(pair: ReplyPair) -> str:
    """The prompt and both replies, white space and case folded."""
    return hash_json([[fold(message["content"]) for message in pair.prompt], fold(pair.chosen), fold(pair.rejected)])


def _draw(pair: ReplyPair) -> str:
    """A place in an order by lot, which other pairs do not change."""
    return hash_json([pair.source, pair.id, pair.role, pair.chosen, pair.rejected])


def _balance_lengths(pairs: Sequence[ReplyPair]) -> list[ReplyPair]:
    alike: dict[tuple[str, str], list[ReplyPair]] = defaultdict(list)
    for pair in sorted(pairs, key=lambda pair: (abs(pair.log_ratio), _draw(pair))):
        if abs(pair.log_ratio) > LENGTH_BIN / 2:
            alike[pair.source, pair.language].append(pair)
    surplus = set[str]()
    for sized in alike.values():
        for start in range(0, len(sized), _GROUP):
            group = sorted(sized[start : start + _GROUP], key=_draw)
            sides = [[pair for pair in group if (pair.log_ratio > 0) == is_longer] for is_longer in (True, False)]
            surplus |= {_draw(pair) for side in sides for pair in side[min(map(len, sides)) :]}
    return [pair for pair in pairs if _draw(pair) not in surplus]


@dataclass
class Inputs:
    """What pairs are made from, recognized by what it is.

    Attributes:
        parts: Roles of cards and characters' folders, by folded name.
        instructs: Runs of ``rolellm instruct``.
        judged: Judging runs, and folders of votes.
        talks: Sessions of ``rolellm check converse``.
        chats: Chats of SillyTavern.
    """

    parts: dict[str, Part] = field(default_factory=dict)
    instructs: list[Run[Any]] = field(default_factory=list)
    judged: list[JudgeRun] = field(default_factory=list)
    talks: list[Talk] = field(default_factory=list)
    chats: list[Path] = field(default_factory=list)

    @classmethod
    def read(cls, sources: Iterable[str | Path]) -> Inputs:
        """Read sources, and the folders directly in a folder that is none itself.

        Raises:
            SettingsError: For one that is nothing of this; says what can be used.
            DataError: For one that is damaged.
        """
        inputs = cls()
        for source in map(Path, sources):
            if not inputs.add(source):
                inside = sorted(source.iterdir()) if source.is_dir() else []
                if not sum(inputs.add(path) for path in inside):
                    raise SettingsError(
                        f"{source}: nothing to prefer; give the folder of a run of instruct, judge or check converse, "
                        "of votes (chat --votes), a chat of SillyTavern (.jsonl), or the card or folder of its role"
                    )
        return inputs

    def add(self, path: Path) -> bool:
        """Take a file or folder; tell whether it is something to use."""
        if path.is_dir() and (path / PROFILE).is_file():
            self._add_part(path)
            for folder in filter(Path.is_dir, sorted(path.iterdir())):
                self.add(folder)
        elif path.is_dir():
            kind = Run.open(path).kind if (path / MANIFEST).is_file() else None
            if kind == "instruct":
                self.instructs.append(Run.open(path))
            elif kind == "judge":
                self.judged.append(read_run(path))
            elif (path / SESSIONS).is_file():
                self.talks += read_talks(path)
            else:
                return False
        elif path.suffix == ".jsonl" and path.is_file():
            line = next((value for _, value in read_jsonl(path)), {})
            if {"messages", "role", "language"} <= line.keys():
                self.talks += read_talks(path)
            elif {"user_name", "chat_metadata", "is_user"} & line.keys():
                self.chats.append(path)
            else:
                return False
        elif path.suffix.lower() in (".png", ".json", ".charx") and path.is_file():
            self._add_part(path)
        else:
            return False
        return True

    def _add_part(self, path: Path) -> None:
        part = find_part(path)
        self.parts |= {fold(name): part for name in part.sheet.names}


@dataclass(frozen=True)
class Prefer(Step[Preferences]):
    """Make pairs of replies; no model is asked.

    Attributes:
        sources: Folders of runs, chats, and their roles.
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
        settings, inputs = self.settings, Inputs.read(self.sources)
        config = settings.config
        if config is None and (settings.data_dir is not None or not self.sources):
            config = resolve_config(None, settings.data_dir)
        named = [run.dataset.config for run in inputs.judged]
        configs = dict.fromkeys(name for name in (config, *named) if name is not None)
        if settings.role is not None and not inputs.chats:
            raise SettingsError(
                "--role names a role in a chat of SillyTavern, and no chat is given; add it or drop --role"
            )
        skipped = Counter[str]()
        pairs = list(track_progress(self._make_pairs(inputs, config, skipped), "pairing", "pairs"))
        if not pairs:
            why = f" (replies left out: {_format_counts(skipped)})" if skipped else ""
            raise SettingsError(f"no pairs in {', '.join(map(str, self.sources)) or config}{why}; see docs/training.md")
        held_out = read_held_out(configs, settings.data_dir)
        checked = track_progress(pairs, "selecting", "pairs")
        selected = select_pairs(checked, held_out, balance=settings.balance, limit=settings.limit)
        if not skipped:
            return selected
        dropped = {**skipped, **selected.dropped.get("swipes", {})}
        return replace(selected, dropped={**selected.dropped, "swipes": dropped})

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
        for run in inputs.instructs:
            yield from pair_grounded(run)
        yield from pair_breaks(inputs.talks)
        for judged in inputs.judged:
            yield from pair_votes(judged)
            yield from () if judged.manifest.get("votes") else pair_judged(judged)
        for chat in inputs.chats:
            yield from pair_swipes(chat, inputs.parts, skipped, self.settings.role)

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
    """Make pairs of replies for DPO from a data set, folders of runs, and chats.

    >>> run = prefer(config="sample")  # doctest: +SKIP
    >>> rolellm.train("smoke-cpu-dpo", train_dataset=Dataset.from_list(run.records()))  # doctest: +SKIP

    Args:
        sources: Folders of runs of ``instruct``, ``judge`` and ``check converse``, of votes, chats of SillyTavern, and
            the cards or folders of their roles.
        out: The run's folder, with ``pairs.jsonl``; by default a temporary one.
        settings: Fields of `rolellm.making.settings.PreferSettings`. Without sources, the data set is the default one.

    Raises:
        SettingsError: For a source that is nothing of this, and when there is no pair.
        DataError: For a damaged source.
    """
    return run_step(Prefer(sources, make_settings(PreferSettings, settings)), None, out)


def make_table(summary: Mapping[str, Any]) -> Table:
    """Tabulate a run's summary: pairs by source, what was left out, and the gap in length before and after."""
    rows = []
    for source, counts in [*summary["sources"].items(), ("all", {**summary, "dropped": {}, "length_unbalanced": None})]:
        left_out = _format_counts(counts["dropped"])
        lengths = [_format_length(counts[name]) for name in ("length_unbalanced", "length")]
        rows.append((source, counts["pairs"], left_out, *lengths))
    title = f"{format_count(summary['pairs'], 'pair')} for {format_count(summary['roles'], 'role')}"
    columns = ("source", "pairs", "left out", "chosen over rejected, all", "chosen over rejected, kept")
    return Table.from_rows(title, columns, rows)


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items())


def _format_length(length: Mapping[str, float] | None) -> str:
    if length is None:
        return "–"
    return f"{math.exp(length['log_ratio']):.2f} × as long, {length['chosen_longer']:.0%} longer"
