"""What `import rolellm` gives, and what it must not cost."""

import subprocess
import sys

import rolellm
import rolellm.evaluation


def test_public_names():
    assert sorted(rolellm.__all__) == ["RoleLLMError", "__version__", "dataset_fingerprint", "load_rolebench"]
    assert sorted(rolellm.evaluation.__all__) == [
        "Predictions",
        "RougeScore",
        "ScoreOptions",
        "ScoreReport",
        "bootstrap_ci",
        "read_predictions",
        "rouge_l",
        "score",
    ]
    for module in (rolellm, rolellm.evaluation):
        assert [name for name in module.__all__ if not hasattr(module, name)] == []


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
