"""Shared-prefix packing: `tree` finds what prompts share, `plan` cuts steps, `layout` makes tensors, `attention` masks.

Start at `plan`.
"""
