"""Systems that played the same scenes, compared by two rules: who spoke for another, and who knew too much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from rolellm.core.result import Result
from rolellm.core.table import PERCENT, Table
from rolellm.core.text import format_count
from rolellm.scenes.play import SPOKE_FOR, PlayedScene
from rolellm.scenes.scene import ENVIRONMENT, Scene
from rolellm.scoring.statistics.intervals import (
    ClusteredSample,
    Interval,
    Measured,
    adjust_p_values,
    compare_pairs,
    estimate_share,
)

#: What is counted, as a share of a scene's turns.
SPOKE: Final = "spoke for another"
KNEW: Final = "knew what it had not witnessed"
#: A difference is decided below this p, after Holm's correction.
_LEVEL: Final = 0.05


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
        scenes: Number of scenes.
        shares: System to check to the mean over scenes of the share of turns.
        tests: Of each pair of systems.
    """

    scenes: int
    shares: Mapping[str, Mapping[str, Measured]]
    tests: tuple[SceneTest, ...]

    def tables(self) -> tuple[Table, ...]:
        """Build the table of systems, and that of their differences."""
        rows = [[name, checks.get(SPOKE), checks.get(KNEW)] for name, checks in self.shares.items()]
        heads = ("System", f"{SPOKE.capitalize()} %", f"{KNEW.capitalize()} %")
        tables = [Table.from_rows("Scenes", heads, rows)]
        if self.tests:
            pairs = []
            for test in self.tests:
                name = f"{' − '.join(test.pair)}: {test.check}"
                pairs.append([name, test.difference, test.p])
            tests = Table.from_rows("Scenes, paired", ("First − second", "Points", "p (Holm)"), pairs)
            tables.append(replace(tests, formats={"Points": PERCENT}))
        return tuple(tables)

    def remarks(self) -> list[str]:
        """Say which system does less of what it should not."""
        sentences = []
        for test in self.tests:
            if test.p < _LEVEL and test.difference is not None:
                better, worse = test.pair if test.difference.mean < 0 else test.pair[::-1]
                points = f"{abs(100 * test.difference.mean):.1f} points (n = {test.difference.n})"
                sentences.append(f"In scenes, {better} {test.check} less often than {worse}, by {points}.")
        scenes = format_count(self.scenes, "scene")
        if self.tests and not sentences:
            sentences = [f"{scenes} decide nothing: no difference holds after Holm's adjustment."]
        return sentences


def compare_systems(scenes: Sequence[Scene], played: Mapping[str, Sequence[PlayedScene]]) -> SceneComparison:
    """Compare systems scene by scene; in each pair, over the scenes in which both have a turn.

    Args:
        scenes: The scenes.
        played: System to the scenes as it played them, in their order.
    """
    values: dict[str, dict[str, dict[int, float]]] = {}
    for name, plays in played.items():
        values[name] = {SPOKE: {}, KNEW: {}}
        for number, (scene, play) in enumerate(zip(scenes, plays, strict=True)):
            for check, share in _measure(scene, play).items():
                values[name][check][number] = share
    shares: dict[str, dict[str, Measured]] = {}
    for name, checks in values.items():
        shares[name] = {}
        for check, by_scene in checks.items():
            if by_scene:
                sample = ClusteredSample([*by_scene.values()], [*by_scene])
                shares[name][check] = _name_scenes(estimate_share(sample))
    tests = []
    for first, second in combinations(values, 2):
        for check in (SPOKE, KNEW):
            by_scene, rivals = values[first][check], values[second][check]
            both = sorted(by_scene.keys() & rivals.keys())
            if both:
                test = compare_pairs([by_scene[number] for number in both], [rivals[number] for number in both], both)
                tests.append(SceneTest((first, second), check, _name_scenes(test.difference), test.p))
    adjusted = adjust_p_values([test.p for test in tests])
    tests = [replace(test, p=p) for test, p in zip(tests, adjusted, strict=True)]
    return SceneComparison(len(scenes), shares, tuple(tests))


def _measure(scene: Scene, play: PlayedScene) -> dict[str, float]:
    """Measure the share of a scene's turns of each check; without secrets, nobody can know too much."""
    turns = [turn for turn in play.turns[play.opening :] if turn.speaker != ENVIRONMENT]
    if not turns:
        return {}
    spoke = sum(SPOKE_FOR in turn.note for turn in turns)
    shares = {SPOKE: spoke / len(turns)}
    if scene.secrets:
        lapsed = {lapse.turn for lapse in play.lapses}
        shares[KNEW] = sum(turn.turn in lapsed for turn in turns) / len(turns)
    return shares


def _name_scenes(interval: Interval) -> Interval:
    return interval._replace(method=interval.method.replace("question", "scene"))
