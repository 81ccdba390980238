"""Tiny checkpoints in the published layout, and what they become."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from .published import CONFIG, publish, random_tensors, tokenizer_bytes
from .reference import ReferenceModel, ReferenceTokenizer

Publish = Callable[..., Path]


@pytest.fixture(scope="session")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A SentencePiece model like the published one, of 600 pieces."""
    return tokenizer_bytes(tmp_path_factory.mktemp("pieces"))


@pytest.fixture
def published(tmp_path: Path, pieces: bytes) -> Publish:
    """Writes a checkpoint and returns its folder; keyword arguments replace values of its config.json."""

    def write(family: str = "chatglm2", *, form: str = "bin", dtype: Any = torch.float32, **config: Any) -> Path:
        whole = CONFIG | config
        return publish(tmp_path / "published", family, whole, random_tensors(whole, dtype), pieces, form=form)

    return write


@pytest.fixture(scope="session", params=["chatglm2", "chatglm3"])
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def native(family: str, pieces: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of each family, converted."""
    from rolellm.models.chatglm.convert import convert_chatglm

    folder = tmp_path_factory.mktemp(family)
    src = publish(folder / "published", family, CONFIG, random_tensors(CONFIG), pieces)
    convert_chatglm(src, folder / "native")
    return folder / "native"


@pytest.fixture(scope="session")
def original_model(family: str) -> ReferenceModel:
    """The model of `native` as it was published."""
    return ReferenceModel(family, CONFIG, random_tensors(CONFIG))


@pytest.fixture(scope="session")
def original_tokenizer(family: str, pieces: bytes, tmp_path_factory: pytest.TempPathFactory) -> ReferenceTokenizer:
    """The tokenizer of `native` as it was published."""
    file = tmp_path_factory.mktemp("original") / "tokenizer.model"
    file.write_bytes(pieces)
    return ReferenceTokenizer(family, str(file))
