"""Functions that a sweep names in `extract`."""

import os
import signal


def longest(results):
    return {"longest_s": results.requests.e2e_s.max(), "nothing": float("nan"), "words": "two words"}


def nested(results):
    return {"a": {"b": 1}}


def taken(results):
    return {"makespan_s": 1.0}


def no_dict(results):
    return 3


def only_few(results):
    count = len(results.requests)
    if count == 11:
        raise ValueError("eleven\nis too many")
    if count == 12:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"count": count}
