"""A transformers model on this machine that answers batches of prompts."""

from __future__ import annotations

import asyncio
import copy
import functools
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from rolellm.core.errors import ModelError, RoleLLMWarning, SettingsError, note_out_of_memory, require
from rolellm.core.fingerprint import hash_json
from rolellm.core.settings import Advanced, Field, settings
from rolellm.models.families import explain_not_shared
from rolellm.models.find import count_parameters, find_model, hash_model
from rolellm.models.load import list_stop_tokens, load_adapter, load_part, load_whole
from rolellm.models.prompts.encode import encode_prompt, find_end_token, settle_template
from rolellm.models.prompts.render import load_chat_template

if TYPE_CHECKING:
    import torch

    from rolellm.models.prefix_generation import BatchLimits, Choose, SharedGeneration


#: The most replies in a batch, by device: a step on an H200 takes 27 ms for one row and 36 for 256.
MOST_ROWS: Final = {"cpu": 8, "cuda": 256}


@settings
class Decoding:
    """The way a reply is decoded.

    Greedy is the default for local models (our choice: it can be reproduced). The paper's replies use temperature 0.7,
    top_p 0.95 and at most 200 new tokens (secondary source, see the facts in the documentation).

    Attributes:
        max_new_tokens: Maximum tokens per reply.
        temperature: Sampling temperature; 0 is greedy. The paper's replies use 0.7.
        top_p: Nucleus sampling threshold. The paper's replies use 0.95.
        seed: Random seed for sampling; each row draws by seed and id.
    """

    max_new_tokens: int = Field(default=200, ge=1)
    temperature: float = Field(default=0.0, ge=0)
    top_p: Advanced[float] = Field(default=1.0, gt=0, le=1)
    seed: Advanced[int] = 0

    def describe(self) -> dict[str, Any]:
        """The settings that matter, for a fingerprint: greedy decoding has no top_p and no seed."""
        if self.temperature == 0:
            return {"strategy": "greedy", "max_new_tokens": self.max_new_tokens}
        chosen = {name: getattr(self, name) for name in ("max_new_tokens", "temperature", "top_p", "seed")}
        return {"strategy": "sample", **chosen}


def draw_numbers(seed: int, key: str, count: int) -> list[float]:
    """The random numbers in [0, 1) that decide a reply, one a token.

    They come from the content alone, so a reply survives reordering, resuming and another batch size.

    Args:
        seed: The run's seed.
        key: What is being answered, such as a row's id.
        count: How many; a longer list opens with the shorter one.
    """
    source = random.Random(int(hash_json([seed, key]), 16))
    return [source.random() for _ in range(count)]


def draw_tokens(draws: Sequence[float], scores: torch.Tensor) -> torch.Tensor:
    """Draw a token for each row with its own draw, by inverting its cumulative distribution.

    `transformers` itself draws from one generator for the whole batch, where a row's reply depends on its neighbors.

    Args:
        draws: Numbers in [0, 1), one a row.
        scores: Of shape (batch, vocabulary).

    Returns:
        The tokens, of shape (batch,).
    """
    import torch

    # In the order of the vocabulary, not of the scores: near ties would swap places between batch sizes.
    cumulative = scores.softmax(dim=-1).cumsum(dim=-1)
    total = cumulative[:, -1:].contiguous()
    shares = scores.new_tensor(draws)[:, None]
    chosen = torch.searchsorted(cumulative, shares * total, right=True)
    # Rounding may put a draw just below 1 on the total itself; the last token with any probability takes it.
    last = torch.searchsorted(cumulative, total)
    return torch.minimum(chosen, last)[:, 0]


