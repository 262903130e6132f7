"""The base that a run's adapters are trained on: its name, and a digest of its weights."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from attrs import define, field

from hexloop.adapters.trainable.torch.base_digest import digest_of, digests_of_parts, joined
from hexloop.adapters.trainable.torch.layouts import TorchLayout
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.peft_tensors import base_names, inner_model
from hexloop.adapters.trainable.torch.quantized import changed_by_layers
from hexloop.app.assembly.parts import TrainerParts
from hexloop.ports.parallelism import ExportableModel


@define(eq=False)
class NamedBase:
    """What identifies a base: where it was loaded from, and the digest of its weights.

    The digest is computed once, by a thread, when it is first asked for. The weights of a base do not change while a
    run trains adapters on it.

    name: the path or name that the base was loaded from; None if a program made it. kind: its class. dtype: of most of
    its weights. quantization: the method by which they are quantized, if any. compute: returns the digest.
    collective: all processes compute the digest together, because none has all weights.
    """

    name: str | None
    revision: str | None
    kind: str
    dtype: str
    quantization: str | None
    _compute: Callable[[], str]
    _collective: bool = False
    _digest: Future[str] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start to compute the digest, in a thread that does not keep the program from exiting.

        With `collective`, every process calls this, and it returns when the digest is there.
        """
        if self._digest is not None:
            return
        self._digest = future = Future[str]()

        def compute() -> None:
            try:
                future.set_result(self._compute())
            except BaseException as error:
                future.set_exception(error)

        if self._collective:
            compute()
            future.result()
        else:
            threading.Thread(target=compute, name="hexloop-base-digest", daemon=True).start()

    @property
    def digest(self) -> str | None:
        """The digest; waits until it is computed. None if processes would have to compute it together."""
        if not self._collective:
            self.start()
        return None if self._digest is None else self._digest.result()

    def document(self) -> dict[str, Any]:
        """Return the description of the base in a checkpoint. Waits for the digest, and not for other processes."""
        return {
            "name": self.name,
            "revision": self.revision,
            "class": self.kind,
            "dtype": self.dtype,
            "quantization": self.quantization,
            "digest": self.digest,
        }

    def difference(self, saved: Mapping[str, Any]) -> str | None:
        """Return how the base that a checkpoint describes differs from this one; None if it is the same.

        It is not compared if the checkpoint has no digest. Collective if the digest is.
        """
        if saved.get("digest") is None:
            return None
        self.start()
        if saved["digest"] == self.digest:
            return None
        return (
            f"its adapters were trained on the base {_named(saved)} with the digest {saved['digest']}, and the base of "
            f"this run is {_named(self.document())} with the digest {self.digest}"
        )


def base_of(
    model: Any, names: Callable[[], list[str]], layout: TorchLayout, together: Callable[[], str] | None = None
) -> NamedBase:
    """Return what identifies the base of a model with adapters.

    The digest is that of the weights as they are now. names: returns the names in the model of the base's tensors.
    together: returns the digest of a sharded model, if all processes call it.
    """
    base = inner_model(model)
    config = getattr(base, "config", None)
    name = getattr(base, "name_or_path", None) or getattr(config, "_name_or_path", None) or None
    revisions = {str(each.revision) for each in model.peft_config.values() if each.revision is not None}
    revision = min(revisions) if len(revisions) == 1 else getattr(config, "_commit_hash", None)
    method = getattr(getattr(getattr(base, "hf_quantizer", None), "quantization_config", None), "quant_method", None)

    held: dict[str, Any] = {}
    if together is None:  # as they are now: a forward pass may give a layer of 4 bits other tensors
        own, left_out = ModelState(model, layout).named_tensors(), changed_by_layers(model)
        renamed = base_names(model, own)
        held = {renamed[each]: own[each].detach() for each in names() if each not in left_out}

    def digest() -> str:
        found = digest_of(held)
        held.clear()
        return found

    return NamedBase(
        name=None if name is None else (os.path.abspath(name) if os.path.isdir(name) else str(name)),
        revision=None if revision is None else str(revision),
        kind=type(base).__name__,
        dtype=str(getattr(base, "dtype", None)).removeprefix("torch."),
        quantization=None if method is None else str(getattr(method, "value", method)),
        compute=together or digest,
        collective=together is not None,
    )


def sharded_digest(parts: TrainerParts, state: ExportableModel, names: Mapping[str, str]) -> str:
    """Return the digest of a sharded base, each tensor of which is read on one process. Collective.

    state: exports the base. names: the names of its tensors in the base without adapters, by those in the model.
    """
    own = digests_of_parts(state.export(), names)
    gathered: list[Any] = parts.adapters.collectives.gather(own)
    return joined(each for its in gathered for each in its)


def _named(base: Mapping[str, Any]) -> str:
    name = f"a {base.get('class')} made in the program" if base.get("name") is None else repr(base["name"])
    details = [f"revision {base['revision']}"] if base.get("revision") else []
    details += [str(base[each]) for each in ("dtype", "quantization") if base.get(each)]
    return f"{name} ({', '.join(details)})" if details else name
