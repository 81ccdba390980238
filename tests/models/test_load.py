"""Loading a checkpoint."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rolellm.core import limits
from rolellm.core.errors import ModelError
from rolellm.models.load import load_adapter, load_whole


def test_the_output_layer_gets_states_that_it_multiplies_at_once(tiny_model: Path) -> None:
    # Otherwise PyTorch copies the frozen layer for each row in half precision, which no figure of a result shows.
    import torch

    model = load_whole(tiny_model).requires_grad_(requires_grad=False)
    seen = []
    model.get_output_embeddings().register_forward_hook(lambda _, args, __: seen.append(args[0]))
    with torch.no_grad():
        model(torch.ones(3, 5, dtype=torch.long), logits_to_keep=1)
    assert [(states.shape[:2], states.is_contiguous()) for states in seen] == [((3, 1), True)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param({"target_modules": "(.*)*!"}, "'(.*)*!' cannot be used: takes over 0.3 seconds", id="target"),
        pytest.param({"rank_pattern": {"(.|.)*!": 4}}, "'(.|.)*!' cannot be used: takes over 0.3 seconds", id="rank"),
        pytest.param({"exclude_modules": "(q"}, "'(q' cannot be used: missing )", id="not-a-pattern"),
    ],
)
def test_an_adapter_whose_patterns_do_not_end_is_refused(
    settings: dict[str, object], words: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SECONDS", 0.3)
    config = {"peft_type": "LORA", "base_model_name_or_path": str(tiny_model), "target_modules": ["q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | settings), encoding="utf-8")
    with pytest.raises(ModelError, match=re.escape(words)):
        load_adapter(load_whole(tiny_model), str(tmp_path))
