"""From a judge's reply to ranks.

A verdict is one JSON object and nothing else (see `refuse_prose`) that follows the judge's schema and ranks each answer
once. Anything else is refused and asked again, except for a copied verdict: the same text would be copied again.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from rolellm.judging.judge_models import Judge
from rolellm.judging.orders import LETTERS
from rolellm.llm.json_reply import accept_json, find_json
from rolellm.llm.model import Accept, Reply, Request, UnacceptableError, strip_thoughts
from rolellm.models.prompts.fences import read_fences
from rolellm.models.prompts.leaks import make_leak_check

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
    """The name of the shown text that a reply has a reason from, such as ``answer A``; ``None`` for none.

    A judge whose reason is, word for word, that of a verdict that it was shown repeats that verdict. The order of keys,
    escapes and white space make no difference. Thoughts marked as such may quote anything.
    """
    reply_reasons = _find_reasons(strip_thoughts(reply))
    texts = read_fences(request.messages[-1].content) if reply_reasons else {}
    return next((name for name, text in texts.items() if reply_reasons & _find_reasons(text)), None)


def refuse_prose(reply: str) -> None:
    """Refuse a reply that is more than one JSON object, at most in a code fence and with words that say nothing.

    Raises:
        UnacceptableError: With the kind ``malformed``.
    """
    json_part = find_json(strip_thoughts(reply), "object")
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
    """An `accept` for the requests of some judges, by their parsers, which are also their schemas' names.

    Returns:
        A function that raises `UnacceptableError` for whatever is not a verdict, saying why.
    """

    def accept(request: Request, reply: Reply) -> JudgeReply:
        if request.schema is None:
            return _read_odds(reply)
        source = find_copied(request, reply.text)
        if source is not None:
            return JudgeReply(None, (), source)
        judge = judges[request.schema.name]
        assert judge.schema is not None
        answers = sum(name.startswith("answer ") for name in read_fences(request.messages[-1].content))
        read = _read_pair if judge.design == "pairwise" else _read_ranking
        verdict = accept_json(judge.schema, lambda value: read(value, answers))(request, reply)
        refuse_prose(reply.text)
        for language, (system_prompt, _) in judge.prompts.items():
            leak = make_leak_check(language, request.messages[-1].content, (system_prompt.text,))
            if any(map(leak, verdict.reasons)):
                raise UnacceptableError("repeats the instructions instead of giving a reason", "malformed")
        return verdict

    return accept


def _read_pair(value: Mapping[str, Any], answers: int) -> JudgeReply:
    """One verdict, or one for each criterion: the answer that is better by more criteria is better."""
    criteria = {"": value} if "better" in value else value
    lead = sum({"A": 1, "B": -1, "tie": 0}[criterion["better"]] for criterion in criteria.values())
    reasons = (
        f"{name} ({criterion['better']}): {criterion['reason']}" if name else criterion["reason"]
        for name, criterion in criteria.items()
    )
    return JudgeReply(compute_mid_ranks((0, lead)), (" ".join(reasons)[:_LONGEST_REASON],))


#: The least share of the first token's probability that the two letters must have (our choice).
_LEAST_MASS = 0.5


def _read_odds(reply: Reply) -> JudgeReply:
    """A letter, by the probabilities of both; one that is not among the likeliest tokens counts as the last of them."""
    try:
        first = reply.raw["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        likeliest = [(str(option["token"]).strip().upper(), float(option["logprob"])) for option in first]
    except (KeyError, IndexError, TypeError, ValueError):
        raise UnacceptableError(
            "came without log probabilities; this server needs another judge", "malformed"
        ) from None
    shares = [math.fsum(math.exp(of) for token, of in likeliest if token == letter) for letter in LETTERS[:2]]
    if not sum(shares) >= _LEAST_MASS:
        raise UnacceptableError("begins with neither letter", "malformed")
    least = math.exp(min(of for _, of in likeliest))
    a, b = (max(share, least, 1e-12) for share in shares)
    lead = math.log(a / b)
    return JudgeReply(compute_mid_ranks((0, lead)), (), lead=lead)


def _read_ranking(value: Mapping[str, Any], answers: int) -> JudgeReply:
    entries = {}
    for entry in value["ranking"]:
        letter = entry["answer"].strip().removeprefix("answer ").upper()
        if letter in entries:
            raise UnacceptableError(f"ranks answer {letter!r:.20} twice", "malformed")
        entries[letter] = entry
    letters = LETTERS[:answers]
    if set(entries) != set(letters):
        lacking = ", ".join(sorted(set(letters) - set(entries))) or "none"
        unknown = ", ".join(f"{letter!r:.20}" for letter in sorted(set(entries) - set(letters))[:5]) or "none"
        raise UnacceptableError(f"does not rank each answer once (missing: {lacking}; unknown: {unknown})", "malformed")
    # One rank, or one for each criterion: their sum decides.
    criteria = [name for name, rank in entries[letters[0]].items() if isinstance(rank, int)]
    ranks = [compute_mid_ranks([entries[letter][name] for letter in letters]) for name in criteria]
    rank_sums = [sum(of_answer) for of_answer in zip(*ranks, strict=True)]
    return JudgeReply(
        compute_mid_ranks(rank_sums), tuple(entries[letter]["reason"][:_LONGEST_REASON] for letter in letters)
    )


def compute_mid_ranks(values: Sequence[float]) -> tuple[float, ...]:
    """Places as given, as ranks from 1 in which those who tie share the mean of theirs.

    >>> compute_mid_ranks([1, 3, 1])
    (1.5, 3.0, 1.5)
    """
    return tuple(
        sum(rival < own for rival in values) + (sum(rival == own for rival in values) + 1) / 2 for own in values
    )
