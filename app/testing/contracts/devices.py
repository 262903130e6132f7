"""Contract suites of the Device and Precision ports."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any, Generic, TypeVar, cast

import pytest

from hexloop.app.testing.contracts.state import contents, kept
from hexloop.ports.device import Device, DeviceUse
from hexloop.ports.learner import Precision, Trainable


class DeviceContract:
    """Contract suite of the Device port."""

    @pytest.fixture
    def device(self) -> Device:
        """The adapter under test."""
        raise NotImplementedError

    def draw(self, device: Device) -> float:
        """Return the next number of the framework's random generator on the device."""
        raise NotImplementedError

    def out_of_memory(self, device: Device) -> BaseException:
        """Return an out-of-memory error of the device."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def keep_random_streams(self, device: Device) -> Iterator[None]:
        """Restore the process's random generators after each test."""
        before = kept(device.export())
        yield
        device.load(before)

    def draws(self, device: Device) -> list[float]:
        """Return random numbers from every generator."""
        return [number for _ in range(3) for number in (random.random(), random.gauss(0, 1), self.draw(device))]

    def test_it_describes_itself(self, device: Device) -> None:
        """It has a name and a kind, and supports at least one precision."""
        assert device.name
        assert device.capabilities.kind
        assert device.capabilities.precisions

    def test_memory_figures_are_consistent(self, device: Device) -> None:
        """Used memory is at most the peak, and the peak at most the total, if the total is known."""
        device.release_memory()
        memory = device.memory()

        assert 0 <= memory.used <= memory.peak
        assert memory.total == 0 or memory.peak <= memory.total

    def test_its_use_is_within_its_bounds(self, device: Device) -> None:
        """What is measured is a number in its range, from any thread; what is not measured is None."""
        found: list[DeviceUse] = [device.use()]
        thread = threading.Thread(target=lambda: found.append(device.use()))
        thread.start()
        thread.join()

        for use in found:
            assert use.use is None or 0 <= use.use <= 100
            assert use.memory is None or use.memory >= 0
            assert use.power is None or 0 <= use.power < 10_000
            assert use.temperature is None or -50 < use.temperature < 200
        assert len(found) == 2

    def test_a_peak_can_be_reset(self, device: Device) -> None:
        """After a reset the peak is no higher than before, and no lower than the memory in use."""
        before = device.memory()
        device.forget_peak_memory()
        after = device.memory()

        assert after.used <= after.peak <= max(before.peak, after.used)

    def test_it_recognizes_its_own_error(self, device: Device) -> None:
        """Out-of-memory errors are distinguished from all other errors."""
        assert device.is_out_of_memory(self.out_of_memory(device))
        for error in (RuntimeError("something else"), ValueError(), KeyboardInterrupt()):
            assert not device.is_out_of_memory(error)

    def test_a_seed_seeds_every_generator(self, device: Device) -> None:
        """The same seed produces the same numbers in every generator, and another seed different ones."""
        device.seed(1)
        first = self.draws(device)
        device.seed(2)
        second = self.draws(device)
        device.seed(1)

        assert self.draws(device) == first
        assert all(one != other for one, other in zip(first, second, strict=True))

    @pytest.mark.parametrize("drawn", range(4))
    def test_generators_can_be_restored_at_any_time(self, device: Device, drawn: int) -> None:
        """Loading an export restores every generator to its exported state, however often it is loaded."""
        device.seed(5)
        for _ in range(drawn):
            # random.gauss generates numbers in pairs; the second one of a pair is part of the state.
            random.gauss(0, 1)
            self.draw(device)
        exported = kept(device.export())
        following = self.draws(device)

        for _ in range(2):
            device.seed(6)
            device.load(exported)
            assert contents(device.export()) == contents(exported)
            assert self.draws(device) == following


Batch = TypeVar("Batch")
Loss = TypeVar("Loss")


