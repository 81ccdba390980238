"""Reading predictions and joining them to rows: every accepted form, and everything that must be counted and named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import DataError, PredictionError
from rolellm.core.fingerprint import hash_file
from rolellm.core.records import Prediction, Row
from rolellm.scoring.predictions import Matching, Predictions, match_predictions, read_predictions

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes lines (objects, or bytes as they are) to a file of predictions."""

    def lines(*items: Any, name: str = "P.jsonl", end: bytes = b"\n", start: bytes = b"") -> Path:
        raw = [item if isinstance(item, bytes) else json.dumps(item, ensure_ascii=False).encode() for item in items]
        path = tmp_path / name
        path.write_bytes(start + b"".join(line + end for line in raw))
        return path

    return lines


def counts(found: Matching) -> dict[str, int]:
    return {finding.kind: finding.count for finding in found.findings}


def row(name: str, role: str = "Fox", question: str = "Who are you?", **other: Any) -> Row:
    return Row(name, role, "en", other.pop("subset", "general"), question, ("A fox.",), **other)


class TestReading:
    def test_both_forms_with_the_line_they_stood_in(self, write: Write) -> None:
        path = write(
            {"id": "a", "prediction": "One.", "finish": "stop"},
            b"",
            {"role": "Fox", "question": " Why? ", "prediction": ""},
            {"role": "狐狸", "question": "为什么？", "generated": ["因为。", "所以。"], "type": "script_based"},
        )
        read = read_predictions(path)
        assert read.items == (
            Prediction("One.", id="a", line=1),
            Prediction("", role="Fox", question=" Why? ", line=3),
            Prediction("因为。", role="狐狸", question="为什么？", line=4),
        )
        (file,) = read.files
        assert (file.count, file.several, file.meta) == (3, 1, None)
        assert file.sha256 == hash_file(path)
        assert read.locate(2) == f"{path}:4"

    @pytest.mark.parametrize("content", ["{", "[" * 10**5], ids=["cut-off", "too-deep"])
    def test_a_broken_sidecar_is_refused_by_name(self, write: Write, content: str) -> None:
        path = write({"id": "a", "prediction": "1"})
        path.with_name("P.jsonl.meta.json").write_text(content)
        with pytest.raises(DataError, match=r"P\.jsonl\.meta\.json: "):
            read_predictions(path)

    BAD = (
        pytest.param({"id": "a"}, "not valid at prediction: Field required", id="no-reply"),
        pytest.param({"prediction": "One."}, "does not say which row", id="no-key"),
        pytest.param(["a", "One."], "expected a JSON object, found list", id="array"),
        pytest.param(b'{"id": "a", "prediction": "On', "not valid JSON", id="broken-json"),
        pytest.param(b'{"id": "a", "prediction": "\xff"}', "not UTF-8", id="not-utf-8"),
    )

    @pytest.mark.parametrize(("line", "words"), BAD)
    def test_a_bad_line_names_file_line_and_what_was_expected(self, write: Write, line: Any, words: str) -> None:
        path = write({"id": "a", "prediction": "One."}, line, {"id": "b", "prediction": "Two."})
        with pytest.raises(PredictionError, match=words) as caught:
            read_predictions(path)
        assert (caught.value.path, caught.value.line) == (path, 2)
        assert str(caught.value).startswith(f"{path}:2: ")

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            pytest.param(lambda path: None, "not a file", id="absent"),
            pytest.param(lambda path: path.write_bytes(b"\xef\xbb\xbf\n \n"), "has no predictions", id="blank"),
        ],
    )
    def test_a_file_without_predictions_is_an_error(
        self, tmp_path: Path, make: Callable[[Path], object], words: str
    ) -> None:
        path = tmp_path / "P.jsonl"
        make(path)
        with pytest.raises(PredictionError, match=words):
            read_predictions(path)


