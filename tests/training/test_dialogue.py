"""Script dialogue as conversations: turns alternate, nothing is lost, and no more is shown than was asked for."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import ReleaseNotFoundError, SettingsError
from rolellm.core.records import Profile, Turn
from rolellm.models.prompts.render import LONGEST, ONWARD, OPENING, DescriptionPrompts, format_turn
from rolellm.training.recipe import DataRecipe, Mix
from rolellm.training.rows import (
    Conversation,
    load_script_profiles,
    make_script_conversations,
)

from .examples import say, tell

FOX = "Fox"
TEMPLATE = DescriptionPrompts().templates


def chats(turns: list[Turn], language: Any = "en", **options: Any) -> list[Conversation]:
    profile = Profile(FOX, language, tuple(turns), "You are a fox.")
    return make_script_conversations([profile], TEMPLATE, **options)


def shown(chat: Conversation) -> list[tuple[str, str]]:
    system, *turns = chat.messages
    assert system == {"role": "system", "content": TEMPLATE["en"].fill(role=FOX, description="You are a fox.")}
    return [(message["role"][0], message["content"]) for message in turns]


A, B, C, D = say("Crow", "a"), say(FOX, "b"), say("Crow", "c"), say(FOX, "d")


def test_what_stands_before_a_line() -> None:
    heard, own, more = ("u", "Crow: a"), ("a", "b"), ("u", "Crow: c")
    # Earlier lines of the role are the assistant's; with fewer turns, what comes before is a cue.
    assert [shown(chat) for chat in chats([A, B, C, D])] == [[heard], [heard, own, more]]
    assert shown(chats([A, B, C, D], turns_before=2)[-1]) == [("u", ONWARD["en"]), own, more]
    # The role goes on, and a scene knows nothing of the one before.
    opening = [("u", OPENING["en"])]
    assert [shown(chat) for chat in chats([B, D])] == [opening, [*opening, own, ("u", ONWARD["en"])]]
    assert [shown(chat) for chat in chats([A, B, say(FOX, "c", 1)])] == [[heard], opening]


def test_long_turns_are_shortened_and_replies_are_not() -> None:
    speech = "word " * 300
    made = chats([say("Crow", speech), say(FOX, speech), A, B])
    assert made[0].replies["completion"] == speech
    user, assistant, _ = shown(made[1])
    assert len(user[1]) <= LONGEST + len("Crow: ") and user[1].endswith("…")
    assert len(assistant[1]) <= LONGEST and assistant[1].endswith("…")


@st.composite
def scripts(draw: st.DrawFn) -> list[Turn]:
    """Turns whose text says which one it is."""
    found: list[Turn] = []
    scene = 0
    speakers = draw(st.lists(st.sampled_from([FOX, "Crow", "Owl", "narrator"]), max_size=25))
    for place, speaker in enumerate(speakers):
        scene += draw(st.sampled_from([0, 0, 0, 1]))
        text = f"<{place}>"
        found.append(tell(text, scene) if speaker == "narrator" else say(speaker, text, scene))
    return found


@given(found=scripts(), count=st.integers(1, 8), language=st.sampled_from(["en", "zh"]))
def test_any_script(found: list[Turn], count: int, language: Any) -> None:
    made = chats(found, language, turns_before=count)
    lines = [turn for turn in found if turn.speaker == FOX]
    # No line of the role is lost, doubled or moved.
    replies = [(f"script/Fox/{number}", line.content) for number, line in enumerate(lines, start=1)]
    assert [(chat.row_id, chat.replies["completion"]) for chat in made] == replies
    for chat, line in zip(made, lines, strict=True):
        messages = chat.messages[1:]
        assert [message["role"] for message in messages] == [*["user", "assistant"] * (len(messages) // 2), "user"]
        assert all(message["content"].strip() for message in chat.messages)
        scene = [turn for turn in found[: found.index(line)] if turn.scene == line.scene][-count:]
        # Each turn that may be shown is shown once, by whom it was spoken, in order; nothing else is, but for cues.
        own = [message["content"] for message in messages if message["role"] == "assistant"]
        assert own == [turn.content for turn in scene if turn.speaker == FOX]
        heard = "\n".join(message["content"] for message in messages if message["role"] == "user").split("\n")
        cues = (OPENING[language], ONWARD[language])
        assert [text for text in heard if text not in cues] == [
            format_turn(turn, language) for turn in scene if turn.speaker != FOX
        ]


def test_a_mix_of_subsets_is_not_a_choice_of_scripts() -> None:
    with pytest.raises(SettingsError, match=r"data\.mix"):
        load_script_profiles(DataRecipe(config="sample", source="script", mix=Mix(general=0.5)))


def test_roles_that_a_config_holds_out_are_not_trained_on(write_release: Callable[..., Any]) -> None:
    base = "rolebench-eng/role-generalization"
    files: dict[str, Any] = {}
    for subset in ("general", "role_specific"):
        for name, role in (("train", "Fox"), ("test", "Owl"), ("rolegpt_baseline", "Owl")):
            files[f"{base}/{subset}/{name}.jsonl"] = [{"role": role, "question": "Why?", "generated": ["So."]}]
    for role in ("Fox", "Owl"):
        line = {"role": role, "content": "Aha.", "act_id": 0, "diag_id": 0}
        files[f"profiles-eng/profiles-eng-{role}.jsonl"] = [line]
    data = DataRecipe(config="role-generalization-eng", source="script", data_dir=write_release(**files))
    assert [profile.role for profile in load_script_profiles(data)] == ["Fox"]


def test_a_release_without_dialogue_says_so(write_release: Callable[..., Any]) -> None:
    with pytest.raises(ReleaseNotFoundError, match="no script dialogue of Fox, Owl"):
        load_script_profiles(DataRecipe(source="script", data_dir=write_release()))
