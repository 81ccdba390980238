"""What a judge is shown: role, question and reference, and the answers under letters, each text behind a fence.

Which reference: of a role-specific row its own, of which Context-Instruct made it; of a general row the instruction's
role-free target. The styled references of general rows are RoleGPT's, siblings of the baseline that the others are
compared with, so a judge that saw them would be shown whom to prefer (our choice).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rolellm.core.records import Row
from rolellm.core.sanitize import label
from rolellm.core.settings import read_packaged_yaml
from rolellm.judging.orders import LETTERS, VerdictRequest
from rolellm.judging.types import Comparison
from rolellm.llm.model import Request, system, user
from rolellm.models.prompts.fences import LIMIT, HarmlessText, draw_nonce, fence_text, make_harmless

#: What a judge is told between texts, by language.
WORDS: Mapping[str, Mapping[str, str]] = read_packaged_yaml("rolellm.judging", "words.yaml")


@dataclass(frozen=True, slots=True)
class RowMaterial:
    """A row's answers, made harmless for showing.

    Attributes:
        row: The row.
        common: What every request about it shows, by the names of the fences.
        answers: System to answer.
    """

    row: Row
    common: Mapping[str, str]
    answers: Mapping[str, HarmlessText]

    def touched(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return those of these systems whose answers were changed, cut or look like an attack, and how."""
        return {name: self.answers[name].touched for name in names if self.answers[name].touched}


def prepare_material(comparison: Comparison, row: Row, limit: int = LIMIT) -> RowMaterial:
    """Prepare what can be shown of a row of a comparison.

    Args:
        comparison: With the answers.
        row: One of its rows.
        limit: Characters of any one text that are shown; what is longer is cut, and counted.
    """
    texts = {system.name: comparison.answers[system.name].get(row.id) for system in comparison.systems}
    answers = {name: make_harmless(text, limit) for name, text in texts.items() if text is not None}
    return RowMaterial(
        row, {name: make_harmless(text, limit).text for name, text in _collect_texts(row).items()}, answers
    )


def build_judge_request(material: RowMaterial, ask: VerdictRequest) -> Request:
    """The request for one verdict.

    Args:
        material: The row, made harmless.
        ask: Who is asked, and in which order.
    """
    row, letters = material.row, LETTERS[: len(ask.order)]
    words = WORDS[row.language]
    answers = [material.answers[name].text or words["no_answer"] for name in ask.order]
    # Of what is shown and nothing else, in no order: both orders share it, and another system does not change it.
    mark = draw_nonce(*sorted([*material.common.values(), *answers]))
    fences = {name: fence_text(name, text, mark) for name, text in material.common.items()}
    reference_fences = [fences[name] for name in fences if name.startswith("reference")]
    system_prompt, user_prompt = ask.judge.prompts[row.language]
    content = user_prompt.fill(
        mark=mark,
        character=f"{fences['role']}\n{fences['description']}",
        question=fences["question"],
        reference="\n".join([words[row.subset] if reference_fences else words["no_reference"], *reference_fences]),
        answers="\n\n".join(
            fence_text(f"answer {letter}", text, mark) for letter, text in zip(letters, answers, strict=True)
        ),
        names=_format_names(words, letters, ask.order) if ask.named else "",
        letters=words["joined"].join(letters),
    )
    messages = (system(system_prompt.text), user(content))
    tag = f"judge/{ask.judge.settings.name}/{row.id}"
    return Request(
        messages,
        ask.judge.sampling(len(letters)),
        schema=ask.judge.schema,
        tag=tag,
        repair=words["repair"],
        quotes=False,
    )


def _collect_texts(row: Row) -> dict[str, str]:
    return {
        "role": row.role,
        "description": row.role_description or WORDS[row.language]["no_description"],
        "question": row.question,
        **{f"reference {number}": text for number, text in enumerate(select_references(row), start=1)},
    }


def select_references(row: Row) -> Sequence[str]:
    """Select what a judge is shown of a row's references."""
    if row.subset == "general":
        return [row.raw_reference] if row.raw_reference and row.raw_reference.strip() else []
    return [text for text in dict.fromkeys(row.references) if text.strip()][:3]


def _format_names(words: Mapping[str, str], letters: Sequence[str], order: Sequence[str]) -> str:
    named = [
        words["is"].format(letter=letter, name=label(name, 60)) for letter, name in zip(letters, order, strict=True)
    ]
    return words["names"].format(named=words["joined"].join(named))
