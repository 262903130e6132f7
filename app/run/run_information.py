"""What loggers learn about a run at its start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hexloop.app.wiring.parts import TrainerParts
from hexloop.app.wiring.saved_weights import saved_weights
from hexloop.domain.redaction import redact, redacted
from hexloop.domain.run import Run
from hexloop.ports.logger import RunInformation


def information_of(parts: TrainerParts, run: Run[Any, Any]) -> RunInformation:
    """Return the description of a run for its loggers, without secrets."""
    args, model, state = parts.args, parts.unwrapped_model, parts.state
    count = parts.adapters.engine.element_count
    adapters = saved_weights(model).adapters
    is_trial = state.is_hyper_param_search or state.trial_name is not None
    return RunInformation(
        name=redact(args.run_name or str(args.output_dir)),
        configuration=redacted(_json_like(args.to_dict())),
        folder=redact(parts.folder),
        total_steps=run.plan.total_steps,
        step=run.state.step,
        run=run.state.run,
        chosen_name=None if args.run_name is None else redact(args.run_name),
        model_configuration=redacted(_json_like(_configuration_of(getattr(model, "config", None)))),
        adapter_configuration=redacted(_json_like(_configuration_of(adapters))),
        parameters=sum(map(count, model.parameters())),
        trainable_parameters=sum(count(each) for each in model.parameters() if each.requires_grad),
        trial=state.trial_name,
        trial_parameters=_json_like(state.trial_params or {}),
        group=redact(args.run_name or str(args.output_dir)) if is_trial else None,
        model=model,
    )


def _configuration_of(config: Any) -> dict[str, Any]:
    """Return the configuration of a model, or of its PEFT adapters by name, as a dictionary."""
    if isinstance(config, Mapping):
        return {name: _configuration_of(each) or each for name, each in config.items()}
    to_dict = getattr(config, "to_dict", None)
    found = to_dict() if callable(to_dict) else {}
    return found if isinstance(found, dict) else {}


def _json_like(value: Any) -> Any:
    """Return a value as JSON can hold it; what it cannot hold becomes text."""
    if isinstance(value, Mapping):
        return {str(name): _json_like(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json_like(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return value if value is None or type(value) in (bool, int, float, str) else str(value).removeprefix("torch.")
