"""Loading local checkpoints: files from the Hub, tokenizers, and models whose weights are all there."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import ModelError, hide_peft_warning, require
from rolellm.core.limits import match_names, run_limited
from rolellm.core.scrub import hide_hub_token
from rolellm.models.find import read_adapter_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_SMALL = ("*.json", "*.model", "*.txt", "*.jinja")
_WEIGHTS = "*.safetensors"
# Some older repositories have these alone; transformers loads them as tensors and nothing else.
_PICKLED = "pytorch_model*.bin"
# Settings of an adapter that PEFT matches with names of modules, and what is no more than a name.
_PATTERNS = ("target_modules", "exclude_modules", "modules_to_save", "layers_pattern", "rank_pattern", "alpha_pattern")
_PLAIN = re.compile(r"[\w.-]*")


def fetch(model: str, revision: str | None, *, weights: bool) -> Path:
    """The folder in the Hub's cache that holds a model's files, downloaded if needed.

    Args:
        model: The repository, ``owner/name``.
        revision: A branch, tag or commit.
        weights: Fetch the weights too, not only what tokenizing needs.

    Raises:
        ModelError: When the Hub does not give them; says why.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    def get(*patterns: str) -> Path:
        # Folders below the top hold other formats of the same weights.
        wanted = [*_SMALL, *patterns]
        return Path(snapshot_download(model, revision=revision, allow_patterns=wanted, ignore_patterns=["*/*"]))

    try:
        folder = get(_WEIGHTS) if weights else get()
        if weights and not any(folder.glob(_WEIGHTS)):
            folder = get(_PICKLED)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = hide_hub_token(error)
        raise ModelError(
            f"base.model: cannot download {model} from the Hub ({reason}); for a gated model, request "
            "access on its page and run `hf auth login`, or set base.path to a folder that holds it"
        ) from None
    return folder


