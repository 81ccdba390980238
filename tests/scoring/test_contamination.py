"""Rows that a model was trained on: found before they are answered, noted in the sidecar, repeated by the score."""

import json
import shutil
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import DataError, PredictionError, RoleLLMWarning, SettingsError
from rolellm.core.files import write_json
from rolellm.core.records import Row
from rolellm.models.find import ModelSource, find_model
from rolellm.models.training_record import MANIFEST, TrainedOn
from rolellm.scoring.contamination import Contamination, check_contamination
from rolellm.scoring.predictions import get_sidecar_path, read_predictions
from rolellm.scoring.score import score_rows
from rolellm.scoring.score_report import ScoreReport
from rolellm.scoring.settings import GenerateSettings, ScoreOptions

from . import conftest
from .conftest import Answers, edit_json

# peft 0.21 asks transformers 5.23 by a deprecated name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

MakeRows = Callable[..., list[Row]]
INSTRUCTIONS, ROLES = "instruction-generalization-eng", "role-generalization-eng"


def note(folder: Path, rows: Iterable[Row], **data: Any) -> None:
    """The manifest that training on these rows leaves."""
    said = {"config": "sample", "split": "train", "fingerprint": "f" * 64} | data
    write_json(folder / MANIFEST, {"kind": "rocit", "data": said, "trained_on": TrainedOn.of(rows).to_dict()})


def asked_anew(rows: Iterable[Row]) -> list[Row]:
    """The same roles with other questions."""
    return [replace(row, question=f"And this: {row.question}") for row in rows]


def by_others(rows: Iterable[Row]) -> list[Row]:
    """The same questions, otherwise written, to other roles."""
    return [replace(row, role=f"Not {row.role}", question=f" {row.question.upper()}\n") for row in rows]


@pytest.fixture
def settings(model_copy: Path) -> GenerateSettings:
    return GenerateSettings(model=str(model_copy), max_new_tokens=4, config=INSTRUCTIONS, split="test")


def answer(answers: Answers, rows: int | Sequence[Row], words: str | None = None, **changes: Any) -> Any:
    """The sidecar's entry after answering, with a warning in these words or with none."""
    with pytest.warns(RoleLLMWarning, match=words) if words else nullcontext():
        answers.run(rows, **changes)
    return answers.meta["contamination"]


def scored(rows: Sequence[Row], *files: Path, **options: Any) -> ScoreReport:
    return score_rows(
        rows, read_predictions(files), ScoreOptions(**{"config": INSTRUCTIONS, "split": "test"} | options)
    )


# --- what is promised


