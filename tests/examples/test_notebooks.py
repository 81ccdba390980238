"""The notebooks run from top to bottom, as a reader runs them."""

import os

import nbformat
import pytest
from nbclient import NotebookClient


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", ["01_rolebench"])
def test_notebook(name, root, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(root / "examples" / f"{name}.ipynb", as_version=4)
    client = NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env=dict(os.environ))
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    shown = [output.get("data", {}) for output in outputs]
    assert any("<svg" in data.get("image/svg+xml", "") for data in shown)
    assert any("CUS" in data.get("text/html", "") for data in shown)
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


def test_committed_notebooks_hold_no_output(root):
    """Outputs of one machine are not part of the source."""
    for path in (root / "examples").glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        assert not [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs], path.name
