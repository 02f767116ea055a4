"""The arguments of `vllm serve` in a shell command, in a `docker run`, or in a container of a manifest.

Nothing of a command is printed but the names of its flags and variables: values may be secrets.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hermes.errors import InputError, Verbatim
from hermes.hardware.descriptions.engines import vllm_engines

__all__ = ["EngineWords", "engine_of_image", "of_command", "of_container", "simple_commands"]

SHELLS = {"sh", "bash", "dash", "zsh", "ash"}
RUNTIMES = {"docker", "podman", "nerdctl"}
SERVER = "vllm.entrypoints.openai.api_server"
# options of `docker run` and `podman run` without a value; short ones may be joined (-itd)
SWITCHES = {
    "detach", "disable-content-trust", "help", "init", "interactive", "no-healthcheck", "no-hostname", "no-hosts",
    "oom-kill-disable", "privileged", "publish-all", "quiet", "read-only", "read-only-tmpfs", "replace", "rm", "rmi",
    "sig-proxy", "tls-verify", "tty", "use-api-socket"}
SHORT_SWITCHES = set("ditqP")
SHORT_VALUES = set("acehlmpuvw")
VALUES = {
    "add-host", "annotation", "arch", "attach", "authfile", "blkio-weight", "blkio-weight-device", "cap-add",
    "cap-drop", "cgroup-parent", "cgroupns", "cidfile", "conmon-pidfile", "cpu-count", "cpu-percent", "cpu-period",
    "cpu-quota", "cpu-rt-period", "cpu-rt-runtime", "cpu-shares", "cpus", "cpuset-cpus", "cpuset-mems", "detach-keys",
    "device", "device-cgroup-rule", "device-read-bps", "device-read-iops", "device-write-bps", "device-write-iops",
    "dns", "dns-opt", "dns-option", "dns-search", "domainname", "entrypoint", "env", "env-file", "expose", "gpus",
    "group-add", "health-cmd", "health-interval", "health-retries", "health-start-interval", "health-start-period",
    "health-timeout", "hostname", "ip", "ip6", "ipc", "isolation", "kernel-memory", "label", "label-file", "link",
    "link-local-ip", "log-driver", "log-opt", "mac-address", "memory", "memory-reservation", "memory-swap",
    "memory-swappiness", "mount", "name", "net", "net-alias", "network", "network-alias", "oom-score-adj", "os",
    "pid", "pids-limit", "platform", "pod", "publish", "pull", "restart", "runtime", "secret", "security-opt",
    "shm-size", "stop-signal", "stop-timeout", "storage-opt", "sysctl", "systemd", "timeout", "tmpfs", "tz", "ulimit",
    "umask", "user", "userns", "uts", "variant", "volume", "volume-driver", "volumes-from", "workdir"}
# variables that may change when a token is computed, and those of them that do not
_VARIABLE = re.compile(r"(VLLM|LMCACHE|NCCL_P2P|NCCL_SHM|NCCL_IB|FLASHINFER|CUDA_VISIBLE|OMP_NUM)_?\w*\Z")
HARMLESS = re.compile(
    r"VLLM_(API_KEY|LOGGING\w*|LOG_\w*|CONFIGURE_LOGGING|HOST_IP|HOST|PORT|RPC\w*|NIXL_SIDE_CHANNEL\w*|DO_NOT_TRACK|"
    r"NO_USAGE_STATS|USAGE\w*|CACHE_ROOT|CONFIG_ROOT|ASSETS\w*|MODEL_REDIRECT_PATH|USE_MODELSCOPE|ALLOW\w*|"
    r"SKIP_P2P_CHECK|WORKER_MULTIPROC_METHOD|TORCH_PROFILER\w*|RANDOMIZE\w*|ENGINE_READY_TIMEOUT_S|"
    r"ENGINE_ITERATION_TIMEOUT_S|USE_V1|SERVER_DEV_MODE|REPO_URL|BRANCH)\Z|LMCACHE_LOG_LEVEL\Z|NCCL_IB_HCA\Z")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NAMED = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|\((\w+)\)|([A-Za-z_]\w*))")
_SUM = re.compile(r"\$\(\(\s*(\w+)\s*(?:([*/+-])\s*(\w+)\s*)?\)\)")
_AWAY = re.compile(r"(?<=\s)(?:\d|&)?>{1,2}\s*(?:&\d|\S+)")   # redirected output


@dataclass
class EngineWords:
    """The arguments of an engine.

    Args:
        words: What follows `vllm serve`.
        image: The container's, or None.
        gpus: Devices that the container has, if known.
        variables: Names of environment variables that may change when a token is computed.
        unread: Parts of the command that were not understood, each with what it is.
    """

    words: list[str]
    image: str | None = None
    gpus: int | None = None
    variables: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def of_command(text: str) -> EngineWords:
    """Read `vllm serve MODEL ...`, `python -m ...api_server`, `docker run ... IMAGE ...`, or a script with one of them.

    Raises `InputError` if there is none.
    """
    commands = list(simple_commands(text))
    for words in commands:
        place = next((i for i, word in enumerate(words[:-1]) if _base(word) in RUNTIMES
                      and {"run", "create"} & set(words[i + 1:i + 3])), None)
        if place is not None:
            return _of_docker(words[place + 1:])
    for words in commands:
        found = _arguments(words)
        if found is not None:
            before = words[:len(words) - len(found)]
            names = [match[1] for word in before if (match := _ASSIGNED.fullmatch(word))]
            return EngineWords(found, variables=_notable(names))
    first = next((word for words in commands for word in words if not _ASSIGNED.fullmatch(word)), "nothing")
    raise InputError("a command `vllm serve MODEL ...`, `docker run ... vllm/vllm-openai ...`, or a file FILE.yaml "
                     "with Helm values or manifests", Verbatim(f"one that begins with {first[:40]!r}"), field="command")


def of_container(image: str | None, command: Sequence[str], args: Sequence[str], env: Mapping[str, str],
                 names: Iterable[str] = ()) -> EngineWords | None:
    """Read a container, or return None if it does not start vLLM.

    Args:
        command: In place of the image's entry point; empty to keep it.
        env: Values of environment variables, as far as they are known.
        names: Names of all of them.
    """
    words = [_filled(word, env) for word in (*command, *args)]
    found = _arguments(words, env)
    if found is None and not command and image is not None and "vllm" in image and "sidecar" not in image:
        found = words   # the entry point of vLLM's images is its server
    return None if found is None else EngineWords(found, image, variables=_notable(names))


def engine_of_image(image: str) -> tuple[str | None, str | None]:
    """Return the engine that vLLM's own image runs, None if the image does not tell; and what to say of it."""
    repository, _, tag = image.partition("@")[0].rpartition(":") if ":" in image.rpartition("/")[2] else (image, "", "")
    known = vllm_engines()
    version = re.match(r"v?(\d+)\.(\d+)(\.\d+)?", tag)
    if version is None or not repository.endswith("vllm-openai"):
        newest = max(known, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])
        return None, f"the image's tag ({tag or 'none'}) names no version of vLLM: the rules of {newest}"
    name = f"vllm-{version[1]}.{version[2]}"
    if name in known:
        return name, None
    same = [other for other in known if other.startswith(f"vllm-{version[1]}.")]
    nearest = min(same or known, key=lambda other: abs(int(other.rpartition(".")[2]) - int(version[2])))
    return nearest, f"the rules of {nearest} stand for those of {name}, which are not known"


