"""Reward functions under TRL's signature, for ``reward_funcs`` of its GRPO trainer and of rolellm's recipes.

Each takes ``completions`` (texts or lists of messages), ``prompts`` and the columns of RoleBench by name, and gives one
number or ``None`` (not applicable) for each completion. Combine several by TRL's ``multi_objective_aggregation:
normalize_then_sum``: alone, each can be gamed, as its docstring says; ``rolellm check reward`` measures how easily.

For all but `rouge` and `length`, the question in a reply counts as if it were not there. Three rules hold for
`knowledge`, `style` and `answer`: nearly the question earns nothing; what is longer than twice
the longest reference loses by the square of its excess; what has hardly a function word is a list of keywords, and
loses as well (all our choice).
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from scipy.special import expit

from rolellm.checks.breaks import AGAIN, find_breaks, is_echo, shows_ignorance
from rolellm.core.errors import ReleaseNotFoundError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language, Profile, Row
from rolellm.core.text import FUNCTION_HAN, HAN, fold
from rolellm.judging.judge_models import Judge, load_judge
from rolellm.judging.overlap_judge import make_words_judge
from rolellm.judging.records import Comparison, System
from rolellm.judging.requests import VerdictRequest, accept_verdicts, build_judge_request, prepare_material
from rolellm.llm.client import Client
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer, Finish, Request
from rolellm.making.content_words import STOP_WORDS, extract_content_words, make_word_finder
from rolellm.models.prompts.leaks import list_word_runs
from rolellm.scoring.rouge import rouge_l
from rolellm.scoring.style import StyleMeter, StyleReply

#: References may be exceeded in length by this factor.
_LONGER: Final = 2
#: The part of the references' share of function words that is asked of a reply.
_FUNCTION: Final = 0.6
#: A reply of fewer words is filled up with words of the references' kind before its share is taken.
_SHORT: Final = 12
#: What the question has of a reference's words counts this much less than what it has not.
_GIVEN: Final = 0.25
#: Who says this part of a role-free answer's words has answered.
_ANSWERED: Final = 0.5
_WORD: Final = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")


class _Completion(NamedTuple):
    """A completion with its row."""

    text: str
    row: Row
    sheet: Profile


@functools.lru_cache(maxsize=4096)
def _make_sheet(role: str, language: Language, description: str | None) -> Profile:
    _, *quoted = re.split("(?i)catchphrases? (?:is|are)|口头禅", description or "")
    phrases: list[str] = []
    if quoted:
        phrases = re.findall(r'"([^"]+)"', quoted[-1])
    return Profile(role, language, description=description, catchphrases=tuple(phrases))


def _read_batch(
    completions: Sequence[Any], prompts: Sequence[Any] | None, columns: Mapping[str, Any]
) -> list[_Completion]:
    """Read the completions with their columns; what is missing gets a default, as in `read_dataset_rows`."""
    replies = []
    own_columns = {name: column for name, column in columns.items() if name in _COLUMNS and column is not None}
    for index, completion in enumerate(completions):
        values = {name: column[index] for name, column in own_columns.items()}
        question = values.get("question")
        if not question and prompts is not None:
            question = _get_text(prompts[index])
        texts = values.get("references") or ()
        references = tuple(filter(str.strip, texts))
        language: Language | None = values.get("language")
        if not language:
            is_chinese = HAN.search("".join([question or "", *references]))
            language = "zh" if is_chinese else "en"
        raw = values.get("raw_reference") or None
        row = Row(
            id="",
            role=values.get("role") or "",
            language=language,
            subset=values.get("subset") or ("general" if raw else "role_specific"),
            question=question or "",
            references=references,
            raw_reference=raw,
            rolegpt=values.get("rolegpt"),
            role_description=values.get("role_description"),
        )
        text = _remove_question(_get_text(completion), row)
        sheet = _make_sheet(row.role, language, row.role_description)
        replies.append(_Completion(text, row, sheet))
    return replies


def _remove_question(text: str, row: Row) -> str:
    """Remove the question from a reply that quotes it; not where a reference does so, as with a sentence to correct."""
    own_texts = "\0".join([*row.references, row.raw_reference or ""])
    if not row.question or row.question in own_texts:
        return text
    return text.replace(row.question, "").strip()


_COLUMNS: Final = frozenset(
    ("role", "language", "subset", "question", "references", "raw_reference", "rolegpt", "role_description")
)


def _get_text(message: Any) -> str:
    """A text, or that of the last of a list of messages."""
    if isinstance(message, str):
        return message
    if not message:
        return ""
    return str(message[-1]["content"])


def _has_word(text: str) -> bool:
    return any(map(str.isalnum, text))


def in_character(completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any) -> list[float]:
    """Reward a reply without a break of character, less what it says again.

    A break is what `rolellm check drift` counts: an admission of being an AI or of playing a role, a refusal, an offer
    of assistance, a line for the user, the third person, another language, an echo of the question. Whatever breaks no
    rule is rewarded in full, whoever says it: silence aside, a role earns it by "Aye." to everything.

    >>> in_character(["Aye, the sea calls me.", "As an AI language model, I cannot say."], role=["Ahab"] * 2)
    [1.0, 0.0]

    Args:
        completions: Replies, as texts or lists of messages.
        prompts: For the question, where there is no such column.
        columns: ``role``, ``language``, ``question`` and ``role_description`` count.

    Returns:
        0 for a break or no word at all; else 1 less the share of repeated word runs (4 words, 6 Chinese characters).
        It costs about 0.1 ms a reply.
    """
    return [_score_character(reply) for reply in _read_batch(completions, prompts, columns)]


def _score_character(reply: _Completion) -> float:
    row = reply.row
    if not _has_word(reply.text) or find_breaks(reply.text, reply.sheet, row.question):
        return 0.0
    runs = list(list_word_runs(reply.text, AGAIN[row.language]))
    if not runs:
        return 1.0
    return len(set(runs)) / len(runs)


def knowledge(completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any) -> list[float | None]:
    """Reward what the role must know: the reference's content words that the question and description do not have.

    Where the reference itself says that the role does not know, not knowing is rewarded, and a claim is not (by the
    rule of `rolellm check boundary`); elsewhere not knowing earns nothing. A reply that names all that could be
    relevant in fluent sentences is rewarded, true or not; nobody checks what it says of the words.

    Args:
        completions: Replies, as texts or lists of messages.
        prompts: For the question, where there is no such column.
        columns: ``references``, ``language``, ``question``, ``role_description``, and ``subset`` or ``raw_reference``.

    Returns:
        0 to 1; ``None`` for a general instruction, and a row without such words. About 0.2 ms a reply.
    """
    return [_score_knowledge(reply) for reply in _read_batch(completions, prompts, columns)]


def _score_knowledge(reply: _Completion) -> float | None:
    row = reply.row
    if row.subset == "general" or not row.references:
        return None
    is_ignorant = shows_ignorance(reply.text, row.language)
    if all(shows_ignorance(text, row.language) for text in row.references):
        return float(is_ignorant) * _guard(reply)
    context = f"{row.question}\n{row.role}"
    shares = []
    for text in row.references:
        words = _weigh_words(text, context, row.language)
        if words:
            shares.append(_share_words(reply.text, words, row.language))
    if not shares:
        return None
    if is_ignorant:
        return 0.0
    return max(shares) * _guard(reply)


@functools.lru_cache(maxsize=1 << 14)
def _weigh_words(text: str, given: str, language: Language) -> Mapping[str, float]:
    """The content words of a text with their weights."""
    is_given = make_word_finder(given, language)
    return {word: _GIVEN if is_given(word) else 1.0 for word in extract_content_words(text, language)}


def _share_words(reply: str, words: Mapping[str, float], language: Language) -> float:
    has_word = make_word_finder(reply, language)
    weights = [words[word] for word in filter(has_word, words)]
    return sum(weights) / sum(words.values())


def answer(completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any) -> list[float | None]:
    """Reward the right answer to a general instruction: the words of its role-free answer, in their order.

    Half of it is the share of the answer's content words that are said, half Rouge-L's recall. The role-free answer
    itself earns the most: alone, this reward teaches a role to drop its voice. Where there is none, the role's own
    references stand for it, by the nearest.

    Args:
        completions: Replies, as texts or lists of messages.
        prompts: For the question, where there is no such column.
        columns: ``raw_reference``, ``references``, ``language`` and ``question``.

    Returns:
        0 to 1; ``None`` for a role-specific row, and one without any of these texts. About 0.2 ms a reply.
    """
    return [_score_answer(reply) for reply in _read_batch(completions, prompts, columns)]


def _score_answer(reply: _Completion) -> float | None:
    row = reply.row
    answers = row.references
    if row.raw_reference is not None:
        answers = (row.raw_reference,)
    if row.subset != "general" or not answers:
        return None
    replies = [reply.text] * len(answers)
    scores = rouge_l(replies, answers, language=row.language)
    best = 0.0
    for text, score in zip(answers, scores, strict=True):
        words = _weigh_words(text, "", row.language) or {text.strip(): 1.0}
        share = _share_words(reply.text, words, row.language)
        best = max(best, (share + score.recall) / 2)
    return min(1.0, best / _ANSWERED) * _guard(reply)


def _guard(reply: _Completion) -> float:
    """A factor of 0 to 1 for what the module's docstring says earns less."""
    row = reply.row
    question = row.question
    texts = list(filter(None, [*row.references, row.raw_reference]))
    if not _has_word(reply.text) or fold(reply.text) == fold(question):
        return 0.0
    # A sentence to correct is nearly its own answer.
    if is_echo(reply.text, question) and not any(is_echo(text, question) for text in texts):
        return 0.0
    if not texts:
        return 1.0
    limit = _LONGER * max(map(len, texts))
    fit = min(1.0, limit / len(reply.text))
    natural = _share_function_words(texts, row.language)
    if not natural:
        return fit**2
    hits, words = _count_function_words(reply.text, row.language)
    # A short reply may well be a list of words, so its share is drawn to the references'.
    lacking = max(0, _SHORT - words)
    share = (hits + lacking * natural) / (words + lacking)
    joined = min(1.0, share / (_FUNCTION * natural))
    return fit**2 * joined**4


