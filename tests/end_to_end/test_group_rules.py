"""`param_groups` in runs: each option equals the same groups made by hand, and resumes bitwise."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, AdamW, Muon

import hexloop
from hexloop import ConfigurationError, HfArgumentParser, TrainingArguments
from hexloop.app.pages.page import report_page
from hexloop.app.pages.reading import read_runs
from hexloop.app.recipe.recipe import read_recipe
from tests.end_to_end.small.models import FEATURES, Net, net, rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights
from tests.engines.processes import QUIET
from tests.warm_python import warm_python

ROOT = Path(__file__).parents[2]


class Deep(Net):
    """An input layer, three numbered layers with a norm each, and a head."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout)
        del self.layers
        self.embed = nn.Linear(FEATURES, 6)
        self.layers: Any = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)) for _ in range(3))
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        hidden = self.embed(x)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        logits = self.head(hidden)
        return {"logits": logits} if labels is None else {"loss": mse_loss(logits, labels), "logits": logits}


def deep() -> Any:
    return net(kind=Deep)


RATE, DECAY, STEPS = 0.01, 0.1, 8
GIVEN: dict[str, Any] = {
    "learning_rate": RATE,
    "weight_decay": DECAY,
    "optim": "adamw_torch",
    "max_steps": STEPS,
    "max_grad_norm": 0,
    "train_sampling_strategy": "sequential",
}


def ruled(folder: Path, rules: Any, **given: Any) -> Any:
    return small_trainer(folder, parts={"model": deep()}, param_groups=rules, **{**GIVEN, **given})


# Each option by hand


def is_decayed(name: str) -> bool:
    return not name.endswith(("bias", ".1.weight"))


def by_hand(chosen: Callable[[str], dict[str, Any] | None], make: Callable[[list[dict[str, Any]]], Any]) -> Any:
    """Return the model after the run, trained by a plain loop with one group for each parameter.

    chosen: returns the options of a parameter; None if it is frozen.
    """
    model = deep()
    groups = []
    for name, parameter in model.named_parameters():
        options = chosen(name)
        if options is not None:
            groups.append({"params": [parameter], "weight_decay": DECAY if is_decayed(name) else 0.0, **options})
    optimizers = make(groups)
    bases = [[group["lr"] for group in each.param_groups] for each in optimizers]
    data = rows(16)
    for step in range(STEPS):
        batch = [data[(4 * step + number) % 16] for number in range(4)]
        loss = model(**{key: torch.stack([row[key] for row in batch]) for key in ("x", "labels")})["loss"]
        loss.backward()
        for optimizer, rates in zip(optimizers, bases, strict=True):
            for group, base in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = base * (STEPS - step) / STEPS
            optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None
    return model


def adamw(groups: list[dict[str, Any]]) -> list[Any]:
    return [AdamW(groups, lr=RATE)]


def depth_of(name: str) -> int:
    return {"e": 4, "h": 0}.get(name[0], 3 - int(name.split(".")[1]) if name[0] == "l" else 0)


def sgd_for_head(groups: list[dict[str, Any]]) -> list[Any]:
    head = [group for group in groups if group.pop("head", False)]
    rest = [group for group in groups if all(group is not each for each in head)]
    return [AdamW(rest, lr=RATE), SGD(head, lr=RATE, momentum=0.9)]


def muon_for_layers(groups: list[dict[str, Any]]) -> list[Any]:
    matrices = [group for group in groups if group.pop("muon", False)]
    rest = [group for group in groups if all(group is not each for each in matrices)]
    return [AdamW(rest, lr=RATE), Muon(matrices, lr=RATE, adjust_lr_fn="original")]


