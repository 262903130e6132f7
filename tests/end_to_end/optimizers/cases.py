"""How the optimizer of each name is tried: one row per name. The page of optimizers says what these rows say.

A name is trained for 30 steps and saved at 10, resumed in a fresh process, trained by two processes, compared with its
class stepped by hand, and with transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any

from attrs import evolve, frozen

from hexloop.adapters.trainable.torch.optimizers import OPTIMIZERS

Groups = list[dict[str, Any]]

BETAS = (0.8, 0.95)
EPSILON = 1e-7

GIVEN: Mapping[str, Any] = MappingProxyType(
    {
        "learning_rate": 3e-3,
        "weight_decay": 0.05,
        "adam_beta1": BETAS[0],
        "adam_beta2": BETAS[1],
        "adam_epsilon": EPSILON,
        "max_steps": 30,
    }
)
"""The arguments of every run. None of them is a default, so that one which does not reach an optimizer shows."""


@frozen(kw_only=True)
class Case:
    """How one name is tried.

    arguments: of the run, besides `GIVEN` and `optim`. by_hand: makes an optimizer of the original class for parameter
    groups; it is stepped by a plain loop. close, close_over_ranks: how far its losses may be from these, and
    from those of two processes, relatively.
    refused: what the error says if it cannot be made on a CPU; nothing else is tried. alone: why it is not compared
    with transformers. differs: why its losses are others there. reproduced: what the error says with
    reproduce='transformers'; empty if that is done. note: more for the page.
    stateless: whether it has no state in a checkpoint.
    """

    arguments: Mapping[str, Any] = MappingProxyType({})
    by_hand: Callable[[Groups], Any] | None = None
    close: float = 1e-6
    close_over_ranks: float = 1e-4
    refused: str = ""
    alone: str = ""
    differs: str = ""
    reproduced: str = ""
    note: str = ""
    stateless: bool = False


def made(path: str, **options: Any) -> Callable[[Groups], Any]:
    """Return what makes an optimizer of the class at "package.module:name" with these options, and the rate."""
    return lambda groups: resolve_name(path)(groups, lr=GIVEN["learning_rate"], **options)


ADAM: Mapping[str, Any] = {"betas": BETAS, "eps": EPSILON}
NO_TRANSFORMERS_NAME = "transformers has no such name"


def bitsandbytes(path: str, **options: Any) -> Case:
    """Return the row of an optimizer of bitsandbytes; by hand, its state of embeddings has 32 bits as well."""
    note = "on a CPU, state is not paged" if options.get("is_paged") else ""
    return Case(by_hand=made(f"bitsandbytes.optim:{path}", **options), note=note)


def schedule_free(path: str, **options: Any) -> Case:
    """Return the row of a schedule-free optimizer, which counts its own warmup; its rate does not fall."""
    return Case(
        arguments={"lr_scheduler_type": "constant", "warmup_steps": options.get("warmup_steps", 0)},
        by_hand=made(f"schedulefree:{path}", **options),
    )


PROJECTED: Mapping[str, Any] = {"optim_target_modules": "all-linear", "optim_args": "rank=2,update_proj_gap=7"}
RANK: Mapping[str, Any] = {"rank": 2, "update_proj_gap": 7}
GALORE: Mapping[str, Any] = {**RANK, "scale": 0.25, "proj_type": "std"}
APOLLO: Mapping[str, Any] = {**RANK, "scale": 1.0, "proj_type": "std", "proj": "random", "scale_type": "channel"}
NO_DECAY = "the weight decay does not reach it there"
NO_ADAM = "Adam's betas and epsilon and the weight decay do not reach it there"
UNCLIPPED = "gradients are not clipped, and the schedule has no effect there"
IN_BACKWARD = "layer-wise steps"


def projected(path: str, settings: Mapping[str, Any], differs: str, layerwise: bool = False, **options: Any) -> Case:
    """Return the row of an optimizer that projects the gradients of linear layers, which follow the embedding."""

    def by_hand(groups: Groups) -> Any:
        first, *linear = groups[0]["params"]
        every = [{**groups[0], "params": [first]}, groups[1], {**groups[0], "params": linear, **settings}]
        return made(path, **options)(every)

    return Case(
        arguments=PROJECTED,
        by_hand=by_hand,
        differs=f"{differs}; {UNCLIPPED}" if layerwise else differs,
        reproduced=IN_BACKWARD if layerwise else "",
    )


def galore_adamw(layerwise: bool) -> Case:
    return projected("galore_torch:GaLoreAdamW", GALORE, NO_ADAM, layerwise, no_deprecation_warning=True, **ADAM)


def galore_adafactor(layerwise: bool) -> Case:
    fixed = {"scale_parameter": False, "relative_step": False}
    return projected("galore_torch:GaLoreAdafactor", GALORE, NO_DECAY, layerwise, **fixed)


def apollo_adamw(layerwise: bool) -> Case:
    differs = "Adam's betas and epsilon reach only projected weights there, and the weight decay none"
    return projected("apollo_torch:APOLLOAdamW", APOLLO, differs, layerwise, **ADAM)


MIX = {"betas": (*BETAS, 0.9999), "eps": EPSILON, "alpha": 5.0}
EIGHT: Mapping[str, Any] = {"optim_bits": 8}
PAGED: Mapping[str, Any] = {"is_paged": True}


class Together:
    """Two optimizers that a plain loop steps as one."""

    def __init__(self, *optimizers: Any) -> None:
        self._optimizers = optimizers
        self.param_groups = [group for each in optimizers for group in each.param_groups]

    def step(self) -> None:
        """Take a step of each."""
        for each in self._optimizers:
            each.step()

    def zero_grad(self) -> None:
        """Clear the gradients of each."""
        for each in self._optimizers:
            each.zero_grad()


def muon_and_adamw(groups: Groups) -> Any:
    """Return Muon for the hidden matrix, and AdamW for the embedding, the output layer, biases and norms."""
    decayed, others = groups
    embedding, inner, outer = decayed["params"]
    muon = resolve_name("torch.optim:Muon")(
        [{**decayed, "params": [inner]}], lr=GIVEN["learning_rate"], adjust_lr_fn="match_rms_adamw"
    )
    rest = [{**decayed, "params": [embedding, outer]}, others]
    return Together(made("torch.optim:AdamW", fused=True, **ADAM)(rest), muon)


CASES: Mapping[str, Case] = {
    "adamw_torch": Case(by_hand=made("torch.optim:AdamW", **ADAM)),
    "adamw_torch_fused": Case(by_hand=made("torch.optim:AdamW", fused=True, **ADAM)),
    "adamw_torch_xla": Case(refused="it is of torch_xla, which is not installed"),
    "adamw_torch_npu_fused": Case(refused="it is of torch_npu, which is not installed"),
    "adamw_anyprecision": Case(
        by_hand=made("torch.optim:AdamW", foreach=False, **ADAM),
        alone="its package torchdistx, which transformers imports, is not published any more",
        note="hexloop's own class, because the package is not published any more",
    ),
    "adafactor": Case(
        by_hand=made("transformers.optimization:Adafactor", scale_parameter=False, relative_step=False),
    ),
    "sgd": Case(
        arguments={"optim_args": "momentum=0.9,nesterov=True"},
        by_hand=made("torch.optim:SGD", momentum=0.9, nesterov=True),
    ),
    "adagrad": Case(
        arguments={"optim_args": "lr_decay=0.01,eps=1e-9"}, by_hand=made("torch.optim:Adagrad", lr_decay=0.01, eps=1e-9)
    ),
    "rmsprop": Case(
        arguments={"optim_args": "momentum=0.5,alpha=0.9,centered=True"},
        by_hand=made("torch.optim:RMSprop", momentum=0.5, alpha=0.9, centered=True),
    ),
    "adamw_torch_4bit": Case(by_hand=made("torchao.optim:AdamW4bit", block_size=256, **ADAM)),
    "adamw_torch_8bit": Case(by_hand=made("torchao.optim:AdamW8bit", block_size=256, **ADAM)),
    "adamw_torch_fp8": Case(by_hand=made("torchao.optim:AdamWFp8", block_size=256, **ADAM), alone=NO_TRANSFORMERS_NAME),
    "adamw_bnb_8bit": bitsandbytes("AdamW", **EIGHT, **ADAM),
    "adamw_8bit": bitsandbytes("AdamW", **EIGHT, **ADAM),
    "paged_adamw_32bit": bitsandbytes("AdamW", **PAGED, **ADAM),
    "paged_adamw_8bit": bitsandbytes("AdamW", **PAGED, **EIGHT, **ADAM),
    "ademamix": bitsandbytes("AdEMAMix", **MIX),
    "ademamix_8bit": bitsandbytes("AdEMAMix", **EIGHT, **MIX),
    "paged_ademamix_32bit": bitsandbytes("AdEMAMix", **PAGED, **MIX),
    "paged_ademamix_8bit": bitsandbytes("AdEMAMix", **PAGED, **EIGHT, **MIX),
    "lion_32bit": bitsandbytes("Lion", betas=BETAS),
    "lion_8bit": bitsandbytes("Lion", betas=BETAS, **EIGHT),
    "paged_lion_32bit": bitsandbytes("Lion", betas=BETAS, **PAGED),
    "paged_lion_8bit": bitsandbytes("Lion", betas=BETAS, **PAGED, **EIGHT),
    "rmsprop_bnb": bitsandbytes("RMSprop"),
    "rmsprop_bnb_8bit": bitsandbytes("RMSprop", **EIGHT),
    "rmsprop_bnb_32bit": bitsandbytes("RMSprop"),
    "galore_adamw": galore_adamw(layerwise=False),
    "galore_adamw_8bit": Case(refused="it runs on cuda only"),
    "galore_adafactor": galore_adafactor(layerwise=False),
    "galore_adamw_layerwise": galore_adamw(layerwise=True),
    "galore_adamw_8bit_layerwise": Case(refused="it runs on cuda only"),
    "galore_adafactor_layerwise": evolve(
        galore_adafactor(layerwise=True), differs="", alone="transformers gives it relative_step=True, which it refuses"
    ),
    "apollo_adamw": apollo_adamw(layerwise=False),
    "apollo_adamw_layerwise": evolve(
        apollo_adamw(layerwise=True), differs=f"{NO_DECAY}; {UNCLIPPED}; its projections have one seed"
    ),
    "lomo": Case(
        by_hand=made("torch.optim:SGD"),
        differs=f"gradients are not clipped, and {NO_DECAY}",
        reproduced=IN_BACKWARD,
        stateless=True,
        note="by hand as SGD, which is the same; steps in the backward pass",
    ),
    "adalomo": Case(
        by_hand=made("hexloop.adapters.trainable.torch.lomo:AdaLomo"),
        alone="it needs a GPU there",
        reproduced=IN_BACKWARD,
        note="steps in the backward pass",
    ),
    "grokadamw": Case(
        by_hand=made("grokadamw:GrokAdamW", **ADAM),
        differs="Adam's betas and epsilon do not reach it there",
    ),
    "schedule_free_adamw": schedule_free("AdamWScheduleFree", warmup_steps=4, **ADAM),
    "schedule_free_radam": schedule_free("RAdamScheduleFree", **ADAM),
    "schedule_free_sgd": schedule_free("SGDScheduleFree", warmup_steps=4),
    "muon": Case(
        by_hand=muon_and_adamw,
        close_over_ranks=1e-3,
        alone=NO_TRANSFORMERS_NAME,
        note="with AdamW for what is no hidden matrix; it orthogonalizes gradients in bfloat16",
    ),
    "stable_adamw": Case(by_hand=made("optimi:StableAdamW", triton=False, **ADAM)),
    **{name: Case(refused=row.refused[0]) for name, row in OPTIMIZERS.items() if row.refused is not None},
}
"""One row per name of `OPTIMIZERS`."""
