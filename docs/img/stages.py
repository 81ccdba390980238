"""Draw stages.svg, the way through the four stages: python docs/img/stages.py."""

from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 820, 430
#: Left, top, width, height, color, title, what it is, command.
BOXES = [
    (20, 20, 225, 84, "#eef2f7", "Script or card", "play, chat, novel, …", "role parse"),
    (297, 20, 226, 84, "#fde7c8", "1  Profile", "description, catchphrases", "role build"),
    (20, 160, 225, 84, "#fde7c8", "2  Context-Instruct", "questions to the role", "instruct"),
    (297, 160, 226, 84, "#fde7c8", "3  RoleGPT", "replies in the role's voice", "respond"),
    (575, 160, 225, 84, "#dcefe0", "Data set", "RoleBench, or your own", "role release"),
    (575, 306, 225, 84, "#fde7c8", "4  RoCIT", "an adapter or a model", "train, chat, push"),
    (297, 306, 226, 84, "#e3e6fa", "Answers", "to held-out questions", "generate"),
    (20, 306, 225, 84, "#e3e6fa", "Scores and report", "intervals, biases, one page", "score, judge, check"),
]
ARROWS = [
    "M245 62 H293",
    "M410 104 V156",
    "M410 132 H132 V156",
    "M523 190 H571",
    "M132 244 V272 H600 V248",
    "M700 244 V302",
    "M575 348 H527",
    "M297 348 H249",
]

LOOKS = (
    'font-size="18" font-weight="600" fill="#1d2430"',
    'font-size="15" fill="#3b4553"',
    'font-size="14" font-family="ui-monospace, Menlo, Consolas, monospace" fill="#9a4a00"',
)


def drawing() -> str:
    """The picture as SVG."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT - 20}" role="img" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" text-anchor="middle">',
        "<title>From a script to a report</title>",
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L10 5 L0 10 z" fill="#5b6573"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT - 20}" rx="12" fill="#ffffff"/>',
    ]
    arrow = 'fill="none" stroke="#5b6573" stroke-width="2" marker-end="url(#tip)"'
    lines += [f'<path d="{way}" {arrow}/>' for way in ARROWS]
    for left, top, width, height, color, title, meaning, command in BOXES:
        lines.append(
            f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="10" fill="{color}" stroke="#5b6573"/>'
        )
        lines += [
            f'<text x="{left + width / 2:g}" y="{top + below}" {look}>{escape(text)}</text>'
            for below, look, text in zip((27, 49, 71), LOOKS, (title, meaning, command), strict=True)
        ]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(drawing(), encoding="utf-8")
