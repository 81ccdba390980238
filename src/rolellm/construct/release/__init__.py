"""Characters with their questions and replies, put together as a folder in the layout of the RoleBench release."""

from rolellm.construct.release.gather import RoleData, gather
from rolellm.construct.release.splits import SplitRule
from rolellm.construct.release.write import ReleaseSummary, write_release

__all__ = ["ReleaseSummary", "RoleData", "SplitRule", "gather", "write_release"]
