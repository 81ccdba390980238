"""Files of answers by the tiny model: made, continued, and read."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.records import Row
from rolellm.scoring.generate import GenerateResult, answer_rows
from rolellm.scoring.predictions import get_sidecar_path
from rolellm.scoring.settings import GenerateSettings


class Answers:
    """A file of answers, by a test's settings.

    Args:
        path: The file.
        settings: Where a run does not change them.
        make_rows: Makes the rows of a run that names only how many.
    """

    def __init__(self, path: Path, settings: GenerateSettings, make_rows: Callable[[int], list[Row]]) -> None:
        self.path, self.settings, self._make_rows = path, settings, make_rows

    def run(self, rows: int | Sequence[Row], **changes: Any) -> GenerateResult:
        """Answer rows."""
        made = self._make_rows(rows) if isinstance(rows, int) else rows
        return answer_rows(made, self.path, replace(self.settings, **changes))

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]

    @property
    def sidecar(self) -> Path:
        return get_sidecar_path(self.path)

    @property
    def meta(self) -> dict[str, Any]:
        meta: dict[str, Any] = json.loads(self.sidecar.read_text(encoding="utf-8"))
        return meta

    @property
    def content(self) -> tuple[bytes | None, bytes | None]:
        """The bytes of both files."""
        answers, meta = (path.read_bytes() if path.exists() else None for path in (self.path, self.sidecar))
        return answers, meta


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


@pytest.fixture
def answers(tmp_path: Path, settings: GenerateSettings, make_rows: Callable[[int], list[Row]]) -> Answers:
    return Answers(tmp_path / "predictions" / "p.jsonl", settings, make_rows)


@pytest.fixture
def model_copy(tiny_model: Path, tmp_path: Path) -> Path:
    """A model of its own for each test, without a manifest."""
    return Path(shutil.copytree(tiny_model, tmp_path / "copy"))


@pytest.fixture
def adapter(model_copy: Path, tmp_path: Path) -> Path:
    """A LoRA adapter on that copy, with random weights, so that it changes what the base says."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model_copy)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        model = get_peft_model(base, config)
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"