def open_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer as it was saved.

    Raises:
        ModelError: When there is none, or only one that needs code from its folder.
    """
    require("torch", "transformers", extra="train")
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = load_part("tokenizer", AutoTokenizer, path, local_files_only=True)
    return tokenizer


def load_part(part: str, loader: Any, name: str | Path, **options: Any) -> Any:
    """Load a part of a checkpoint, and never run code that comes with it.

    Args:
        part: What it is called in messages.
        loader: The class of transformers that loads it.
        name: A directory, or the id of a model on the Hub.
        options: For ``from_pretrained``.

    Raises:
        ModelError: When it cannot be loaded; says why.
    """
    try:
        return loader.from_pretrained(name, trust_remote_code=False, **options)
    except Exception as error:  # whatever the checkpoint makes transformers raise
        raise ModelError(f"{name}: its {part} cannot be loaded: {explain_load_failure(name, error)}") from error


def load_whole(path: str | Path, **options: Any) -> PreTrainedModel:
    """Load a causal language model all of whose weights are there.

    Args:
        path: A folder as ``save_pretrained`` writes it, or a Hub id.
        options: For ``from_pretrained``.

    Raises:
        ModelError: When it cannot be loaded, or weights are missing.
    """
    from transformers import AutoModelForCausalLM

    options = {"local_files_only": Path(path).is_dir(), "output_loading_info": True, **options}
    model, report = load_part("model", AutoModelForCausalLM, path, **options)
    missing = sorted(report["missing_keys"])
    if missing:
        # transformers fills them with random numbers and only logs it.
        raise ModelError(
            f"{path} lacks {len(missing)} of the model's weights ({', '.join(missing[:5])}); is it complete?"
        )
    # Last states lie apart in a batch, and at::matmul (PyTorch 2.13) then copies a frozen output layer for each row: in
    # half precision on a CPU, 150 times slower. Contiguous states are multiplied at once.
    head = model.get_output_embeddings()
    head.register_forward_pre_hook(lambda _, inputs: inputs[0].contiguous())
    return model


def list_stop_tokens(config: Any) -> list[int]:
    """List the tokens that end generation by a ``transformers.GenerationConfig``: none, one or several."""
    current = config.eos_token_id
    if isinstance(current, int):
        return [current]
    return list(current or [])


def add_stop_token(config: Any, end: int) -> None:
    """Add a token to those that end generation, in a configuration that can be saved again.

    Args:
        config: A ``transformers.GenerationConfig``.
        end: The token that ends a reply; it comes first.
    """
    others = [token for token in list_stop_tokens(config) if token != end]
    config.eos_token_id = [end, *others] if others else end
    try:
        config.validate(strict=True)
    except ValueError:
        # Settings of sampling without `do_sample`: some bases have them, and once changed such a one is not saved.
        config.do_sample = True


def explain_load_failure(name: str | Path, error: Exception) -> str:
    """Why transformers cannot load something from a model's folder; what needs code from there is refused in our words.

    Args:
        name: A directory, or the id of a model on the Hub.
        error: What transformers raised.
    """
    from transformers import PreTrainedConfig

    kind = None
    # Where there is no configuration, the error is about something else.
    with suppress(Exception):
        config, _ = PreTrainedConfig.get_config_dict(str(name))
        kind = config.get("model_type")
    code = "the Python code that comes with it, which is never run here"
    if kind == "chatglm":
        return f"a ChatGLM checkpoint needs {code}; convert it: `rolellm data convert-chatglm {name} NEW_FOLDER`"
    if "trust_remote_code" in str(error):
        return f"it needs {code}; use a checkpoint of an architecture that transformers has itself"
    return hide_hub_token(error)


def load_adapter(model: Any, adapter: str, **options: Any) -> Any:
    """Put an adapter on its base.

    Args:
        model: The base.
        adapter: A folder, or a Hub id.
        options: For ``PeftModel.from_pretrained``.

    Raises:
        ModelError: When it cannot be loaded, or does not fit.
    """
    from peft import PeftModel

    try:
        names = [name for name, _ in model.named_modules()]
        check_patterns(read_adapter_config(adapter) or {}, names)
        with hide_peft_warning():
            warnings.filterwarnings("error", message=".*missing adapter keys")
            if not isinstance(model, PeftModel):
                return PeftModel.from_pretrained(model, adapter, **options)
            model.load_adapter(adapter, **options)
            return model
    except Exception as error:  # whatever the adapter makes peft and safetensors raise
        raise ModelError(f"the adapter {adapter} cannot be put on its base model: {error}") from error


def check_patterns(settings: Mapping[str, Any], names: Sequence[str]) -> None:
    """Check that the regular expressions in an adapter's settings are valid, and quick to match with names of modules.

    Raises:
        ValueError: For one that is not.
    """
    patterns: list[str] = []
    for key in _PATTERNS:
        value = settings.get(key) or []
        if isinstance(value, str):
            value = [value]
        patterns += value
    for pattern in patterns:
        if _PLAIN.fullmatch(pattern):
            continue
        try:
            run_limited(match_names, pattern, names)
        except (ValueError, TimeoutError) as error:
            raise ValueError(f"the regular expression {pattern!r} cannot be used: {error}") from error


def merge_adapter(base: str | Path, adapter: Path, out: Path, end: int) -> None:
    """Write a base with an adapter merged into it, in safetensors and in the precision that the base is stored in.

    An adapter trained on a quantized base is merged into the base as it was before that.

    Raises:
        ModelError: When either cannot be loaded, they do not fit, or a merged weight is not finite.
    """
    require("torch", "transformers", "peft", extra="train")
    tuned = load_adapter(load_whole(base, dtype="auto"), str(adapter), local_files_only=True)
    try:
        merged = tuned.merge_and_unload(safe_merge=True)
    except (ValueError, RuntimeError) as error:
        raise ModelError(f"{adapter} cannot be merged into {base}: {error}") from error
    add_stop_token(merged.generation_config, end)
    merged.config.use_cache = True  # training turns it off
    merged.save_pretrained(out)
