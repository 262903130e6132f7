"""Callbacks: the base class, the state and control that they receive, and how they are called."""

from hexloop.app.callbacks.base import EVENTS, TrainerCallback, TrainerControl
from hexloop.app.callbacks.flow import DefaultFlowCallback, EarlyStoppingCallback
from hexloop.app.callbacks.handler import CallbackHandler, EventDispatcher
from hexloop.app.callbacks.progress import PrinterCallback, ProgressCallback
from hexloop.app.callbacks.saved_states import wrong_states
from hexloop.app.callbacks.trainer_state import (
    ExportableState,
    TrainerState,
    export_states,
    restore_states,
)

__all__ = [
    "EVENTS",
    "CallbackHandler",
    "DefaultFlowCallback",
    "EarlyStoppingCallback",
    "EventDispatcher",
    "ExportableState",
    "PrinterCallback",
    "ProgressCallback",
    "TrainerCallback",
    "TrainerControl",
    "TrainerState",
    "export_states",
    "restore_states",
    "wrong_states",
]
