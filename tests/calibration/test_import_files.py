"""Importers of files, on the real files where they are at hand, and on files that are not what they should be."""


import pandas as pd
import pytest
from outside import OUTSIDE

from hermes.calibration.importers import IMPORTERS, Splitwise, VllmCpu
from hermes.calibration.importers.base import known_model
from hermes.calibration.steps import load_steps, phase_of, save_steps
from hermes.cli import main
from hermes.errors import InputError

DATA = OUTSIDE / "data"
PERF_MODEL = DATA / "splitwise" / "perf_model.csv"
CPU = DATA / "vllm-cpu"

needs_perf_model = pytest.mark.outside("data/splitwise/perf_model.csv")
needs_cpu_steps = pytest.mark.outside("data/vllm-cpu")

SPLITWISE_HEAD = "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel\n"
CPU_HEAD = (
    "t0,t_sched,t_exec,prefill_tokens,prefill_seqs,prefill_attn,prefill_ctx,decode_seqs,decode_ctx,n_sampled,"
    "max_dec_ctx,mnbt,mns,step_s\n"
)


def splitwise(path, **options):
    return Splitwise(source=str(path), **({"model": "m", "hardware": "h", "tp": 2} | options))


@needs_perf_model
@pytest.mark.parametrize("degree", [2, 4, 8])
def test_splitwise_rows_become_a_prompt_step_and_a_mean_token_step(degree):
    table = pd.read_csv(PERF_MODEL)
    table = table[(table.model == "llama2-70b") & (table.hardware == "h100-80gb") & (table.tensor_parallel == degree)]
    steps = splitwise(PERF_MODEL, model="llama2-70b", hardware="h100-80gb", tp=degree).steps()
    phases = phase_of(steps.rows)
    assert (phases == "prefill").sum() == (phases == "decode").sum() == len(table)
    assert sorted(steps.rows.time_s[phases == "decode"] * 1e3) == pytest.approx(sorted(table.token_time))
    # 4096 x 1 and 512 x 8 are the same tokens, not the same attention
    by = steps.rows[phases == "prefill"].groupby("configuration").first()
    assert by.prefill_tokens["4096 x 1"] == by.prefill_tokens["512 x 8"]
    assert by.prefill_attn["4096 x 1"] == 4096 * 4097 // 2
    assert by.prefill_attn["512 x 8"] == 8 * (512 * 513 // 2)


@needs_perf_model
def test_splitwise_lists_corrupt_and_synthetic_rows():
    steps = splitwise(PERF_MODEL, model="llama2-70b", hardware="h100-80gb", tp=2).steps()
    rejected = steps.rows[steps.rows.excluded != ""]
    assert set(rejected.configuration) == {"512 x 64", "512 x 64 + 128"}
    assert len(rejected) == 10
    assert any("pcap" in text and "420 rows" in text for text in steps.header.excluded)
    clean = splitwise(PERF_MODEL, model="llama2-70b", hardware="h100-80gb", tp=4).steps()
    assert (clean.rows.excluded == "").all()
    with pytest.raises(InputError, match=r"hardware: expected one of a100-80gb, h100-80gb, found 'h100-80gb-pcap'"):
        splitwise(PERF_MODEL, model="llama2-70b", hardware="h100-80gb-pcap", tp=2).steps()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a CSV file"),
        ("a,b\n1,2\n", "no prompt_size, batch_size"),
        (SPLITWISE_HEAD, "expected at least one row"),
        (SPLITWISE_HEAD + "m,h,512,1,128,x,5,2\n", ":2: prompt_time: expected a number of at least 0, found 'x'"),
        (SPLITWISE_HEAD + "m,h,512,1,128,5,nan,2\n", ":2: token_time: expected a number"),
        (SPLITWISE_HEAD + "m,h,512,1,128,5,-1,2\n", "found -1"),
        (SPLITWISE_HEAD + "m,h,512,1,128,5,5,4\n", "tp: expected one of 4, found 2"),
        (SPLITWISE_HEAD + "x,h,512,1,128,5,5,2\n", "model: expected one of x, found 'm'"),
    ],
)
def test_a_bad_splitwise_file_is_one_line(tmp_path, text, message):
    path = tmp_path / "perf_model.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        splitwise(path).steps()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def cpu(path, config):
    return VllmCpu(source=str(path), model_config_file=str(config))


@needs_cpu_steps
def test_vllm_cpu_steps_keep_every_row_and_mark_the_spoiled_ones():
    steps = cpu(CPU / "steps.csv", CPU / "model-config.json").steps()
    raw = pd.read_csv(CPU / "steps.csv").sort_values("t0", ignore_index=True)
    assert len(steps.rows) == len(raw)
    between = steps.rows.time_s - raw.step_s   # the engine's own time until its next step
    assert (between >= 0).all()
    assert 50e-6 < between.median() < 500e-6
    configurations = steps.rows.configuration
    assert configurations.nunique() == raw[["mnbt", "mns"]].drop_duplicates().shape[0] == 24
    excluded = steps.rows.excluded
    assert (excluded == "warm-up: first step of a configuration").sum() == 24
    tokens = steps.rows.prefill_tokens + steps.rows.decode_seqs
    assert (excluded[~tokens.duplicated()] != "").all(), "kernels are made for a new size"
    assert 0 < excluded.str.startswith("contended").sum() < 0.02 * len(raw)
    assert (steps.rows.overhead_s[excluded == ""] <= 2e-3).all()
    assert (steps.rows.overhead_s > 0).all()