@pytest.mark.parametrize(
    ("config", "change", "counts"),
    [
        pytest.param(INSTRUCTIONS, asked_anew, (0, 6, 0), id="instructions-promised-roles-known"),
        pytest.param("sample", by_others, (6, 0, 6), id="sample-holds-instructions-out"),
        pytest.param(ROLES, by_others, (0, 0, 6), id="roles-promised-instructions-known"),
        pytest.param(f"{ROLES}-strict", asked_anew, (6, 6, 0), id="strict-roles"),
        pytest.param(None, list, (None, 6, 6), id="nothing-promised"),
    ],
)
def test_only_what_the_config_promises_contaminates_and_both_are_counted(
    model_copy: Path, make_rows: MakeRows, config: str | None, change: Any, counts: tuple[int | None, int, int]
) -> None:
    note(model_copy, change(make_rows(6)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = check_contamination(make_rows(6), find_model(str(model_copy)), config=config, split="test")
    counted = found.to_dict()
    assert (counted["contaminated"], counted["by_role"], counted["by_instruction"]) == counts
    assert len(caught) == bool(counts[0])
    assert len(found.contaminated) == (counts[0] or 0)


# --- before answering


def test_rows_trained_on_are_named_before_they_are_answered(
    model_copy: Path, answers: Answers, make_rows: MakeRows
) -> None:
    rows = make_rows(8)
    note(model_copy, rows[:5])
    with pytest.warns(RoleLLMWarning) as caught:
        assert answers.run(rows).contaminated == 5
    (warning,) = caught
    text = str(warning.message)
    whole = f"{INSTRUCTIONS}/test whose instruction the model was trained on: 5 of 8 ({model_copy} was tuned on sample"
    assert whole in text
    assert text.count("\n  ") == 3
    assert "\n  Ada Fenn, “What do you see from the window? (0)”\n" in text
    assert "-strict" in text
    assert warning.filename == conftest.__file__
    source = {"model": str(model_copy), "config": "sample", "split": "train", "fingerprint": "f" * 64}
    assert answers.meta["contamination"] == {
        "held_out": "instruction",
        "rows": 8,
        "contaminated": 5,
        "by_role": 8,
        "by_instruction": 5,
        "trained_on": [{**source, "roles": 2, "instructions": 5}],
        **TrainedOn.of(rows[:5]).to_dict(),
    }


def test_strict_refuses_before_any_work(model_copy: Path, answers: Answers, make_rows: MakeRows) -> None:
    note(model_copy, make_rows(2))
    # Nothing of the model is read before the refusal.
    (model_copy / "model.safetensors").write_bytes(b"torn")
    (model_copy / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"refused, as asked by strict: rows of .*: 2 of 4 .*; such as Ada Fenn, “"):
        answers.run(4, strict=True)
    assert answers.content == (None, None)


# --- where manifests are found


def test_an_adapters_training_and_its_bases_count_together(
    model_copy: Path, adapter: Path, make_rows: MakeRows
) -> None:
    rows = make_rows(6)
    source = find_model(str(adapter))
    note(model_copy, rows[:2])
    with pytest.warns(RoleLLMWarning, match=r"trained on: 2 of 6"):
        check_contamination(rows, source, config="sample", split="test")
    note(adapter, rows[1:5], split="test")
    with pytest.warns(RoleLLMWarning, match=r"5 of 6 \(.*adapter was tuned on sample/test; .*sample/train\)"):
        found = check_contamination(rows, source, config="sample", split="test")
    assert [entry["instructions"] for entry in found.trained_on] == [4, 2]
    (model_copy / MANIFEST).unlink()
    with pytest.warns(RoleLLMWarning, match=r"trained on: 4 of 6"):
        check_contamination(rows, source, config="sample", split="test")


@pytest.mark.parametrize("part", ["checkpoint-20", "base-0123abcd"])
def test_a_runs_manifest_speaks_for_its_checkpoints_and_its_base(
    tiny_model: Path, tmp_path: Path, make_rows: MakeRows, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    shutil.copytree(tiny_model, tmp_path / "run" / part)
    note(tmp_path / "run", make_rows(2))
    write_json(tmp_path / "run" / part / MANIFEST, {"files": {}})
    monkeypatch.chdir(tmp_path / "run" / part)
    with pytest.warns(RoleLLMWarning, match=r"2 of 4"):
        check_contamination(make_rows(4), find_model("."), config="sample", split="test")


@pytest.mark.parametrize("content", [None, {"name": "an app"}], ids=["none", "another-programs"])
def test_a_model_of_unknown_training_is_answered_in_silence(
    model_copy: Path, answers: Answers, make_rows: MakeRows, content: dict[str, Any] | None
) -> None:
    if content is not None:
        write_json(model_copy / MANIFEST, content)
    assert answer(answers, 3) is None
    report = scored(make_rows(3), answers.path, strict=True)
    assert report.to_dict()["contamination"] is None
    assert report.findings == ()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param('{"kind": "rocit", "trained_on', id="torn"),
        pytest.param('{"trained_on": {"roles": ["Fox"], "instructions": ["Why?"]}}', id="instructions-in-clear"),
    ],
)
def test_a_malformed_manifest_is_named_and_strict_refuses_it(model_copy: Path, answers: Answers, content: str) -> None:
    (model_copy / MANIFEST).write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=rf"^refused, as asked by strict: {model_copy / MANIFEST}: "):
        answers.run(2, strict=True)
    assert not answers.path.exists()
    words = rf"^{model_copy / MANIFEST}: .*; so whether {model_copy} was trained on these"
    assert answer(answers, 2, words) is None


