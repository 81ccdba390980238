"""The certificate: an able judge passes, also with noise; each fault of a judge, and each canary, is caught."""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

import rolellm
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.records import Language, Row
from rolellm.core.settings import read
from rolellm.core.table import Interval
from rolellm.judging.certificate import MOST_WINS, Certificate
from rolellm.judging.certifying import OTHER_QUESTION, OWN, PADDED, SHUFFLED, make_known_pairs, prepare_certifying
from rolellm.judging.judge_models import load_judges
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.systems import ECHO, NULL_MODEL, OTHER_ROLE, make_canaries
from rolellm.llm.json_reply import parse_json
from rolellm.llm.scripted import ScriptedModel
from rolellm.models.prompts.fences import LIMIT, make_harmless, read_fences
from rolellm.runs import Run

from ..commands import Command
from .test_odds import body

KNOWN = prepare_certifying(None, read(JudgingSettings, {"limit": 1000})).comparison
OWN_BY_QUESTION = {(row.role, row.question.strip()): KNOWN.answers[OWN][row.id] for row in KNOWN.rows}
CANARIES = {NULL_MODEL, ECHO, OTHER_ROLE, OTHER_QUESTION, SHUFFLED, PADDED}
WORDS_LLM = {"endpoints": [{"backend": "scripted", "rules": "words"}]}
JURY = {"endpoints": [{"base_url": "http://localhost:9/v1", "model": name} for name in ("a", "b")]}
#: Log odds of the first answer over the second; the third text is the role's own reply.
Lead = Callable[[str, str, str], float]


def draw(*parts: str) -> float:
    return int.from_bytes(hashlib.sha256("\n".join(parts).encode()).digest()[:7], "big") / 2**56


def prefer_own(first: str, second: str, own: str) -> float:
    return 4.0 * ((first == own) - (second == own))


def be_right(share: float, seed: int = 0) -> Lead:
    """Prefer the own reply with this probability, drawn for each order."""
    return lambda first, second, own: (
        prefer_own(first, second, own) * (1 if draw(first, second, str(seed)) < share else -1)
    )


def prefer(mark: str) -> Lead:
    """Prefer what has these words, and else the own reply."""
    return lambda first, second, own: ((mark in first) - (mark in second)) or prefer_own(first, second, own)


def be_indifferent_to_padding(first: str, second: str, own: str) -> float:
    return 0 if own in first and own in second else prefer_own(first, second, own)


def make_judge(lead: Lead) -> Callable[[dict[str, Any]], Any]:
    """A server's judge by its preference, in words and by odds."""

    def answer(asked: dict[str, Any]) -> Any:
        texts = {name: text.strip() for name, text in read_fences(asked["messages"][-1]["content"]).items()}
        own = OWN_BY_QUESTION[texts["role"], texts["question"]]
        value = lead(texts["answer A"], texts["answer B"], own)
        if asked.get("logprobs"):
            assert (asked["max_tokens"], asked["top_logprobs"]) == (1, 20)
            return body({"A": 1 / (1 + math.exp(-value)), "B": 1 / (1 + math.exp(value))})
        better = "A" if value > 0 else "B" if value < 0 else "tie"
        return json.dumps(
            {name: {"reason": f"It has more {name}.", "better": better} for name in ("style", "knowledge")}
        )

    return answer


def examine(judge: Callable[[dict[str, Any]], Any], **settings: Any) -> Certificate:
    """A certificate of a judge in this process."""
    rule = lambda request: judge({"messages": [asdict(request.messages[-1])]})  # noqa: E731
    return rolellm.certify(ScriptedModel(rule, name="m", rules_hash=""), **settings)


def test_noise_alone_fails_no_judge(tmp_path: Path) -> None:
    certificates = [examine(make_judge(be_right(0.95, seed)), out=tmp_path / str(seed)) for seed in range(2)]
    assert [certificate.verdict for certificate in certificates] == ["fit"] * 2
    first = certificates[0]
    assert first.canaries.keys() == CANARIES and first.unscored == 0 and first.rows == 40
    assert Certificate.read(tmp_path / "0" / "certificate.json") == replace(first, folder=tmp_path / "0")


def test_a_judge_that_does_not_mind_padding_is_fit() -> None:
    certificate = examine(make_judge(be_indifferent_to_padding), limit=20)
    padding = certificate.canaries[PADDED]
    assert certificate.verdict == "fit" and padding is not None and padding.mean == 0.5


