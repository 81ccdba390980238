"""Runs that are started, stopped, damaged, locked and continued in any order: nothing kept is paid for twice."""

import shutil
import signal
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from rolellm.core import locks
from rolellm.core.errors import RoleLLMWarning, RunInUseError, SettingsError, StoppedShortError
from rolellm.llm.client import FAILED, Client
from rolellm.llm.journal import DAMAGED, JOURNAL, parse_record
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer, CallError, Price, Reply, Request, RunOptions, UnacceptableError, user
from rolellm.llm.scripted import ScriptedModel
from rolellm.runs import Plan, Records, Round, Run, Step, run_step

TEXTS = [f"question {number}" for number in range(5)]
ATTEMPTS = 2
GOOD, ANGRY = "Aye.", "No!"


def accept_calm(request: Request, reply: Reply) -> str:
    if "!" in reply.text:
        raise UnacceptableError("shouts")
    return reply.text


@dataclass(frozen=True)
class Questions(Step[list[str]]):
    """Two rounds, the second about what the first brought."""

    texts: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    kind: ClassVar[str] = "questions"

    def plan(self, llm: LLM) -> Plan[list[str]]:
        answered: list[str] = []
        texts = list(self.texts)
        for _ in range(2):
            requests = [Request((user(text),), tag=text) for text in texts]
            outcomes = yield Round(requests, accept_calm)
            texts = [f"and {item.request.tag}" for item in outcomes if isinstance(item, Answer)]
            answered += [item.request.tag for item in outcomes if isinstance(item, Answer)]
        return answered

    def records(self, result: list[str]) -> Records:
        return {"answered.jsonl": [{"text": text} for text in result]}


@dataclass(frozen=True)
class OtherQuestions(Questions):
    kind: ClassVar[str] = "others"