def _share_function_words(texts: Iterable[str], language: Language) -> float:
    counts = [_count_function_words(text, language) for text in texts]
    hits, words = map(sum, zip(*counts, strict=True))
    return hits / max(words, 1)


@functools.lru_cache(maxsize=1 << 14)
def _count_function_words(text: str, language: Language) -> tuple[int, int]:
    """The number of words (of Chinese characters) that only join others, and of all."""
    if language == "zh":
        characters = HAN.findall(text)
        hits = sum(map(FUNCTION_HAN.__contains__, characters))
        return hits, len(characters)
    stop = STOP_WORDS["en"]
    words = _WORD.findall(text.lower())
    hits = sum(len(word) < 3 or word in stop for word in words)
    return hits, len(words)


class StyleReward:
    """Reward a reply that sounds like its role, and more so than the role-free answer does.

    The meter of `rolellm.scoring.style` tells the roles of a data set and its role-free answers apart; the reward is
    the role's lead over the next best of them, less that of the role-free answer to the same question, so that a plain
    or merely polite reply earns nothing. Marks of the role in a reply that answers nothing are rewarded in full.

    Attributes:
        meters: Language to meter; one that is not learned yet learns from RoleBench, as far as it is here.
    """

    def __init__(self, meters: Mapping[str, StyleMeter] | None = None) -> None:
        self.meters = dict(meters or {})
        # As functions have them, for logs.
        self.__name__ = self.__qualname__ = "style"

    def learn(self, rows: Iterable[Row]) -> StyleReward:
        """Return the same reward with meters that learn from these rows; recipes call it with their training rows.

        Raises:
            MissingExtraError: Without scikit-learn.
            DataError: When a language has not two voices to tell apart.
        """
        every = list(rows)
        languages = sorted({row.language for row in every})
        return StyleReward({language: StyleMeter(every, language) for language in languages})

    def __call__(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any
    ) -> list[float | None]:
        """Score a batch.

        Args:
            completions: Replies, as texts or lists of messages.
            prompts: For the question, where there is no such column.
            columns: ``role``, ``language``, ``question``, ``references`` and ``raw_reference``.

        Returns:
            -1 to 1; ``None`` for a role that the meter has not learned. About 0.3 ms a reply.
        """
        replies = _read_batch(completions, prompts, columns)
        values: list[float | None] = [None] * len(replies)
        for language in sorted({reply.row.language for reply in replies}):
            if language not in self.meters:
                self.meters[language] = StyleMeter(_load_rolebench_rows(language), language)
            meter = self.meters[language]
            own: dict[int, StyleReply] = {}
            plain: dict[int, StyleReply] = {}
            for index, reply in enumerate(replies):
                row = reply.row
                if row.language != language or row.role not in meter.voices:
                    continue
                question = fold(row.question)
                own[index] = StyleReply(row.role, question, reply.text)
                if row.raw_reference:
                    plain[index] = StyleReply(row.role, question, row.raw_reference)
            unique = list({*own.values(), *plain.values()})
            shares = dict(zip(unique, meter.measure(unique), strict=True))
            for index, item in own.items():
                lead = shares[item] * _guard(replies[index])
                if index in plain:
                    lead -= shares[plain[index]]
                values[index] = lead
        return values


