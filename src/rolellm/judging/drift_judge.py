"""A judge model reads the sessions: three consistencies after arXiv 2511.00222, and a rubric for each stretch of talk.

What it finds goes into the values of `rolellm.judging.drift.Measured`: ``prompt_to_line`` and ``line_to_line`` of every
reply; ``questions`` and the grades, scaled to 0 to 1, of the last reply of each stretch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rolellm.construct.cards.convert import user_name
from rolellm.judging.drift import Measured, Talk, windows
from rolellm.judging.prompts import fenced, nonce, show
from rolellm.llm.client import Client
from rolellm.llm.llm import LLM
from rolellm.llm.model import Accept, Answer, Outcome, Reply, Request, Sampling, Schema, system, user
from rolellm.llm.structured import accept_json, strict
from rolellm.prompts.render import load_template

GRADES: Final = ("character", "knowledge", "coherence", "interest")
#: Greedy, with room for reasons (our choice).
_SAMPLING: Final = Sampling(temperature=0.0, top_p=1.0, max_tokens=500)
#: Maximum characters of a line and of the description that a judge is shown, and maximum earlier lines (our choice).
_LINE, _DESCRIPTION, _EARLIER = 800, 4000, 20


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


_TEXT: Final = {"type": "string"}
_VERDICT: Final = _object(reason=_TEXT, consistent={"type": "boolean"})
_GRADE: Final = _object(reason=_TEXT, grade={"type": "integer", "enum": [1, 2, 3, 4, 5]})
_WORDS: Final = {"type": "string", "enum": ["agrees", "contradicts", "silent"]}
_SCHEMAS: Final[Mapping[str, Schema]] = {
    name: strict(Schema(f"drift_{name}", schema))
    for name, schema in {
        "line": _object(description=_VERDICT, earlier=_VERDICT),
        "session": _object(**dict.fromkeys(GRADES, _GRADE)),
        "questions": _object(questions={"type": "array", "items": _object(question=_TEXT, answer=_TEXT)}),
        "answers": _object(answers={"type": "array", "items": _WORDS}),
    }.items()
}


def _request(talk: Talk, name: str, tag: str, /, **pieces: tuple[str, str]) -> Request:
    """A request of a template; each piece is a name for its fence, and a text."""
    mark = nonce(*(text for _, text in pieces.values()))
    told = load_template(talk.language, "drift_system").text
    asked = load_template(talk.language, f"drift_{name}").fill(
        mark=mark, **{slot: fenced(title, text, mark) for slot, (title, text) in pieces.items()}
    )
    return Request((system(told), user(asked)), _SAMPLING, schema=_SCHEMAS[name], tag=f"{name}/{tag}")


def _described(talk: Talk) -> tuple[str, str]:
    return "character", show(f"{talk.role}\n{talk.meta.description}", _DESCRIPTION).text


def _lines(lines: Sequence[str]) -> str:
    return "\n".join(f"{place}. {show(line, _LINE).text}" for place, line in enumerate(lines, start=1)) or "–"


def line_request(talk: Talk, turn: int) -> Request:
    """Whether a reply goes with the description, and with what the role said before.

    Args:
        talk: The session.
        turn: Which reply, from 1.
    """
    earlier = talk.replies[max(turn - 1 - _EARLIER, 0) : turn - 1]
    line = show(talk.replies[turn - 1], _LINE).text
    pieces = {"earlier": ("earlier lines", _lines(earlier)), "line": ("line", line)}
    return _request(talk, "line", f"{talk.id}/{turn}", description=_described(talk), **pieces)


def session_request(talk: Talk, first: int, last: int) -> Request:
    """Grades for the turns from one to another, both included."""
    start = len(talk.messages) - 2 * len(talk.replies)
    said = talk.messages[max(start, 0) + 2 * (first - 1) : max(start, 0) + 2 * last]
    names = {"user": user_name(talk.language, talk.role), "assistant": talk.role}
    text = "\n".join(f"{names.get(one.role, one.role)}: {show(one.content, _LINE).text}" for one in said)
    return _request(talk, "session", f"{talk.id}/{last}", description=_described(talk), talk=("talk", text))


def questions_request(talk: Talk) -> Request:
    """Questions about a role that its description answers; the same for all its sessions."""
    return _request(talk, "questions", talk.role, description=_described(talk))


def answers_request(talk: Talk, first: int, last: int, questions: str) -> Request:
    """What the role's lines say on some questions."""
    lines = _lines(talk.replies[first - 1 : last])
    pieces = {"lines": ("lines", lines), "questions": ("questions", questions)}
    return _request(talk, "answers", f"{talk.id}/{last}", **pieces)


