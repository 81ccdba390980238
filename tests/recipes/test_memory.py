"""The computed memory: against what tiny models of the same classes really take, and real models' published sizes."""

import importlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rolellm.training.bases import load_model, load_tokenizer
from rolellm.training.examples import Example
from rolellm.training.recipe import Lora, MethodRecipe, TrainingRecipe

from ..forking import Forking, script

RANK = 4
METHODS = ["qlora", "lora", "full"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bench(root: Path) -> Iterator[ModuleType]:
    """`benchmarks/memory.py`, which finds its neighbours as when it is run."""
    folder = str(root / "benchmarks")
    sys.path.insert(0, folder)
    try:
        yield importlib.import_module("memory")
    finally:
        # One file there bears the name of a package.
        sys.path.remove(folder)


@pytest.fixture(scope="module")
def config(tiny_model: Path) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(tiny_model)


def run_of(bench: ModuleType, method: str, **more: Any) -> Any:
    return bench.Run(method=method, tokens=256, rank=RANK, **more)


def real_bytes(parameter: Any) -> int:
    """A parameter's bytes, those of its quantisation constants and tables among them."""
    size = int(parameter.nbytes)
    state = getattr(parameter, "quant_state", None)
    while state is not None:
        size += sum(part.nbytes for part in (state.absmax, state.code, state.offset) if part is not None)
        state = state.state2
    return size


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("llama-3.2-1b", 1_235.8144),
        ("llama-7b", 6_738.415616),
        ("llama-3.1-8b", 8_030.261248),
        ("llama-13b", 13_015.864320),
        ("chatglm2-6b", 6_243.584),
        ("glm-4-9b", 9_399.951360),
    ],
)
def test_a_shape_has_as_many_weights_as_are_published(name: str, millions: float, bench: ModuleType) -> None:
    config = importlib.import_module("shapes").shape(name)
    assert sum(p.numel() for p in bench.skeleton(config, run_of(bench, "full")).parameters()) == round(millions * 1e6)


@pytest.mark.parametrize("size", [64, 4096, 4096 * 11008, 63, 65, 64 * 257])
@pytest.mark.parametrize("double", [True, False], ids=["double", "single"])
def test_nf4_takes_the_bytes_that_bitsandbytes_allocates(size: int, double: bool, bench: ModuleType) -> None:
    from bitsandbytes.functional import quantize_4bit

    packed, state = quantize_4bit(torch.ones(min(size, 2**20)), quant_type="nf4", compress_statistics=double)
    packed.quant_state = state
    assert real_bytes(packed) == bench.nf4_bytes(min(size, 2**20), double=double)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_weights_and_moments_are_those_of_a_real_run(
    method: str, precision: str, bench: ModuleType, config: Any, tiny_model: Path, tmp_path: Path
) -> None:
    from rolellm.training.fit import Fit, fit

    chosen = MethodRecipe(name=method, lora=Lora(r=RANK, lora_dropout=0.0))
    training = TrainingRecipe(max_steps=1, bf16=precision == "bf16", use_cpu=True, max_length=64)
    examples = [Example("row", (0, 5, 6, 7), (8, 9, 1)), Example("other", (0, 5), (6, 1))]
    model = load_model(tiny_model, chosen, training)
    job = Fit(training=training, method=chosen, folder=tmp_path, label="once")
    trainer = fit(model, load_tokenizer(tiny_model), examples, job).trainer
    run = run_of(bench, method, half=precision == "bf16")
    skeleton = bench.skeleton(config, run)
    assert sum(map(real_bytes, trainer.model.parameters())) == bench.weight_bytes(skeleton, run)
    moments = [value for state in trainer.optimizer.state.values() for value in state.values() if value.dim()]
    assert sum(value.nbytes for value in moments) == 2 * bench.trained_bytes(skeleton)


