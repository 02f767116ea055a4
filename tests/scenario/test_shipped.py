"""The shipped scenarios: one hardware model for all that users start from."""

from pathlib import Path

from each import each

from hermes.scenario import load_scenario

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
FOR_USERS = [path for path in sorted(SCENARIOS.rglob("*.yaml"))
             if path.relative_to(SCENARIOS).parts[0] not in ("studies", "validation", "sweeps")]


@each("path", FOR_USERS, ids=lambda path: path.stem)
def test_shipped_scenarios_have_one_hardware_model(path: Path) -> None:
    engines = [client for client in load_scenario(path).clients if client.kind == "llm"]
    assert {client.hardware.kind for client in engines} <= {"composed"}


@each("path", sorted(SCENARIOS.glob("sweeps/*.yaml")), ids=lambda path: path.stem)
def test_shipped_sweeps_name_no_other_model(path: Path) -> None:
    assert "hardware" not in path.read_text(encoding="utf-8")