class TestMatching:
    def test_one_prediction_answers_all_rows_that_ask_the_same(self) -> None:
        rows = [row("r1"), row("r2"), row("r3", question="Who are you? ")]
        prediction = Prediction("A fox.", id="r2", role="Fox", question="Who are you?")
        found = match_predictions(rows, Predictions((prediction,)))
        assert found.answers == (0, 0, 0)
        assert found.findings == ()

    def test_unmatched_are_counted_on_both_sides_and_named(self) -> None:
        rows = [row("r1"), row("r2", question="Why?", subset="role_specific")]
        items = (Prediction("x", id="r1", line=1), Prediction("y", role="Crow", question="Where?" * 20, line=9))
        found = match_predictions(rows, Predictions(items), where="sample/test")
        assert (found.unmatched_rows, found.unmatched_predictions) == ((1,), (1,))
        nothing, stranger = found.findings
        assert (nothing.kind, stranger.kind) == ("unmatched_rows", "unmatched_predictions")
        words = "rows of sample/test without a prediction: 1 of 2 (1 role_specific); such as Fox, “Why?”"
        assert str(nothing) == words
        assert stranger.examples[0].startswith("prediction 1: Crow, “Where?Where?")

    def test_of_two_predictions_for_a_row_the_first_counts_and_both_kinds_are_told_apart(self) -> None:
        first = Prediction("one", id="r1")
        items = (first, first, Prediction("two", role="Fox", question="Who are you?"))
        found = match_predictions([row("r1")], Predictions(items))
        assert found.answers == (0,)
        assert counts(found) == {"duplicates_differing": 1, "duplicates_same": 1}
        assert found.unmatched_predictions == ()
        assert [finding.refused for finding in found.findings] == [True, False]

    def test_an_id_whose_text_is_another_rows_counts_for_the_id_alone_and_is_named(self) -> None:
        rows = [row("r1"), row("r2", question="Why?")]
        found = match_predictions(rows, Predictions((Prediction("x", id="r1", role="Fox", question="Why?"),)))
        assert found.answers == (0, None)
        assert counts(found) == {"unmatched_rows": 1, "id_conflicts": 1}

    def test_examples_are_few_and_cannot_command_a_terminal(self) -> None:
        rows = [row("r0"), *(row(f"r{n}", question=f"\x1b[31m{n}\ud800?") for n in range(1, 9))]
        (finding,) = match_predictions(rows, Predictions.pair_texts(["r0"], ["x"])).findings
        assert (finding.count, len(finding.examples)) == (8, 3)
        assert "\x1b" not in str(finding)
        str(finding).encode("utf-8")

    @pytest.mark.parametrize(
        ("prediction", "words"),
        [
            pytest.param(
                Prediction("x", role="Crow", question="Who are you?", line=4),
                "Their roles are Crow, those of the rows Fox. Is it another split or config?",
                id="other-roles",
            ),
            pytest.param(Prediction("x", id="general-train-1"), "id 'general-train-1'; ids of the rows", id="ids"),
        ],
    )
    def test_an_error_when_nothing_matches_says_what_they_look_like(self, prediction: Prediction, words: str) -> None:
        with pytest.raises(PredictionError, match="none of the predictions") as caught:
            match_predictions([row("general-test-1")], Predictions((prediction,)), where="sample/test")
        assert words in str(caught.value)
        assert "ids of the rows look like 'general-test-1'" in str(caught.value)

    def test_the_sidecar_tells_which_config_it_was(self, write: Write) -> None:
        path = write({"id": "x", "prediction": "1"})
        path.with_name("P.jsonl.meta.json").write_text('{"config": "role-generalization-eng", "split": "test"}')
        with pytest.raises(PredictionError, match=r"P\.jsonl was generated for role-generalization-eng/test"):
            match_predictions([row("r1")], read_predictions(path), where="sample/test")
        path.with_name("P.jsonl.meta.json").write_text('{"config": null, "split": null}')
        with pytest.raises(PredictionError, match=r"^(?!.*was generated for)"):
            match_predictions([row("r1")], read_predictions(path))

    @given(data=st.data())
    def test_every_row_and_every_prediction_is_accounted_for(self, data: st.DataObject) -> None:
        texts = st.sampled_from(["q", " q", "q ", "p", "p\n"])
        roles = st.sampled_from(["A", "B"])
        asked = data.draw(st.lists(st.tuples(roles, texts), min_size=1, max_size=6))
        rows = [row(f"r{number}", *pair) for number, pair in enumerate(asked)]
        keyed = st.builds(Prediction, st.text(max_size=2), role=roles, question=texts)
        named = st.builds(Prediction, st.text(max_size=2), id=st.sampled_from([f"r{n}" for n in range(7)]))
        items = data.draw(st.lists(keyed | named, max_size=8))
        # One that surely matches, so that the join does not end in an error.
        items = [*items, Prediction("x", id="r0")]
        found = match_predictions(rows, Predictions(tuple(items)))
        counted = counts(found)
        used = {answer for answer in found.answers if answer is not None}
        beaten = counted.get("duplicates_same", 0) + counted.get("duplicates_differing", 0)
        assert len(used) + len(found.unmatched_predictions) + beaten == len(items)
        assert found.answers.count(None) == len(found.unmatched_rows)
        for target, answer in zip(rows, found.answers, strict=True):
            fits = [self._fits(item, target) for item in items]
            # The best way of fitting that any prediction has, and the first that has it.
            assert answer == (fits.index(min(fits)) if min(fits) < 3 else None)

    @staticmethod
    def _fits(item: Prediction, target: Row) -> int:
        if item.id == target.id:
            return 0
        if item.role is None or item.question is None:
            return 3
        if (item.role, item.question) == (target.role, target.question):
            return 1
        return 2 if (item.role, item.question.strip()) == (target.role, target.question.strip()) else 3

    def test_what_cannot_be_joined_is_refused(self) -> None:
        with pytest.raises(PredictionError, match="no predictions file"):
            read_predictions([])
        with pytest.raises(PredictionError, match="no rows"):
            match_predictions([], Predictions.pair_texts(["a"], ["x"]))
        with pytest.raises(ValueError, match="2 rows but 1 predictions"):
            Predictions.pair_texts(["a", "b"], ["x"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("log.eval", None, id="packed"),
        pytest.param("log.json", {"samples": ["a"]}, id="samples that are no objects"),
        pytest.param("log.json", {"samples": [{"id": "a", "output": []}]}, id="a list of outputs"),
        pytest.param("log.json", {"samples": [{"id": 1, "output": {"completion": "a"}}]}, id="an id that is a number"),
        pytest.param(
            "samples_rolebench_1.jsonl", {"doc": {"id": []}, "filtered_resps": [{}]}, id="a reply that is none"
        ),
        pytest.param("details_rolebench_1.parquet", {"doc": "a", "model_response": "b"}, id="texts for objects"),
        pytest.param("details_rolebench_1.parquet", None, id="not Parquet"),
    ],
)
def test_a_harness_s_log_of_another_form_is_refused_in_a_sentence(name: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / name
    if value is None or not name.endswith("parquet"):
        path.write_text(json.dumps(value) + "\n", encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist([value]), path)
    with pytest.raises(DataError) as caught:
        read_predictions(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert ("inspect log convert --to json" in str(caught.value)) is (name == "log.eval")
