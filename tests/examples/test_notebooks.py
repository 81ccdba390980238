"""The notebooks run from top to bottom, as a reader runs them."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("name", "kind", "shows"),
    [
        pytest.param("01_rolebench", "text/html", "CUS", id="01_rolebench"),
        pytest.param("02_rocit", "image/png", "CUS", id="02_rocit"),
        pytest.param("03_your_character", "text/html", "role_specific", id="03_your_character"),
        pytest.param("04_judging", "text/html", "canary: echo", id="04_judging"),
        pytest.param("05_talk", "text/plain", "", id="05_talk"),
    ],
)
def test_notebook(name, kind, shows, root, tmp_path, monkeypatch):
    for helper in (root / "examples").glob("*.py"):
        shutil.copy(helper, tmp_path)
    # The commands, as in an activated environment.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(root / "examples" / f"{name}.ipynb", as_version=4)
    client = NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env=dict(os.environ))
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    shown = [output.get("data", {}) for output in outputs]
    assert any(data.get(kind) for data in shown)
    assert any(shows in data.get("text/html", "") for data in shown)
    texts = [str(data.get("text/plain", output.get("text", ""))) for output, data in zip(outputs, shown, strict=True)]
    if name == "02_rocit":
        assert "(False, True)" in texts  # the second push is a no-op
        (difference,) = [text for text in texts if text.startswith("largest difference of a logit:")]
        assert float(difference.rpartition(" ")[2]) < 1e-4
        assert any("role-player" in data.get("text/markdown", "") for data in shown)
    if name == "03_your_character":
        check_your_character(texts, tmp_path)
    if name == "04_judging":
        assert "again: 0 calls, 820 replies" in "\n".join(texts) and (tmp_path / "report.html").is_file()
    if name == "05_talk":
        text = "\n".join(texts)
        for said in (
            "did you mean Queen of Hearts",
            "lore called up: key",
            "Seventy-two steps",
            "the context is full",
        ):
            assert said in text
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


def check_your_character(texts, folder):
    """What its cells claim is so."""
    text = "\n".join(texts)
    assert "THE PILOT" in text
    assert "might go beyond the budget" in text
    first, again = map(int, re.search(r"first: (\d+) calls; again: (\d+) calls", text).groups())
    assert first > 0 and again == 0
    charged, recorded = map(float, re.search(r"charged: \$([\d.]+); recorded: \$([\d.]+)", text).groups())
    assert 0 < charged <= recorded < 2 * charged
    assert re.search(r"faults: \{'", text)
    assert "the same description: True" in text
    assert "{'train': ['Mara'], 'test': ['Tobin Ash']}" in text
    manifest = json.loads((folder / "release" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["held_out_roles"] == ["Tobin Ash"]


def test_committed_notebooks_hold_no_output(root):
    """Outputs of one machine are not part of the source."""
    for path in (root / "examples").glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        assert not [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs], path.name