def keep_nucleus(top_p: float, scores: torch.Tensor) -> torch.Tensor:
    """Keep the likeliest tokens up to a probability.

    They are those that transformers' `TopPLogitsWarper` leaves, and all of several equal scores at the limit. That one
    sorts scores with their places, most of a step of a small model; here the scores alone are, on a CPU by NumPy.

    Args:
        top_p: The probability.
        scores: Of shape (batch, vocabulary).

    Returns:
        Of the same shape, -inf for all other tokens.
    """
    import numpy as np
    import torch

    rising = torch.from_numpy(np.sort(scores.numpy())) if scores.is_cpu else scores.sort().values
    cumulative = rising.softmax(dim=-1).cumsum(dim=-1)
    out = cumulative <= 1 - top_p
    out[:, -1] = False
    least = rising.gather(1, out.sum(dim=-1, keepdim=True))
    return scores.masked_fill(scores < least, -torch.inf)


Finish = Literal["stop", "length"]
Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class Completion:
    """One reply.

    Attributes:
        text: Without special tokens, white space trimmed at both ends; may be empty.
        finish: ``stop`` when the model ended the reply itself, ``length`` when it ran out of room.
        prompt_tokens: Tokens of the prompt, without padding.
        new_tokens: Tokens generated, the end token included.
        cached_tokens: Tokens of the prompt that were kept from an earlier one.
    """

    text: str
    finish: Finish
    prompt_tokens: int
    new_tokens: int
    cached_tokens: int = field(default=0, compare=False)


