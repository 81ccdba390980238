"""The verdicts to request of a judge: the orders of the answers, the prompts, and what makes ranks of a reply.

Every pair is shown in both orders, every list in rotations of one drawn by content. What is drawn is drawn from the
row's id and the names, not from a stream of random numbers: other rows, another system or another order of the data
change nothing about it, so a run that grows asks only for what is new.

A judge is shown role, question and reference, and the answers under letters, each text behind a fence. Which reference:
of a role-specific row its own, of which Context-Instruct made it; of a general row the instruction's role-free target.
The styled references of general rows are RoleGPT's, siblings of the baseline that the others are compared with, so a
judge that saw them would be shown whom to prefer.

A verdict is one JSON object and nothing else (see `refuse_prose`) that follows the judge's schema and ranks each answer
once. Anything else is refused and asked again, except for a copied verdict: the same text would be copied again.
"""

from __future__ import annotations

import functools
import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rolellm.core.errors import SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Row
from rolellm.core.settings import read_packaged_yaml
from rolellm.judging.judge_models import Judge
from rolellm.judging.records import Comparison, compute_mid_ranks
from rolellm.llm.json_reply import accept_json, find_json
from rolellm.llm.model import Accept, Reply, Request, UnacceptableError, strip_thoughts, system, user
from rolellm.models.prompts.fences import draw_nonce, fence_text, make_harmless, read_fences
from rolellm.models.prompts.leaks import make_leak_check

#: What answers are called; a list has no more of them.
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: The orders of each list. With two, every answer of a pair of systems is read before the other once.
ROTATIONS: Final = 2


@dataclass(frozen=True, slots=True)
class VerdictRequest:
    """One verdict to ask for.

    Attributes:
        row: Index of the row.
        judge: Who is asked.
        order: Names of the systems, as shown.
    """

    row: int
    judge: Judge
    order: tuple[str, ...]


def plan_verdicts(comparison: Comparison, judges: Sequence[Judge], seed: int = 0) -> list[VerdictRequest]:
    """Plan every verdict to ask for, row by row, so that what rows share is asked together.

    A pair is asked for where the system and the baseline both answered; a list where every system but canaries did.

    Raises:
        SettingsError: When pairs are to be judged and there is no baseline, or lists of more answers than there are
            letters; and where no verdict can be asked for at all.
    """
    for judge in judges:
        _check(comparison, judge)
    asks = []
    for index, row in enumerate(comparison.rows):
        for judge in judges:
            for order in _iter_orders(comparison, judge, seed, row.id):
                asks.append(VerdictRequest(index, judge, order))
    if not asks:
        raise SettingsError("nothing to judge: no list or pair has all its answers; give more predictions")
    return asks


def _check(comparison: Comparison, judge: Judge) -> None:
    count = len(comparison.systems)
    if judge.design == "pairwise" and comparison.baseline is None:
        name = judge.settings.name
        raise SettingsError(f"{name} compares with a baseline, and this run has none; name one with --baseline")
    if judge.design == "listwise" and count > len(LETTERS):
        most = f"more than a list holds ({len(LETTERS)})"
        raise SettingsError(f"{count} systems are {most}; judge pairs: --judge role-pair")


def _iter_orders(comparison: Comparison, judge: Judge, seed: int, row: str) -> Iterator[tuple[str, ...]]:
    """Yield the orders in which a judge sees a row."""
    names = [name for name, texts in comparison.answers.items() if row in texts]
    baseline = comparison.baseline
    if judge.design == "listwise":
        needed = comparison.answers.keys() - comparison.canaries
        if needed <= set(names):
            yield from rotate_orders(names, seed, row)
    elif baseline is not None and baseline in names:
        for name in names:
            if name != baseline:
                yield name, baseline
                yield baseline, name


def rotate_orders(names: Sequence[str], seed: int, row_id: str) -> list[tuple[str, ...]]:
    """List the orders in which a row's list is shown: one drawn by content, then that turned by equal steps."""
    first = sorted(names, key=lambda name: hash_json([seed, row_id, name]))
    turns = min(ROTATIONS, len(first))
    orders = []
    for turn in range(turns):
        step = turn * len(first) // turns
        orders.append((*first[step:], *first[:step]))
    return orders


#: What a judge is told between texts, by language.
WORDS: Mapping[str, Mapping[str, str]] = read_packaged_yaml("rolellm.judging", "words.yaml")


@dataclass(frozen=True, slots=True)
class RowMaterial:
    """A row's answers, made harmless for showing.

    Attributes:
        row: The row.
        common: What every request about it shows, by the names of the fences.
        answers: System to answer.
    """

    row: Row
    common: Mapping[str, str]
    answers: Mapping[str, str]


