"""A judge's certificate: how often planted losers win against a role's own reply, and whether the judge is fit.

`rolellm.judging.certifying` examines a model. Only figures are kept: the verdict is computed whenever one is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from rolellm.core.errors import DataError
from rolellm.core.fingerprint import hash_json
from rolellm.core.jsonl import read_json
from rolellm.core.result import Result
from rolellm.core.settings import dump
from rolellm.core.table import Interval, Table, TableRow
from rolellm.core.text import format_count
from rolellm.core.typed_json import read_as
from rolellm.judging.result import JudgedBy
from rolellm.runs import find_runs
from rolellm.scoring.statistics.intervals import Measured

KIND: Final = "certificate"
CERTIFICATE: Final = "certificate.json"
Verdict = Literal["fit", "unfit", "undecided"]
#: What the upper end of each canary's win rate must stay below, and that of all together. Half for each would fail a
#: judge that does not care about padding; half for all fails one that guesses.
MOST_WINS: Final = 0.65
MOST_TOGETHER: Final = 0.5
_PHRASES: Final[Mapping[Verdict, str]] = {
    "fit": "is fit",
    "unfit": "is unfit",
    "undecided": "is not shown to be fit; examine it with more rows",
}


@dataclass(frozen=True, slots=True, repr=False)
class Certificate(Result):
    """The examination of a judge model.

    Attributes:
        judge: The model's name.
        canaries: Canary to the share of its pairs that it wins, ties half; ``None`` where the two orders of its pairs
            contradict each other too often for one.
        together: The share of pairs that canaries win.
        consistency: Share of pairs whose two orders agree.
        unscored: Share of judgements without a verdict.
        max_unscored: The largest share with which a judge is fit.
        models: Identities of the endpoints.
        prompts: The judge's prompts, as `JudgedBy.prompts`.
        config: The rows' config.
        split: The rows' split.
        rows: The number of rows.
        folder: The run's folder.
    """

    judge: str
    canaries: dict[str, Measured]
    together: Measured
    consistency: Measured
    unscored: float
    max_unscored: float = 0.0
    models: tuple[dict[str, Any], ...] = ()
    prompts: dict[str, dict[str, Any]] = field(default_factory=dict)
    config: str | None = None
    split: str | None = None
    rows: int = 0
    folder: Annotated[Path | None, Field(exclude=True)] = None

    @classmethod
    def read(cls, path: Path) -> Certificate:
        """Read a certificate from its file.

        Raises:
            DataError: For another content; names the first place that does not fit.
        """
        return replace(read_as(cls, read_json(path), "the certificate", path=path), folder=path.parent)

    def to_dict(self) -> dict[str, Any]:
        """Return what ``rolellm judge --certify --json`` prints: the figures, and the verdict on them."""
        return {"verdict": self.verdict, "sentence": self.sentence, **dump(self)}

    @property
    def verdict(self) -> Verdict:
        """``fit``, ``unfit``, or ``undecided`` where too few rows were judged to tell."""
        grades = [is_failed for _, is_failed in self._list_problems()]
        if not grades:
            return "fit"
        return "unfit" if True in grades else "undecided"

    def _list_problems(self) -> Iterator[tuple[str, bool]]:
        """Yield what keeps the judge from being fit, each with whether more rows would not change it."""
        if self.unscored > self.max_unscored:
            yield f"{self.unscored:.1%} of the verdicts are missing; at most {self.max_unscored:.1%} may be", True
        for name, rate, limit in self._list_rates():
            if rate is None:
                yield f"{name}: no verdicts, or both orders contradict each other", True
            elif rate.ends is None or rate.ends[1] >= limit:
                wins = f"{name} wins {_format_share(rate)}; the interval must stay below {limit:.0%}"
                yield wins, rate.mean >= limit

    def _list_rates(self) -> Iterator[tuple[str, Measured, float]]:
        """Yield the win rate of each canary and of all together, with what its interval must stay below."""
        for name, rate in self.canaries.items():
            yield name.removeprefix("canary: "), rate, MOST_WINS
        yield "all canaries together", self.together, MOST_TOGETHER

    @property
    def line(self) -> str:
        """The verdict with its figures, as a later win rate shows it."""
        return f"{self.verdict} ({self._describe_figures()})"

    def _describe_figures(self) -> str:
        facts = []
        rates = [(rate, name) for name, rate in self.canaries.items() if rate is not None]
        if rates:
            worst, name = max(rates, key=lambda item: item[0].mean)
            canary = f"{name.removeprefix('canary: ')}, n = {worst.n}"
            facts.append(f"planted losers win up to {_format_share(worst)} ({canary})")
        if self.consistency is not None:
            facts.append(f"both orders agree for {_format_share(self.consistency)}")
        source = self.config or "own rows"
        facts.append(f"{source}, {format_count(self.rows, 'row')}")
        return "; ".join(facts)

    @property
    def sentence(self) -> str:
        """The verdict with its figures and reasons, in words."""
        phrase = _PHRASES[self.verdict]
        sentences = [f"The judge {self.judge} {phrase}: {self._describe_figures()}."]
        for problem, _ in self._list_problems():
            first, rest = problem[:1].upper(), problem[1:]
            sentences.append(f"{first}{rest}.")
        return " ".join(sentences)

    def remarks(self) -> tuple[str, ...]:
        """Return the verdict in words, and where it is kept."""
        if self.folder is None:
            return (self.sentence,)
        place = f"Every verdict: {self.folder}. Later runs of `rolellm judge` in this folder show the certificate."
        return (self.sentence, place)

    def tables(self) -> tuple[Table]:
        """Build the table of the canaries' win rates."""
        rows = []
        for name, rate, limit in self._list_rates():
            needed = f"interval below {limit:.0%}"
            rows.append(TableRow((name,), (rate, needed)))
        rows.append(TableRow(("both orders agree",), (self.consistency, "")))
        title = f"Certificate of {self.judge}: wins against the role's own reply"
        heads = ("Share %", "Needed")
        return (Table(title, ("Pairs with",), heads, tuple(rows), left=("Needed",)),)


def _format_share(share: Interval) -> str:
    percent = 100 * share.mean
    return f"{percent:.0f} % {share.format_ends(0, 100)}".rstrip()


def find_certificate(judge: JudgedBy, homes: Sequence[Path], config: str | None) -> str | None:
    """Find what the certificate of a judge's endpoints says: the same config's before others, then that of most rows.

    It counts where it examined one of the judge's prompts, as it is now; any counts for a judge without prompts of
    pairs.

    Args:
        judge: The judge of a run.
        homes: Folders that may be a certificate's, or hold such folders.
        config: The config of what it judged.
    """
    endpoints = set(map(hash_json, judge.model or ()))
    prompts = {prompt["hash"] for prompt in judge.prompts.values()}
    certificates = []
    for home in homes:
        for run in find_runs(home, KIND):
            with suppress(DataError, OSError):
                certificate = Certificate.read(run.folder / CERTIFICATE)
                examined = set(map(hash_json, certificate.models))
                hashes = {prompt.get("hash") for prompt in certificate.prompts.values()}
                is_of_prompts = not prompts or bool(prompts & hashes)
                if endpoints and endpoints <= examined and is_of_prompts:
                    certificates.append(certificate)
    if not certificates:
        return None
    best = max(certificates, key=lambda item: (item.config == config, item.rows))
    return best.line
