import my_slots  # noqa: F401  # registers it

from hermes.plugins.orthrus.testing import SlotPolicyContract


class TestSquareRoot(SlotPolicyContract):
    policy = "square_root"
