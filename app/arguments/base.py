"""`Arguments`: the base of classes of arguments, such as `TrainingArguments` and classes derived from it.

Such a class is an attrs class that looks like a dataclass. Users derive from it with either decorator; both write an
`__init__` that first sets every field and then calls `__post_init__`. Values are therefore stored as they are until
`__post_init__` has checked all of them together; from then on each assignment is checked.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from abc import ABCMeta
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import MISSING, Field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from hexloop.app.arguments.declaration import (
    PLAIN,
    ArgumentGroup,
    Declaration,
    accepted_defaults,
    annotations_of,
    declarations,
    default_of,
    has_argument,
    rules,
    show_as_dataclass,
    takes,
)
from hexloop.app.arguments.legacy import DISCOURAGED_ARGUMENTS, EARLIER_VALUES, LEGACY_ARGUMENTS, ONLY_IF_GIVEN, Given
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.redaction import redact
from hexloop.domain.wording import Problem, RefusalError, did_you_mean, problem, shown_as

SEQ2SEQ_ARGUMENTS = frozenset(
    {"generation_config", "generation_max_length", "generation_num_beams", "predict_with_generate", "sortish_sampler"}
)
"""The arguments that only `Seq2SeqTrainingArguments` has."""


INSTEAD = {
    "_apply_legacy_fsdp_to_config": "read fsdp and fsdp_config",
    "_process_fsdp_args": "read fsdp and fsdp_config",
}
"""What to read instead of internal attributes of transformers' class that do not exist."""


SHORT_FORMS = {
    **dict.fromkeys(("lr", "peak_lr", "initial_lr", "init_lr"), "learning_rate"),
    **dict.fromkeys(("e", "epoch", "epochs", "num_epochs", "n_epochs", "max_epochs"), "num_train_epochs"),
    **dict.fromkeys(("steps", "num_steps", "n_steps", "train_steps", "max_iters"), "max_steps"),
    **dict.fromkeys(("b", "bs", "bsz", "batch", "batch_size", "train_bs", "micro_batch_size", "per_device_batch_size"),
                    "per_device_train_batch_size"),
    **dict.fromkeys(("train_batch_size", "per_device_train_bs"), "per_device_train_batch_size"),
    **dict.fromkeys(("eval_bs", "eval_batch_size", "val_batch_size", "test_batch_size"), "per_device_eval_batch_size"),
    **dict.fromkeys(("ga", "accum", "grad_accum", "accumulation", "accumulation_steps", "grad_accum_steps",
                     "accumulate_grad_batches"), "gradient_accumulation_steps"),
    **dict.fromkeys(("o", "out", "outdir", "out_dir", "output", "output_folder", "save_dir", "checkpoint_dir",
                     "checkpoints", "folder"), "output_dir"),
    **dict.fromkeys(("wd", "decay"), "weight_decay"),
    **dict.fromkeys(("warmup", "num_warmup_steps", "lr_warmup_steps", "warmup_iters"), "warmup_steps"),
    **dict.fromkeys(("schedule", "scheduler", "lr_schedule", "lr_scheduler"), "lr_scheduler_type"),
    **dict.fromkeys(("opt", "optimizer"), "optim"),
    **dict.fromkeys(("clip", "grad_clip", "gradient_clip", "clip_grad_norm", "gradient_clip_val", "max_norm"),
                    "max_grad_norm"),
    **dict.fromkeys(("j", "workers", "num_workers", "dataloader_workers"), "dataloader_num_workers"),
    **dict.fromkeys(("log_steps", "log_every", "log_interval", "log_every_n_steps"), "logging_steps"),
    **dict.fromkeys(("save_every", "save_interval", "checkpoint_every"), "save_steps"),
    **dict.fromkeys(("eval_every", "eval_interval", "val_check_interval"), "eval_steps"),
    **dict.fromkeys(("keep", "keep_last", "max_checkpoints"), "save_total_limit"),
    **dict.fromkeys(("tracker", "trackers", "logger", "loggers"), "report_to"),
    **dict.fromkeys(("name", "experiment_name", "exp_name"), "run_name"),
    **dict.fromkeys(("amp", "bfloat16"), "bf16"),
    **dict.fromkeys(("half", "float16"), "fp16"),
    **dict.fromkeys(("compile",), "torch_compile"),
    **dict.fromkeys(("grad_checkpointing", "activation_checkpointing"), "gradient_checkpointing"),
    **dict.fromkeys(("cpu"), "use_cpu"),
    **dict.fromkeys(("quiet", "no_progress", "no_tqdm"), "disable_tqdm"),
    **dict.fromkeys(("beta1",), "adam_beta1"),
    **dict.fromkeys(("beta2",), "adam_beta2"),
    **dict.fromkeys(("eps", "epsilon"), "adam_epsilon"),
    **dict.fromkeys(("random_seed", "random_state"), "seed"),
}  # fmt: skip
"""Short forms, and names in other programs, of arguments. They are suggested, and not accepted."""