def prepare_material(comparison: Comparison, row: Row) -> RowMaterial:
    """Prepare what can be shown of a row of a comparison."""
    description = row.role_description or WORDS[row.language]["no_description"]
    texts = {"role": row.role, "description": description, "question": row.question}
    for number, text in enumerate(select_references(row), start=1):
        texts[f"reference {number}"] = text
    common = {name: make_harmless(text) for name, text in texts.items()}
    answers = {}
    for name, by_row in comparison.answers.items():
        if row.id in by_row:
            answers[name] = make_harmless(by_row[row.id])
    return RowMaterial(row, common, answers)


def build_judge_request(material: RowMaterial, ask: VerdictRequest) -> Request:
    """Build the request for one verdict.

    Args:
        material: The row, made harmless.
        ask: Who is asked, and in which order.
    """
    row = material.row
    letters = LETTERS[: len(ask.order)]
    words = WORDS[row.language]
    answers = [material.answers[name] or words["no_answer"] for name in ask.order]
    # Of what is shown and nothing else, in no order: both orders share it, and another system does not change it.
    texts = [*material.common.values(), *answers]
    mark = draw_nonce(*sorted(texts))
    fences = {name: fence_text(name, text, mark) for name, text in material.common.items()}
    references = [fence for name, fence in fences.items() if name.startswith("reference")]
    about_reference = words["no_reference"]
    if references:
        about_reference = words[row.subset]
    answer_fences = []
    for letter, text in zip(letters, answers, strict=True):
        answer_fences.append(fence_text(f"answer {letter}", text, mark))
    system_prompt, user_prompt = ask.judge.prompts[row.language]
    content = user_prompt.fill(
        mark=mark,
        character="\n".join([fences["role"], fences["description"]]),
        question=fences["question"],
        reference="\n".join([about_reference, *references]),
        answers="\n\n".join(answer_fences),
        letters=words["joined"].join(letters),
    )
    messages = (system(system_prompt.text), user(content))
    sampling = ask.judge.sampling(len(letters))
    tag = f"judge/{ask.judge.settings.name}/{row.id}"
    return Request(messages, sampling, 0, ask.judge.schema, tag, words["repair"], quotes=False)


def select_references(row: Row) -> Sequence[str]:
    """Select what a judge is shown of a row's references."""
    texts = row.references
    if row.subset == "general":
        texts = (row.raw_reference or "",)
    return [text for text in dict.fromkeys(texts) if text.strip()][:3]


# Words that lead to a verdict without naming one or telling whose it is. With any other, nobody can say without
# understanding the text whether the object is quoted, so a longer list would be a worse guard.
_HARMLESS: Final = re.compile(
    r"(?:[\s:：,，.。!！*#`-]|here['’]s\b|\b(?:sure|certainly|ok|okay|here|below|is|my|the|a|as|in|final|verdict|"
    r"judge?ment|evaluation|ranking|json|object|format|done)\b|好的|当然|以下|下面|是|为|我的|最终|评判|裁决|排名|结果|如下)*+",
    re.IGNORECASE,
)
_TEXT: Final = r'"(?:[^"\\]|\\.)*+"'
# Tried at every place, also within what was found: a stray quotation mark before it hides no member.
_MEMBER: Final = re.compile(rf"(?<!\\)(?=({_TEXT})\s*+:\s*+({_TEXT}))", re.DOTALL)


def find_copied(request: Request, reply: str) -> str | None:
    """Find the shown text that a reply has a reason from, such as ``answer A``; ``None`` for none.

    A judge whose reason is, word for word, that of a verdict that it was shown repeats that verdict. The order of keys,
    escapes and white space make no difference. Thoughts marked as such may quote anything.
    """
    reply_reasons = _find_reasons(strip_thoughts(reply))
    if reply_reasons:
        for name, text in read_fences(request.messages[-1].content).items():
            if not reply_reasons.isdisjoint(_find_reasons(text)):
                return name
    return None


def refuse_prose(reply: str) -> None:
    """Refuse a reply that is more than one JSON object, at most in a code fence and with words that say nothing.

    Raises:
        UnacceptableError: With the kind ``malformed``.
    """
    json_part = find_json(strip_thoughts(reply))
    if not _HARMLESS.fullmatch(json_part.before + json_part.after):
        raise UnacceptableError("says more than its verdict, which it may quote or contradict", "malformed")
    json.loads(json_part.source, strict=False, object_pairs_hook=_refuse_duplicates)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) < len(pairs):
        raise UnacceptableError("says more than one thing under one key", "malformed")


# A row's texts are shown in both orders and in every list.
@functools.lru_cache(maxsize=256)
def _find_reasons(text: str) -> frozenset[str]:
    """Find what JSON in a text, be it whole or broken, has under the key ``reason``."""
    reasons = set()
    for key, value in _MEMBER.findall(text):
        with suppress(ValueError):
            if json.loads(key) == "reason":
                reasons.add("".join(json.loads(value, strict=False).split()))
    return frozenset(reasons)


_LONGEST_REASON = 2_000
#: By how much a verdict on a pair puts the first answer before the second.
_LEADS: Final = {"A": 1, "B": -1, "tie": 0}


