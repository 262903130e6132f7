"""Which checkpoints led to where a run stands now, and which belong to another run or to a past that was given up."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from hexloop.domain.checkpoints.manifest import Manifest


@frozen
class Lineage:
    """The sessions that a run went through: the present one whole, each earlier one up to the step it was left at.

    A run that goes on from its checkpoint at step 5, though it has one at step 10 too, leaves the latter behind: that
    is of the same run, but not of this lineage.
    """

    run: str
    session: str
    ancestors: Mapping[str, int] = field(factory=dict)

    @classmethod
    def after(cls, manifest: Manifest, session: str) -> Lineage:
        """The lineage of a session that goes on from a checkpoint."""
        return cls(manifest.run, session, {**manifest.ancestors, manifest.session: manifest.step})

    def holds(self, manifest: Manifest) -> bool:
        """Whether a checkpoint is one of those that led here."""
        if manifest.run != self.run:
            return False
        return manifest.session == self.session or manifest.step <= self.ancestors.get(manifest.session, -1)
