"""The demo from end to end: roles made from scripts, and the loop of tuning on the sample's rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import SettingsError, require
from rolellm.core.files import write_json
from rolellm.core.locks import lock_folder
from rolellm.core.result import Result
from rolellm.demo.making import make_roles
from rolellm.judging.result import JudgingResult
from rolellm.scoring.score_report import ScoreReport

if TYPE_CHECKING:
    from rolellm.core.table import Table
    from rolellm.reporting.page import PageContent

CONFIG, SPLIT = "sample", "test"
UNTUNED = "untuned"
TUNED = "tuned"
BASELINE = "RoleGPT (sample)"
#: A third of the recipe's processor time: a smaller base, and larger steps with more replies of one role, whose prompt
#: is computed once. CUS ends at 0.329 instead of 0.351, and what is said of the systems stays.
_SHORTER = (
    *("base.tiny.hidden_size=128", "base.tiny.intermediate_size=344", "base.warm.alone=15", "base.warm.in_role=3"),
    *("training.num_train_epochs=2", "training.learning_rate=2e-3", "training.replies_per_step=8"),
    "training.roles_per_step=2",
)
_SUMMARY = "summary.json"
_JUDGED = "judged"


@dataclass(frozen=True, slots=True, repr=False)
class DemoResult(Result):
    """The folder and the results of a demo.

    Attributes:
        out: Its folder: ``made/`` (roles made from scripts, and their data set), ``run/`` (the tuned model and its
            base), ``*.jsonl`` (answers), ``*.score.json``, ``judged/`` (a judging run), the report.
        page: The report.
        findings: What came out, in sentences.
        made: What was made from scripts; nothing is tuned on it.
        reports: Each system's scores, in the order to show.
        judged: What the judge found.
    """

    out: Path
    page: Path
    findings: tuple[str, ...]
    made: dict[str, Any]
    reports: dict[str, ScoreReport]
    judged: JudgingResult

    def to_dict(self) -> dict[str, Any]:
        """Return one JSON object: folder, report, what was made, metrics, and the judge's result."""
        metrics = {name: report.to_dict()["metrics"] for name, report in self.reports.items()}
        return {
            "out": str(self.out),
            "report": str(self.page),
            "findings": list(self.findings),
            "made": self.made,
            "metrics": metrics,
            "judged": self.judged.to_dict(),
        }

    def tables(self) -> tuple[Table]:
        """Build the table of the systems' scores."""
        from rolellm.reporting.tables import system_table

        return (system_table(self.reports),)

    def remarks(self) -> tuple[str, ...]:
        """Return the findings, and where everything is."""
        return (
            *self.findings,
            f"A data set of two roles made from scripts: {self.made['release']}",
            f"Answers, scores and models: {self.out}",
            "The tuned model is tiny: it has learned to sound like its roles, and makes little sense. For a role worth "
            "talking to, take a model of your own.",
        )

    @property
    def continues_with(self) -> tuple[str]:
        """The command line that makes a role with a model of one's own."""
        return ("rolellm make CARD --base MODEL",)


def run_whole_loop(out: str | Path, *, say: Callable[[str], None] = lambda _: None) -> DemoResult:
    """Run it; an earlier demo in the same folder is replaced.

    Args:
        out: The folder to write.
        say: Called with a line before each stage.

    Raises:
        SettingsError: When ``out`` holds something that no demo left there.
        RunInUseError: When another demo works in it.
        MissingExtraError: Without the extra ``demo``.
    """
    require("torch", "transformers", "trl", "peft", "accelerate", extra="demo")
    require("bm25s", "jsonschema", extra="demo")
    _settle_libraries()
    folder = Path(out)
    _check(folder)
    with lock_folder(folder):
        write_json(folder / _SUMMARY, {"state": "running"})
        return _run(folder, say)