def _load_rolebench_rows(language: Language) -> list[Row]:
    from rolellm.data.rolebench import load_rolebench
    from rolellm.scoring.rows import read_dataset_rows

    config_of_language = {"en": "instruction-generalization-eng", "zh": "instruction-generalization-zh"}
    for config in (config_of_language[language], "sample"):
        try:
            tables = load_rolebench(config).values()
        except ReleaseNotFoundError:
            continue
        rows = chain.from_iterable(map(read_dataset_rows, tables))
        return [row for row in rows if row.language == language]
    raise AssertionError("the sample is always here")


style = StyleReward()

#: The environment variable that names the settings file of the model that `verdict` asks.
JUDGE_VARIABLE: Final = "ROLELLM_JUDGE"
_CUT: Final[Sequence[Finish]] = ("length",)
AsyncReward = Callable[..., Awaitable[list[float | None]]]


def make_judge(llm: Any, out: str | Path, name: str = "role-odds") -> AsyncReward:
    """Make a reward of a judge model's verdicts: how likely it prefers a reply to the role's own.

    Args:
        llm: The model that judges, as for `rolellm.judge`; at the ``budget`` of its settings, training stops.
        out: Folder of the journal: a verdict that was paid for is not asked again. Each process of a training has its
            own folder in it.
        name: A judge of pairs; ``role-odds`` reads the odds of a letter, ``role-pair`` a verdict in words.

    Returns:
        An async reward function; see `judge`.

    Raises:
        SettingsError: For a model or a judge that is not there, or a judge of lists.
    """
    chosen = load_judge(name)
    if chosen.design != "pairwise":
        raise SettingsError(f"{name} ranks lists; a reward needs a judge of pairs: role-odds or role-pair")
    model = LLM.of(llm, {"words": make_words_judge})
    folder = Path(out)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        folder /= f"rank-{os.environ['RANK']}"
    reward = _JudgeReward(chosen, model, folder)

    async def judge_replies(
        completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any
    ) -> list[float | None]:
        return await asyncio.to_thread(reward.ask, _read_batch(completions, prompts, columns))

    return judge_replies


