"""Shared prefixes change no number: padded rows keep their loss and gradient, in every family and stock trainer."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from rolellm.core.errors import ModelError
from rolellm.models.prefix_sharing import PrefixSharing, share_prefixes
from rolellm.training.recipe import MethodRecipe, Quantization, TrainingRecipe

from ..training.models import BOUND, FAMILIES, distance, gradient, new_model, with_adapter
from ..training.test_families import EXACT, PLAIN, VOCABULARY
from ..versions import needs
from .test_prefix_tree import ROWS, pad

pytestmark = [
    # peft and TRL ask transformers 5.23 by deprecated names.
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning"),
    # What torch says of itself when FlexAttention runs uncompiled.
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
]

NEEDS_FUSED_HEAD = needs("trl", "1.16", "scores without a fused head")
EACH_FAMILY = pytest.mark.parametrize(("family", "sizes"), EXACT)
SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")
OUTPUTS = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1")
Batch = dict[str, torch.Tensor]


def role_batch(side: str = "right") -> Batch:
    """Two roles with two questions of three replies each, all of random tokens, as padded rows in random order."""
    chance = random.Random(0)

    def draw(count: int) -> list[int]:
        return [chance.randrange(3, VOCABULARY) for _ in range(count)]

    prompts = [[*role, *draw(5)] for role in (draw(14), draw(14)) for _ in range(2)]
    rows = [(prompt, [*draw(chance.randint(3, 6)), 2]) for prompt in prompts for _ in range(3)]
    chance.shuffle(rows)
    ids, mask = map(torch.from_numpy, pad([prompt + reply for prompt, reply in rows], side))
    labels = torch.where(mask, ids, -100)
    for row, tokens, (prompt, _) in zip(labels, mask, rows, strict=True):
        row[int(tokens.int().argmax()) :][: len(prompt)] = -100
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}


def score(model: Any, batch: Batch) -> tuple[float, torch.Tensor]:
    """The loss and the gradient of a training pass, by the labels that transformers itself takes."""
    loss = model.train()(**batch).loss
    return loss.item(), gradient(model, loss)


def add_fused_lm_head(model: Any, **options: Any) -> None:
    """Put TRL's fused head on a model, as its trainers do."""
    from trl.trainer import utils

    utils.add_fused_lm_head(model, **options)


def score_fused(model: Any, batch: Batch) -> tuple[Any, torch.Tensor]:
    """What TRL's fused head gives, and the gradient of its loss."""
    output = model.train()(**batch, fused_lm_head=True)
    return output, gradient(model, output.loss)


def check_close(actual: tuple[float, torch.Tensor], expected: tuple[float, torch.Tensor]) -> None:
    assert actual[0] == pytest.approx(expected[0], rel=1e-6)
    assert distance(actual[1], expected[1]) < BOUND


def check_folded(sharing: PrefixSharing) -> None:
    """Check that something was shared at all."""
    assert 0 < 2 * sharing.folded_tokens < sharing.padded_tokens


@contextmanager
def watch_states(model: Any) -> Iterator[list[tuple[int, ...]]]:
    """The shapes of the hidden states that the backbone hands to the output layer."""
    shapes: list[tuple[int, ...]] = []
    handle = model.base_model.register_forward_hook(
        lambda _module, _args, output: shapes.append(tuple(output.last_hidden_state.shape))
    )
    yield shapes
    handle.remove()


# Every family


@EACH_FAMILY
def test_padded_rows_have_the_loss_and_the_gradient_that_they_have_without(family: str, sizes: dict[str, Any]) -> None:
    plain, shared = (new_model(family, VOCABULARY, **sizes) for _ in range(2))
    sharing = share_prefixes(shared)
    for side in SIDES:
        check_close(score(shared, role_batch(side)), score(plain, role_batch(side)))
    check_folded(sharing)


