"""Liger's kernels change nothing but rounding, in every family that takes them, and only the model that is trained.

They need a GPU; elsewhere, with liger-kernel and Triton installed, they run in Triton's interpreter:
``TRITON_INTERPRET=1 pytest tests/training/test_kernels.py``.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolellm.core.errors import MissingExtraError, RecipeError
from rolellm.core.records import Row
from rolellm.models.prefix_sharing import share_prefixes
from rolellm.training.kernels import EXACT, check_kernels, use_kernels
from rolellm.training.recipe import TrainingRecipe

from ..models.test_prefix_sharing import role_batch, score
from .examples import sample_examples
from .fits import fit_with_gradients, make_job
from .models import BOUND, distance, new_model
from .test_families import VOCABULARY

FAMILIES = ("Gemma2", "Gemma3Text", "Glm4", "Llama", "Mistral", "Phi3", "Qwen2", "Qwen3")
HALVES = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
LIGER = TrainingRecipe(use_liger_kernel=True)
pytestmark = [
    pytest.mark.filterwarnings("ignore:Could not find a config file:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning"),
    # Of Triton, where no GPU is.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:triton"),
]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the kernels run."""
    import torch

    pytest.importorskip("liger_kernel")
    if torch.cuda.is_available():
        return "cuda"
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs a GPU, or TRITON_INTERPRET=1")
    import triton.language as tl
    from liger_kernel.ops import geglu, rms_norm
    from triton.runtime import interpreter

    convert = interpreter._implicit_cvt

    def convert_number(value: Any) -> Any:
        # As compiled kernels take it; the interpreter leaves it a number of Python.
        if type(value) is not float:
            return convert(value)
        handle = interpreter.TensorHandle(np.array([value], np.float32), tl.float32)
        return tl.tensor(handle, tl.float32)

    monkeypatch.setattr(interpreter, "_implicit_cvt", convert_number)
    # Functions of CUDA's own library, which the interpreter does not have.
    monkeypatch.setattr(rms_norm, "rsqrt", lambda value: tl.rsqrt(value))
    monkeypatch.setattr(geglu, "tanh", lambda value: 1 - 2 / (tl.exp(2 * value) + 1))
    return "cpu"


def test_the_families_are_those_that_are_tested_here() -> None:
    assert {new_model(family, 8).config.model_type for family in FAMILIES} == set(EXACT)


@pytest.mark.parametrize(
    ("family", "sizes"), [*((family, {}) for family in FAMILIES), ("Phi3", {"rope_parameters": HALVES})]
)
def test_shared_rows_keep_their_loss_and_gradient(family: str, sizes: dict[str, Any], device: str) -> None:
    plain, fused = (new_model(family, VOCABULARY, **sizes).to(device) for _ in range(2))
    batch = {name: values.to(device) for name, values in role_batch().items()}
    loss, gradient = score(plain, batch)
    sharing = share_prefixes(fused)
    module = sys.modules[type(fused).__module__]
    before = dict(vars(module))
    with use_kernels(fused, LIGER) as parts:
        assert "rms_norm" in parts
        assert ("rope" in parts) == (family != "Glm4" and not sizes)
        assert vars(module) != before
        fused_loss, fused_gradient = score(fused, batch)
    assert vars(module) == before
    assert fused_loss == pytest.approx(loss, rel=1e-6)
    assert 0 < distance(fused_gradient, gradient) < BOUND
    assert sharing.folded_tokens


def test_a_run_says_what_it_used(
    device: str, sample_rows: list[Row], tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = sample_examples(sample_rows[:1], tokenizer, max_length=512)[:2]
    options = {"replies_per_step": 2, "max_steps": 1, "use_cpu": device == "cpu", "bf16": False}
    gradients, runs = [], []
    for is_on in (False, True):
        capsys.readouterr()
        model = new_model("Llama", len(tokenizer))
        job = make_job(tmp_path / str(is_on), **options, use_liger_kernel=is_on)
        gradient, fitted = fit_with_gradients(model, tokenizer, rows, job)
        gradients.append(gradient)
        runs.append(fitted)
    plain, fused = runs
    assert fused.trainer.kernels == ("rope", "rms_norm", "swiglu")
    assert "Liger's rope, rms_norm, swiglu" in capsys.readouterr().err
    assert fused.losses == pytest.approx(plain.losses, rel=1e-6)
    assert 0 < distance(*gradients) < BOUND


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        pytest.param("Glm", {}, "a model of type glm; the kernels are known to be exact for gemma2", id="family"),
        pytest.param("Llama", {"hidden_act": "gelu"}, "the base has the activation gelu", id="activation"),
    ],
)
def test_a_base_that_they_do_not_fit_is_refused(family: str, changes: dict[str, Any], reason: str, device: str) -> None:
    config = new_model(family, 8, **changes).config
    with pytest.raises(RecipeError, match=reason):
        check_kernels(LIGER, config)
    assert not check_kernels(TrainingRecipe(), config)


def test_without_a_gpu_or_liger_they_are_off_and_cannot_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    is_installed = importlib.util.find_spec("liger_kernel") is not None
    expected = RecipeError if is_installed else MissingExtraError
    with pytest.raises(expected, match=r"need a GPU" if is_installed else r"rolellm\[gpu\]"):
        check_kernels(TrainingRecipe(use_liger_kernel=True, use_cpu=True))
    assert not check_kernels(TrainingRecipe(use_cpu=True))
