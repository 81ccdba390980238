"""What a manifest says that a model was trained on: written, read back, and compared with rows."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import DataError
from rolellm.core.files import write_json
from rolellm.core.records import Row
from rolellm.models.training_record import MANIFEST, TrainedOn, hash_instruction, read_manifest

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
