"""The leaderboard: a site whose every row follows from the replies in it, and which compares like with like."""

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rolellm.checks.safety import CheckSafety, SafetySettings, pair_models
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.jsonl import write_jsonl
from rolellm.core.records import Profile, Row
from rolellm.data.rolebench import load_rolebench
from rolellm.judging.records import write_run
from rolellm.llm.llm import LLM
from rolellm.llm.model import Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.playing.settings import PlaySettings
from rolellm.reporting.leaderboard import Entry, ranks, write_leaderboard
from rolellm.runs import run_step
from rolellm.scoring.score import score
from rolellm.scoring.settings import ScoreOptions

from ..conftest import WriteRelease
from ..forking import Forking
from .conftest import parse
from .judged_run import BASELINE, MODELS, make_comparison
from .rendered import is_inside
from .test_in_browser import _OUTSIDE, metrics

CONFIG = "instruction-generalization-eng"
GREEDY = {"strategy": "greedy", "max_new_tokens": 200}
HOSTILE = "<script>alert(1)</script>\x1b[31m"
Board = Callable[..., list[Entry]]
WriteReplies = Callable[..., Path]


@pytest.fixture
def release(write_release: WriteRelease) -> Path:
    return write_release()


@pytest.fixture
def write_replies(release: Path, tmp_path: Path) -> WriteReplies:
    """Writes a file of replies that hold a share of the reference's words, and its sidecar."""

    def write(name: str, share: float, *, rows: slice = slice(None), **made: Any) -> Path:
        lines = []
        for row in list(load_rolebench(CONFIG, "test", data_dir=release))[rows]:
            words = row["references"][0].split()
            lines.append({"id": row["id"], "prediction": " ".join(words[: max(1, round(share * len(words)))])})
        path = tmp_path / f"{name}.jsonl"
        write_jsonl(path, lines)
        meta = {"config": CONFIG, "split": "test", "model": f"/home/me/{name}", "decoding": GREEDY, **made}
        path.with_name(f"{path.name}.meta.json").write_text(json.dumps(meta), encoding="utf-8")
        return path

    return write


@pytest.fixture
def board(release: Path, tmp_path: Path) -> Board:
    """Writes the site into ``site``."""

    def build(*runs: str | Path, mixed: bool = False, **options: Any) -> list[Entry]:
        return write_leaderboard(runs, tmp_path / "site", ScoreOptions(data_dir=release, **options), mixed=mixed)

    return build


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"protocol": "paper", "missing": "zero"}])
def test_the_command_of_a_row_gives_its_numbers(
    board: Board, write_replies: WriteReplies, release: Path, tmp_path: Path, warm: Forking, options: dict[str, Any]
) -> None:
    halves = [write_replies(name, 0.5, rows=rows) for name, rows in (("one", slice(2)), ("two", slice(2, None)))]
    for entry in board(*(f"mine and yours={half}" for half in halves), write_replies("all", 1.0), **options):
        program, *words = shlex.split(entry.command)
        assert program == "rolellm"
        shown = warm([*words, "--json"], tmp_path / "site", env={"ROLEBENCH_DIR": str(release)})
        assert json.loads(shown) == json.loads((tmp_path / "site" / entry.files[0]).read_text(encoding="utf-8"))
        assert json.loads(shown)["metrics"]["CUS"]["mean"] == entry.report.metrics["CUS"].mean  # type: ignore[union-attr]


def test_unlike_recipes_are_refused_unless_asked_for(board: Board, write_replies: WriteReplies, tmp_path: Path) -> None:
    like = [write_replies("a", 0.5), write_replies("b", 1.0)]
    sampled = write_replies("c", 0.7, decoding={"strategy": "sample", "temperature": 0.7, "max_new_tokens": 200})
    some = write_replies("d", 0.7, rows=slice(1))
    for odd, word in ((sampled, "decoding"), (some, "answered rows")):
        with pytest.raises(SettingsError, match=f"differ in {word}: .*--mixed"):
            board(*like, odd)
        assert not (tmp_path / "site").exists()
    board(*like, sampled, mixed=True)
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "Not all of these numbers compare" in page and "rank 1 of 1" in page and "sample, temperature 0.7" in page