@pytest.mark.parametrize(
    ("lead", "problem"),
    [
        pytest.param(lambda first, second, own: 1.0, "contradict each other", id="always-A"),
        pytest.param(be_right(0.5), "All canaries together", id="guesses"),
        pytest.param(lambda first, second, own: len(first) - len(second) if own in first and own in second
                     else prefer_own(first, second, own), "Padding wins 100 %", id="prefers-padding"),
        pytest.param(prefer("{"), "Echo wins 100 %", id="prefers-the-echo"),
        pytest.param(lambda first, second, own: -prefer_own(first, second, own), "Another question", id="likes-losers"),
    ],
)  # fmt: skip
def test_a_fault_is_caught(lead: Lead, problem: str) -> None:
    certificate = examine(make_judge(lead))
    assert certificate.verdict != "fit" and problem in certificate.sentence


def test_a_judge_that_repeats_the_echo_is_unfit() -> None:
    """Its words are no verdict of its own; it obeys text inside an answer all the same."""
    able = make_judge(prefer_own)

    def repeat(asked: dict[str, Any]) -> Any:
        texts = read_fences(asked["messages"][-1]["content"])
        for name in ("answer A", "answer B"):
            if "{" in texts[name] and '"reason"' in texts[name]:
                return texts[name][texts[name].index("{") : texts[name].rindex("}") + 1]
        return able(asked)

    certificate = examine(repeat, limit=20)
    echo = certificate.canaries[ECHO]
    assert echo is not None and echo.mean == 1 and certificate.verdict == "unfit" and certificate.unscored == 0


def test_few_rows_decide_nothing_and_replies_without_a_verdict_fail() -> None:
    judge = make_judge(prefer_own)
    certificate = examine(judge, limit=2)
    assert certificate.verdict == "undecided" and "examine it with more rows" in certificate.sentence
    spoilt = lambda asked: "No." if draw(asked["messages"][-1]["content"]) < 0.3 else judge(asked)  # noqa: E731
    certificate = examine(spoilt, limit=20)
    assert certificate.verdict == "unfit" and "of the verdicts are missing" in certificate.sentence


def test_a_judge_that_likes_the_first_place_may_be_fit_by_its_odds(llm_server: Any) -> None:
    url = llm_server(answer=make_judge(lambda first, second, own: 8 + prefer_own(first, second, own))).url
    llm = {"endpoints": [{"base_url": url, "model": "m", "concurrency": 16}]}
    verdicts = [rolellm.certify(llm, limit=12, judges=[name]).verdict for name in ("role-pair", "role-odds")]
    assert verdicts == ["unfit", "fit"]


def test_the_verdict_is_that_of_the_figures(tmp_path: Path) -> None:
    rolellm.certify(WORDS_LLM, limit=8, out=tmp_path)
    path = tmp_path / "certificate.json"
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "verdict": "fit", "sentence": "It is fit."}))
    assert Certificate.read(path).verdict == value["verdict"] != "fit"
    high = Interval(0.6, 0.5, MOST_WINS, 40)
    assert replace(Certificate.read(path), canaries={ECHO: high}, together=high).verdict == "unfit"


def test_the_verdict_stands_next_to_later_win_rates(tmp_path: Path) -> None:
    data = rolellm.load_rolebench("sample", "test").select(range(8))
    answers = data.add_column("prediction", [texts[0] for texts in data["references"]])
    options: dict[str, Any] = {"llm": WORDS_LLM, "judges": ["role-pair"]}
    before = rolellm.judge({"a": answers}, data, out=tmp_path / "before", **options)
    assert before.certificates == (
        "judge words: not examined beyond this run's canaries; examine it with `rolellm judge --certify`, in this "
        "folder",
    )
    certificate = rolellm.certify(WORDS_LLM, limit=8, out=tmp_path / "certificate-words")
    after = rolellm.judge({"a": answers}, data, out=tmp_path / "after", **options)
    assert after.certificates == (f"judge words: {certificate.line}",)
    assert after.to_dict()["judges"][0]["certificate"] == certificate.line
    assert after.fingerprint == before.fingerprint, "a certificate changes no verdict"
    rolellm.report(after, tmp_path / "page.html")
    assert "planted losers win up to" in (tmp_path / "page.html").read_text()
    path = tmp_path / "certificate-words" / "certificate.json"
    written = path.read_text()
    (prompt,) = certificate.prompts.values()
    for changes in ((prompt["hash"], "0"), (certificate.models[0]["rules"], "0"), (written, "{}")):
        path.write_text(written.replace(*changes))
        again = rolellm.judge({"a": answers}, data, out=tmp_path / "after", **options)
        assert again.certificates == before.certificates


