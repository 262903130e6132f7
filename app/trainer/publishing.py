"""The methods of a Trainer that save a model and publish it on the Hub."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

from hexloop.app.assembly.pushes import with_token
from hexloop.app.assembly.state import is_sharded
from hexloop.app.hooks import standard
from hexloop.app.run import model_card, publishing, saving
from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.app.trainer.legacy_names import warn_of_old_name
from hexloop.domain.errors import StorageError, UnavailableError


class TrainerPublishing(TrainerAttributes):
    """Saving the model, its model card, and publishing; see docs/hub.md."""

    push_in_progress: Any = None
    """The outcome of the last push that was not waited for, a Future; None if there is none."""

    @standard
    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model, its configuration and the processing class to a folder, by default the output folder.

        The first of several processes writes. All processes must call it if the model is sharded: each writes its part.
        With `push_to_hub`, the model is also published.

        Args:
            output_dir: the folder; by default the output folder of the arguments.
            _internal_call: whether the run itself calls, which then publishes nothing.
        """
        self.adapters.framework.refuse_unprepared(self.adapters, self.model)
        if self.args.should_save or is_sharded(self.adapters.parallelism, self.model):
            self._save(self._received(output_dir))
        if self.args.push_to_hub and not _internal_call:
            self._publish_saved_model(output_dir in (None, str(self.args.output_dir)))

    @standard
    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Write the model's files, with the weights in `state_dict` if given. `save_model` calls it."""
        saving.save_model(self._collect_parts(), self._received(output_dir), state_dict)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write a model card to README.md in the output folder: metadata, hyperparameters, results and versions.

        The first of several processes writes. Tags of a card that is there already are kept.

        Args:
            language: the languages of the model.
            license: the licence of the model.
            tags: tags of the model on the Hub.
            model_name: the title of the card; by default the name of the output folder.
            finetuned_from: the model that was fine-tuned.
            tasks: the tasks of the model.
            dataset_tags: the names of the data sets on the Hub.
            dataset: the titles of the data sets.
            dataset_args: the configurations of the data sets.
        """
        if self.is_world_process_zero():
            lists = map(model_card.as_list, (language, tags, tasks, dataset_tags, dataset, dataset_args))
            languages, all_tags, all_tasks, all_dataset_tags, names, arguments = lists
            facts = model_card.CardFacts(
                languages, license, all_tags, model_name, finetuned_from, all_tasks, all_dataset_tags, names, arguments
            )
            model_card.write_model_card(self._collect_parts(), facts)

    # The hub

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Create the model's repository if it does not exist, and set `hub_model_id` to its full name. Collective.

        Args:
            token: the token of the Hub; by default that of the arguments.
            private: whether a new repository is private; by default as in the arguments.

        Raises:
            ConfigurationError: if the hub refuses it.
            UnavailableError: if it does not answer.
        """
        self._use_token(token)
        private = self.args.hub_private_repo if private is None else private
        parts = self._collect_parts()
        self.hub_model_id = publishing.create_repository(parts, self.adapters.hub, private)
        self.push_in_progress = None

    def init_git_repo(self, at_init: bool = False) -> None:
        """Call `init_hf_repo`: the old name, from when the output folder was a clone of the repository.

        Args:
            at_init: ignored.
        """
        warn_of_old_name("Trainer.init_git_repo", "Trainer.init_hf_repo")
        self.init_hf_repo()

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

        Checkpoints, hidden files and names that begin with "_" are left out.

        Returns huggingface_hub's CommitInfo, without `blocking` a Future of it, and None in other processes than the
        first. With `blocking`, raises RefusedError if the hub refuses the commit, and UnavailableError, with the entry
        of the outbox that keeps it, if the hub has failed for `outbox_grace` seconds.

        Args:
            commit_message: the message of the commit.
            blocking: wait until everything is uploaded.
            token: the token of the Hub; by default that of the arguments.
            revision: the branch, by default `hub_revision`.
            private: whether a new repository is private; by default as in the arguments.
            **kwargs: those of `create_model_card`, and `create_pr=True` to open a pull request instead.
        """
        self._use_token(token)
        self._dispatcher.call("on_push_begin")
        self.save_model(_internal_call=True)
        return self._publish_folder(commit_message or "End of training", blocking, revision, private, kwargs)

    def _publish_folder(
        self, message: str, blocking: bool, revision: str | None, private: bool | None, card: dict[str, Any]
    ) -> Any:
        """Publish the output folder, in which the model is saved."""
        publishing.refuse_url(self.args)
        review = bool(card.pop("create_pr", False))
        if not self.adapters.mesh.writes:
            return None
        tags = [
            *model_card.as_list(card.pop("tags", None)),
            *model_card.as_list(getattr(self.adapters.framework.unwrapped(self.model), "model_tags", None)),
        ]
        self.create_model_card(tags=list(dict.fromkeys(tags)), **card)
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
        self._dispatcher.call("on_push_begin")
        if not saved_here:
            self.save_model(_internal_call=True)
        try:
            self._publish_folder("Model save", self._session is None, self.args.hub_revision, None, {})
        except StorageError as error:
            logging.getLogger("hexloop.outbox").warning("The model was saved, but not published yet: %s", error)

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
