"""On a GPU, the pass that is chosen fills the memory that there is, and one that does not fit is halved.

The memory is what torch may take of the device: six tenths of what a whole step takes.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rolellm.core.records import Row

from .examples import sample_examples
from .fits import fit_with_gradients, make_job
from .models import distance, new_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Could not find a config file:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning"),
    # While torch compiles FlexAttention.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
STEP = 16
# So that activations are most of what is kept.
SIZES = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "head_dim": 128,
    "initializer_range": 0.02,
}
Run = Callable[..., tuple[Any, Any]]


@pytest.fixture
def run(sample_rows: list[Row], tokenizer: Any, tmp_path: Path) -> Run:
    """Trains two steps without checkpointing, with what is given besides."""
    examples = sample_examples(sample_rows, tokenizer, max_length=512)[: 2 * STEP]

    def train(name: str, **training: Any) -> tuple[Any, Any]:
        options = {"replies_per_step": STEP, "max_steps": 2, "use_cpu": False, "max_grad_norm": 1e9}
        options |= {"gradient_checkpointing": False, "warmup_steps": 0, "learning_rate": 1e-5}
        model = new_model("Llama", len(tokenizer), **SIZES)
        return fit_with_gradients(model, tokenizer, examples, make_job(tmp_path / name, "lora", **options | training))

    return train


@pytest.fixture
def limited(run: Run) -> Iterator[tuple[Any, int]]:
    """The gradients of whole steps, and the bytes that are left afterwards."""
    run("warm", replies_per_pass=STEP)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    gradients, _ = run("whole", replies_per_pass=STEP)
    limit = 6 * torch.cuda.max_memory_allocated() // 10
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(limit / total)
    torch.cuda.reset_peak_memory_stats()
    yield gradients, limit
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_the_chosen_pass_fills_the_memory(
    limited: tuple[Any, int], run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, limit = limited
    gradients, fitted = run("auto")
    assert 1 < fitted.trainer.plan.replies_per_pass < STEP
    assert "out of memory" not in capsys.readouterr().err
    # A pass of twice as many was tried, and did not fit.
    assert torch.cuda.max_memory_allocated() > limit / 2
    assert distance(gradients, whole) < 0.05


def test_a_pass_that_does_not_fit_is_halved(
    limited: tuple[Any, int], run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, _ = limited
    gradients, fitted = run("forced", replies_per_pass=STEP)
    assert fitted.trainer.plan.replies_per_pass < STEP
    assert f"out of memory with {STEP} replies a pass, 1 pass a step; going on with" in capsys.readouterr().err
    assert distance(gradients, whole) < 0.05