class _JudgeReward:
    """A judge model and the journal of its verdicts, which is opened with the first question."""

    def __init__(self, judge: Judge, model: LLM, folder: Path) -> None:
        self._judge, self._model, self._folder = judge, model, folder

    @functools.cached_property
    def _client(self) -> Client:
        options = replace(self._model.options, show_progress=False)
        client = Client(self._folder, self._model.models, options)
        atexit.register(client.close)
        return client

    def ask(self, replies: Sequence[_Completion]) -> list[float | None]:
        """Return how likely the judge prefers each reply, over both orders."""
        requests: list[Request] = []
        owners: list[tuple[int, int]] = []
        for index, reply in enumerate(replies):
            for sign, request in _build_verdict_requests(reply, self._judge):
                requests.append(request)
                owners.append((index, sign))
        accept = accept_verdicts({self._judge.settings.parser: self._judge})
        outcomes = self._client.ask(requests, accept, label="judging", also=_CUT)
        leads = defaultdict[int, list[float]](list)
        for (index, sign), outcome in zip(owners, outcomes, strict=True):
            if isinstance(outcome, Answer) and outcome.value.ranks is not None:
                first, second = outcome.value.ranks
                lead = outcome.value.lead
                if lead is None:
                    lead = second - first
                leads[index].append(sign * lead)
        shares: list[float | None] = [None] * len(replies)
        for index, of_reply in leads.items():
            if len(of_reply) == 2:
                shares[index] = float(expit(fmean(of_reply)))
        return shares


