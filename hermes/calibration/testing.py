"""Contract suite for measurements.

Inherit it in a test module and give `make()`, a measurement that takes a second or two:

    class TestMyMeasurement(MeasurementContract):
        def make(self):
            return MyMeasurement(sizes=[10, 100])
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from tempfile import TemporaryDirectory

from hermes.calibration.journal import read_journal
from hermes.calibration.measurements import MEASUREMENTS, Measured, Measurement, PointPlan, Shown
from hermes.calibration.measurements.base import kind_of_journal
from hermes.calibration.measurements.files import template
from hermes.config import to_yaml, validate
from hermes.config.yaml_document import parse_yaml

__all__ = ["MeasurementContract"]


class MeasurementContract(ABC):
    """What `hermes calibrate` relies on."""

    @abstractmethod
    def make(self) -> Measurement:
        """Return a measurement of a few points. It is measured for real, by this interpreter."""

    def measured(self, folder: Path) -> tuple[Measurement, PointPlan, Measured]:
        """Plan and measure into `folder`; return (measurement, plan, what was measured)."""
        asked = self.make()
        plan = asked.plan(folder)
        return asked, plan, asked.collect(plan, folder / asked.output)

    def test_a_plan_file_says_all_of_it(self) -> None:
        asked = self.make()
        assert MEASUREMENTS.get(asked.measure) is type(asked), "`measure` is the registered name"
        keys = list(type(asked).model_fields)
        assert keys[0] == "measure"
        assert keys[-1] == "output"
        assert validate(type(asked), parse_yaml(to_yaml(asked.model_dump()))) == asked
        if not any(field.is_required() for field in type(asked).model_fields.values()):
            assert f"measure: {asked.measure}\n" in template(asked.measure)

    def test_a_plan_is_a_function_of_its_keys(self) -> None:
        with TemporaryDirectory() as folder:
            assert self.make().plan(Path(folder)) == self.make().plan(Path(folder))

    def test_every_point_is_in_the_journal_once(self) -> None:
        with TemporaryDirectory() as folder:
            asked, plan, done = self.measured(Path(folder))
            assert done.complete
            names = [record["point"] for record in read_journal(done.journal)[1] if record["kind"] == "point"]
            assert set(names) == {point["name"] for point in plan.points}
            again = asked.collect(plan, Path(folder) / asked.output)
            assert again.complete
            assert [record["point"] for record in read_journal(done.journal)[1] if record["kind"] == "point"] == names
            assert kind_of_journal(done.journal) is type(asked), "a journal names its measurement: see `engines`"

    def test_a_journal_that_was_cut_off_is_packed(self) -> None:
        with TemporaryDirectory() as folder:
            asked, _, done = self.measured(Path(folder))
            with done.journal.open("ab") as file:
                file.write(b'{"kind":"point","po')   # what a kill in the middle of a write leaves
            output = Path(folder) / asked.output
            self.check_shown(asked.conclude(done, output, Path(folder), "hermes calibrate run"))
            whole = output.read_bytes()
            self.check_shown(type(asked).pack(done.journal, output, command="hermes calibrate run"))
            assert output.read_bytes() == whole, "packing again writes the same"

    def test_a_plan_and_a_result_are_shown(self) -> None:
        with TemporaryDirectory() as folder:
            asked = self.make()
            self.check_shown(asked.show_plan(asked.plan(Path(folder))))

    @staticmethod
    def check_shown(shown: Shown) -> None:
        """JSON for programs, and at least one line for a person."""
        assert json.dumps(shown.data, default=str)
        assert shown.parts
