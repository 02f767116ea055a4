"""Evidence for HERMES's predictions: what a checkout runs and users of a wheel never do.

- `accuracy`: reference sets of measured servers, and the errors of predictions against them (`hermes accuracy`)
- `retrieval`: judged corpora and measures of rankings, for the study of data structures
- `schedules`: replays of schedules that engines recorded (`hermes conform`), and drivers of the engines' own schedulers
"""