@NEEDS_FUSED_HEAD
@EACH_FAMILY
@pytest.mark.parametrize("first", ["head", "sharing"])
def test_trl_s_fused_head_gives_the_same_for_every_token(family: str, sizes: dict[str, Any], first: str) -> None:
    plain, shared = (new_model(family, VOCABULARY, **sizes) for _ in range(2))
    if first == "head":
        add_fused_lm_head(shared, outputs=OUTPUTS)
    sharing = share_prefixes(shared)
    if first == "sharing":
        add_fused_lm_head(shared, outputs=OUTPUTS)
    add_fused_lm_head(plain, outputs=OUTPUTS)
    for side in SIDES:
        batch = role_batch(side)
        (actual, ours), (expected, theirs) = score_fused(shared, batch), score_fused(plain, batch)
        assert distance(ours, theirs) < BOUND
        for name in ("loss", *OUTPUTS):
            torch.testing.assert_close(actual[name], expected[name], rtol=1e-5, atol=1e-5)
        assert torch.equal(actual.label_mask, expected.label_mask)
    check_folded(sharing)


@EACH_FAMILY
@pytest.mark.usefixtures("flex_gradients")
def test_flex_attention_gives_the_same_loss_and_gradient(family: str, sizes: dict[str, Any]) -> None:
    plain, shared = (new_model(family, VOCABULARY, **sizes) for _ in range(2))
    sharing = share_prefixes(shared, attention="flex")
    check_close(score(shared, role_batch()), score(plain, role_batch()))
    check_folded(sharing)


@pytest.mark.parametrize(("family", "sizes", "plain"), PLAIN)
def test_a_window_or_cap_that_is_left_out_would_show(family: str, sizes: dict[str, Any], plain: dict[str, Any]) -> None:
    one, other = (score(new_model(family, VOCABULARY, **kind), role_batch()) for kind in (sizes, sizes | plain))
    assert distance(one[1], other[1]) > 100 * BOUND


@pytest.mark.parametrize("wrong", ["ends", "positions"])
def test_a_mask_or_positions_that_are_off_would_show(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, shared = (new_model("Llama", VOCABULARY) for _ in range(2))
    sharing = share_prefixes(shared)

    def spoil(inputs: Any, fold: Any = sharing.fold) -> Any:
        folded = fold(inputs)
        if wrong == "ends":
            folded["prefix_tree"].ends = torch.full_like(folded["prefix_tree"].ends, inputs["input_ids"].numel())
        else:
            folded["position_ids"] = torch.arange(folded["input_ids"].shape[1])[None]
        return folded

    monkeypatch.setattr(sharing, "fold", spoil)
    assert distance(score(shared, role_batch())[1], score(plain, role_batch())[1]) > 100 * BOUND


# Adapters, checkpointing, 4 bits, bfloat16


@NEEDS_FUSED_HEAD
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("adapter", "checkpointing"), [(None, True), ("before", False), ("after", True)], ids=["full", "before", "after"]
)
def test_adapters_and_checkpointing_change_nothing(family: str, adapter: str | None, checkpointing: bool) -> None:
    def prepare(share: bool) -> tuple[Any, PrefixSharing | None]:
        model = new_model(family, VOCABULARY)
        add_fused_lm_head(model, outputs=OUTPUTS)
        if checkpointing:
            model.activation_checkpointing_enable()
            model.enable_input_require_grads()
        model = with_adapter(model) if adapter == "before" else model
        sharing = share_prefixes(model) if share else None
        return (with_adapter(model) if adapter == "after" else model), sharing

    plain, _ = prepare(share=False)
    if adapter == "after":
        plain = with_adapter(new_model(family, VOCABULARY))
        add_fused_lm_head(plain.get_base_model(), outputs=OUTPUTS)
    shared, sharing = prepare(share=True)
    base = shared.get_base_model() if adapter else shared
    calls: list[int] = []
    base.base_model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    batch = role_batch()
    with watch_states(base) as shapes:
        (actual, ours), (expected, theirs) = score_fused(shared, batch), score_fused(plain, batch)
    check_close((actual.loss.item(), ours), (expected.loss.item(), theirs))
    check_folded(sharing)
    assert len(calls) == 1 + checkpointing
    # Prompts, most of all tokens, do not go through the output layer.
    assert shapes == [(1, int((batch["labels"][:, 1:] != -100).sum()), base.config.hidden_size)]