def unknown_argument(name: str, value: object, known: Iterable[str]) -> Problem:
    """Return the problem that `name` is not among the arguments `known`."""
    return problem({name: value}, unknown_name(name, known, "argument"))


def unknown_name(name: str, known: Iterable[str], kind: str, spell: Callable[[str], str] = str) -> RefusalError:
    """Return the refusal of an argument or option, as `kind` says, that is not among the `known` ones."""
    if name.replace("-", "_") in SEQ2SEQ_ARGUMENTS:
        remedy = "use Seq2SeqTrainingArguments"
        return RefusalError(f"only sequence-to-sequence training has this {kind}", remedy, TypeError)
    known, meant = list(known), SHORT_FORMS.get(name.lower().replace("-", "_"))
    if meant in known:
        remedy = f"did you mean {spell(meant)}?"
    else:
        remedy = did_you_mean(name, known, "leave it out", spell=spell, similarity=0.7)
    return RefusalError(f"there is no {kind} of that name", remedy, TypeError)


def problems_of(make: Callable[[], object]) -> tuple[str, ...]:
    """Return the problems of the ConfigurationError that `make` raises; none if it does not raise one."""
    try:
        make()
    except ConfigurationError as error:
        return error.problems
    except TypeError:
        pass
    return ()


class ArgumentsMeta(ABCMeta):
    """Metaclass of arguments: calls may use the names of earlier releases, and report all problems at once.

    It works with any constructor, whether attrs, dataclasses or a user wrote it. It derives from ABCMeta so that
    subclasses may be abstract.
    """

    @property
    def __signature__(cls) -> inspect.Signature:
        """The parameters of the constructor, which programs filter their settings by, instead of those of `__call__`.

        It is a property, as a subclass would inherit a value.
        """
        kinds, signature = annotations_of(cls), inspect.signature(cls.__init__)  # type: ignore[misc]
        _, *parameters = signature.parameters.values()
        typed = [
            each.replace(annotation=kinds[each.name]) if each.annotation is each.empty and each.name in kinds else each
            for each in parameters
        ]
        return signature.replace(parameters=typed)

    if not TYPE_CHECKING:  # type checkers would take its signature for that of every class

        def __call__(cls, *values: Any, **named: Any) -> Any:
            """Make an object. Unknown names are refused together with everything that is wrong with the others."""
            kind: Any = cls
            kept = {name: named[name] for name in ONLY_IF_GIVEN if name in named and is_legacy(kind, name)}
            named, refused = without_legacy_names(kind, named, {"output_dir": values[0]} if values else {})
            unknown = {name: value for name, value in named.items() if not takes(kind, name)}
            if not (unknown or refused):
                made = super().__call__(*values, **named)
                vars(made).update(kept)
                return made
            known = {name: value for name, value in named.items() if name not in unknown}
            problems = [unknown_argument(name, value, kind.__dataclass_fields__) for name, value in unknown.items()]
            others = problems_of(lambda: super(ArgumentsMeta, cls).__call__(*values, **known))
            raise ConfigurationError([*problems, *refused, *others])


