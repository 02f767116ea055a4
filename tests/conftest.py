"""Settings of all tests."""

from hypothesis import settings

# How long an example takes says nothing about whether it is right, and on a busy machine nothing at all: the first one
# of a process also builds the models of a scenario.
settings.register_profile("hermes", deadline=None)
settings.load_profile("hermes")