CASES: dict[str, Any] = {
    "rate": ([{"params": "head", "learning_rate": 0.05}], lambda name: {"lr": 0.05} if name[0] == "h" else {}, adamw),
    "factor": (
        [{"params": "layers.*", "learning_rate_factor": 0.3}],
        lambda name: {"lr": RATE * 0.3} if name[0] == "l" else {},
        adamw,
    ),
    "decay": (
        [{"params": ["embed", "layers.?.1"], "weight_decay": 0.5}],
        lambda name: {"weight_decay": 0.5} if name[0] == "e" or name.endswith((".1.weight", ".1.bias")) else {},
        adamw,
    ),
    "betas": (
        [{"params": "*", "except": "head", "betas": [0.5, 0.8], "eps": "1e-3", "amsgrad": True}],
        lambda name: {} if name[0] == "h" else {"betas": (0.5, 0.8), "eps": 1e-3, "amsgrad": True},
        adamw,
    ),
    "layer decay": (
        [{"params": "*", "layer_decay": 0.5}],
        lambda name: {"lr": RATE * 0.5 ** depth_of(name)},
        adamw,
    ),
    "layer decay of another rate": (
        [{"params": "*", "except": "head", "layer_decay": 0.5, "learning_rate": 0.02}, {"params": "head"}],
        lambda name: {} if name[0] == "h" else {"lr": 0.02 * 0.5 ** depth_of(name)},
        adamw,
    ),
    "frozen": ([{"params": "layers", "frozen": True}], lambda name: None if name[0] == "l" else {}, adamw),
    "matrices": (
        [{"params": "layers", "ndim": 2, "learning_rate": 0.1}],
        lambda name: {"lr": 0.1} if name[0] == "l" and name.endswith(".0.weight") else {},
        adamw,
    ),
    "optimizer": (
        [{"params": "head", "optimizer": "sgd", "optim_args": "momentum=0.9"}],
        lambda name: {"head": True} if name[0] == "h" else {},
        sgd_for_head,
    ),
    "optimizer of all": (
        [{"params": "*", "optimizer": "sgd", "optim_args": "momentum=0.5"}],
        lambda name: {},
        lambda groups: [SGD(groups, lr=RATE, momentum=0.5)],
    ),
    "muon": (
        [{"params": "layers", "optimizer": "muon", "optim_args": "adjust_lr_fn=original"}],
        lambda name: {"muon": True} if name[0] == "l" and name.endswith(".0.weight") else {},
        muon_for_layers,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_option_is_what_it_is_by_hand(case: str, tmp_path: Path) -> None:
    """To 1e-7 of each weight: groups differ in the number of tensors that one call of a kernel updates."""
    rules, chosen, make = CASES[case]
    trainer = ruled(tmp_path, rules)
    trainer.train()
    expected = by_hand(chosen, make)
    for name, weight in expected.named_parameters():
        torch.testing.assert_close(trainer.model.get_parameter(name), weight, rtol=0, atol=1e-7)
    assert all(parameter.requires_grad for parameter in trainer.model.parameters())


PROGRAM = """
import json, sys
from pathlib import Path
import torch
from tests.end_to_end.test_group_rules import CASES, ruled
torch.set_num_threads(1)
folder, rules, resume = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
given = {"optim": "muon"} if rules == "muon" else {}
trainer = ruled(Path(folder), None if rules == "muon" else rules, save_strategy="steps", save_steps=3, **given)
trainer.train(resume_from_checkpoint=resume or None)
keys = ("loss", "grad_norm", "learning_rate", "step")
logs = [{k: v for k, v in e.items() if k.startswith(keys)} for e in trainer.state.log_history if "loss" in e]
weights = {name: each.tolist() for name, each in trainer.model.state_dict().items()}
print(json.dumps([logs, weights]))
"""


@pytest.mark.one_in(100)
@pytest.mark.parametrize("case", ["layer decay", "optimizer", "muon", "muon for all", "frozen", "betas"])
def test_a_run_resumes_bitwise_in_a_fresh_process(case: str, tmp_path: Path) -> None:
    rules = "muon" if case == "muon for all" else CASES[case][0]

    def train(folder: str, resume: str = "") -> Any:
        command = [warm_python(), "-c", PROGRAM, str(tmp_path / folder), json.dumps(rules), resume]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=120)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    whole = train("whole")
    rest = train("rest", str(tmp_path / "whole" / "checkpoint-3"))
    assert rest == whole


# Rates


def test_rates_of_rules_are_logged_by_name(tmp_path: Path) -> None:
    """The first group's as before; of a rule with a decay by depth that of its group nearest to the output."""
    trainer = ruled(tmp_path, [{"params": "*", "except": "embed", "layer_decay": 0.5, "name": "body"}])
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["learning_rate/body"] for entry in logged] == [entry["learning_rate"] for entry in logged]
    assert logged[0]["learning_rate"] == RATE
    plain = small_trainer(tmp_path / "plain", parts={"model": deep()}, **GIVEN)
    plain.train()
    assert not any(name.startswith("learning_rate/") for entry in plain.state.log_history for name in entry)


