"""Engines of LLM clients: the compatibility of their options."""
