"""Files of tensors: what is read, and what is refused in words."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from rolellm.core.errors import ModelError
from rolellm.models.chatglm.convert import find_shards, load_shard

from .published import write_shards

TENSORS = {"a": torch.arange(4.0), "b": torch.ones(2, 3), "c": torch.zeros(1)}


@pytest.mark.parametrize("kind", ["bin", "safetensors"])
@pytest.mark.parametrize("count", [1, 2])
def test_all_tensors_are_read(tmp_path: Path, kind: str, count: int) -> None:
    write_shards(tmp_path, TENSORS, kind, count)
    shards = find_shards(tmp_path)
    assert len(shards) == count
    held = {name: value for file, names in shards.items() for name, value in load_shard(file, names).items()}
    assert held.keys() == TENSORS.keys()
    assert all(torch.equal(held[name], TENSORS[name]) for name in TENSORS)


def test_safetensors_are_preferred(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no weights; expected one of model\.safetensors\.index\.json"):
        find_shards(tmp_path)
    write_shards(tmp_path, TENSORS, "bin", 2)
    write_shards(tmp_path, TENSORS, "safetensors", 2)
    assert {file.suffix for file in find_shards(tmp_path)} == {".safetensors"}


def test_files_of_an_older_torch_are_read_whole(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    ((file, names),) = find_shards(tmp_path).items()
    assert torch.equal(load_shard(file, names)["b"], TENSORS["b"])


class Trap:
    """Unpickled, it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_pickle_of_code_is_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    torch.save({"a": Trap(trace)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="holds more than tensors"):
        find_shards(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(trace), protocol=2))
    with pytest.raises(ModelError, match="holds more than tensors"):
        find_shards(tmp_path)
    assert not trace.exists()


def index(folder: Path, content: Any, name: str = "pytorch_model.bin.index.json") -> None:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("{", "should be an index of shards", id="not JSON"),
        pytest.param({"weights": {}}, "should be an index of shards", id="no weight_map"),
        pytest.param({"weight_map": {"a": "x.bin", "b": "y.bin"}}, "lacks 2 of 2 shards: x.bin, y.bin", id="no shards"),
        pytest.param({"weight_map": {"a": "../outside.bin"}}, "lacks 1 of 1 shards: outside.bin", id="outside"),
    ],
)
def test_an_index_that_cannot_be_followed_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    torch.save(TENSORS, tmp_path / "outside.bin")
    (tmp_path / "checkpoint").mkdir()
    index(tmp_path / "checkpoint", content)
    with pytest.raises(ModelError, match=message):
        find_shards(tmp_path / "checkpoint")


@pytest.mark.parametrize("kind", ["bin", "safetensors"])
def test_a_tensor_that_is_not_where_the_index_says_is_named(tmp_path: Path, kind: str) -> None:
    write_shards(tmp_path, TENSORS, kind, 1)
    (file,) = find_shards(tmp_path)
    with pytest.raises(ModelError, match="lacks 1 tensors that the index places in it: d"):
        load_shard(file, ["a", "d"])


@pytest.mark.parametrize("kind", ["bin", "safetensors"])
@pytest.mark.parametrize("content", [b"", b"not tensors at all", b"PK\x03\x04 torn", None])
def test_a_broken_or_torn_file_is_refused(tmp_path: Path, kind: str, content: bytes | None) -> None:
    write_shards(tmp_path, {"a": torch.zeros(5000)}, kind, 1)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-3000] if content is None else content)
    with pytest.raises(ModelError, match=file.name):
        find_shards(tmp_path)


@pytest.mark.parametrize("value", [torch.ones(1), {"a": 1}, {"a": {"b": torch.ones(1)}}])
def test_anything_but_named_tensors_is_refused(tmp_path: Path, value: Any) -> None:
    torch.save(value, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="should hold a mapping of names to tensors"):
        find_shards(tmp_path)
