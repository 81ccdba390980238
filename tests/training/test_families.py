"""Families of models: those in the list share prefixes exactly; all others are known by their `config.json`."""

import random
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from rolellm.core.errors import ModelError, RoleLLMWarning
from rolellm.models.families import EXACT as KNOWN
from rolellm.models.families import explain_not_shared
from rolellm.models.prefix_sharing import share_prefixes
from rolellm.training.examples import Example
from rolellm.training.fit import RowCollator
from rolellm.training.train import prepare, train

from ..versions import needs
from .models import BOUND, SIZES, distance, gradient, new_model
from .runs import make_recipe

VOCABULARY = 100
# Shorter than a role's beginning, longer than a reply.
WINDOW = 8
TEXT = SIZES | {"vocab_size": VOCABULARY}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
LATER_WINDOWS = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
CAPPED = {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 1.0, "final_logit_softcapping": 2.0}

NEEDS_CAPS = needs("transformers", "5.21", "leaves out Gemma 2's cap under SDPA")

EXACT = [
    pytest.param("Llama", {}, id="llama"),
    pytest.param("Glm", {}, id="glm"),
    pytest.param("Glm4", {}, id="glm4"),
    pytest.param("Qwen2", {}, id="qwen2"),
    pytest.param("Qwen2", LATER_WINDOWS, id="qwen2-window"),
    pytest.param("Qwen3", {}, id="qwen3"),
    pytest.param("Qwen3", LATER_WINDOWS, id="qwen3-window"),
    pytest.param("Gemma2", {"sliding_window": WINDOW} | CAPPED, id="gemma2"),
    pytest.param("Gemma3Text", {"sliding_window": WINDOW, "sliding_window_pattern": 2}, id="gemma3"),
    pytest.param("Mistral", {"sliding_window": None}, id="mistral"),
    pytest.param("Mistral", {"sliding_window": WINDOW}, id="mistral-window"),
    pytest.param("Phi", {}, id="phi"),
    pytest.param("Phi3", {}, id="phi3"),
    pytest.param("Phi3", {"sliding_window": WINDOW}, id="phi3-window"),
]
# What they would be without what sets them apart.
PLAIN = [
    pytest.param("Qwen2", LATER_WINDOWS, {"use_sliding_window": False}, id="qwen2-window"),
    pytest.param("Qwen3", LATER_WINDOWS, {"use_sliding_window": False}, id="qwen3-window"),
    pytest.param("Gemma2", {"sliding_window": WINDOW} | CAPPED, {"sliding_window": 1024}, id="gemma2-window"),
    pytest.param(
        "Gemma2",
        {"sliding_window": WINDOW} | CAPPED,
        {"attn_logit_softcapping": None},
        id="gemma2-softcapping",
        marks=NEEDS_CAPS,
    ),
    pytest.param("Gemma3Text", {"sliding_window": WINDOW}, {"sliding_window": 1024}, id="gemma3-window"),
    pytest.param("Mistral", {"sliding_window": WINDOW}, {"sliding_window": None}, id="mistral-window"),
    pytest.param("Phi3", {"sliding_window": WINDOW}, {"sliding_window": None}, id="phi3-window"),
]
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
HEADS = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "shared_expert_intermediate_size": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
ROWS = [
    pytest.param("Gemma3", {"text_config": TEXT, "vision_config": VISION}, "gemma3", id="gemma3-with-images"),
    pytest.param("Mixtral", {"num_local_experts": 4}, "mixtral", id="mixtral"),
    pytest.param("Qwen3Moe", EXPERTS, "qwen3_moe", id="qwen3-moe"),
    pytest.param("Qwen3Next", EXPERTS | HEADS, "qwen3_next", id="qwen3-next"),
    pytest.param("Mamba", {}, "mamba", id="mamba"),
    pytest.param("Jamba", {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1}, "jamba", id="jamba"),
    pytest.param("FalconH1", {"mamba_d_ssm": 32, "mamba_n_heads": 4}, "falcon_h1", id="falcon-h1"),
]


def read_config(config: Any, folder: Path) -> Any:
    """A configuration as its `config.json` says it."""
    config.save_pretrained(folder)
    return AutoConfig.from_pretrained(folder)


