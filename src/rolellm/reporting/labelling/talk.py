"""The page of ``rolellm chat --web``: Gradio's chat with a role, or with two models and a blind vote on their replies.

Votes are kept as a judging run without judges (`rolellm.judging.records`), for ``rolellm label --agreement``: a row for
each vote, both replies to its message, and which was preferred.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from rolellm.core.errors import RoleLLMError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.locks import lock_folder
from rolellm.core.records import Row
from rolellm.judging.people.labels import RankingLabel, append_label, check_annotator, hash_content, label_path
from rolellm.judging.records import RESULT, Comparison, System, read_run, write_run
from rolellm.llm.model import Finish, Message, assistant, user
from rolellm.playing.player import NOTES, RolePlayer

#: Seconds between two views of a reply: each is sent, and drawn, whole.
_PAUSE = 0.1


class _ShownReplies(NamedTuple):
    """Replies as the page shows them: the models' names in this order, and when the replies were there."""

    names: tuple[str, ...]
    ready: float


class TalkPage:
    """The page.

    Args:
        players: By name, one or two models that play one role.
        votes: The folder of the votes.
        annotator: Who votes.

    Raises:
        SettingsError: When the folder is not one of votes.
        DataError: For damaged votes.
    """

    def __init__(self, players: Mapping[str, RolePlayer], votes: Path, annotator: str) -> None:
        self._players, self._votes = players, votes
        self._annotator = check_annotator(annotator)
        self._player = next(iter(players.values()))
        self._repeats = Counter[Sequence[Message]]()
        self._shown: dict[tuple[str, ...], _ShownReplies] = {}
        _read_votes(votes)

    def build(self) -> gr.Blocks:
        """Build the page."""
        is_blind = len(self._players) > 1
        greeting = [{"role": turn.role, "content": turn.content} for turn in self._player.opening]
        chatbot = gr.Chatbot(
            greeting,
            label=self._player.role,
            scale=1,
            buttons=["copy", "copy_all"],
            latex_delimiters=[],
            group_consecutive_messages=False,
            # A thumb up is a vote.
            feedback_options=("Like",),
        )
        hint = (
            "Two models reply, in random order. A thumb up under the better reply keeps your vote and names its model."
        )
        page = gr.ChatInterface(
            self.reply,
            chatbot=chatbot,
            title=self._player.role,
            description=hint if is_blind else None,
            editable=True,
            analytics_enabled=False,
            api_visibility="private",
        )
        with page:
            chatbot.clear(lambda: greeting, None, page.chatbot_value)
            if is_blind:
                chatbot.like(self.vote, chatbot)
        return page

    def reply(self, message: str, history: list[dict[str, Any]]) -> Iterator[list[str]]:
        """Yield what the page shows as replies arrive, one model after the other, in random order."""
        turns = [(item["role"], _read_text(item)) for item in history]
        names = random.sample(list(self._players), len(self._players))
        replies: list[str] = []
        try:
            for name in names:
                replies.append("")
                due = 0.0
                for piece in self._answer(name, turns, message):
                    replies[-1] += piece
                    if time.monotonic() > due:
                        due = time.monotonic() + _PAUSE
                        yield replies
        except RoleLLMError as error:
            # The reason may name the model.
            reason = "there was no reply; ask each model alone to learn why" if len(names) > 1 else str(error)
            raise gr.Error(escape(reason), print_exception=False) from error
        self._shown[message, *replies] = _ShownReplies(tuple(names), time.monotonic())
        yield replies

    def _answer(self, name: str, turns: Sequence[tuple[str, str]], message: str) -> Iterator[str]:
        player = self._players[name]
        ends: list[Finish] = []
        own_turns = self._select_turns(name, turns)
        prompt = player.prompt([*own_turns, user(message)])
        if prompt.warning:
            gr.Warning(prompt.warning)
        repeat = self._repeats[prompt.messages]
        self._repeats[prompt.messages] += 1
        yield from player.answer(prompt, repeat=repeat, ended=ends.append)
        if ends and ends[0] in NOTES:
            gr.Info(NOTES[ends[0]])

    def _select_turns(self, name: str, turns: Sequence[tuple[str, str]]) -> list[Message]:
        """Select what a model said itself, and what was said to it; the first reply where that is not known."""
        selected: list[Message] = []
        message, replies = "", list[str]()
        for role, text in [*turns, ("user", "")]:
            if role != "user":
                replies.append(text)
                continue
            if replies:
                shown = self._shown.get((message, *replies))
                index = shown.names.index(name) if shown else 0
                selected.append(assistant(replies[index]))
            message, replies = text, []
            selected.append(user(text))
        return selected[:-1]

    def vote(self, history: list[dict[str, Any]], like: gr.LikeData) -> None:
        """Keep a vote for a reply, and name its model."""
        index = like.index if isinstance(like.index, int) else like.index[0]
        start = index
        while start > 0 and history[start]["role"] != "user":
            start -= 1
        texts = tuple(map(_read_text, history[start : start + 3]))
        shown = self._shown.get(texts)
        if shown is None:
            raise gr.Error("there is no vote on this reply; say something and wait for both replies")
        message, *replies = texts
        names = shown.names
        preferred = index - start - 1
        sheet = self._player.part.sheet
        answers = dict(zip(names, replies, strict=True))
        digest = hash_json([message, *sorted(replies)])
        row_id = f"vote-{digest[:12]}"
        about = sheet.full_description
        row = Row(row_id, sheet.role, sheet.language, "general", message, (), role_description=about)
        ranks = (1.0, 2.0) if preferred == 0 else (2.0, 1.0)
        seconds = round(time.monotonic() - shown.ready, 1)
        content = hash_content(row, answers)
        label = RankingLabel(row.id, self._annotator, names, ranks, seconds, content)
        try:
            _append_vote(self._votes, row, answers, label)
        except RoleLLMError as error:
            raise gr.Error(escape(str(error)), print_exception=False) from error
        gr.Info(escape(f"Vote kept in {self._votes}: {names[preferred]} is better."))


def _read_text(item: Mapping[str, Any]) -> str:
    """Read a message's text, which Gradio gives whole or in parts."""
    content = item["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content)


def _read_votes(folder: Path) -> Comparison:
    """Read the votes in a folder so far."""
    if not (folder / RESULT).is_file():
        files = list(folder.iterdir()) if folder.exists() else []
        if any(file.name != ".lock" for file in files):
            raise SettingsError(f"{folder} holds other files; name another folder with --set votes=FOLDER")
        return Comparison([], [], {})
    run = read_run(folder)
    if not run.manifest.get("votes"):
        raise SettingsError(f"{folder} is a run with judges, not a folder of votes; name another: --set votes=FOLDER")
    return run.comparison


def _append_vote(folder: Path, row: Row, answers: Mapping[str, str], label: RankingLabel) -> None:
    with lock_folder(folder):
        before = _read_votes(folder)
        systems = {system.name: system for system in before.systems}
        all_answers = {name: dict(texts) for name, texts in before.answers.items()}
        for name, text in answers.items():
            systems[name] = System(name)
            all_answers.setdefault(name, {})[row.id] = text
        rows = [voted for voted in before.rows if voted.id != row.id]
        comparison = Comparison([*rows, row], list(systems.values()), all_answers)
        write_run(folder, comparison, votes=True)
        path = label_path(folder, label.annotator, RankingLabel)
        append_label(path, label)
