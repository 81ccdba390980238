"""RoleBench in the evaluation harnesses that people already use, with the numbers of ``rolellm score``.

Start at `tasks`: the prompt and the score of one row. ``lm_eval/`` holds the tasks of lm-evaluation-harness as YAML.
"""
