"""The methods of a Trainer that publish on the Hub."""

from __future__ import annotations

import os
import warnings
from typing import Any

from hexloop.app.run import publishing
from hexloop.app.run.model_card import as_list
from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.app.wiring.model import unwrapped
from hexloop.app.wiring.outboxes import state_folder
from hexloop.app.wiring.parts import standard
from hexloop.app.wiring.publishing import HubPublisher
from hexloop.app.wiring.pushes import with_token
from hexloop.domain.errors import StorageError, UnavailableError


class TrainerPublishing(TrainerAttributes):
    """Publishing the model and checkpoints; see docs/hub.md."""

    push_in_progress: Any = None
    """The outcome of the last push that was not waited for, a Future; None if there is none."""

    _own_hub_model_id: str | None = None
    _own_publisher: HubPublisher | None = None

    @property
    def hub_model_id(self) -> str | None:
        """The name of the model's repository: the assigned one, that of the hub, or that of the arguments."""
        return self._own_hub_model_id or self.args.hub_model_id

    @hub_model_id.setter
    def hub_model_id(self, name: str | None) -> None:
        self._own_hub_model_id = name

    @property
    def _publisher(self) -> HubPublisher:
        """What publishes on the hub of `adapters`, through the outbox of the output folder."""
        storage, hub = self.adapters.storage, self.adapters.hub
        folder = storage.capabilities.local_folder or state_folder(self._folder)
        known = self._own_publisher
        if known is None or known.folder != folder:
            known = self._own_publisher = HubPublisher(hub, folder, storage)
        known.hub, known.storage = hub, storage
        chosen = publishing.repository_of(self.args)
        names = {self.hub_model_id or chosen, chosen}
        known.objection = lambda push: publishing.objection_to(push, hub.address, names, known.full_name)
        return known

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Create the model's repository if it does not exist, and set `hub_model_id` to its full name. Collective.

        Raises ConfigurationError if the hub refuses it, and UnavailableError if it does not answer.
        """
        self._use_token(token)
        private = self.args.hub_private_repo if private is None else private
        parts = self._collect_parts()
        self.hub_model_id = publishing.create_repository(parts, self.adapters.hub, private)
        self.push_in_progress = None

    def _find_repository(self) -> None:
        """Create the repository before a run, unless the hub cannot be reached; then the first push creates it."""
        try:
            self.init_hf_repo()
        except UnavailableError as error:
            if self.adapters.mesh.writes:
                warnings.warn(
                    f"The hub cannot be reached ({error}) The run starts all the same; what it publishes is kept in "
                    "the outbox until the hub can be reached.",
                    stacklevel=3,
                )

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Save the model, write the model card, and publish the output folder as one commit. Collective.

        Checkpoints, hidden files and names that begin with "_" are left out. revision: the branch, by default
        `hub_revision`. kwargs: those of `create_model_card`, and `create_pr=True` to open a pull request instead.
        Returns huggingface_hub's CommitInfo, without `blocking` a Future of it, and None in other processes than the
        first. With `blocking`, raises RefusedError if the hub refuses the commit, and UnavailableError, with the entry
        of the outbox that keeps it, if the hub has failed for `outbox_grace` seconds.
        """
        self._use_token(token)
        trainer: Any = self
        trainer._dispatcher.call("on_push_begin")
        trainer.save_model(_internal_call=True)
        return self._publish_folder(commit_message or "End of training", blocking, revision, private, kwargs)

    def _publish_folder(
        self, message: str, blocking: bool, revision: str | None, private: bool | None, card: dict[str, Any]
    ) -> Any:
        """Publish the output folder, in which the model is saved."""
        publishing.refuse_url(self.args)
        review = bool(card.pop("create_pr", False))
        if not self.adapters.mesh.writes:
            return None
        trainer: Any = self
        tags = [*as_list(card.pop("tags", None)), *as_list(getattr(unwrapped(self.model), "model_tags", None))]
        trainer.create_model_card(tags=list(dict.fromkeys(tags)), **card)
        parts = self._collect_parts()
        intent = publishing.push_folder(parts, message, revision, private, review)
        if not blocking:
            self.push_in_progress = publishing.future_of(parts, intent)
            return self.push_in_progress
        published = publishing.wait_for(parts, intent)
        if published is None:
            return None
        self.hub_model_id, commit = published
        return commit

    def _publish_saved_model(self, saved_here: bool) -> None:
        """Publish after `save_model`; a hub that fails is reported. A live run does not wait.

        saved_here: whether the output folder has the model already.
        """
        trainer: Any = self
        trainer._dispatcher.call("on_push_begin")
        if not saved_here:
            trainer.save_model(_internal_call=True)
        try:
            self._publish_folder("Model save", self._session is None, self.args.hub_revision, None, {})
        except StorageError as error:
            warnings.warn(f"The model was saved, but not published yet: {error}", stacklevel=3)

    @standard
    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Publish a checkpoint in the background, as `hub_strategy` says. If overridden, a run calls it for each."""
        publishing.push_checkpoint(self._collect_parts(), os.path.basename(checkpoint_folder.rstrip("/\\")))

    @standard
    def _finish_current_push(self) -> None:
        """Wait for what is not published yet, for `outbox_grace` seconds. If overridden, a run calls it at its end."""
        publishing.finish_pushes(self._collect_parts())

    def _use_token(self, token: str | None) -> None:
        """Publish with another token from now on."""
        if token is not None:
            self.adapters.hub = with_token(self.adapters.hub, token)
