"""Shared prefixes inside of a model's forward pass, whatever trainer calls it.

Hooks on the backbone fold the padded rows of a pass into a tree, let the layers run over it once, and hand the hidden
states back row by row. Hooks on the model itself serve trainers that ask for log-probabilities only (TRL's fused head):
there, only the states of scored tokens leave the backbone. Rows are compared token by token, so a beginning is shared
exactly as far as the tokens are equal; whatever lies outside a token's own path is hidden from it. See
dev/shared_prefix.md; our choice of method (the paper trains row by row).

This module imports torch at its head; import it inside functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from rolellm.core.errors import ModelError
from rolellm.core.settings import suggest_keywords
from rolellm.models.families import explain_not_shared
from rolellm.models.tree_attention import Attention, TreeMask, attend_tree, send

Index = npt.NDArray[np.int64]

_NAME: Final = "rolellm_tree_over_{}"
_IGNORED: Final = -100
_BLOCK: Final = 128
# Per-token fields of what TRL's fused head returns.
_PER_TOKEN: Final = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1")


@suggest_keywords()
def share_prefixes(model: Any, *, attention: Attention = "auto") -> PrefixSharing:
    """Compute what the rows of a batch begin with in common once, in every training and scoring pass of a model.

    The model is changed in place. Passes over several rows without a cache give the same hidden states, logits and
    gradients as before, up to rounding; single rows, passes with a cache and `generate` are left alone. Call it before
    or after a trainer takes the model, with or without an adapter. The more rows of a batch begin alike, the more is
    saved: keep a role's rows together (``train_sampling_strategy="sequential"``).

    >>> share_prefixes(model)  # doctest: +SKIP
    >>> trainer = SFTTrainer(model, args, train_dataset=dataset)  # doctest: +SKIP

    Args:
        model: A causal language model of transformers, or a PEFT model around one.
        attention: ``flex`` (FlexAttention), ``blocks`` (SDPA block by block), or ``auto``: FlexAttention on a GPU where
            it agrees with the blocks, else the blocks.

    Returns:
        A handle with ``restore()``.

    Raises:
        ModelError: For a family of models in which shared prefixes are not known to be exact, a model that shares
            already, has no output layer, or takes no attention function; later, in a pass, for packed rows, a row of
            padding, a label on padding, rows longer than the model's positions, noise on embeddings (NEFTune), and
            activated LoRA (aLoRA).
    """
    if hasattr(model, "get_base_model"):
        model = model.get_base_model()
    reason = explain_not_shared(model.config, 0)
    if reason:
        raise ModelError(f"prefixes cannot be shared: the model is {reason}")
    if model.base_model is model:
        name = type(model).__name__
        raise ModelError(f"prefixes cannot be shared: {name} has no output layer; load it with AutoModelForCausalLM")
    if hasattr(model, "prefix_sharing"):
        raise ModelError("the model shares prefixes already; call share_prefixes once")
    return PrefixSharing(model, attention)


class PrefixSharing:
    """A model whose passes over several rows share prefixes; made by `share_prefixes`.

    Attributes:
        padded_tokens: Tokens of all rows so far, padding included.
        folded_tokens: Tokens that went through the layers instead.
        kernel_options: For FlexAttention; as in ``torch.nn.attention.flex_attention``.
    """

    def __init__(self, model: Any, attention: Attention) -> None:
        self._model = model
        self._attention = attention
        self._config = model.config.get_text_config()
        self.padded_tokens = self.folded_tokens = 0
        self.kernel_options: dict[str, Any] | None = None
        self._previous = _set_attention(model)
        self._handles = [
            model.register_forward_pre_hook(self._fold_scored, with_kwargs=True),
            model.register_forward_hook(_unfold_scores, with_kwargs=True),
            model.base_model.register_forward_pre_hook(self._fold_rows, with_kwargs=True),
            model.base_model.register_forward_hook(self._unfold_states, with_kwargs=True),
        ]
        model.prefix_sharing = self

    def restore(self) -> None:
        """Make the model as it was before."""
        for handle in self._handles:
            handle.remove()
        del self._model.prefix_sharing
        self._model.set_attn_implementation(self._previous)

    def __repr__(self) -> str:
        return f"PrefixSharing({self.padded_tokens} tokens of rows, {self.folded_tokens} computed)"

    def fold(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Give the keyword arguments of a pass over the tree of its rows, which may come as ``folded_rows``.

        Nothing here waits for a device, unless the rows are still to be folded.
        """
        folded = {**inputs}
        rows = folded.pop("folded_rows", None)
        if rows is None:
            rows = fold_batch(inputs)
        tree = rows.tree
        self._check_layers()
        self._check_length(int(tree.positions.max()) + 1)
        attention = self._model.config._attn_implementation
        if attention != _NAME.format(self._previous):
            raise ModelError(f"the model's attention was set to {attention} after share_prefixes; call restore() first")
        ids = inputs["input_ids"]
        self.padded_tokens += ids.numel()
        self.folded_tokens += len(tree.ids)
        table = np.stack([tree.ids, tree.positions, tree.ends])
        if ids.is_cuda:
            table = _pad_blocks(table)
        tokens, positions, ends = torch.from_numpy(table)
        mask = TreeMask(ends, positions, self._attention, ids.device)
        mask.states = send(torch.from_numpy(tree.index), ids.device)
        mask.kernel_options = self.kernel_options
        folded |= {
            "input_ids": send(tokens, ids.device)[None],
            "position_ids": mask.positions[None],
            # Empty, so that an attention that knows of no tree fails instead of seeing everything.
            "attention_mask": torch.empty(1, 1, 0, 0, device=ids.device),
            "use_cache": False,
            "prefix_tree": mask,
        }
        return folded

    def _fold_rows(self, backbone: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if "prefix_tree" in kwargs:
            return None
        inputs = _name_inputs(args, kwargs)
        if _is_packed(inputs):
            raise ModelError(
                "the rows are packed into one sequence, which shares no prefixes; set packing and padding_free to false"
            )
        if inputs.get("use_cache") is None:
            # A cache is of no use while gradients are taken.
            takes_gradients = backbone.training and torch.is_grad_enabled()
            inputs = {**inputs, "use_cache": not takes_gradients}
        if len(args) > 1 or not self._is_foldable(inputs):
            return None
        return (), self.fold(inputs)

    def _fold_scored(self, _model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Fold a pass of TRL's fused head: its labels become those of the scored tokens, in a row of their own."""
        is_fused = kwargs.get("fused_lm_head")
        if is_fused and kwargs.get("shift_labels") is not None:
            raise ModelError("prefixes cannot be shared under context or sequence parallelism; call restore() first")
        inputs = _name_inputs(args, kwargs)
        labels = inputs.get("labels")
        if len(args) > 1 or labels is None or not self._is_foldable({**inputs, "use_cache": False}):
            return None
        rows = inputs.get("folded_rows")
        if rows is None:
            rows = fold_batch(inputs)
        if not is_fused:
            return (), {**inputs, "folded_rows": rows}
        inputs = self.fold({**inputs, "folded_rows": rows})
        targets = labels[:, 1:]
        tree = inputs["prefix_tree"]
        tree.is_scored = targets != _IGNORED
        tree.scored = send(torch.from_numpy(rows.scored), labels.device)
        # A trainer may have made other labels of the rows than they were folded with.
        torch._assert_async(tree.is_scored.sum() == len(rows.scored))
        tree.states = tree.states[:, :-1].flatten().index_select(0, tree.scored)[None]
        shift_labels = targets.flatten().index_select(0, tree.scored)[None]
        return (), {**inputs, "labels": None, "shift_labels": shift_labels}

    def _unfold_states(self, _backbone: Any, _args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        tree = kwargs.get("prefix_tree")
        if tree is None:
            return None
        if tree.calls < self._config.num_hidden_layers:
            raise ModelError(
                f"{tree.calls} of {self._config.num_hidden_layers} layers attended by the tree; the others would mix "
                "rows. The model has an attention of its own; call restore() on what share_prefixes returned"
            )
        states = output.last_hidden_state[0].index_select(0, tree.states.flatten())
        output.last_hidden_state = states.unflatten(0, tree.states.shape)
        return output

    def _is_foldable(self, inputs: Mapping[str, Any]) -> bool:
        """Tell whether a pass is over several rows of tokens, keeps no cache and asks for nothing layer by layer."""
        rows = inputs.get("input_ids")
        if rows is None or rows.ndim != 2 or len(rows) < 2:
            return False
        mask = inputs.get("attention_mask")
        if mask is not None and mask.ndim != 2:
            return False
        if inputs.get("use_cache") or inputs.get("past_key_values"):
            return False
        layered = ("output_hidden_states", "output_attentions")
        return not any(inputs.get(name, getattr(self._config, name, False)) for name in layered)

    def _check_layers(self) -> None:
        """Check that no layer depends on the rows or the length of its batch."""
        embeddings = self._model.get_input_embeddings()
        if embeddings.training and hasattr(embeddings, "neftune_noise_alpha"):
            raise ModelError(
                "prefixes cannot be shared under NEFTune, whose noise depends on the length of the rows; set "
                "neftune_noise_alpha to null"
            )
        for adapter in getattr(self._model, "peft_config", {}).values():
            if getattr(adapter, "alora_invocation_tokens", None):
                raise ModelError(
                    "prefixes cannot be shared with activated LoRA, which begins elsewhere in each row; call restore() "
                    "on what share_prefixes returned"
                )

    def _check_length(self, longest: int) -> None:
        limit = getattr(self._config, "max_position_embeddings", None)
        if limit is not None and longest > limit:
            raise ModelError(f"a row has {longest} tokens, but the model has positions for {limit}")
        reason = explain_not_shared(self._config, longest)
        if reason:
            raise ModelError(f"prefixes cannot be shared: the model is {reason}")


def _attend(
    name: str,
    plain: Callable[..., Any] | None,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    **options: Any,
) -> Any:
    """Attend over trees by `attend_tree`, else as the model did before: by `plain`, whose name this is."""
    tree = options.pop("prefix_tree", None)
    if name == "sdpa":
        # It has none: transformers 5.20 leaves it out, later releases never come here with it.
        options.pop("softcap", None)
    if tree is None:
        # Eager attention is each model's own.
        plain = plain or sys.modules[type(module).__module__].eager_attention_forward
        return plain(module, query, key, value, mask, **options)
    return attend_tree(query, key, value, tree, **options), None


def _set_attention(model: Any) -> str:
    """Let a model attend over trees; gives the name of its attention before."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    # A copy that a trainer made of a model that shares already goes by the name of its attention.
    previous = str(model.config._attn_implementation).removeprefix(_NAME.format(""))
    name = _NAME.format(previous)
    AttentionInterface.register(name, partial(_attend, previous, ALL_ATTENTION_FUNCTIONS.get(previous)))
    mask = ALL_MASK_ATTENTION_FUNCTIONS.get(previous)
    if mask is not None:
        AttentionMaskInterface.register(name, mask)
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise ModelError(f"prefixes cannot be shared: {type(model).__name__} takes no attention function")
    return previous


def _pad_blocks(table: Index) -> Index:
    """Pad a tree to whole blocks, which kernels of GPUs want: a token of padding sees itself alone, and none sees it.

    Args:
        table: ``(3, length)``: tokens, positions and ends.
    """
    length = table.shape[1]
    extra = -length % _BLOCK
    padding = np.zeros((3, extra), np.int64)
    padding[2] = np.arange(extra) + length + 1
    return np.hstack([table, padding])


def _name_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"input_ids": args[0], **kwargs} if len(args) == 1 else kwargs


@dataclass(frozen=True, slots=True, eq=False)  # Arrays do not compare as one.
class FoldedRows:
    """The rows of a pass, folded on the host: a pass that is given them as ``folded_rows`` waits for no device.

    Attributes:
        tree: The tree.
        scored: ``(scored,)``: of the tokens that another follows, row after row, the numbers of those before a label.
    """

    tree: PrefixTree
    scored: Index


def fold_batch(inputs: Mapping[str, Any]) -> FoldedRows:
    """Fold the rows of a pass.

    Args:
        inputs: ``input_ids``, and, where there are such, ``attention_mask``, ``position_ids`` and ``labels``.

    Raises:
        ModelError: For rows that cannot be folded, or scored.
    """
    names = ("input_ids", "attention_mask", "position_ids", "labels")
    on_host = {}
    for name in names:
        if inputs.get(name) is not None:
            on_host[name] = inputs[name].cpu()
    rows = on_host["input_ids"]
    is_token = torch.ones_like(rows, dtype=torch.bool)
    if "attention_mask" in on_host:
        is_token = on_host["attention_mask"].bool()
    begins = is_token[:, 1:] > is_token[:, :-1]
    runs = begins.sum(1) + is_token[:, 0]
    if runs.max() > 1:
        raise ModelError("a row has padding between its tokens; pad on one side, or on both")
    is_pair = is_token[:, 1:] & is_token[:, :-1]
    _check_positions(on_host.get("position_ids"), is_pair)
    scored = np.zeros(0, np.int64)
    if "labels" in on_host:
        is_scored = _find_scored(on_host["labels"], is_pair)
        scored = is_scored.flatten().nonzero().flatten().numpy()
    try:
        tree = fold_rows(rows.numpy(), is_token.numpy())
    except ValueError as error:
        raise ModelError(str(error)) from error
    return FoldedRows(tree, scored)


def _check_positions(positions: torch.Tensor | None, is_pair: torch.Tensor) -> None:
    """Check that positions count the tokens of each row, from any number on: only their distances matter."""
    if positions is None:
        return
    is_jump = positions.diff() != 1
    if (is_jump & is_pair).any():
        raise ModelError(
            "position_ids do not count the tokens of a row one by one, as where rows are packed; leave them out, and "
            "set packing and padding_free to false"
        )


def _find_scored(labels: torch.Tensor, is_pair: torch.Tensor) -> torch.Tensor:
    """Find the tokens before a label; each label has to be that of a token, and predicted from one.

    Hidden states of padding mean nothing.
    """
    rows, pairs = is_pair.shape
    if labels.shape != (rows, pairs + 1):
        shapes = f"{tuple(labels.shape)}, input_ids {(rows, pairs + 1)}"
        raise ModelError(f"labels have the shape {shapes}; give one label for each token, -100 where none is scored")
    is_scored = labels[:, 1:] != _IGNORED
    if (is_scored & ~is_pair).any():
        raise ModelError("a label is on padding, or on the token after it, which nothing predicts; set both to -100")
    return is_scored


def _is_packed(inputs: Mapping[str, Any]) -> bool:
    """Tell whether several texts are in one row, each with positions from 0 on."""
    positions = inputs.get("position_ids")
    if positions is None or inputs.get("attention_mask") is not None:
        return False
    return len(positions) == 1 and bool((positions.diff() <= 0).any())


def _unfold_scores(_model: Any, _args: Any, kwargs: dict[str, Any], output: Any) -> Any:
    """Put what the fused head gave for scored tokens back where they are in the rows."""
    tree = kwargs.get("prefix_tree")
    if tree is None:
        return None
    for name in _PER_TOKEN:
        scores = getattr(output, name)
        if scores is not None:
            rows = scores.new_zeros(tree.is_scored.numel())
            output[name] = rows.scatter(0, tree.scored, scores[0]).view(tree.is_scored.shape)
    output["label_mask"] = tree.is_scored
    return output


@dataclass(frozen=True, slots=True, eq=False)  # Arrays do not compare as one.
class PrefixTree:
    """Rows of tokens as one sequence of ``length`` tokens, depth first.

    Attributes:
        ids: ``(length,)`` tokens.
        positions: ``(length,)``: the position of each token in its row, counted from 0 without padding.
        ends: ``(length,)``: where the part of the sequence stops that may look at a token: token ``i`` sees token ``j``
            if ``j <= i < ends[j]``.
        index: ``(rows, columns)``: where each token of the rows is in the sequence; 0 for padding.
    """

    ids: Index
    positions: Index
    ends: Index
    index: Index


def count_folded(ids: torch.Tensor, mask: torch.Tensor) -> int:
    """Count the tokens of rows after folding, as for `fold_rows`."""
    tree = fold_rows(ids.numpy(), mask.bool().numpy())
    return len(tree.ids)


def fold_rows(ids: Index, mask: npt.NDArray[np.bool_]) -> PrefixTree:
    """Fold rows into a tree.

    Rows are put in the order of their tokens, so that those that begin alike are neighbors. All work is on whole
    arrays: about a millisecond for 128 rows of 400 tokens.

    Args:
        ids: ``(rows, columns)`` tokens; none is negative.
        mask: ``(rows, columns)``: true for tokens, false for padding, which may be on either side.

    Raises:
        ValueError: For a row without a token.
    """
    lengths = mask.sum(axis=1)
    if not lengths.all():
        raise ValueError(f"row {lengths.argmin()} of the batch is all padding")
    # One more column, all padding: there, if nowhere before, two rows differ.
    columns = np.arange(lengths.max() + 1)
    is_token = columns < lengths[:, None]
    tokens = np.full(is_token.shape, -1, np.int64)
    tokens[is_token] = ids[mask]
    rows, width = tokens.shape
    # Big-endian bytes sort like the numbers; a row that another begins with comes first.
    keys = (tokens + 1).astype(">i8").view(f"V{8 * width}")
    order = keys.ravel().argsort(kind="stable")
    tokens = tokens[order]
    later = tokens[1:]
    differs = (later != tokens[:-1]) | (later < 0)
    shared = np.append(0, differs.argmax(axis=1))
    is_own = columns >= shared[:, None]
    is_new = is_own & is_token[order]
    starts = np.append(0, is_new.sum(axis=1).cumsum())
    numbers = np.arange(rows)[:, None]
    # A token that a row shares is the one of the nearest row before that does not share it.
    owners = np.maximum.accumulate(is_own * numbers)
    index = starts[owners] + columns - shared[owners]
    # A token is seen up to the next row that shares less.
    closing = np.full_like(owners, rows)
    closing[:-1] = np.where(is_own, numbers, rows)[1:]
    closing = np.minimum.accumulate(closing[::-1])[::-1]
    unsorted = np.zeros(ids.shape, np.int64)
    unsorted[mask] = index[order.argsort()][is_token]
    positions = is_new.nonzero()[1]
    return PrefixTree(tokens[is_new], positions, starts[closing[is_new]], unsorted)
