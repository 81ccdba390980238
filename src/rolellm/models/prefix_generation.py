"""Generation from prompts that begin alike: a beginning goes through the model once, and all its prompts attend to it.

The keys and values of a beginning are kept once, not once a prompt, and each layer multiplies them with the queries of
all its prompts together. A prompt's own tokens have places of their own, allocated once a batch; replies that ended
leave the batch. This way of attending is Hydragen's (arXiv 2402.05099).

This module imports torch at its head; import it inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

_NAME = "rolellm_shared"
# Prompt tokens in one forward pass: what they take of memory next to the caches (our choice).
_CHUNK = 2048
# What a batch may take of the free memory: its keys and values, and its scores; activations get the rest (our choice).
_CACHES_SHARE = 0.6
_SCORES_SHARE = 0.1
# Copies of the scores in float32 while a token is drawn.
_SCORES_COPIES = 8
# Prompts answered alone whose states are kept for those that go on from them, and the bytes of all (our choice): a
# scene of four characters, its director and its environment.
_KEPT_PROMPTS = 8
_KEPT_BYTES = 1 << 30
# A batch is made smaller when no more than this share of its replies goes on: copying what is left costs a step or two.
_SHRINK = 0.75

#: Keys and values of each layer.
Layers = dict[int, tuple[torch.Tensor, torch.Tensor]]
#: Chooses the next tokens, ``(batch,)``, from logits of ``(batch, vocabulary)`` in float32, given which prompts of the
#: call these are and how many tokens each has so far.
Choose = Callable[[torch.Tensor, Sequence[int], int], torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Beginning:
    """A beginning that prompts share, as the model has seen it.

    Attributes:
        ids: Its tokens.
        layers: Keys and values of each layer, ``(key heads, length, width)``.
    """

    ids: tuple[int, ...] = ()
    layers: Layers = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """The memory of its keys and values."""
        return sum(states.nbytes for pair in self.layers.values() for states in pair)


def group_prompts(prompts: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
    """Put prompts together that begin alike.

    A prompt joins a group as long as that does not halve what the group shares; those that share nothing are one group.

    Args:
        prompts: Token ids.

    Returns:
        For each group how many tokens its prompts share, never all of one, and their places. Groups are in the order of
        their first prompts.
    """
    groups: list[tuple[int, list[int]]] = []
    for number in sorted(range(len(prompts)), key=lambda number: tuple(prompts[number])):
        prompt = prompts[number]
        if groups:
            shared, members = groups[-1]
            common = _count_common(prompts[members[0]], prompt, shared)
            if common > 0 and 2 * common >= shared:
                groups[-1] = (common, members)
                members.append(number)
                continue
        groups.append((len(prompt) - 1, [number]))
    singles: list[int] = []
    together = []
    for shared, members in groups:
        if len(members) > 1:
            together.append((shared, sorted(members)))
        else:
            singles += members
    if singles:
        together.append((0, sorted(singles)))
    return sorted(together, key=lambda group: group[1][0])


def _count_common(first: Sequence[int], second: Sequence[int], most: int) -> int:
    most = min(most, len(second) - 1)
    if first[:most] == second[:most]:
        return most
    for index in range(most):
        if first[index] != second[index]:
            return index
    return most


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much may go through a model together.

    Attributes:
        rows: Prompts.
        tokens: Tokens of prompts and replies. A single prompt may have more.
    """

    rows: int
    tokens: int


def fit_batches(config: Any, dtype: torch.dtype, free: int) -> BatchLimits:
    """Find how large batches may be, as powers of two: a little more or less memory changes nothing.

    Args:
        config: The model's configuration.
        dtype: The type of keys and values.
        free: Bytes of memory.
    """
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    token_bytes = 2 * config.num_hidden_layers * key_heads * width * dtype.itemsize
    row_bytes = config.vocab_size * _SCORES_COPIES * torch.float32.itemsize
    rows = _SCORES_SHARE * free / row_bytes
    tokens = _CACHES_SHARE * free / token_bytes
    return BatchLimits(_round_down(rows), _round_down(tokens))


def _round_down(number: float) -> int:
    """Round down to a power of two, and to 1 at least."""
    bits = max(1, int(number)).bit_length()
    return 1 << (bits - 1)


