"""Reward functions by their dotted paths, and their audit: replies that no reward should prefer to the role's own."""

from __future__ import annotations

import asyncio
import inspect
import math
import pkgutil
import random
import re
from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rolellm.core.errors import RecipeError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language, Row
from rolellm.core.settings import read_packaged_yaml
from rolellm.core.text import FUNCTION_HAN, fold, load_chinese_tokenizer
from rolellm.models.prompts.leaks import list_word_runs
from rolellm.training.recipe import TrainingRecipe

#: What a reward must not prefer to the role's own reply.
CANARIES: Final[Mapping[str, str]] = {
    "empty": "an empty reply",
    "null_model": "a friendly non-answer",
    "echo": "the question itself",
    "plain": "the role-free answer",
    "stuffing": "a list of keywords",
    "long": "ten replies in one",
    "off_topic": "the role's reply to another question",
    "sandwich": "the question between two typical sentences of the role",
}
#: What a reward that tells roles or knowledge apart ranks below it.
PAIRS: Final[Mapping[str, str]] = {"other_role": "another role's reply", "damaged": "the reply with wrong words"}
OWN: Final = "own"
#: Rows that an audit before training draws; fewer where a model is asked (our choice).
_ROWS, _ROWS_ASYNC = 64, 16
_LONGER: Final = 10
_ENGLISH_WORD: Final = re.compile(r"[^\W\d_]{5,}")
_SENTENCE: Final = re.compile(r"[^.!?。！？…\n]+[.!?。！？…]+")
#: Words of a sentence, at least, for a typical one.
_SHORT: Final = 4
#: What one voice is: a role in a language.
Voice = tuple[Language, str]
Words = tuple[str, ...]
Rewards = npt.NDArray[np.float64]


def find_reward(reward: Any) -> Any:
    """The function of a dotted path, or of a name in ``rolellm.rewards``, such as ``rouge``; a function is itself.

    Raises:
        RecipeError: When there is none.
    """
    if callable(reward):
        return reward
    path = str(reward)
    if "." not in path:
        path = f"rolellm.rewards.{path}"
    try:
        function = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise RecipeError(f"training.reward_funcs: there is no {reward} ({error})") from error
    if not callable(function):
        raise RecipeError(f"training.reward_funcs: {reward} is not a function")
    return function


def name_reward(reward: Any) -> str:
    """The dotted path of a function."""
    if isinstance(reward, str):
        return reward
    return f"{reward.__module__}.{reward.__qualname__}"


def take_rewards(training: dict[str, Any]) -> list[Any]:
    """Take rewards, which may be functions, out of values of a recipe's section, and leave their names."""
    rewards = training.pop("reward_funcs", None)
    if rewards is None:
        return []
    if callable(rewards) or isinstance(rewards, str):
        rewards = [rewards]
    training["reward_funcs"] = list(map(name_reward, rewards))
    # Those of a recipe are for its own rewards.
    training.setdefault("reward_weights", None)
    return list(rewards)


def learn_reward(reward: Any, rows: Sequence[Row]) -> Any:
    """The reward as it is after learning from rows; one without a method ``learn`` is itself."""
    if hasattr(reward, "learn"):
        return reward.learn(rows)
    return reward


class RewardedReply(NamedTuple):
    """A reply to be rewarded.

    Attributes:
        row: Its row, without the reply as a reference where it has others.
        kind: ``own``, or a key of `CANARIES` or `PAIRS`.
        text: The reply.
    """

    row: Row
    kind: str
    text: str


