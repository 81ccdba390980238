"""Files of tensors: what is read, and what is refused in words."""

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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("{", "should be an index", id="not JSON"),
        pytest.param('{"weights": {}}', "should be an index", id="no weight_map"),
        pytest.param('{"weight_map": {"a": "x.bin", "b": "y.bin"}}', "lacks 2 of 2 shards", id="no shards"),
        pytest.param('{"weight_map": {"a": "../outside.bin"}}', "lacks 1 of 1 shards", id="outside"),
    ],
)
def test_an_index_that_cannot_be_followed_is_refused(tmp_path: Path, content: str, message: str) -> None:
    torch.save(TENSORS, tmp_path / "outside.bin")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "pytorch_model.bin.index.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match=message):
        find_shards(folder)


@pytest.mark.parametrize("kind", ["bin", "safetensors"])
@pytest.mark.parametrize("cut", [0, 20, 3000], ids=["empty", "a head", "torn"])
def test_a_broken_file_is_refused(tmp_path: Path, kind: str, cut: int) -> None:
    write_shards(tmp_path, {"a": torch.zeros(5000)}, kind, 1)
    (file,) = find_shards(tmp_path)
    with pytest.raises(ModelError, match="lacks 1 tensors"):
        load_shard(file, ["a", "d"])
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(ModelError, match=file.name):
        find_shards(tmp_path)


@pytest.mark.parametrize("value", [torch.ones(1), {"a": 1}])
def test_anything_but_named_tensors_is_refused(tmp_path: Path, value: Any) -> None:
    torch.save(value, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="should hold a mapping"):
        find_shards(tmp_path)
