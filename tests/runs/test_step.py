"""Stages of our own: rounds, two models, dry runs, resuming, and folders that hold something else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rolellm.characters.folder import write_character
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.records import Profile
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer, Outcome, Reply, Request, RunOptions, UnacceptableError, user
from rolellm.llm.scripted import ScriptedModel
from rolellm.runs import (
    Plan,
    Records,
    Round,
    Run,
    Step,
    check_run_folder,
    estimate_step,
    find_runs,
    plan_rounds,
    run_step,
)


def llm_of(answer: Callable[[Request], Any]) -> LLM:
    llm = LLM.of(ScriptedModel(answer, rules_hash="tests"))
    llm.options = RunOptions(show_progress=False, max_attempts=2)
    return llm


def ask(text: str) -> Request:
    return Request((user(text),))


def no_anger(request: Request, reply: Reply) -> str:
    if "!" in reply.text:
        raise UnacceptableError("shouts")
    return reply.text


@dataclass(frozen=True)
class Gossip(Step[list[str]]):
    """Two rounds, the second made of the first; then another model is asked, one outcome at a time."""

    judge: LLM | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    kind: ClassVar[str] = "gossip"

    def plan(self, llm: LLM) -> Plan[list[str]]:
        first = yield Round([ask("a"), ask("b")], no_anger, stand_in=lambda request: "?")
        heard = [outcome.value for outcome in first if isinstance(outcome, Answer)]
        second = yield Round([ask(f"and {text}") for text in heard], stand_in=lambda request: "!")
        heard += [outcome.value for outcome in second if isinstance(outcome, Answer)]
        if self.judge is not None:
            verdicts: dict[int, Outcome[str]] = {}
            asked = (ask(f"true? {text}") for text in heard)
            none = yield Round(asked, each=verdicts.__setitem__, total=len(heard), llm=self.judge, folder="judge")
            assert none == []
            heard += [outcome.value for _, outcome in sorted(verdicts.items()) if isinstance(outcome, Answer)]
        return heard

    def records(self, heard: list[str]) -> Records:
        return {"heard.jsonl": ({"text": text} for text in heard), "all.json": {"heard": heard}}

    def summarize(self, heard: list[str]) -> dict[str, Any]:
        return {"heard": len(heard)}


def echo(request: Request) -> str:
    return f"<{request.messages[-1].content}>"


def test_rounds_build_on_each_other_and_other_models_keep_a_journal_of_their_own(tmp_path: Path) -> None:
    run = run_step(Gossip(llm_of(lambda _: "yes")), llm_of(echo), tmp_path / "run")
    assert run.result == ["<a>", "<b>", "<and <a>>", "<and <b>>", *["yes"] * 4]
    assert [line["text"] for line in run.records()] == run.result
    assert (run.kind, run.asked, run.failed, run.summary) == ("gossip", 8, 0, {"heard": 8})
    assert run.manifest["spent"]["calls"] == 8
    assert (tmp_path / "run" / "judge" / "journal.jsonl").is_file()
    again = run_step(Gossip(llm_of(lambda _: "yes")), llm_of(echo), tmp_path / "run")
    assert (again.result, again.manifest["spent"]["calls"]) == (run.result, 0)


def test_a_run_is_found_and_shown(tmp_path: Path) -> None:
    made = run_step(Gossip(), llm_of(echo), tmp_path / "run")
    (found,) = find_runs(tmp_path, "gossip")
    assert found.manifest == made.manifest and find_runs(tmp_path, "respond") == []
    assert found.to_dict() == made.to_dict() and found.to_dict()["heard"] == 4
    assert list(found.to_pandas()["text"]) == made.result
    assert "4 of 4 answered" in repr(found) and "<table" in found._repr_html_()
    with pytest.raises(DataError, match="not a finished run"):
        Run.open(tmp_path)


def test_a_dry_run_goes_on_with_stand_ins(tmp_path: Path) -> None:
    def never(request: Request) -> str:
        raise AssertionError("asked")

    rounds = plan_rounds(Gossip(llm_of(never)), llm_of(never))
    texts = [request.messages[-1].content for planned in rounds for request in planned.requests]
    assert texts == ["a", "b", "and ?", "and ?", "true? ?", "true? ?", "true? !", "true? !"]
    assert estimate_step(Gossip(llm_of(never)), llm_of(never)).requests == 8


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    check_run_folder(tmp_path / "not there", "respond")
    run_step(Gossip(), llm_of(echo), tmp_path / "run")
    check_run_folder(tmp_path / "run", "gossip")
    with pytest.raises(SettingsError, match="holds a run of 'gossip'"):
        check_run_folder(tmp_path / "run", "respond")
    with pytest.raises(SettingsError, match=r"holds other files \(run\)"):
        check_run_folder(tmp_path, "gossip")
    home = write_character(Profile("Ada", "en"), tmp_path / "ada")
    with pytest.raises(SettingsError, match="holds a character"):
        check_run_folder(home, "instruct")
    check_run_folder(home / "respond-questions", "respond")
    with pytest.raises(SettingsError, match=r"a release only finds runs .* name it .*respond-questions"):
        check_run_folder(home / "questions", "respond")


def test_without_a_model_a_plan_that_asks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="a model is needed"):
        run_step(Gossip(), None, tmp_path / "run")
