"""Which segment is asked about next, and when there is enough.

Each type of question has a *lane*: its segments in an order drawn by seed, visited again and again, each time with
another focus. A place in a lane fixes the prompt: what stands there depends on the places before it and on nothing
else, so a run that is resumed, or one that wants more pairs, finds the replies that were paid for. For this the
questions that a prompt lists as asked come from earlier *laps* only. A lap is long enough to keep an endpoint busy
although a profile is a single segment.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rolellm.construct.context_instruct.prompts import Task, focuses, within
from rolellm.construct.context_instruct.segments import Count, QuestionType, Segment
from rolellm.records import Language
from rolellm.text import fold

#: Tokens of a segment that one pair is worth (our choice): shorter segments are asked for fewer pairs.
TOKENS_A_PAIR = 40
_FEWEST = 3
#: Requests in a row without a new question after which a lane is given up, laps being as long as scripts (our choice).
_PATIENCE = 16


@dataclass(slots=True)
class Lane:
    """The segments of one type of question, and how far they were asked about.

    Attributes:
        type: Of its questions.
        segments: In the order of their visits.
        target: How many different questions are wanted.
        language: Of its prompts.
        per_request: The most pairs that one request asks for.
        asked_tokens: The most tokens of the questions that a prompt lists as asked.
        count: Tokens of a text.
        position: The next place.
        requests: How many requests brought a reply that was read.
        distinct: Different questions so far, folded.
        stale: How many requests in a row brought nothing new.
    """

    type: QuestionType
    segments: Sequence[Segment]
    target: int
    language: Language
    per_request: int
    asked_tokens: int
    count: Count
    position: int = 0
    requests: int = 0
    stale: int = 0
    distinct: set[str] = field(default_factory=set)
    _asked: dict[str, list[tuple[int, int, str]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def dry(self) -> bool:
        """Whether no more is to be expected: as many requests in a row brought nothing new as would make a lap."""
        return not self.segments or self.stale >= min(self.lap, _PATIENCE)

    @property
    def lap(self) -> int:
        """How many places a lap has."""
        return len(self.segments) * self._visits_a_lap

    @property
    def _visits_a_lap(self) -> int:
        return math.ceil(len(self._focuses) / len(self.segments))

    @property
    def _focuses(self) -> Sequence[str]:
        return focuses(self.language, self.segments[0].kind)

    def next_round(self, wanted: int) -> list[Task]:
        """The tasks of a round: as many as `wanted` questions take at the yield so far, up to the end of the lap."""
        if self.dry or wanted <= 0:
            return []
        left = self.lap - self.position % self.lap
        tasks: list[Task] = []
        while len(tasks) < left and wanted > 0:
            task = self._task(self.position)
            wanted -= math.ceil(task.count * self._yield())
            tasks.append(task)
            self.position += 1
        return tasks

    def _yield(self) -> float:
        """New questions for each one asked for, as far as is known; never so low that a round grows without end."""
        if not self.requests:
            return 1.0
        return min(max(len(self.distinct) / (self.requests * self.per_request), 0.25), 1.0)

    def _task(self, position: int) -> Task:
        visit, place = divmod(position, len(self.segments))
        segment = self.segments[place]
        repeat, turn = divmod(visit, len(self._focuses))
        focus = (turn + place) % len(self._focuses)
        before = visit - visit % self._visits_a_lap
        asked = [(other != focus, -when, text) for when, other, text in self._asked[segment.id] if when < before]
        # What was asked under the same focus is most likely to come again; then what was asked last.
        listed = [text for _, _, text in sorted(asked, key=lambda item: item[:2])]
        pairs = self.per_request
        if segment.kind != "profile":
            pairs = min(pairs, max(_FEWEST, segment.tokens // TOKENS_A_PAIR))
        return Task(segment, pairs, focus, visit, repeat, within(listed, self.asked_tokens, self.count))

    def note(self, task: Task, questions: Sequence[str]) -> None:
        """Take down what a task brought."""
        self.requests += 1
        self.stale += 1
        for question in questions:
            if fold(question) not in self.distinct:
                self._asked[task.segment.id].append((task.visit, task.focus, question))
                self.distinct.add(fold(question))
                self.stale = 0


def shuffled(segments: Sequence[Segment], seed: int, role: str) -> list[Segment]:
    """Segments in an order of the seed's, so that the first ones come from all over the script."""
    order = list(segments)
    random.Random(f"{seed}/{role}").shuffle(order)
    return order


def wanted_of(lanes: Sequence[Lane], per_role: int) -> Callable[[Lane], int]:
    """How many questions a lane still has to bring: its own share, and what lanes that are dry fall short of."""
    missing = max(per_role - sum(len(lane.distinct) for lane in lanes), 0)

    def wanted(lane: Lane) -> int:
        own = lane.target - len(lane.distinct)
        others = [other for other in lanes if other is not lane and not other.dry]
        return own if others else max(own, missing)

    return wanted
