"""What `import rolellm` gives, and what it must not cost."""

import importlib
import subprocess
import sys

import pytest

import rolellm
import rolellm.evaluation

FRONT_DOOR = [
    *("Character", "LLM", "RoleLLMError", "RolePlayer", "__version__", "dataset_fingerprint", "generate", "judge"),
    *("load_rolebench", "push", "report", "rouge_l", "score", "train"),
]


def _there(name: str) -> bool:
    module, _, attribute = rolellm._NAMES.get(name, "rolellm:__version__").partition(":")
    try:
        return hasattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError:
        return False


def test_public_names():
    assert sorted(rolellm.__all__) == FRONT_DOOR
    assert len(FRONT_DOOR) <= 20
    assert set(FRONT_DOOR) <= set(dir(rolellm))
    assert rolellm.evaluation.__all__ == ["rouge_l"]
    assert [name for name in rolellm.evaluation.__all__ if not hasattr(rolellm.evaluation, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = rolellm.trian


@pytest.mark.parametrize("name", FRONT_DOOR)
def test_each_name_is_what_it_says(name):
    if not _there(name):
        pytest.xfail("its room does not have it yet")
    found = getattr(rolellm, name)
    assert isinstance(found, str) if name == "__version__" else callable(found)


@pytest.mark.parametrize("first", ["rolellm.report", "rolellm.report.page"])
def test_report_is_a_function_and_a_package(first):
    """Whichever is used first: a package of the same name must not take the function's place."""
    code = f"""
import rolellm
if {first!r} == "rolellm.report":
    assert callable(rolellm.report)
import rolellm.report.page as page
from rolellm.report.page import write_page
assert callable(rolellm.report) and rolellm.report.page is page and page.write_page is write_page
try:
    rolellm.report()
except (TypeError, AttributeError, rolellm.RoleLLMError) as error:
    assert "not callable" not in str(error)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr


def test_import_and_help_stay_light():
    """The times are measured by benchmarks/load.py; here, what would make them long is kept out."""
    heavy = ("torch", "transformers", "trl", "peft", "openai", "datasets", "pyarrow", "numpy", "jieba", "matplotlib")
    code = f"""
import sys, rolellm, rolellm.cli.app
print([name for name in {heavy!r} if name in sys.modules])
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_version_option():
    shown = subprocess.run([sys.executable, "-m", "rolellm", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == rolellm.__version__


def test_unknown_command_is_bad_usage():
    shown = subprocess.run([sys.executable, "-m", "rolellm", "trian"], capture_output=True, text=True, check=False)
    assert shown.returncode == 2
    assert "Traceback" not in shown.stderr