class RivalMaker:
    """Makes the rivals of a role's own reply from the replies of all rows.

    Args:
        rows: Rows that other roles' replies, wrong words and typical sentences are taken from.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._by_question = defaultdict[Voice, list[Row]](list)
        self._by_subset = defaultdict[Voice, list[Row]](list)
        self._by_role = defaultdict[Voice, list[str]](list)
        with_texts = list(filter(_list_texts, rows))
        for row in with_texts:
            question = fold(row.question)
            self._by_question[row.language, question].append(row)
            self._by_subset[row.language, row.subset].append(row)
            self._by_role[row.language, row.role].extend(row.references)
        self._typical = find_typical_sentences(with_texts)

    def make_group(self, row: Row) -> list[RewardedReply]:
        """Make the role's own reply and its rivals; none for a row without a reference.

        The own reply is one of several references, which the reward then does not see; else RoleGPT's, where the row
        has it; else the only reference.
        """
        texts = _list_texts(row)
        if not texts:
            return []
        draw = random.Random(row.id)
        own = row.rolegpt or texts[0]
        if len(texts) > 1:
            own = draw.choice(texts)
        unseen = tuple(text for text in texts if text != own)
        shown = replace(row, references=unseen or (own,), rolegpt=None)
        voice = (row.language, row.role)
        own_texts = self._by_role[voice] or texts
        other_role = self._draw_other_role(row, draw)
        ten_in_one = "\n".join(draw.choices(own_texts, k=_LONGER))
        off_topic = [text for text in own_texts if text not in row.references]
        rivals = {
            "null_model": _load_null_model(row),
            "echo": row.question,
            "plain": row.raw_reference or "",
            "stuffing": _list_keywords(shown),
            "long": ten_in_one,
            "off_topic": draw.choice(off_topic or [""]),
            "sandwich": _put_between(self._typical[voice], row),
            "other_role": other_role,
            "damaged": _damage(own, other_role, row),
        }
        group = [RewardedReply(shown, OWN, own), RewardedReply(shown, "empty", "")]
        for kind, text in rivals.items():
            if text.strip() not in ("", own.strip()):
                group.append(RewardedReply(shown, kind, text))
        return group

    def _draw_other_role(self, row: Row, draw: random.Random) -> str:
        """Draw another role's reply, to the same question if there is one; empty where there is no other role."""
        same_question = self._by_question[row.language, fold(row.question)]
        same_subset = self._by_subset[row.language, row.subset]
        for rows in (same_question, same_subset):
            of_others = [rival for rival in rows if rival.role != row.role]
            if of_others:
                rival = draw.choice(of_others)
                return draw.choice(rival.references)
        return ""


def _list_texts(row: Row) -> list[str]:
    """The references of a row that say something, each once."""
    return [text for text in dict.fromkeys(row.references) if text.strip()]


def find_typical_sentences(rows: Iterable[Row]) -> Mapping[Voice, list[str]]:
    """Sort the sentences of each role, those first whose words are its own: said often by it, and seldom by others."""
    words = defaultdict[Voice, dict[str, set[Words]]](dict)
    for row in rows:
        length = 1 if row.language == "en" else 2
        of_voice = words[row.language, row.role]
        text = "\n".join(row.references)
        for sentence in _SENTENCE.findall(text):
            runs = list_word_runs(sentence, length)
            of_voice[sentence.strip()] = set(runs)
    counts: dict[Voice, Counter[Words]] = {}
    for voice, sentences in words.items():
        counts[voice] = Counter(chain.from_iterable(sentences.values()))
    totals = sum(counts.values(), Counter[Words]())
    typical = defaultdict[Voice, list[str]](list)
    for voice, sentences in words.items():
        marks = {}
        for sentence, own in sentences.items():
            weights = [counts[voice][word] ** 2 / totals[word] for word in own]
            # A cry of a word or two would win by one word.
            length = max(len(own), _SHORT)
            marks[sentence] = math.fsum(weights) / length
        typical[voice] = sorted(marks, key=marks.__getitem__, reverse=True)
    return typical


def _put_between(sentences: Iterable[str], row: Row) -> str:
    """The row's question between the first two sentences that are not in its references; empty without two."""
    references = "\n".join(row.references)
    unused = (sentence for sentence in sentences if sentence not in references)
    ends = list(islice(unused, 2))
    if len(ends) < 2:
        return ""
    return f" {row.question} ".join(ends)


def _load_null_model(row: Row) -> str:
    replies = read_packaged_yaml("rolellm.models.prompts", "null_model.yaml")
    return str(replies[row.language])


