"""A local page on which a person ranks and audits the answers of a judging run, blind and with the keyboard alone."""

from rolellm.labelling.server import LabelServer, serving, stop_request
from rolellm.labelling.tasks import AuditTask, BadLabelError, RankingTask, Task

__all__ = ["AuditTask", "BadLabelError", "LabelServer", "RankingTask", "Task", "serving", "stop_request"]
