"""Systems that played the same scenes, compared by two rules: who spoke for another, and who knew too much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from rolellm.core.result import Result
from rolellm.core.table import Interval, Table
from rolellm.core.text import format_count
from rolellm.scenes.names import SPOKE_FOR
from rolellm.scenes.play import PlayedScene
from rolellm.scenes.scene import ENVIRONMENT, Scene
from rolellm.scoring.statistics.intervals import (
    DECIDED,
    ClusteredSample,
    Measured,
    adjust_p_values,
    compare_pairs,
    estimate_share,
    name_clusters,
)

#: What is counted, as a share of a scene's turns.
SPOKE: Final = "spoke for another"
KNEW: Final = "knew what it had not witnessed"


@dataclass(frozen=True, slots=True)
class SceneTest:
    """A paired test of two systems over scenes.

    Attributes:
        pair: The systems.
        check: `SPOKE` or `KNEW`.
        difference: The first's mean share minus the second's.
        p: Of no difference; adjusted by Holm for all tests of the comparison.
    """

    pair: tuple[str, str]
    check: str
    difference: Measured
    p: float


@dataclass(frozen=True, slots=True, repr=False)
class SceneComparison(Result):
    """Result of a comparison.

    Attributes:
        scenes: Number of scenes in which every system has a turn.
        shares: System to check to the mean over scenes of the share of turns.
        tests: Of each pair of systems.
    """

    scenes: int
    shares: Mapping[str, Mapping[str, Measured]]
    tests: tuple[SceneTest, ...]

    def tables(self) -> tuple[Table, ...]:
        """Build the table of systems, and that of their differences."""
        rows = [(name, shares.get(SPOKE), shares.get(KNEW)) for name, shares in self.shares.items()]
        heads = ("System", f"{SPOKE.capitalize()} %", f"{KNEW.capitalize()} %")
        tables = [Table.from_rows("Scenes", heads, rows)]
        if self.tests:
            tests = [(f"{' − '.join(test.pair)}: {test.check}", test.difference, test.p) for test in self.tests]
            tables.append(Table.from_rows("Scenes, paired", ("Systems", "Difference %", "p (Holm)"), tests))
        return tuple(tables)

    def remarks(self) -> list[str]:
        """Say which system does less of what it should not."""
        sentences = []
        for test in self.tests:
            if test.p < DECIDED:
                mean = 100 * (test.difference or Interval(0)).mean
                better, worse = test.pair if mean < 0 else test.pair[::-1]
                points = f"{abs(mean):.1f} points on {format_count(self.scenes, 'scene')}"
                sentences.append(f"{better} {test.check} less often than {worse}, by {points}.")
        if self.tests and not sentences:
            sentences.append(f"{format_count(self.scenes, 'scene')}: no difference holds after Holm's adjustment.")
        return sentences


def compare_scenes(scenes: Sequence[Scene], played: Mapping[str, Sequence[PlayedScene]]) -> SceneComparison:
    """Compare systems scene by scene, where each of them has a turn.

    Args:
        scenes: The scenes.
        played: System to the scenes as it played them, in their order.
    """
    rows = []
    for number, scene in enumerate(scenes):
        row = {name: _measure(scene, plays[number]) for name, plays in played.items()}
        if all(row.values()):
            rows.append(row)
    shares: dict[str, dict[str, Measured]] = {name: {} for name in played}
    tests = []
    for check in (SPOKE, KNEW):
        columns: dict[str, list[float]] = {}
        for name in played:
            values = [row[name][check] for row in rows if check in row[name]]
            if values:
                columns[name] = values
                shares[name][check] = estimate_share(ClusteredSample(values, range(len(values))))
        for pair in combinations(columns, 2):
            first, second = (columns[name] for name in pair)
            test = compare_pairs(first, second, range(len(first)))
            tests.append(SceneTest(pair, check, test.difference, test.p))
    adjusted = adjust_p_values([test.p for test in tests])
    tests = [replace(test, p=p) for test, p in zip(tests, adjusted, strict=True)]
    return name_clusters(SceneComparison(len(rows), shares, tuple(tests)), "scene")


def _measure(scene: Scene, play: PlayedScene) -> dict[str, float]:
    """Measure each check's share of a scene's turns; empty without turns, and without secrets nobody knows too much."""
    turns = [turn for turn in play.turns[play.opening :] if turn.speaker != ENVIRONMENT]
    if not turns:
        return {}
    shares = {SPOKE: sum(SPOKE_FOR in turn.note for turn in turns) / len(turns)}
    if scene.secrets:
        lapsed = {lapse.turn for lapse in play.lapses}
        shares[KNEW] = sum(turn.turn in lapsed for turn in turns) / len(turns)
    return shares