def _split_keywords(text: str, row: Row) -> list[str]:
    if row.language == "en":
        return _ENGLISH_WORD.findall(text)
    words = load_chinese_tokenizer()(text)
    return [word for word in words if len(word) > 1 and FUNCTION_HAN.isdisjoint(word)]


def _list_keywords(row: Row) -> str:
    """All keywords of what a reward sees of a row, each once, in order, after the role's name."""
    texts = [*row.references, row.raw_reference or ""]
    keywords = dict.fromkeys(_split_keywords("\n".join(texts), row))
    separator = " " if row.language == "en" else "，"
    return separator.join([row.role, *keywords])


def _damage(text: str, source: str, row: Row) -> str:
    """The text with every second keyword replaced by one of another reply; empty where there are too few."""
    keywords = list(dict.fromkeys(_split_keywords(text, row)))
    wrong = _split_keywords(source, row)
    if len(keywords) < 3 or not wrong:
        return ""
    changes = dict(zip(keywords[::2], cycle(wrong), strict=False))
    longest_first = sorted(changes, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first))
    return re.sub(pattern, lambda hit: changes[hit[0]], text)


def call_reward(reward: Any, candidates: Sequence[RewardedReply]) -> list[float]:
    """Reward replies as TRL's trainer does; what a reward does not apply to is not a number."""
    columns = defaultdict[str, list[Any]](list)
    for candidate in candidates:
        row = candidate.row
        for name in ("role", "language", "subset", "question", "raw_reference", "role_description"):
            columns[name].append(getattr(row, name))
        columns["references"].append(list(row.references))
        columns["prompts"].append([{"role": "user", "content": row.question}])
        columns["completions"].append([{"role": "assistant", "content": candidate.text}])
        columns["completion_ids"].append([])
    values = reward(**columns)
    if inspect.isawaitable(values):
        # In a thread of its own: this one may run a loop already, as a notebook's does.
        with ThreadPoolExecutor(1) as pool:
            values = pool.submit(asyncio.run, _await(values)).result()
    return [math.nan if value is None else float(value) for value in values]


async def _await(values: Awaitable[Any]) -> Any:
    return await values


@dataclass(frozen=True, slots=True)
class RewardAudit:
    """The rewards of the role's own replies and of their rivals.

    Attributes:
        groups: Row by row: the role's own reply first, then its rivals.
        rewards: Name of a reward to the rewards of each group; with several, `TOGETHER` has their sum as TRL makes it.
    """

    groups: Sequence[Sequence[RewardedReply]]
    rewards: Mapping[str, Sequence[Rewards]]

    @property
    def held_out(self) -> int:
        """The number of rows whose own reply is not among the references that rewards see."""
        own = [group[0] for group in self.groups]
        return sum(candidate.text not in candidate.row.references for candidate in own)

    @property
    def decisive(self) -> str:
        """The name of the reward that training follows."""
        return list(self.rewards)[-1]

    def compare(self, name: str, kind: str) -> list[float]:
        """For each row with such a rival: 1 where it loses to the own reply, 0.5 for a tie, 0 where it wins."""
        results = []
        for group, values in zip(self.groups, self.rewards[name], strict=True):
            leads = np.round(values[0] - values, 9)
            for candidate, lead in zip(group, leads.tolist(), strict=True):
                if candidate.kind == kind and not math.isnan(lead):
                    results.append(float(np.heaviside(lead, 0.5)))
        return results


TOGETHER: Final = "together"


