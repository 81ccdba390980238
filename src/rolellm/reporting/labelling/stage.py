"""The page of ``rolellm scene --web``: a scene as it is played, and a box for the person who takes a part."""

from __future__ import annotations

import re
from html import escape
from queue import Queue
from typing import Any, Final
from urllib.parse import quote

import gradio as gr

from rolellm.characters.folder import find_picture
from rolellm.playing.thoughts import split_thoughts
from rolellm.reporting.labelling.talk import make_box, make_chatbot
from rolellm.scenes.scene import Scene
from rolellm.scenes.visibility import SceneTurn

#: Seconds between two looks for new turns.
_PAUSE: Final = 0.5
_ACTION: Final = re.compile(r"[(（][^()（）\n]+[)）]")
_TAGS: Final = re.compile(r"</?\w+>")


class ScenePage:
    """The page.

    Args:
        scene: The scene.
        me: The character whose lines are typed on the page.
    """

    def __init__(self, scene: Scene, me: str | None = None) -> None:
        self._scene, self._me = scene, me
        self._pictures = {each.name: find_picture(each.card) for each in scene.characters if each.card}
        self._messages: list[dict[str, str]] = []
        self._next_turn = 1
        self._end = ""
        self._is_my_turn = False
        self._lines: Queue[str] = Queue()
        self._add("", scene.introduce(me))

    def build(self) -> gr.Blocks:
        """Build the page."""
        title = self._scene.title or "Scene"
        # An avatar is sent as it is, not copied to Gradio's cache, which stays behind.
        gr.set_static_paths([*filter(None, self._pictures.values())])
        with gr.Blocks(title=title, analytics_enabled=False, fill_height=True) as page:
            self._chatbot = make_chatbot(title, elem_classes="scene", buttons=[])
            self._status = gr.Markdown(line_breaks=True)
            self._version = gr.State()
            self._timer = gr.Timer(_PAUSE)
            views: Any = {"outputs": [self._chatbot, self._status, self._version, self._timer]}
            views |= {"show_progress": "hidden"}
            if self._me is not None:
                box = make_box(f"Speech, (actions) and [thoughts] of {self._me}")
                box.submit(self.say, box, box, show_progress="hidden").then(self.look, self._version, **views)
            page.load(self.look, None, **views)
            self._timer.tick(self.look, self._version, **views)
        return page

    def look(self, version: Any = None) -> Any:
        """Return what is there to see, unless a visitor has seen this version of it."""
        current = (len(self._messages), self._describe_state())
        if current == version:
            return gr.skip()
        return {
            self._chatbot: self._messages[: current[0]],
            self._status: escape(current[1]),
            self._version: current,
            self._timer: gr.Timer(active=not self._end),
        }

    def _describe_state(self) -> str:
        if self._end:
            return self._end
        if self._me is None:
            return "Playing …"
        if self._is_my_turn:
            return f"It is your turn, {self._me}."
        if not self._scene.character(self._me).is_present(self._next_turn):
            return f"{self._me} is away, and the scene goes on …"
        return "The others play …"

    def say(self, text: str) -> str:
        """Take a line from the person; returns what stays in the box."""
        if not text.strip():
            return text
        if not self._is_my_turn:
            gr.Info(self._describe_state())
            return text
        self._is_my_turn = False
        self._lines.put(text)
        return ""

    def read_line(self, _: str) -> str:
        """Wait for a line from the person."""
        self._lines = Queue()
        self._is_my_turn = True
        try:
            return self._lines.get()
        finally:
            self._is_my_turn = False

    def add(self, turn: SceneTurn) -> None:
        """Show a turn."""
        self._next_turn = turn.turn + 1
        self._add(turn.speaker, turn.text)

    def end(self, reason: str) -> None:
        """Say why the scene does not go on."""
        self._end = reason

    def _add(self, speaker: str, text: str) -> None:
        content = _format_text(text)
        if speaker:
            picture = self._pictures.get(speaker)
            image = f'<img src="/gradio_api/file={quote(str(picture))}" alt=""> ' if picture else ""
            content = f"{image}<strong>{escape(speaker)}</strong>\n{content}"
        role = "user" if speaker and speaker == self._me else "assistant"
        self._messages.append({"role": role, "content": content})


def _format_text(text: str) -> str:
    """Set thoughts small and actions in italics."""
    parts = []
    for part, is_thought in split_thoughts(text):
        if not is_thought:
            parts.append(escape(part, quote=False))
            continue
        thought = escape(_TAGS.sub("", part).strip(), quote=False)
        parts.append(f"<small>{thought}</small>")
    return _ACTION.sub(r"<em>\g<0></em>", "".join(parts))
