"""`each` and `check_each`: all cases run, and all failures are reported."""

import pytest
from each import check_each, each


def test_all_failures_are_reported_together() -> None:
    def check(number: int) -> None:
        assert number % 2, f"{number} is even"

    with pytest.raises(pytest.fail.Exception) as caught:
        check_each(range(5), check)
    first, *lines = str(caught.value).splitlines()
    assert first == "3 of 5 cases failed"
    said = "\n".join(lines)
    assert all(f"{number} is even" in said for number in (0, 2, 4))
    assert "1 is" not in said
    check_each([1, 3], check)


def test_no_case_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="there are no cases"):
        check_each([], print)


SEEN: list[tuple[int, str]] = []


@each(("number", "letter"), [(1, "a"), (2, "b")])
def test_every_case_runs_in_one_test(number: int, letter: str, tmp_path: object) -> None:
    assert tmp_path
    SEEN.append((number, letter))


def test_every_case_has_run() -> None:
    del SEEN[:]
    test_every_case_runs_in_one_test(tmp_path="somewhere")
    assert SEEN == [(1, "a"), (2, "b")]


@each("name", ["x"])
class TestMethods:
    def test_the_class_takes_it_for_all_its_tests(self, name: str) -> None:
        assert name == "x"
