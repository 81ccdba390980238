"""RoleGPT, stage 3: replies to instructions in a role's voice, by prompting alone."""
