"""Find phrases that read as translated in source, docs and examples; part of ``make lint``."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: What to look for, and what to write instead.
PHRASES = {
    r"\bis no (\w+ )?(file|folder|number|key|text|habit|reply|answer|run|YAML|JSON|character)\b": "is not a …",
    r"(^|\")Of the (model|bootstrap|run|judge)\b": "say what the option does",
    r"\b(would|will) do(?=[.,;:)\"]|$)": "acceptable, usable",
    r"\bstands? (in|beside|there|behind|between|at)\b": "is in, is next to",
    r"\bso many\b(?! [a-z]+ that)": "N, at most N",
    r"\bBy default found\b": "Detected by default",
    r"\bto be had\b": "available",
    r"\bcontestants?\b": "system",
    r"\bjurors?\b": "judge model",
    r"\bno number any more\b": "no longer a number",
    r"\bof like length\b": "of similar length",
    r"\bhangs? on\b": "depends on",
    r"\b[Mm]end (it|the)\b": "fix",
    r"\b([Ll]icence|[Cc]olour|[Tt]okenised|quantised|summaris|[Oo]ptimiser)": "American spelling",
}
#: Names in code, and proper quotations of what is wrong.
ALLOWED = re.compile(
    r"licence\b(?=[=:,)}]|\s*[=|]|\.| or | is None| ==|$)|LICENCE|own_licence|_licence|`[^`]*`|#colour"
)


def findings(path: Path) -> list[tuple[int, str, str]]:
    """The line, the phrase, and what to write instead."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = ALLOWED.sub("", line)
        found += [(number, hit.group(), way) for phrase, way in PHRASES.items() for hit in re.finditer(phrase, text)]
    return found


def main() -> int:
    """Print what is found; 1 when there is anything."""
    kinds = ("src/**/*.py", "docs/*.md", "dev/*.md", "examples/*.py", "examples/*.ipynb")
    paths = [path for kind in kinds for path in ROOT.glob(kind)]
    paths += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    found = [(path.relative_to(ROOT), *finding) for path in sorted(paths) for finding in findings(path)]
    for name, number, phrase, instead in found:
        print(f"{name}:{number}: {phrase.strip()!r}; write: {instead}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
