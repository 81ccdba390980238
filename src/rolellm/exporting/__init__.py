"""A tuned model for other programs: merged weights, GGUF, a Modelfile for Ollama, a command for vLLM, and its passport.

Start at `export.py`; `llama_cpp.py` runs llama.cpp's own tools, `modelfile.py` writes what Ollama reads.
"""
