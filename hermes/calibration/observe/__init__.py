"""Drive a live server with a scenario's own requests, and record when their tokens came (`hermes observe`)."""