def _run(folder: Path, say: Callable[[str], None]) -> DemoResult:
    from rolellm.data.rolebench import load_rolebench
    from rolellm.judging.run import judge
    from rolellm.reporting.page import write_page
    from rolellm.scoring.score import score
    from rolellm.training.bases import build_base
    from rolellm.training.recipe_files import load_recipe
    from rolellm.training.train import prepare, train

    construction = make_roles(folder / "made", say)
    say("Loading the sample")
    data = load_rolebench(CONFIG, SPLIT)

    run = folder / "run"
    recipe = load_recipe("smoke-cpu", _SHORTER)
    say("Building a tiny LLaMA from the sample's train rows, and warming it on role-free answers")
    prepared = prepare(recipe, run)
    base = build_base(recipe, prepared.rows, run, prepared.tokenizer)
    reports: dict[str, ScoreReport] = {}
    say(f"Answering {len(data)} held-out questions with the untuned model, and scoring")
    reports[UNTUNED] = _generate_and_score(data, base, folder / "untuned.jsonl")
    say("Tuning it on the sample's train rows (RoCIT)")
    train(recipe, out=run, overwrite=True)
    say(f"Answering {len(data)} held-out questions with the tuned model, and scoring")
    reports[TUNED] = _generate_and_score(data, run, folder / "tuned.jsonl")
    reports[BASELINE] = score(data.rename_column("rolegpt", "prediction"))
    say("Judging the answers against RoleGPT's")
    answers = {name: folder / f"{name}.jsonl" for name in (UNTUNED, TUNED)}
    words = {"endpoints": [{"backend": "scripted", "rules": "words"}]}
    judged = judge(answers, config=CONFIG, split=SPLIT, llm=words, out=folder / _JUDGED)
    say("Writing the report")
    training = {"recipe": recipe.to_dict(), "recipe_hash": recipe.hash}
    content = _build_page(folder, training, construction)
    page = write_page(folder / "report.html", content)
    findings = tuple(content.sentences)
    result = DemoResult(folder, page, findings, construction, reports, judged)
    write_json(folder / _SUMMARY, result.to_dict())
    return result


def _generate_and_score(data: Any, model: Path, out: Path) -> ScoreReport:
    """Answer the rows with a model, and score the answers; the score is written next to them."""
    from rolellm.scoring.generate import generate
    from rolellm.scoring.score import score

    generate(model, data, out=out, max_new_tokens=64, batch_size=16, overwrite=True)
    report = score(out, strict=True)
    write_json(out.with_suffix(".score.json"), report.to_dict())
    return report


def _settle_libraries() -> None:
    import datasets
    import torch
    from transformers.utils import logging

    # Bars for reading and writing a model and a data set this small would only flicker.
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    # On busy cores, OpenMP's barriers make two threads eight times slower; on idle ones, half as fast again.
    torch.set_num_threads(1)


def _check(folder: Path) -> None:
    """Refuse a folder that is not new, empty, or an earlier demo's."""
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file; the demo needs a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _SUMMARY).is_file():
        raise SettingsError(f"{folder} holds other files; name another folder with --out")


def _build_page(folder: Path, recipe: Mapping[str, Any], construction: dict[str, Any]) -> PageContent:
    from rolellm.judging.records import read_run
    from rolellm.reporting.blocks import lay_out_made
    from rolellm.reporting.build import ReportSources, build_report

    judged = read_run(folder / _JUDGED)
    return replace(
        build_report(ReportSources([judged])).content,
        title="RoleLLM demo",
        summary=(
            "A tiny LLaMA before and after role-conditioned tuning. The judge is not a language model: it counts words "
            "shared with references."
        ),
        split_note=(
            "One instruction of each family of four, and eight questions a role, were held out: no test question "
            "is in train. The sample's roles are in both. The sample's RoleGPT is its sixth reply, held out from the "
            "references and written by the same author. Nothing was tuned on what was made from scripts."
        ),
        recipe=recipe,
        blocks=[lay_out_made(construction)],
    )
