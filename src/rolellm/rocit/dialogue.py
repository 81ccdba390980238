"""Script dialogue → conversations, for ``data.source: script``: the paper's baselines LLaMA-script and ChatGLM2-script.

The paper (arXiv 2310.00746) tunes them on multi-turn script dialogue; we know of no detail, so what follows is our
choice. Every line of the role is a reply. Before it stand the role's system instruction, as in RoCIT, and the turns
before it in its scene: the role's own as assistant turns; what others say (with their names) and narration (in
brackets) as user turns, joined where they follow each other. A line of the role that follows no one else's gets a cue
for a user turn, so that turns alternate and every reply answers something. Long turns are shortened, replies never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from rolellm.errors import RecipeError
from rolellm.prompts.render import SystemTemplate
from rolellm.prompts.script import ONWARD, OPENING, script_line, shorten
from rolellm.records import Language, Profile, Turn
from rolellm.rocit.recipe import DataRecipe, Mix
from rolellm.rocit.rows import Conversation, load_split

_PREFIX = "script/"


def script_profiles(data: DataRecipe) -> list[Profile]:
    """The profiles whose dialogue a recipe trains on: those of the roles in the rows of its split.

    Going by the rows keeps roles that the config holds out (role generalization) out of training.

    Args:
        data: ``config``, ``split``, ``data_dir``, ``roles`` and ``languages`` count; ``mix`` has no meaning here.

    Raises:
        RecipeError: When a role is not in the rows, the split is not there, ``mix`` is set, or no role is left.
        ReleaseNotFoundError: When there is no release, or it has no dialogue of these roles.
        ReleaseFormatError: At a row that is not as published.
    """
    from rolellm.rolebench.profiles import load_profiles

    if data.mix != Mix():
        raise RecipeError("data.mix: script dialogue is neither general nor role-specific; leave the key out")
    rows = load_split(data)
    languages = dict(zip(rows["role"], rows["language"], strict=True))
    strange = sorted(set(data.roles or ()) - languages.keys())
    if strange:
        known = ", ".join(sorted(languages))
        raise RecipeError(f"data.roles: {', '.join(strange)} not in the rows; there are {known}")
    roles = [
        role
        for role, language in languages.items()
        if (data.roles is None or role in data.roles) and (data.languages is None or language in data.languages)
    ]
    if not roles:
        raise RecipeError(f"the recipe's data section leaves none of {len(languages)} roles to train on")
    return load_profiles(data.config, data.data_dir, roles=roles)


def script_conversations(
    profiles: Iterable[Profile], template: Callable[[Language], SystemTemplate], data: DataRecipe
) -> list[Conversation]:
    """One conversation a line of the role, in the order of the script; ``row_id`` is ``script/ROLE/N``, N from 1.

    Args:
        profiles: The roles, as from `script_profiles`.
        template: The system instruction of a language, as from `rolellm.rocit.rows.templates`.
        data: ``script_turns`` is the most turns that are shown before a line, ``max_rows`` the most lines in all.
    """
    chats: list[Conversation] = []
    for profile in profiles:
        system = {"role": "system", "content": template(profile.language).fill(profile.role, profile.description)}
        number = 0
        for _, group in groupby(profile.turns, key=lambda turn: turn.scene):
            scene = list(group)
            for place, line in enumerate(scene):
                if not profile.owns(line):
                    continue
                number += 1
                first = max(0, place - data.script_turns)
                before = _alternating(profile, scene[first:place], opening=first == 0)
                chats.append(Conversation(f"{_PREFIX}{profile.role}/{number}", (system, *before), line.content))
    return chats[: data.max_rows]


def trained_roles(chats: Iterable[Conversation]) -> list[str]:
    """The roles whose lines are among the replies, sorted."""
    return sorted({chat.row_id.removeprefix(_PREFIX).rpartition("/")[0] for chat in chats})


def _alternating(profile: Profile, turns: Sequence[Turn], *, opening: bool) -> Iterator[dict[str, str]]:
    """The turns before a line, user first and last; ``opening`` says that they begin where the scene does."""
    cue = (OPENING if opening else ONWARD)[profile.language]
    heard: list[str] = []
    for turn in turns:
        if not profile.owns(turn):
            heard.append(script_line(turn, profile.language))
            continue
        yield {"role": "user", "content": "\n".join(heard) or cue}
        yield {"role": "assistant", "content": shorten(turn.content)}
        heard, cue = [], ONWARD[profile.language]
    yield {"role": "user", "content": "\n".join(heard) or cue}
