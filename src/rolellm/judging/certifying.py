"""Examine a judge model: a judging run of a role's own replies against planted losers, and its certificate."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from rolellm.core.errors import SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.folders import use_working_folder
from rolellm.core.records import Row
from rolellm.core.settings import dump, read, suggest_keywords
from rolellm.judging.certificate import CERTIFICATE, KIND, Certificate
from rolellm.judging.overlap_judge import make_words_judge
from rolellm.judging.records import Comparison, System
from rolellm.judging.run import Judging, JudgingOutcome, load_judged_rows
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.systems import NULL_MODEL, OTHER_ROLE, draw_loser, group_rows, make_canaries, plant_losers
from rolellm.judging.verdicts import RowValues, Tally
from rolellm.llm.llm import LLM
from rolellm.models.prompts.fences import LIMIT
from rolellm.runs import Plan, Records, run_step

DEFAULT_JUDGE: Final = "role-pair"
DEFAULT_CONFIG: Final = "sample"
DEFAULT_ROWS: Final = 40
#: The baseline of a certificate's pairs, and the canaries that other runs do not have.
OWN: Final = "own reply"
OTHER_QUESTION, SHUFFLED, PADDED = "canary: another question", "canary: shuffled words", "canary: padding"
#: Settings of judging that an examination has; the others must be as by default.
_USED: Final = ("config", "split", "judges", "limit", "roles", "subset", "data_dir", "max_unscored", "seed", "budget")


def make_known_pairs(rows: Sequence[Row], size: int, seed: int) -> Comparison:
    """Compare roles' own replies with replies that should lose.

    The own reply is the released RoleGPT's or, for a general row, the first reference: what a judge is shown as the
    reference is never among the answers.

    Args:
        rows: All rows of the split.
        size: Rows to draw.
        seed: Random seed.
    """
    replies = get_own_replies(rows)
    # With padding, a longer reply would be cut where it is shown.
    able = [row for row in rows if 0 < len(replies.get(row.id, "")) <= LIMIT // 2]
    able.sort(key=lambda row: hash_json(["certificate", seed, row.id]))
    selected = able[:size]
    answers: dict[str, dict[str, str]] = defaultdict(dict)
    answers[OWN] = {row.id: replies[row.id] for row in selected}
    for system, texts in make_canaries(selected):
        answers[system.name] = texts
    answers[OTHER_ROLE] = plant_losers(rows, replies, selected, size)
    answers[OTHER_QUESTION] = plant_other_replies(rows, replies, selected)
    for row in selected:
        own = replies[row.id]
        shuffled = _shuffle(row, own)
        if shuffled != own:
            answers[SHUFFLED][row.id] = shuffled
        answers[PADDED][row.id] = f"{own}\n\n{answers[NULL_MODEL][row.id]}"
    # Of one role alone, nobody else said anything.
    answers = {name: texts for name, texts in answers.items() if texts}
    systems = [System(name, "baseline" if name == OWN else "canary") for name in answers]
    return Comparison(selected, systems, answers)


def get_own_replies(rows: Sequence[Row]) -> dict[str, str]:
    """Map each row to the role's own reply, where there is one that is not shown to a judge as the reference."""
    replies: dict[str, str] = {}
    for row in rows:
        reply = row.rolegpt
        if not reply and row.subset == "general" and row.references:
            reply = row.references[0]
        if reply and reply.strip():
            replies[row.id] = reply.strip()
    return replies


def plant_other_replies(rows: Sequence[Row], replies: Mapping[str, str], among: Sequence[Row]) -> dict[str, str]:
    """Plant what the same role said to another question; a row for which there is nothing is absent.

    Args:
        rows: All rows of the split.
        replies: The roles' own, by row id.
        among: The rows that are judged.
    """
    by_role = group_rows(rows, replies, "language", "role")
    losers: dict[str, str] = {}
    for row in among:
        rivals = by_role[row.language, row.role]
        rivals = [rival for rival in rivals if rival.question != row.question]
        draw_loser(losers, row, rivals, replies)
    return losers


def _shuffle(row: Row, text: str) -> str:
    """Shuffle the words of a text, or its pairs of characters in Chinese."""
    joiner, units = " ", text.split()
    if row.language == "zh":
        joiner, units = "", re.findall("(?s)..?", text)
    random.Random(row.id).shuffle(units)
    return joiner.join(units)