class JudgeReply(NamedTuple):
    """A judge's reply about the answers, in the order shown.

    Attributes:
        ranks: From 1 (best); answers that tie share the mean of their places. ``None`` for a copied verdict.
        reasons: One for each answer, or a single one for a pair; cut at 2,000 characters.
        copied: The shown text that the judge repeated a verdict from, such as ``answer A``, instead of giving its own.
        lead: Log odds of the first answer over the second; ``None`` for a verdict in words.
    """

    ranks: tuple[float, ...] | None
    reasons: tuple[str, ...]
    copied: str | None = None
    lead: float | None = None


def accept_verdicts(judges: Mapping[str, Judge]) -> Accept[JudgeReply]:
    """Make the `accept` for the requests of some judges, by their parsers, which are also their schemas' names.

    Returns:
        A function that raises `UnacceptableError` for whatever is not a verdict, saying why.
    """

    def accept(request: Request, reply: Reply) -> JudgeReply:
        if request.schema is None:
            return _read_odds(reply)
        prompt = request.messages[-1].content
        source = find_copied(request, reply.text)
        if source is not None:
            return JudgeReply(None, (), source)
        answers = sum(name.startswith("answer ") for name in read_fences(prompt))
        judge = judges[request.schema.name]
        read: Callable[[Any], JudgeReply] = _read_pair
        if judge.design == "listwise":
            read = functools.partial(_read_ranking, LETTERS[:answers])
        verdict = accept_json(request.schema, read)(request, reply)
        refuse_prose(reply.text)
        for language, (system_prompt, _) in judge.prompts.items():
            leak = make_leak_check(language, prompt, (system_prompt.text,))
            if any(map(leak, verdict.reasons)):
                raise UnacceptableError("repeats the instructions instead of giving a reason", "malformed")
        return verdict

    return accept


def _read_pair(value: Mapping[str, Any]) -> JudgeReply:
    """Read one verdict, or one for each criterion: the answer that is better by more criteria is better."""
    if "better" in value:
        lead, reasons = _LEADS[value["better"]], [value["reason"]]
    else:
        lead, reasons = 0, []
        for name, criterion in value.items():
            better = criterion["better"]
            lead += _LEADS[better]
            reasons.append(f"{name} ({better}): {criterion['reason']}")
    reason = " ".join(reasons)[:_LONGEST_REASON]
    return JudgeReply(compute_mid_ranks((0, lead)), (reason,))


#: The share of the first token's probability that the two letters must have: with less, something else is likelier.
_LEAST_MASS = 0.5


def _read_odds(reply: Reply) -> JudgeReply:
    """Read a letter by the probabilities of both; one not among the likeliest tokens counts as the last of them."""
    shares = dict.fromkeys(LETTERS[:2], 0.0)
    least = 1.0
    try:
        first_token = reply.raw["choices"][0]["logprobs"]["content"][0]
        for option in first_token["top_logprobs"]:
            share = math.exp(float(option["logprob"]))
            least = min(least, share)
            token = str(option["token"]).strip().upper()
            if token in shares:
                shares[token] += share
    except (KeyError, IndexError, TypeError, ValueError):
        problem = "came without log probabilities; this server needs another judge"
        raise UnacceptableError(problem, "malformed") from None
    first, second = shares.values()
    # Not below: a server's NaN is neither.
    if not first + second >= _LEAST_MASS:
        raise UnacceptableError("begins with neither letter", "malformed")
    least = max(least, 1e-12)
    odds = max(first, least) / max(second, least)
    lead = math.log(odds)
    return JudgeReply(compute_mid_ranks((0, lead)), (), lead=lead)


def _read_ranking(letters: str, value: Mapping[str, Any]) -> JudgeReply:
    entries = {}
    for entry in value["ranking"]:
        letter = entry["answer"].strip().removeprefix("answer ").upper()
        if letter in entries:
            raise UnacceptableError(f"ranks answer {letter!r:.20} twice", "malformed")
        entries[letter] = entry
    missing = ", ".join(letter for letter in letters if letter not in entries)
    unknown = ", ".join(letter for letter in entries if letter not in letters)
    if missing or unknown:
        reason = f"missing: {missing or 'none'}; unknown: {unknown or 'none':.80}"
        raise UnacceptableError(f"does not rank each answer once ({reason})", "malformed")
    # One rank, or one for each criterion: their sum decides.
    rank_sums = [0.0] * len(letters)
    for name, rank in entries[letters[0]].items():
        if isinstance(rank, int):
            ranks = compute_mid_ranks([entries[letter][name] for letter in letters])
            rank_sums = list(map(operator.add, rank_sums, ranks))
    reasons = [entries[letter]["reason"][:_LONGEST_REASON] for letter in letters]
    return JudgeReply(compute_mid_ranks(rank_sums), tuple(reasons))
