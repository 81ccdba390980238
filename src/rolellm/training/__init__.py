"""RoCIT, stage 4: role-conditioned instruction tuning of a base model on RoleBench."""
