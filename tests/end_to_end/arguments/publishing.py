"""The hub, and arguments that only scripts read."""

from __future__ import annotations

from pathlib import Path

from hexloop.adapters.hub import MemoryHub
from hexloop.app.arguments.arguments import TrainingArguments
from tests.end_to_end.arguments.bench import Bench, shows
from tests.end_to_end.small.trainers import same_weights, weights
from tests.unit.arguments.sources import parse


@shows("push_to_hub")
def _(bench: Bench) -> None:
    """Each save is published; without it, nothing is."""
    for push in (True, False):
        hub = MemoryHub()
        made = bench.trainer({"hub": hub}, push_to_hub=push, save_strategy="epoch", hub_model_id="me/model")
        made.train()
        assert list(hub.versions) == (["me/model"] if push else [])


@shows("hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push", "hub_revision")
def _(bench: Bench) -> None:
    """tests/end_to_end/publishing shows what they do; without push_to_hub they do nothing, which is reported."""
    given = {
        "hub_model_id": "me/model",
        "hub_strategy": "end",
        "hub_private_repo": True,
        "hub_always_push": True,
        "hub_revision": "main",
    }
    for name, value in given.items():
        said = bench.remark(**{name: value})
        assert said.startswith(f"You chose {name}={value!r}, which has no effect here: ")
        assert said.endswith("it is for uploads to the Hub, and push_to_hub is not set.")


@shows("hub_token")
def _(bench: Bench) -> None:
    assert "hub_token='<HUB_TOKEN>'" in bench.remark(hub_token="secret")
    assert "secret" not in repr(bench.arguments(hub_token="secret"))


@shows("do_train", "do_eval", "do_predict")
def _(bench: Bench) -> None:
    """A script reads them from its command line; the Trainer does what its methods are called for."""
    parsed = parse(TrainingArguments, ["--output_dir", "out", "--do_train", "--do_predict"])
    assert (parsed.do_train, parsed.do_eval, parsed.do_predict) == (True, False, True)
    assert bench.arguments(eval_strategy="epoch").do_eval
    told, untold = bench.trained(do_train=True), bench.trained(do_train=False)
    assert same_weights(weights(told), weights(untold))


@shows("overwrite_output_dir")
def _(bench: Bench) -> None:
    """A script reads it before training into a folder with checkpoints; the Trainer uses what `train` is given."""
    with bench.warned("overwrite_output_dir", "delete the folder, or resume from it"):
        made = bench.trainer(overwrite_output_dir=True, save_strategy="epoch")
    assert made.args.overwrite_output_dir is True
    made.train()
    assert (Path(made.args.output_dir) / "checkpoint-4").is_dir()
