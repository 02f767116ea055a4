"""Flags as vLLM's own parser takes them: recorded by `scripts/record_vllm_parses.py` from vLLM 0.33.0's class."""

import json
from pathlib import Path

import pytest
from each import each

from hermes.deploy.engine_words import EngineWords, of_text
from hermes.deploy.flags import settings_of
from hermes.deploy.sglang_command import PARSER as SGLANG
from hermes.deploy.sglang_command import sglang_client
from hermes.deploy.sglang_flags import ALIASES, BESIDE, FLAGS, OTHERS, READ, REFUSED
from hermes.deploy.sglang_flags import KINDS as SGLANG_KINDS
from hermes.deploy.vllm import parser
from hermes.deploy.vllm_features import JSON, MANY, Features, Told
from hermes.errors import InputError

CASES = json.loads((Path(__file__).parents[1] / "data" / "vllm-parses.json").read_text())
LENIENT = [["m", "--tp", "2"], ["m", "--config=c.yaml"]]   # vLLM refuses the one and does not read the other's file


def parsed(case):
    """What ours reads, in the form of the recording."""
    flags, named, found, features = parser(), [], {}, Features()
    words, _ = settings_of(EngineWords(case["words"], files=case.get("files", {})), flags)
    for name, value in ((option.name, option.value) for option in flags.read(words, named)):
        head = name.partition(".")[0]
        if head in JSON:
            features.add(name, value)
            found[head] = None
        elif name.startswith("no-"):
            found[name.removeprefix("no-")] = "false"
        else:
            found[name] = "true" if value is None else value.split() if name in MANY else value
    found |= {head: features.fields[head] for head in found.keys() & JSON}
    return found | ({"model_tag": named[0]} if named else {}), words


@each("case", [case for case in CASES if case["words"] not in LENIENT], ids=lambda case: " ".join(case["words"]))
def test_words_are_taken_as_vllm_takes_them(case):
    if case.get("refused") == "ambiguous":
        with pytest.raises(InputError, match="several flags of vLLM begin so"):
            parsed(case)
        return
    want = {name: json.loads(value) if name in JSON else value for name, value in case["parsed"].items()}
    assert with_one_model(parsed(case)[0]) == with_one_model(want)


def with_one_model(given):
    """The word in front wins over `--model`, which vLLM puts there."""
    rest = {name: value for name, value in given.items() if name not in ("model", "model_tag")}
    return rest | {"model": given.get("model_tag", given.get("model"))}


def test_what_is_taken_though_vllm_does_not():
    assert [case["words"] for case in CASES if case["words"] in LENIENT] == LENIENT
    assert parsed({"words": LENIENT[0]})[0]["tensor-parallel-size"] == "2"
    read, said = settings_of(EngineWords(["m", "--config=c.yaml"], files={"c.yaml": "max-num-seqs: 8"}), parser())
    assert read == ["--max-num-seqs=8", "m"]
    assert len(said) == 1


def test_a_value_that_begins_with_a_dash_or_has_a_blank_is_a_value():
    words = ["m", "--seed", "-1", "--chat-template", "-- a b", '--speculative-config={"method": "ngram"}', "--", "-x"]
    named = []
    read = {option.name: option.value for option in parser().read(words, named)}
    assert read == {"seed": "-1", "chat-template": "-- a b", "speculative-config": '{"method": "ngram"}'}
    assert named == ["m", "-x"]


@pytest.mark.parametrize(("words", "name", "value"), [
    (["--tp", "4"], "tp-size", "4"), (["--model=m"], "model-path", "m"),
    (["--mem-frac", "0.8"], "mem-fraction-static", "0.8"), (["--ep", "2"], "ep-size", "2"),
    (["--chunked", "-1"], "chunked-prefill-size", "-1"),
])
def test_sglangs_parser_is_argparses(words, name, value):
    assert [(option.name, option.value) for option in SGLANG.read(words, [])] == [(name, value)]


def test_an_ambiguous_beginning_of_sglang():
    with pytest.raises(InputError, match="several flags of SGLang begin so"):
        list(SGLANG.read(["--pp", "2"], []))


@pytest.mark.parametrize(("script", "words"), [
    ("A=m\nB='--x 1 --y'\nvllm serve $A $B \"$B\" '$A'", ["m", "--x", "1", "--y", "--x 1 --y", "$A"]),
    ("N=3; vllm serve m --n $((N*2)) --host $(hostname -I | cut -f1)", ["m", "--n", "6", "--host", "$(...)"]),
    ("ARGS=(--a 1\n --b '{\"c\": 2}')\nARGS+=(--d)\nvllm serve m \"${ARGS[@]}\"",
     ["m", "--a", "1", "--b", '{"c": 2}', "--d"]),
    ("if true; then\n  export T=4\nfi\nexec vllm serve m -tp ${T:-1} --z ${Z:-9}", ["m", "-tp", "4", "--z", "9"]),
    ("vllm serve m --a 1 # -tp 2\n", ["m", "--a", "1"]),
    ("sh -c 'M=m; exec vllm serve $M --a 1 > log 2>&1'", ["m", "--a", "1"]),
    ("if command -v vllm; then\n  exec vllm serve m --a 1\nelse\n  exec vllm serve m --b\nfi", ["m", "--a", "1"]),
    ("\"${VLLM_BIN}\" serve m --a 1", ["m", "--a", "1"]),
    ("cat <<'E' > run.sh\nvllm serve m --q\nE\nbash run.sh", ["m", "--q"]),
])
def test_a_script_is_read_as_a_shell_does(script, words):
    assert [engine.words for engine in of_text(script)] == [words]


def test_flags_of_sglang_are_its_own():
    known = {**SGLANG_KINDS, **OTHERS}
    assert {*FLAGS, *READ, *REFUSED, *ALIASES, *ALIASES.values()} <= known.keys()
    assert {name for name, flag in FLAGS.items() if flag.kind in ("switch", "off")} == {
        name for name in FLAGS if known[name] == "switch"}
    assert not BESIDE & {*FLAGS, *READ, *REFUSED}
    assert sorted(BESIDE - known.keys()) == []


@each("name", SGLANG_KINDS)
def test_every_flag_of_sglang_is_read_or_refused_by_name(name):
    values = {"switch": [], "value": ["1"], "values": ["1", "2"]}[SGLANG_KINDS[name]]
    words = ["--model-path", "Qwen/Qwen3-8B", f"--{name}", *values]
    try:
        read = sglang_client(EngineWords(words, kind="sglang"), "qwen3-8b", Told())
    except InputError as error:
        assert (error.field or "").removeprefix("--") in (name, ALIASES.get(name))
    else:
        assert read.unknown == []
