"""Replays of recorded schedules through HERMES's schedulers, and drivers of the engines' own schedulers."""
