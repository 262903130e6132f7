"""Making models whose parameters ZeRO 3 spreads as they are made, so that no process ever has the whole."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hexloop.app.arguments import TrainingArguments
from hexloop.app.deepspeed.configuration import DeepSpeedConfiguration, deepspeed_configuration
from hexloop.domain.errors import ConfigurationError


@contextmanager
def sharded_init(args: TrainingArguments, meet: Callable[[], object]) -> Iterator[None]:
    """Within, ZeRO 3 spreads the parameters of every module as it is created. `meet` waits for the other processes.

    Without ZeRO 3 nothing happens. Raises ConfigurationError where DeepSpeed's configuration cannot work.
    """
    configuration = _of_stage_3(args)
    if configuration is None:
        yield
        return
    from hexloop.adapters.engines.deepspeed.launcher import spreading

    meet()
    with told_to_transformers(args), spreading(configuration.before_model()):
        yield


@contextmanager
def told_to_transformers(args: TrainingArguments) -> Iterator[None]:
    """Within, transformers knows whether ZeRO 3 is chosen, and spreads by itself what it makes of its models.

    The processes have met before. Raises ConfigurationError where DeepSpeed's configuration cannot work.
    """
    configuration = _of_stage_3(args)
    if configuration is None:
        yield
        return
    from hexloop.adapters.engines.deepspeed.launcher import begin

    begin(args.device, args.local_process_index)
    if "transformers" not in sys.modules:
        yield
        return
    from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config

    known = HfDeepSpeedConfig(configuration.before_model())  # type: ignore[no-untyped-call]  # it lives as long
    try:
        yield
    finally:
        unset_hf_deepspeed_config()  # type: ignore[no-untyped-call]
        del known


def _of_stage_3(args: TrainingArguments) -> DeepSpeedConfiguration | None:
    configuration = deepspeed_configuration(args)
    if configuration is None or configuration.stage < 3:
        return None
    if configuration.problems:
        raise ConfigurationError(configuration.problems)
    return configuration
