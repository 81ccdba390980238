"""Models before they are used: what is known of their files, what they were trained on, and loading."""

import json
import re
import runpy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

import rolellm
from rolellm.core import limits
from rolellm.core.errors import DataError, ModelError
from rolellm.core.files import write_json
from rolellm.core.records import Row
from rolellm.models.find import SAMPLE, count_parameters, hash_model, locate_model, read_trained_on
from rolellm.models.load import load_adapter, load_whole
from rolellm.models.training_record import MANIFEST, TrainedOn, hash_instruction, read_manifest
from rolellm.training.recipe_files import load_recipe

# --- files


@pytest.mark.parametrize("shard", ["5GB", "2KB"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_by_the_headers(tmp_path: Path, shard: str, tied: bool) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=50, tie_word_embeddings=tied))
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert count_parameters(str(tmp_path)) == model.num_parameters()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"load_in_4bit": True}}))
    assert count_parameters(str(tmp_path)) is None


def test_what_is_not_here_has_no_known_size(tmp_path: Path) -> None:
    assert count_parameters(str(tmp_path)) is None
    assert count_parameters("nobody/nothing") is None


def test_an_adapter_s_hash_does_not_depend_on_the_order_of_a_set(tmp_path: Path) -> None:
    def make(name: str, **settings: object) -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(b"weights")
        (folder / "adapter_config.json").write_text(json.dumps({"r": 4, **settings}), encoding="utf-8")
        return hash_model(str(folder))

    forth, back = ({"target_modules": names, "exclude_modules": names} for names in (["a", "b"], ["b", "a"]))
    assert make("forth", **forth) == make("back", **back)
    assert make("layers", layers_to_transform=[1, 0]) != make("others", layers_to_transform=[0, 1])
    assert make("few", target_modules=["a"]) != make("many", target_modules=["a", "b"])


# --- the record of training


TEXTS = st.text(max_size=12)
PAIRS = st.lists(st.tuples(TEXTS, TEXTS), max_size=6)
ROW = Row("r", "Keeper", "en", "general", "Name a colour.", ("Oil black.",))


def rows(pairs: Sequence[tuple[str, str]]) -> list[Row]:
    return [replace(ROW, id=str(n), role=role, question=question) for n, (role, question) in enumerate(pairs)]


@given(trained=PAIRS, asked=PAIRS)
def test_the_record_survives_its_file_and_tells_rows_apart(trained: Any, asked: Any) -> None:
    seen = TrainedOn.from_dict(json.loads(json.dumps(TrainedOn.of(rows(trained)).to_dict())))
    assert seen == TrainedOn.of(rows(trained))
    assert all(parts == {"role", "instruction"} for parts in seen.find_parts(rows(trained)))
    folded = {" ".join(question.split()).casefold() for _, question in trained}
    for row, parts in zip(rows(asked), seen.find_parts(rows(asked)), strict=True):
        assert ("instruction" in parts) == (" ".join(row.question.split()).casefold() in folded)


def test_two_trainings_count_together() -> None:
    other = replace(ROW, role="Gull", question="Why?")
    assert TrainedOn.of([ROW]) | TrainedOn.of([other]) == TrainedOn.of([ROW, other])


def test_a_runs_manifest_is_read(tmp_path: Path) -> None:
    data = {"config": "sample", "split": "train", "fingerprint": "ab", "rows": 1}
    write_json(tmp_path / MANIFEST, {"kind": "rocit", "data": data, "trained_on": TrainedOn.of([ROW]).to_dict()})
    instructions = frozenset({hash_instruction("name a colour.")})
    assert read_manifest(tmp_path / MANIFEST) == TrainedOn(frozenset({"Keeper"}), instructions, "sample", "train", "ab")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "not valid JSON", id="empty"),
        pytest.param(b'{"kind": "rocit", "trai', "not valid JSON", id="torn"),
        pytest.param(b"\xff\xfe\x00", "not UTF-8", id="no-utf-8"),
        pytest.param(b"[" * 200_000, "not valid JSON", id="too-deep"),
        pytest.param(b"[]", "expected a JSON object", id="list"),
        pytest.param(b'{"kind": "rocit"}', "not valid at roles", id="nothing-said"),
        pytest.param(b'{"trained_on": null}', "not valid at roles", id="null"),
        pytest.param(b'{"trained_on": ["Fox"]}', "not valid at roles", id="a-list-of-roles"),
        pytest.param(b'{"trained_on": {"roles": ["Fox"]}}', "not valid at instructions", id="no-instructions"),
        pytest.param(b'{"trained_on": {"roles": [1], "instructions": []}}', "not valid at roles.0", id="number"),
        pytest.param(
            b'{"trained_on": {"roles": [], "instructions": ["Name a colour."]}}', "should match pattern", id="in-clear"
        ),
    ],
)
def test_a_manifest_that_does_not_say_what_it_should_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / MANIFEST
    path.write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        read_manifest(path)
    assert caught.value.path == path


# --- loading


def test_the_output_layer_gets_states_that_it_multiplies_at_once(tiny_model: Path) -> None:
    # Otherwise PyTorch copies the frozen layer for each row in half precision, which no figure of a result shows.
    import torch

    model = load_whole(tiny_model).requires_grad_(requires_grad=False)
    seen = []
    model.get_output_embeddings().register_forward_hook(lambda _, args, __: seen.append(args[0]))
    with torch.no_grad():
        model(torch.ones(3, 5, dtype=torch.long), logits_to_keep=1)
    assert [(states.shape[:2], states.is_contiguous()) for states in seen] == [((3, 1), True)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param({"target_modules": "(.*)*!"}, "'(.*)*!' cannot be used: takes over 0.3 seconds", id="target"),
        pytest.param({"rank_pattern": {"(.|.)*!": 4}}, "'(.|.)*!' cannot be used: takes over 0.3 seconds", id="rank"),
        pytest.param({"exclude_modules": "(q"}, "'(q' cannot be used: missing )", id="not-a-pattern"),
    ],
)
def test_an_adapter_whose_patterns_do_not_end_is_refused(
    settings: dict[str, object], words: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SECONDS", 0.3)
    config = {"peft_type": "LORA", "base_model_name_or_path": str(tiny_model), "target_modules": ["q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | settings), encoding="utf-8")
    with pytest.raises(ModelError, match=re.escape(words)):
        load_adapter(load_whole(tiny_model), str(tmp_path))


# --- the sample's model


def test_it_is_found_by_its_name_unless_a_folder_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path(locate_model(SAMPLE))
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_300_000
    assert load_recipe("adapter", base=SAMPLE).base.path == folder
    (tmp_path / SAMPLE).mkdir()
    assert locate_model(SAMPLE) == SAMPLE


def test_it_speaks_as_its_roles() -> None:
    assert "Guards" in rolellm.RolePlayer(SAMPLE, "Queen of Hearts", temperature=0).reply("May I sit down?")


def test_it_was_trained_on_no_test_row() -> None:
    trained_on = read_trained_on(locate_model(SAMPLE))
    questions = rolellm.load_rolebench("sample", "test")["question"]
    assert trained_on.instructions.isdisjoint(map(hash_instruction, questions))


def test_its_script_is_the_one_that_made_it(root: Path) -> None:
    overrides = runpy.run_path(str(root / "dev" / "sample_model.py"))["OVERRIDES"]
    manifest = json.loads((Path(locate_model(SAMPLE)) / "manifest.json").read_text(encoding="utf-8"))
    for override in overrides:
        key, _, text = override.partition("=")
        value = manifest["recipe"]
        for name in key.split("."):
            value = value[name]
        assert value == float(text), key
