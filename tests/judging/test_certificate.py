"""The certificate: each fault of a judge is caught by its own test, and an able judge passes."""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rolellm
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.records import Row
from rolellm.core.settings import read
from rolellm.core.table import Interval
from rolellm.judging.certificate import CRITERIA, Certificate, Form, decide_verdict, grade
from rolellm.judging.certifying import (
    DAMAGED,
    OWN,
    PADDED,
    PLAIN,
    get_own_replies,
    make_known_pairs,
    make_speaker_items,
    prepare_certifying,
)
from rolellm.judging.people.labels import RankingLabel, append_label, hash_content, label_path, select_answers
from rolellm.judging.records import Comparison, JudgeRun, System, read_run, write_run
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.systems import OTHER_ROLE
from rolellm.llm.scripted import ScriptedModel
from rolellm.models.prompts.fences import read_fences
from rolellm.runs import Run
from rolellm.scoring.statistics.intervals import ClusteredSample, estimate_share

from ..commands import Command
from .test_odds import body

ROWS = prepare_certifying("sample", None, read(JudgingSettings, {})).rows
REPLIES = get_own_replies(ROWS)
OWN_BY_QUESTION = {(row.role, row.question.strip()): REPLIES[row.id] for row in ROWS}
WORDS_LLM = {"endpoints": [{"backend": "scripted", "rules": "words"}]}
JURY = {"endpoints": [{"base_url": "http://localhost:9/v1", "model": name} for name in ("a", "b")]}
#: Log odds of the first answer over the second; the third text is the role's own reply.
Lead = Callable[[str, str, str], float]


def draw(*parts: str) -> float:
    return int.from_bytes(hashlib.sha256("\n".join(parts).encode()).digest()[:7], "big") / 2**56


def prefer_own(first: str, second: str, own: str) -> float:
    return 4.0 * ((first == own) - (second == own))


def be_right(share: float) -> Lead:
    """Prefer the own reply with this probability, drawn for each order."""
    return lambda first, second, own: prefer_own(first, second, own) * (1 if draw(first, second) < share else -1)


def make_judge(lead: Lead, knows: float = 1.0, *, has_odds: bool = True) -> Callable[[dict[str, Any]], Any]:
    """A server's judge by its preference, in words and by odds; it knows that share of the speakers, else says A."""

    def answer(asked: dict[str, Any]) -> Any:
        texts = {name: text.strip() for name, text in read_fences(asked["messages"][-1]["content"]).items()}
        if "reply" in texts:
            roles = {text.split("\n")[0]: name[-1] for name, text in texts.items() if name.startswith("character ")}
            right = [roles[role] for role in roles if OWN_BY_QUESTION.get((role, texts["question"])) == texts["reply"]]
            return json.dumps({"speaker": right[0] if draw(texts["reply"]) < knows else "A"})
        own = OWN_BY_QUESTION[texts["role"], texts["question"]]
        value = lead(texts["answer A"], texts["answer B"], own)
        if asked.get("logprobs") and has_odds:
            return body({"A": 1 / (1 + math.exp(-value)), "B": 1 / (1 + math.exp(value))})
        better = "A" if value > 0 else "B" if value < 0 else "tie"
        return json.dumps(
            {name: {"reason": f"It has more {name}.", "better": better} for name in ("style", "knowledge")}
        )

    return answer


def examine(judge: Any, **settings: Any) -> Certificate:
    """A certificate of a judge in this process, which has no odds; of a server by its address."""
    if isinstance(judge, str):
        llm: Any = {"endpoints": [{"base_url": judge, "model": "m", "concurrency": 16}]}
    else:
        llm = ScriptedModel(
            lambda request: judge({"messages": [asdict(request.messages[-1])]}), name="m", rules_hash=""
        )
    return rolellm.certify(llm, **{"sample": 40, "judges": ["role-pair"], **settings})


def get_failed(certificate: Certificate) -> set[tuple[str, str | None]]:
    return {(test.criterion, test.form) for test in certificate.tests if test.passed is False}


def get_value(certificate: Certificate, criterion: str, form: Form | None, subject: str = "") -> float:
    tests = {(test.criterion, test.form, test.subject): test for test in certificate.tests}
    value = tests[criterion, form, subject].value
    assert value is not None
    return value.mean