def quantized(family: str, folder: Path, compute: Literal["float32", "bfloat16"]) -> Any:
    """A model held in NF4 under an adapter, as a recipe loads it."""
    from rolellm.training.bases import load_model

    # Whole blocks of 64 weights, as NF4 takes them.
    wide = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "initializer_range": 0.1}
    new_model(family, VOCABULARY, **wide).save_pretrained(folder)
    method = MethodRecipe(name="qlora", quantization=Quantization(bnb_4bit_compute_dtype=compute))
    model = with_adapter(load_model(folder, method, TrainingRecipe(use_cpu=True, bf16=compute == "bfloat16")))
    assert [type(module).__name__ for module in model.modules()].count("Linear4bit") >= 2 * 6
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_a_quantized_base_gives_its_adapter_the_same_gradient(family: str, tmp_path: Path) -> None:
    model = quantized(family, tmp_path, "float32")
    # A forward pass without gradients comes first, which on some processors spoils those of a quantized model.
    with torch.no_grad():
        model(**role_batch())
    expected = score(model, role_batch())
    sharing = share_prefixes(model)
    check_close(score(model, role_batch()), expected)
    check_folded(sharing)


def score_alone(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The gradient of a batch whose rows go through the model one by one, without padding."""
    count = (batch["labels"] != -100).sum()
    loss = 0
    for ids, mask, labels in zip(*batch.values(), strict=True):
        row = mask.bool()
        loss += model(input_ids=ids[row][None], labels=labels[row][None]).loss * (labels != -100).sum() / count
    return gradient(model, loss)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_bfloat16_it_is_off_by_no_more_than_padding_is(family: str, tmp_path: Path) -> None:
    model, batch = quantized(family, tmp_path, "bfloat16"), role_batch()
    with torch.autocast("cpu", torch.bfloat16):
        alone, (_, padded) = score_alone(model, batch), score(model, batch)
        share_prefixes(model)
        _, shared = score(model, batch)
    assert 0 < distance(shared, alone) < 2 * distance(padded, alone)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # While torch compiles.
@pytest.mark.parametrize("bits", [4, 32])
@pytest.mark.parametrize("family", FAMILIES)
def test_on_a_gpu_flex_attention_gives_the_same_gradient(family: str, bits: int, tmp_path: Path) -> None:
    """What ships: adapters under checkpointing, at three lengths, in training and in evaluation."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    from rolellm.training.bases import load_model

    new_model(family, VOCABULARY, hidden_size=128, head_dim=32, intermediate_size=128).save_pretrained(tmp_path)
    method = MethodRecipe(name="qlora" if bits == 4 else "lora")
    plain, shared = (with_adapter(load_model(tmp_path, method, TrainingRecipe())).cuda() for _ in range(2))
    for model in (plain, shared):
        model.enable_input_require_grads()
        model.activation_checkpointing_enable()
    # The first pass compares FlexAttention with the blocks, in a layer under a checkpoint, and warns if they differ.
    sharing = share_prefixes(shared, attention="auto")
    for rows in (3, 6, 12):
        batch = {name: values[:rows].cuda() for name, values in role_batch().items()}
        with torch.autocast("cuda", torch.bfloat16):
            (one, ours), (other, theirs) = score(shared, batch), score(plain, batch)
            with torch.no_grad():
                evaluated = shared.eval()(**batch, use_cache=False).loss.item()
        assert one == pytest.approx(other, rel=1e-2)
        assert evaluated == pytest.approx(one, rel=1e-2)
        # Less than half of what rounding to bfloat16 does to either.
        rounding = distance(theirs, score(plain, batch)[1])
        assert distance(ours, theirs) < rounding / 2, (distance(ours, theirs), rounding)
    check_folded(sharing)


# Any rows, and passes that share nothing


@given(rows=ROWS, side=st.sampled_from(SIDES))
def test_any_rows_have_the_logits_that_each_has_alone(rows: list[list[int]], side: str) -> None:
    model = new_model("Llama", VOCABULARY).eval()
    ids, mask = map(torch.from_numpy, pad(rows, side))
    with torch.no_grad():
        alone = [model(torch.tensor([row])).logits[0] for row in rows]
        share_prefixes(model)
        together = model(ids, attention_mask=mask.long(), use_cache=False).logits
    for row, tokens, expected in zip(together, mask, alone, strict=True):
        torch.testing.assert_close(row[tokens], expected, rtol=1e-4, atol=1e-5)


@NEEDS_FUSED_HEAD
def test_without_a_mask_all_is_tokens_and_without_labels_nothing_is_scored() -> None:
    plain, shared = (new_model("Llama", VOCABULARY).train() for _ in range(2))
    sharing = share_prefixes(shared)
    ids = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 9]])
    torch.testing.assert_close(shared(ids).logits, plain(ids).logits)
    assert (sharing.padded_tokens, sharing.folded_tokens) == (8, 5)
    assert repr(sharing) == "PrefixSharing(8 tokens of rows, 5 computed)"
    add_fused_lm_head(shared)
    loss = shared(input_ids=ids, labels=torch.full_like(ids, -100), fused_lm_head=True).loss
    assert loss.item() == 0
    # Processes that train together wait for the gradient of every weight.
    assert not gradient(shared, loss).any()
    assert all(weight.grad is not None for weight in shared.parameters())


