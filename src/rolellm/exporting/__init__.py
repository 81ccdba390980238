"""A tuned character leaves the house: merged weights, GGUF, Ollama's Modelfile, a vLLM command line, and its passport.

Start reading at `rolellm.exporting.export`.
"""
