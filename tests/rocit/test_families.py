"""Families of models: packs train those in the list exactly as rows do; all others are known by their `config.json`."""

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import ModelError
from rolellm.rocit.packing.examples import Example, Examples
from rolellm.rocit.packing.tree import pack
from rolellm.rocit.recipe import load_recipe
from rolellm.rocit.train import RowByRowWarning, prepare, train

from .models import BOUND, SIZES, check_exact, distance, gradient, losses_alone, new_model, packed_loss

VOCABULARY = 100
# Shorter than a role's beginning, longer than a reply.
WINDOW = 8
TEXT = SIZES | {"vocab_size": VOCABULARY}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
LATER_WINDOWS = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
CAPPED = {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 1.0, "final_logit_softcapping": 2.0}

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
        "Gemma2", {"sliding_window": WINDOW} | CAPPED, {"attn_logit_softcapping": None}, id="gemma2-softcapping"
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


@pytest.fixture(scope="module")
def examples() -> Examples:
    """Two roles with two questions of three replies each, all of random tokens."""
    chance = random.Random(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(chance.randrange(3, VOCABULARY) for _ in range(count))

    def made() -> Iterator[Example]:
        for role in "ab":
            beginning = tokens(14)
            for number in range(2):
                question = tokens(5)
                for reply in range(3):
                    answer = tokens(chance.randint(3, 6))
                    yield Example(f"{role}-{number}", beginning + question, (*answer, 2), reply, role)

    return Examples.of(list(made()))


def by_rows(model: Any, examples: Examples) -> Any:
    return gradient(model, losses_alone(model, examples))


def read_again(config: Any, folder: Path) -> Any:
    """A configuration as its `config.json` says it."""
    from transformers import AutoConfig

    config.save_pretrained(folder)
    return AutoConfig.from_pretrained(folder)


@pytest.mark.parametrize(("family", "sizes"), EXACT)
def test_a_pack_has_the_loss_and_the_gradient_of_its_rows(
    family: str, sizes: dict[str, Any], examples: Examples, tmp_path: Path
) -> None:
    from rolellm.rocit.packing.attention import why_rows

    model = new_model(family, VOCABULARY, **sizes)
    config = read_again(model.config, tmp_path)
    assert [why_rows(config, flex=flex, longest=512) for flex in (False, True)] == [None, None]
    check_exact(model.train(), examples)


@pytest.mark.parametrize(("family", "sizes", "plain"), PLAIN)
def test_a_window_or_cap_that_is_left_out_would_show(
    family: str, sizes: dict[str, Any], plain: dict[str, Any], examples: Examples
) -> None:
    one, other = (by_rows(new_model(family, VOCABULARY, **kind), examples) for kind in (sizes, sizes | plain))
    assert distance(one, other) > 100 * BOUND


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch, of itself.
@pytest.mark.parametrize(("family", "sizes"), EXACT)
def test_flex_attention_gives_the_same_loss(family: str, sizes: dict[str, Any], examples: Examples) -> None:
    """Forward and uncompiled: on a CPU it has no gradient."""
    import torch

    from rolellm.rocit.packing.attention import attend
    from rolellm.rocit.packing.layout import summed_loss, tree_tensors

    model = new_model(family, VOCABULARY, **sizes)
    tree = pack(examples, range(len(examples)))
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        rows = losses_alone(model, examples).item()
        attend(model, flex=True, longest=int(examples.lengths.max()))
        packed = summed_loss(model, tree_tensors(tree, 256, 0), flex=True).item()
    assert packed == pytest.approx(rows, rel=1e-6)


def phi3_for_long_texts(limit: int) -> Any:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
    return new_model("Phi3", VOCABULARY, original_max_position_embeddings=limit, rope_parameters=rope)


def test_positions_that_depend_on_a_text_s_length_are_exact_up_to_the_length_where_they_change(
    examples: Examples, tmp_path: Path
) -> None:
    longest = int(examples.lengths.max())
    check_exact(phi3_for_long_texts(longest), examples)
    from rolellm.rocit.packing.attention import why_rows

    config = read_again(phi3_for_long_texts(longest - 1).config, tmp_path)
    assert why_rows(config, flex=False, longest=longest - 1) is None
    reason = f"one that encodes positions in another way beyond {longest - 1} tokens; the longest row has {longest}"
    assert why_rows(config, flex=False, longest=longest) == reason


def test_a_model_whose_tokens_see_later_ones_is_trained_by_rows(tmp_path: Path) -> None:
    from rolellm.rocit.packing.attention import why_rows

    config = read_again(new_model("Gemma3Text", VOCABULARY, use_bidirectional_attention=True).config, tmp_path)
    assert why_rows(config, flex=False, longest=8) == "one whose tokens see those after them"


@pytest.mark.parametrize(("family", "sizes", "kind"), ROWS)
def test_others_are_known_by_their_configuration_and_trained_by_rows(
    family: str, sizes: dict[str, Any], kind: str, examples: Examples, tmp_path: Path
) -> None:
    from rolellm.rocit.packing.attention import why_rows
    from rolellm.rocit.packing.layout import padded_rows, summed_loss

    model = new_model(family, VOCABULARY, **sizes).train()
    reason = why_rows(read_again(model.config, tmp_path), flex=False, longest=512)
    assert reason is not None
    assert reason.startswith(f"a model of type {kind}; ")
    with pytest.raises(ModelError, match=rf"type {kind}; .*training\.shared_prefix: false"):
        packed_loss(model, examples)
    padded = gradient(model, summed_loss(model, padded_rows(list(examples), 0)))
    assert distance(padded, by_rows(model, examples)) < BOUND


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft 0.21, of transformers 5.23.
@pytest.mark.parametrize(
    ("family", "sizes", "kind"),
    [case for case in ROWS if case.id in ("gemma3-with-images", "qwen3-next", "mamba")],
)
def test_a_run_falls_back_to_rows_and_says_so(
    family: str, sizes: dict[str, Any], kind: str, tokenizer: Any, tmp_path: Path, write_recipe: Callable[..., Path]
) -> None:
    base = tmp_path / "base"
    if "text_config" in sizes:
        sizes = sizes | {"text_config": TEXT | {"vocab_size": len(tokenizer)}}
    model = new_model(family, len(tokenizer), **sizes)
    model.config.save_pretrained(base)
    tokenizer.save_pretrained(base)
    recipe = load_recipe(write_recipe(tmp_path, base={"path": str(base)}))
    notice = rf"row by row, without shared prefixes, \d in a forward pass: the base is a model of type {kind};"
    with pytest.warns(RowByRowWarning, match=notice):
        settled = prepare(recipe, tmp_path / "run").training  # There are no weights yet.
    assert settled.replies_per_step == recipe.training.replies_per_step
    model.save_pretrained(base)
    with pytest.warns(RowByRowWarning, match=notice):
        fallen_back = train(recipe)
    rows = {
        name: getattr(settled, name)
        for name in ("shared_prefix", "per_device_train_batch_size", "gradient_accumulation_steps")
    }
    assert rows["shared_prefix"] is False
    asked_for = train(recipe, out=tmp_path / "other", overwrite=True, **rows)
    assert len(fallen_back.metrics) == 3
    assert [line["loss"] for line in fallen_back.metrics] == [line["loss"] for line in asked_for.metrics]


def test_the_table_in_the_docs_says_what_is_tested(root: Path) -> None:
    from rolellm.rocit.packing import attention

    text = (root / "docs" / "training.md").read_text(encoding="utf-8")
    table = text[text.index("| family |") :].split("\n\n")[0].splitlines()[2:]
    said = {
        kind: trained.strip()
        for _, kinds, trained, _ in (line.strip("|").split("|") for line in table)
        for kind in re.findall("`(.*?)`", kinds)
    }
    exact = {new_model(case.values[0], VOCABULARY, **case.values[1]).config.model_type for case in EXACT}
    assert exact == set(attention.EXACT)
    assert said == dict.fromkeys(exact, "exact") | {case.values[2]: "row by row" for case in ROWS}