# --- going on with a file


def test_what_becomes_known_later_is_noted_on_a_finished_file_and_not_forgotten(
    model_copy: Path, answers: Answers, make_rows: MakeRows
) -> None:
    assert answers.run(4).contaminated is None
    before, meta = answers.path.read_bytes(), answers.meta
    note(model_copy, make_rows(1))
    entry = answer(answers, 4, "1 of 4", batch_size=2)
    assert (answers.path.read_bytes(), answers.meta) == (before, meta | {"contamination": entry})
    noted = answers.content
    (model_copy / MANIFEST).unlink()
    with pytest.raises(SettingsError, match=r"manifest that says what the model was trained on.*restore it"):
        answers.run(6)
    assert answers.content == noted


# --- the score


@pytest.fixture
def mixed(model_copy: Path, answers: Answers, make_rows: MakeRows) -> Path:
    """Twelve predictions, the first five to rows whose instructions were trained on under other roles."""
    note(model_copy, by_others(make_rows(5)))
    answer(answers, 12, "trained on")
    return answers.path


def test_a_score_repeats_the_finding_and_gives_the_clean_rows_apart(
    mixed: Path, model_copy: Path, make_rows: MakeRows
) -> None:
    shutil.rmtree(model_copy)  # The score needs the sidecar alone.
    rows = make_rows(12)
    report = scored(rows, mixed)
    (finding,) = [item for item in report.findings if item.kind == "contaminated"]
    assert finding.refused
    assert finding.text.startswith(f"rows of {INSTRUCTIONS}/test whose instruction the model was trained on: 5 of 12 (")
    assert len(finding.examples) == 3
    shown = report.to_dict()
    assert shown["counts"]["contaminated"] == 5
    found = shown["contamination"]
    expected = {"held_out": "instruction", "rows": 12, "contaminated": 5, "by_role": 0, "unknown": 0}
    assert {key: found[key] for key in expected} == expected
    assert found["trained_on"][0]["fingerprint"] == "f" * 64
    alone = score_rows(rows[5:], read_predictions(mixed), ScoreOptions(config=INSTRUCTIONS, split="test")).to_dict()
    assert shown["metrics_clean"] == alone["metrics"]
    assert alone["contamination"]["contaminated"] == 0
    assert alone["metrics_clean"] is None
    with pytest.raises(PredictionError, match=r"refused, as asked by strict: rows of .* trained on: 5 of 12"):
        scored(rows, mixed, strict=True)


def test_the_scores_recipe_and_value_do_not_hang_on_it(mixed: Path, make_rows: MakeRows) -> None:
    report = scored(make_rows(12), mixed).to_dict()
    edit_json(get_sidecar_path(mixed), contamination=None)
    silent = scored(make_rows(12), mixed).to_dict()
    assert silent["contamination"] is None
    assert silent["fingerprint"] == report["fingerprint"]
    assert silent["metrics"] == report["metrics"]
    assert "contamination" not in report["fingerprint"]["predictions"][0]["generation"]


def test_the_config_that_is_scored_says_what_was_promised(mixed: Path, make_rows: MakeRows) -> None:
    edit_json(get_sidecar_path(mixed), config=None, split=None)
    rows = make_rows(12)
    assert scored(rows, mixed, config=ROLES).to_dict()["contamination"]["contaminated"] == 0
    assert scored(rows, mixed, config=None).to_dict()["contamination"]["contaminated"] is None
    edit_json(get_sidecar_path(mixed), config=INSTRUCTIONS)
    assert scored(rows, mixed, config=None).to_dict()["contamination"]["contaminated"] == 5


