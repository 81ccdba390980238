"""Local pages, made with Gradio, on which a person talks with a role, or ranks and audits answers, blind."""
