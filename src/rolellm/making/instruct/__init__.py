"""Context-Instruct: questions and answers of a role from its profile and its script (the paper's stage 2).

Start with `rolellm.making.instruct.run`.
"""