def test_positions_that_depend_on_a_text_s_length_are_exact_up_to_the_length_where_they_change(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
    plain, shared = (
        new_model("Phi3", VOCABULARY, original_max_position_embeddings=7, rope_parameters=rope).train()
        for _ in range(2)
    )
    share_prefixes(shared)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11], [5, 6, 7, 8, 9, 10, 12]])
    (ours, theirs) = (gradient(model, model(ids, labels=ids).loss) for model in (shared, plain))
    assert distance(ours, theirs) < BOUND
    reason = "one that encodes positions in another way beyond 7 tokens; the longest row has 8"
    with pytest.raises(ModelError, match=f"prefixes cannot be shared: the model is {reason}"):
        shared(torch.cat([ids, ids[:, :1]], dim=1))
    config = read_config(plain.config, tmp_path)
    assert (explain_not_shared(config, 7), explain_not_shared(config, 8)) == (None, reason)


def test_a_model_whose_tokens_see_later_ones_is_trained_by_rows(tmp_path: Path) -> None:
    config = read_config(new_model("Gemma3Text", VOCABULARY, use_bidirectional_attention=True).config, tmp_path)
    assert explain_not_shared(config, 8) == "one whose tokens see those after them"


@pytest.mark.parametrize(("family", "sizes", "kind"), ROWS)
def test_others_share_nothing_and_their_padded_rows_are_trained_as_each_is_alone(
    family: str, sizes: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    chance = random.Random(0)
    rows = [
        Example(str(number), *(tuple(chance.choices(range(3, VOCABULARY), k=count)) for count in (6, 2 + number)))
        for number in range(4)
    ]
    model = new_model(family, VOCABULARY, **sizes).train()
    reason = explain_not_shared(read_config(model.config, tmp_path), 512)
    assert reason is not None
    assert reason.startswith(f"a model of type {kind}; ")
    with pytest.raises(ModelError, match=rf"prefixes cannot be shared: the model is a model of type {kind}; "):
        share_prefixes(model)
    batch = RowCollator(rows, pad_id=0)([{"example": number} for number in range(4)])
    trained = sum(len(row.reply_ids) for row in rows)
    alone = sum(
        model(input_ids=torch.tensor([row.input_ids]), labels=torch.tensor([row.labels])).loss * len(row.reply_ids)
        for row in rows
    )
    expected = gradient(model, alone / trained)
    assert distance(gradient(model, model(**batch).loss), expected) < BOUND


@pytest.mark.slow
def test_a_run_falls_back_to_rows_and_says_so(tokenizer: Any, tmp_path: Path) -> None:
    base = tmp_path / "base"
    model = new_model("Mamba", len(tokenizer))
    model.config.save_pretrained(base)
    tokenizer.save_pretrained(base)
    recipe = make_recipe(tmp_path, base={"path": str(base)})
    notice = r"row by row, without shared prefixes: the base is a model of type mamba;"
    with pytest.warns(RoleLLMWarning, match=notice):
        settled = prepare(recipe, tmp_path / "run").training  # There are no weights yet.
    assert (settled.shared_prefix, settled.replies_per_step) == (False, recipe.training.replies_per_step)
    model.save_pretrained(base)
    with pytest.warns(RoleLLMWarning, match=notice):
        assert len(train(recipe).metrics) == 3


def test_the_table_in_the_docs_says_what_is_tested(root: Path) -> None:
    text = (root / "docs" / "training.md").read_text(encoding="utf-8")
    table = text[text.index("| family |") :].split("\n\n")[0].splitlines()[2:]
    documented = {
        kind: trained.strip()
        for _, kinds, trained, _ in (line.strip("|").split("|") for line in table)
        for kind in re.findall("`(.*?)`", kinds)
    }
    exact = {new_model(case.values[0], VOCABULARY, **case.values[1]).config.model_type for case in EXACT}
    assert exact == set(KNOWN)
    assert documented == dict.fromkeys(exact, "exact") | {case.values[2]: "row by row" for case in ROWS}


@pytest.mark.parametrize("name", ["shared_prefix", "stages"])
def test_a_picture_is_the_one_that_is_drawn(root: Path, name: str) -> None:
    file = root / "docs" / "img" / f"{name}.py"
    drawing = runpy.run_path(str(file))["drawing"]()
    assert file.with_suffix(".svg").read_text(encoding="utf-8") == drawing
