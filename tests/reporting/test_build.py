"""Judging runs and predictions made into one page: what it says, what it must not say, and what it refuses."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import DataError, SettingsError
from rolellm.judging.records import read_run
from rolellm.judging.result import JudgingResult
from rolellm.reporting.build import build_report, report
from rolellm.reporting.page import pick_contrasts, write_page
from rolellm.reporting.settings import ReportOptions
from rolellm.reporting.tables import PUBLISHED, content_hash
from rolellm.scoring.predictions import Predictions
from rolellm.scoring.score import score_rows

from .conftest import PAYLOADS, parse
from .judged_run import (
    BASELINE,
    MODELS,
    draw_judgements,
    judge,
    make_comparison,
    make_rows,
    make_run,
    write_run,
)
from .rendered import is_inside, render_page

CANARIES = ("canary: null model", "canary: echo")
PAPER = "instruction-generalization-eng"
FAST = ReportOptions()


def squeezed(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "ig-eng")


@pytest.fixture(scope="module")
def html(run: Path) -> str:
    return render_page(build_report([str(run)], FAST).content)


def line_of(page: Any, start: str) -> list[str]:
    return next(
        [squeezed(cell) for cell in row]
        for row in page.rows
        if squeezed(row[0]).startswith(start) and len(row) == len(find_heads(page))
    )


def find_heads(page: Any) -> list[str]:
    """The heads of the table that has every figure; the small one comes before it."""
    return next(row for row in page.rows if any("CUS" in cell for cell in row))


def test_scores_biases_and_intervals_stand_in_one_table(html: str, run: Path) -> None:
    page, result = parse(html), json.loads((run / "result.json").read_text(encoding="utf-8"))
    head = [squeezed(cell) for cell in find_heads(page)]
    for column in (
        "CUS",
        "RAW",
        "SPE",
        "avg",
        "Win rate, %",
        "LC win rate, %",
        "Above base, %",
        "Avg. rank",
        "Strength",
    ):
        assert any(cell.startswith(column) for cell in head), column
    at = {
        name: number
        for number, cell in enumerate(head)
        for name in ("Win", "Avg. rank", "Consistency")
        if cell.startswith(name)
    }
    for model in result["models"]:
        line = line_of(page, model["name"])
        rank = model["listwise"]["average_rank"]
        assert line[at["Avg. rank"]].startswith(f"{rank['mean']:.2f} [{rank['ci95'][0]:.2f}, {rank['ci95'][1]:.2f}]")
        if model["pairwise"]:
            for name, measure in (("Win", "win_rate"), ("Consistency", "consistency")):
                score = model["pairwise"][measure]
                ends = ", ".join(f"{100 * end:.1f}" for end in score["ci95"])
                assert line[at[name]].startswith(f"{100 * score['mean']:.1f} [{ends}]")
    assert {*MODELS, *CANARIES} <= {model["name"] for model in result["models"]}


@pytest.fixture
def as_released(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's rows are the release's: the release itself is too large for a test."""
    rows = read_run(run).comparison.rows
    subsets = {name: [row for row in rows if row.subset == name] for name in ("general", "role_specific")}
    released = {name: (len(found), content_hash(found)) for name, found in subsets.items()}
    monkeypatch.setitem(PUBLISHED, PAPER, replace(PUBLISHED[PAPER], released=released))


def test_published_rows_are_next_to_ours_marked_and_bare(as_released: None, run: Path) -> None:
    page = parse(render_page(build_report([str(run)], FAST).content))
    for system, scores in PUBLISHED[PAPER].rows.items():
        line = line_of(page, f"{system} published")
        assert line[1:5] == [f"{value:.3f}" for value in scores]
    heads = [squeezed(cell) for cell in find_heads(page)]
    column = next(at for at, head in enumerate(heads) if head.startswith("Above base"))
    for system, rate in PUBLISHED[PAPER].win_rates.items():
        assert line_of(page, f"{system} published")[column] == f"{rate:.1f}"
    assert "compare their order with ours, not their level" in squeezed(page.text)


def test_no_published_row_under_another_protocol(as_released: None, run: Path) -> None:
    built = build_report([str(run)], ReportOptions(protocol="rouge-score"))
    text = squeezed(parse(render_page(built.content)).text)
    assert "published" not in text and "its Rouge-L is recall under protocol paper" in text
    assert all(row.band != "published" for row in built.tables["scores"].rows)


def test_no_published_row_with_rows_that_only_share_the_configs_name(run: Path) -> None:
    built = build_report([str(run)], FAST)
    text = squeezed(parse(render_page(built.content)).text)
    assert "published" not in text and "the rows here are others or only some of them" in text
    assert all(row.band != "published" for row in built.tables["scores"].rows)
    assert built.to_dict()["parts"][0]["published"] is False


def test_a_config_that_was_never_published_has_no_published_rows(tmp_path: Path) -> None:
    run = make_run(tmp_path / "x", each=1, judges=["one"], config="sample", resamples=20)
    built = build_report([str(run)], FAST)
    assert built.to_dict()["parts"][0]["protocol"] == "rouge-score"
    assert "paper’s rows" not in squeezed(parse(render_page(built.content)).text)