def test_generation_single_rows_and_passes_with_a_cache_are_left_alone() -> None:
    plain, shared = (new_model("Llama", VOCABULARY).eval() for _ in range(2))
    sharing = share_prefixes(shared)
    batch = role_batch("left")
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        for options in ({"do_sample": False}, {"num_beams": 2}):
            replies = [model.generate(**inputs, **options, max_new_tokens=6) for model in (plain, shared)]
            assert torch.equal(*replies)
        for pick, options in (
            (slice(1), {"use_cache": False}),
            (slice(3), {"use_cache": True}),
            (slice(3), {"use_cache": False, "output_hidden_states": True}),
        ):
            few = {name: values[pick] for name, values in inputs.items()}
            assert torch.equal(*(model(**few, **options).logits for model in (plain, shared)))
    assert sharing.padded_tokens == 0


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_restored_a_model_is_as_it_was_and_can_share_again(attention: str) -> None:
    model = new_model("Llama", VOCABULARY, attn_implementation=attention)
    expected = score(model, role_batch())
    sharing = share_prefixes(model)
    assert not torch.equal(score(model, role_batch())[1], expected[1])
    sharing.restore()
    assert model.config._attn_implementation == attention
    assert torch.equal(score(model, role_batch())[1], expected[1])
    check_close((score(model, role_batch())), expected)
    tokens = sharing.padded_tokens
    check_close((score(model, role_batch())), expected)
    assert sharing.padded_tokens == tokens
    share_prefixes(model)
    check_close(score(model, role_batch()), expected)


# What is refused


def attend_alone(model: Any) -> None:
    model.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)


def add_noise(model: Any) -> None:
    from transformers.integrations.neftune import activate_neftune

    activate_neftune(model, 5.0)


def add_activated_lora(model: Any) -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], alora_invocation_tokens=[7])
    get_peft_model(model, config)


def leave(model: Any) -> None:
    """Change nothing."""


IDS = role_batch()["input_ids"]
PACKED = {"input_ids": IDS[:1, :4], "position_ids": torch.tensor([[0, 1, 0, 1]]), "attention_mask": None}


