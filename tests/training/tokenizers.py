"""Small tokenizers of several kinds, trained on a few words."""

from pathlib import Path
from typing import Any

import trl
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rolellm.models.prompts.render import load_chat_template

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXTS = [
    "Where do the gulls sleep?",
    "海和河哪个更大？",
    "### Instruction:\n### Input:\n### Response:\n",
    "<|im_start|>user",
]
SPECIAL = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"]


def read_template(name: str) -> str:
    """The chat template of a published model, as TRL ships it."""
    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def make_tokenizer(kind: str, template: str | None = None, **options: Any) -> Any:
    """Make a tokenizer.

    Args:
        kind: Byte-level BPE (``bytes``; with other templates ``chatml`` and ``none``), or like SentencePiece, with a
            space before the text (``metaspace``) or before each part of it (``metaspace-always``).
        template: A chat template in the place of the kind's.
        options: For all special tokens, such as ``lstrip``.
    """
    is_metaspace = kind.startswith("metaspace")
    model = Tokenizer(models.BPE(byte_fallback=is_metaspace, unk_token=None))
    alphabet, extra = pre_tokenizers.ByteLevel.alphabet(), list(SPECIAL)
    if is_metaspace:
        scheme: Any = kind.partition("-")[2] or "first"
        model.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
        model.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        alphabet = sorted(set("".join(TEXTS)) | {"▁"})
        extra += [f"<0x{byte:02X}>" for byte in range(256)]
    else:
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=extra, initial_alphabet=alphabet, show_progress=False)
    model.train_from_iterator(TEXTS * 3, trainer)
    if options:
        model.add_special_tokens([AddedToken(mark, special=True, normalized=False, **options) for mark in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=model,
        bos_token="<s>",
        eos_token="<|im_end|>" if kind == "chatml" else "</s>",
        pad_token="<pad>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"] if not options else None,
        chat_template=template or {"chatml": CHATML, "none": None}.get(kind, load_chat_template("rolellama")),
    )