def test_decoding_reads_the_same_whichever_program_decoded(board: Board, write_replies: WriteReplies) -> None:
    ways = [GREEDY, {"do_sample": False, "max_gen_toks": 200, "until": []}, {"temperature": 0.0, "max_tokens": 200}]
    entries = board(*(write_replies(f"r{at}", 0.5, decoding=way) for at, way in enumerate(ways)))
    assert {entry.recipe["decoding"] for entry in entries} == {"greedy, at most 200 tokens"}


def test_a_score_report_brings_its_replies_and_must_be_true(
    board: Board, write_replies: WriteReplies, release: Path, tmp_path: Path
) -> None:
    replies = write_replies("mine", 0.5)
    value = score(replies, protocol="paper", data_dir=release).to_dict()
    report = tmp_path / "S.json"
    report.write_text(json.dumps(value), encoding="utf-8")
    (entry,) = board(report)
    assert entry.recipe["protocol"] == "paper" and entry.command.endswith(f"--config {CONFIG} --protocol paper")
    value["metrics"]["CUS"]["mean"] += 0.01
    report.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(DataError, match="as its score report says"):
        board(report)
    replies.unlink()
    with pytest.raises(DataError, match="give the replies"):
        board(report)


def test_folders_of_predictions_and_of_judging_runs(board: Board, write_replies: WriteReplies, tmp_path: Path) -> None:
    folder = write_replies("a", 0.5).parent
    write_replies("b", 1.0)
    assert [entry.name for entry in board(folder)] == ["a", "b"]
    with pytest.raises(SettingsError, match=r"have the file a-2\.jsonl"):
        board(*(f"{name}={folder / file}.jsonl" for name, file in (("a", "a"), ("a", "b"), ("a-2", "a"))))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="neither a judging run nor predictions"):
        board(tmp_path / "empty")


def test_the_systems_of_a_judging_run_without_its_canaries(board: Board, release: Path, tmp_path: Path) -> None:
    rows = [Row.from_columns(columns) for columns in load_rolebench(CONFIG, "test", data_dir=release)]
    made, folder = make_comparison(rows), tmp_path / "judged"
    write_run(folder, made, dataset={"config": CONFIG, "split": "test"})
    entries = board(folder)
    assert {entry.name for entry in entries} == {BASELINE, *MODELS}
    assert all(entry.report.metrics["CUS"] and not entry.report.unmatched["rows"] for entry in entries)


def test_what_is_published_names_no_folder_and_runs_nothing(
    board: Board, write_replies: WriteReplies, tmp_path: Path
) -> None:
    board(f"{HOSTILE}={write_replies('a', 0.5, note=HOSTILE)}", write_replies("b", 1.0))
    site = tmp_path / "site"
    assert site.stat().st_mode & 0o055 == 0o055  # for a web server
    for path in site.rglob("*.*"):
        assert "/home/me" not in path.read_text(encoding="utf-8") and str(tmp_path) not in path.read_text(
            encoding="utf-8"
        )
    page = parse((site / "index.html").read_text(encoding="utf-8"))
    assert not page.unbalanced and page.tags.count("script") == 1 and "\x1b" not in page.text
    linked = [one for one in page.references if not is_inside(one, page)]
    assert len(linked) == 4 and all((site / one).is_file() for one in linked)


