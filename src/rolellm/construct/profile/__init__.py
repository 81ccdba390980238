"""Stage 1: a role's profile, out of its script."""

from rolellm.construct.profile.build import BuildSettings, build_profile, planned_requests
from rolellm.construct.profile.folder import Asking, Built, build_folder, start_sheet

__all__ = ["Asking", "BuildSettings", "Built", "build_folder", "build_profile", "planned_requests", "start_sheet"]
