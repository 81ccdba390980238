"""A judge's certificate: what a judge model does where the right verdict is known, and whether it is fit.

`rolellm.judging.certifying` examines a model. What a fit judge must do is in `CRITERIA`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import Field

from rolellm.core.errors import DataError
from rolellm.core.fingerprint import hash_json
from rolellm.core.jsonl import read_json
from rolellm.core.result import Result
from rolellm.core.settings import dump
from rolellm.core.table import Cell, Interval, Table, TableRow
from rolellm.core.typed_json import read_as
from rolellm.judging.people.agreement import ENOUGH_ROWS
from rolellm.judging.result import JudgedBy
from rolellm.judging.summary import LEAST_LOSSES, is_beaten
from rolellm.judging.verdicts import LEAST_AGREEMENT
from rolellm.runs import find_runs
from rolellm.scoring.statistics.intervals import Measured

KIND: Final = "certificate"
CERTIFICATE: Final = "certificate.json"
#: ``words``: the judge says which is better. ``odds``: the log probabilities of its letter, over both orders.
Form = Literal["words", "odds"]
Verdict = Literal["fit", "fit by odds only", "unfit", "undecided"]
_RENEW: Final = "renew it with `rolellm judge --certify`"
HOW: Final[Mapping[Form | None, str]] = {None: "", "words": "in words", "odds": "by odds"}


class Criterion(NamedTuple):
    """What a fit judge must do: in words, as a condition on the measured share, and how that share is told."""

    words: str
    holds: Callable[[Interval], bool]
    phrase: str


def _lies_above(share: Interval, limit: float) -> bool:
    return share.ends is not None and share.ends[0] > limit


#: All thresholds of the certificate (our choice). Chance names 25 % of speakers; the best judges of PersonaEval 69 %.
CRITERIA: Final[Mapping[str, Criterion]] = {
    "speaker": Criterion(
        "50 % or more, interval above 25 %",
        lambda share: share.mean >= 0.5 and _lies_above(share, 0.25),
        "names the speaker of {figure} (chance 25 %)",
    ),
    "loser wins": Criterion("interval below 50 %", is_beaten, "{subject} wins {figure}"),
    "longer wins": Criterion(
        "interval not above 50 %", lambda share: not _lies_above(share, 0.5), "{subject} wins {figure}"
    ),
    "order flips": Criterion(
        "under 33.3 %; not needed by odds", lambda share: share.mean < LEAST_AGREEMENT, "{figure} flip with the order"
    ),
    "same again": Criterion("90 % or more", lambda share: share.mean >= 0.9, "{figure} stay the same when asked again"),
    "no verdict": Criterion("5 % or less", lambda share: share.mean <= 0.05, "{figure} have no verdict"),
    "kappa with people": Criterion(
        f"interval above 0, from {ENOUGH_ROWS} rows on",
        lambda kappa: _lies_above(kappa, 0),
        "kappa with people {figure}",
    ),
}


@dataclass(frozen=True, slots=True)
class CertificateTest:
    """One test.

    Attributes:
        criterion: Its key in `CRITERIA`.
        subject: Which loser; empty where there is one such test.
        form: How the judge was asked; ``None`` for the speaker's letter.
        value: The share, or kappa.
        passed: ``None`` where nothing is needed, or the rows are too few to tell.
    """

    criterion: str
    subject: str = ""
    form: Form | None = None
    value: Measured = None
    passed: bool | None = None

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"{self.criterion}: {self.subject}" if self.subject else self.criterion

    @property
    def figure(self) -> str:
        """Its value with the interval, as text."""
        if self.value is None:
            return "not measured"
        scale, unit = (1, "") if self.criterion == "kappa with people" else (100, " %")
        ends = self.value.format_ends(0 if unit else 2, scale)
        return f"{self.value.mean * scale:.{0 if unit else 2}f}{unit} {ends}".strip()

    def __str__(self) -> str:
        return CRITERIA[self.criterion].phrase.format(subject=self.subject, figure=self.figure)


def grade(criterion: str, value: Interval | None, subject: str = "", form: Form | None = None) -> CertificateTest:
    """Grade a measured value by its criterion; what does not pass on few rows is not known to fail."""
    passed = None
    if value and not (form == "odds" and criterion == "order flips"):
        least = ENOUGH_ROWS if criterion == "kappa with people" else LEAST_LOSSES
        passed = True if CRITERIA[criterion].holds(value) else None if value.n < least else False
    return CertificateTest(criterion, subject, form, value, passed)


@dataclass(frozen=True, slots=True, repr=False)
class Certificate(Result):
    """What a judge model was found to do.

    Attributes:
        judge: The model's name.
        verdict: ``fit``, ``fit by odds only`` (its words are not, its log probabilities over both orders are),
            ``unfit``, or ``undecided`` (too few rows).
        sentence: The verdict with its numbers, in words.
        line: The same, as a later win rate shows it.
        tests: Every test with its interval.
        models: Identities of the endpoints.
        fingerprint: SHA-256 over them.
        prompts: How each form was asked: judge, version, hash.
        config: The rows' config.
        split: The rows' split.
        rows: The number of rows.
        people: Who ranked, and how many rows.
        folder: The run's folder.
    """

    judge: str
    verdict: Verdict
    sentence: str
    line: str
    tests: tuple[CertificateTest, ...]
    models: tuple[dict[str, Any], ...]
    fingerprint: str
    prompts: dict[str, dict[str, Any]]
    config: str | None = None
    split: str | None = None
    rows: int = 0
    people: dict[str, Any] | None = None
    folder: Annotated[Path | None, Field(exclude=True)] = None

    @classmethod
    def from_dict(cls, value: Mapping[str, Any], path: Path | None = None) -> Certificate:
        """Read a certificate from JSON.

        Raises:
            DataError: For another value; names the first place that does not fit.
        """
        return replace(read_as(cls, value, "the certificate", path=path), folder=path and path.parent)

    def to_dict(self) -> dict[str, Any]:
        """Return what ``rolellm judge --certify --json`` prints."""
        return dump(self)

    def tables(self) -> tuple[Table]:
        """Build the table of its tests."""
        values: dict[str, dict[Form | None, CertificateTest]] = defaultdict(dict)
        for test in self.tests:
            values[test.name][test.form] = test
        rows = []
        for name, by_form in values.items():
            tests = [
                by_form.get(form) or (by_form.get(None) if form == "words" else None) for form in ("words", "odds")
            ]
            cells: list[Cell] = [_format_cell(test) if test else None for test in tests]
            needed = CRITERIA[next(iter(by_form.values())).criterion].words
            rows.append(TableRow((f"{name[:1].upper()}{name[1:]}",), (*cells, needed)))
        columns = ("In words", "By odds", "Needed")
        return (Table(f"Certificate of {self.judge}", ("Test",), columns, tuple(rows), left=columns),)

    def remarks(self) -> tuple[str]:
        """Return the verdict in words."""
        return (self.sentence,)


def _format_cell(test: CertificateTest) -> Cell:
    if test.value is None:
        return None
    mark = {True: "", False: " ✗", None: ""}[test.passed]
    return f"{test.figure}, n = {test.value.n:,}{mark}"


def decide_verdict(tests: Sequence[CertificateTest]) -> Verdict:
    """Decide by the tests: a form is fit if it passes each of its own, and the judge tells who speaks."""
    status: dict[Form, bool | None] = {}
    forms: tuple[Form, Form] = ("words", "odds")
    for form in forms:
        needed = [test for test in tests if test.form in (None, form) and _is_needed(test)]
        grades = [test.passed for test in needed]
        measured = any(test.form == form and test.criterion == "loser wins" and test.value for test in needed)
        status[form] = False if False in grades or not measured else None if None in grades else True
    if status["words"]:
        return "fit"
    if status["odds"]:
        return "fit by odds only"
    return "undecided" if None in status.values() else "unfit"


def _is_needed(test: CertificateTest) -> bool:
    optional = (test.form == "odds" and test.criterion == "order flips") or test.criterion == "kappa with people"
    return test.value is not None and not (optional and test.passed is None)


def describe_tests(judge: str, verdict: Verdict, tests: Sequence[CertificateTest], source: str) -> tuple[str, str]:
    """Say a verdict with its numbers: as a sentence, and as the line next to a later win rate."""
    has_words = any(test.form == "words" for test in tests)
    form: Form = "words" if has_words and verdict != "fit by odds only" else "odds"
    facts = [str(test) for test in tests if test.criterion == "speaker"]
    losers = [test for test in tests if test.criterion == "loser wins" and test.form == form]
    wins = {test: test.value for test in losers if test.value}
    if wins:
        worst = max(wins, key=lambda test: wins[test].mean)
        facts.append(f"planted losers win up to {worst.figure} ({worst.subject}, n = {wins[worst].n}) {HOW[form]}")
    facts += [f"{test} {HOW['words']}" for test in tests if test.criterion == "order flips" and test.form == "words"]
    shown = "; ".join([*facts, source])
    missed = ""
    for passed, words in ((False, "Not met"), (None, "Too few rows to tell")):
        graded = [f"{HOW[test.form]} {test}".strip() for test in tests if _is_needed(test) and test.passed is passed]
        missed += f" {words}: {'; '.join(graded)}." if graded else ""
    phrase = {
        "fit": "is fit",
        "fit by odds only": "is fit by its odds only (--judge role-odds)",
        "unfit": "is unfit",
        "undecided": f"is not shown to be fit; examine it with more rows, {LEAST_LOSSES} of each kind or more",
    }[verdict]
    return f"The judge {judge} {phrase}: {shown}.{missed}", f"{verdict} ({shown})"


def find_certificate(judge: JudgedBy, homes: Sequence[Path], config: str | None) -> str | None:
    """Find what the certificate of a judge's endpoints says: the same config's before others, then that of most rows.

    One that examined a model of this name in another form, or with other prompts, is said to be outdated.

    Args:
        judge: The judge of a run.
        homes: Folders that may be a certificate's, or hold such folders.
        config: The config of what it judged.
    """
    wanted, certificates = {hash_json(identity) for identity in judge.model or ()}, []
    names, is_outdated = {judge.name, *(identity.get("model") for identity in judge.model or ())}, False
    for run in (run for home in homes for run in find_runs(home, KIND)):
        is_outdated |= run.summary.get("judge") in names
        with suppress(DataError, OSError):
            certificate = Certificate.from_dict(read_json(run.folder / CERTIFICATE), run.folder / CERTIFICATE)
            if wanted and wanted <= set(map(hash_json, certificate.models)):
                certificates.append(certificate)
    best = max(certificates, key=lambda item: (item.config == config, item.rows), default=None)
    if best is None:
        return f"examined in another version or at another address; {_RENEW}" if is_outdated else None
    examined = {prompt.get("hash"): prompt.get("name") for prompt in best.prompts.values()}
    unexamined = [str(prompt.get("name")) for prompt in judge.prompts.values() if prompt.get("hash") not in examined]
    changed = [name for name in unexamined if name in examined.values()]
    missing = [name for name in unexamined if name not in changed]
    clauses = [best.line]
    clauses += [f"examined without {' and '.join(missing)}"] if missing else []
    clauses += [f"examined with other prompts of {' and '.join(changed)}; {_RENEW}"] if changed else []
    return "; ".join(clauses)
