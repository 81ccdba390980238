"""What people are asked to label, and the page on which they do."""

import csv
import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.jsonl import write_jsonl
from rolellm.judging.people.labels import read_labels
from rolellm.judging.records import read_run
from rolellm.reporting.labelling.tasks import LabelTask

from ...judge_runs import CONTESTANTS, make_comparison, make_rows, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", make_comparison(make_rows(6)))


def open_task(folder: Path, annotator: str = "anna") -> LabelTask:
    return LabelTask(read_run(folder), annotator, 50)


def test_a_ranking_is_kept_as_ranks_of_the_systems(folder: Path) -> None:
    task = open_task(folder)
    task.save(0, ["2", "1", "2"])
    task.save(1, None)
    assert task.statuses() == ["done", "skipped", "open", "open", "open", "open"]
    first, second = read_labels(read_run(folder), "anna").values()
    assert first.ranks == dict(zip(task.items[0].answers, (2, 1, 2), strict=True)) and second.said is None
    # Opened anew, it says what was said.
    again = open_task(folder)
    assert (again.values(0), again.values(1), again.statuses()) == (["2", "1", "2"], [None] * 3, task.statuses())


def test_nothing_that_is_shown_names_a_system(folder: Path, tmp_path: Path) -> None:
    task = open_task(folder)
    task.write_sheet(tmp_path / "sheet.csv")
    shown = (tmp_path / "sheet.csv").read_text(encoding="utf-8") + str([item.texts for item in task.items])
    assert not [name for name in CONTESTANTS if name in shown]


@pytest.mark.parametrize("values", [["1", "2", None], ["1", "2", "4"], ["yes", "no", "no"], ["0", "1", "2"]])
def test_what_is_no_label_is_refused_and_nothing_written(folder: Path, values: list[str | None]) -> None:
    with pytest.raises(DataError, match=r"place of [ABC]: choose one of 1, 2, 3"):
        open_task(folder).save(0, values)
    assert not (folder / "labels").exists()


def fill(path: Path, *filled: tuple[int, list[str]], **form: Any) -> None:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        lines = list(csv.reader(stream))
    for index, words in filled:
        lines[index + 1][-len(words) :] = words
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, **form).writerows(lines)


def test_a_sheet_goes_out_blind_and_comes_back(folder: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.csv"
    open_task(folder).write_sheet(sheet)
    # As a spreadsheet saves it where a comma is a decimal point.
    fill(sheet, (0, ["1", "3", " 2 "]), (2, ["Skip", "", ""]), delimiter=";", quoting=csv.QUOTE_ALL)
    task = open_task(folder)
    assert (task.read_sheet(sheet), task.statuses().count("open")) == (2, 4)
    assert task.values(0) == ["1", "3", "2"] and task.statuses()[2] == "skipped"
    # What is written anew has what was said.
    open_task(folder).write_sheet(tmp_path / "again.csv")
    assert open_task(folder).read_sheet(tmp_path / "again.csv") == 0
    with pytest.raises(FileExistsError):
        open_task(folder).write_sheet(sheet)


@pytest.mark.parametrize(
    ("words", "who"),
    [
        pytest.param(["1", "", ""], "anna", id="half a ranking"),
        pytest.param(["1", "2", "first"], "anna", id="no place"),
        pytest.param(["1", "2", "3"], "bela", id="another order"),
    ],
)
def test_a_sheet_that_says_something_else_is_refused_by_line(
    folder: Path, tmp_path: Path, words: list[str], who: str
) -> None:
    sheet = tmp_path / "sheet.csv"
    open_task(folder).write_sheet(sheet)
    fill(sheet, *((index, words) for index in range(2, 6)))
    with pytest.raises(DataError, match=r"sheet\.csv:[4-7]"):
        open_task(folder, who).read_sheet(sheet)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param("item,place of A\n".encode("utf-16"), "not in UTF-8", id="utf-16"),
        pytest.param(b"item|A|place of A\n1|x|1\n", "lacks the columns item, place of A", id="cut elsewhere"),
        pytest.param(b"", "lacks the columns item, place of A", id="empty"),
    ],
)
def test_a_file_that_is_no_sheet_is_refused(folder: Path, tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "sheet.csv").write_bytes(content)
    with pytest.raises(DataError, match=problem):
        open_task(folder).read_sheet(tmp_path / "sheet.csv")


