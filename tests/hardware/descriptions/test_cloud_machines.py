"""Cloud machines by their cards, and names of models as people write them."""

import pytest

from hermes.deploy.vllm_models import simulated
from hermes.errors import InputError
from hermes.hardware.descriptions.checkpoints import checkpoint
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.descriptions.names import ALIASES, remark


@pytest.mark.parametrize(("machine", "card"), [
    ("p5.48xlarge", "h100-sxm"), ("p5e.48xlarge", "h200"), ("P5en.48xlarge", "h200"), ("p4d.24xlarge", "a100-40gb"),
    ("p4de.24xlarge", "a100-80gb"), ("p6-b200.48xlarge", "b200"), ("p6e-gb200.36xlarge", "gb200"), ("g6e", "l40s"),
    ("g6e.12xlarge", "l40s"), ("gr6.4xlarge", "l4"), ("g4dn.xlarge", "t4"), ("g7e.2xlarge", "rtx-pro-6000"),
    ("a3-highgpu", "h100-sxm"), ("a3-megagpu-8g", "h100-sxm"), ("a3-ultragpu-8g", "h200"), ("a4-highgpu-8g", "b200"),
    ("a2-highgpu-1g", "a100-40gb"), ("a2-ultragpu-8g", "a100-80gb"), ("g2-standard-12", "l4"),
    ("ct5lp-hightpu-4t", "tpu-v5e"), ("tpu-v6e-slice", "tpu-v6e"), ("nvidia-tesla-a100", "a100-40gb"),
    ("ND H100 v5", "h100-sxm"), ("Standard_ND96isr_H100_v5", "h100-sxm"), ("Standard_ND96amsr_A100_v4", "a100-80gb"),
    ("Standard_ND96asr_v4", "a100-40gb"), ("Standard_ND128isr_NDR_GB200_v6", "gb200"), ("NC T4 v3", "t4"),
    ("Standard_ND96isr_MI300X_v5", "mi300x"), ("BM.GPU.H100.8", "h100-sxm"), ("BM.GPU4.8", "a100-40gb"),
])
def test_a_machine_stands_for_one_card(machine: str, card: str) -> None:
    assert load_device(machine).name == card
    assert remark("devices", machine, names_in("devices")) == (
        f"device {machine} is a machine, of which a device is one card: {card}")


@pytest.mark.parametrize(("machine", "told"), [
    ("g5.12xlarge", "a machine with cards a10g of 600 GB/s); nearest: a40"),
    ("Standard_NC40ads_H100_v5", "a machine with cards h100-nvl of 3900 GB/s); nearest: h100-sxm"),
])
def test_a_machine_whose_card_does_not_ship_is_refused_by_it(machine: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        load_device(machine)
    assert told in str(caught.value)


def test_no_card_is_taken_for_a_machine() -> None:
    for name in (*names_in("devices"), *ALIASES["devices"]):
        assert "machine" not in (remark("devices", name, names_in("devices")) or "")


@pytest.mark.parametrize(("name", "model", "context"), [
    ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b", 131_072),
    ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "qwen3-8b", 131_072),
    ("NousResearch/Hermes-3-Llama-3.1-8B", "llama-3.1-8b", None),
])
def test_a_checkpoint_has_the_shape_of_another(name: str, model: str, context: int | None) -> None:
    found = checkpoint(name)
    assert found is not None
    assert (found.model, found.max_context) == (model, context)


def test_names_from_other_tools() -> None:
    assert simulated("hf://Qwen/Qwen3-8B-Base")[0] == "Qwen/Qwen3-8B-Base"
    for name, told in (("llama3.1:70b", "is a name of Ollama"), ("mlx-community/Qwen3-8B-4bit", "other engines")):
        with pytest.raises(InputError, match=told):
            simulated(name)


def test_a_model_of_another_family_is_not_suggested() -> None:
    """A distilled model of 1.5B is not like DeepSeek-R1, whose name it begins with."""
    with pytest.raises(InputError) as caught:
        simulated("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
    assert "deepseek-r1-nvfp4" not in str(caught.value)
