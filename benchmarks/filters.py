"""What the filters of `rolellm instruct` and the checks of a description say of a release's own pairs and descriptions.

    python benchmarks/filters.py [--data-dir RELEASE] [--json]

The pairs are the role-specific questions of the test splits (and the Chinese train split) with their first answers,
rated high; a pair's segment is its role's description, for the release's scripts may not be there.
"""

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from common import environment, make_parser, report

from rolellm.core.errors import RoleLLMError
from rolellm.core.records import Language, Profile
from rolellm.data.rolebench.release import Release, split_catchphrases
from rolellm.data.rolebench.source import sample_folder
from rolellm.llm.model import Reply, Request, UnacceptableError, Usage
from rolellm.making.instruct.candidates import parse_candidate
from rolellm.making.instruct.filters import filter_candidates
from rolellm.making.instruct.segments import Segment
from rolellm.making.profile.portrait import accept_portrait, collect_names
from rolellm.making.settings import FilterSettings

FILES: dict[Language, tuple[str, ...]] = {
    "en": ("rolebench-eng/instruction-generalization/role_specific/test.jsonl",),
    "zh": ("rolebench-zh/role_specific/train.jsonl", "rolebench-zh/role_specific/test.jsonl"),
}
HIGH = {"level": "high", "reason": ""}


def filter_pairs(release: Release, language: Language) -> Counter[str]:
    """Count the verdicts on a language's pairs, by filter and the reason's words outside of brackets."""
    by_role: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in FILES[language]:
        if (release.root / path).is_file():
            for _, row in release.read_rows(path):
                by_role[row["role"]].append(row)
    descriptions = release.read_descriptions(language)
    counts: Counter[str] = Counter()
    for role, rows in by_role.items():
        description, catchphrases = split_catchphrases(descriptions.get(role, ""))
        character = Profile(role, language, description=description or None, catchphrases=tuple(catchphrases))
        segment = Segment("profile", "profile", character.full_description or role, 1)
        candidates = []
        for place, row in enumerate(rows):
            item = {"question": row["question"], "answer": row["generated"][0], "completeness": HIGH}
            candidates.append(parse_candidate({**item, "factualness": HIGH}, segment, {"visit": 0, "place": place}))
        for verdict in filter_candidates(candidates, character, FilterSettings()):
            reason = re.sub(r" as profile/.*| ?\(.*|\d.*", "", verdict.reason or "", flags=re.DOTALL)
            counts[f"{verdict.by}: {reason}" if verdict.by else "kept"] += 1
    return counts


def check_descriptions(release: Release) -> Counter[str]:
    """Count the English descriptions without a defect, and the defects of the others."""
    counts: Counter[str] = Counter()
    for role, text in release.read_descriptions("en").items():
        accept = accept_portrait("second", "en", collect_names(Profile(role, "en")), "")
        try:
            accept(Request(()), Reply(split_catchphrases(text)[0], "stop", Usage(), "m", "e", {}))
            counts["no defect"] += 1
        except UnacceptableError as error:
            counts.update(re.sub(r"[(:\d].*", "", defect).strip() for defect in error.defects)
    return counts


def main() -> None:
    """Count and print."""
    arguments = make_parser(__doc__, reads_release=True).parse_args()
    release = Release(Path(arguments.data_dir or sample_folder()), skipped=[])
    figures: dict[str, Any] = {}
    for language in FILES:
        for name, count in filter_pairs(release, language).most_common():
            figures[f"{language}, {name}"] = count
    for name, count in check_descriptions(release).most_common():
        figures[f"description, {name}"] = count
    if not figures:
        raise RoleLLMError(f"{release.root} has no role-specific rows")
    report(
        "filters", {"ratios": {}, "figures": figures, "n": sum(figures.values()), **environment()}, [], arguments.json
    )


if __name__ == "__main__":
    main()
