"""The contamination guard as a user meets it: tune, answer, score, each by its command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolellm.scoring.predictions import get_sidecar_path

from ..commands import Command, exit_code
from ..forking import Forking

# peft 0.21 asks transformers 5.23 by a deprecated name.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")]

ROLE = "Queen of Hearts"
RECIPE = f"""
data: {{config: sample, roles: [{ROLE}], replies: first}}
base:
  build: tiny-llama
  tiny: {{hidden_size: 16, intermediate_size: 32, layers: 1, heads: 2, vocab_size: 700}}
  warm: {{alone: 1, in_role: 1}}
method: {{name: lora, lora: {{r: 2}}}}
training: {{max_steps: 2, learning_rate: 1e-3, per_device_train_batch_size: 4, max_length: 512, use_cpu: true}}
output: {{dir: run}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current directory, with ``run``: a finished run, tuned on one role's training rows of the sample."""
    folder = tmp_path_factory.mktemp("contamination")
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    (folder / "short.txt").write_text("Speak as {role} would.", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert exit_code("train", "recipe.yaml", "--json") == 0
        yield folder


def generate(out: Path, *more: str, model: str = "run") -> list[str]:
    options = ["--role", ROLE, "--limit", "6", "--max-new-tokens", "2", "--set", "system_template=short.txt", "--json"]
    return ["generate", "--model", model, "--config", "sample", "--out", str(out), *options, *more]


def score(out: Path, *more: str) -> list[str]:
    return ["score", str(out), "--config", "sample", *more]


def test_answers_to_its_own_training_rows_are_marked_from_end_to_end(
    place: Path, tmp_path: Path, warm: Forking, command: Command
) -> None:
    out = tmp_path / "p.jsonl"
    # In a process of its own, where a warning is a message.
    done = warm.run(generate(out, "--split", "train"), place)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["contaminated"] == 6
    expected = "rows of sample/train whose instruction the model was trained on: 6 of 6 (run was tuned on sample/train)"
    assert f"warning: {expected}; their scores do not show instruction generalization\n  {ROLE}, “" in done.stderr
    assert done.stderr.count("warning: ") == 1
    assert "warning: " in done.stderr
    assert json.loads(get_sidecar_path(out).read_text(encoding="utf-8"))["contamination"]["contaminated"] == 6

    shown = command(*score(out, "--split", "train", "--json"))
    found = shown.result
    assert f"warning: {expected}" in shown.err
    assert (found["contamination"]["rows"], found["contamination"]["contaminated"]) == (6, 6)
    assert found["metrics_clean"]["avg"] is None
    assert any(expected in text for text in found["warnings"])
    shown = command(*score(out, "--split", "train"))
    assert shown.code == 0 and "rows not trained on" in shown.out
    refused = command(*score(out, "--split", "train", "--set", "strict=true"))
    assert (refused.code, refused.out) == (1, "")
    assert "refused, as asked by strict: rows of sample/train" in refused.err
    assert expected in refused.err
