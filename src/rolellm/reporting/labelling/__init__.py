"""A local page on which a person ranks and audits the answers of a judging run, blind and with the keyboard alone."""

from rolellm.reporting.labelling.server import LabelServer, serving, stop_request
from rolellm.reporting.labelling.tasks import LabelTask

__all__ = ["LabelServer", "LabelTask", "serving", "stop_request"]
