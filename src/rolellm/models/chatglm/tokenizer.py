"""ChatGLM's tokenizer as a fast one, checked text by text against SentencePiece itself.

What the original does was read in ``tokenization_chatglm.py`` of THUDM/chatglm2-6b and THUDM/chatglm3-6b: a
SentencePiece model, special tokens numbered on from its last piece, ``[gMASK] sop`` before every text, padding on the
left. A special token is never read out of text there, so two of them may be called ``sop`` and ``eop``. A fast
tokenizer would find those names in "philosophy" and "people", so they are ``<sop>`` and ``<eop>`` here, as GLM-4 writes
them, under the same ids.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rolellm.core.errors import MissingExtraError, ModelError
from rolellm.models.prompts.render import load_chat_template

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

Family = Literal["chatglm2", "chatglm3"]
_SPECIAL = ("[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>")
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
# Where ChatGLM3's own chat code stops, next to the end token.
_STOPS = ("<|user|>", "<|observation|>")
_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_TEXT = (_NORMAL, _USER_DEFINED)
_SPACE = "▁"
_JOINED, _PIECES_EACH = 4096, 8
_WHITE_SPACE = ("", " ", "  a  b ", "\n", "\n\n 问：\t答 ", " \n", "𠮷👋🏽é\u00a0\u3000", "▁a ▁")


def convert_tokenizer(src: Path, family: Family) -> PreTrainedTokenizerFast:
    """The fast tokenizer of a published checkpoint, with the chat template of its family.

    Args:
        src: The checkpoint's folder, with ``tokenizer.model``.
        family: Which special tokens and which chat template it gets.

    Raises:
        ModelError: When there is no SentencePiece model, or one of a kind that has no fast counterpart.
        MissingExtraError: Without sentencepiece or protobuf.
    """
    from tokenizers import decoders, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    proto = _read(src)
    fast = _build_tokenizer(proto)
    end = proto.trainer_spec.eos_piece
    charsmap = proto.normalizer_spec.precompiled_charsmap
    before = [normalizers.Precompiled(charsmap)] if charsmap else []
    # Not the Metaspace pre-tokenizer: it puts no space before a text that begins with one.
    spaces = [normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)]
    fast.normalizer = normalizers.Sequence([*before, *spaces])
    strip = decoders.Strip(content=" ", left=1)
    fast.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    special = [*_SPECIAL]
    if family == "chatglm3":
        special += _ROLES
    _add_special(fast, proto, special)
    fast.post_processor = processors.TemplateProcessing(
        single="[gMASK] <sop> $A",
        pair=f"[gMASK] <sop> $A $B {end}",
        special_tokens=[(name, fast.token_to_id(name)) for name in ("[gMASK]", "<sop>", end)],
    )
    unknown = proto.trainer_spec.unk_piece
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=fast,
        unk_token=unknown,
        pad_token=unknown,
        eos_token=end,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
    tokenizer.chat_template = load_chat_template(family)
    return tokenizer


def find_stop_tokens(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Find the ids that end a reply: the end token, and for ChatGLM3 those that open another's turn."""
    stops = [token for token in _STOPS if token in tokenizer.added_tokens_encoder]
    return [int(tokenizer.eos_token_id), *tokenizer.convert_tokens_to_ids(stops)]


def compare_tokenizers(src: Path, tokenizer: PreTrainedTokenizerFast) -> tuple[int, list[str]]:
    """Find texts that a converted tokenizer splits differently from SentencePiece.

    Looked at are each piece of the vocabulary, several thousand texts of eight pieces at random, and odd white space.

    Args:
        src: The checkpoint's folder.
        tokenizer: As from `convert_tokenizer`.

    Returns:
        How many texts were looked at, and those that differ.
    """
    from sentencepiece import SentencePieceProcessor

    original = SentencePieceProcessor(model_file=str(src / "tokenizer.model"))
    pieces = [piece.piece for piece in _read(src).pieces if piece.type in _TEXT]
    texts = _make_probes(pieces)
    actual = tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    differing = []
    for text, ids, expected in zip(texts, actual, original.encode(texts), strict=True):
        if ids != expected:
            differing.append(text)
    return len(texts), differing


def _make_probes(pieces: Sequence[str]) -> list[str]:
    choose = random.Random(0)
    singles = [piece.replace(_SPACE, " ") for piece in pieces]
    probes = [*singles, *_WHITE_SPACE]
    if singles:
        for _ in range(_JOINED):
            joined = choose.choices(singles, k=_PIECES_EACH)
            probes.append("".join(joined))
    return probes


def _read(src: Path) -> Any:
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise MissingExtraError(error.name or "sentencepiece", extra="train") from error
    path = src / "tokenizer.model"
    if not path.is_file():
        raise ModelError(f"{src} has no tokenizer.model; it lies next to the published weights")
    proto = sentencepiece_model_pb2.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise ModelError(f"{path} is not a SentencePiece model (GLM-4's, for one, is not): {error}") from error
    if proto.trainer_spec.model_type not in (_UNIGRAM, _BPE):
        raise ModelError(f"{path} is a SentencePiece model of words or characters; expected BPE or unigram pieces")
    end = proto.trainer_spec.eos_piece
    if end not in [piece.piece for piece in proto.pieces if piece.type == _CONTROL]:
        raise ModelError(f"{path} has no end token; ChatGLM's has {end}")
    return proto


def _build_tokenizer(proto: Any) -> Tokenizer:
    from tokenizers import Tokenizer, models
    from transformers.convert_slow_tokenizer import generate_merges

    spec = proto.trainer_spec
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    if spec.model_type == _UNIGRAM:
        return Tokenizer(models.Unigram(pieces, unk_id=spec.unk_id, byte_fallback=spec.byte_fallback))
    vocabulary = {name: number for number, (name, _) in enumerate(pieces)}
    special = [piece.piece for piece in proto.pieces if piece.type not in _TEXT]
    # By score and not by number: a vocabulary may be put together from several.
    merges = generate_merges(vocabulary, dict(pieces), special)
    bpe = models.BPE(vocabulary, merges, unk_token=spec.unk_piece, fuse_unk=True, byte_fallback=spec.byte_fallback)
    return Tokenizer(bpe)


def _add_special(fast: Tokenizer, proto: Any, names: Sequence[str]) -> None:
    from tokenizers import AddedToken

    own = [piece.piece for piece in proto.pieces if piece.type in (_UNKNOWN, _CONTROL)]
    tokens = [AddedToken(name, normalized=False, special=True) for name in (*own, *names)]
    fast.add_special_tokens(tokens)
    ids = [fast.token_to_id(name) for name in names]
    first = len(proto.pieces)
    if ids != list(range(first, first + len(names))):
        raise ModelError(f"tokenizer.model has pieces called like special tokens, so their ids would be {ids}")
