"""One base in memory, with any number of adapters on it: their replies are made in one batch.

PEFT adds to each row of a batch what the row's own adapter says (its ``adapter_names``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from rolellm.core.errors import ModelError
from rolellm.core.fingerprint import hash_json
from rolellm.models.find import hash_model, read_adapter_config
from rolellm.models.load import load_adapter
from rolellm.models.local_model import Completion, Decoding, LocalModel, generate_padded, make_chooser

if TYPE_CHECKING:
    import torch

#: PEFT's name of the base without an adapter.
PLAIN: Final = "__base__"
#: Settings of an adapter with which PEFT mixes no rows: it has batches of its own.
_NOT_MIXED: Final = ("use_dora", "alora_invocation_tokens")
#: Settings of an adapter that is alone on its base.
_ALONE: Final = ("modules_to_save", "trainable_token_indices")


@dataclass(slots=True, eq=False)
class Draft:
    """A reply that is made.

    Attributes:
        adapter: The name of the adapter, or `PLAIN` for the base.
        form: What gives its prompt and reads its tokens.
        prompt: Token ids.
        decoding: How its tokens are chosen.
        stops: Texts that end it.
        is_streamed: Whether its text is given as it is made.
        emit: Called with pieces of text where it is streamed, and at last with the reply.
        is_abandoned: Set when nobody waits for it any more.
    """

    adapter: str
    form: LocalModel
    prompt: list[int]
    decoding: Decoding
    stops: Sequence[str]
    is_streamed: bool
    emit: Callable[[str | Completion | Exception], object]
    is_abandoned: bool = False
    _tokens: list[int] = field(default_factory=list)
    _emitted: int = 0
    _is_done: bool = False

    def add(self, token: int) -> bool:
        """Take a token, and tell whether it was the last."""
        if self._is_done or self.is_abandoned:
            return True
        is_end = token in self.form.stops
        if not is_end:
            self._tokens.append(token)
        count = len(self._tokens) + is_end
        is_full = count == self.decoding.max_new_tokens
        if not (is_end or is_full or self.is_streamed or self.stops):
            return False
        text = self.form.tokenizer.decode(self._tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        ends = [text.index(stop) for stop in self.stops if stop in text]
        if ends:
            is_end = True
            text = text[: min(ends)]
        self._is_done = is_end or is_full
        ready = text
        if not self._is_done:
            # Half a character is held back, and what may begin a text that ends the reply.
            ready = text.rstrip("\ufffd")
            held = max(map(len, self.stops), default=1) - 1
            ready = ready[: max(0, len(ready) - held)]
        if self.is_streamed and len(ready) > self._emitted:
            self.emit(ready[self._emitted :])
            self._emitted = len(ready)
        if self._is_done:
            finish: Any = "stop" if is_end else "length"
            self.emit(Completion(text, finish, prompt_tokens=len(self.prompt), new_tokens=count))
        return self._is_done


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
        check_tuned_on(base, adapter)
        others = [form.source.adapter for form in self.forms.values() if form.source.adapter]
        for path in (adapter, *others) if others else ():
            settings = read_adapter_config(path) or {}
            if any(map(settings.get, _ALONE)):
                # PEFT's hooks for them stay when a batch mixes adapters, and later replies fail.
                raise ModelError(f"{path} has {' or '.join(_ALONE)}, which go with no other adapter; serve it alone")
        form = LocalModel(base, adapter=adapter)
        self._share_tokenizer(form)
        # PEFT leaves layers of an adapter that fails in the model, so it is tried on one without weights.
        with torch.device("meta"):
            trial = type(self._base)(self._base.config)
        load_adapter(trial, adapter, low_cpu_mem_usage=True)
        self._weights = load_adapter(self._weights, adapter, adapter_name=_make_key(name)).eval()
        self.forms[name] = form

    def _share_tokenizer(self, form: LocalModel) -> None:
        """Give a form the tokenizer of another where they are the same: it may take more memory than an adapter."""
        tokenizer = form.tokenizer
        content = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else id(tokenizer)
        key = hash_json([content, tokenizer.chat_template, tokenizer.special_tokens_map])
        form.tokenizer = self._tokenizers.setdefault(key, tokenizer)

    def remove(self, name: str) -> None:
        """Take an adapter from the base, and free its memory."""
        del self.forms[name]
        _, *others = self.forms
        if not others:
            self._weights = self._weights.unload()
            return
        # PEFT warns when it has to choose the next one.
        self._weights.set_adapter(_make_key(others[0]))
        self._weights.delete_adapter(_make_key(name))

    def find_group(self, draft: Draft) -> str:
        """Find what the replies of one batch have in common: nothing, or an adapter that is not mixed with others."""
        adapter = draft.form.source.adapter
        settings = read_adapter_config(adapter) if adapter else None
        if settings is None:
            return ""
        is_plain = settings.get("peft_type") == "LORA" and not any(map(settings.get, (*_NOT_MIXED, *_ALONE)))
        return "" if is_plain else draft.adapter

    def complete(self, drafts: Sequence[Draft]) -> None:
        """Make replies in one batch; each is the one that it would be alone, up to rounding.

        Args:
            drafts: Replies of one group.
        """
        import torch
        from transformers import GenerationConfig, StoppingCriteriaList

        limit = max(draft.decoding.max_new_tokens for draft in drafts)
        choosers = [make_chooser(draft.decoding, [""]) for draft in drafts]

        def choose(scores: torch.Tensor, rows: Sequence[int], step: int) -> torch.Tensor:
            chosen = []
            for row in rows:
                last_step = drafts[row].decoding.max_new_tokens - 1
                chosen.append(choosers[row](scores[row, None], [0], min(step, last_step)))
            return torch.cat(chosen)

        def add_tokens(so_far: torch.Tensor, _scores: Any) -> torch.Tensor:
            tokens = so_far[:, -1].tolist()
            is_done = [draft.add(token) for draft, token in zip(drafts, tokens, strict=True)]
            return torch.tensor(is_done, device=so_far.device)

        more, scope = self._choose_adapters(drafts)
        # What is masked may be any token.
        config = GenerationConfig(max_new_tokens=limit, pad_token_id=0)
        criteria = StoppingCriteriaList([add_tokens])
        with scope:
            prompts = [draft.prompt for draft in drafts]
            generate_padded(self._weights, prompts, choose, config, stopping_criteria=criteria, **more)

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


def check_tuned_on(base: str, adapter: str) -> None:
    """Check that an adapter was tuned on a base, as far as the base that it names is here.

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