def test_every_figure_has_its_section(html: str) -> None:
    page = parse(html)
    assert page.unbalanced == [] and len(page.ids) == len(set(page.ids))
    assert {"scores", "roles", "significance", "judges", "questions", "provenance"} <= set(page.ids)
    # Five of standing, three of Rouge-L, four heat maps, five of habits.
    assert page.tags.count("svg") == 16
    labels = " ".join(value for _, name, value in page.attributes if name == "aria-label")
    for title in (
        "Win rate against RoleGPT",
        "length-controlled",
        "Average rank",
        "Strength",
        "Win rate by role",
        "Both orders",
    ):
        assert title in labels, title
    text = squeezed(page.text)
    for words in (
        "Holm",
        "bootstrap over questions",
        "both orders, ties half",
        "gave no verdict",
        "judged by own family",
    ):
        assert words in text, words
    for name in (*MODELS, *CANARIES):
        assert name in text
    # Fingerprints at the end.
    assert "c0ffee" in page.text[page.text.rindex("How these numbers came about") :]


def test_only_the_one_script_may_run_and_nothing_may_load(html: str) -> None:
    page = parse(html)
    policy = next(value for tag, name, value in page.attributes if name == "content" and "default-src" in value)
    assert re.fullmatch(
        r"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
        r"script-src 'sha256-[A-Za-z0-9+/=]{44}'",
        policy,
    )
    addresses = [value for _, _, value in page.attributes if re.search(r"https?:|//", value)]
    assert addresses == []
    assert all(is_inside(reference, page) for reference in page.references)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]


def test_several_runs_are_parts_of_one_page(run: Path, tmp_path: Path) -> None:
    rows = make_rows(("孙悟空", "李白"), 3)
    comparison = make_comparison(rows)
    chinese = write_run(
        tmp_path / "ig-zh",
        comparison,
        draw_judgements(comparison, ["one"]),
        config="instruction-generalization-zh",
        resamples=20,
    )
    built = build_report([str(run), str(chinese)], FAST)
    page = parse(render_page(built.content))
    assert len(page.ids) == len(set(page.ids)) and page.unbalanced == []
    assert {"part-1-scores", "part-2-scores", "part-2-judges", "questions"} <= set(page.ids)
    assert {"#part-1-scores", "#part-2-scores"} <= set(page.references)
    assert [part.config for part in built.content.parts] == [PAPER, "instruction-generalization-zh"]
    assert f"1-{PAPER}-scores" in built.tables and "2-instruction-generalization-zh-tests" in built.tables


def test_every_table_in_a_file_names_its_recipe(as_released: None, run: Path) -> None:
    tables = build_report([str(run)], FAST).tables
    assert {"scores", "pairs", "lists", "tests", "habits", "attacks", "judges", "roles-win-rate"} <= set(tables)
    for name, table in tables.items():
        assert f"protocol paper, config {PAPER}, split test" in table.note, name
        assert name == "roles-rouge" or "judged by llama-judge, other-judge, judging feedfeedfeed" in table.note, name
    assert "arXiv" in tables["scores"].note


def test_the_same_runs_give_the_same_bytes(run: Path, html: str) -> None:
    assert render_page(build_report([str(run)], FAST).content) == html


def test_an_invalid_run_is_said_to_be_one_before_its_figures(tmp_path: Path) -> None:
    comparison = make_comparison(make_rows(each=1))
    judged = draw_judgements(comparison, ["one"], unscored=0.2)
    run = write_run(tmp_path / "bad", comparison, judged, resamples=20)
    text = squeezed(parse(render_page(build_report([str(run)], FAST).content)).text)
    assert text.index("This run is not valid") < text.index("CUS")
    assert "makes a run invalid" in text


def test_lists_alone_without_a_baseline(tmp_path: Path) -> None:
    comparison = make_comparison(make_rows(each=1), canaries=False)
    comparison = replace(comparison, systems=[replace(one, kind="model") for one in comparison.systems])
    judged = [one for one in draw_judgements(comparison, ["one"]) if one.design == "listwise"]
    run = write_run(tmp_path / "lists", comparison, judged, resamples=20)
    built = build_report([str(run)], FAST)
    page = parse(render_page(built.content))
    assert page.unbalanced == [] and "pairs" not in built.tables and "Win rate, %" not in built.tables["scores"].columns
    assert "about their mean" in squeezed(page.text) and "Canaries do not answer" not in squeezed(page.text)