@dataclass(frozen=True)
class Certifying(Judging):
    """A judging run on known pairs; its fields are those of `Judging`.

    Raises:
        SettingsError: Where a judge ranks lists, or there are several.
    """

    kind: ClassVar[str] = KIND

    def __post_init__(self) -> None:
        super().__post_init__()
        designs = [judge.design for judge in self.judges]
        if designs != ["pairwise"]:
            raise SettingsError(f"--judge {self.judges[0].settings.name}: a certificate takes one judge of pairs")

    def plan(self, llm: LLM) -> Plan[JudgingOutcome]:
        """Request every verdict.

        Raises:
            SettingsError: For several models.
        """
        names = {str(model.identity.get("model", model.name)) for model in llm.models}
        if len(names) > 1:
            raise SettingsError(f"examine one judge model at a time; the settings name {', '.join(sorted(names))}")
        return (yield from super().plan(llm))

    def make_certificate(self, outcome: JudgingOutcome) -> Certificate:
        """Make the certificate of the judge's verdicts."""
        tally = Tally(self.comparison, outcome.judgements)
        names = self.comparison.canaries
        canaries = {}
        for name in sorted(names):
            canaries[name] = tally.estimate(tally.values(name, "win").items())
        wins: RowValues = []
        agreement: RowValues = []
        for pair in tally.verdicts.pairs:
            wins.append((pair.row, pair.mean))
            agreement.append((pair.row, float(pair.agrees)))
        unscored = [item for item in outcome.judgements if item.ranks is None]
        missing = [item for item in unscored if item.copied not in names]
        share = len(missing) / len(outcome.judgements)
        (judge,) = outcome.result.judges
        certificate = Certificate(judge.name, canaries, tally.estimate(wins), tally.estimate(agreement), share)
        return replace(
            certificate,
            max_unscored=self.settings.max_unscored,
            models=tuple(judge.model),
            prompts=judge.prompts,
            config=self.data.config,
            split=self.data.split,
            rows=len(self.comparison.rows),
        )

    def records(self, outcome: JudgingOutcome) -> Records:
        """Return the certificate, and the files of a judging run."""
        return {CERTIFICATE: self.make_certificate(outcome).to_dict(), **super().records(outcome)}


@suggest_keywords(JudgingSettings)
def certify(llm: Any, dataset: Any = None, *, out: str | Path | None = None, **settings: Any) -> Certificate:
    """Examine a judge model before its win rates are believed.

    A later `judge` shows the verdict next to its win rates if the certificate's folder lies beside the run's folder, or
    in the current directory.

    Args:
        llm: The model: a settings file, a dict of the same keys, a `Model`, or `rolellm.LLM`.
        dataset: Rows with replies of roles; by default those of ``config`` and ``split``.
        out: The certificate's folder; by default a new temporary one.
        settings: ``config`` (by default sample), ``split``, ``judges`` (by default role-pair), ``limit`` (rows, by
            default 40), ``seed``, ``roles``, ``subset``, ``data_dir``, ``max_unscored`` and ``budget`` of
            `JudgingSettings`.

    Raises:
        SettingsError: For several models, other settings, and rows without replies of roles.
        StoppedShortError: At the budget, on Ctrl-C or with a full disk; nothing that was paid for is lost.
        EndpointError: When no endpoint answers.
    """
    chosen = read(JudgingSettings, settings)
    examined = LLM.of(llm, {"words": make_words_judge}).with_budget(chosen.budget)
    step = prepare_certifying(dataset, chosen)
    with use_working_folder(KIND, out) as folder:
        run = run_step(step, examined, folder)
        return replace(step.make_certificate(run.result), folder=folder)


def prepare_certifying(dataset: Any, settings: JudgingSettings) -> Certifying:
    """Load what a judge is examined with.

    Raises:
        SettingsError: For settings that a certificate has no use for, rows without replies of roles, and as
            `Certifying`.
    """
    defaults = dump(read(JudgingSettings, {}))
    changed = [name for name, value in dump(settings).items() if value != defaults[name]]
    unused = [name for name in changed if name not in _USED]
    if unused:
        raise SettingsError(f"{', '.join(unused)}: a certificate has no such setting; it has {', '.join(_USED)}")
    if dataset is None:
        settings = replace(settings, config=settings.config or DEFAULT_CONFIG)
    data, rows = load_judged_rows({}, dataset, settings)
    comparison = make_known_pairs(rows, settings.limit or DEFAULT_ROWS, settings.seed)
    if not comparison.rows:
        raise SettingsError("these rows have no replies of roles to examine a judge with; try --config sample")
    judges = settings.judges or (DEFAULT_JUDGE,)
    return Certifying(comparison, replace(settings, judges=judges), data)