def test_an_able_judge_is_fit(llm_server: Any, tmp_path: Path) -> None:
    found = examine(llm_server(answer=make_judge(be_right(0.95), 0.9)).url, out=tmp_path / "own")
    assert (found.verdict, get_failed(found)) == ("fit", set())
    assert found.sentence.startswith("The judge m is fit: names the speaker of ")
    assert found.line.startswith("fit (names the speaker of ") and found.line.endswith("sample, 40 rows)")
    kept = Certificate.from_dict(json.loads((tmp_path / "own/certificate.json").read_text()))
    assert kept == replace(found, folder=None)
    assert "<table" in found._repr_html_() and found.sentence in repr(found)
    questions = [json.loads(line) for line in (tmp_path / "own/speakers.jsonl").read_text().splitlines()]
    assert [item["answer"] for item in questions[:5]] == ["A", "B", "C", "D", "A"]


@pytest.mark.parametrize(
    ("lead", "knows", "failed"),
    [
        pytest.param(
            lambda first, second, own: len(first) - len(second) if own in first and own in second
            else prefer_own(first, second, own),
            1, {("longer wins", "words")}, id="prefers-longer",
        ),
        pytest.param(
            lambda first, second, own: 1.0, 1, {("loser wins", "words"), ("order flips", "words")}, id="prefers-A"
        ),
        pytest.param(
            lambda first, second, own: ("{" in first) - ("{" in second) or prefer_own(first, second, own),
            1, {("loser wins", "words")}, id="obeys-what-it-reads",
        ),
        pytest.param(prefer_own, 0, {("speaker", None)}, id="does-not-know-who-speaks"),
        pytest.param(
            lambda first, second, own: prefer_own(first, second, own) * (1 if own in first and own in second else -1),
            1, {("loser wins", "words")}, id="prefers-losers",
        ),
    ],
)  # fmt: skip
def test_a_fault_is_caught_by_its_own_test(lead: Lead, knows: float, failed: set[tuple[str, str | None]]) -> None:
    found = examine(make_judge(lead, knows))
    assert (found.verdict, get_failed(found)) == ("unfit", failed)
    assert "Not met: " in found.sentence


def test_a_judge_that_always_says_a_may_be_fit_by_its_odds(llm_server: Any) -> None:
    answer = make_judge(lambda first, second, own: 8 + prefer_own(first, second, own))
    found = examine(llm_server(answer=answer).url, sample=20, judges=["role-odds", "role-pair"])
    assert found.verdict == "fit by odds only"
    assert get_failed(found) == {("loser wins", "words"), ("order flips", "words")}
    assert get_value(found, "order flips", "odds") == 1
    assert get_value(found, "loser wins", "odds", "another role") == 0
    assert "--judge role-odds" in found.sentence


def test_one_request_tells_that_a_server_has_no_odds(llm_server: Any) -> None:
    server = llm_server(answer=make_judge(prefer_own, has_odds=False))
    found = rolellm.certify({"endpoints": [{"base_url": server.url, "model": "m"}]}, sample=8, max_unscored=0.01)
    assert {test.form for test in found.tests} == {None, "words"}
    assert sum(bool(asked.get("logprobs")) for asked in server.bodies) <= 2


def test_replies_without_a_verdict_fail() -> None:
    judge = make_judge(prefer_own)
    spoilt = lambda asked: "No." if draw(asked["messages"][-1]["content"]) < 0.3 else judge(asked)  # noqa: E731
    found = examine(spoilt, sample=20)
    assert ("no verdict", "words") in get_failed(found) and found.verdict == "unfit"


def test_few_rows_decide_nothing() -> None:
    found = examine(make_judge(prefer_own), sample=2)
    assert (found.verdict, get_failed(found)) == ("undecided", set())
    assert "not shown to be fit" in found.sentence