class Resuming(RuleBasedStateMachine):
    """A run folder, a model in some mood, and what the journal must hold of its replies."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp()) / "run"
        self.texts = list(TEXTS[:4])
        self.angry = {TEXTS[1]}
        self.down = {TEXTS[2]}
        self.kept: dict[str, list[str]] = defaultdict(list)
        self.calls_left: int | None = None
        self.calls = 0
        self.cost = 0.0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder.parent)

    def _answer(self, request: Request) -> str:
        text = request.tag
        self.calls += 1
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left == 0:
                signal.raise_signal(signal.SIGINT)
        if text in self.down:
            raise CallError("bad_request", "down on purpose", retry=False)
        reply = ANGRY if text in self.angry else GOOD
        self.kept[text].append(reply)
        return reply

    def _make_llm(self, **options: Any) -> LLM:
        model = ScriptedModel(self._answer, rules_hash="1", concurrency=3, price=Price(completion=1e6))
        llm = LLM.of(model)
        llm.options = RunOptions(show_progress=False, max_attempts=ATTEMPTS, **options)
        return llm

    def _run(self, **options: Any) -> Run[list[str]]:
        with warnings.catch_warnings():
            # That lines of the journal were damaged is said each time.
            warnings.simplefilter("ignore", RoleLLMWarning)
            return run_step(Questions(tuple(self.texts)), self._make_llm(**options), self.folder)

    def _expect(self, text: str, retries: bool) -> tuple[bool, int]:
        """Whether a question gets an answer, and how many calls that takes."""
        replies = self.kept[text]
        if GOOD in replies:
            return True, 0
        left = ATTEMPTS if retries else max(ATTEMPTS - len(replies), 0)
        if left == 0:
            return False, 0
        if text in self.down:
            return False, 1
        return text not in self.angry, left if text in self.angry else 1

    @rule(retries=st.booleans())
    def finish(self, retries: bool) -> None:
        answered: list[str] = []
        calls = 0
        texts = self.texts
        for _ in range(2):
            expected = {text: self._expect(text, retries) for text in texts}
            calls += sum(number for _, number in expected.values())
            texts = [text for text in texts if expected[text][0]]
            answered += texts
            texts = [f"and {text}" for text in texts]
        before = self.calls
        run = self._run(retry_failed=retries)
        assert run.result == answered
        assert self.calls - before == run.manifest["spent"]["calls"] == calls
        assert run.failed == run.asked - len(answered)
        assert (self.folder / FAILED).exists() == bool(run.failed)
        assert [line["text"] for line in run.records()] == answered
        assert run.manifest["spent"]["cost"] == self._check_cost()

    def _check_cost(self) -> float:
        """Open the folder as a run does; what was spent is never forgotten."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RoleLLMWarning)
            with Client(self.folder, self._make_llm().models) as client:
                cost = client.spent.cost
        assert cost >= self.cost - 1e-9
        self.cost = cost
        return cost

    @rule(calls=st.integers(1, 6))
    def interrupt(self, calls: int) -> None:
        self.calls_left = calls
        try:
            run = self._run()
        except StoppedShortError as error:
            assert " kept in " in str(error) and "Resume with: the same command" in str(error)
        else:
            assert self.calls_left > 0 or run.manifest["spent"]["calls"] == calls
        self.calls_left = None
        self._check_cost()

    @rule(share=st.sampled_from([0, 1, 200, 600]))
    def run_out_of_money(self, share: int) -> None:
        budget = self.cost + share
        try:
            self._run(budget=budget)
        except StoppedShortError as error:
            assert "a larger --budget" in str(error)
        assert self._check_cost() <= budget + 1e-9

    @rule(text=st.sampled_from(TEXTS))
    def change_questions(self, text: str) -> None:
        if text not in self.texts:
            self.texts.append(text)
        elif len(self.texts) > 1:
            self.texts.remove(text)

    @rule(text=st.sampled_from(TEXTS), mood=st.sampled_from(["angry", "down", "well"]))
    def change_mood(self, text: str, mood: str) -> None:
        for name, texts in (("angry", self.angry), ("down", self.down)):
            texts.discard(text)
            if name == mood:
                texts.add(text)

    @precondition(lambda self: self.folder.is_dir())
    @rule()
    def run_two_at_once(self) -> None:
        with pytest.MonkeyPatch.context() as patch, locks.lock_folder(self.folder):
            patch.setattr(locks, "_PATIENCE", 0.01)
            with pytest.raises(RunInUseError, match="in use by another run"):
                self._run()

    @precondition(lambda self: (self.folder / "manifest.json").exists())
    @rule()
    def run_another_kind(self) -> None:
        with pytest.raises(SettingsError, match="holds a run of 'questions'"):
            run_step(OtherQuestions(tuple(self.texts)), self._make_llm(), self.folder)

    @precondition(lambda self: (self.folder / JOURNAL).exists() and (self.folder / JOURNAL).stat().st_size)
    @rule(
        position=st.floats(0, 0.999),
        kind=st.sampled_from(["flip", "cut", "zero", "drop", "insert"]),
        length=st.sampled_from([1, 8, 200]),
        noise=st.binary(min_size=1, max_size=40),
    )
    def damage(self, position: float, kind: str, length: int, noise: bytes) -> None:
        path = self.folder / JOURNAL
        content = path.read_bytes()
        start = int(position * len(content))
        end = min(start + length, len(content))
        damages = {
            "flip": content[:start] + bytes([content[start] ^ 1]) + content[start + 1 :],
            "cut": content[:start],
            "zero": content[:start] + bytes(end - start) + content[end:],
            "drop": content[:start] + content[end:],
            "insert": content[:start] + noise + content[start:],
        }
        path.write_bytes(damages[kind])
        # What the next run can still read is what it must not pay for again.
        self.kept = defaultdict(list)
        for line in path.read_bytes().splitlines(keepends=True):
            record = parse_record(line)
            if record is not None and record["kind"] == "reply":
                self.kept[record["tag"]].append(record["raw"]["text"])
        # A call whose reply is gone counts as the most that it can have cost.
        self._check_cost()

    @precondition(lambda self: (self.folder / DAMAGED).exists())
    @rule()
    def read_what_was_set_aside(self) -> None:
        lines = (self.folder / DAMAGED).read_bytes().splitlines(keepends=True)
        assert lines and all(parse_record(line) is None for line in lines)


TestResuming = Resuming.TestCase
TestResuming.settings = settings(max_examples=15, stateful_step_count=15)


def test_a_file_that_another_run_writes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_PATIENCE", 0.01)
    name = ".p.jsonl.lock"
    with (
        locks.lock_folder(tmp_path, name),
        pytest.raises(RunInUseError, match=r"/p\.jsonl is in use by .* choose another file"),
        locks.lock_folder(tmp_path, name),
    ):
        pass
