"""Making models whose parameters ZeRO 3 spreads as they are made, so that no process ever has the whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.world import join
from hexloop.app.deepspeed.configuration import DeepSpeedConfiguration, deepspeed_configuration
from hexloop.domain.errors import ConfigurationError


@contextmanager
def zero3_init(args: TrainingArguments) -> Iterator[None]:
    """Within, the parameters of every module are spread over the processes as it is made, where ZeRO 3 is chosen.

    Every process draws the same weights as without, one module's at a time. Models of transformers are made by
    `from_pretrained` or `from_config` there: their own classes fill in weights when the whole is there. Where ZeRO 3 is
    not chosen nothing happens. Collective. Raises ConfigurationError where DeepSpeed's configuration cannot work.
    """
    configuration = _of_stage_3(args)
    if configuration is None:
        yield
        return
    from hexloop.adapters.parallelism.deepspeed import spreading

    join(args)
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
    from hexloop.adapters.parallelism.deepspeed import begin

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
