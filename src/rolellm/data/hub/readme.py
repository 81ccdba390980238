"""A repository's README: our card lies between two comments, and what a person wrote around it is kept.

In the front matter, our keys replace those of the same name, and what somebody added to a list of names, such as tags,
stays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rolellm.core.errors import HubError

BEGIN = "<!-- rolellm:begin – written by rolellm at each push; what stands outside these two comments is kept -->"
END = "<!-- rolellm:end -->"


def merge_card(card: Path, current: Path | None) -> str:
    """The README to publish.

    Args:
        card: Our card.
        current: The README that is there, if any.

    Raises:
        HubError: When the README there has front matter that is not a YAML mapping, or one of our two comments without
            the other.
    """
    from huggingface_hub import RepoCard

    ours = RepoCard(card.read_text(encoding="utf-8"))
    text = ours.text.strip().replace("<!--", "&lt;!--")
    block = f"{BEGIN}\n\n{text}\n\n{END}"
    if current is None:
        ours.text = f"\n{block}\n"
        return str(ours)
    try:
        # Not read_text, which would take \r out of line ends.
        theirs = RepoCard(current.read_bytes().decode("utf-8"), ignore_metadata_errors=True)
    except Exception as error:
        # Neither PyYAML's errors nor the decoder's are ValueErrors of the client.
        raise HubError(f"the README.md there cannot be read ({error}); fix it there first") from error
    data = dict(vars(theirs.data))
    for key, value in vars(ours.data).items():
        data[key] = _merge_value(value, data.get(key))
    ours.data = type(ours.data)(**data)
    ours.text = _put_block(theirs.text, block)
    return str(ours)


def _put_block(body: str, block: str) -> str:
    """Put our part into a text: in the place of the earlier one, else at the end."""
    before, _, remainder = body.partition(BEGIN)
    _, _, after = remainder.partition(END)
    counts = body.count(BEGIN), body.count(END)
    if counts == (1, 1) and body.index(BEGIN) < body.index(END):
        return before + block + after
    if BEGIN in body or END in body:
        raise HubError(
            "the README.md there does not have exactly one `rolellm:begin` comment with a `rolellm:end` after it, so "
            "your part and ours cannot be told apart; restore the pair, or remove both"
        )
    return f"{body.rstrip()}\n\n{block}\n"


def _merge_value(our_value: Any, hub_value: Any) -> Any:
    """Return our value; of a list of names, with those that somebody added to it."""
    is_names = isinstance(our_value, list) and isinstance(hub_value, list)
    if not is_names or any(isinstance(item, dict) for item in our_value):
        return our_value
    return our_value + [item for item in hub_value if item not in our_value]
