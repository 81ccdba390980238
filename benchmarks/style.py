"""How the style meter's settings were chosen, and how good it is: settings, held-out accuracy, learning curve.

    python benchmarks/style.py FILE... --language en [--part settings|held-out|curve] [--misjudged OUT.jsonl]

FILE is a data file of the release with replies to general instructions. A fifth of the instructions is held out.
Settings are compared inside the rest (two thirds of its instructions to learn from, one third to judge); ``held-out``
and ``curve`` (which learns from fewer) look at the held-out fifth, with the settings that the package has.
"""

import argparse
import hashlib
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from common import existing
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import ComplementNB
from sklearn.svm import LinearSVC

from rolellm.core.records import Language
from rolellm.core.text import fold
from rolellm.scoring import style

#: Analyzers and their ranges.
Views = list[tuple[str, tuple[int, int]]]
#: Role, folded question, question and text.
Reply = tuple[str, str, str, str]
Labels = npt.NDArray[Any]
OWN = {"en": "char 3-4 + word 1-2", "zh": "char 1-3"}


def dealt(question: str, parts: int, salt: str) -> int:
    """The part of a question, the same in every run."""
    return int(hashlib.sha256((salt + question).encode()).hexdigest(), 16) % parts


def replies(files: list[Path]) -> list[Reply]:
    """Role, folded question, question and text of each reply."""
    found = []
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found += [(row["role"], fold(row["question"]), row["question"], text) for text in row["generated"]]
    return found


def settings() -> dict[str, tuple[Views, Any]]:
    """Name to views (analyzer, range, masked or not, case) and what learns from them."""
    svc = LinearSVC(C=0.1, random_state=0)
    char, word = ("char", (2, 4)), ("word", (1, 2))
    common = {
        "char 1-2": ([("char", (1, 2))], svc),
        "char 1-3": ([("char", (1, 3))], svc),
        "char 2-4": ([char], svc),
        "char 2-4, ComplementNB": ([char], ComplementNB(alpha=0.3)),
        "char 1-4": ([("char", (1, 4))], svc),
        "char 1-5": ([("char", (1, 5))], svc),
        "char 1-5 + word 1-3": ([("char", (1, 5)), ("word", (1, 3))], svc),
        "char 3-4 + word 1-2": ([("char", (3, 4)), word], svc),
        "char 1-3, C = 0.3": ([("char", (1, 3))], LinearSVC(C=0.3, random_state=0)),
        "word 1-2": ([word], svc),
        "char 2-4 + word 1-2": ([char, word], svc),
        "char 2-4 + word 1-2, C = 0.03": ([char, word], LinearSVC(C=0.03, random_state=0)),
        "char 2-4 + word 1-2, C = 0.3": ([char, word], LinearSVC(C=0.3, random_state=0)),
        "char 2-4 + word 1-2, logistic, C = 10": ([char, word], LogisticRegression(C=10, tol=1e-2, max_iter=60)),
    }
    return common | {f"{name}, masked": (views, learner) for name, (views, learner) in common.items()}


def fitted(views: Views, learn: list[Reply], judge: list[Reply], language: Language, masked: bool) -> tuple[Any, Any]:
    """Features of what is learned from and of what is judged."""
    shown = [
        [style.mask_repeats(text, question, language) if masked else text for _, _, question, text in part]
        for part in (learn, judge)
    ]
    matrices = []
    for kind, size in views:
        more = {"token_pattern": style.WORD} if kind == "word" else {}
        vectors = TfidfVectorizer(
            analyzer=kind, ngram_range=size, sublinear_tf=True, min_df=2, dtype=np.float32, **more
        )
        matrices.append((vectors.fit_transform(shown[0]), vectors.transform(shown[1])))
    first, second = zip(*matrices, strict=True)
    return sp.hstack(first).tocsr(), sp.hstack(second).tocsr()


def judged(learner: Any, data: tuple[Any, Any], roles: Labels) -> Labels:
    """A score for each judged reply and role."""
    learner.fit(data[0], roles)
    score = getattr(learner, "decision_function", None) or learner.predict_proba
    scores: Labels = score(data[1])
    # Of two roles, scikit-learn gives the second's alone.
    return scores if scores.ndim > 1 else np.column_stack([-scores, scores])


def right(scores: Labels, known: Labels, names: Labels) -> str:
    """Top-1 and top-5 in percent."""
    own = np.searchsorted(names, known)
    rank = (scores > scores[np.arange(len(own)), own][:, None]).sum(axis=1)
    return f"{100 * (rank == 0).mean():.1f} | {100 * (rank < 5).mean():.1f}"


def main() -> None:
    """Measure the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=existing, nargs="+")
    parser.add_argument("--language", required=True, choices=("en", "zh"))
    parser.add_argument("--part", default="settings", choices=("settings", "held-out", "curve"))
    parser.add_argument("--only", default="", help="settings whose name has this")
    parser.add_argument("--misjudged", type=Path, help="with held-out: write the misjudged replies to this file")
    arguments = parser.parse_args()
    language = arguments.language
    every = replies(arguments.files)
    learn = [one for one in every if dealt(one[1], 5, "style")]
    held_out = [one for one in every if not dealt(one[1], 5, "style")]
    own = settings()[f"{OWN[language]}, masked"]
    if arguments.part == "settings":
        judge = [one for one in learn if not dealt(one[1] + "cv", 3, "style")]
        learn = [one for one in learn if dealt(one[1] + "cv", 3, "style")]
        for name, (views, learner) in settings().items():
            if arguments.only in name:
                started = time.process_time()
                data = fitted(views, learn, judge, language, name.endswith("masked"))
                names = np.unique([one[0] for one in learn])
                scores = judged(learner, data, np.array([one[0] for one in learn]))
                cost = time.process_time() - started
                known = np.array([one[0] for one in judge])
                print(f"| {name} | {data[0].shape[1]:,} | {right(scores, known, names)} | {cost:.0f} |", flush=True)
        return
    known = np.array([one[0] for one in held_out])
    names = np.unique(known)
    order = sorted({one[1] for one in learn}, key=lambda question: dealt(question, 1 << 60, "curve"))
    for share in (1.0,) if arguments.part == "held-out" else (0.125, 0.25, 0.5):
        kept = set(order[: round(share * len(order))])
        part = [one for one in learn if one[1] in kept]
        scores = judged(own[1], fitted(own[0], part, held_out, language, True), np.array([one[0] for one in part]))
        print(f"| {len(kept):,} | {len(part):,} | {right(scores, known, names)} |", flush=True)
    for low, high in ((0, 30), (30, 60), (60, 120), (120, 240), (240, 1 << 30)):
        lengths = np.array([low <= len(one[3]) < high for one in held_out])
        if lengths.any():
            shares = right(scores[lengths], known[lengths], names)
            print(f"{low} to {high} characters: {lengths.mean():.0%} of replies, {shares}")
    if arguments.misjudged:
        wrong = [at for at in range(len(known)) if names[scores[at].argmax()] != known[at]]
        random.Random(0).shuffle(wrong)
        lines = [
            {
                "role": held_out[at][0],
                "taken_for": str(names[scores[at].argmax()]),
                "question": held_out[at][2],
                "reply": held_out[at][3],
            }
            for at in wrong
        ]
        arguments.misjudged.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines))


if __name__ == "__main__":
    main()