@pytest.mark.parametrize("kind", ["reduce_lr_on_plateau", "greedy"])
def test_schedules_of_a_metric_change_each_rate(kind: str, tmp_path: Path) -> None:
    """From its own base; the run resumes bitwise."""
    given = {
        "lr_scheduler_type": kind, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 4,
        "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5, "mode": "max", "min_lr": 1e-6},
        "metric_for_best_model": "loss", "greater_is_better": True,
    }  # fmt: skip
    rules = [{"params": "head", "learning_rate": 0.04}]

    def make(folder: str) -> Any:
        parts = {"model": deep(), "eval_dataset": rows(4, 1)}
        return small_trainer(tmp_path / folder, parts=parts, param_groups=rules, **{**GIVEN, **given})

    trainer = make("whole")
    trainer.train()
    first, *_, last = trainer.get_learning_rates()
    assert last == pytest.approx(4 * first)
    if kind == "reduce_lr_on_plateau":
        assert first < RATE
    rest = make("rest")
    rest.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert same_weights(weights(trainer), weights(rest))
    assert history(trainer) == history(rest)


def test_fp16_scales_gradients_for_all_optimizers(tmp_path: Path) -> None:
    """A gradient that overflows is skipped by all of them, and the others train."""
    trainer = ruled(tmp_path, CASES["optimizer"][0], fp16=True)
    before = weights(trainer)
    trainer.train()
    after = weights(trainer)
    assert not any(torch.equal(before[name], after[name]) for name in after)


# What is refused


class Wrong(hexloop.Trainer):
    """Makes an optimizer of its own."""

    def create_optimizer(self, model: Any = None) -> Any:
        self.optimizer = SGD(self.model.parameters(), 0.1)
        return self.optimizer