class Live(TorchDispatchMode):
    """Which tensors' memory is there, by looking whether it is still there; the parameters' own is left out."""

    def __init__(self, own: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.own = {tensor.untyped_storage()._cdata for tensor in own}
        self.seen: dict[int, tuple[StorageWeakRef, int]] = {}
        self.at_most = 0
        self.peak = 0

    @property
    def now(self) -> int:
        self.seen = {place: found for place, found in self.seen.items() if not found[0].expired()}
        return sum(size for _, size in self.seen.values())

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.own:
                storage = tensor.untyped_storage()
                _, before = self.seen.get(storage._cdata, (None, 0))
                self.seen[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
                self.at_most += storage.nbytes() - before
        # Looking at all of them takes long; below the peak there is no need to.
        if self.at_most > self.peak:
            self.at_most = self.now
            self.peak = max(self.peak, self.at_most)
        return made


def small(vocabulary: int, family: str = "llama") -> Any:
    from transformers import AutoConfig

    sizes = {"hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 6, "num_attention_heads": 4}
    return AutoConfig.for_model(
        family, vocab_size=vocabulary, num_key_value_heads=2, head_dim=16, pad_token_id=None, **sizes
    )


def real_model(bench: ModuleType, config: Any, run: Any) -> Any:
    model = bench.skeleton(config, run).to_empty(device="cpu").train()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter.data, std=0.02)
    if run.checkpointing:
        inner = model if run.method == "full" else model.get_base_model()
        inner.activation_checkpointing_enable()
        inner.enable_input_require_grads()
    return model


def forward(model: Any, run: Any) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=run.half):
        ids = torch.zeros((1, run.tokens), dtype=torch.long)
        made: torch.Tensor = model(input_ids=ids, use_cache=False, logits_to_keep=torch.arange(run.trained)).logits
    return made


@pytest.mark.parametrize("half", [True, False], ids=["bf16", "fp32"])
@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("family", ["llama", "glm"])
def test_what_is_counted_without_contents_is_what_a_real_forward_pass_keeps(
    family: str, method: str, half: bool, bench: ModuleType
) -> None:
    run = run_of(bench, method, half=half, checkpointing=False)
    model = real_model(bench, small(100, family), run)
    with Live([*model.parameters(), *model.buffers()]) as live:
        logits = forward(model, run)
    counted = bench.kept(small(100, family), run)
    inputs = run.tokens * 8 + run.trained * 8  # made in here, and so seen; outside of a pass they are the batch's
    assert live.now - logits.nbytes - inputs <= counted.activations + counted.copies <= live.now - logits.nbytes


@pytest.mark.parametrize("vocabulary", [100, 4000], ids=["layers-weigh", "logits-weigh"])
@pytest.mark.parametrize("checkpointing", [True, False], ids=["checkpointing", "plain"])
@pytest.mark.parametrize("half", [True, False], ids=["bf16", "fp32"])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_the_peak_of_a_real_step_is_as_computed(
    method: str, half: bool, checkpointing: bool, vocabulary: int, bench: ModuleType
) -> None:
    run = run_of(bench, method, half=half, checkpointing=checkpointing)
    model = real_model(bench, small(vocabulary), run)
    with Live([*model.parameters(), *model.buffers()]) as live:
        for _ in range(2):  # gradients of the first are there in the second, as with several passes a step
            targets = torch.zeros(run.trained, dtype=torch.long)
            torch.nn.functional.cross_entropy(forward(model, run)[0].float(), targets, reduction="sum").backward()
    computed = bench.memory(small(vocabulary), run)
    assert 0.93 < (computed.total - computed.weights - computed.optimizer) / live.peak < 1.2


def test_the_command_prints_the_table_of_the_docs(root: Path, tmp_path: Path, warm: Forking) -> None:
    code = script(root / "benchmarks" / "memory.py")
    done = warm.run(["--model", "llama-7b"], tmp_path, code=code)
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    assert set(lines) <= set((root / "dev" / "performance.md").read_text(encoding="utf-8").splitlines())
    assert "computed, not measured" in done.stderr
    shown = json.loads(warm(["--model", "llama-7b", "--json"], tmp_path, code=code))
    assert {"ratios", "figures", "n", "versions", "hardware"} <= shown.keys()
    assert shown["figures"]["llama-7b, full, 8"]["optimizer"] == shown["figures"]["llama-7b, full, 1"]["optimizer"] // 8
