"""Judging runs and predictions made into one page: what it says, what it must not say, and what it refuses."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.jsonl import read_jsonl
from rolellm.judging.records import read_run
from rolellm.judging.result import JudgingResult
from rolellm.judging.verdicts import RowOutcome
from rolellm.models.training_record import hash_instruction
from rolellm.reporting.build import build_report, collect_sources, report
from rolellm.reporting.page import write_page
from rolellm.reporting.settings import ReportOptions
from rolellm.scoring.predictions import Predictions
from rolellm.scoring.published import PUBLISHED, content_hash
from rolellm.scoring.score import score_rows

from .conftest import PAYLOADS, make_values, parse, read_reports
from .judged_run import MODELS, draw_judgements, judge, make_comparison, make_rows, make_run, write_run
from .rendered import assert_harmless, render_page, squeeze

CANARIES = ("canary: null model", "canary: echo")
PAPER = "instruction-generalization-eng"
FAST = ReportOptions()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "ig-eng")


@pytest.fixture(scope="module")
def html(run: Path) -> str:
    return render_page(build_report(collect_sources([str(run)]), FAST).content)


def find_heads(page: Any) -> list[str]:
    """The heads of the table that has every figure; the small one comes before it."""
    return next([squeeze(cell) for cell in row] for row in page.rows if any("CUS" in cell for cell in row))


def find_cells(page: Any, start: str) -> dict[str, str]:
    """A system's cells in that table, by their heads."""
    heads = find_heads(page)
    lines = ([squeeze(cell) for cell in row] for row in page.rows if len(row) == len(heads))
    return dict(zip(heads, next(line for line in lines if line[0].startswith(start)), strict=True))


def test_scores_biases_and_intervals_stand_in_one_table(html: str, run: Path) -> None:
    page, result = parse(html), json.loads((run / "result.json").read_text(encoding="utf-8"))
    heads = " ".join(find_heads(page))
    for column in ("CUS", "RAW", "SPE", "avg", "LC win rate, %", "Above base in lists, %"):
        assert column in heads, column
    for model in result["models"]:
        cells = find_cells(page, model["name"])
        for head, design, measure, times, digits in (
            ("Avg. rank", "listwise", "average_rank", 1, 2),
            ("Win rate, %", "pairwise", "win_rate", 100, 1),
            ("Consistency", "pairwise", "consistency", 100, 1),
        ):
            if score := model[design] and model[design][measure]:
                mean, low, high = (f"{times * value:.{digits}f}" for value in (score["mean"], *score["ci95"]))
                (shown,) = (cell for name, cell in cells.items() if name.startswith(head))
                assert shown.startswith(f"{mean} [{low}, {high}]")
    assert {*MODELS, *CANARIES} <= {model["name"] for model in result["models"]}


