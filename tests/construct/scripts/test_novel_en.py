import pytest

from rolellm.construct.scripts.novel import read_novel
from rolellm.construct.scripts.reading import Hints
from rolellm.construct.scripts.source import source_of


def said(text, *names):
    found = read_novel(source_of(text), Hints("en", names))
    return [(turn.speaker, turn.content) for turn in found if turn.kind == "speech"]


@pytest.mark.parametrize(
    ("text", "speaker"),
    [
        pytest.param('"Come in," said Alice.', "Alice", id="after, inverted"),
        pytest.param('"Come in," Alice said.', "Alice", id="after"),
        pytest.param('"Come in!" cried the old man by the window.', "the old man", id="no name"),
        pytest.param('"Come in," said the White Rabbit, who was late.', "the White Rabbit", id="name with an article"),
        pytest.param('"Come in," said Mrs. Hale to Mr. Black.', "Mrs. Hale", id="title and addressee"),
        pytest.param('"Come in," said Tom\'s mother softly.', "Tom's mother", id="possessive"),
        pytest.param('"Come in," said Mr. and Mrs. Grey together.', "Mr. and Mrs. Grey", id="two"),
        pytest.param('"Come in," his wife impatiently replied.', "his wife", id="relation"),
        pytest.param('"Come in," said the King of Hearts.', "the King of Hearts", id="of"),
        pytest.param('Said the Duchess: "Come in."', "the Duchess", id="before, inverted"),
        pytest.param(
            'Then Inspector Gray, who had been silent, asked: "Who is it?"', "Inspector Gray", id="before, parted"
        ),
        pytest.param('Alice turned to the Cat and said, "Come in."', "Alice", id="before, with an object"),
        pytest.param('Turning to the others, Alice said, "Come in."', "Alice", id="before, with a participle"),
        pytest.param('Alice opened the door. "Come in." Nobody came. Alice said nothing.', "Alice", id="action before"),
        pytest.param('"Come in." Alice opened the door. "I like," said Alice, "visits."', "Alice", id="action after"),
        pytest.param('"I knocked twice," I said.', "I", id="first person"),
        pytest.param("'Come in,' said Alice.", "Alice", id="British"),
        pytest.param("’Twas late. ‘Come in,’ said Alice.", "Alice", id="British, after a clipped word"),
        pytest.param("“Come in,” said she to Alice.", None, id="a pronoun for nobody"),
    ],
)
def test_who_says_it(text, speaker):
    assert said(text)[0][0] == speaker


def test_victorian_prose():
    text = """CHAPTER I

    "You are late, Thomas," said Mrs. Hale, without looking up from her
    sewing, which was spread over the whole of the table.

    "I know it, ma'am. The road was bad."

    "The road is always bad," she replied; "but you are not always late."

    Thomas put down his hat. "There was a fire at the mill," he said at last.

    "A fire!" cried the old man by the window. "And nobody told me!"

    Mrs. Hale turned to him and said, "You were asleep, Father."

    "Asleep, indeed!"
    """
    assert [speaker for speaker, _ in said(text)] == [
        "Mrs. Hale",
        "Thomas",
        "Mrs. Hale",
        "Mrs. Hale",
        "Thomas",
        "the old man",
        "the old man",
        "Mrs. Hale",
        "the old man",
    ]


def test_modern_prose_with_beats_turns_and_pronouns():
    text = """John Carter crossed the room and shook hands with Mary Lamb. “I am glad you came,” he said.

She smiled. “So am I, John.”

“Will you stay?”

“Only an hour.” Mary took off her gloves. “I promised Mother.”

He laughed. “An hour is a long time, Mary—”

“Not with you.”
"""
    assert [speaker for speaker, _ in said(text)] == [
        "John Carter",
        "Mary",
        "John Carter",
        "Mary",
        "Mary",
        "John Carter",
        "Mary",
    ]


def test_whoever_is_addressed_answers():
    text = """Inspector Gray asked: "Where were you, Mr. Black?"

"At home."

"Alone?"

"Quite alone, Inspector."
"""
    assert [speaker for speaker, _ in said(text)] == ["Inspector Gray", "Mr. Black", "Inspector Gray", "Mr. Black"]


def test_a_speech_over_paragraphs_keeps_its_speaker():
    text = """“Let me tell it,” began Anna. “There was a fox.

“It had a goose.

“And here it ends,” she added.
"""
    assert said(text) == [
        ("Anna", "Let me tell it,"),
        ("Anna", "There was a fox."),
        ("Anna", "It had a goose."),
        ("Anna", "And here it ends,"),
    ]


def test_an_interrupted_speech_has_one_speaker_in_british_quotes():
    text = """‘It’s a fine mornin’ for it,’ said Ben, rubbing his hands. ‘’Tis the boys’ holiday, an’ all.’

‘Aye,’ said Martha. ‘Did you say “never” to him?’

‘I did.’
"""
    assert said(text) == [
        ("Ben", "It’s a fine mornin’ for it,"),
        ("Ben", "’Tis the boys’ holiday, an’ all."),
        ("Martha", "Aye,"),
        ("Martha", "Did you say “never” to him?"),
        ("Ben", "I did."),
    ]


def test_names_within_names_are_kept_apart():
    text = """"Who is there?" asked Ann.

"Only me," said Anna.

"Anna!" cried Ann.

Anna laughed. "Ann!" Ann laughed, too.
"""
    assert [speaker for speaker, _ in said(text, "Ann")] == ["Ann", "Anna", "Ann", "Anna"]


@pytest.mark.parametrize(
    "text",
    [
        'The so-called "hero" of the day went home.',
        'He thought it "a foolish word," and so did she.',
        'They sang "God Save the King" twice.',
        'He read the sign: "Beware of the dog."',
        'The word "love" was not spoken.',
    ],
)
def test_what_nobody_says_stays_narration(text):
    found = read_novel(source_of(text), Hints("en"))
    assert [(turn.kind, turn.speaker, turn.content) for turn in found] == [("narration", "narrator", text)]


def test_narration_stands_between_speeches_and_keeps_its_place():
    text = 'Alice sat down. "Well," said Alice, "here I am."\n\nNobody looked up.'
    found = read_novel(source_of(text), Hints("en"))
    assert [(turn.kind, turn.content) for turn in found] == [
        ("narration", "Alice sat down."),
        ("speech", "Well,"),
        ("narration", "said Alice,"),
        ("speech", "here I am."),
        ("narration", "Nobody looked up."),
    ]
    assert all(text[turn.start : turn.end] == turn.content for turn in found)


def test_no_turns_are_taken_after_a_new_scene():
    text = """"Yes," said Tom.

"No," said Ned.

* * *

"Who knows?"
"""
    assert said(text)[-1] == (None, "Who knows?")