def _of_docker(words: list[str]) -> EngineWords:
    """Read what follows `docker`."""
    words = words[1:] if words[0] == "container" else words
    place, entry, gpus, names = 1, None, None, []
    unread: list[str] = []
    while place < len(words) and words[place].startswith("-"):
        name, value, place = _docker_option(words, place, unread)
        if name == "entrypoint":
            entry = value
        elif name == "gpus":
            gpus = _gpus(value or "")
        elif name in ("env", "e"):
            names.append((value or "").partition("=")[0])
        elif name == "env-file":
            unread.append("the variables in --env-file")
    if place >= len(words):
        raise InputError(Verbatim("docker run names no image: docker run [OPTIONS] IMAGE [ARGUMENTS]"), field="command")
    image, args = words[place], words[place + 1:]
    found = of_container(image, [entry] if entry else [], args, {}, names)
    if found is None:
        raise InputError(Verbatim("this container does not start vLLM: docker run ... vllm/vllm-openai:TAG --model "
                                  "MODEL ..., or ... IMAGE vllm serve MODEL ..."), field="command")
    found.gpus, found.unread = gpus, unread
    return found


def _docker_option(words: list[str], place: int, unread: list[str]) -> tuple[str, str | None, int]:
    """Return name and value of an option of `docker run`, and the place after it."""
    word = words[place]
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        if equals or name in SWITCHES:
            if name not in SWITCHES | VALUES:
                unread.append(f"docker run --{name}")
            return name, value or None, place + 1
        if name not in VALUES:
            raise InputError(Verbatim(f"docker run has no option --{name} that is known here; leave it out"),
                             field="command")
    else:
        letters = word[1:]
        switches = len(letters) - len(letters.lstrip("".join(SHORT_SWITCHES)))
        if switches == len(letters):
            return letters, None, place + 1
        name, attached = letters[switches], letters[switches + 1:]
        if name not in SHORT_VALUES:
            raise InputError(Verbatim(f"docker run has no option -{name} that is known here; leave it out"),
                             field="command")
        if attached:
            return name, attached.removeprefix("="), place + 1
    if place + 1 >= len(words):
        raise InputError(Verbatim("needs a value"), field=f"docker run --{name}")
    return name, words[place + 1], place + 2


