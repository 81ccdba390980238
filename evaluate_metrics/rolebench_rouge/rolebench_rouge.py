"""Rouge-L as RoleBench is scored with it: the `evaluate` module around `rolellm.scoring`, with the same numbers."""

import datasets
import evaluate

from rolellm.scoring.columns import check_lists, compute_column_means, score_columns

_DESCRIPTION = """\
Rouge-L for role-play benchmarks, under two protocols that name themselves: `rouge-score` (F1 of the best reference,
equal to Google's `rouge_score` on English; Chinese by words or characters) and `paper` (recall of the best reference
under PyPI `rouge` 1.0.1, as in the tables of RoleLLM, arXiv 2310.00746). With `subsets`, it gives CUS, RAW, SPE and
their mean, each with 95 % intervals over questions, exactly as `rolellm score` does.
"""

_INPUTS = """\
Args:
    predictions: list of texts.
    references: list of texts, or of lists of texts.
    protocol: "rouge-score" (default) or "paper".
    language: "en" or "zh"; or a list, one a row. By default, rows with Chinese characters are "zh".
    tokenizer: another tokenizer of the protocol, such as "characters" for Chinese.
    subsets: list of "general" or "role_specific"; asks for CUS, RAW, SPE and avg.
    raw_references: list of role-free targets (or None), for RAW; needs `subsets`.
    questions: list of texts; rows with the same question are one cluster.
    roles: list of names; asks for a breakdown by role.
Returns:
    rougeL (F1 under `rouge-score`, recall under `paper`), precision, recall, f1: means over rows; ci95, n, protocol,
    tokenizer, fingerprint; with `subsets` also metrics (CUS, RAW, SPE, avg, each with mean, ci95 and n) and, under
    their own names, the four means; with `roles` also by_role. What has no rows is None, never 0.
Examples:
    >>> rouge = evaluate.load("evaluate_metrics/rolebench_rouge")
    >>> rouge.compute(predictions=["the raven sits still"], references=[["a raven", "the raven never sits"]])["rougeL"]
    0.75
"""

_CITATION = """\
@inproceedings{wang2024rolellm,
  title = {RoleLLM: Benchmarking, Eliciting, and Enhancing Role-Playing Abilities of Large Language Models},
  booktitle = {Findings of the Association for Computational Linguistics: ACL 2024},
  year = {2024},
  note = {arXiv 2310.00746}
}
"""


class RolebenchRouge(evaluate.Metric):
    """Rouge-L under a named protocol, and CUS, RAW, SPE of it."""

    def _info(self):
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=[
                datasets.Features({"predictions": text, "references": datasets.Sequence(text)}),
                datasets.Features({"predictions": text, "references": text}),
            ],
        )

    def compute(self, *, predictions=None, references=None, **options):
        """As in `evaluate.Metric`, after a check of the lists."""
        if predictions is not None and references is not None:
            check_lists(predictions, references)
        return super().compute(predictions=predictions, references=references, **options)

    def _compute(
        self,
        predictions,
        references,
        protocol="rouge-score",
        language=None,
        tokenizer=None,
        subsets=None,
        raw_references=None,
        questions=None,
        roles=None,
    ):
        columns = {
            "references": references,
            "language": language,
            "subset": subsets,
            "raw_reference": raw_references,
            "question": questions,
            "role": roles,
        }
        report = score_columns(predictions, columns, protocol=protocol, tokenizer=tokenizer)
        found = report.to_dict()
        result = {
            **compute_column_means(report),
            "protocol": protocol,
            "tokenizer": ", ".join(dict.fromkeys(found["fingerprint"]["tokenizer"].values())),
            "fingerprint": found["fingerprint"],
        }
        if subsets is None:
            result["ci95"] = found["metrics"]["CUS"]["ci95"]
        else:
            result["metrics"] = found["metrics"]
            result.update({name: item and item["mean"] for name, item in found["metrics"].items()})
        if roles is not None:
            result["by_role"] = found["by_role"]
        return result
