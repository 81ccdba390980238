"""What `import rolellm` gives, and what it must not cost."""

import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

import rolellm
import rolellm.evaluation

FRONT_DOOR = [
    *("Character", "LLM", "RoleLLMError", "RolePlayer", "__version__", "certify", "check", "eval", "export"),
    *("generate", "improve", "judge", "load_rolebench", "make", "play_scene", "push", "report", "rewards"),
    *("rouge_l", "score", "share_prefixes", "style", "train"),
]


def test_public_names():
    assert sorted(rolellm.__all__) == FRONT_DOOR
    assert len(FRONT_DOOR) <= 25
    assert dir(rolellm) == FRONT_DOOR
    assert rolellm.evaluation.__all__ == ["RougeScore", "rouge_l"]
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = rolellm.trian


@pytest.mark.parametrize("name", FRONT_DOOR)
def test_each_name_is_what_it_says(name):
    assert isinstance(getattr(rolellm, name), {"__version__": str, "rewards": ModuleType}.get(name, Callable))


def test_import_and_help_stay_light():
    """The times are measured by benchmarks/load.py; here, what would make them long is kept out."""
    heavy = ("torch", "transformers", "trl", "peft", "openai", "datasets", "pyarrow", "numpy", "rjieba", "matplotlib")
    code = f"""
import sys, rolellm, rolellm.cli.app
print([name for name in {heavy!r} if name in sys.modules])
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_version_option():
    shown = subprocess.run([sys.executable, "-m", "rolellm", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == rolellm.__version__