def test_a_text_is_no_formula_and_hides_nothing(folder: Path, tmp_path: Path) -> None:
    text = "=HYPERLINK(a)\u202eb\x1b[31m\ud800"
    write_run(folder, make_comparison(make_rows(1)))
    answers = {"id": "row-000", "answers": dict.fromkeys(CONTESTANTS, text)}
    (folder / "answers.jsonl").write_text(json.dumps(answers) + "\n")
    task = open_task(folder)
    assert task.items[0].texts["A"] == "=HYPERLINK(a)⟨U+202E⟩b␛[31m⟨U+D800⟩"
    task.write_sheet(tmp_path / "sheet.csv")
    assert "'=HYPERLINK(a)" in (tmp_path / "sheet.csv").read_text(encoding="utf-8")


def test_a_full_disk_loses_no_label(folder: Path) -> None:
    task = open_task(folder)
    task.save(0, ["1", "2", "3"])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (task.path.stat().st_size + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="large"):
            task.save(1, ["1", "2", "3"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert task.statuses()[:2] == ["done", "open"]
    task.save(1, ["1", "2", "3"])
    assert len(read_labels(read_run(folder), "anna")) == 2


def test_one_more_system_opens_a_row_again_and_keeps_what_was_said(folder: Path) -> None:
    open_task(folder).save(0, ["1", "2", "3"])
    write_run(folder, make_comparison(make_rows(6), {**CONTESTANTS, "newcomer": "model"}))
    task = open_task(folder)
    assert task.statuses()[0] == "open" and len(task.items[0].answers) == 4
    assert len(read_labels(read_run(folder), "anna")) == 1
    # More systems than letters are refused.
    write_run(folder, make_comparison(make_rows(1), {f"s{number}": "model" for number in range(27)}))
    with pytest.raises(SettingsError, match="at most 26"):
        open_task(folder)


# --- the page


ROLELLM = str(Path(sys.executable).parent / "rolellm")
HOSTILE = "<script>document.title='hurt'</script><img src=http://evil.example/b.png onerror=alert(1)>"


@pytest.mark.browser
def test_every_item_is_labelled_blind(tmp_path: Path, chromium: Callable[..., Any]) -> None:
    pytest.importorskip("gradio")
    folder = write_run(tmp_path / "run", make_comparison(make_rows(3)))
    texts = {"row-000": dict.fromkeys(CONTESTANTS, HOSTILE)}
    answers = [{"id": f"row-{number:03}", "answers": dict.fromkeys(CONTESTANTS, "Aye.")} for number in (1, 2)]
    write_jsonl(folder / "answers.jsonl", [*({"id": key, "answers": value} for key, value in texts.items()), *answers])
    words = [ROLELLM, "label", str(folder), "--annotator", "anna", "--limit", "3"]
    process = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        url = process.stderr.readline().split(" ")[1]
        driver = chromium()
        driver.get(url)

        def wait_for(text: str) -> None:
            end = time.monotonic() + 60
            while text not in driver.find_element("tag name", "body").text:
                assert time.monotonic() < end, driver.find_element("tag name", "body").text
                time.sleep(0.05)

        def press(name: str) -> None:
            driver.find_element("xpath", f"//button[normalize-space()='{name}']").click()

        wait_for("Item 1 of 3 (open), 3 left")
        press("Save")
        wait_for("the label is not saved")
        for left in (2, 1):
            for group in driver.find_elements("css selector", "fieldset"):
                group.find_elements("css selector", "input[type=radio]")[1].click()
            press("Save")
            wait_for(f"{left} left")
        press("Skip")
        wait_for("All is labeled.")
        press("Back")
        wait_for("rolellm label --agreement")
        page = driver.page_source
        assert driver.title == "Rank answers" and not [name for name in CONTESTANTS if name in page]
        # The texts are plain ones.
        assert driver.execute_script("return document.querySelectorAll('img[src*=evil]').length") == 0
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "2 of 3 labeled, 1 skipped, 0 left" in said
