"""The simulator's kernel: clock, stages, requests, coordinator, simulation and the record of a run."""
