"""Models and tokenizers from a folder or the Hub, in the form that a recipe trains them in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import ModelError, require
from rolellm.core.settings import dump
from rolellm.models.load import load_whole, open_tokenizer
from rolellm.prompts.render import chat_template
from rolellm.prompts.settle import check_settled, settle
from rolellm.rocit.recipe import MethodRecipe, PromptRecipe, TrainingRecipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_tokenizer(path: Path, form: str = "rolellama") -> PreTrainedTokenizerBase:
    """Load a tokenizer and set the chat template that training and inference will use.

    Args:
        path: A folder as ``save_pretrained`` writes it.
        form: As in `rolellm.rocit.recipe.PromptRecipe`; ``model`` keeps the tokenizer's own chat template,
            settled (see `rolellm.prompts.settle`).

    Raises:
        ModelError: When there is no tokenizer to load, or its own template is asked for and it has none, or one
            that does not ask for a reply as it shows one.
    """
    tokenizer = open_tokenizer(path)
    if form != "model":
        tokenizer.chat_template = chat_template(form)
    elif not tokenizer.chat_template:
        raise ModelError(f"{path}: its tokenizer has no chat template; use prompt.form: {PromptRecipe().form}")
    else:
        settle(tokenizer)
        check_settled(tokenizer)
    return tokenizer


def load_model(path: Path, method: MethodRecipe, training: TrainingRecipe) -> PreTrainedModel:
    """Load a causal language model as it is to be trained.

    An adapter's frozen base is held in bfloat16 where the recipe computes in it, and in 4 bits with ``qlora``; weights
    that are trained themselves are held in float32 always.

    Args:
        path: A folder as ``save_pretrained`` writes it.
        method: What is trained.
        training: Its ``bf16`` and ``use_cpu``.

    Raises:
        ModelError: When it cannot be loaded, or its weights are not all there.
    """
    require("torch", "transformers", *(["bitsandbytes"] if method.name == "qlora" else []), extra="train")
    import torch
    from accelerate import PartialState
    from transformers import BitsAndBytesConfig

    half = method.name != "full" and training.bf16
    options: dict[str, Any] = {"dtype": torch.bfloat16 if half else torch.float32}
    if method.name == "qlora":
        options["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True, **dump(method.quantization))
        # Always given: bitsandbytes would take a GPU that the recipe stays off.
        options["device_map"] = {"": "cpu" if on_cpu(training) else PartialState().local_process_index}
    model = load_whole(path, **options)
    _keep_gradients_right(model)
    return model


def on_cpu(training: TrainingRecipe) -> bool:
    """Whether a recipe trains on the CPU: because it says so, or because there is no GPU."""
    import torch

    return training.use_cpu or not torch.cuda.is_available()


def _keep_gradients_right(model: Any) -> None:
    """Keep bitsandbytes from repacking 4-bit weights on CPUs with AVX512-BF16.

    It does so in the first forward pass without gradients, for inference; gradients through the repacked weights come
    out wrong, without a word.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
