"""Tables as files, progress on a terminal, and threads that wait asleep."""

import csv
import io
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rolellm.core import progress
from rolellm.core.progress import announce_imports, open_bar, track_progress
from rolellm.core.table import PERCENT, Format, Interval, Table, TableRow, write_tables
from rolellm.core.threads import wait_briefly

SCORE = Interval(0.29264, 0.25, 0.3401, 1200)


def table(
    name: str = "RoleLLaMA", word: str = "< 0.001", *, title: str = "Scores", note: str = "protocol paper"
) -> Table:
    rows = (
        TableRow(("Published",), (Interval(0.5),) + (None,) * 2, ("published",), "published"),
        TableRow((name,), (SCORE, Interval(-1.5, -2.0, -1.0, 3), word), ("baseline",)),
    )
    return Table(
        title, ("System",), ("Win, %", "Strength", "p"), rows, note, {"Win, %": PERCENT, "Strength": Format(2)}
    )


def read_csv(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def test_csv_has_each_number_in_a_column_of_its_own() -> None:
    heads, published, ours = read_csv(table().to_csv())
    assert heads == [
        *("System", "marks", "Win, %", "Win, % low", "Win, % high", "Win, % n"),
        *("Strength", "Strength low", "Strength high", "Strength n", "p", "note"),
    ]
    found = dict(zip(heads, ours, strict=True))
    assert [float(found[name]) for name in heads[2:5]] == pytest.approx([29.264, 25.0, 34.01])
    assert found["Win, % n"] == "1200"
    # A negative number begins with a minus, and must stay a number.
    assert float(found["Strength low"]) == -2.0
    assert (found["marks"], found["p"], found["note"]) == ("baseline", "< 0.001", "protocol paper")
    assert published[3:6] == ["", "", ""] and published[1] == "published"


FORMULAS = [
    pytest.param('=HYPERLINK("http://example.org","x")', id="equals"),
    pytest.param("+1+cmd|' /C calc'!A0", id="plus"),
    pytest.param("@SUM(1)", id="at"),
    pytest.param("\r=1", id="carriage-return"),
    pytest.param("  =1", id="after-spaces"),
    pytest.param("＝1", id="full-width"),
]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_in_a_csv_is_only_text(text: str) -> None:
    lines = read_csv(table(name=text, word=text, note=text).to_csv())
    assert len(lines) == 3
    cells = [lines[2][0], lines[2][-2], lines[2][-1]]
    assert all(cell.startswith("'") for cell in cells)


ODD = [
    pytest.param(r"\input{/etc/passwd}", id="latex-command"),
    pytest.param("100 % & $x_1^2$ #1 {~}", id="latex-specials"),
    pytest.param("a & b \\\\ c", id="latex-cells"),
    pytest.param("<script>alert(1)</script>", id="script"),
    pytest.param("![x](http://example.org/x.png)", id="remote-image"),
    pytest.param("two\nlines\r\nand more", id="line-feeds"),
    pytest.param("\x1b[31mred\x1b[2J\x00", id="ansi"),
    pytest.param("\u202eevil\u200b\U000e0041", id="bidi-and-tags"),
    pytest.param("\ud800", id="surrogate"),
]


@pytest.mark.parametrize("text", ODD)
def test_text_is_only_text_in_every_file(text: str, tmp_path: Path) -> None:
    odd = table(name=text, word=text, title=text, note=text)
    written = write_tables(tmp_path / "new", {"scores": odd})
    assert [path.name for path in written] == ["scores.md", "scores.csv", "scores.tex"]
    markdown, sheet, latex = (path.read_text(encoding="utf-8") for path in written)
    for shown in (markdown, sheet, latex):
        assert not set(shown) & set("\x1b\x00\r\u202e\u200b\U000e0041\ud800")
    assert [len(line) for line in read_csv(sheet)] == [12] * 3
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in markdown.splitlines() if line.startswith("|")]
    assert {len(line) for line in cells} == {4} and not re.search(r"(?<!\\)[<\[](?=script|x\])", markdown)
    assert_inert(latex)


