"""What counts as a word in Chinese, and that finding out leaves no trace."""

import random
import unicodedata
import warnings
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import SettingsError
from rolellm.data.rolebench import load_rolebench
from rolellm.scoring.rouge import TOKENIZERS, get_tokenizer, resolve_tokenizer

CHINESE = TOKENIZERS["rouge-score"]["zh"]
#: Chinese blocks have code points that this Python does not know yet; they are tokens all the same.
ASSIGNED = st.characters(exclude_categories=["Cn", "Cs"])


@pytest.mark.parametrize(
    ("text", "words", "characters"),
    [
        pytest.param("我们喝酒。", ["我们", "喝酒"], ["我", "们", "喝", "酒"], id="words"),
        pytest.param(
            "买iPhone15,3.5元!", ["买", "iphone15", "3.5", "元"], ["买", "iphone15", "3", "5", "元"], id="mixed"
        ),
        pytest.param("café", ["caf", "é"], ["café"], id="accent-cut-off-by-jieba"),
        pytest.param("……——「」__", [], [], id="punctuation-only"),
        pytest.param("𠮷", ["𠮷"], ["𠮷"], id="beyond-the-basic-plane"),
    ],
)
def test_chinese_tokens(text: str, words: list[str], characters: list[str]) -> None:
    assert get_tokenizer("jieba")(text) == words
    assert get_tokenizer("characters")(text) == characters


@pytest.mark.parametrize("name", CHINESE)
@given(text=st.text(ASSIGNED, max_size=40) | st.text("李白喝酒aZ9ÄßA。. _", max_size=20))
def test_no_letter_or_digit_is_lost(name: str, text: str) -> None:
    tokens = get_tokenizer(name)(text)
    assert all(any(char.isalnum() for char in token) for token in tokens)
    kept = [char for char in unicodedata.normalize("NFKC", text) if char.isalnum()]
    assert "".join(char for token in tokens for char in str(token) if char.isalnum()) == "".join(
        low for char in kept for low in char.lower() if low.isalnum()
    )


def test_the_default_is_named() -> None:
    assert resolve_tokenizer("rouge-score", "zh", "characters") == "characters"
    assert resolve_tokenizer("paper", "en") == "whitespace"
    assert resolve_tokenizer("paper", "zh") == "spaced-characters"
    with pytest.raises(SettingsError, match="'spaced-characters'"):
        get_tokenizer("spaced-characters")


def count_other_words(texts: Iterable[str]) -> int:
    """Count the texts whose words are not those of jieba in Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jieba
    jieba.setLogLevel("ERROR")
    count = 0
    for text in texts:
        words = [word.lower() for word in jieba.cut(unicodedata.normalize("NFKC", text))]
        count += get_tokenizer("jieba")(text) != [word for word in words if any(map(str.isalnum, word))]
    return count


def test_words_are_those_of_jieba_in_python() -> None:
    rows = [row for split in load_rolebench("sample").values() for row in split if row["language"] == "zh"]
    texts = [text for row in rows for text in (row["question"], *row["references"])]
    assert len(texts) > 100
    assert count_other_words(texts) == 0
    mixed = ["成绩是25-64，差3.5%，见my_list.text的C++、T恤和GPT-4。", "ａ－ｂ，x_y@z.cn，１，０００元"]
    assert count_other_words(mixed) == 0


@pytest.mark.slow
@pytest.mark.realdata
def test_words_of_the_release_are_those_of_jieba_in_python(real_release: Path) -> None:
    files = sorted((real_release / "rolebench-zh").rglob("*.jsonl"))
    lines = {line for file in files for line in file.read_text(encoding="utf-8").splitlines()}
    # 常在, in a question about one role, is one word here and two there.
    assert len(lines) > 10_000
    assert count_other_words(random.Random(5).sample(sorted(lines), 3000)) <= 2
