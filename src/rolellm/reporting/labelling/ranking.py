"""The page of ``rolellm label``: one item after the other, blind, each label saved before the next is shown."""

from __future__ import annotations

from html import escape
from typing import Any

import gradio as gr

from rolellm.core.errors import RoleLLMError
from rolellm.judging.requests import LETTERS
from rolellm.reporting.labelling.tasks import LabelTask

#: What judges are told.
_CRITERIA = (
    "Rank the answers by two things: how clearly each sounds like this role, and how much of what the role knows it "
    "shows. References tell what is right; some are plain answers without a style. 1 is best; equal places are ties."
)


class LabelPage:
    """The page.

    Args:
        task: What is labelled.
        next_line: The command line to go on with once all is labelled.
    """

    def __init__(self, task: LabelTask, next_line: str) -> None:
        self._task, self._next_line = task, next_line

    def build(self) -> gr.Blocks:
        """Build the page."""
        task = self._task
        texts: dict[str, gr.Textbox] = {}
        radios: list[gr.Radio] = []
        with gr.Blocks(title="Rank answers", analytics_enabled=False) as page:
            index = gr.State(0)
            progress = gr.Markdown()
            gr.Markdown(_CRITERIA)
            texts["role"] = _make_text("Role")
            with gr.Accordion("Description", open=False):
                texts["description"] = _make_text(None)
            texts["question"] = _make_text("Question")
            with gr.Accordion("References"):
                texts["references"] = _make_text(None)
            for letter, place in zip(LETTERS, task.places, strict=False):
                texts[letter] = _make_text(letter)
                radios.append(gr.Radio(task.choices, label=place))
            with gr.Row():
                back, skip = gr.Button("Back"), gr.Button("Skip")
                save = gr.Button("Save", variant="primary")
            outputs = [index, progress, *texts.values(), *radios]
            event: dict[str, Any] = {"outputs": outputs, "show_progress": "hidden", "api_visibility": "private"}
            page.load(self._begin, None, **event)
            back.click(self._go_back, [index], **event)
            skip.click(self._skip, [index], **event)
            save.click(self._save, [index, *radios], **event)
        return page

    def _find_open(self, start: int) -> int:
        """Find the next item without a label; the one at the start where there is none."""
        statuses = self._task.statuses()
        order: list[int] = [*range(start, len(statuses)), *range(start)]
        for index in order:
            if statuses[index] == "open":
                return index
        return min(start, len(statuses) - 1)

    def _begin(self) -> list[Any]:
        return self._show(self._find_open(0))

    def _go_back(self, index: int) -> list[Any]:
        return self._show(max(index - 1, 0))

    def _skip(self, index: int) -> list[Any]:
        return self._keep(index, None)

    def _save(self, index: int, *values: str | None) -> list[Any]:
        return self._keep(index, values)

    def _keep(self, index: int, values: tuple[str | None, ...] | None) -> list[Any]:
        """Save a label, and show the next item."""
        try:
            self._task.save(index, values)
        except (RoleLLMError, OSError) as error:
            raise gr.Error(escape(f"the label is not saved: {error}"), print_exception=False) from error
        return self._show(self._find_open(index + 1))

    def _show(self, index: int) -> list[Any]:
        """Return the values of the page for an item."""
        statuses = self._task.statuses()
        open_count = statuses.count("open")
        progress = f"Item {index + 1} of {len(statuses)} ({statuses[index]}), {open_count} left"
        if not open_count:
            progress = f"**All is labeled.** Press Ctrl-C in the terminal, then go on with `{self._next_line}`"
        texts = self._task.items[index].texts.values()
        values = self._task.values(index)
        return [index, progress, *texts, *values]


def _make_text(label: str | None) -> gr.Textbox:
    return gr.Textbox(label=label, show_label=label is not None, interactive=False, max_lines=20, buttons=["copy"])
