"""The model and the tokenizer of a fine-tuning: loaded by name, with its special tokens, chat template and adapters."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import frozen

from hexloop.app.arguments.fine_tuning import SFTConfig
from hexloop.app.assembly.adapters import choose_device
from hexloop.app.assembly.random_state import seeded
from hexloop.app.assembly.torch.model import zero3_init
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.regular_files import read_file
from hexloop.domain.wording import RefusalError, did_you_mean, enumeration, problem, shown

TEMPLATE_FILE = "chat_template.jinja"
"""The file with the chat template in the folder of a tokenizer."""


@frozen
class Base:
    """What is fine-tuned: a model, or the name of one, with what is put around it.

    model: a model of transformers, or the name or folder from which one is loaded. quantization_config: of a model that
    is loaded. peft_config: of the adapters that are trained in place of the weights; None to train the weights.
    """

    model: Any
    peft_config: Any = None
    quantization_config: Any = None

    @property
    def is_named(self) -> bool:
        """Whether the model is to be loaded."""
        return isinstance(self.model, str | os.PathLike)

    @property
    def name(self) -> str:
        """The name or folder of the model; "" for one that was not loaded from anywhere."""
        if self.is_named:
            return str(os.fspath(self.model))
        return str(getattr(getattr(self.model, "config", None), "name_or_path", "") or "")

    def problems(self, args: SFTConfig) -> Iterator[str]:
        """Find what was passed and would have no effect, or cannot be put together."""
        if not self.is_named:
            unused = {"quantization_config": self.quantization_config, "model_init_kwargs": args.model_init_kwargs}
            for option, value in unused.items():
                if value:
                    yield (
                        f"{option} says how a model is loaded, but a loaded model was passed; pass the model's name or "
                        "folder, or give this option to from_pretrained."
                    )
        elif self.quantization_config is not None and "quantization_config" in (args.model_init_kwargs or {}):
            yield "quantization_config was passed, and is in model_init_kwargs as well; leave one of them out."
        if self.peft_config is None:
            return
        if not hasattr(self.peft_config, "peft_type"):
            yield f"peft_config is {shown(self.peft_config)}; pass a configuration of peft, such as LoraConfig(r=16)."
        if hasattr(self.model, "peft_config"):
            yield (
                "The model has adapters already, and peft_config would put others around them; pass the model without "
                "peft_config to train its adapters, or merge them into it first (merge_and_unload)."
            )

    def load(self, args: SFTConfig, words: int, grows: bool) -> Any:
        """Return the model, with adapters if there is a `peft_config`.

        words: tokens of the tokenizer. grows: whether the model gets embeddings of all, if it has fewer.
        Weights that are drawn at random are those of the seed. Collective with ZeRO 3. Raises ConfigurationError if it
        cannot be loaded.
        """
        with seeded(choose_device(args), args.seed):
            model = self._from_pretrained(args) if self.is_named else self.model
            embedded = _embedded_words(model)
            if embedded is not None and words > embedded:
                if not grows:
                    logging.getLogger("hexloop").warning(
                        "The tokenizer has %d tokens, and the model has embeddings of %d, so a text with one of the "
                        "others cannot be trained on; call model.resize_token_embeddings(len(tokenizer)) before.",
                        words,
                        embedded,
                    )
                else:
                    model.resize_token_embeddings(words)
            return model if self.peft_config is None else self._with_adapters(model, args)

    def _from_pretrained(self, args: SFTConfig) -> Any:
        from transformers import AutoModelForCausalLM

        options: dict[str, Any] = {"trust_remote_code": args.trust_remote_code, **_keywords(args)}
        if "torch_dtype" not in options:
            options.setdefault("dtype", "float32")
        if self.quantization_config is not None:
            options["quantization_config"] = self.quantization_config
        try:
            with zero3_init(args):
                return AutoModelForCausalLM.from_pretrained(self.name, **options)
        except (OSError, ValueError) as error:
            raise ConfigurationError(_unloadable("model", self.name, error)) from error

    def _with_adapters(self, model: Any, args: SFTConfig) -> Any:
        """Return the model in adapters. A quantized one is prepared as peft requires: frozen, with norms in float32."""
        import peft

        checkpoints, options = args.gradient_checkpointing, args.gradient_checkpointing_kwargs
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)  # peft's use
            if getattr(model, "is_quantized", False):
                model = peft.prepare_model_for_kbit_training(
                    model, use_gradient_checkpointing=checkpoints, gradient_checkpointing_kwargs=options
                )
            elif checkpoints and hasattr(model, "enable_input_require_grads"):
                model.enable_input_require_grads()  # frozen embeddings would cut checkpointed layers off
            return peft.get_peft_model(model, self.peft_config)


def _embedded_words(model: Any) -> int | None:
    """Return how many tokens a model of transformers has embeddings of; None if its configuration does not say."""
    config = getattr(model, "config", None)
    text: Any = getattr(config, "get_text_config", lambda: config)()
    words = getattr(text, "vocab_size", None)
    return words if isinstance(words, int) else None


def _keywords(args: SFTConfig) -> dict[str, Any]:
    return dict(args.model_init_kwargs) if isinstance(args.model_init_kwargs, dict) else {}


def _unloadable(what: str, name: str, error: Exception) -> str:
    reason = str(error).strip().split("\n")[0].rstrip(".")
    return (
        f"The {what} {name!r} could not be loaded: {reason}. Name a folder that save_pretrained has written, such as a "
        "checkpoint, or a model of the Hub."
    )


# The tokenizer


def tokenizer_of(base: Base, processing_class: Any, args: SFTConfig) -> Any:
    """Return the tokenizer: the one that was passed, that of a processor, or the one that is saved with the model.

    Raises ConfigurationError if there is none.
    """
    if processing_class is not None:
        tokenizer = getattr(processing_class, "tokenizer", processing_class)
        if not (callable(tokenizer) and hasattr(tokenizer, "get_vocab")):
            raise ConfigurationError(
                f"processing_class is {shown(processing_class)}, which is not a tokenizer; pass one of transformers."
            )
        if tokenizer.chat_template is None:
            tokenizer.chat_template = getattr(processing_class, "chat_template", None)  # of a processor
        return tokenizer
    if not base.name:
        raise ConfigurationError(
            f"The Trainer has no tokenizer: the {type(base.model).__name__} was not loaded from a folder that may have "
            "one; pass processing_class."
        )
    return _load_tokenizer(base.name, args, "tokenizer of the model")


def _load_tokenizer(name: str, args: SFTConfig, what: str) -> Any:
    from transformers import AutoTokenizer

    kept = {key: value for key, value in _keywords(args).items() if key in ("revision", "cache_dir", "token")}
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=args.trust_remote_code, **kept)
    except (OSError, ValueError) as error:
        raise ConfigurationError(_unloadable(what, name, error)) from error


def adopt_tokens(tokenizer: Any, args: SFTConfig) -> Iterator[str]:
    """Give a tokenizer the end and padding token of the arguments; yield what is wrong with them.

    A tokenizer without a padding token pads with its end token.
    """
    for name in ("eos_token", "pad_token"):
        token = getattr(args, name)
        if token is None:
            continue
        vocabulary = tokenizer.get_vocab()
        if token in vocabulary:
            setattr(tokenizer, name, token)
        else:
            otherwise = "name one that it has, or add it to the tokenizer and resize the model's embeddings"
            remedy = did_you_mean(token, tokenizer.all_special_tokens, otherwise, spell=repr, similarity=0.8)
            yield problem({name: token}, RefusalError("the tokenizer has no such token", remedy))
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            yield "The tokenizer has neither a padding token nor an end token; set pad_token and eos_token."
        else:
            tokenizer.pad_token = tokenizer.eos_token


def adopt_template(tokenizer: Any, args: SFTConfig) -> list[str]:
    """Give a tokenizer the chat template at `chat_template_path`. Return the tokens that were added to it for that.

    From another tokenizer come the tokens that the template writes, and the end token. Raises ConfigurationError if
    there is no template.
    """
    source = args.chat_template_path
    if source is None:
        return []
    path = Path(source).expanduser()
    if path.is_dir() and not (path / "tokenizer_config.json").exists():
        path = path / TEMPLATE_FILE
    if path.is_file():
        try:
            tokenizer.chat_template = read_file(path, "recipe_bytes").decode("utf-8")
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"The chat template {path} cannot be read: {error}.") from error
        return []
    if path.suffix in (".jinja", ".j2"):
        raise ConfigurationError(f"There is no chat template {path}; correct chat_template_path.")
    other = _load_tokenizer(source, args, "tokenizer with the chat template")
    template = other.chat_template
    if not isinstance(template, str):
        raise ConfigurationError(
            f"chat_template_path={source!r} names a tokenizer without a chat template; name another, or a file."
        )
    added = [token for token in other.added_tokens_decoder.values() if token.content in template]
    if args.eos_token is None and other.eos_token is not None:
        added += [token for token in other.added_tokens_decoder.values() if token.content == other.eos_token]
    known = tokenizer.get_vocab()
    new = {token.content: token for token in added if token.content not in known}
    tokenizer.add_tokens(list(new.values()))
    tokenizer.chat_template = template
    if args.eos_token is None and other.eos_token in tokenizer.get_vocab():
        tokenizer.eos_token = other.eos_token
    return list(new)


def refuse_untrained_tokens(added: list[str], peft_config: Any) -> None:
    """Raise ConfigurationError if adapters would leave the embeddings of new tokens as they are: random."""
    covers = getattr(peft_config, "trainable_token_indices", None) or getattr(peft_config, "modules_to_save", None)
    if added and peft_config is not None and not covers:
        raise ConfigurationError(
            f"The chat template brings tokens that the model does not know ({enumeration(map(repr, added))}), and "
            "peft_config would leave their embeddings random; set modules_to_save to the embeddings and the output "
            "layer, such as ['embed_tokens', 'lm_head'], or choose a template of tokens that the model knows."
        )