def write_check(folder: Path, weights: str) -> Path:
    """A finished check of safety of a model with these weights, which lost half of its refusals."""

    def answer(text: str, share: float) -> LLM:
        def rule(request: Request) -> str:
            is_refused = len(request.messages[-1].content) % 10 < 10 * share
            return "I can't help with that." if is_refused else text

        return LLM.of(ScriptedModel(rule, rules_hash=text, name=text))

    step = CheckSafety(SafetySettings(samples=1), PlaySettings(), [Profile("Owl", "en", description="You are Owl.")])
    run_step(step, pair_models(answer("Sure, do it.", 0.5), answer("Fine.", 1)), folder)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["models"]["endpoints"][0] |= {"model_hash": "b" * 64, "adapter_hash": weights}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def test_a_line_has_model_size_date_and_safety(board: Board, write_replies: WriteReplies, tmp_path: Path) -> None:
    made = {"base": "/models/Qwen2.5-0.5B", "parameters": 494032768, "date": "2026-11-26", "adapter_hash": "a" * 64}
    ours, api = (
        write_replies("ada", 0.5, **made),
        write_replies("api", 0.7, model="gpt-x", endpoints=[{"name": "gpt-x"}]),
    )
    first, second = board(ours, api)
    assert first.made == "ada on Qwen2.5-0.5B · 494M parameters · 2026-11-26"
    assert second.made == "gpt-x · size unknown · date unknown"
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert page.count("not measured") == 2 and first.made in page
    check = write_check(tmp_path / "elsewhere", "a" * 64)
    with pytest.raises(SettingsError, match=r"no system is of the model that .*elsewhere checked"):
        board(api, check)
    first, second = board(ours, api, check)
    (change,) = first.safety
    assert change["verdict"] == "✗" and change["measure"] == "refusals, in the role" and "recall 83 %" in change["by"]
    assert not second.safety
    page = parse((tmp_path / "site" / "index.html").read_text(encoding="utf-8"))
    assert "safety/ada.json" in page.references and (tmp_path / "site" / "safety" / "ada.json").is_file()
    # By name it counts for a model whose weights nobody knows; next to the replies, for the model that it checked.
    assert board(ours, api, f"api={check}")[1].safety == first.safety
    check.rename(tmp_path / "safety")
    assert [bool(entry.safety) for entry in board(ours, api)] == [True, False]


def spread(*ends: tuple[float, float]) -> Sequence[Any]:
    from rolellm.scoring.statistics.intervals import Interval

    return [Interval((low + high) / 2, low, high) for low, high in ends]


def test_ranks_are_ranges_where_intervals_overlap() -> None:
    scores = spread((0.8, 0.9), (0.5, 0.7), (0.6, 0.75), (0.1, 0.2))
    assert [ranks(one, scores) for one in scores] == [(1, 1), (2, 3), (2, 3), (4, 4)]
    unknown = scores[0]._replace(low=None, high=None)
    assert ranks(unknown, [unknown, *scores[1:]]) == (1, 4)


@pytest.mark.browser
def test_filters_by_hand_and_by_keyboard(
    board: Board, write_replies: WriteReplies, tmp_path: Path, chromium: Callable[..., Any]
) -> None:
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.select import Select

    board(
        write_replies("alpha", 0.4), write_replies("beta", 1.0), write_replies("gamma", 0.7, rows=slice(2)), mixed=True
    )
    driver = chromium()

    def shown() -> list[str]:
        heads = driver.find_elements("css selector", "#board tbody tr:not([hidden]) th b")
        return [head.text for head in heads]

    for scheme in ("light", "dark"):
        feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
        for width in (1200, 400):
            metrics(driver, width)
            driver.get((tmp_path / "site" / "index.html").as_uri())
            assert driver.execute_script("return document.documentElement.scrollWidth") <= width
            assert driver.execute_script(_OUTSIDE) == []
    assert shown() == ["beta", "alpha", "gamma"]
    plots = driver.find_element("css selector", "#scores figure")
    assert plots.is_displayed() and driver.find_element("css selector", "#board .place").text == "1–2"
    role, answered = map(Select, driver.find_elements("css selector", "[data-facet]"))
    Select(driver.find_element("name", "sort")).select_by_visible_text("name")
    assert shown() == ["alpha", "beta", "gamma"]
    answered.select_by_index(1)
    assert shown() == ["alpha", "beta"] and not plots.is_displayed()
    role.select_by_visible_text("Owl")
    assert shown() == ["alpha", "beta"]
    assert driver.find_element("css selector", "#board tbody tr:not([hidden]) .mark").text == "Owl"
    # From the first field, with keys alone.
    text = driver.find_element("name", "text")
    text.send_keys("BET")
    assert shown() == ["beta"] and driver.find_element("id", "status").text == "1 line"
    text.send_keys(Keys.TAB, Keys.HOME)
    driver.switch_to.active_element.send_keys(Keys.HOME)
    assert role.first_selected_option.text == "All roles" and shown() == ["beta"]
    assert driver.get_log("browser") == []
    assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