def _build_verdict_requests(reply: _Completion, chosen: Judge) -> Iterator[tuple[int, Request]]:
    """Build the requests of both orders, and the sign of their lead; none for a row without a reply to compare with."""
    row = reply.row
    own_replies = list(filter(None, [row.rolegpt, *row.references]))
    if not own_replies or not reply.text.strip():
        return
    # What a reply is compared with is not shown as a reference as well.
    rival, *references = own_replies
    row = replace(row, id=hash_json(row.question), references=tuple(references))
    answers = {"reply": {row.id: reply.text}, "rival": {row.id: rival}}
    systems = list(map(System, answers))
    material = prepare_material(Comparison([row], systems, answers), row)
    yield 1, build_judge_request(material, VerdictRequest(0, chosen, ("reply", "rival")))
    yield -1, build_judge_request(material, VerdictRequest(0, chosen, ("rival", "reply")))


@functools.cache
def _make_default_judge() -> AsyncReward:
    file = os.environ.get(JUDGE_VARIABLE)
    if not file:
        raise SettingsError(
            f"rolellm.rewards.judge needs a model: set {JUDGE_VARIABLE} to its settings file (docs/models.md), or "
            "pass rolellm.rewards.make_judge(llm, out) from Python"
        )
    return make_judge(file, Path(file).parent / "judge-reward")


async def judge(completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any) -> list[float | None]:
    """Reward what a judge model prefers to the role's own reply, by the odds of both orders.

    The model is that of the settings file that ``$ROLELLM_JUDGE`` names; its journal is ``judge-reward/`` next to the
    file. The reply is compared with RoleGPT's, where the row has it, else with its first reference. Judges are won by
    text that addresses them, and by length and confidence; check yours by its canaries first (`rolellm judge`).

    Args:
        completions: Replies, as texts or lists of messages.
        prompts: For the question, where there is no such column.
        columns: Those of RoleBench.

    Returns:
        0 to 1, 0.5 for no preference; ``None`` for a blank reply, a row without a reply to compare with, and where a
        verdict is missing. Two requests a reply.

    Raises:
        SettingsError: When no model is named.
        StoppedShortError: When the budget is spent.
    """
    return await _make_default_judge()(completions, prompts, **columns)


def rouge(
    completions: Sequence[Any],
    references: Sequence[Sequence[str]],
    language: Sequence[str] | None = None,
    **_: Any,
) -> list[float | None]:
    """Reward likeness to the role's own replies: Rouge-L (F1) with the best of a row's references.

    A reply that copies common words of the role without answering is rewarded, too; so is one that is as long as the
    references whatever it says.

    >>> rouge(["Aye, the sea calls me."], references=[["Aye, the sea calls."]])
    [0.888...]

    Args:
        completions: Replies, as texts or lists of messages.
        references: The references of each reply's row; ``None`` for a row without any.
        language: The language of each row; English by default.

    Returns:
        One number from 0 to 1 each.
    """
    languages = language or ["en"] * len(completions)
    rewards: list[float | None] = []
    for reply, texts, code in zip(completions, references, languages, strict=True):
        if not texts:
            rewards.append(None)
            continue
        (score,) = rouge_l([_get_text(reply)], [list(texts)], language=code)
        rewards.append(score.f1)
    return rewards


def length(completions: Sequence[Any], **_: Any) -> list[float]:
    """Reward brevity: 1 for an empty reply, down to 0 at 400 characters. It is of no use alone: say nothing, and win.

    >>> length(["a" * 100, "a" * 1000])
    [0.75, 0.0]

    Args:
        completions: Replies, as texts or lists of messages.

    Returns:
        One number from 0 to 1 each.
    """
    return [max(0.0, 1 - len(_get_text(reply)) / 400) for reply in completions]