def audit_rewards(
    rewards: Mapping[str, Any], rows: Sequence[Row], most: int, weights: Sequence[float] | None = None
) -> RewardAudit:
    """Reward the role's own replies and their rivals, and compare.

    Rewards that learn do so from the rows whose questions are not drawn.

    Args:
        rewards: Name to reward function.
        rows: RoleBench's rows; those with a reference are drawn from.
        most: Number of rows to draw, by a hash of their ids.
        weights: As for TRL's trainer; a reward of weight 0 is only watched.
    """
    with_references = [row for row in rows if row.references]
    with_references.sort(key=lambda row: hash_json(["audit", row.id]))
    drawn = with_references[:most]
    questions = {fold(row.question) for row in drawn}
    rest = [row for row in rows if fold(row.question) not in questions]
    maker = RivalMaker(rows)
    groups = list(filter(None, map(maker.make_group, drawn)))
    candidates = list(chain.from_iterable(groups))
    sizes = list(map(len, groups))
    ends = np.cumsum(sizes)[:-1]
    values: dict[str, list[Rewards]] = {}
    for name, reward in rewards.items():
        learned = learn_reward(reward, rest or rows)
        of_replies = np.array(call_reward(learned, candidates))
        values[name] = np.split(of_replies, ends)
    if len(rewards) > 1:
        trained = []
        for of_groups, weight in zip(values.values(), weights or [1.0] * len(rewards), strict=True):
            if weight:
                trained.append([weight * _normalize(group) for group in of_groups])
        values[TOGETHER] = list(map(_add, zip(*trained, strict=True)))
    return RewardAudit(groups, values)


def find_beaten(audit: RewardAudit) -> list[str]:
    """The canaries that lose in fewer than half of the rows under the reward that training follows."""
    beaten = []
    for kind in CANARIES:
        results = audit.compare(audit.decisive, kind)
        if 2 * results.count(1.0) < len(results):
            beaten.append(kind)
    return beaten


def check_rewards(rewards: Mapping[str, Any], rows: Sequence[Row], weights: Sequence[float] | None) -> None:
    """Refuse rewards that a canary beats, before training.

    Raises:
        RecipeError: Names the canaries, and the ways out.
    """
    asks_model = any(map(is_async, rewards.values()))
    most = _ROWS_ASYNC if asks_model else _ROWS
    audit = audit_rewards(rewards, rows, most, weights)
    canaries = []
    for kind in find_beaten(audit):
        results = audit.compare(audit.decisive, kind)
        count = len(results)
        wins = count - results.count(1.0)
        canaries.append(f"{CANARIES[kind]} in {wins} of {count} rows")
    if canaries:
        names = " and ".join(rewards)
        raise RecipeError(
            f"training.reward_funcs: what {names} reward can be had without a good reply. Rewarded as "
            f"much as the role's own reply or more: {'; '.join(canaries)}. Combine other rewards (docs/training.md); "
            "`rolellm check reward` shows what each prefers, and training.audit_rewards: false trains all the same"
        )


def prepare_rewards(
    training: TrainingRecipe, rewards: Sequence[Any], replies: Sequence[Any], *, is_new: bool
) -> list[Any]:
    """Audit the rewards of a new training, and let those that learn do so.

    Args:
        training: The recipe's section.
        rewards: Reward functions.
        replies: What is trained on; conversations, which are not rows, have nothing to compare with or learn from.
        is_new: Whether training begins, and does not go on from a checkpoint.

    Raises:
        RecipeError: When a canary beats the rewards.
    """
    rows = [item for item in replies if isinstance(item, Row)]
    if not rows:
        return list(rewards)
    has_references = any(row.references for row in rows)
    if rewards and training.audit_rewards and is_new and has_references:
        named = dict(zip(map(name_reward, rewards), rewards, strict=True))
        check_rewards(named, rows, training.extra.get("reward_weights"))
    return [learn_reward(reward, rows) for reward in rewards]


def is_async(reward: Any) -> bool:
    """Tell whether calling a reward gives a coroutine."""
    return any(map(inspect.iscoroutinefunction, (reward, type(reward).__call__)))


def _normalize(values: Rewards) -> Rewards:
    """Values as TRL's ``normalize_then_sum`` scales them within a group; what does not apply adds nothing."""
    finite = values[~np.isnan(values)]
    if len(finite) < 2:
        return np.full_like(values, np.nan)
    spread = finite.std(ddof=1) + 1e-4
    scaled: Rewards = (values - finite.mean()) / spread
    return scaled


def _add(columns: Sequence[Rewards]) -> Rewards:
    """Sums of rewards without those that do not apply; not a number where none does."""
    total: Rewards = np.nansum(columns, axis=0)
    total[np.isnan(columns).all(axis=0)] = np.nan
    return total