class Arguments(ArgumentGroup, metaclass=ArgumentsMeta):
    """Base of classes of arguments. Construction raises `ConfigurationError` with every problem."""

    __attrs_attrs__: ClassVar[Any]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    _made = False

    _derived: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """The values of unset arguments that follow from others or from the environment, as `check` derived them."""

    stores_refused: ClassVar[bool] = False
    """Whether an assigned value that is refused is stored, and refused before training, as a takeover sets it."""

    def __attrs_post_init__(self) -> None:
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check everything. A subclass that has its own `__post_init__` calls this one from it."""
        self.check()
        self._made = True

    def check(self) -> None:
        """Derive unset values, then check every argument and every rule, as is due after several assignments.

        Raises:
            ConfigurationError: with every problem.
        """
        refused, problems = self._convert()
        for name in refused:
            vars(self)[name] = default_of(type(self), name)  # until all is checked
        before = dict(vars(self))
        self._derive()
        derived = {name: value for name, value in vars(self).items() if value is not before.get(name)}
        vars(self)["_derived"] = {**self._derived, **derived}
        problems += self._broken_rules(refused)
        if problems:
            vars(self).update(refused)
            raise ConfigurationError(problems)

    def check_stored(self) -> None:
        """Check every argument by itself if assignment may have stored a refused value, as before an evaluation.

        Raises:
            ConfigurationError: with a problem for each value that is refused.
        """
        if self.stores_refused:
            _, problems = self._convert()
            if problems:
                raise ConfigurationError(problems)

    def _convert(self) -> tuple[dict[str, Any], list[Problem]]:
        """Convert every argument; return the refused values by name, which stay as they are, and their problems."""
        refused, problems = {}, []
        defaults, unknown = accepted_defaults(type(self)), object()
        for name in self._declared:
            value = getattr(self, name)
            is_accepted = value is defaults.get(name, unknown)
            try:
                vars(self)[name] = value if is_accepted else _accepted(type(self), name, value)
            except RefusalError as refusal:
                refused[name] = value
                problems.append(problem({name: value}, refusal))
        return refused, problems

    def assign(self, **values: Any) -> None:
        """Set several arguments, or none of them if one is refused.

        Args:
            **values: values by the name of an argument.

        Raises:
            ConfigurationError: with a problem for each value that is refused.
        """
        accepted: dict[str, Any] = {}
        values, problems = without_legacy_names(type(self), values, vars(self))
        for name, value in values.items():
            if name not in self._declared:
                problems.append(unknown_argument(name, value, self._declared))
                continue
            try:
                accepted[name] = _accepted(type(self), name, value)
            except RefusalError as refusal:
                problems.append(problem({name: value}, refusal))
        if problems:
            raise ConfigurationError(problems)
        for name, value in accepted.items():
            self._store(name, value)

    def _store(self, name: str, value: object) -> None:
        vars(self)[name] = value
        if twin := self._declared[name][0].twin:
            vars(self)[twin] = value

    if not TYPE_CHECKING:  # with it, type checkers would accept every misspelt attribute

        def __setattr__(self, name: str, value: object) -> None:
            legacy = is_legacy(type(self), name)
            if self._made and (name in self._declared or legacy):
                try:
                    self.assign(**{name: value})
                except ConfigurationError:
                    if not self.stores_refused or legacy:
                        raise
                    self._store(name, value)
            elif legacy:
                self._set_legacy(name, value)
            else:
                super().__setattr__(name, value)
            if legacy and name in ONLY_IF_GIVEN:
                vars(self)[name] = value

        def __getattr__(self, name: str) -> Any:
            if name in LEGACY_ARGUMENTS and name not in ONLY_IF_GIVEN:
                return LEGACY_ARGUMENTS[name].reads(self)
            instead = f": {INSTEAD[name]}" if name in INSTEAD else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{instead}")

    def _set_legacy(self, name: str, value: object) -> None:
        """Apply a legacy name that a subclass's own `__post_init__` assigns before it calls this class's."""
        current, problems = without_legacy_names(type(self), {name: value}, vars(self))
        if problems:
            raise ConfigurationError(problems)
        for each, its_value in current.items():
            setattr(self, each, its_value)

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments by name, with enumerations as their values and tokens hidden."""
        names = [field.name for field in self.__dataclass_fields__.values() if field.init]
        hidden = {name for name in names if name.endswith("_token")}
        hidden |= {name for name in names if name == "checkpoint_key" and getattr(self, name) is not None}
        return {name: f"<{name.upper()}>" if name in hidden else plain(getattr(self, name)) for name in names}

    def __str__(self) -> str:
        """Return every argument and its value, one per line, without secrets."""
        lines = [f"    {name}={redact(repr(value))},\n" for name, value in self.to_dict().items()]
        return f"{type(self).__name__}(\n{''.join(lines)})"

    def __repr__(self) -> str:
        """Return the arguments that differ from their defaults, without secrets."""
        fields = self.__dataclass_fields__
        shown = [
            f"{name}={redact(repr(value))}"
            for name, value in self.to_dict().items()
            if fields[name].repr and not self._is_default(name)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _is_default(self, name: str) -> bool:
        """Return whether an argument has the value that it has if it is not given."""
        field, value = self.__dataclass_fields__[name], getattr(self, name)
        if name in self._derived:
            default = self._derived[name]
        elif field.default is MISSING and field.default_factory is MISSING:
            return False
        else:
            default = default_of(type(self), name)
            if name in self._declared:
                default = _accepted_or_default(type(self), name, default)
        return bool(value is default or (type(value) is type(default) and value == default))

    def __init_subclass__(cls, **named: Any) -> None:
        """Let a subclass have this class's text forms: those that decorators write show secrets."""
        super().__init_subclass__(**named)
        if "__repr__" not in vars(cls):
            cls.__repr__ = cls.__repr__  # type: ignore[method-assign]

    @property
    def _declared(self) -> Mapping[str, tuple[Declaration, Any]]:
        return declarations(type(self))

    def _broken_rules(self, refused: Container[str]) -> list[Problem]:
        problems = []
        for rule in rules(type(self)):
            if not any(name in refused for name in rule.names):
                try:
                    rule.check(self)
                except RefusalError as refusal:
                    problems.append(problem({name: getattr(self, name) for name in rule.names}, refusal))
        return problems

    @classmethod
    def __attrs_init_subclass__(cls) -> None:
        """Complete a subclass that attrs has made an attrs class."""
        show_as_dataclass(cls)
        if not vars(cls).get("__attrs_own_setattr__"):
            return
        # attrs wrote a __setattr__ for the hooks of the subclass's own fields, which bypasses the checks here.
        generated = vars(cls)["__setattr__"]

        def checking_setattr(self: Arguments, name: str, value: object) -> None:
            write = Arguments.__setattr__ if name in self._declared else generated
            write(self, name, value)

        cls.__setattr__ = checking_setattr  # type: ignore[assignment, method-assign]
        cls.__attrs_own_setattr__ = False  # type: ignore[attr-defined]


def plain(value: Any) -> Any:
    """Return a value for a document: an enumeration's value, the name of a torch dtype, what `to_dict` returns."""
    if type(value) in PLAIN:
        return value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list):
        return [plain(item) for item in value]
    for method in ("to_dict", "to_json"):
        if hasattr(value, method):
            return getattr(value, method)()
    return value