def assert_inert(latex: str) -> None:
    """Groups close where they open, and the commands are ours, each as often as with a harmless name."""
    depth = 0
    for mark in re.sub(r"\\[{}\\]", "", latex):
        depth += {"{": 1, "}": -1}.get(mark, 0)
        assert depth >= 0
    assert depth == 0
    own = set(re.findall(r"\\([a-zA-Z]+)", table().to_latex(label="x")))
    letters = {
        "textbackslash",
        "textasciitilde",
        "textasciicircum",
        "textless",
        "textgreater",
        "textbar",
        "textquotedbl",
    }
    assert set(re.findall(r"\\([a-zA-Z]+)", latex)) <= own | letters | {"ensuremath"}
    body = latex[latex.index(r"\toprule") : latex.index(r"\bottomrule")]
    rows = re.sub(r"\\(textbackslash|[&%$#_{}])", "", body)
    assert rows.count("&") == 3 * 3 and rows.count("\\\\") == 3


def test_latex_prints_intervals_marks_and_groups() -> None:
    latex = table().to_latex(label="scores")
    assert r"29.3 {\scriptsize {[}25.0, 34.0{]}} {\scriptsize n=1,200}" in latex
    assert r"\ensuremath{-}1.50 {\scriptsize {[}\ensuremath{-}2.00, \ensuremath{-}1.00{]}}" in latex
    assert "RoleLLaMA (baseline) &" in latex and "Published (published) &" in latex
    assert r"\label{tab:scores}" in latex and "protocol paper" in latex
    # One rule under the heads, one under the published rows.
    assert latex.count(r"\midrule") == 2


# --- progress


LABEL = f"RoleGPT \x07\u202e{'x' * 200}"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_is_shown(is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "_DELAY", 0.01)
    monkeypatch.setattr(progress, "_BETWEEN_LINES", 0.05)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    with open_bar(LABEL, 3, done=1, unit="rows") as bar:
        bar.set_postfix_str("loss 2.31", refresh=False)
        for _ in range(2):
            time.sleep(0.1)
            bar.update()
    shown = capsys.readouterr().err
    assert "\x07" not in shown and "\u202e" not in shown
    assert ("\r" in shown) is is_terminal
    assert "3/3" in shown and "rows/s, loss 2.31" in shown
    assert len(shown.splitlines()) <= 4 or is_terminal


def test_nothing_is_shown_of_what_is_quick_or_not_to_be_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(track_progress([1, 2], "quick")) == [1, 2]
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    with open_bar("hidden", 1, show=False) as bar:
        bar.update()
    assert capsys.readouterr().err == ""


def test_a_slow_import_is_named_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "slow_package.py").write_text("import time; time.sleep(1.5)")
    code = "from rolellm.core.progress import announce_imports; announce_imports(); import slow_package"
    near, far = os.openpty()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    subprocess.run([sys.executable, "-c", code], stderr=far, env=env, check=True)
    os.close(far)
    assert os.read(near, 1000).decode().split() == ["Loading", "slow_package", "…"]
    os.close(near)
    announce_imports()
    assert "imports" not in {thread.name for thread in threading.enumerate()}, "nothing where there is no terminal"


# --- threads


@pytest.mark.parametrize(
    ("given", "spins"),
    [
        pytest.param({}, "20000", id="nothing-said"),
        pytest.param({"GOMP_SPINCOUNT": "7"}, "7", id="spins-said"),
        pytest.param({"OMP_WAIT_POLICY": "ACTIVE"}, None, id="policy-said"),
    ],
)
def test_what_the_user_said_stands(given: dict[str, str], spins: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that what is set below is taken back afterwards
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    wait_briefly()
    assert os.environ.get("GOMP_SPINCOUNT") == spins


def test_the_entry_point_gets_there_before_torch() -> None:
    code = "import sys, rolellm.cli.train, rolellm.training.train, rolellm.core.threads; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
