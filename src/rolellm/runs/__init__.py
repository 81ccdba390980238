"""Stages that ask models, and the folders they leave. Start reading in `rolellm.runs.step`.

A new stage is one class, usually under 150 lines with its settings. Its fields are its inputs and its settings::

    @settings
    class GreetSettings(SamplingSettings):
        \"\"\"How greetings are made.

Attributes:
            count: Number of greetings.
        \"\"\"

        count: int = Field(default=3, ge=1)

    @dataclass(frozen=True)
    class Greet(Step[list[str]]):
        character: Profile
        settings: GreetSettings
        kind: ClassVar[str] = "greet"

        def plan(self, llm: LLM) -> Plan[list[str]]:
            requests = [Request((user(f"Greet me as {self.character.role}."),), self.settings.sampling, number)
                        for number in range(self.settings.count)]
            outcomes = yield Round(requests, accept_text, label="greeting")
            return [outcome.value for outcome in outcomes if isinstance(outcome, Answer)]

        def records(self, greetings: list[str]) -> Records:
            return {"greetings.jsonl": [{"greeting": text} for text in greetings]}

        def summarize(self, greetings: list[str]) -> dict[str, Any]:
            return {"greetings": len(greetings)}

``run_step(Greet(character, settings), llm, out)`` locks the folder, asks what the journal does not answer yet, keeps to
the budget, uses Ray or batches as the options say, writes the records and ``manifest.json``, and returns a `Run`.
``estimate_step(step, llm)`` is its dry run. A plan may yield any number of rounds, each made from the outcomes of those
before; a round that others depend on has a `Round.stand_in`, so that the dry run counts them, too. A reply for which
`accept` raises `UnacceptableError` is asked for again; replies are kept raw and judged anew in every run, so another
`accept` costs nothing. The command is a function with the settings class as a parameter, as in ``cli/respond.py``.
"""

from rolellm.runs.run import MANIFEST, R, Run, check_run_folder, find_runs
from rolellm.runs.step import Plan, Records, Round, Step, estimate_step, plan_rounds, run_step

__all__ = [
    "MANIFEST",
    "Plan",
    "R",
    "Records",
    "Round",
    "Run",
    "Step",
    "check_run_folder",
    "estimate_step",
    "find_runs",
    "plan_rounds",
    "run_step",
]