def is_legacy(cls: type, name: str) -> bool:
    """Return whether `cls` takes `name` for another argument; a subclass may have an argument of that name itself."""
    return name in LEGACY_ARGUMENTS and not has_argument(cls, name)


def legacy_names_of(cls: type) -> list[str]:
    """Return the legacy names that `cls` takes, none if it is not a class of arguments."""
    return [name for name in LEGACY_ARGUMENTS if is_legacy(cls, name)] if issubclass(cls, Arguments) else []


def without_legacy_names(cls: type, given: Given, known: Given) -> tuple[dict[str, Any], list[Problem]]:
    """Return `given` with current names only, and a problem for each legacy name that is refused; warn of each.

    Also warns of arguments that nothing has replaced, if they are not the default. known: arguments that the given ones
    may add to, but do not contradict.
    """
    for name, instead in DISCOURAGED_ARGUMENTS.items():
        if name in given and name in declarations(cls) and given[name] != default_of(cls, name):
            _warn(f"{name} is an argument of earlier releases; it still works, but better {instead}.")
    current = {name: value for name, value in given.items() if not is_legacy(cls, name)}
    for name in EARLIER_VALUES.keys() & current.keys() & declarations(cls).keys():
        value = getattr(current[name], "value", current[name])
        if isinstance(value, str) and (today := EARLIER_VALUES[name].get(value)) is not None:
            _warn(f"{name}={value!r} is a choice of earlier releases; write {today!r}.")
            current[name] = today
    problems = []
    for name in [name for name in LEGACY_ARGUMENTS if name in given and name not in current]:
        legacy, value = LEGACY_ARGUMENTS[name], given[name]
        _warn(f"{name} is an argument of earlier releases; {legacy.write}.")
        try:
            values = legacy.current(value, {**known, **current})
            if not legacy.adds:
                _refuse_contradiction(cls, values, current)
            for each, its_value in values.items():
                _accepted(cls, each, its_value)
        except RefusalError as refusal:
            problems.append(problem({name: value}, refusal))
        else:
            current |= values
    return current, problems


def _refuse_contradiction(cls: type, values: Given, current: Given) -> None:
    """Raise RefusalError if a current name has a value that is neither its default nor that of the legacy name."""
    for name, value in values.items():
        if name not in current:
            continue
        given = _accepted_or_default(cls, name, current[name])
        if given not in (_accepted(cls, name, value), _accepted_or_default(cls, name, default_of(cls, name))):
            raise RefusalError(
                f"{name} is {shown_as(name, current[name])}", f"leave one of the two out, and write {name}"
            )


def _accepted(cls: type, name: str, value: object) -> Any:
    declaration, kind = declarations(cls)[name]
    return declaration.accepted(value, kind)


def _accepted_or_default(cls: type, name: str, value: object) -> Any:
    """Return the converted value of an argument; an invalid one, which is reported elsewhere, counts as the default."""
    try:
        return _accepted(cls, name, value)
    except RefusalError:
        return _accepted(cls, name, default_of(cls, name))


_OWN_MODULES = ("hexloop.app.arguments", "cattrs", "dataclasses", "attr.", "<attrs")


def _warn(message: str) -> None:
    """Warn at the line outside this package that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OWN_MODULES):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, FutureWarning, stacklevel=level)