@pytest.fixture
def as_released(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's rows are the release's: the release itself is too large for a test."""
    rows = read_run(run).comparison.rows
    subsets = {name: [row for row in rows if row.subset == name] for name in ("general", "role_specific")}
    released = {name: (len(found), content_hash(found)) for name, found in subsets.items()}
    monkeypatch.setitem(PUBLISHED, PAPER, replace(PUBLISHED[PAPER], released=released))


def test_published_rows_are_next_to_ours_and_every_table_names_its_recipe(as_released: None, run: Path) -> None:
    built = build_report(collect_sources([str(run)]), FAST)
    for name, table in built.named_tables.items():
        assert f"protocol paper, config {PAPER}, split test" in table.note, name
        assert name == "roles-rouge" or "judged by llama-judge, other-judge, judging feedfeedfeed" in table.note, name
    assert {"scores", "tests", "habits", "roles-win-rate"} <= built.named_tables.keys()
    assert "arXiv" in built.named_tables["scores"].note
    page = parse(render_page(built.content))
    for system, scores in PUBLISHED[PAPER].rows.items():
        cells = find_cells(page, f"{system} published")
        assert [*cells.values()][1:5] == [f"{value:.3f}" for value in scores]
        if system in PUBLISHED[PAPER].win_rates:
            (shown,) = (cell for name, cell in cells.items() if name.startswith("Above base"))
            assert shown == f"{PUBLISHED[PAPER].win_rates[system]:.1f}"
    assert "compare their order with ours, not their level" in squeeze(page.text)


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        pytest.param("rouge-score", "its Rouge-L is recall under protocol paper", id="another-protocol"),
        pytest.param(None, "the rows here are others or only some of them", id="rows-that-share-the-name"),
    ],
)
def test_no_published_row_beside_what_does_not_compare(
    request: pytest.FixtureRequest, run: Path, protocol: Any, words: str
) -> None:
    if protocol:
        request.getfixturevalue("as_released")
    built = build_report(collect_sources([str(run)]), ReportOptions(protocol=protocol))
    text = squeeze(parse(render_page(built.content)).text)
    assert "published" not in text and words in text
    assert all(row.band != "published" for row in built.named_tables["scores"].rows)
    assert built.to_dict()["parts"][0]["published"] is False


def test_every_figure_has_its_section(html: str) -> None:
    page = parse(html)
    assert_harmless(html, page)
    assert {"scores", "figures", "roles", "significance", "judges", "questions", "provenance"} <= set(page.ids)
    assert page.tags.count("svg") == 2
    labels = " ".join(value for _, name, value in page.attributes if name == "aria-label")
    for title in ("Judged against RoleGPT", "Rouge-L by system"):
        assert title in labels, title
    text = squeeze(page.text)
    for words in ("Holm", "Wilson's by question", "verdicts are missing", "judged by own family"):
        assert words in text, words
    # Fingerprints at the end.
    assert "c0ffee" in page.text[page.text.rindex("How these numbers came about") :]
    # Nothing may run or load.
    policy = next(value for tag, name, value in page.attributes if name == "content" and "default-src" in value)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    assert "script" not in page.tags
    assert [value for _, _, value in page.attributes if re.search(r"https?:|//", value)] == []


def test_the_page_shows_some_questions_and_the_file_next_to_it_has_all(run: Path, tmp_path: Path) -> None:
    rows = make_rows(each=20)
    comparison = make_comparison(rows)
    many = write_run(tmp_path / "many", comparison, draw_judgements(comparison, ["one"]))
    built = report([str(run), str(many)], tmp_path / "page.html")
    assert built.page is not None
    html = built.page.read_text(encoding="utf-8")
    records = [record for _, record in read_jsonl(tmp_path / "page.questions.jsonl")]
    assert f"{100 + 72} of {len(records)} questions" in squeeze(parse(html).text)
    first, *_, last = records
    assert len(records) == 72 + 240 and first["section"] != last["section"]
    own = comparison.answers["RoleLLaMA-7B"][last["id"]]
    answer = last["answers"]["RoleLLaMA-7B"]
    assert (last["question"], answer["text"]) == (rows[-1].question, own)
    assert 0 <= answer["rouge_l"] <= 1 and answer["win"] is not None and answer["reasons"]


def test_several_runs_are_parts_of_one_page(run: Path, tmp_path: Path) -> None:
    rows = make_rows(("孙悟空", "李白"), 3)
    comparison = make_comparison(rows)
    config = "instruction-generalization-zh"
    chinese = write_run(tmp_path / "ig-zh", comparison, draw_judgements(comparison, ["one"]), config=config)
    built = build_report(collect_sources([str(run), str(chinese)]), FAST)
    html = render_page(built.content)
    page = parse(html)
    assert_harmless(html, page)
    assert {"part-1-scores", "part-2-scores", "part-2-judges", "questions"} <= set(page.ids)
    assert {"#part-1-scores", "#part-2-scores"} <= set(page.references)
    assert [part.config for part in built.content.parts] == [PAPER, config]
    assert f"1-{PAPER}-scores" in built.named_tables and f"2-{config}-tests" in built.named_tables


def test_an_invalid_run_is_said_to_be_one_before_its_figures(tmp_path: Path) -> None:
    comparison = make_comparison(make_rows(each=1))
    judged = draw_judgements(comparison, ["one"], unscored=0.2)
    run = write_run(tmp_path / "bad", comparison, judged)
    text = squeeze(parse(render_page(build_report(collect_sources([str(run)]), FAST).content)).text)
    assert "prefers" not in text and text.index("This run is not valid") < text.index("All figures")
    assert "the run is invalid" in text


def test_lists_alone_without_a_baseline(tmp_path: Path) -> None:
    comparison = make_comparison(make_rows(each=1), canaries=False)
    comparison = replace(comparison, systems=[replace(one, kind="model") for one in comparison.systems])
    judged = [one for one in draw_judgements(comparison, ["one"]) if one.design == "listwise"]
    run = write_run(tmp_path / "lists", comparison, judged)
    built = build_report(collect_sources([str(run)]), FAST)
    page = parse(render_page(built.content))
    assert page.unbalanced == [] and "roles-win-rate" not in built.named_tables
    assert "Canaries do not answer" not in squeeze(page.text)


@pytest.mark.parametrize("payload", PAYLOADS[:8])
def test_text_is_only_text(payload: str, tmp_path: Path) -> None:
    rows = make_rows(("Ada Fenn", f"R{payload}"), 1)
    rows = [
        replace(row, question=f"{row.question}{payload}", references=(f"{row.references[0]} {payload}",))
        for row in rows
    ]
    comparison = make_comparison(rows, rename={"Vicuna-13B": f"V{payload}"})
    for name, answers in comparison.answers.items():
        comparison.answers[name] = {row: f"{text} {payload}" for row, text in answers.items()}
    judgements = draw_judgements(comparison, [f"J{payload}"], unscored=0)
    judged = [replace(one, reasons=tuple(payload for _ in one.order)) for one in judgements]
    judged.append(replace(judged[0], ranks=None, reasons=(), unscored=f"why {payload}"))
    run = write_run(tmp_path / "odd", comparison, judged, judges=[judge(f"J{payload}")])
    built = build_report(collect_sources([str(run)]), FAST)
    html = write_page(tmp_path / "report.html", built.content).read_bytes().decode("utf-8")
    page = parse(html)
    assert_harmless(html, page)
    assert not {"img", "iframe", "object", "link", "base", "script"} & set(page.tags)


@pytest.mark.parametrize(
    ("sources", "options", "error", "words"),
    [
        pytest.param([], {}, SettingsError, "nothing to report", id="nothing"),
        pytest.param(["unfinished"], {}, DataError, "not finished", id="unfinished"),
        pytest.param(["run", "./run"], {}, SettingsError, "given twice", id="twice"),
        pytest.param(["run"], {"config": "sample"}, SettingsError, "names its own config", id="config-of-a-run"),
        pytest.param(7, {}, SettingsError, "cannot report a int", id="number"),
        pytest.param([], {"protocoll": "paper"}, SettingsError, "did you mean protocol", id="near-name"),
    ],
)
def test_what_cannot_be_reported(
    sources: Any, options: Any, error: Any, words: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "run")
    shutil.copytree(run, "unfinished")
    Path("unfinished/result.json").unlink()
    with pytest.raises(error, match=words):
        report(sources, "page.html", **options)


def test_scores_that_do_not_compare_are_refused() -> None:
    values = make_values()
    values["tuned"]["protocol"] = "paper"
    with pytest.raises(SettingsError, match="do not compare: protocol is paper, rouge-score"):
        build_report(collect_sources([read_reports(values)]))


def test_results_in_memory_are_reported_like_folders(run: Path, tmp_path: Path) -> None:
    judged = read_run(run)
    answers = next(iter(judged.comparison.answers.values()))
    mine = Predictions.pair_texts(list(answers), list(answers.values()))
    scores = {"mine": score_rows(judged.comparison.rows, mine)}
    sources = [JudgingResult.from_dict(judged.result, run / "result.json"), scores]
    made = report(sources, tmp_path / "page.html", tmp_path / "tables")
    assert made.page == tmp_path / "page.html" and made.page.is_file() and made.files
    assert [part.judged is not None for part in made.content.parts] == [True, False]
    assert made.to_dict()["parts"][1]["systems"] == ["mine"]


def test_that_a_system_was_trained_on_the_rows_is_said_with_the_answer(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (system,) = (system for system in manifest["systems"] if system["name"] == "LLaMA-7B")
    rows = read_run(run).comparison.rows
    trained_on = {"roles": [], "instructions": [hash_instruction(row.question) for row in rows], "trained_on": []}
    generation = {"config": PAPER, "split": "test", "contamination": trained_on}
    system["source"] = {"files": [{"file": "p.jsonl", "sha256": "00", "generation": generation}]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (answer,) = build_report(collect_sources([str(folder)]), FAST).content.answers
    assert "LLaMA-7B was trained on the instruction of 72 of 72 rows: there, its scores show what" in answer.evidence


def test_the_answer_is_first_with_a_reply_that_fails(run: Path, html: str) -> None:
    built = build_report(collect_sources([str(run)]), FAST)
    page = parse(html)
    assert render_page(built.content) == html, "the same runs give the same bytes"
    (answer,), (part,) = built.content.answers, built.content.questions
    assert answer.lead in MODELS and list(built.remarks())[: len(answer.sentences)] == answer.sentences
    assert answer.failure.startswith(f"{answer.lead} breaks character in 12 of 72 replies, by rules: as 孙悟空")
    assert squeeze(page.text).index(answer.verdict) < squeeze(page.text).index("All figures")
    english = replace(part, rows=[row for row in part.rows if row.language == "en"])
    lost = [row.id for row in english.rows if part.outcomes[row.id][answer.lead].win == 0]
    lowest = min(part.rouge[answer.lead][row] for row in lost)
    assert english.describe_failure(answer.lead).startswith(
        f"Lowest reply of {answer.lead} (Rouge-L {lowest:.3f}): as "
    )
    won = {row.id: {answer.lead: RowOutcome(win=1.0)} for row in english.rows}
    assert replace(english, outcomes=won).describe_failure(answer.lead) == ""