def _accept() -> Accept[Any]:
    takes = {f"drift_{name}": accept_json(schema, lambda value: value) for name, schema in _SCHEMAS.items()}

    def accept(request: Request, reply: Reply) -> Any:
        return takes[request.schema.name if request.schema else ""](request, reply)

    return accept


def _stretches(talks: Sequence[Talk]) -> list[tuple[Talk, int, int]]:
    return [
        (talk, first, min(last, len(talk.replies)))
        for talk in talks
        for first, last in windows(talks)
        if first <= len(talk.replies)
    ]


def planned(talks: Sequence[Talk]) -> list[Request]:
    """What `judge_talks` asks, for an estimate; the questions are not known yet, and left out of the prompts."""
    known = [session_request(*one) for one in _stretches(talks)]
    known += [answers_request(*one, "–") for one in _stretches(talks)]
    known += {request.prompt_hash: request for request in map(questions_request, talks)}.values()
    return known + [line_request(talk, turn) for talk in talks for turn in range(1, len(talk.replies) + 1)]


def judge_talks(talks: Sequence[Talk], measured: Sequence[Measured], folder: Path, llm: LLM) -> dict[str, Any]:
    """Ask a judge about every reply and every stretch of some sessions; its verdicts go into the values.

    Args:
        talks: The sessions, of one system.
        measured: Their replies.
        folder: Keeps the journal.
        llm: Who judges.

    Returns:
        What was spent, and how many requests have no verdict.

    Raises:
        StoppedShortError: As `rolellm.llm.client.Client.ask`.
        EndpointError: As `rolellm.llm.client.Client.ask`.
    """
    values = {(one.session, one.turn): one.values for one in measured}
    turns = [(talk, turn) for talk in talks for turn in range(1, len(talk.replies) + 1)]
    parts, by_role = _stretches(talks), {request.tag: request for request in map(questions_request, talks)}
    with Client(folder, llm.models, llm.options) as client:
        accept = _accept()
        asked = [line_request(*one) for one in turns]
        asked += [session_request(*one) for one in parts]
        found: list[Outcome[Any]] = client.ask([*asked, *by_role.values()], accept, label="judging")
        lines, grades, made = found[: len(turns)], found[len(turns) : len(asked)], found[len(asked) :]
        for (talk, turn), outcome in zip(turns, lines, strict=True):
            if isinstance(outcome, Answer):
                verdict = outcome.value
                values[talk.id, turn]["prompt_to_line"] = float(verdict["description"]["consistent"])
                if turn > 1:
                    values[talk.id, turn]["line_to_line"] = float(verdict["earlier"]["consistent"])
        for (talk, _, last), outcome in zip(parts, grades, strict=True):
            if isinstance(outcome, Answer):
                graded = {name: (outcome.value[name]["grade"] - 1) / 4 for name in GRADES}
                values[talk.id, last] |= {f"rubric_{name}": grade for name, grade in graded.items()}
        questions = {
            outcome.request.tag: "\n".join(
                f"{place}. {show(one['question'], 300).text} ({show(one['answer'], 200).text})"
                for place, one in enumerate(outcome.value["questions"][:5], start=1)
            )
            for outcome in made
            if isinstance(outcome, Answer) and outcome.value["questions"]
        }
        put = [(one, told) for one in parts if (told := questions.get(questions_request(one[0]).tag))]
        answers = client.ask([answers_request(*one, told) for one, told in put], accept, label="answering")
        for ((talk, _, last), _), outcome in zip(put, answers, strict=True):
            given = outcome.value["answers"] if isinstance(outcome, Answer) else []
            if said := given.count("agrees") + given.count("contradicts"):
                values[talk.id, last]["questions"] = given.count("agrees") / said
        unscored = sum(not isinstance(outcome, Answer) for outcome in [*found, *answers])
        return {"unscored": unscored, "of": len(found) + len(answers), "spent": client.spent.to_dict()}
