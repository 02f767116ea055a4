"""The arguments of an engine in a shell command, in a `docker run`, or in a container of a manifest.

Nothing of a command is printed but the names of its flags and variables: values may be secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from hermes.config.yaml_document import Node
from hermes.deploy.docker_words import container_of
from hermes.deploy.options import pairs
from hermes.deploy.pods import Life
from hermes.deploy.shell_words import ASSIGNED, SHELLS, Script, filled, script_of
from hermes.errors import InputError, Verbatim
from hermes.hardware.descriptions.files import names_in

__all__ = ["ENGINES", "EngineWords", "engine_of_image", "of_container", "of_text", "other_engine"]

ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
"""Engines whose launch commands are read, as `hermes import` calls them, and their names."""
EXAMPLES = {"vllm": "`vllm serve MODEL ...`, `docker run ... vllm/vllm-openai ...`",
            "sglang": "`python -m sglang.launch_server --model-path MODEL ...`, `docker run ... lmsysorg/sglang ...`",
            "trtllm": "`trtllm-serve MODEL ...`"}
MODULES, OTHERS = pairs("programs", "modules"), pairs("programs", "others")
"""Modules that start engines; programs and images of engines that are not simulated."""
# variables that may change when a token is computed, and those of them that do not
_VARIABLE = re.compile(
    r"(VLLM|SGLANG|SGL|TRTLLM|LMCACHE|NCCL_P2P|NCCL_SHM|NCCL_IB|FLASHINFER|CUDA_VISIBLE|OMP_NUM)_?\w*\Z")
HARMLESS = re.compile(
    r"VLLM_(API_KEY|LOGGING\w*|LOG_\w*|CONFIGURE_LOGGING|HOST_IP|HOST|PORT|RPC\w*|NIXL_SIDE_CHANNEL\w*|DO_NOT_TRACK|"
    r"NO_USAGE_STATS|USAGE\w*|CACHE_ROOT|CONFIG_ROOT|ASSETS\w*|MODEL_REDIRECT_PATH|USE_MODELSCOPE|ALLOW\w*|"
    r"SKIP_P2P_CHECK|HTTP_TIMEOUT\w*|WORKER_MULTIPROC_METHOD|TORCH_PROFILER\w*|RANDOMIZE\w*|ENGINE_READY_TIMEOUT_S|"
    r"ENGINE_ITERATION_TIMEOUT_S|USE_V1|SERVER_DEV_MODE|REPO_URL|BRANCH|ADDITIONAL_ARGS)\Z|LMCACHE_LOG_LEVEL\Z|"
    r"NCCL_IB_HCA\Z|CUDA_VISIBLE_DEVICES\Z|SGLANG_(HOST_IP|PORT|\w*TIMEOUT\w*|USE_RUNAI\w*|LOG\w*|ALLOW\w*|USE_MODELSCOPE|TORCH_PROFILER\w*)\Z")
_VERSION = re.compile(r"v?(\d+)\.(\d+)((?:\.\d+)?)")


@dataclass
class EngineWords:
    """The arguments of an engine.

    Args:
        words: What follows `vllm serve` or the like.
        image: The container's, or None.
        gpus: Devices that the container has, if known.
        variables: Names of environment variables that may change when a token is computed.
        unread: Parts of the command that were not understood, each with what it is.
        kind: The engine, of `ENGINES`.
        program: The word that starts it: `dynamo.vllm` takes flags of its own.
        files: Text of settings files that the command may name, by path.
        mounts: Path in the container -> path on the host.
        env: Values of its variables.
        settings: The settings file that its command names, once it is read.
        life: How its pod starts and ends, of a container in a manifest.
    """

    words: list[str]
    image: str | None = None
    gpus: int | None = None
    variables: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    kind: str = "vllm"
    program: str = ""
    files: Mapping[str, str | Node] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    settings: Node | None = None
    life: Life | None = None

    def number(self, flag: str, default: int) -> int:
        """Return the whole number that a flag gives last, the default where it gives none."""
        said = [word.partition("=")[2] or following
                for word, following in zip(self.words, [*self.words[1:], ""], strict=False)
                if word.partition("=")[0] == flag]
        return int(said[-1]) if said and said[-1].isdecimal() else default


@dataclass(frozen=True)
class Started:
    """An engine that words start: the words in front of its arguments are `before`."""

    kind: str
    program: str
    args: list[str]
    before: list[str]
    script: Script | None = None


def of_text(text: str, kind: str = "vllm") -> list[EngineWords]:
    """Read the engines that a command or script starts: `vllm serve MODEL ...`, `python -m sglang.launch_server ...`,
    `trtllm-serve MODEL ...`, or `docker run ... IMAGE ...`.

    Args:
        kind: The engine that the user asks for, for the message.

    Raises `InputError` if there is none.
    """
    script, found = script_of(text), []
    for words in _first_branches(script.commands, script):
        container = container_of(words)
        if container is not None:
            engine = of_container(container.image, [container.entry] if container.entry else [], container.args,
                                  container.env, container.names, script.files)
            if engine is None:
                other = other_engine([container.image, *container.args])
                raise InputError(Verbatim(
                    f"this container starts {other}, which is not simulated" if other else
                    f"this container does not start {ENGINES[kind]}: docker run ... IMAGE followed by the arguments of "
                    f"{EXAMPLES[kind].partition(', ')[0]}, or by that command"), field="command")
            engine.gpus, engine.unread, engine.mounts = container.gpus, container.unread, container.mounts
            found.append(engine)
        elif (started := _started(words, script.env, script.files)) is not None:
            own = {match[1]: match[2] for word in started.before if (match := ASSIGNED.fullmatch(word))}
            files = {**script.files, **(started.script.files if started.script else {})}
            changing = {*script.changing, *(started.script.changing if started.script else ())}
            unread = [f"which value {name} has: the script sets several, and the last is read"
                      for name in sorted(changing)]
            variables = _notable([*_exported(script), *own])
            found.append(EngineWords(started.args, unread=unread, variables=variables, kind=started.kind,
                                     program=started.program, files=files, env={**script.env, **own}))
    if found:
        return found
    other = next((name for words in script.commands if (name := other_engine(words))), None)
    if other is not None:
        raise InputError(Verbatim(f"the command starts {other}, which is not simulated: give {EXAMPLES[kind]}"),
                         field="command")
    first = next((word for words in script.commands for word in words if not ASSIGNED.fullmatch(word)), "nothing")
    raise InputError(f"a command {EXAMPLES[kind]}, or a file FILE.yaml with Helm values or manifests",
                     Verbatim(f"one that begins with {first[:40]!r}"), field="command")


def of_container(image: str | None, command: Sequence[str], args: Sequence[str], env: Mapping[str, str],
                 names: Iterable[str] = (), files: Mapping[str, str | Node] = {}) -> EngineWords | None:
    """Read a container, or return None if it starts no engine.

    Args:
        command: In place of the image's entry point; empty to keep it.
        env: Values of environment variables, as far as they are known.
        names: Names of all of them.
        files: Files that it may read, by path.
    """
    words = [filled(word, env) for word in (*command, *args)]
    started = _started(words, env, {path: text for path, text in files.items() if isinstance(text, str)})
    if started is None and not command and image is not None and "vllm" in image and not re.search(
            r"sidecar|router|lmstack|runtime|proxy", image):
        started = Started("vllm", "", words, [])   # the entry point of vLLM's images is its server
    if started is None:
        return None
    files = {**files, **(started.script.files if started.script else {})}
    return EngineWords(started.args, image, variables=_notable(names), kind=started.kind, program=started.program,
                       files=files, env=env)


def other_engine(words: Iterable[str]) -> str | None:
    """Return the name of the engine that words or an image start and that is not simulated, None if they start none."""
    bases = [_base(word.partition("@")[0]).partition(":")[0] for word in words]
    return next((OTHERS[base] for base in bases if base in OTHERS), None)


def engine_of_image(image: str, kind: str = "vllm") -> tuple[str | None, str | None]:
    """Return the engine that an image runs, None if the image does not tell; and what to say of it."""
    repository, _, tag = image.partition("@")[0].rpartition(":") if ":" in image.rpartition("/")[2] else (image, "", "")
    known = [name for name in names_in("engines") if name.startswith(f"{kind}-")]
    newest = max(known, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])
    version = re.search(rf"{kind}[-_]?{_VERSION.pattern}", tag) or _VERSION.match(tag)   # rocm6.4_vllm_0.10.1
    owner, _, name = repository.rpartition("/")
    own = {"vllm": name.startswith("vllm-openai") and not owner.endswith("lmcache"),
           "sglang": name.startswith("sglang"), "trtllm": "tensorrt-llm" in repository}[kind]
    own = own or (version is not None and version[1] == "0" and name == kind)   # copies of other publishers
    if version is None or not own:
        return None, f"the image's tag ({tag or 'none'}) names no version of {ENGINES[kind]}: the rules of {newest}"
    name = f"{kind}-{version[1]}.{version[2]}"
    if name in known:
        return name, None
    same = [other for other in known if other.startswith(f"{kind}-{version[1]}.")]
    nearest = min(same or known, key=lambda other: abs(int(other.rpartition(".")[2]) - int(version[2])))
    window = ", ".join(known) if len(known) < 3 else f"{_oldest(known)} to {newest}"
    return nearest, (f"the image is {ENGINES[kind]} {version[1]}.{version[2]}{version[3]}, outside of the known "
                     f"versions ({window}): the rules of {nearest} stand for its own")


def _oldest(known: Sequence[str]) -> str:
    return min(known, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])


def _started(words: Sequence[str], env: Mapping[str, str] = {}, files: Mapping[str, str] = {}, depth: int = 0
             ) -> Started | None:
    """Return the engine that words start, also inside `sh -c TEXT` or a script of `files`; None without one."""
    for place, word in enumerate(words):
        base, rest = _base(word), list(words[place + 1:])
        before = list(words[:place])
        if base in ("vllm", "sglang") and rest[:1] == ["serve"]:
            return Started(base, f"{base} serve", rest[1:], before)
        if re.fullmatch(r"\$\{?\w*VLLM\w*\}?", base) and rest[:1] == ["serve"]:   # a path that is not known
            return Started("vllm", base, rest[1:], before)
        if base == "vllm.entrypoints.cli.main" and rest[:1] == ["serve"]:
            return Started("vllm", base, rest[1:], before)
        if base == "trtllm-serve":
            return Started("trtllm", base, rest[rest[:1] == ["serve"]:], before)
        if base in MODULES:
            return Started(MODULES[base], base, rest, before)
        if base in SHELLS and depth == 0:
            script = next((i for i, own in enumerate(rest) if re.fullmatch(r"-[a-z]*c[a-z]*", own)), None)
            text = "" if script is None else next((own for own in rest[script + 1:] if not own.startswith("-")), "")
            if script is None:
                named = {PurePosixPath(path).name: body for path, body in files.items()}
                text = next((named[_base(own)] for own in rest if _base(own) in named), "")
            read = script_of(text, env)
            for command in read.commands:
                found = _started(command, read.env, read.files, 1)
                if found is not None:
                    return Started(found.kind, found.program, found.args, [*before, *found.before], read)
    return None


def _first_branches(commands: Iterable[list[str]], script: Script) -> Iterator[list[str]]:
    """Yield commands without those of `else` and `elif` where the branch before starts an engine as well."""
    branches: list[list[bool]] = []   # of each `if`: whether a branch has an engine, whether this one is left out
    for words in commands:
        if words[0] == "if":
            branches.append([False, False])
        elif words[0] == "fi" and branches:
            branches.pop()
        elif words[0] in ("else", "elif") and branches:
            branches[-1][1] = branches[-1][0]
        if branches and (container_of(words) is not None or _started(words, script.env) is not None):
            if branches[-1][1]:
                continue
            branches[-1][0] = True
        yield words


def _exported(script: Script) -> list[str]:
    return [match[1] for words in script.commands if words[0] == "export"
            for word in words if (match := ASSIGNED.fullmatch(word))]


def _notable(names: Iterable[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if _VARIABLE.match(name) and not HARMLESS.match(name)]


def _base(word: str) -> str:
    return word.rpartition("/")[2]
