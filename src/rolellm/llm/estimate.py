"""What it would take to ask: calls, tokens and US dollars, expected and at worst; nothing is asked.

What each case takes for granted (the first our choice, the second a bound):

- expected: one request in ten is asked twice; replies are half as long as they may be; nothing is cached; the models
  answer in proportion to how many calls they take at once.
- worst: every request is asked `max_attempts` times, each prompt has as many tokens as it has bytes, each reply is as
  long as it may be, and the dearest model answers: what a budget sets aside.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rolellm.core.errors import SettingsError
from rolellm.core.result import Result
from rolellm.core.table import Table
from rolellm.llm.model import Model, Request, Usage
from rolellm.llm.tokens import TokenCounter, count_most_prompt_tokens

if TYPE_CHECKING:
    from rolellm.llm.settings import ModelSettings

#: A batch costs half (OpenAI's Batch API).
BATCH_SHARE = 0.5
# How long a reply is, as a share of its limit.
_EXPECTED_SHARE = 0.5
# One request in this many is asked twice.
_ASKED_AGAIN = 10
# Bytes of a reply's token, as which a repair may count it.
_REPAIR_BYTES = 6


@dataclass(frozen=True, slots=True)
class Case:
    """One case of an estimate.

    Attributes:
        calls: How many calls go out.
        tokens: Of all of them.
        cost: US dollars; ``None`` where no model has a price.
    """

    calls: int = 0
    tokens: Usage = field(default_factory=Usage)
    cost: float | None = None

    def __add__(self, addend: Case) -> Case:
        cost = None
        if self.cost is not None or addend.cost is not None:
            cost = (self.cost or 0.0) + (addend.cost or 0.0)
        return Case(self.calls + addend.calls, self.tokens + addend.tokens, cost)


@dataclass(frozen=True, slots=True, repr=False)
class Estimate(Result):
    """Calls, tokens and cost of some requests; estimates of several stages add up.

    Attributes:
        requests: How many there are.
        expected: About this.
        worst: Never more than this.
        max_attempts: Calls for one request at worst.
        exact: Whether prompts were counted by a tokenizer, for the expected case.
        batch: Whether it is a batch, at half the price.
        unpriced: Models without a price.
    """

    requests: int
    expected: Case
    worst: Case
    max_attempts: int
    exact: bool = False
    batch: bool = False
    unpriced: tuple[str, ...] = ()

    def __add__(self, addend: Estimate) -> Estimate:
        return replace(
            self,
            requests=self.requests + addend.requests,
            expected=self.expected + addend.expected,
            worst=self.worst + addend.worst,
            max_attempts=max(self.max_attempts, addend.max_attempts),
            exact=self.exact and addend.exact,
            unpriced=tuple(dict.fromkeys((*self.unpriced, *addend.unpriced))),
        )

    def tables(self) -> tuple[Table]:
        """Build the table of both cases."""
        columns = ["", "calls", "prompt tokens", "reply tokens", "US dollars"]
        rows = []
        for name, case in {"expected": self.expected, "at worst": self.worst}.items():
            tokens, cost = case.tokens, format_dollars(case.cost)
            rows.append((name, case.calls, tokens.prompt, tokens.completion, cost))
        return (Table.from_rows(f"{self.requests:,} requests; no model was asked", columns, rows),)

    def remarks(self) -> list[str]:
        """Return the assumptions behind the numbers, in sentences."""
        sentences = []
        if not self.exact:
            sentences.append("Tokens are estimated; `tokenizer` in the settings file counts them.")
        if self.batch:
            sentences.append("A batch costs half.")
        if self.unpriced:
            sentences.append(f"No price is given for {', '.join(self.unpriced)}.")
        return sentences


def estimate(
    requests: Iterable[Request],
    models: Sequence[Model | ModelSettings],
    *,
    max_attempts: int = 5,
    counter: TokenCounter | None = None,
    batch: bool = False,
) -> Estimate:
    """Estimate calls, tokens and cost of requests, without opening a socket or reading a journal.

    Args:
        requests: Each is looked at once and let go.
        models: Who would be asked.
        max_attempts: The most calls for one request.
        counter: Counts tokens for the expected case; by default by estimate.
        batch: Whether they go as a batch, at half the price.

    Raises:
        SettingsError: For no models.
    """
    if not models:
        raise SettingsError("there is no model to ask; name an endpoint")
    counter = counter or TokenCounter()
    count = prompt_tokens = bound = longest = 0
    for request in requests:
        limit = request.sampling.max_tokens
        prompt_tokens += counter.request(request)
        count += 1
        longest += limit
        # As a budget counts: a bound must not depend on the tokenizer being the right one.
        bound += count_most_prompt_tokens(request) + len(request.repair.encode())
        if request.repair and request.quotes:
            bound += _REPAIR_BYTES * limit
    calls = count
    if max_attempts > 1:
        calls += math.ceil(count / _ASKED_AGAIN)
    calls_each = calls / max(count, 1)
    reply_tokens = longest * _EXPECTED_SHARE
    expected = Usage(round(prompt_tokens * calls_each), round(reply_tokens * calls_each))
    worst = Usage(bound * max_attempts, longest * max_attempts)
    expected_cost, worst_cost = _price_cases(models, expected, worst, BATCH_SHARE if batch else 1.0)
    return Estimate(
        requests=count,
        expected=Case(calls, expected, expected_cost),
        worst=Case(count * max_attempts, worst, worst_cost),
        max_attempts=max_attempts,
        exact=counter.exact,
        batch=batch,
        unpriced=tuple(model.name for model in models if not model.price),
    )


def _price_cases(
    models: Sequence[Model | ModelSettings], expected: Usage, worst: Usage, share: float
) -> tuple[float | None, float | None]:
    """Price the expected case by all models as they are asked, the worst by the dearest."""
    if not any(model.price for model in models):
        return None, None
    mean = statistics.fmean(
        [model.price.cost(expected) for model in models], weights=[model.concurrency for model in models]
    )
    dearest = max(model.price.worst.cost(worst) for model in models)
    return share * mean, share * dearest


def format_dollars(cost: float | None) -> str:
    """An amount for people: to the cent, small ones to four digits.

    >>> format_dollars(12.345), format_dollars(0.0012344), format_dollars(None)
    ('12.35', '0.001234', 'no price')
    """
    if cost is None:
        return "no price"
    if 0 < cost < 1:
        return f"{cost:.4g}"
    return f"{cost:,.2f}"