def _gpus(value: str) -> int | None:
    """Return the number of devices in `--gpus`: a count, or the devices by name; None for all."""
    value = value.strip("'\"")
    if value.isdecimal():
        return int(value)
    found = re.search(r"(count|device)=(.*)", value)
    if found is None or found[2] in ("all", "-1"):
        return None
    if found[1] == "count":
        count = re.match(r"\d+", found[2])
        return int(count[0]) if count else None
    return len([part for part in found[2].split(",") if part and "=" not in part])


def _arguments(words: Sequence[str], env: Mapping[str, str] = {}, depth: int = 0) -> list[str] | None:
    """Return what follows `vllm serve` or the server's module, also inside `sh -c TEXT`; None without either."""
    for place, word in enumerate(words):
        if _base(word) == "vllm" and words[place + 1:place + 2] == ["serve"]:
            return list(words[place + 2:])
        if word.endswith(SERVER):
            return list(words[place + 1:])
        if _base(word) in SHELLS and depth == 0:
            script = next((i for i in range(place + 1, len(words)) if re.fullmatch(r"-[a-z]*c[a-z]*", words[i])), None)
            text = "" if script is None else next((word for word in words[script + 1:] if not word.startswith("-")), "")
            for command in simple_commands(text, env):
                found = _arguments(command, env, 1)
                if found is not None:
                    return found
    return None


def simple_commands(text: str, env: Mapping[str, str] = {}) -> Iterable[list[str]]:
    """Yield the words of each simple command of a script. Raises `InputError` for one that a shell cannot read."""
    text = re.sub(r"\\\s*\n", " ", text)
    text = re.sub(r"(?m)^\s*#.*$", "", text)
    text = re.sub(r"\n(?=\s*-)", " ", text)   # flags that were pasted without a backslash
    lexer = shlex.shlex(_AWAY.sub(" ", _filled(text, env)), posix=True, punctuation_chars=";&|\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    try:
        for word in lexer:
            if word and not word.strip(";&|\n"):
                if words:
                    yield words
                words = []
            else:
                words.append(word)
    except ValueError as error:
        raise InputError(f"a command that a shell can read ({error})", field="command") from None
    if words:
        yield words


def _filled(text: str, env: Mapping[str, str]) -> str:
    """Put in the variables whose values are known."""
    def value(found: re.Match[str]) -> str:
        name = found[1] or found[3] or found[4]
        return env.get(name, found[0] if found[2] is None else found[2])

    def calculated(found: re.Match[str]) -> str:
        first, second = (env.get(name, name) if name else "1" for name in (found[1], found[3]))
        if not (first.isdecimal() and second.isdecimal()) or (found[2] == "/" and int(second) == 0):
            return found[0]
        one, two = int(first), int(second)
        return str({"*": one * two, "/": one // max(two, 1), "+": one + two, "-": one - two}[found[2] or "*"])

    return _SUM.sub(calculated, _NAMED.sub(value, text))


def _notable(names: Iterable[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if _VARIABLE.match(name) and not HARMLESS.match(name)]


def _base(word: str) -> str:
    return word.rpartition("/")[2]
