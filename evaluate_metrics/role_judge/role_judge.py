"""Role-play answers judged by a language model: the `evaluate` module around `rolellm judge`, with the same numbers."""

import datasets
import evaluate

from rolellm.judging.columns import check_answers, judge_columns

_DESCRIPTION = """\
A language model compares a model's role-play answers with a baseline's by the two criteria of RoleLLM (arXiv
2310.00746): the role's speaking style, and the role's knowledge. Each pair is judged in both orders
and each list in several, a verdict that cannot be read is none, and two attackers (a constant answer and an echo) take
part in every judgement. Gives win rate, length-controlled win rate and average rank with 95 % intervals
over questions, exactly as `rolellm judge` does, and what might have biased them.
"""

_INPUTS = """\
Args:
    predictions: list of texts, the model's answers.
    references: list of texts, the baseline's answers to the same rows.
    questions: list of texts; rows with the same question are one cluster.
    roles: list of names.
    llm: a settings file of the models that judge (YAML, as for `--llm`).
    descriptions: list of texts; the roles' descriptions.
    knowledge: list of texts, lists of texts, or None; what the judge is shown as reference.
    folder: the run's folder ("role-judge"); what it holds already is not asked again.
    Any setting of `rolellm.judge`, such as judges, jury, canaries, seed or budget.
Returns:
    win_rate, lc_win_rate, list_win_rate, average_rank and consistency, each with its `..._ci95`; canaries (name to win
    rate), problems (in words), n, and result (all of it, as result.json in the folder). What there is nothing of is
    None, never 0.
Examples:
    >>> judge = evaluate.load("evaluate_metrics/role_judge")
    >>> found = judge.compute(predictions=["Arr!"], references=["Yes."], questions=["Is it you?"], roles=["Silver"],
    ...                       llm="llm.yaml", folder="silver")
"""

_CITATION = """\
@inproceedings{wang2024rolellm,
  title = {RoleLLM: Benchmarking, Eliciting, and Enhancing Role-Playing Abilities of Large Language Models},
  booktitle = {Findings of the Association for Computational Linguistics: ACL 2024},
  year = {2024},
  note = {arXiv 2310.00746}
}
"""


class RoleJudge(evaluate.Metric):
    """Win rate and average rank of a model against a baseline, by a judge that is a language model."""

    def _info(self):
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": text, "references": text}),
        )

    def compute(self, *, predictions=None, references=None, **options):
        """As in `evaluate.Metric`, after a check of the lists."""
        # Without either, what `add_batch` was given before is judged.
        if predictions is not None or references is not None or self.writer is None:
            check_answers(predictions, references)
        return super().compute(predictions=predictions, references=references, **options)

    def _compute(self, predictions, references, **columns_and_settings):
        return judge_columns(predictions, references, **columns_and_settings)