def test_the_spike_rule_takes_the_spike_alone(tmp_path):
    times = [0.1, 0.02, 0.02, 0.03, 0.02, 0.021, 0.2]  # warm-up, ..., spike, ..., a spike at the end has no neighbour
    lines = [f"{sum(times[:i]):.6f},0,{t - 0.001},0,0,0,0,4,400,4,100,64,8,{t}" for i, t in enumerate(times)]
    path, config = tmp_path / "steps.csv", tmp_path / "config.json"
    path.write_text(CPU_HEAD + "\n".join(reversed(lines)) + "\n")
    config.write_text("{}")
    excluded = list(cpu(path, config).steps().rows.excluded)
    assert [bool(reason) for reason in excluded] == [True, False, False, True, False, False, False]
    assert excluded[0].startswith("warm-up")


def test_the_first_step_of_a_size_is_warm_up(tmp_path):
    sizes = [4, 4, 5, 4, 5, 64, 64]
    lines = [f"{0.02 * i:.2f},0,0.019,0,0,0,0,{n},{100 * n},{n},100,64,8,0.02" for i, n in enumerate(sizes)]
    path, config = tmp_path / "steps.csv", tmp_path / "config.json"
    path.write_text(CPU_HEAD + "\n".join(lines) + "\n")
    config.write_text("{}")
    excluded = cpu(path, config).steps().rows.excluded
    assert list(excluded != "") == [True, False, True, False, False, True, False]
    assert excluded[2] == excluded[5] == "warm-up: first step of a number of tokens"


def test_a_bad_cpu_file_is_one_line(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text(CPU_HEAD)
    with pytest.raises(InputError, match=r"model_config_file: |expected at least one row"):
        cpu(path, tmp_path / "none.json").steps()
    path.write_text(CPU_HEAD + "0,0,0.1,0,0,0,0,4,400,4,100,64,8,0.11\n")
    with pytest.raises(InputError, match="an existing config"):
        cpu(path, tmp_path / "none.json").steps()
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match="an existing config"):
        cpu(path, tmp_path / "config.json").steps()


@needs_perf_model
def test_imports_of_the_command_line_are_readable_and_the_same_twice(tmp_path, capsys):
    words = ["profile", "import", "splitwise", str(PERF_MODEL), "--model", "bloom-176b", "--hardware", "a100-80gb"]
    for name in ("a", "b"):
        assert main([*words, "--tp", "8", "-o", str(tmp_path / name / "steps.yaml")]) == 0
    a, b = (load_steps(tmp_path / name / "steps.yaml") for name in ("a", "b"))
    assert a.header == b.header
    assert a.rows.equals(b.rows)
    assert a.header.collected_by.startswith("hermes profile import splitwise perf_model.csv --model bloom-176b")
    assert "bloom-176b on A100" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["splitwse", "x"], "did you mean 'splitwise'"),
        (["splitwise", "nofile", "--model", "m", "--hardware", "h", "--tp", "2", "-o", "a.yaml"], "existing file"),
        (["splitwise", "f", "--model", "m", "--hardware", "h", "--tp", "0", "-o", "a.yaml"], "tp: expected a number"),
        (["splitwise", "f", "--model", "m", "--hardware", "h", "--tp", "2", "-o", "a.csv"], "ends in .yaml"),
    ],
)
def test_mistakes_on_the_command_line_exit_with_two(words, message, capsys):
    assert main(["profile", "import", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_published_names_find_our_descriptions():
    assert known_model("meta-llama/Meta-Llama-3.1-70B-Instruct") == "llama-3.1-70b"
    assert known_model("Qwen/Qwen3-32B") == "qwen3-32b"
    assert known_model("someone/else") == "someone/else"


def test_importers_are_an_extension_point(tmp_path, capsys):
    @IMPORTERS.register("constant-test")
    class Constant(Splitwise):
        """One step."""

        def steps(self, progress=None):
            frame = pd.DataFrame({
                "prefill_seqs": [0], "prefill_tokens": 0, "prefill_past": 0, "prefill_attn": 0, "decode_seqs": 1,
                "decode_ctx": 5, "decode_ctx_max": 5, "sampled": 1, "time_s": 0.5, "configuration": "one",
            })
            header = {"name": "c", "hardware": "h", "engine": "e", "model": self.model, "dtype": "bf16", "date": "x",
                      "clock": "x", "source": "x"}
            from hermes.calibration.steps import MeasuredSteps, StepsHeader

            return MeasuredSteps(StepsHeader(**header), frame)

    try:
        words = ["constant-test", "s", "--model", "m", "--hardware", "h", "--tp", "1"]
        assert main(["profile", "import", *words, "-o", str(tmp_path / "c.yaml")]) == 0
        assert load_steps(tmp_path / "c.yaml").rows.time_s.tolist() == [0.5]
    finally:
        IMPORTERS.unregister("constant-test")


def test_steps_round_trip_through_the_file(tmp_path):
    path, config = tmp_path / "steps.csv", tmp_path / "config.json"
    path.write_text(CPU_HEAD + "0,0,0.1,0,0,0,0,4,400,4,100,64,8,0.11\n0.11,0,0.1,0,0,0,0,4,404,4,101,64,8,0.101\n")
    config.write_text('{"model_type": "llama"}')
    steps = cpu(path, config).steps()
    save_steps(steps, tmp_path / "out.yaml")
    again = load_steps(tmp_path / "out.yaml")
    assert again.rows.decode_ctx.tolist() == [400, 404]
    assert len(again.usable()) == 1
