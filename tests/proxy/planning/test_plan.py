"""`ridgeline plan` as a command: what its options do, what it refuses, and its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proxy.plan_runs import LLAMA, llama, run

ROOT = Path(__file__).parents[3]


def test_help_names_every_option():
    """The help explains each option, and loading it needs nothing that only a plan needs."""
    usual = (
        "--model --gpu --gpus --weight-dtype --kv-dtype --prompt-tokens --output-tokens --cached-tokens --concurrency --rate"
    )
    shown = run("--help").out
    assert all(option in shown for option in usual.split())
    code = "import sys, proxy.cli; print([name for name in sys.modules if name.startswith(('roofline', 'rich.table'))])"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "roofline" not in loaded


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "h100-sxm"], "--model is needed"),
        (["--model", "llama-3.1-8b"], "--gpu is needed"),
        (["--model", "llama-3.1-8b", "--gpu", ","], "--gpu is needed"),
        (["--model", "lama-3.1-8b", "--gpu", "h100-sxm"], "nearest are meta-llama/Llama-3.1-8B"),
        (["--model", "/nowhere/config.json", "--gpu", "h100-sxm"], "there is no file"),
        (["--model", "llama-3.1-8b", "--gpu", "h999"], "--gpu bf16=9.9e14,bandwidth=3.35e12,memory=80e9"),
        (["--model", "llama-3.1-8b", "--gpu", "bf16=9.9e14,bandwidth=3.35e12"], "add memory=80e9"),
        (["--model", "llama-3.1-8b", "--gpu", "generic-cpu-ddr5-8ch"], "--gpu based_on=generic-cpu-ddr5-8ch,memory=256e9"),
        (["--model", "llama-3.1-8b", "--gpu", "bf16=990,bandwidth=3.35e12,memory=80e9"], "bf16"),
        ([*LLAMA, "--gpus", "3"], "divide by 1, 2, 4, 8, 16, 32"),
        ([*LLAMA, "--gpus", "none"], "--gpus is a count such as 1, 2 or 8, or auto, not 'none'"),
        ([*LLAMA, "--gpus", "0"], "--gpus is a count"),
        ([*LLAMA, "--gpus", "4", "--tensor-parallel", "3"], "4 GPUs a worker are not 3 (tensor)"),
        ([*LLAMA, "--gpus", "auto", "--tensor-parallel", "2"], "--gpus auto chooses"),
        ([*LLAMA, "--pipeline-parallel", "64"], "there are 32"),
        ([*LLAMA, "--weight-dtype", "fp9"], "did you mean 'fp8'"),
        ([*LLAMA, "--kv-dtype", "fp9"], "known are auto, bfloat16"),
        ([*LLAMA, "--cached-tokens", "2001"], "at most 2,000 (--prompt-tokens), not 2,001"),
        ([*LLAMA, "--max-output-tokens", "499"], "at least the mean output of 500"),
        ([*LLAMA, "--rate", "0"], "--rate is a number of requests a second above 0, not 0"),
        ([*LLAMA, "--rate", "nan"], "not nan"),
        ([*LLAMA, "--rate", "inf"], "not inf"),
        ([*LLAMA, "--gpu-memory-utilization", "92"], "a share above 0 and at most 1, not 92"),
        ([*LLAMA, "--engine", "vlm"], "there are vllm, tensorrt-llm, sglang"),
        ([*LLAMA, "--target", "chats"], "--target is chat, service (or customer-service) or batch"),
        ([*LLAMA, "--ttft-target", "500"], "--ttft-target is a time such as 500ms or 0.5s, not '500'"),
        ([*LLAMA, "--tpot-target", "soon"], "--tpot-target is a time"),
        ([*LLAMA, "--tpot-target", "0ms"], "--tpot-target is a time"),
        ([*LLAMA, "--plot", "plan.txt"], ".svg, .png, .pdf"),
        ([*LLAMA, "--plot", "/nowhere/plan.svg"], "cannot be written"),
        (["--config", "/nowhere/ridgeline.yaml"], "cannot be read"),
        ([*LLAMA, "--config", "x.yaml", "--gpus", "2"], "leave --model, --gpu, --gpus out"),
    ],
)
def test_options_that_cannot_be(arguments, message):
    """Each is refused with status 2 and a message that says what would be right; nothing goes to standard output."""
    result = run(*arguments)

    assert result.status == 2
    assert result.out == ""
    assert message in " ".join(result.err.split())


@pytest.mark.parametrize("option", ["--prompt-tokens", "--output-tokens", "--concurrency", "--workers", "--max-num-seqs"])
def test_counts_are_at_least_one(option):
    """A count of nothing is refused by the command line itself."""
    assert llama(option, "0").status == 2


def test_too_many_columns_are_refused():
    """More columns than anyone reads are an error that says how many there would be."""
    gpus = "h100-sxm,h200-sxm,b200-sxm,l40s,l4,mi300x"
    assert "make 18 columns; at most 16" in run("--model", "llama-3.1-8b", "--gpu", gpus, "--weight-dtype", "bf16,fp8,awq").err


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((), 0),
        (("--concurrency", 5000), 0),
        (("--rate", 5000), 0),
        (("--tpot-target", "1ms"), 0),
        (("--prompt-tokens", 131_072), 1),
        (("--gpu", "t4"), 1),
    ],
)
def test_exit_status(arguments, status):
    """1 if not one such request can be served; missed targets and too much load are warnings."""
    shown = run("--model", "llama-3.1-8b", *(() if "--gpu" in arguments else ("--gpu", "h100-sxm")), *arguments)

    assert shown.status == status
    assert ("error: " in shown.out) is (status == 1)


def test_one_column_that_works_is_enough():
    """Side by side, the status is 1 only if no column works."""
    model = ("--model", "llama-3.1-70b", "--json")
    assert run(*model, "--gpu", "h100-sxm,mi300x").status == 0
    assert run(*model, "--gpu", "h100-sxm,l40s").status == 1


def test_auto_takes_the_fewest_gpus():
    """--gpus auto takes as few as hold model and one request, by tensor parallelism within a node and stages beyond."""
    small, large = (
        run("--model", model, "--gpu", gpu, "--gpus", "auto", "--json").document
        for model, gpu in (("llama-3.1-70b", "h100-sxm"), ("deepseek-v3", "l40s"))
    )
    assert (small["gpus"], small["parallelism"]["tensor"]) == (2, 2)
    assert large["parallelism"]["tensor"] == 8
    assert large["parallelism"]["pipeline"] > 1
    tiny = "name=tiny,bf16=1e13,bandwidth=1e11,memory=4e9"
    assert "no number of tiny up to 128 holds" in run("--model", "deepseek-v3", "--gpu", tiny, "--gpus", "auto").err


def test_columns_are_all_combinations():
    """Lists and repeated options multiply, in the order given, and titles say how columns differ."""
    shown = run(
        *("--model", "llama-3.1-8b", "--model", "qwen3-8b", "--gpu", "h100-sxm", "--weight-dtype", "bf16"),
        *("--weight-dtype", "fp8", "--kv-dtype", "auto,fp8", "--json"),
    ).document

    titles = [plan["title"] for plan in shown["plans"]]
    assert len(titles) == len(set(titles)) == 8
    assert titles[0] == "Llama-3.1-8B 1 x h100-sxm bf16 kv bf16"
    assert titles[-1] == "Qwen3-8B 1 x h100-sxm fp8 kv fp8"


def test_figures_of_a_gpu_are_one_gpu():
    """Commas within figures make no columns."""
    shown = run("--model", "llama-3.1-8b", "--gpu", "name=mine,bf16=9.9e14,bandwidth=3.35e12,memory=80e9", "--json").document
    assert shown["gpu"]["id"] == "mine"
    assert shown["ridge_flop_per_byte"] == pytest.approx(9.9e14 / 3.35e12)


def test_names_of_quantised_checkpoints_are_understood():
    """A name that says how weights are stored is believed, and said to be believed; an option overrides it."""
    named = run("--model", "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "--gpu", "h100-sxm", "--json").document["model"]
    assert (named["weight_dtype"], named["weight_dtype_from"]) == ("fp8", "read from the model's name")
    given = run("--model", "Llama-3.1-8B-FP8", "--gpu", "h100-sxm", "--weight-dtype", "bf16", "--json").document["model"]
    assert (given["weight_dtype"], given["weight_dtype_from"]) == ("bf16", "given")


def test_a_config_json_is_a_model(tmp_path):
    """A path to a config.json, or to the folder that holds it, stands for the model."""
    fields = {
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 4096,
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))

    for path in (tmp_path, tmp_path / "config.json"):
        shown = run("--model", path, "--gpu", "h100-sxm", "--json").document
        assert shown["kv_bytes_per_token"] == 2 * 4 * 2 * 64 * 2


@pytest.mark.parametrize(
    ("option", "value", "key", "figure"),
    [
        ("--max-num-seqs", 7, ("engine", "max_sequences"), 7),
        ("--max-num-batched-tokens", 1024, ("engine", "max_batched_tokens"), 1024),
        ("--engine", "sglang", ("engine", "name"), "sglang"),
        ("--target", "service", ("targets", "ttft_seconds"), 1.5),
        ("--target", "batch", ("targets", "tpot_seconds"), None),
        ("--ttft-target", "800ms", ("targets", "ttft_seconds"), 0.8),
        ("--tpot-target", "0.03", ("targets", "tpot_seconds"), 0.03),
        ("--tpot-target", "20ms", ("targets", "name"), "given"),
        ("--max-output-tokens", 900, ("request", "total_tokens"), 2900),
        ("--workers", 3, ("workers",), 3),
    ],
)
def test_options_reach_the_plan(option, value, key, figure):
    """What an option says is what is planned with."""
    found = llama(option, value, "--json").document
    for name in key:
        found = found[name]
    assert found == figure


def test_utilization_reaches_the_memory():
    """Half the utilization, half the usable memory."""
    usable = [llama("--gpu-memory-utilization", share, "--json").document["memory"]["usable_bytes"] for share in (0.8, 0.4)]
    assert usable[0] == 2 * usable[1]


def test_pools_of_a_configuration_are_columns():
    """Each pool is a column with its own GPU and number of workers, which share the rate."""
    shown = run("--config", ROOT / "examples/two-pools.yaml", "--rate", 8, "--json").document["plans"]

    assert [(plan["title"], plan["workers"]) for plan in shown] == [
        ("short: 2 x 1 x h100-sxm", 2),
        ("long: 1 x 1 x h200-sxm", 1),
    ]
    assert all(plan["rate_per_second"] == 8 for plan in shown)


def test_pools_that_do_not_take_the_request_are_left_out():
    """A request longer than a pool accepts is not planned for it, and that is said on standard error."""
    result = run("--config", ROOT / "examples/two-pools.yaml", "--prompt-tokens", 100_000, "--json")

    assert result.document["title"] == "long: 1 x 1 x h200-sxm"
    assert "short takes requests of at most 16,384 tokens" in " ".join(result.err.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: [{name: m, workers: ['http://a:1']}]", "says nothing of its GPU"),
        (
            "models: [{name: m, pools: [{name: p, gpu: h100-sxm, workers: ['http://a:1']}]}]",
            "model m: no model is known by the name 'm'",
        ),
        ("models: [{name: m, worker: 1}]", "did you mean `workers`?"),
    ],
)
def test_configurations_that_cannot_be_planned(tmp_path, text, message):
    """A configuration without GPUs, without shapes, or with problems is refused, and what is missing is named."""
    path = tmp_path / "ridgeline.yaml"
    path.write_text(text)
    result = run("--config", path)
    assert result.status == 2
    assert message in " ".join(result.err.split())


def test_models_of_a_configuration_are_told_apart(tmp_path):
    """With several models, titles name model and pool; variables are substituted."""
    path = tmp_path / "ridgeline.yaml"
    path.write_text(
        "models:\n"
        "  - {name: a, shape: llama-3.1-8b, pools: [{name: p, gpu: '${GPU}', workers: ['http://a:1']}]}\n"
        "  - {name: b, shape: qwen3-8b, pools: [{name: p, gpu: l40s, weight_dtype: fp8, workers: ['http://b:1']}]}\n"
    )
    shown = run("--config", path, "--json", environ={"GPU": "h100-sxm"}).document["plans"]
    assert [plan["title"] for plan in shown] == ["a/p: 1 x 1 x h100-sxm", "b/p: 1 x 1 x l40s"]
    assert shown[1]["model"]["weight_dtype"] == "fp8"
