"""A judging run from contest to result: asks, writes the folder, and refuses a run with too many missing verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rolellm.core.errors import JudgingError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.fingerprint import hash_json
from rolellm.core.text import listed
from rolellm.evaluation.score import rows_hash
from rolellm.judging.ask import JudgingOptions, Juror, ask_jury
from rolellm.judging.folder import RESULT, UNSCORED, is_judge_run, write_contest, write_judgements, write_manifest
from rolellm.judging.judge_models import Judge
from rolellm.judging.orders import planned
from rolellm.judging.result import ResultOptions, summarise
from rolellm.judging.systems import families_of, family_of, same_family
from rolellm.judging.types import Contest, Contestant
from rolellm.llm.model import RunOptions
from rolellm.llm.settings import shown
from rolellm.runtime.locks import locked

_LOCK = ".judge.lock"


@dataclass(frozen=True, slots=True)
class JudgingSetup:
    """Everything about a judging run but who takes part and who judges.

    Attributes:
        config: The data set's config, as results name it.
        split: Its split, likewise.
        dataset_fingerprint: Its content hash; by default a hash of the rows.
        options: In which orders, and how much of each answer.
        result: Resamples, seed and how many missing verdicts are too many.
        run: Attempts, budget, progress.
        models: What the manifest says of the models asked, such as `rolellm.llm.settings.LLMSettings.describe`.
        entry: What else the manifest says of how contestants and rows were chosen.
    """

    config: str | None = None
    split: str | None = None
    dataset_fingerprint: str | None = None
    options: JudgingOptions = field(default_factory=JudgingOptions)
    result: ResultOptions = field(default_factory=ResultOptions)
    run: RunOptions = field(default_factory=RunOptions)
    models: Mapping[str, Any] = field(default_factory=dict)
    entry: Mapping[str, Any] = field(default_factory=dict)


def run_judging(
    folder: str | Path, contest: Contest, judges: Sequence[Judge], jury: Sequence[Juror], setup: JudgingSetup
) -> dict[str, Any]:
    """Judge a contest into a run folder; a second run in the same folder asks only for what is new.

    Args:
        folder: New, or an earlier judging run's.
        contest: Rows and answers, see `rolellm.judging.systems.enter`.
        judges: At most one of each design.
        jury: Who judges; with several, the majority counts.
        setup: All else.

    Returns:
        The result, as ``result.json`` holds it (docs/judging.md lists its keys).

    Raises:
        JudgingError: When more verdicts are missing than allowed; the result is in the folder, marked invalid.
        StoppedShortError: At the budget, on Ctrl-C or with a full disk; nothing that was paid for is lost.
        EndpointError: When no endpoint answers.
        SettingsError: When nothing can be compared as asked, or the folder holds something else.
        RunInUseError: When another process judges in it.
    """
    folder = Path(folder)
    _check(folder, jury)
    # What cannot be asked is refused before an earlier run's files are touched.
    asks = planned(contest, judges, setup.options.design)
    with locked(folder, _LOCK):
        manifest = _manifest(contest, judges, jury, setup)
        (folder / RESULT).unlink(missing_ok=True)
        write_manifest(folder, manifest)
        write_contest(folder, contest)
        judged = ask_jury(folder, contest, asks, jury, setup.options, setup.run)
        write_judgements(folder, judged.judgements)
        found = summarise(contest, judged.judgements, manifest["judges"], setup.result)
        result = {
            "config": setup.config,
            "split": setup.split,
            **{key: value for key, value in found.items() if key not in ("config", "split")},
            "fingerprint": {"hash": manifest["hash"], "dataset": manifest["dataset"]},
            "spent": judged.spent.to_dict(),
        }
        write_json(folder / RESULT, result)
    missing = result["diagnostics"]["unscored"]
    if (missing["share"] or 0) > setup.result.max_unscored:
        raise JudgingError(_too_many(missing, folder))
    return result


def _check(folder: Path, jury: Sequence[Juror]) -> None:
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file; a judging run needs a folder")
    if folder.is_dir() and any(folder.iterdir()) and not is_judge_run(folder):
        others = [path.name for path in folder.iterdir() if path.name not in (".lock", _LOCK)]
        if others:
            raise SettingsError(f"{folder} holds other files ({listed(sorted(others))}); name another with --out")
    names = [juror.name for juror in jury]
    if not jury or len(set(names)) < len(names):
        raise SettingsError(f"jurors need different names, and there has to be one: {', '.join(names) or 'none given'}")


def _manifest(contest: Contest, judges: Sequence[Judge], jury: Sequence[Juror], setup: JudgingSetup) -> dict[str, Any]:
    """How it is judged, with a hash over all that decides the verdicts."""
    recipe: dict[str, Any] = {
        "dataset": {
            "config": setup.config,
            "split": setup.split,
            "fingerprint": setup.dataset_fingerprint or rows_hash(contest.rows),
            "rows": len(contest.rows),
        },
        "entry": dict(setup.entry),
        "contestants": [one.to_dict() for one in contest.contestants],
        "judges": _judges(contest, judges, jury),
        "orders": {
            "pairs": "both",
            "rotations": setup.options.design.rotations,
            "name_probe": setup.options.design.name_probe,
            "seed": setup.options.design.seed,
            "shown_characters": setup.options.shown,
        },
        "statistics": {
            "resamples": setup.result.resamples,
            "seed": setup.result.seed,
            "max_unscored": setup.result.max_unscored,
        },
        "models": dict(setup.models),
    }
    versions = {name: version(name) for name in ("rolellm", "numpy", "scipy")}
    return {**recipe, "versions": versions, "hash": hash_json(recipe)}


def _judges(contest: Contest, judges: Sequence[Judge], jury: Sequence[Juror]) -> list[dict[str, Any]]:
    """Who judges with which prompts, and which contestants are of the same family."""
    prompts = {judge.design: judge.to_dict() for judge in judges}
    listed = []
    for juror in jury:
        identities = [shown(model.identity) for model in juror.models]
        names = [str(identity.get("model", juror.name)) for identity in identities]
        family = next((found for found in map(family_of, names) if found), None)
        same = [one.name for one in contest.contestants if any(_shares_family(name, one) for name in names)]
        listed.append({"name": juror.name, "prompts": prompts, "model": identities, "family": family, "flagged": same})
    return listed


def _shares_family(judge: str, one: Contestant) -> bool:
    """Told by names; what a contestant was tuned from counts before what it is called."""
    return one.family in families_of(judge) if one.family else same_family(judge, one.model or one.name)


def _too_many(missing: Mapping[str, Any], folder: Path) -> str:
    reason = next(iter(missing["by_reason"]), "none given")
    return (
        f"{missing['count']:,} of {missing['of']:,} verdicts are missing ({missing['share']:.1%}; at most "
        f"{missing['limit']:.1%} may be), most often: {reason:.200}. They are not counted as anything; "
        f"{folder / UNSCORED} has them with their transcripts. A model that keeps to a schema, or --retry-failed, may "
        "bring them; --max-unscored lets more pass"
    )
