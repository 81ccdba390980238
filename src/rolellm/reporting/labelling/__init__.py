"""Local pages, made with Gradio, on which a person talks with a role, or ranks answers, blind."""
