"""hermes: a discrete-event simulator for multi-stage LLM serving."""

__version__ = "0.1.0"
