"""Stage 1: a role's profile from its script; start with `rolellm.making.profile.build`."""
