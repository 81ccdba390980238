"""Fame-free twins: names replaced consistently, rows that still join, and nothing else changed."""

import functools
import itertools
from collections import Counter

import pytest
from datasets import load_dataset

from rolellm.core.errors import RoleLLMWarning
from rolellm.data.rolebench.build import build
from rolellm.data.rolebench.release import Release, iter_rows
from rolellm.data.rolebench.schema import ANONYMOUS, get_config
from rolellm.data.rolebench.source import sample_folder
from rolellm.data.rolebench.twins import Names, get_world_names, load_names, make_twin

EN = Names("en", {"Robin Hood": "Martin Pell", "Robin": "Martin", "Hood": "Pell", "Marian": "Lilian", "HAL": "MEL"})


@pytest.mark.parametrize(
    ("text", "twin"),
    [
        ("Robin Hood and Marian's dog", "Martin Pell and Lilian's dog"),
        ("ROBIN HOOD! robin hood?", "MARTIN PELL! martin pell?"),
        ("the Hoods’ #RobinHood, robin_hood", "the Pells’ #MartinPell, martin_pell"),
        ("HAL and HAL's halls", "MEL and MEL's halls"),
        ("a robin under a hood in Robinson's neighborhood", "a robin under a hood in Robinson's neighborhood"),
    ],
)
def test_english_names_in_all_their_forms(text, twin):
    assert EN.rename(text) == twin
    assert EN.rename(twin) == twin


def test_chinese_names_the_longest_first():
    names = Names("zh", {"张翼德": "屠云骧", "翼德": "云骧", "张飞": "屠烈"})
    assert names.rename("燕人张翼德，字翼德，张飞也，一张飞机票") == "燕人屠云骧，字云骧，屠烈也，一屠烈机票"
    assert names.find("张翼德") == {"张翼德"}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_reviewed_names_are_one_to_one(language):
    roles = load_names()[language]
    for role, names in roles.items():
        shared = [twin for twin, count in Counter(names.twins.values()).items() if count > 1]
        assert not shared, role
        assert not [twin for twin in names.twins.values() if names.find(twin)], role
    assert len({names.rename(role) for role, names in roles.items()}) == len(roles)
    # A title that any ruler of the kind has; the people around him are renamed.
    assert {role for role, names in roles.items() if names.rename(role) == role} <= {"皇帝"}


def check(release: Release, config: str) -> Counter[str]:
    """Every promise of a twin, for all rows of a config; counts rows, and names that were replaced."""
    found: Counter[str] = Counter()
    for split in ("train", "test"):
        named = {row["id"]: row for row in iter_rows(release, get_config(config), split)}
        twins = {row["id"]: row for row in iter_rows(release, get_config(config + ANONYMOUS), split)}
        assert list(twins) == [one for one, row in named.items() if make_twin(row)]
        for key, twin in twins.items():
            row = named[key]
            names = get_world_names(row["role"], row["language"])
            kept = names.find(row["question"], row["raw_reference"]) if row["subset"] == "general" else set()
            texts = [texts_of(one) for one in (row, twin)]
            # So that the way back is known.
            assert not twins_of(names).find(*itertools.chain.from_iterable(texts[0]))
            assert list(map(len, texts[0])) == [len(part) for part in texts[1]]
            for before, after in zip(*map(itertools.chain.from_iterable, texts), strict=True):
                assert names.find(after) <= kept
                assert names.rename(after, kept) == after
                assert (before == after) == (not names.find(before) - kept)
                found["replaced"] += before != after
            assert {one: twin[one] for one in ("id", "language", "subset", "reference_types")} == {
                one: row[one] for one in ("id", "language", "subset", "reference_types")
            }
            found["rows"] += 1
    assert not release.left_out
    return found


@functools.cache
def twins_of(names: Names) -> Names:
    return Names(names.language, {twin: name for name, twin in names.twins.items()})


def texts_of(row: dict) -> list[list[str]]:
    singles = [[row[key]] if row[key] is not None else [] for key in ("question", "rolegpt", "raw_reference")]
    return [*singles, row["references"]]


def test_the_sample_has_a_twin_for_every_row():
    found = check(Release(sample_folder()), "sample")
    assert found["rows"] == 280
    assert found["replaced"] > 250


@pytest.mark.realdata
@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "rows"),
    [
        ("instruction-generalization-eng", 4750),
        ("role-generalization-eng", 7534),
        ("instruction-generalization-zh", 9158),
    ],
)
def test_the_release_has_a_twin_for_every_row(config, rows, real_release):
    assert check(Release(real_release), config)["rows"] == rows


def row(subset: str, question: str, *replies: str) -> dict:
    about = {"raw_reference": None, "rolegpt": None, "role_description": "You are Queen of Hearts."}
    return {"id": "1", "role": "Queen of Hearts", "language": "en", "subset": subset, "question": question} | {
        "references": list(replies),
        **about,
    }


def test_what_a_general_instruction_names_stays():
    twin = make_twin(row("general", "What is a Newt?", "A Newt! I, the Queen, say so!"))
    assert (twin["question"], twin["references"]) == ("What is a Newt?", ["A Newt! I, the Duchess, say so!"])
    twin = make_twin(row("role_specific", "Who is Lord Newt?", "Lord Newt!"))
    assert (twin["role"], twin["question"]) == ("Duchess of Bells", "Who is Lord Toad?")
    assert twin["role_description"] == "You are Duchess of Bells."
    assert make_twin(row("general", "Name the poem of the Queen of Hearts.", "Tarts!")) is None


def test_roles_without_reviewed_names_are_left_out_in_words(write_release, tmp_path):
    path = "rolebench-eng/instruction-generalization/general/test.jsonl"
    config = "instruction-generalization-eng-anonymous"
    rows = [{"role": role, "question": "Who?", "generated": ["I."]} for role in ("Fox", "Queen of Hearts")]
    folder = str(write_release(**{path: rows}))
    with pytest.warns(RoleLLMWarning, match="no reviewed names: Fox"):
        data = load_dataset("rolebench", config, data_dir=folder)
    assert data["test"]["role"] == ["Duchess of Bells"]
    with pytest.warns(RoleLLMWarning, match="no reviewed names"):
        build(tmp_path / "out", [config], data_dir=folder)
    assert "Without reviewed names, and so left out: `Fox`" in (tmp_path / "out" / "README.md").read_text("utf-8")