@NEEDS_FUSED_HEAD
@pytest.mark.parametrize(
    ("change", "inputs", "words"),
    [
        pytest.param(attend_alone, {}, r"1 of 2 layers attended by the tree; .* call restore\(\)", id="own-attention"),
        pytest.param(lambda model: model.set_attn_implementation("sdpa"), {}, "was set to sdpa", id="sdpa"),
        pytest.param(lambda model: setattr(model.config, "max_position_embeddings", 20), {}, "for 20", id="too-long"),
        pytest.param(lambda model: setattr(model.config, "is_causal", False), {}, "after them", id="two-way"),
        pytest.param(add_noise, {}, "neftune_noise_alpha to null", id="NEFTune"),
        pytest.param(add_activated_lora, {}, "activated LoRA", id="aLoRA"),
        pytest.param(leave, PACKED | {"labels": IDS[:1, :4]}, "packed into one", id="packed"),
        pytest.param(leave, {"shift_labels": IDS, "fused_lm_head": True}, "sequence parallelism", id="shifted-labels"),
        pytest.param(leave, {"position_ids": torch.zeros_like(IDS)}, "do not count", id="positions"),
        pytest.param(
            leave, {"labels": IDS[0]}, r"labels have the shape \(.*\), input_ids \(12, ", id="labels-of-a-row"
        ),
        pytest.param(leave, {"labels": IDS[:, 1:]}, "one label for each token", id="labels-cut-short"),
    ],
)
def test_a_pass_that_cannot_share_is_refused(change: Any, inputs: dict[str, Any], words: str) -> None:
    model = new_model("Llama", VOCABULARY).train()
    share_prefixes(model)
    add_fused_lm_head(model)
    change(model)
    with pytest.raises(ModelError, match=words):
        model(**role_batch() | inputs)


@NEEDS_FUSED_HEAD
@pytest.mark.parametrize("fused", [False, True], ids=["labels", "fused-head"])
@pytest.mark.parametrize(
    ("name", "place", "words"),
    [
        pytest.param("attention_mask", 2, "row 2 of the batch is all padding", id="row-of-padding"),
        pytest.param("labels", (0, 0), "a label is on padding, or on the token after it", id="first-token"),
    ],
)
def test_rows_that_cannot_be_right_are_refused(name: str, place: Any, words: str, fused: bool) -> None:
    model = new_model("Llama", VOCABULARY).train()
    share_prefixes(model)
    add_fused_lm_head(model)
    batch = role_batch("left")
    row = 2 if place == 2 else 0
    start = int(batch["attention_mask"][row].argmax())
    assert start > 1
    if name == "labels":
        batch["labels"][0, start - place[1]] = 5
    else:
        batch["attention_mask"][row], batch["labels"][row] = 0, -100
    with pytest.raises(ModelError, match=words):
        model(**batch, fused_lm_head=fused)


def test_padding_between_tokens_is_refused_and_on_both_sides_it_is_not() -> None:
    """A plain model counts positions over it, so numbers would differ without a word."""
    plain, shared = (new_model("Llama", VOCABULARY).train() for _ in range(2))
    share_prefixes(shared)
    ids = torch.tensor([[0, 5, 6, 7, 0], [5, 6, 8, 9, 7]])
    both_sides = ids.ne(0).long()
    actual, expected = (model(ids, attention_mask=both_sides).logits for model in (shared, plain))
    torch.testing.assert_close(actual[both_sides.bool()], expected[both_sides.bool()])
    for column in (1, 2):
        ids[1, column] = 0
        with pytest.raises(ModelError, match="a row has padding between its tokens"):
            shared(ids, attention_mask=ids.ne(0).long())
        ids[1, column] = 6


def test_positions_may_begin_anywhere() -> None:
    plain, shared = (new_model("Llama", VOCABULARY).eval() for _ in range(2))
    share_prefixes(shared)
    batch = role_batch("left")
    is_token = batch["attention_mask"].bool()
    for positions in (is_token.cumsum(1) - 1, torch.arange(3, 3 + is_token.shape[1])[None]):
        inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "position_ids": positions}
        actual, expected = (model(**inputs, use_cache=False).logits[is_token] for model in (shared, plain))
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_hidden_states_that_the_configuration_asks_for_are_those_of_the_rows() -> None:
    plain, shared = (new_model("Llama", VOCABULARY, output_hidden_states=True).train() for _ in range(2))
    sharing = share_prefixes(shared)
    actual, expected = (model(**role_batch()).hidden_states for model in (shared, plain))
    assert all(torch.equal(*states) for states in zip(actual, expected, strict=True))
    assert sharing.padded_tokens == 0
    assert shared(**role_batch(), output_hidden_states=False).hidden_states is None
    check_folded(sharing)