class LocalModel:
    """A causal language model with its tokenizer; the weights are loaded when they are first needed.

    Args:
        model: A directory with a full model or a PEFT adapter (a run of ``rolellm train`` is either), or a Hub id.
        adapter: A PEFT adapter to put on a full model.
        device: ``auto`` takes CUDA where there is one.
        dtype: ``auto`` takes the checkpoint's own on CUDA, and float32 on a CPU (our choice: half precision crawls on
            many CPUs, and float32 keeps replies equal across batch sizes).

    Attributes:
        end: The token that ends a reply in the form of its prompts.
        tokenizer: The tokenizer, its chat template settled as for training (see `rolellm.models.prompts.encode`).
        config: The base's configuration.
        source: Where base, adapter and tokenizer come from.
        device: ``cpu`` or ``cuda``.
        dtype: The weights' type, such as ``float32``.
        context: The most tokens the model takes, prompt and reply together; ``None`` where it does not say.

    Raises:
        ModelError: When the model is not there or is no causal language model.
        SettingsError: For a device that is not here.
        MissingExtraError: Without torch or transformers.
    """

    def __init__(
        self, model: str, *, adapter: str | None = None, device: Device = "auto", dtype: DType = "auto"
    ) -> None:
        require("torch", "transformers", extra="train")
        from transformers import AutoConfig, AutoTokenizer

        # Folders by their whole path, for a worker that runs elsewhere.
        folders = []
        for name in (model, adapter):
            if name and Path(name).is_dir():
                name = str(Path(name).absolute())
            folders.append(name)
        self._given = (*folders, device, dtype)
        self.source = find_model(model, adapter)
        if self.source.adapter is not None:
            require("peft", extra="train")
        revision, is_cached = self.source.revision, self.source.is_cached
        self.config = load_part("config", AutoConfig, self.source.base, revision=revision, local_files_only=is_cached)
        own = revision if self.source.tokenizer == self.source.base else None
        self.tokenizer = load_part(
            "tokenizer", AutoTokenizer, self.source.tokenizer, revision=own, local_files_only=is_cached
        )
        settle_template(self.tokenizer)
        self.device = _choose_device(device)
        self.dtype = choose_dtype(dtype, self.device, self.config)
        context = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        self.context: int | None = int(context) if context else None
        self.end = find_end_token(self.tokenizer)
        self._model: Any = None
        self._shared: SharedGeneration | None = None
        self._limits: BatchLimits | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_once, self._given

    @property
    def hashes(self) -> dict[str, str | None]:
        """Content hashes of the base and of the adapter: ``model_hash`` and ``adapter_hash``."""
        source = self.source
        model_hash = hash_model(source.base, source.revision)
        adapter_hash = hash_model(source.adapter) if source.adapter else None
        return {"model_hash": model_hash, "adapter_hash": adapter_hash}

    @property
    def parameters(self) -> int | None:
        """The base's number of parameters, as far as its files tell; see `rolellm.models.find.count_parameters`."""
        return count_parameters(self.source.base, self.source.revision)

    @property
    def prompt_form(self) -> dict[str, str]:
        """The text form of prompts: ``form`` (``rolellama``, or ``tokenizer`` for one of its own) and ``form_hash``."""
        default = load_chat_template("rolellama")
        used = self.tokenizer.chat_template or default
        form = "rolellama" if str(used).strip() == default else "tokenizer"
        return {"form": form, "form_hash": hash_json(used)}

    @property
    def vocabulary(self) -> int:
        """The number of tokens that the model knows; an id at or above this cannot go in."""
        return int(self.config.get_text_config().vocab_size)

    @functools.cached_property
    def stops(self) -> list[int]:
        """The tokens that end a reply: the tokenizer's, the chat template's and the base's own."""
        from transformers import GenerationConfig

        source = self.source
        try:
            config = GenerationConfig.from_pretrained(
                source.base, revision=source.revision, local_files_only=source.is_cached
            )
        except OSError:  # It has none of its own.
            config = GenerationConfig.from_model_config(self.config)
        tokens = {self.end, self.tokenizer.eos_token_id, *list_stop_tokens(config)}
        return sorted(tokens - {None})

    def encode(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The tokens of a prompt; see `rolellm.models.prompts.encode.encode_prompt`."""
        return encode_prompt(self.tokenizer, messages)

    def load(self) -> None:
        """Load the weights now; does nothing the second time.

        Raises:
            ModelError: When weights are broken, missing, or do not fit the model's own description.
        """
        if self._model is not None:
            return
        import torch
        from transformers import GenerationConfig

        source = self.source
        options: dict[str, Any] = {"dtype": getattr(torch, self.dtype), "revision": source.revision}
        if source.is_cached:
            options["local_files_only"] = True
        if self.device != "cpu":
            options["device_map"] = {"": self.device}
        model: Any = load_whole(self.source.base, **options)
        if getattr(model.config, "output_router_logits", False):
            # For the routers' loss in training; with it, `generate` fails on a padded batch.
            model.config.output_router_logits = False
        # The checkpoint's own defaults (top_k, repetition_penalty, …) would decode by settings that no report names.
        model.generation_config = GenerationConfig()
        if self.source.adapter is not None:
            model = load_adapter(model, self.source.adapter)
        self._model = model.eval()

    @property
    def weights(self) -> Any:
        """The weights as a transformers or PEFT model; loaded when first asked for."""
        self.load()
        return self._model

    def find_limits(self) -> BatchLimits:
        """Find how much goes through the model together: what the memory holds next to the weights, which are loaded.

        Raises:
            ModelError: When the weights cannot be loaded.
        """
        self.load()
        if self._limits is None:
            import torch

            from rolellm.models.prefix_generation import fit_batches

            dtype = getattr(torch, self.dtype)
            self._limits = fit_batches(self.config.get_text_config(), dtype, _measure_free_memory(self.device))
        return self._limits

    def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        decoding: Decoding,
        keys: Sequence[str] | None = None,
        shared: Sequence[int] | None = None,
    ) -> list[Completion]:
        """Answer prompts together; each reply is what the prompt would get alone, up to rounding.

        What prompts begin with in common goes through the model once, in the families for which that is exact; the
        beginning seen last is kept for the next call, and so are the last prompts that were answered alone. More than
        fits into memory goes in parts; out of memory, they are halved.

        Args:
            prompts: Token ids, one sequence a prompt.
            decoding: How to choose tokens.
            keys: What seeds each prompt's sampling, such as row ids; by default its place in the batch.
            shared: How many tokens of each prompt belong to a beginning that others share, never all of them; by
                default, what prompts of this batch have in common.

        Returns:
            One completion a prompt, in order.

        Raises:
            ModelError: When the weights cannot be loaded, or the memory does not do for one prompt.

        Warns:
            RoleLLMWarning: Once, when beginnings are not shared, and when a batch did not fit.
        """
        from rolellm.models.prefix_generation import cut_batches

        keys = list(keys or [str(n) for n in range(len(prompts))])
        if shared is None:
            shared = find_shared_lengths(prompts)
        lengths = [len(prompt) for prompt in prompts]
        heads = [tuple(prompt[:length]) for prompt, length in zip(prompts, shared, strict=True)]
        most = decoding.max_new_tokens
        replies: list[list[int]] = []
        while len(replies) < len(prompts):
            start = len(replies)
            limits = self.find_limits()
            waiting = range(start, len(prompts))
            batch = next(cut_batches(waiting, lengths, shared, heads, max_new_tokens=most, limits=limits))
            part = slice(start, start + len(batch))
            replies += self._try_replies(prompts[part], decoding, keys[part], shared[part])
        completions = list(map(self.make_completion, prompts, replies))
        if len(completions) == 1 and self._shared is not None:
            completions = [replace(completions[0], cached_tokens=self._shared.reused)]
        return completions

    def _try_replies(
        self, prompts: Sequence[Sequence[int]], decoding: Decoding, keys: Sequence[str], shared: Sequence[int]
    ) -> list[list[int]]:
        """Replies; none when the memory is too small, after which batches are smaller."""
        from accelerate.utils.memory import clear_device_cache

        with note_out_of_memory([]):
            return self._replies(prompts, decoding, keys, shared)
        if len(prompts) == 1:
            raise ModelError(
                f"out of memory with a single prompt of {len(prompts[0])} tokens; use a smaller model, "
                "a smaller dtype, or fewer new tokens"
            )
        self._shared = None
        clear_device_cache()
        most = len(prompts) // 2
        self._limits = replace(self.find_limits(), rows=most)
        text = f"out of memory in a batch of {len(prompts)} prompts; going on with {most} at a time"
        warnings.warn(text, RoleLLMWarning, stacklevel=4)
        return []

    def _replies(
        self, prompts: Sequence[Sequence[int]], decoding: Decoding, keys: Sequence[str], shared: Sequence[int]
    ) -> list[list[int]]:
        longest = max(map(len, prompts)) + decoding.max_new_tokens
        reason = explain_not_shared(self._model.config, longest) or _find_prompt_learning(self._model)
        if reason:
            text = f"what prompts have in common is computed for each of them anew: the base is {reason}"
            warnings.warn(text, RoleLLMWarning, stacklevel=5)
            return self._generate(prompts, decoding, keys)
        from rolellm.models.prefix_generation import SharedGeneration

        self._shared = self._shared or SharedGeneration(self._model, self.device)
        choose = make_chooser(decoding, keys)
        limit = decoding.max_new_tokens
        return self._shared.replies(prompts, shared, limit=limit, stops=self.stops, choose=choose)

    def measure_losses(self, prompt: Sequence[int], reply: Sequence[int]) -> list[float]:
        """The loss of each token of a reply after its prompt, as far as both fit the context.

        Args:
            prompt: Token ids, at least one.
            reply: Token ids.

        Raises:
            ModelError: When the weights cannot be loaded.
        """
        import torch

        ids = [*prompt, *reply][: self.context]
        targets = torch.tensor(ids[len(prompt) :], device=self.device)
        if not len(targets):
            return []
        logits = self._compute_logits(ids, len(targets) + 1)[:-1]
        losses: list[float] = torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none").tolist()
        return losses

    def _compute_logits(self, ids: Sequence[int], count: int) -> torch.Tensor:
        """Compute the logits after each of the last tokens, ``(count, vocabulary)``."""
        import torch

        self.load()
        # A whole prompt's scores may take gigabytes.
        more = {"logits_to_keep": count} if self._model._supports_logits_to_keep() else {}
        with torch.inference_mode():
            output = self._model(input_ids=torch.tensor([list(ids)], device=self.device), **more)
        logits: torch.Tensor = output.logits[0, -count:]
        return logits

    def rank_next_tokens(self, prompt: Sequence[int], most: int) -> list[tuple[str, float]]:
        """The likeliest next tokens, likeliest first, each with its log probability.

        Args:
            prompt: Token ids.
            most: How many tokens.

        Raises:
            ModelError: When the weights cannot be loaded.
        """
        logs = self._compute_logits(prompt, 1)[0].float().log_softmax(-1)
        values, tokens = logs.topk(min(most, len(logs)))
        pieces = [self.tokenizer.decode([token]) for token in tokens.tolist()]
        return list(zip(pieces, values.tolist(), strict=True))

    def with_weights(self, weights: Any) -> LocalModel:
        """The same model and tokenizer with other weights: a transformers model of the same kind."""
        model = copy.copy(self)
        model._model = weights.to(self.device).eval()
        model._shared = None
        return model

    def _generate(self, prompts: Sequence[Sequence[int]], decoding: Decoding, keys: Sequence[str]) -> list[list[int]]:
        from transformers import GenerationConfig

        most = decoding.max_new_tokens
        config = GenerationConfig(max_new_tokens=most, eos_token_id=self.stops, pad_token_id=self._padding)
        output = generate_padded(self.weights, prompts, make_chooser(decoding, keys), config)
        longest = max(map(len, prompts))
        replies: list[list[int]] = output[:, longest:].tolist()
        return replies

    @property
    def _padding(self) -> int:
        padding = self.tokenizer.pad_token_id
        # Masked out, so any id does that the embedding has.
        if padding is None or padding >= self.vocabulary:
            return self.end
        return int(padding)

    def make_completion(self, prompt: Sequence[int], reply: list[int]) -> Completion:
        """Make a reply of its tokens, which may go on after an end token."""
        ends = [index for index, token in enumerate(reply) if token in self.stops]
        finish: Finish = "stop" if ends else "length"
        end = ends[0] if ends else len(reply)
        text = self.decode(reply[:end]).strip()
        return Completion(text, finish, prompt_tokens=len(prompt), new_tokens=len(reply[: end + 1]))

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode tokens without those that are special."""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


@functools.lru_cache(maxsize=4)
def _load_once(model: str, adapter: str | None, device: Device, dtype: DType) -> LocalModel:
    """A model as sent to a worker; made once, so that weights are loaded once a process."""
    return LocalModel(model, adapter=adapter, device=device, dtype=dtype)


@dataclass(slots=True, eq=False)
class Draft:
    """A reply that is made.

    Attributes:
        form: What gives its prompt and reads its tokens.
        prompt: Token ids.
        decoding: How its tokens are chosen.
        emit: Called with pieces of text where it is streamed, and at last with the reply.
        is_streamed: Whether its text is given as it is made.
        is_trimmed: Whether white space at both ends is cut.
        stops: Texts that end it.
        adapter: The name of an adapter, where there are several.
        key: What seeds the sampling.
        is_abandoned: Set when nobody waits for it any more.
    """

    form: LocalModel
    prompt: Sequence[int]
    decoding: Decoding
    emit: Callable[[str | Completion | Exception], object]
    is_streamed: bool = True
    is_trimmed: bool = False
    stops: Sequence[str] = ()
    adapter: str = ""
    key: str = ""
    is_abandoned: bool = False
    _tokens: list[int] = field(default_factory=list)
    _emitted: int = 0
    _is_done: bool = False

    @classmethod
    def begin(
        cls, form: LocalModel, prompt: Sequence[int], decoding: Decoding, **options: Any
    ) -> tuple[Draft, asyncio.Queue[str | Completion | Exception]]:
        """Begin a reply whose text and end come through a queue of the running event loop, from any thread."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[str | Completion | Exception] = asyncio.Queue()

        def emit(event: str | Completion | Exception) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        return cls(form, prompt, decoding, emit, **options), events

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
        text = self.form.decode(self._tokens)
        if self.is_trimmed:
            text = text.strip()
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
            finish: Finish = "stop" if is_end else "length"
            self.emit(Completion(text, finish, prompt_tokens=len(self.prompt), new_tokens=count))
        return self._is_done


def complete_drafts(model: Any, drafts: Sequence[Draft], **options: Any) -> None:
    """Make replies in one batch; each is the one that it would be alone, up to rounding.

    Args:
        model: The weights.
        drafts: The replies.
        options: For ``generate``.
    """
    import torch
    from transformers import GenerationConfig, StoppingCriteriaList

    choosers = [make_chooser(draft.decoding, [draft.key]) for draft in drafts]

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

    limit = max(draft.decoding.max_new_tokens for draft in drafts)
    # What is masked may be any token.
    config = GenerationConfig(max_new_tokens=limit, pad_token_id=0)
    prompts = [draft.prompt for draft in drafts]
    criteria = StoppingCriteriaList([add_tokens])
    generate_padded(model, prompts, choose, config, stopping_criteria=criteria, **options)


def make_chooser(decoding: Decoding, keys: Sequence[str]) -> Choose:
    """Make what chooses the next tokens."""
    if decoding.temperature == 0:
        return lambda logits, rows, step: logits.argmax(dim=-1)
    numbers = [draw_numbers(decoding.seed, key, decoding.max_new_tokens) for key in keys]

    def choose(logits: torch.Tensor, rows: Sequence[int], step: int) -> torch.Tensor:
        scores = logits / decoding.temperature
        if decoding.top_p < 1:
            scores = keep_nucleus(decoding.top_p, scores)
        draws = [numbers[row][step] for row in rows]
        return draw_tokens(draws, scores)

    return choose


def generate_padded(model: Any, prompts: Sequence[Sequence[int]], choose: Choose, config: Any, **options: Any) -> Any:
    """Return what transformers' own ``generate`` gives for prompts padded on the left.

    Args:
        model: The weights.
        prompts: Token ids.
        choose: Chooses the next tokens.
        config: A ``transformers.GenerationConfig`` with the token for padding.
        options: For ``generate``.
    """
    import torch
    from transformers import LogitsProcessorList

    longest = max(map(len, prompts))
    ids, mask = [], []
    for prompt in prompts:
        count = longest - len(prompt)
        ids.append([config.pad_token_id] * count + list(prompt))
        mask.append([0] * count + [1] * len(prompt))
    rows = range(len(prompts))

    def leave_chosen(so_far: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Leave one token a row with a finite score, so that greedy decoding after it is sampling."""
        chosen = choose(scores, rows, so_far.shape[1] - longest)
        return torch.full_like(scores, -torch.inf).scatter(1, chosen[:, None], 0.0)

    inputs = {
        "input_ids": torch.tensor(ids, device=model.device),
        "attention_mask": torch.tensor(mask, device=model.device),
    }
    processors = LogitsProcessorList([leave_chosen])
    with torch.inference_mode():
        return model.generate(**inputs, generation_config=config, logits_processor=processors, **options)


def find_shared_lengths(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Find how many tokens of each prompt belong to a beginning that others have too."""
    from rolellm.models.prefix_generation import group_prompts

    lengths = [0] * len(prompts)
    for shared, rows in group_prompts(prompts):
        for row in rows:
            lengths[row] = shared
    return lengths


def _find_prompt_learning(model: Any) -> str | None:
    """Tell whether an adapter puts tokens of its own before the prompt."""
    for config in getattr(model, "peft_config", {}).values():
        if config.is_prompt_learning:
            return "under an adapter that is no LoRA"
    return None


def _choose_device(requested: Device) -> Literal["cpu", "cuda"]:
    import torch

    if requested == "cuda" and not torch.cuda.is_available():
        raise SettingsError("device is cuda, but torch finds no CUDA device here; use cpu or auto")
    if requested == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return requested


def _measure_free_memory(device: str) -> int:
    """Bytes that weights and caches have left."""
    if device == "cpu":
        import psutil

        return int(psutil.virtual_memory().available)
    import torch

    free, _ = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def choose_dtype(requested: DType, device: str, config: Any) -> str:
    """Choose the type of weights: with ``auto``, the checkpoint's own on a GPU, and float32 on a CPU."""
    if requested != "auto":
        return requested
    declared = getattr(config, "dtype", None)
    if device == "cpu" or declared is None:
        return "float32"
    return str(declared).removeprefix("torch.")