class PrecisionContract(Generic[Batch, Loss]):
    """Contract suite of the Precision port."""

    tolerance = 1e-6
    """Relative tolerance for the rounding of the precision."""

    def make(self) -> Precision[Loss]:
        """Return a new adapter under test, with which the first updates of `trainable` do not overflow."""
        raise NotImplementedError

    def trainable(self) -> Trainable[Batch, Loss]:
        """Return a new model, always with the same weights, without randomness and with nonzero gradients."""
        raise NotImplementedError

    def batch(self) -> Batch:
        """Return a batch for the model."""
        raise NotImplementedError

    def model(self) -> Any:
        """Return a model with layers that the precision converts, if it converts any."""
        return object()

    def layers(self, model: Any) -> list[Any]:
        """Return the layers of such a model."""
        return []

    @pytest.fixture
    def precision(self) -> Precision[Loss]:
        """The adapter under test."""
        return self.make()

    def learn(self, precision: Precision[Loss], trainable: Trainable[Batch, Loss]) -> float:
        """Run forward, backward and unscale on a batch, and return the loss."""
        loss = precision.wrap(trainable.loss)(self.batch(), trainable.count_items([self.batch()]))
        cast(Any, precision.scale(loss)).backward()
        precision.unscale(trainable.optimizer)
        return float(cast(Any, loss))

    def test_it_has_a_name(self, precision: Precision[Loss]) -> None:
        """It has a name in lower case."""
        assert precision.name
        assert precision.name == precision.name.lower()

    def test_a_wrapped_function_is_called_with_its_arguments(self, precision: Precision[Loss]) -> None:
        """Arguments, results and errors pass through the wrapper."""

        def forward(first: int, *, second: int) -> list[int]:
            return [first // second]

        wrapped = precision.wrap(forward)

        assert wrapped(6, second=3) == [2]
        with pytest.raises(ZeroDivisionError):
            wrapped(6, second=0)

    def test_a_model_is_converted_once(self, precision: Precision[Loss]) -> None:
        """A model that was converted stays as it is, also by another adapter."""
        model = self.model()
        precision.convert(model)
        layers = self.layers(model)

        precision.convert(model)
        self.make().convert(model)
        assert self.layers(model) == layers

    def test_gradients_are_unchanged(self, precision: Precision[Loss]) -> None:
        """Scaling and unscaling cancel out: the gradient norm is the same as without the adapter."""
        trainable, plain = self.trainable(), self.trainable()
        loss = plain.loss(self.batch(), plain.count_items([self.batch()]))
        cast(Any, loss).backward()

        assert self.learn(precision, trainable) == pytest.approx(float(cast(Any, loss)), rel=self.tolerance)
        norms = [float(cast(Any, each.clip(1e30))) for each in (trainable, plain)]
        assert norms[0] > 0
        assert norms[0] == pytest.approx(norms[1], rel=self.tolerance)

    def test_gradients_are_unscaled_once(self, precision: Precision[Loss]) -> None:
        """Unscaling again before the step does not change the gradients."""
        trainable, again = self.trainable(), self.trainable()
        self.learn(precision, trainable)
        norm = float(cast(Any, trainable.clip(1e30)))
        precision.step(trainable.optimizer)
        self.learn(precision, again)
        precision.unscale(again.optimizer)

        assert float(cast(Any, again.clip(1e30))) == pytest.approx(norm, rel=self.tolerance)

    def test_a_discarded_update_leaves_nothing(self, precision: Precision[Loss]) -> None:
        """After an update that was begun and discarded, another model's gradients are unscaled, and it steps."""
        trainable, other = self.trainable(), self.trainable()
        self.learn(precision, trainable)
        norm = float(cast(Any, trainable.clip(1e30)))
        precision.discard_update()
        self.learn(precision, other)

        assert float(cast(Any, other.clip(1e30))) == pytest.approx(norm, rel=self.tolerance)
        assert precision.step(other.optimizer)

    def test_a_finite_step_is_taken(self, precision: Precision[Loss]) -> None:
        """If all gradients are finite, the optimizer steps, which changes the loss."""
        trainable = self.trainable()
        loss = self.learn(precision, trainable)

        assert precision.step(trainable.optimizer)
        trainable.clear_gradients()
        assert self.learn(precision, trainable) != loss

    @pytest.mark.parametrize("updates", range(4))
    def test_it_can_be_restored_at_every_boundary(self, precision: Precision[Loss], updates: int) -> None:
        """Another adapter that loads the export behaves identically from then on."""
        trainable = self.trainable()
        for _ in range(updates):
            self.learn(precision, trainable)
            precision.step(trainable.optimizer)
            trainable.clear_gradients()

        other = self.make()
        other.load(kept(precision.export()))

        for each in (precision, other):
            model = self.trainable()
            for _ in range(3):
                self.learn(each, model)
                each.step(model.optimizer)
                model.clear_gradients()
        assert contents(other.export()) == contents(precision.export())
