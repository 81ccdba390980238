"""ChatGLM2-6B and ChatGLM3-6B as native checkpoints: the base of RoleGLM. See dev/chatglm.md."""