def cut_batches(
    order: Iterable[int],
    lengths: Sequence[int],
    shared: Sequence[int],
    heads: Sequence[Hashable],
    *,
    max_new_tokens: int,
    limits: BatchLimits,
) -> Iterator[list[int]]:
    """Cut prompts into batches within limits.

    A shared beginning counts once, what follows it as the longest of its batch, a reply at its full length.

    Args:
        order: The prompts' numbers, those of one beginning next to each other.
        lengths: Tokens of each prompt.
        shared: How many of them belong to its beginning.
        heads: What tells the beginnings apart.
        max_new_tokens: Tokens a reply.
        limits: Of a batch.
    """
    batch: list[int] = []
    longest = beginnings = 0
    for index in order:
        own = lengths[index] - shared[index]
        is_new = not batch or heads[index] != heads[batch[-1]]
        wider = max(longest, own)
        more = beginnings + is_new * shared[index]
        tokens = (wider + max_new_tokens) * (len(batch) + 1) + more
        if batch and (len(batch) == limits.rows or tokens > limits.tokens):
            yield batch
            batch = []
            wider = own
            more = shared[index]
        batch.append(index)
        longest = wider
        beginnings = more
    if batch:
        yield batch


class _Batch:
    """The places of a batch's own tokens, aligned at their ends, and who attends to which beginning.

    Args:
        beginnings: The beginning of each prompt; those of one beginning are neighbors.
        padding: Unused places before each prompt's own tokens.
        capacity: Places for each prompt.
        device: Where the model is.
    """

    def __init__(self, beginnings: Sequence[Beginning], padding: Sequence[int], capacity: int, device: Any) -> None:
        self._beginnings = list(beginnings)
        self._capacity = capacity
        self._padding = torch.tensor(padding, device=device)
        self._layers: Layers = {}
        self._used = self._stop = 0
        self._settle()

    def _settle(self) -> None:
        """Find the runs of prompts with one beginning, and the longest beginning."""
        self.runs: list[tuple[slice, Beginning]] = []
        start = 0
        for _, members in groupby(self._beginnings, key=id):
            beginnings = list(members)
            end = start + len(beginnings)
            self.runs.append((slice(start, end), beginnings[0]))
            start = end
        lengths = [len(beginning.ids) for beginning in self._beginnings]
        self._lengths = torch.tensor(lengths, device=self._padding.device)
        self.longest = max(lengths)
        self._offset = self._lengths - self._padding
        self._hidden: dict[Any, torch.Tensor] = {}

    def forward(self, model: Any, ids: torch.Tensor) -> torch.Tensor:
        """Take the next tokens, ``(batch, count)``; gives the logits after the last, ``(batch, vocabulary)``."""
        self._stop = self._used + ids.shape[1]
        self._hidden = {}
        columns = torch.arange(self._used, self._stop, device=ids.device)
        positions = self._offset[:, None] + columns
        positions = positions.clamp(min=0)
        output = model(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=1, shared_beginnings=self)
        self._used = self._stop
        logits: torch.Tensor = output.logits[:, -1]
        return logits.float()

    def keep(self, rows: Sequence[int]) -> None:
        """Let only these prompts go on, each as often as it is named."""
        chosen = torch.tensor(rows, device=self._padding.device)
        for layer, (keys, values) in self._layers.items():
            self._layers[layer] = (keys[chosen], values[chosen])
        self._padding = self._padding[chosen]
        self._beginnings = [self._beginnings[row] for row in rows]
        self._settle()

    def layers(self) -> Layers:
        """Keys and values of the first prompt, as far as it has gone."""
        layers: Layers = {}
        for layer, (keys, values) in self._layers.items():
            layers[layer] = (keys[0, :, : self._used], values[0, :, : self._used])
        return layers

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep a layer's new keys and values, ``(batch, key heads, count, width)``; gives all so far."""
        if layer not in self._layers:
            rows, heads, _, width = key.shape
            shape = (rows, heads, self._capacity, width)
            # Zeros: what is unused is multiplied, too, if only by zero.
            self._layers[layer] = (key.new_zeros(shape), value.new_zeros(shape))
        keys, values = self._layers[layer]
        keys[:, :, self._used : self._stop] = key
        values[:, :, self._used : self._stop] = value
        keys = keys[:, :, : self._stop]
        values = values[:, :, : self._stop]
        return keys, values

    def hidden(self, window: int | None) -> torch.Tensor:
        """The places that the new tokens do not see, of the longest beginning and then their own.

        Returns:
            ``(batch, 1, 1, count, places)``.
        """
        if window in self._hidden:
            return self._hidden[window]
        before = torch.arange(self.longest, device=self._padding.device)
        own = torch.arange(self._stop, device=self._padding.device)
        own_positions = self._offset[:, None] + own
        is_past = before >= self._lengths[:, None]
        is_padding = own < self._padding[:, None]
        before = before.expand_as(is_past)
        positions = torch.cat([before, own_positions], dim=1).unsqueeze(1)
        unused = torch.cat([is_past, is_padding], dim=1).unsqueeze(1)
        new = own_positions[:, self._used :, None]
        hidden = unused | (positions > new)
        if window is not None:
            hidden |= new - positions >= window
        self._hidden[window] = hidden[:, None, None]
        return self._hidden[window]


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    shared_beginnings: _Batch,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over a beginning and a prompt's own tokens; an attention function as transformers calls them.

    Args:
        module: The attention layer.
        query: ``(batch, heads, count, width)``.
        key: ``(batch, key heads, count, width)``, of the new tokens alone.
        value: As ``key``.
        attention_mask: Always ``None``.
        shared_beginnings: What came before.
        scaling: Of the scores.
        sliding_window: How far back the layer's tokens see.
        softcap: Bound of the scores.
        unused: What else transformers hands on, such as dropout, which is none here.

    Returns:
        ``(batch, count, heads, width)``, and no weights.
    """
    batch = shared_beginnings
    keys, values = batch.store(module.layer_idx, key, value)
    rows, heads, count, width = query.shape
    kinds = keys.shape[1]
    queries = heads // kinds * count
    # Heads that share keys are more queries of the same.
    query = query.reshape(rows, kinds, queries, width) * scaling
    beginnings = []
    for run, beginning in batch.runs:
        if beginning.ids:
            run_keys, run_values = beginning.layers[module.layer_idx]
            beginnings.append((run, run_keys, run_values))
    scores = _score_keys(query, keys, beginnings, batch.longest)
    if softcap is not None:
        scores = (scores / softcap).tanh_() * softcap
    # Not minus infinity: of what sees nothing, such as padding, the weights would be no numbers.
    lowest = torch.finfo(torch.float32).min
    places = scores.shape[-1]
    by_head = scores.view(rows, kinds, -1, count, places)
    by_head.masked_fill_(batch.hidden(sliding_window), lowest)
    weights = scores.softmax(dim=-1).to(values.dtype)
    attended = weights[..., batch.longest :] @ values
    for run, _, states in beginnings:
        length = states.shape[1]
        # All prompts of one beginning together, as more queries of the same.
        of_run = weights[run, ..., :length].transpose(0, 1)
        together = of_run.flatten(1, 2) @ states
        together = together.view(kinds, -1, queries, width)
        attended[run] += together.transpose(0, 1)
    attended = attended.view(rows, heads, count, width)
    return attended.transpose(1, 2), None


def _score_keys(
    query: torch.Tensor,
    keys: torch.Tensor,
    beginnings: Sequence[tuple[slice, torch.Tensor, torch.Tensor]],
    longest: int,
) -> torch.Tensor:
    """Multiply queries with the keys of their beginning, all prompts of one together, and with their own.

    Args:
        query: ``(batch, key heads, queries, width)``, scaled.
        keys: ``(batch, key heads, places, width)``.
        beginnings: Prompts, and the keys and values of their beginning, each ``(key heads, length, width)``.
        longest: Places of the longest beginning.

    Returns:
        ``(batch, key heads, queries, longest + places)`` in float32.
    """
    rows, kinds, queries, _ = query.shape
    places = longest + keys.shape[2]
    scores = query.new_zeros(rows, kinds, queries, places)
    scores[..., longest:] = query @ keys.mT
    for run, states, _ in beginnings:
        length = states.shape[1]
        of_run = query[run].transpose(0, 1)
        together = of_run.flatten(1, 2) @ states.mT
        together = together.view(kinds, -1, queries, length)
        scores[run, ..., :length] = together.transpose(0, 1)
    return scores.float()


class SharedGeneration:
    """Replies to prompts that begin alike, by one model; the beginning seen last is kept for the next call.

    So are the last prompts that were answered alone, with their replies: the next turn of a talk reads what is new.

    Args:
        model: A causal language model of a family in `rolellm.models.families.EXACT`, adapter included.
        device: Where it is.

    Attributes:
        reused: Tokens of the last call's prompt that were kept from an earlier one.
    """

    def __init__(self, model: Any, device: str) -> None:
        if hasattr(model, "get_base_model"):
            model = model.get_base_model()
        self._model = model
        self._device = device
        self._last = Beginning()
        self._kept: list[Beginning] = []
        self.reused = 0

    @torch.inference_mode()
    def replies(
        self,
        prompts: Sequence[Sequence[int]],
        shared: Sequence[int],
        *,
        limit: int,
        stops: Sequence[int],
        choose: Choose,
    ) -> list[list[int]]:
        """The tokens of each reply, an end token included.

        Args:
            prompts: Token ids.
            shared: How many tokens of each prompt belong to a shared beginning; at least its last does not.
            limit: Tokens a reply.
            stops: Tokens that end a reply.
            choose: Chooses the next tokens.
        """
        from transformers import AttentionInterface

        AttentionInterface.register(_NAME, _attend)
        before = self._model.config._attn_implementation
        self._model.set_attn_implementation(_NAME)
        if len(prompts) == 1:
            shared = [self._recall(tuple(prompts[0]))]
            self.reused = shared[0]
        try:
            return self._replies(prompts, shared, limit, frozenset(stops), choose)
        finally:
            self._model.set_attn_implementation(before)

    def _replies(
        self,
        prompts: Sequence[Sequence[int]],
        shared: Sequence[int],
        limit: int,
        stops: frozenset[int],
        choose: Choose,
    ) -> list[list[int]]:
        heads = []
        for prompt, length in zip(prompts, shared, strict=True):
            heads.append(tuple(prompt[:length]))
        beginnings = {head: self._read_beginning(head) for head in dict.fromkeys(heads)}
        # Those of one beginning next to each other. A prompt that is to have several replies is read once.
        rows = sorted(range(len(prompts)), key=heads.__getitem__)
        requests = [tuple(prompts[row]) for row in rows]
        read = dict(zip(requests, sorted(heads), strict=True))
        own = [prompt[len(head) :] for prompt, head in read.items()]
        longest = max(map(len, own))
        padding = [longest - len(ids) for ids in own]
        of_prompts = [beginnings[head] for head in read.values()]
        capacity = longest + limit - 1
        batch = _Batch(of_prompts, padding, capacity, self._device)
        padded = []
        for count, ids in zip(padding, own, strict=True):
            padded.append((0,) * count + ids)
        logits = self._read(batch, torch.tensor(padded, device=self._device))
        if len(read) < len(rows):
            numbers = {prompt: number for number, prompt in enumerate(read)}
            indices = [numbers[prompt] for prompt in requests]
            batch.keep(indices)
            logits = logits[indices]
        replies: list[list[int]] = [[] for _ in prompts]
        for step in range(limit):
            chosen = choose(logits, rows, step)
            going = []
            for index, token in enumerate(chosen.tolist()):
                reply = replies[rows[index]]
                if reply and reply[-1] in stops:
                    continue
                reply.append(token)
                if token not in stops:
                    going.append(index)
            if not going or step + 1 == limit:
                break
            if len(going) <= _SHRINK * len(rows):
                batch.keep(going)
                rows = [rows[index] for index in going]
                chosen = chosen[going]
            logits = batch.forward(self._model, chosen[:, None])
        if len(prompts) == 1:
            self._keep((*prompts[0], *replies[0]), of_prompts[0], batch)
        return replies

    def _recall(self, prompt: tuple[int, ...]) -> int:
        """Take the kept states that a prompt begins with as its beginning, and return how many tokens they are."""
        common = {index: _count_common(kept.ids, prompt, len(kept.ids)) for index, kept in enumerate(self._kept)}
        best = max(common, key=common.__getitem__, default=None)
        if best is None or not common[best]:
            return 0
        kept, length = self._kept[best], common[best]
        layers: Layers = {}
        for layer, (keys, values) in kept.layers.items():
            layers[layer] = (keys[:, :length], values[:, :length])
        self._last = Beginning(kept.ids[:length], layers)
        if length == len(kept.ids):
            # What goes on from it takes its place.
            del self._kept[best]
        return length

    def _keep(self, ids: tuple[int, ...], beginning: Beginning, batch: _Batch) -> None:
        """Keep what a prompt answered alone has gone through the model with, the newest last."""
        layers: Layers = {}
        for layer, (keys, values) in batch.layers().items():
            before = beginning.layers.get(layer, (keys[:, :0], values[:, :0]))
            layers[layer] = (torch.cat([before[0], keys], dim=1), torch.cat([before[1], values], dim=1))
        length = next(iter(layers.values()))[0].shape[1]
        self._kept.append(Beginning(ids[:length], layers))
        sizes = [kept.bytes for kept in self._kept]
        while len(self._kept) > _KEPT_PROMPTS or sum(sizes) > _KEPT_BYTES:
            del self._kept[0], sizes[0]

    def _read_beginning(self, ids: tuple[int, ...]) -> Beginning:
        if not ids:
            return Beginning()
        if ids != self._last.ids:
            batch = _Batch([Beginning()], [0], len(ids), self._device)
            tokens = torch.tensor([ids], device=self._device)
            self._read(batch, tokens)
            self._last = Beginning(ids, batch.layers())
        return self._last

    def _read(self, batch: _Batch, ids: torch.Tensor) -> torch.Tensor:
        """Take prompts piece by piece; gives the logits after the last."""
        logits = ids
        columns = max(1, _CHUNK // len(ids))
        for piece in torch.split(ids, columns, dim=1):
            logits = batch.forward(self._model, piece)
        return logits
