"""Stage 1: a role's profile, out of its script."""

from rolellm.construct.profile.build import build_profile, planned_requests
from rolellm.construct.profile.folder import Built, build_folder, start_sheet

__all__ = ["Built", "build_folder", "build_profile", "planned_requests", "start_sheet"]
