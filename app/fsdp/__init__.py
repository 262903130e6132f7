"""FSDP as the arguments, their `fsdp_config` and the variables of `accelerate launch` ask for it."""