class Wrapping(hexloop.Trainer):
    """Changes what the Trainer makes."""

    def create_optimizer(self, model: Any = None) -> Any:
        optimizer = super().create_optimizer(model)
        optimizer.param_groups[0]["eps"] = 1e-3
        return optimizer


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "pattern": ([{"params": "layer.0"}], {}, "matches no parameter of the model; did you mean layers.0"),
    "twice": ([{"params": "layers"}, {"params": "*.bias"}], {}, "both match layers.0.0.bias"),
    "unknown": ([{"params": "*", "betaz": [0.1, 0.2]}], {}, "have no betaz; did you mean betas?"),
    "lr": ([{"params": "*", "lr": 0.1}], {}, "have no lr; write learning_rate."),
    "type": ([{"params": "*", "eps": "small"}], {}, "it takes a number"),
    "length": ([{"params": "*", "betas": [0.9]}], {}, "it takes a list of 2 items"),
    "range": ([{"params": "*", "betas": [0.9, 1.5]}], {}, "AdamW refuses it: Invalid beta"),
    "optimizer": ([{"params": "*", "optimizer": "sgdd"}], {}, "In the rule '*' of param_groups: There is no optimizer"),
    "optim_args": ([{"params": "*", "optimizer": "sgd", "optim_args": "momentun=1"}], {}, "did you mean momentum?"),
    "frozen": ([{"params": "head", "frozen": True, "optimizer": "sgd"}], {}, "is frozen and has an optimizer"),
    "all frozen": ([{"params": "*", "frozen": True}], {}, "no parameter that is trained"),
    "of another": ([{"params": "*", "momentum": 0.9}], {}, "have no momentum"),
    "own groups": (
        [{"params": "*"}],
        {"optim": "galore_adamw", "optim_target_modules": "all-linear"},
        "makes its parameter groups itself",
    ),
    "capture": (
        [{"params": "head", "optimizer": "sgd"}],
        {"capture_step": True, "torch_compile": True},
        "one optimizer",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rules_are_refused_before_the_first_step(case: str, tmp_path: Path) -> None:
    rules, given, said = BAD[case]
    with pytest.raises(ConfigurationError) as caught:
        ruled(tmp_path, rules, **given).train()
    assert said in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_all_problems_are_in_one_message(tmp_path: Path) -> None:
    rules = [{"params": "laiers"}, {"params": "*", "betaz": 1}, {"params": "head", "optimizer": "sgdd"}]
    with pytest.raises(ConfigurationError) as caught:
        ruled(tmp_path, rules).train()
    assert len(caught.value.problems) == 4


def test_a_model_without_layers_has_no_depth(tmp_path: Path) -> None:
    class Flat(Net):
        def __init__(self, dropout: float = 0.0) -> None:
            super().__init__(dropout)
            self.layers: Any = nn.Linear(FEATURES, 1)

    with pytest.raises(ConfigurationError, match="no numbered layers"):
        small_trainer(
            tmp_path, parts={"model": net(kind=Flat)}, param_groups=[{"params": "*", "layer_decay": 0.5}]
        ).train()


def test_optimizers_of_the_user_stand(tmp_path: Path) -> None:
    """An override that makes its own groups is refused, and one that calls the standard method is kept."""
    rules = [{"params": "head", "learning_rate": 0.1}]
    with pytest.raises(ConfigurationError, match="overridden create_optimizer made the optimizer"):
        small_trainer(tmp_path, kind=Wrong, parts={"model": deep()}, param_groups=rules).train()
    kept = small_trainer(tmp_path, kind=Wrapping, parts={"model": deep()}, param_groups=rules)
    kept.train()
    assert kept.optimizer.param_groups[0]["eps"] == 1e-3
    assert kept.optimizer.param_groups[-1]["name"] == "head"
    model = deep()
    parts = {"model": model, "optimizers": (SGD(model.parameters(), 0.1), None)}
    with pytest.raises(ConfigurationError, match="was given an optimizer"):
        small_trainer(tmp_path, parts=parts, param_groups=rules).train()
    own = small_trainer(
        tmp_path, parts={"model": deep(), "optimizer_cls_and_kwargs": (SGD, {"lr": 0.2})},
        param_groups=[{"params": "head", "momentum": 0.5, "learning_rate_factor": 0.5}],
    )  # fmt: skip
    own.train()
    assert [group["momentum"] for group in own.optimizer.param_groups] == [0, 0, 0.5, 0.5]
    assert {group["initial_lr"] for group in own.optimizer.param_groups} == {0.2, 0.1}


def test_other_rules_do_not_resume(tmp_path: Path) -> None:
    """Groups of other parameters or options are named; another name of a rule changes nothing."""
    rules = [{"params": "head", "weight_decay": 0.2}]
    ruled(tmp_path / "whole", rules, save_strategy="steps", save_steps=4).train()
    where = str(tmp_path / "whole" / "checkpoint-4")
    for others in ([{"params": "embed", "weight_decay": 0.2}], [{"params": "head", "weight_decay": 0.3}], None):
        with pytest.raises(hexloop.CheckpointError):
            ruled(tmp_path / "rest", others).train(resume_from_checkpoint=where)
    ruled(tmp_path / "rest", [{**rules[0], "name": "the head"}]).train(resume_from_checkpoint=where)


def test_transformers_has_no_rules(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="reproduce"):
        TrainingArguments(str(tmp_path), reproduce="transformers", param_groups=[{"params": "*"}])


# Where rules are written


def test_rules_on_the_command_line_are_json() -> None:
    text = '[{"params": "head", "learning_rate": 1e-3}]'
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(["--param_groups", text])
    assert args.param_groups == [{"params": "head", "learning_rate": 1e-3}]
    one: Any = {"params": "head"}
    assert TrainingArguments(param_groups=one).param_groups == [one]
    assert TrainingArguments(param_groups="none").param_groups is None
    with pytest.raises(ConfigurationError, match="layer_decay of rule 0: it must be above 0"):
        TrainingArguments(param_groups=[{"params": "head", "layer_decay": 0}])


RECIPE = """\
model: {{call: tests.end_to_end.small.models.net}}
train_dataset: {{call: tests.end_to_end.small.models.rows, count: 16}}
param_groups:
  - params: layers.0
    learning_rate: 1e-3
  - params: [layers.3]
    {line}
arguments:
  output_dir: {folder}
  use_cpu: true
  max_steps: 2
  save_strategy: no
  report_to: none
"""


def test_a_recipe_has_a_section(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(folder=tmp_path / "run", line="layer_decay: 0.5"))
    trainer = read_recipe(path).make_trainer(["train_dataset"])
    trainer.train()
    rules: Any = trainer.args.param_groups
    assert rules[1] == {"params": ["layers.3"], "layer_decay": 0.5}
    assert len(trainer.optimizer.param_groups) == 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("layer_decay: 2", "line 7: You chose param_groups.1.layer_decay=2, but it must be above 0 and at most 1"),
        ("frozen: perhaps", "line 7: You chose param_groups.1.frozen='perhaps', but it takes true or false"),
    ],
)
def test_problems_in_a_recipe_have_lines(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(folder=tmp_path / "run", line=line))
    with pytest.raises(ConfigurationError) as caught:
        read_recipe(path)
    assert said in str(caught.value)
    assert len(caught.value.problems) == 1


