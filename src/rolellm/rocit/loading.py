"""Models and tokenizers from a folder or the Hub, in the form that a recipe trains them in."""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import ModelError, require
from rolellm.core.settings import dump
from rolellm.models.find import load_failure
from rolellm.prompts.render import chat_template
from rolellm.prompts.settle import check_settled, settle
from rolellm.rocit.recipe import MethodRecipe, PromptRecipe, Quantization, TrainingRecipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_SMALL = ("*.json", "*.model", "*.txt", "*.jinja")
_WEIGHTS = ("*.safetensors",)
# Some older repositories have these alone; transformers loads them as tensors and nothing else.
_PICKLED = ("pytorch_model*.bin",)


def fetch(model: str, revision: str | None, *, weights: bool) -> Path:
    """The folder in the Hub's cache that holds a model's files, downloaded where they are not there yet.

    Args:
        model: The repository, ``owner/name``.
        revision: A branch, tag or commit.
        weights: Fetch the weights, too, and not only what is needed to tokenise.

    Raises:
        ModelError: When the Hub does not give them; says why.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    def get(*patterns: str) -> Path:
        # Folders below the top hold other formats of the same weights.
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(patterns), ignore_patterns=["*/*"]))

    try:
        folder = get(*_SMALL, *(_WEIGHTS if weights else ()))
        if weights and not any(folder.glob("*.safetensors")):
            folder = get(*_SMALL, *_PICKLED)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"base.model: {model} cannot be had from the Hub ({error}); for a gated model ask for access on its page "
            "and run `hf auth login`, or give base.path, a folder that holds it"
        ) from error
    return folder


def open_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer as it was saved.

    Raises:
        ModelError: When there is none, or only one that needs code from its folder.
    """
    require("torch", "transformers", extra="train")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: its tokenizer cannot be loaded: {load_failure(path, error)}") from error


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
        training: Its ``precision`` and ``device``.

    Raises:
        ModelError: When it cannot be loaded, or its weights are not all there.
    """
    require("torch", "transformers", *(["bitsandbytes"] if method.name == "qlora" else []), extra="train")
    import torch
    from accelerate import PartialState

    half = method.name != "full" and training.bf16
    options: dict[str, Any] = {"dtype": torch.bfloat16 if half else torch.float32}
    if method.name == "qlora":
        options["quantization_config"] = _bits(method.quantization)
        # Always given: bitsandbytes would take a GPU that the recipe stays off.
        options["device_map"] = {"": "cpu" if on_cpu(training) else PartialState().local_process_index}
    model = load_whole(path, **options)
    _keep_gradients_right(model)
    return model


def load_whole(path: Path, **options: Any) -> PreTrainedModel:
    """Load a causal language model all of whose weights are there.

    Args:
        path: A folder as ``save_pretrained`` writes it.
        options: For ``from_pretrained``.

    Raises:
        ModelError: When it cannot be loaded, or weights are missing.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            path, local_files_only=True, trust_remote_code=False, output_loading_info=True, **options
        )
    except (OSError, ValueError, RuntimeError, SafetensorError, UnpicklingError) as error:
        raise ModelError(f"{path}: its model cannot be loaded: {load_failure(path, error)}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        # transformers fills them with random numbers and only logs it.
        raise ModelError(f"{path} lacks {len(missing)} of the model's weights ({', '.join(missing[:5])}); is it whole?")
    return model


def on_cpu(training: TrainingRecipe) -> bool:
    """Whether a recipe trains on the CPU: because it says so, or because there is no GPU."""
    import torch

    return training.use_cpu or not torch.cuda.is_available()


def stop_at(config: Any, end: int) -> None:
    """Add a token to those that end generation, in a configuration that can be saved again.

    Args:
        config: A ``transformers.GenerationConfig``.
        end: The token that ends a reply; it comes first.
    """
    known = config.eos_token_id
    several = [known] if isinstance(known, int) else list(known or [])
    merged = [end, *(token for token in several if token != end)]
    config.eos_token_id = merged if len(merged) > 1 else end
    try:
        config.validate(strict=True)
    except ValueError:
        # Settings of sampling without `do_sample`: some bases have them, and once changed such a one is not saved.
        config.do_sample = True


def _bits(quantization: Quantization) -> Any:
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_4bit=True, **dump(quantization))


def _keep_gradients_right(model: Any) -> None:
    """Keep bitsandbytes from repacking 4-bit weights on CPUs with AVX512-BF16.

    It does so in the first forward pass without gradients, for inference; gradients through the repacked weights come
    out wrong, without a word.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