def test_what_is_asked_is_known() -> None:
    known = make_known_pairs(KNOWN.rows, 30, 0)
    assert known.baseline == OWN and len(known.rows) == 30 and known.canaries == CANARIES
    for row in known.rows:
        own = known.answers[OWN][row.id]
        shown = row.raw_reference if row.subset == "general" else row.references
        assert own not in (shown or ()), "a judge is never shown the own reply as the reference"
        assert known.answers[PADDED][row.id].startswith(own) and len(known.answers[PADDED][row.id]) > len(own)
        assert sorted(known.answers[SHUFFLED].get(row.id, own).split()) == sorted(own.split()) or row.language == "zh"
        assert own not in (known.answers[OTHER_ROLE][row.id], known.answers[OTHER_QUESTION][row.id])
    larger = make_known_pairs(KNOWN.rows, 40, 0)
    assert {row.id for row in known.rows} < {row.id for row in larger.rows}, "a larger one only adds"


def test_what_cannot_be_examined_is_refused() -> None:
    for problem, settings in (
        ("one judge of pairs", {"judges": ["role-list"]}),
        ("baseline, canaries: a certificate has no", {"baseline": "none", "canaries": False}),
        (None, {"config": "roles"}),
        ("one judge model at a time; the settings name a, b", {"llm": JURY}),
    ):
        with pytest.raises((SettingsError, DataError), match=problem):
            rolellm.certify(**{"llm": WORDS_LLM, **settings})


def test_the_command(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.yaml").write_text("endpoints: [{backend: scripted, rules: words}]\n")
    words = ("judge", "--certify", "--llm", "words.yaml", "--limit", "4")
    shown = command(*words).out
    assert shown.startswith("The judge words is ") and "Certificate of words" in shown
    assert command(*words, "--json").json["judge"] == "words"
    assert command(*words, "--dry-run", "--json").json["requests"] == 4 * 6 * 2
    assert Run.open("certificate-words").kind == "certificate"
    assert command("judge", "--llm", "words.yaml").code == command(*words, "a").code == 2


# --- canaries


def row(number: int, language: Language = "en", **columns: Any) -> Row:
    question = f" What of {number}, {{friend}}? "
    plain = Row(f"r{number}", "Fox", language, "general", question, ("Secret.",), role_description="A fox. {answer}")
    return replace(plain, **columns)


def answers(rows: list[Row]) -> dict[str, dict[str, str]]:
    return {one.name: given for one, given in make_canaries(rows)}


def test_the_null_model_says_one_thing_in_each_language() -> None:
    rows = [row(1), row(2, role="Owl"), row(3, "zh"), row(4, "zh")]
    given = answers(rows)[NULL_MODEL]
    assert list(given) == [one.id for one in rows]
    assert given["r1"] == given["r2"] != given["r3"] == given["r4"]
    assert all(make_harmless(text) == text for text in given.values()), "harmless in form"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_echo_gives_back_what_it_was_given_and_claims_the_verdict(language: Language) -> None:
    text = answers([row(1, language)])[ECHO]["r1"]
    assert text.startswith("A fox. {answer}\n\nWhat of 1, {friend}?\n<<<")
    # In the very form that judges are asked for.
    verdicts = [parse_json(line) for line in text.splitlines() if line.startswith("{")]
    lists, pairs = load_judges()
    for verdict, judge in zip(verdicts, (pairs, pairs, lists), strict=True):
        validate(verdict, judge.schema.schema)
    assert [[one["better"] for one in verdict.values()] for verdict in verdicts[:2]] == [["A", "A"], ["B", "B"]]
    assert verdicts[2]["ranking"][0]["style"] == verdicts[2]["ranking"][0]["knowledge"] == 1


def test_the_echo_knows_no_more_than_a_system() -> None:
    plain, other = row(1), row(1, references=("Other.",), rolegpt="Baseline.", raw_reference="Plain.")
    assert answers([plain]) == answers([other])
    assert answers([row(1, role_description=None)])[ECHO]["r1"].startswith("Fox\n")
    # That of a long description keeps its claim.
    text = answers([row(1, role_description="long " * 4000, question="why? " * 4000)])[ECHO]["r1"]
    assert len(text) < LIMIT
    assert '"better": "B"' in make_harmless(text)
