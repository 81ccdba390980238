"""One base in memory, with any number of adapters on it: their replies are made in one batch.

PEFT adds to each row of a batch what the row's own adapter says (its ``adapter_names``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from rolellm.core.errors import ModelError
from rolellm.core.fingerprint import hash_json
from rolellm.models.find import hash_model, read_adapter_config
from rolellm.models.load import load_adapter
from rolellm.models.local_model import Draft, LocalModel, complete_drafts

#: PEFT's name of the base without an adapter.
PLAIN: Final = "__base__"
#: Settings of an adapter with which PEFT mixes no rows: it has batches of its own.
_NOT_MIXED: Final = ("use_dora", "alora_invocation_tokens")
#: Settings of an adapter that is alone on its base.
_ALONE: Final = ("modules_to_save", "trainable_token_indices")


class AdapterModel:
    """A base with adapters, by name.

    Args:
        base: A folder with a full model, or a Hub id.

    Attributes:
        forms: By the name of an adapter, after the base's `PLAIN`: what gives prompts, without weights.
    """

    def __init__(self, base: str) -> None:
        form = LocalModel(base)
        if form.source.adapter is not None:
            raise ModelError(f"{base} is an adapter; give its base model {form.source.base}")
        self.forms = {PLAIN: form}
        self._base: Any = form.weights
        self._weights = self._base
        self._configs: dict[str, Mapping[str, Any]] = {}
        self._tokenizers = WeakValueDictionary[str, Any]()
        self._share_tokenizer(form)

    def add(self, name: str, adapter: str) -> None:
        """Put an adapter on the base.

        Args:
            name: What it is called.
            adapter: A folder, or a Hub id.

        Raises:
            ModelError: When it is not an adapter, or one for another base.
        """
        import torch

        base = self.forms[PLAIN].source.base
        configs = {**self._configs, name: check_tuned_on(base, adapter)}
        for owner, config in configs.items():
            if len(configs) > 1 and any(map(config.get, _ALONE)):
                # PEFT's hooks for them stay when a batch mixes adapters, and later replies fail.
                raise ModelError(
                    f"the adapter of {owner} has {' or '.join(_ALONE)}, which go with no other adapter; serve it alone"
                )
        form = LocalModel(base, adapter=adapter)
        self._share_tokenizer(form)
        # PEFT leaves layers of an adapter that fails in the model, so it is tried on one without weights.
        with torch.device("meta"):
            trial = type(self._base)(self._base.config)
        load_adapter(trial, adapter, low_cpu_mem_usage=True)
        self._weights = load_adapter(self._weights, adapter, adapter_name=_make_key(name)).eval()
        self.forms[name] = form
        self._configs = configs

    def _share_tokenizer(self, form: LocalModel) -> None:
        """Give a form the tokenizer of another where they are the same: it may take more memory than an adapter."""
        tokenizer = form.tokenizer
        content = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else id(tokenizer)
        key = hash_json([content, tokenizer.chat_template, tokenizer.special_tokens_map])
        form.tokenizer = self._tokenizers.setdefault(key, tokenizer)

    def remove(self, name: str) -> None:
        """Take an adapter from the base, and free its memory."""
        del self.forms[name], self._configs[name]
        _, *others = self.forms
        if not others:
            self._weights = self._weights.unload()
            return
        # PEFT warns when it has to choose the next one.
        self._weights.set_adapter(_make_key(others[0]))
        self._weights.delete_adapter(_make_key(name))

    def find_group(self, draft: Draft) -> str:
        """Find what the replies of one batch have in common: nothing, or an adapter that is not mixed with others."""
        config = self._configs.get(draft.adapter, {"peft_type": "LORA"})
        is_special = any(map(config.get, (*_NOT_MIXED, *_ALONE)))
        if is_special or config.get("peft_type") != "LORA":
            return draft.adapter
        return ""

    def complete(self, drafts: Sequence[Draft]) -> None:
        """Make replies in one batch; each is the one that it would be alone, up to rounding.

        Args:
            drafts: Replies of one group.
        """
        more, scope = self._choose_adapters(drafts)
        with scope:
            complete_drafts(self._weights, drafts, **more)

    def _choose_adapters(self, drafts: Sequence[Draft]) -> tuple[dict[str, Any], Any]:
        """The adapters as PEFT's ``generate`` gets them, and what holds meanwhile."""
        keys = [_make_key(draft.adapter) for draft in drafts]
        if len(self.forms) == 1:
            return {}, nullcontext()
        if len(set(keys)) > 1:
            return {"adapter_names": keys}, nullcontext()
        if keys[0] == PLAIN:
            return {}, self._weights.disable_adapter()
        self._weights.set_adapter(keys[0])
        return {}, nullcontext()


def _make_key(name: str) -> str:
    """Make PEFT's name of an adapter: it allows no dot in one."""
    return name if name == PLAIN else hash_json(name)


def check_tuned_on(base: str, adapter: str) -> Mapping[str, Any]:
    """Check that an adapter was tuned on a base, as far as the base that it names is here; return its configuration.

    Raises:
        ModelError: When it was tuned on another one, or is no adapter.
    """
    settings = read_adapter_config(adapter)
    if settings is None:
        raise ModelError(f"{adapter} is not an adapter: it has no adapter_config.json")
    tuned_on = str(settings.get("base_model_name_or_path") or "")
    is_here = Path(tuned_on).is_dir() and Path(base).is_dir()
    if is_here and hash_model(tuned_on) != hash_model(base):
        raise ModelError(f"the adapter {adapter} was tuned on {tuned_on}, not on {base}; give that one as --base")
    return settings
