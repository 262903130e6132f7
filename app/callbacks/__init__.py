"""What a user hangs into a run: callbacks, what they see of it, and how they are called."""

from hexloop.app.callbacks.base import EVENTS, TrainerCallback, TrainerControl
from hexloop.app.callbacks.dispatcher import EventDispatcher
from hexloop.app.callbacks.early_stopping import EarlyStoppingCallback
from hexloop.app.callbacks.exportable import ExportableState, export_states, restore_states
from hexloop.app.callbacks.flow import DefaultFlowCallback
from hexloop.app.callbacks.handler import CallbackHandler
from hexloop.app.callbacks.progress import PrinterCallback, ProgressCallback
from hexloop.app.callbacks.trainer_state import TrainerState

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
]
