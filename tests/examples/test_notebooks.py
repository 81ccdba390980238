"""The notebooks run from top to bottom, as a reader runs them."""

import os
import shutil

import nbformat
import pytest
from nbclient import NotebookClient


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("name", "picture"),
    [
        pytest.param("01_rolebench", "image/svg+xml", id="01_rolebench"),
        pytest.param("02_rocit", "image/png", id="02_rocit", marks=pytest.mark.slow),
    ],
)
def test_notebook(name, picture, root, tmp_path, monkeypatch):
    for helper in (root / "examples").glob("*.py"):
        shutil.copy(helper, tmp_path)
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
    assert any(data.get(picture) for data in shown)
    assert any("CUS" in data.get("text/html", "") for data in shown)
    if name == "02_rocit":
        texts = [
            str(data.get("text/plain", output.get("text", ""))) for output, data in zip(outputs, shown, strict=True)
        ]
        assert "(False, True)" in texts  # the second push is a no-op
        (difference,) = [text for text in texts if text.startswith("largest difference of a logit:")]
        assert float(difference.rpartition(" ")[2]) < 1e-4
        assert any("role-player" in data.get("text/markdown", "") for data in shown)
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


def test_committed_notebooks_hold_no_output(root):
    """Outputs of one machine are not part of the source."""
    for path in (root / "examples").glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        assert not [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs], path.name
