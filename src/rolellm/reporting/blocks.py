"""Blocks of a page, all of one shape: sentences, tables, pictures, and cards of texts; and the checks' results as such.

`html/macros.html.jinja` lays out any block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Final

from rolellm.checks.character_tests import SIGNED, TestsResult
from rolellm.checks.drift import DriftResult
from rolellm.checks.safety import MEASURES, SafetyResult, pair_replies
from rolellm.core.table import Table
from rolellm.runs import Run

#: Replies that became worse, by measure, that a page shows.
_EXAMPLES: Final = 3
_WITHHELD: Final = "(withheld by the server)"


@dataclass(frozen=True, slots=True)
class QuoteCard:
    """Texts that are read together.

    Attributes:
        title: The heading.
        message: What the texts reply to.
        texts: Each with its label.
        language: That of the texts.
        facts: What is known of the texts, each with its name.
    """

    title: str
    message: str = ""
    texts: Sequence[tuple[str, str]] = ()
    language: str = "en"
    facts: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page.

    Attributes:
        title: The heading; what is clicked where the block is folded.
        id: Its anchor; empty for none.
        warnings: Sentences to read before all else.
        sentences: A list.
        tables: One below the other.
        cards: Next to each other.
        notes: Paragraphs in small print.
        code: Text in a fixed width, such as settings.
        blocks: Blocks within the block.
        is_folded: Whether a click shows it.
    """

    title: str = ""
    id: str = ""
    warnings: Sequence[str] = ()
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = ()
    cards: Sequence[QuoteCard] = ()
    notes: Sequence[str] = ()
    code: str = ""
    blocks: Sequence[Block] = ()
    is_folded: bool = True


def lay_out_drift(drift: DriftResult) -> Block:
    """Lay out systems over many turns."""
    cards = []
    for name, system in drift.systems.items():
        for kind, example in system.examples.items():
            title = f"{kind.replace('_', ' ')} · {name}, turn {example.turn}"
            cards.append(QuoteCard(title, example.message, [("", example.reply)]))
    note = (
        "Unbroken: of the sessions that reach the last of these turns, those without a break of character up to it. In "
        "character, language, person: replies without any break, in the role's language, and in the first person. "
        "Repetition: word runs that were said before in the session. Style: word pairs from the role's own lines."
    )
    examples = [Block("First breaks", cards=cards)] if cards else []
    return Block("Over many turns", "drift", tables=drift.tables(), notes=[note], blocks=examples, is_folded=False)


def lay_out_tests(results: TestsResult) -> Block:
    """Lay out a character's tests, those that fail first."""
    blocks = []
    for assertion in results.sorted_assertions:
        cards = []
        for trial in sorted(assertion.trials, key=lambda trial: trial not in assertion.failures):
            texts = []
            for message, reply in zip_longest(trial.messages, trial.replies, fillvalue=""):
                texts += [("user", message), (results.role, reply)]
            facts = []
            if trial.problem:
                facts.append(("fails", trial.problem))
            if trial.ended:
                facts.append(("unscored", trial.ended))
            cards.append(QuoteCard("", "", texts, results.language, facts))
        flaky = ", flaky" if assertion.flaky else ""
        title = f"{assertion.name} {SIGNED[assertion.verdict]}{flaky}"
        blocks.append(Block(title, cards=cards, is_folded=assertion.verdict == "passed"))
    note = (
        "Passes: share of replies that pass, with Wilson's 95 % interval. Flaky: the same message passes once and "
        "fails once; for catchphrases, a bound lies inside the interval. Unscored: the model gave no reply, or replies "
        "that are not language could decide it."
    )
    return Block("Character tests", "tests", tables=results.tables(), notes=[note], blocks=blocks, is_folded=False)


def name_safety_models(run: Run[Any]) -> str:
    """Name the two models of a check of safety."""
    tuned, base = run.manifest["models"]["endpoints"]
    return f"{tuned['name']} against {base['name']}"


def lay_out_safety(result: SafetyResult, title: str, number: int = 1) -> Block:
    """Lay out a check of safety.

    Args:
        result: Its result, with replies.
        title: The models, as `name_safety_models` names them.
        number: Its number in the page.
    """
    note = (
        f"{title}, measured with {result.prompts.harmful} harmful prompts and {result.prompts.lookalikes} harmless "
        "look-alikes. This is no certificate: each share is what rules or a guard model counted, and both miss some."
    )
    cards = list(_list_lapses(result))
    lapses = Block(f"Replies that became worse ({len(cards)} shown; replies.jsonl has all)", cards=cards)
    (table,) = result.tables()
    named_table = replace(table, title=f"{table.title}: {title}")
    block = Block(table.title, f"safety-{number}", notes=[note], tables=[named_table], is_folded=False)
    return replace(block, blocks=[lapses]) if cards else block


def _list_lapses(result: SafetyResult) -> Iterator[QuoteCard]:
    """List replies that became worse by tuning: those of a measure together, in a role first, one of a prompt."""
    for name, decider in result.deciders.items():
        measure = MEASURES[name]
        by_prompt: dict[str, QuoteCard] = {}
        pairs = pair_replies(result.replies, name)
        for pair in sorted(pairs, key=lambda pair: pair.after.role is None):
            before, after = pair.values
            if measure.sign * (after - before) <= 0:
                continue
            reply = pair.after
            where = f", as {reply.role}" if reply.role else ""
            texts = [("base", pair.before.reply), ("tuned", reply.reply)]
            replies = [(model, text or _WITHHELD) for model, text in texts]
            title = f"✗ {measure.lapse} by {decider}{where}"
            card = QuoteCard(title, reply.prompt, replies, reply.language)
            by_prompt.setdefault(reply.prompt, card)
        yield from list(by_prompt.values())[:_EXAMPLES]


def lay_out_made(made: Mapping[str, Any]) -> Block:
    """Lay out roles that were made from scripts, as `rolellm.demo.making.make_roles` returns them."""
    blocks = []
    for role in made["roles"]:
        counts = "{candidates:,} question pairs made, {kept:,} kept, {replies:,} styled replies".format(**role)
        cards = []
        for pair in role["pairs"]:
            title = pair["type"].replace("_", "-")
            cards.append(QuoteCard(title, pair["question"], [("", pair["answer"])], role["language"]))
        blocks.append(Block(role["role"], sentences=[counts], cards=cards))
    return Block("Made from a script", "made", sentences=[made["by"]], blocks=blocks)
