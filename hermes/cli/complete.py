"""Shell completion of arguments: names that come with hermes, and files.

A shell starts hermes for every TAB, so this module does not import the simulator: it reads the names of scenarios from
the folder that ships them.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["plots", "scenarios", "sweeps"]

YAML = (".yaml", ".yml")


def scenarios(incomplete: str) -> list[str]:
    """Return the built-in scenarios and YAML files that begin with the typed text."""
    return [name for name in _shipped() if not _is_sweep(name) and name.startswith(incomplete)] + _files(incomplete)


def sweeps(incomplete: str) -> list[str]:
    """Return the built-in sweeps and YAML files that begin with the typed text."""
    return [name for name in _shipped() if _is_sweep(name) and name.startswith(incomplete)] + _files(incomplete)


def plots(incomplete: str) -> list[str]:
    """Return the kinds of figures of a run."""
    from hermes.cli.plot import FIGURES

    return [kind for kind in FIGURES if kind.startswith(incomplete)]


def _shipped() -> list[str]:
    """List scenarios as `hermes.scenario.loading` does: paths below the folder without suffix, except `...-base`."""
    from hermes.config.data_files import resource_dir

    folder = resource_dir("scenarios")
    names = (path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))
    return sorted(name for name in names if not name.endswith("-base"))


def _is_sweep(name: str) -> bool:
    *folders, stem = name.split("/")
    return "sweeps" in folders or stem == "sweep" or stem.endswith("-sweep")


def _files(incomplete: str) -> list[str]:
    """Return the YAML files that begin with the typed text. With none, the shell completes any path itself."""
    folder, _, begin = incomplete.rpartition("/")
    prefix = f"{folder}/" if "/" in incomplete else ""
    try:
        found = sorted(path.name for path in Path(prefix or ".").iterdir() if path.suffix in YAML)
    except OSError:
        return []
    return [prefix + name for name in found if name.startswith(begin)]
