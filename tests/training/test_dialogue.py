"""Scripts as training data: what stands before a line, how a scene is cut, and which of its tokens are trained."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import RecipeError, ReleaseNotFoundError, SettingsError
from rolellm.core.records import Profile, Turn
from rolellm.data.own_rows import DIALOGUES, OwnRows, load_own_rows
from rolellm.models.prompts.encode import encode_prompt, encode_replies, find_end_token, settle_template
from rolellm.models.prompts.render import LONGEST, ONWARD, OPENING, DescriptionPrompts, format_turn
from rolellm.training.dialogues import DialogueTable, describe_dialogues, encode_dialogues
from rolellm.training.recipe import DataRecipe, Mix, TrainingRecipe
from rolellm.training.rows import (
    Conversation,
    load_script_profiles,
    make_script_conversations,
)

from ..versions import NEEDS_SANITIZING
from .examples import say, tell
from .test_chat_templates import DEEPSEEK_31, MARKS
from .tokenizers import CHATML, make_tokenizer, read_template

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


# --- tokens


TURNS = [
    {"role": "system", "content": "You are Ada Fenn."},
    *({"role": role, "content": text} for text in ("Why? 海", "Who?") for role in ("user", "assistant")),
]
#: Replies that look like what comes before or after them, and texts of special tokens.
ODD = ["assistant", "Where? <|im_end|>", " Aye. ", "### Response:\n"]


def make_rows(count: int = 1, texts: list[str] | None = None, **options: Any) -> OwnRows[Any]:
    messages = TURNS if texts is None else [TURNS[0]]
    for text in texts or ():
        messages = [*messages, {"role": "user", "content": text}, {"role": "assistant", "content": text}]
    return load_own_rows([{"messages": messages}] * count, DIALOGUES, **options)


def encode(rows: Any, tokenizer: Any, **training: Any) -> DialogueTable:
    return encode_dialogues(rows, tokenizer, TrainingRecipe(**training))


@pytest.mark.filterwarnings("ignore::rolellm.core.errors.RoleLLMWarning")
@pytest.mark.parametrize("texts", [pytest.param(None, id="plain"), pytest.param(ODD, id="odd", marks=NEEDS_SANITIZING)])
@pytest.mark.parametrize(
    ("kind", "template", "is_whole"),
    [
        pytest.param("bytes", None, True, id="rolellama"),
        pytest.param("metaspace", None, True, id="SentencePiece"),
        pytest.param("bytes", read_template("gemma"), True, id="no system role"),
        pytest.param("bytes", DEEPSEEK_31, True, id="thoughts are over"),
        pytest.param("bytes", read_template("qwen3"), False, id="past replies lose their thoughts"),
        pytest.param("chatml", CHATML, True, id="chatml"),
        pytest.param("chatml", read_template("llama3_1"), True, id="trims"),
    ],
)
def test_every_reply_comes_after_what_inference_sends(
    kind: str, template: str | None, is_whole: bool, texts: list[str] | None
) -> None:
    tokenizer = make_tokenizer(kind, template)
    tokenizer.add_tokens([*MARKS, "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"], special_tokens=True)
    settle_template(tokenizer)
    rows = make_rows(texts=texts)
    (dialogue,) = rows
    everything, _ = encode(rows, tokenizer).split(0)
    examples = list(everything.examples)
    if texts is None:
        assert len(examples) == (1 if is_whole else 2)
    spans = []
    for example in examples:
        ids, labels = example.input_ids, example.labels
        starts = [at for at in range(len(ids)) if labels[at] != -100 and labels[at - 1] == -100]
        spans += [(ids, labels, start) for start in starts]
        assert (example.replies, example.trained_tokens) == (len(starts), sum(label != -100 for label in labels))
    for number, (ids, labels, start) in zip(dialogue.replies, spans, strict=True):
        assert ids[:start] == encode_prompt(tokenizer, list(dialogue.messages[:number]))
        (reply,) = encode_replies(tokenizer, [dialogue.messages[number]["content"]])
        reply.append(find_end_token(tokenizer))
        assert labels[start:][: len(reply) + 1] in (reply, [*reply, -100])


def test_replies_that_do_not_fit_are_left_out_and_counted() -> None:
    tokenizer = make_tokenizer("bytes")
    rows = make_rows(2, ["Why?"] * 4)
    everything, _ = encode(rows, tokenizer).split(0)
    full = everything.examples[0].length
    table = encode(rows, tokenizer, max_length=full - 1)
    assert (table.replies, table.long) == (6, 2)
    line = describe_dialogues(rows, table, full - 1)
    assert line.startswith(f"train_dataset (messages): 2 dialogues, 6 replies; 2 over {full - 1} tokens")
    truncated, _ = encode(rows, tokenizer, max_length=full - 1, truncate_replies=True).split(0)
    assert (truncated.examples[0].replies, truncated.examples[0].length) == (4, full - 1)
    with pytest.raises(RecipeError, match=r"no reply fits training\.max_length \(8\)"):
        encode(rows, tokenizer, max_length=8)


def test_what_is_held_out_goes_by_the_first_question() -> None:
    data = [{"prompt": f"What is {number % 50}?", "completion": f"It is {number}."} for number in range(100)]
    tokenizer = make_tokenizer("bytes")
    table = encode(load_own_rows(data, DIALOGUES), tokenizer)
    train, held_out = table.split(0.2)
    assert train.dialogues + held_out.dialogues == 100
    assert 4 <= held_out.dialogues <= 40
    assert not train.trained_on.instructions & held_out.trained_on.instructions
    backwards = encode(load_own_rows(data[::-1], DIALOGUES), tokenizer)
    assert backwards.split(0.2)[1].trained_on == held_out.trained_on
    assert backwards.fingerprint != table.fingerprint
    for count in (1, 2, 4):
        few = encode(load_own_rows(data[:count], DIALOGUES), tokenizer)
        assert few.split(1e-9)[1].dialogues == (count > 1)
        assert few.split(1)[0].dialogues == 1


def test_rows_that_the_template_refuses_are_named_or_skipped() -> None:
    tokenizer = make_tokenizer("bytes")
    tool = {"role": "tool", "content": "at six"}
    bad = {"messages": [TURNS[1], tool, TURNS[2]]}
    data = [{"messages": TURNS[1:], "role": "Ada"}, bad, {"messages": TURNS[1:], "role": "Bo"}]
    with pytest.raises(RecipeError, match=r"train_dataset, row/2: .*cannot take the turns user, tool"):
        encode(load_own_rows(data, DIALOGUES), tokenizer)
    rows = load_own_rows(data, DIALOGUES, skip_bad=True)
    table = encode(rows, tokenizer)
    assert (len(table), len(rows.skipped)) == (2, 1)
    described = describe_dialogues(rows, table, 1024)
    notes = "; 1 repeat an earlier one; 2 roles have no system turn that tells them apart; 1 bad row skipped, the first"
    assert f"{notes}: train_dataset, row/2: " in described
