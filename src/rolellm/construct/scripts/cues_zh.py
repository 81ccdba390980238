"""The words before a Chinese quotation: whether they make it speech."""

from __future__ import annotations

import re

from rolellm.construct.scripts import words_zh as words
from rolellm.construct.scripts.chapters import Paragraph
from rolellm.construct.scripts.quotes import Quotation

#: What brings in a quotation; a semicolon after a verb of speech is a misprint.
COLON = re.compile(r"[：:]\s*$|(?<=[道曰云日回说问])[；;]\s*$")
_ENDED = tuple("。！？…—～，；!?.,~．﹗-")


def is_spoken(text: str, paragraph: Paragraph, quotation: Quotation) -> bool:
    """Whether a quotation is speech: no quoted word, no title, nothing written, cited or sung by nobody."""
    if quotation.is_resumed:
        return True
    before = text[max(paragraph.start, quotation.left - 40) : quotation.left].rstrip()
    if not before:
        leading = text[max(0, quotation.left - 40) : quotation.left].rstrip()
        return not (COLON.search(leading) and words.is_cited(leading.splitlines()[-1]))
    is_ended = text[quotation.start : quotation.end].rstrip("’'』」 \n").endswith(_ENDED)
    if COLON.search(before):
        return not words.is_cited(before)
    if before[-1] in "，,；;":
        return is_ended and not words.is_cited(before[:-1])
    if before[-1] in '。！？!?…—”」』"）)':
        return is_ended or quotation.right >= paragraph.end
    return bool(words.SHOUTED.search(before)) and (is_ended or before.endswith("声"))