def test_a_model_that_cannot_share_is_refused() -> None:
    with pytest.raises(ModelError, match="LlamaModel has no output layer"):
        share_prefixes(new_model("Llama", VOCABULARY).model)


def test_noise_that_only_training_adds_does_not_keep_an_evaluation_from_sharing() -> None:
    plain, shared = (new_model("Llama", VOCABULARY) for _ in range(2))
    sharing = share_prefixes(shared)
    add_noise(shared)
    with torch.no_grad():
        actual, expected = (model.eval()(**role_batch(), use_cache=False).loss for model in (shared, plain))
    torch.testing.assert_close(actual, expected)
    check_folded(sharing)


# The stock trainers of TRL


ROLE = "You are a lighthouse keeper who counts everything, and Old Brom sailed with the captain. "
PROMPTS = [f"{ROLE}{question}\n" for question in ("What do you see?", "Who taught you to sail?", "Why?")]
REPLIES = ["None that I would own to.", "Three rivers.", "The weather that night, and the captain.", "A goose."]


class TakeGradient(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.gradient = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


def stock_trainer(kind: str, model: Any, folder: Path, options: dict[str, Any]) -> Any:
    import trl

    rows: list[dict[str, Any]]
    more: dict[str, Any] = {"train_sampling_strategy": "sequential", "max_length": None}
    if kind == "SFT":
        rows = [{"prompt": prompt, "completion": reply} for prompt in PROMPTS for reply in REPLIES]
    elif kind == "DPO":
        pairs = list(pairwise(REPLIES))
        rows = [{"prompt": prompt, "chosen": one, "rejected": other} for prompt in PROMPTS for one, other in pairs]
    elif kind == "KTO":
        rows = [
            {"prompt": prompt, "completion": reply, "label": number % 2 == 0}
            for prompt in PROMPTS
            for number, reply in enumerate(REPLIES)
        ]
    else:
        rows = [{"prompt": prompt} for prompt in PROMPTS]
        more = {"num_generations": 4, "max_completion_length": 8, "beta": 0.1}
        options = options | {"reward_funcs": lambda completions, **_: [float(len(text) % 7) for text in completions]}
    arguments = getattr(trl, f"{kind}Config")(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=len(PROMPTS) * 4 if kind != "DPO" else len(rows),
        learning_rate=0.0,
        use_cpu=True,
        bf16=False,
        report_to="none",
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        seed=0,
        **more,
    )
    return getattr(trl, f"{kind}Trainer")(model, args=arguments, train_dataset=Dataset.from_list(rows), **options)


@pytest.mark.parametrize(
    ("share", "adapter"),
    [
        pytest.param("before", True, id="before-lora"),
        pytest.param("after", False, id="after-full", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kind", ["SFT", "DPO", "KTO", "GRPO"])
def test_a_stock_trainer_takes_the_same_step_from_fewer_tokens(
    share: str, kind: str, adapter: bool, tiny_model: Path, tmp_path: Path
) -> None:
    from peft import LoraConfig

    def step(share: str | None) -> tuple[torch.Tensor, float, PrefixSharing | None]:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
        take = TakeGradient()
        options: dict[str, Any] = {
            "processing_class": AutoTokenizer.from_pretrained(tiny_model, padding_side="left"),
            "callbacks": [take],
        }
        if adapter:
            options["peft_config"] = LoraConfig(
                r=4, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.0, init_lora_weights=False
            )
        sharing = share_prefixes(model) if share == "before" else None
        trainer = stock_trainer(kind, model, tmp_path, options)
        sharing = share_prefixes(trainer.model) if share == "after" else sharing
        torch.manual_seed(0)
        trainer.train()
        return take.gradient, trainer.state.log_history[0]["loss"], sharing

    plain, plain_loss, _ = step(None)
    shared, shared_loss, sharing = step(share)
    assert shared_loss == pytest.approx(plain_loss, rel=1e-5, abs=1e-6)
    assert plain.norm() > 0
    assert distance(shared, plain) < BOUND
    check_folded(sharing)