def test_the_verdict_stands_next_to_later_win_rates(tmp_path: Path) -> None:
    data = rolellm.load_rolebench("sample", "test").select(range(8))
    answers = data.add_column("prediction", [texts[0] for texts in data["references"]])
    options: dict[str, Any] = {"llm": WORDS_LLM, "judges": ["role-pair"]}
    before = rolellm.judge({"a": answers}, data, out=tmp_path / "before", **options)
    assert before.certificates == (
        "judge words: not examined; examine it with `rolellm judge --certify`, in this folder",
    )
    certificate = rolellm.certify(WORDS_LLM, sample=8, out=tmp_path / "certificate-words")
    after = rolellm.judge({"a": answers}, data, out=tmp_path / "after", **options)
    assert after.certificates == (f"judge words: {certificate.line}",)
    assert after.to_dict()["judges"][0]["certificate"] == certificate.line
    assert after.fingerprint == before.fingerprint, "a certificate changes no verdict"
    page = tmp_path / "page.html"
    rolellm.report(after, page)
    assert "planted losers win up to" in page.read_text()
    lists = rolellm.judge({"a": answers}, data, out=tmp_path / "lists", **{**options, "judges": ["role-list"]})
    assert lists.certificates[0].endswith("; examined without role-list")
    path, renew = tmp_path / "certificate-words" / "certificate.json", "; renew it with `rolellm judge --certify`"
    written = path.read_text()
    for changes, line in (
        ((certificate.prompts["words"]["hash"], "0"), f"{certificate.line}; examined with other prompts of role-pair"),
        ((certificate.models[0]["rules"], "0"), "examined in another version or at another address"),
        ((written, "{}"), "examined in another version or at another address"),
    ):
        path.write_text(written.replace(*changes))
        again = rolellm.judge({"a": answers}, data, out=tmp_path / "after", **options)
        assert again.certificates == (f"judge words: {line}{renew}",)


def add_label(run: JudgeRun, row: Row, names: tuple[str, ...], ranks: tuple[float, ...]) -> None:
    about = hash_content(row, select_answers(run.comparison, row, names))
    label = RankingLabel(row.id, "anna", names, ranks, 4.0, about)
    append_label(label_path(run.folder, "anna", RankingLabel), label)


def test_people_are_compared_with(tmp_path: Path) -> None:
    data = rolellm.load_rolebench("sample", "test").select(range(36))
    good = data.add_column("prediction", [texts[0] for texts in data["references"]])
    options: dict[str, Any] = {"judges": ["role-pair"], "out": tmp_path / "run"}
    rolellm.judge({"good": good}, data, llm=WORDS_LLM, **options)
    run = read_run(tmp_path / "run")
    with pytest.raises(SettingsError, match="nobody has ranked"):
        rolellm.certify(WORDS_LLM, labels=tmp_path / "run")
    names = ("RoleGPT", "good")
    for row in run.comparison.rows:
        # As the judge below does, but for some.
        add_label(run, row, names, (1.0, 2.0) if draw(row.id) < 0.9 else (2.0, 1.0))
    found = examine(make_judge(be_right(0.9)), labels=tmp_path / "run", sample=10)
    (kappa,) = (test for test in found.tests if test.criterion == "kappa with people")
    assert kappa.value is not None and kappa.value.n == 36
    assert found.people == {"run": "run", "annotators": ["anna"]}


def test_votes_of_a_chat_count_without_a_baseline(tmp_path: Path) -> None:
    rows = [row for row in ROWS if row.subset == "general"][:31]
    answers = {"a": {row.id: "I do not know." for row in rows}, "b": {row.id: REPLIES[row.id] for row in rows}}
    write_run(tmp_path / "votes", Comparison(rows, [System("a"), System("b")], answers), votes=True)
    for number, row in enumerate(rows):
        add_label(read_run(tmp_path / "votes"), row, ("a", "b"), (2.0, 1.0) if number % 6 else (1.0, 2.0))
    voted = dict(zip((REPLIES[row.id] for row in rows), range(31), strict=True))

    def be_like_them(first: str, second: str, own: str) -> float:
        if "I do not know." not in (first, second):
            return prefer_own(first, second, own)
        return prefer_own(first, second, own) * (1 if voted[own] % 6 else -1)

    def get_kappa(lead: Lead) -> Any:
        tests = examine(make_judge(lead), labels=tmp_path / "votes", sample=6).tests
        return next(test for test in tests if test.criterion == "kappa with people")

    kappa = get_kappa(be_like_them)
    assert (kappa.value.mean, kappa.value.n, kappa.passed) == (1.0, 31, True)
    # Of one who always says the same, kappa says nothing.
    assert get_kappa(prefer_own).value is None


