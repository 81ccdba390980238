"""An adapter merged into its base: a model of its own, which loads without peft."""

from __future__ import annotations

from pathlib import Path

from rolellm.errors import ModelError
from rolellm.extras import quiet_peft, require
from rolellm.rocit.loading import load_whole, stop_at


def merge_adapter(base: Path, adapter: Path, out: Path, end: int) -> None:
    """Write a base with an adapter merged into it, in safetensors and in the precision that the base is stored in.

    An adapter trained on a quantised base is merged into the base as it was before that.

    Args:
        base: The base's folder, unquantised.
        adapter: The adapter's folder.
        out: Where to; made.
        end: The token that ends a reply; generation stops at it, too.

    Raises:
        ModelError: When either cannot be loaded, they do not fit, or a merged weight is no number.
    """
    require("torch", "transformers", "peft", extra="train")
    from peft import PeftModel
    from safetensors import SafetensorError

    model = load_whole(base, dtype="auto")
    try:
        with quiet_peft():
            tuned = PeftModel.from_pretrained(model, str(adapter), local_files_only=True)
        merged = tuned.merge_and_unload(safe_merge=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{adapter} cannot be merged into {base}: {error}") from error
    stop_at(merged.generation_config, end)
    merged.config.use_cache = True  # training turns it off
    merged.save_pretrained(out)