def test_judges_who_always_tie_dispute_nothing(tmp_path: Path) -> None:
    comparison = make_comparison(make_rows(each=1), canaries=False)
    drawn = [one for one in draw_judgements(comparison, ["one"]) if one.design == "listwise"]
    middle = (len(comparison.systems) + 1) / 2
    ties = [replace(one, ranks=(middle,) * len(one.order), unscored=None) for one in drawn]
    run = write_run(tmp_path / "ties", comparison, ties, resamples=20)
    built = build_report([str(run)], FAST)
    assert built.content.questions[0].disputed == set()
    assert render_page(built.content)  # pictures in which all are even, too
    first = [replace(one, ranks=(1.0, *one.ranks[1:])) for one in ties if one.ranks]
    other = build_report([str(write_run(tmp_path / "first", comparison, first, resamples=20))], FAST)
    assert other.content.questions[0].disputed == {row.id for row in comparison.rows}


@pytest.mark.parametrize("payload", PAYLOADS[:8])
def test_text_is_only_text(payload: str, tmp_path: Path) -> None:
    rows = make_rows(("Ada Fenn", f"R{payload}"), 1)
    rows = [
        replace(row, question=f"{row.question}{payload}", references=(f"{row.references[0]} {payload}",))
        for row in rows
    ]
    comparison = make_comparison(rows, rename={"Vicuna-13B": f"V{payload}"})
    comparison = replace(
        comparison,
        answers={
            name: {row: f"{text} {payload}" for row, text in of.items()} for name, of in comparison.answers.items()
        },
    )
    judged = [
        replace(one, reasons=tuple(payload for _ in one.order), touched={one.order[0]: (payload,)})
        for one in draw_judgements(comparison, [f"J{payload}"], unscored=0)
    ]
    judged.append(replace(judged[0], ranks=None, reasons=(), unscored=f"why {payload}"))
    run = write_run(tmp_path / "odd", comparison, judged, resamples=20, judges=[judge(f"J{payload}")])
    built = build_report([str(run)], replace(FAST, title=f"T{payload}"))
    html = write_page(tmp_path / "report.html", built.content).read_bytes().decode("utf-8")
    page = parse(html)
    assert page.unbalanced == []
    assert not {"img", "iframe", "object", "link", "base"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    # The one script of ours, and data that is none.
    types = [value for tag, name, value in page.attributes if tag == "script" and name == "type"]
    assert page.tags.count("script") - len(types) == 1
    assert set(types) <= {"application/json", "application/octet-stream"}
    outside = [
        value
        for tag, name, value in page.attributes
        if name in ("src", "href", "action") and not is_inside(value, page)
    ]
    assert outside == []
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]", html)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        pytest.param([], SettingsError, "nothing to report", id="nothing"),
        pytest.param(["unfinished"], DataError, "not finished", id="unfinished"),
        pytest.param(["run", "./run"], SettingsError, "given twice", id="twice"),
    ],
)
def test_what_cannot_be_reported(
    given: list[str], error: type[Exception], words: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "run")
    shutil.copytree(run, "unfinished")
    Path("unfinished/result.json").unlink()
    with pytest.raises(error, match=words):
        build_report(given, FAST)


def test_a_config_is_not_taken_where_it_would_be_ignored(run: Path) -> None:
    with pytest.raises(SettingsError, match="names its own config"):
        build_report([str(run)], replace(FAST, config="sample"))


def test_results_in_memory_are_reported_like_folders(run: Path, tmp_path: Path) -> None:
    judged = read_run(run)
    answers = next(iter(judged.comparison.answers.values()))
    mine = Predictions.pair_texts(list(answers), list(answers.values()))
    scores = {"mine": score_rows(judged.comparison.rows, mine)}
    made = report(
        [JudgingResult.from_dict(judged.result, run / "result.json"), scores],
        tmp_path / "page.html",
        tmp_path / "tables",
    )
    assert made.page == tmp_path / "page.html" and made.page.is_file() and made.files
    assert [part.judged is not None for part in made.content.parts] == [True, False]
    assert made.to_dict()["parts"][1]["systems"] == ["mine"]


def test_what_is_no_result_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot report a int"):
        report(7, tmp_path / "page.html")
    with pytest.raises(SettingsError, match="did you mean protocol"):
        report([], tmp_path / "page.html", protocoll="paper")


def test_the_head_of_the_page_says_how_each_system_stands_and_where_they_differ(run: Path) -> None:
    built = build_report([str(run)], FAST)
    page = parse(render_page(built.content))
    (section,), (part,) = built.content.parts, built.content.questions
    table = section.summary_table()
    assert {row.names[0] for row in table.rows} == {*MODELS, BASELINE} and table.columns[-1] == "By Rouge-L"
    assert {squeezed(cell) for cell in page.rows[0]} >= {"System", "By Rouge-L"}
    first, second = [name for name in part.rouge if part.kinds[name] == "model"][:2]
    gains = [part.rouge[first][row.id] - part.rouge[second][row.id] for row in part.rows]
    scores = [[reply["score"] for reply in example["replies"]] for example in pick_contrasts(part)]
    shown = [own - other for own, other in scores]
    assert max(gains) in shown or max(gains) < 0.1
    assert min(gains) in shown or min(gains) > -0.1
    assert "Where they differ most" in page.text if shown else "Where they differ most" not in page.text