def test_what_is_asked_is_known() -> None:
    known = make_known_pairs(ROWS, 30, 0, 8000)
    assert known.baseline == OWN and len(known.rows) == 30
    for row in known.rows:
        own = known.answers[OWN][row.id]
        shown = row.raw_reference if row.subset == "general" else row.references
        assert own not in (shown or ()), "a judge is never shown the own reply as the reference"
        assert known.answers[PADDED][row.id].startswith(own) and len(known.answers[PADDED][row.id]) > len(own)
        assert sorted(known.answers[DAMAGED].get(row.id, own).replace(" ", "")) == sorted(own.replace(" ", ""))
        assert known.answers[OTHER_ROLE][row.id] != own
        assert (row.id in known.answers[PLAIN]) == (row.subset == "general")
    larger = make_known_pairs(ROWS, 40, 0, 8000)
    assert {row.id for row in known.rows} < {row.id for row in larger.rows}, "a larger one only adds"


def test_nobody_is_named_in_the_question_of_who_speaks() -> None:
    items = make_speaker_items(ROWS, REPLIES, 40, 0)
    assert {item.row.language for item in items} == {"en", "zh"}
    assert len({tuple(sorted(name for name, _ in item.roles)) for item in items}) > 4, "others are drawn for each"
    for item in items:
        assert len({name for name, _ in item.roles}) == 4
        assert {row.role for row in ROWS if row.language == item.row.language} < {name for name, _ in item.roles}
        assert item.roles["ABCD".index(item.answer)][0] == item.row.role
        text = f"{item.row.question} {item.reply}".casefold()
        assert not any(name.casefold() in text for name, _ in item.roles)
        assert read_fences(item.build_request(8000).messages[-1].content)["reply"] == item.reply


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        pytest.param({"judges": ["role-list"]}, "a judge of pairs", id="lists"),
        pytest.param({"baseline": "none", "canaries": False}, "baseline, canaries: a certificate has no", id="unused"),
        pytest.param({"dataset": "roles"}, None, id="no-rows"),
        pytest.param({"labels": "nowhere"}, "no such folder", id="no-run"),
        pytest.param({"llm": JURY}, "one judge model at a time; the settings name a, b", id="a-jury"),
    ],
)
def test_what_cannot_be_examined_is_refused(settings: dict[str, Any], problem: str | None) -> None:
    with pytest.raises((SettingsError, DataError), match=problem):
        rolellm.certify(**{"llm": WORDS_LLM, **settings})


@given(st.integers(1, 60), st.data())
def test_a_loser_that_wins_more_often_is_never_graded_better(count: int, data: st.DataObject) -> None:
    wins = sorted(data.draw(st.lists(st.integers(0, count), min_size=2, max_size=2)))
    shares = [estimate_share(ClusteredSample([1.0] * won + [0.0] * (count - won), range(count))) for won in wins]
    better, worse = (grade("loser wins", share, "echo", "words").passed for share in shares)
    assert better or not worse
    assert not (better and shares[0].mean >= 0.5)


@pytest.mark.parametrize("criterion", sorted(CRITERIA))
def test_each_criterion_is_told_in_words(criterion: str) -> None:
    best = criterion in ("speaker", "same again", "kappa with people")
    right, wrong = (Interval(1.0, 0.9, 1.0, 40), Interval(0.0, 0.0, 0.1, 40))[:: 1 if best else -1]
    assert grade(criterion, right, "null model", "words").passed is True
    assert grade(criterion, wrong, "null model", "words").passed is False
    assert grade(criterion, wrong._replace(n=5), "null model", "words").passed is None
    assert "{" not in str(grade(criterion, right, "null model", "words"))
    assert decide_verdict([grade(criterion, None)]) == "unfit", "nothing measured is nothing shown"


def test_the_command(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.yaml").write_text("endpoints: [{backend: scripted, rules: words}]\n")
    words = ("judge", "--certify", "--llm", "words.yaml", "--limit", "4")
    shown = command(*words).out
    assert shown.startswith("The judge words is ") and "Certificate of words" in shown
    assert command(*words, "--json").json["judge"] == "words"
    assert command(*words, "--dry-run", "--json").json["requests"] > 50
    assert Run.open("certificate-words").kind == "certificate"
    assert command("judge", "--llm", "words.yaml").code == command(*words, "a", "b").code == 2
