"""The simulator proper: clock, stages, requests, coordinator, simulation, and the record that a run leaves behind."""