def test_a_recipe_gives_rules_once(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    text = RECIPE.format(folder=tmp_path / "run", line="layer_decay: 0.5")
    path.write_text(text + "  param_groups: [{params: layers.0}]\n")
    with pytest.raises(ConfigurationError, match="given as a section and in arguments"):
        read_recipe(path)


# What is shown


def test_the_report_shows_the_groups(tmp_path: Path) -> None:
    """With the patterns, the number of parameters and the rates; nothing for a run without rules."""
    ruled(tmp_path / "ruled", CASES["optimizer"][0], save_strategy="steps", save_steps=4).train()
    page = report_page(read_runs([str(tmp_path / "ruled")]), 0.0)
    assert "<caption>Parameter groups</caption>" in page
    table = page.split("<caption>Parameter groups</caption>")[1].split("</table>")[0]
    assert all(text in table for text in (">head<", ">SGD<", ">AdamW<", ">0.01<", ">no rule<", ">132<"))
    small_trainer(tmp_path / "plain", parts={"model": deep()}, **GIVEN, save_strategy="steps", save_steps=4).train()
    assert "Parameter groups" not in report_page(read_runs([str(tmp_path / "plain")]), 0.0)


def test_a_damaged_journal_shows_what_it_can(tmp_path: Path) -> None:
    """Groups of other types, or very many of them, are left out."""
    ruled(tmp_path, CASES["rate"][0], save_strategy="steps", save_steps=4).train()
    path = tmp_path / ".hexloop" / "journal.jsonl"
    lines = path.read_text().splitlines()
    began = json.loads(lines[0])
    assert began["groups"]
    began["groups"] = [3, {"rule": 1, "patterns": 5, "tensors": "x", "learning_rate": "<b>"}, *[{}] * 100_000]
    path.write_text("\n".join([json.dumps(began), *lines[1:]]) + "\n")
    page = report_page(read_runs([str(tmp_path)]), 0.0)
    assert "<caption>Parameter groups</caption>" in page
    assert len(page) < 5_000_000


@pytest.mark.matrix
def test_a_check_shows_groups_of_the_program(tmp_path: Path) -> None:
    """`hexloop run --check` lists the groups that a program makes by itself."""
    pytest.importorskip("transformers")
    script = tmp_path / "program.py"
    script.write_text(
        "import torch\n"
        "from transformers import Trainer, TrainingArguments\n"
        "from tests.end_to_end.small.models import net, rows\n"
        "model = net()\n"
        "groups = [{'params': [each], 'lr': 0.1 * n} for n, each in enumerate(model.parameters(), 1)]\n"
        "args = TrainingArguments('out', max_steps=2, use_cpu=True, report_to=[], save_strategy='no')\n"
        "Trainer(model, args, train_dataset=rows(8), optimizers=(torch.optim.SGD(groups), None)).train()\n"
    )
    command = [sys.executable, "-m", "hexloop", "run", "--check", str(script)]
    environment = {**__import__("os").environ, **QUIET}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "parameter group 3: 1 tensors, learning rate 0.4 at the peak, weight decay 0.0" in done.stdout