def test_files_of_known_and_unknown_making_count_apart(mixed: Path, tmp_path: Path, make_rows: MakeRows) -> None:
    rows = make_rows(12)
    lines = mixed.read_text(encoding="utf-8").splitlines(keepends=True)
    mixed.write_text("".join(lines[:8]), encoding="utf-8")
    (tmp_path / "elsewhere.jsonl").write_text("".join(lines[8:]), encoding="utf-8")
    for files in ([mixed, tmp_path / "elsewhere.jsonl"], [tmp_path / "elsewhere.jsonl", mixed, mixed]):
        report = scored(rows, *files).to_dict()
        found = report["contamination"]
        assert (found["rows"], found["contaminated"], found["unknown"]) == (8, 5, 4)
        assert len(found["trained_on"]) == 1
        assert sum(report["metrics_clean"][name]["n"] for name in ("CUS", "SPE")) == 3
    assert scored(rows, tmp_path / "elsewhere.jsonl").to_dict()["contamination"] is None


def test_a_malformed_entry_is_named(mixed: Path, make_rows: MakeRows) -> None:
    for entry in ({"instructions": ["Why?"], "trained_on": []}, {"instructions": [], "trained_on": ["x"]}):
        edit_json(get_sidecar_path(mixed), contamination={"roles": [], **entry})
        with pytest.raises(PredictionError, match='"contamination" does not look as') as caught:
            scored(make_rows(12), mixed)
        assert caught.value.path == get_sidecar_path(mixed)


ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b ", "C"]), st.sampled_from(["p", "P ", "q", "r s", "r\tS"])), max_size=9
)


@given(trained=ROWS, asked=ROWS)
def test_the_sidecars_entry_tells_its_rows_apart_as_the_manifest_does(trained: Any, asked: Any) -> None:
    """The entry names only what concerns its rows, and that is enough."""
    before, rows = (
        [Row(str(at), role, "en", "general", question, ("x",)) for at, (role, question) in enumerate(pairs)]
        for pairs in (trained, asked)
    )
    found = Contamination("instruction", tuple(rows), tuple(TrainedOn.of(before).find_parts(rows)), ())
    entry = json.loads(json.dumps(found.to_sidecar()))
    assert tuple(TrainedOn.from_dict(entry).find_parts(rows)) == found.parts
    assert len(entry["roles"]) <= len({row.role for row in rows})
    assert entry["contaminated"] == len(found.contaminated)


# --- the release


def split_rows(config: str, split: str, release: Path) -> list[Row]:
    from rolellm.data.rolebench import load_rolebench

    return [Row.from_columns(columns) for columns in load_rolebench(config, split, data_dir=release)]


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.filterwarnings("ignore::rolellm.data.rolebench.source.MissingFilesWarning")
def test_chinese_instruction_generalization_is_contaminated_by_its_own_train_and_strict_is_not(
    tmp_path: Path, real_release: Path
) -> None:
    config = "instruction-generalization-zh"
    source = ModelSource(str(tmp_path), None, str(tmp_path))
    note(tmp_path, split_rows(config, "train", real_release), config=config)
    test = split_rows(config, "test", real_release)
    with pytest.warns(RoleLLMWarning, match=rf"1,458 of 1,690 \({tmp_path} was tuned on {config}/train\)"):
        found = check_contamination(test, source, config=config, split="test")
    general = [row for row in found.contaminated if row.subset == "general"]
    assert len(general) == sum(row.subset == "general" for row in test) == 1451
    assert len(TrainedOn.of(general).instructions) == 970
    assert len(found.select_rows("role")) == 1690
    note(tmp_path, split_rows(f"{config}-strict", "train", real_release), config=f"{config}-strict")
    config = f"{config}-strict"
    test = split_rows(config, "test", real_release)
    strict = check_contamination(test, source, config=config, split="test", strict=True)
    assert strict.to_dict()["contaminated"] == 0
