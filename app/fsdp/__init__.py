"""FSDP as the arguments, their `fsdp_config` and the variables of `accelerate launch` ask for it."""

from hexloop.app.fsdp.making import make_fsdp
from hexloop.app.fsdp.settings import FsdpSettings, fsdp_is_asked_for, read_fsdp

__all__ = ["FsdpSettings", "fsdp_is_asked_for", "make_fsdp", "read_fsdp"]
