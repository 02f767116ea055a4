import my_packing  # noqa: F401  # registers it

from hermes.testing.schedulers import PackingContract


class TestNewestFirst(PackingContract):
    policy = "newest_first"
