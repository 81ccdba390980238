"""Local pages: a person ranks and audits the answers of a judging run, or talks to roles and votes on their replies."""

from rolellm.labelling.server import LabelServer, running, serving, stop_request
from rolellm.labelling.talk import TalkServer
from rolellm.labelling.tasks import AuditTask, LabelTask, RankingTask

__all__ = [
    "AuditTask",
    "LabelServer",
    "LabelTask",
    "RankingTask",
    "TalkServer",
    "running",
    "serving",
    "stop_request",
]
