"""The argument `fp8`: names, options and recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hexloop.app.arguments import TrainingArguments, formats
from hexloop.app.arguments.formats import OPTIONS, TORCHAO, TRANSFORMER_ENGINE, Fp8Recipe
from hexloop.domain.errors import ConfigurationError
from tests.unit.arguments.sources import parse


class AORecipeKwargs:
    """Has the name and the attributes of accelerate's."""

    def __init__(self, **given: Any) -> None:
        self.config = self.module_filter_func = self.pad_inner_dim = self.enable_fsdp_float8_all_gather = None
        vars(self).update(given)


class TERecipeKwargs:
    """Has the name and the attributes of accelerate's, as its constructor completes them."""

    def __init__(self, **given: Any) -> None:
        self.margin, self.fp8_format, self.override_linear_precision = 0, "HYBRID", (False, False, False)
        vars(self).update(given)


class MSAMPRecipeKwargs:
    opt_level = "O2"


class FP8RecipeKwargs(TERecipeKwargs):
    backend = "TE"


def described(value: object) -> str:
    """Return a name of a case that is the same in each process."""
    return type(value).__name__ if "object at" in repr(value) else str(value)


ROWWISE = {"backend": "torchao", "recipe": "rowwise"}

TAKEN: list[tuple[Any, Fp8Recipe | None]] = [
    (None, None),
    (False, None),
    ("false", None),
    ("none", None),
    ("", None),
    ("torchao", Fp8Recipe(TORCHAO)),
    ("ao", Fp8Recipe(TORCHAO)),
    ("AO", Fp8Recipe(TORCHAO)),
    ("te", Fp8Recipe(TRANSFORMER_ENGINE)),
    ("transformer-engine", Fp8Recipe(TRANSFORMER_ENGINE)),
    (True, Fp8Recipe(TORCHAO)),
    ("true", Fp8Recipe(TORCHAO)),
    (ROWWISE, Fp8Recipe(TORCHAO, {"recipe": "rowwise"})),
    ('{"backend": "ao", "emulate": "yes"}', Fp8Recipe(TORCHAO, {"emulate": True})),
    ({"pad_inner_dim": False}, Fp8Recipe(TORCHAO, {"pad_inner_dim": False})),
    (AORecipeKwargs(config="made", pad_inner_dim=True), Fp8Recipe(TORCHAO, {"config": "made"})),
    (
        TERecipeKwargs(margin=3),
        Fp8Recipe(
            TRANSFORMER_ENGINE,
            {"margin": 3, "fp8_format": "HYBRID", "override_linear_precision": (False, False, False)},
        ),
    ),
    (
        FP8RecipeKwargs(),
        Fp8Recipe(
            TRANSFORMER_ENGINE,
            {"margin": 0, "fp8_format": "HYBRID", "override_linear_precision": (False, False, False)},
        ),
    ),
]


@pytest.mark.parametrize(("value", "recipe"), TAKEN, ids=described)
def test_values_that_are_taken(value: Any, recipe: Fp8Recipe | None) -> None:
    """Names, mappings, JSON and accelerate's recipes; unset values do not turn it on."""
    arguments = TrainingArguments("out", fp8=value)
    assert arguments.fp8_recipe == recipe
    assert arguments.mixed_precision == ("no" if recipe is None else "fp8")


REFUSED: list[tuple[Any, str]] = [
    ("torcha", "there is no back end 'torcha' for it; did you mean 'torchao'?"),
    ("msamp", "MS-AMP is no longer maintained, and accelerate has deprecated it; choose 'torchao'"),
    (MSAMPRecipeKwargs(), "MS-AMP is no longer maintained"),
    ({"backend": "MS-AMP"}, "MS-AMP is no longer maintained"),
    (8, "it takes the name of a back end, a mapping of options, or accelerate's AORecipeKwargs or TERecipeKwargs"),
    ({"backend": "torchao", "recip": "rowwise"}, "torchao has no option 'recip'; did you mean recipe?"),
    ({"recipe": "columnwise"}, "at its key recipe, there is no such choice"),
    ({"emulate": "perhaps"}, "at its key emulate, it takes a truth value"),
    ({"margin": 1}, "torchao has no option 'margin'"),
    ({"backend": "te", "margin": "wide"}, "at its key margin, it takes a whole number"),
    ({"backend": "te", "override_linear_precision": [True]}, "it takes three truth values"),
    (
        {"recipe": "rowwise", "enable_fsdp_float8_all_gather": True},
        "weights are gathered in 8 bits with the recipe tensorwise only",
    ),
    (
        {"backend": "te", "use_mxfp8_block_scaling": True, "amax_history_len": 4},
        "scales of blocks need no history of maxima; leave out amax_history_len",
    ),
    ("missing.json", "it takes a mapping, or the path of a readable JSON file"),
]


@pytest.mark.parametrize(("value", "wanted"), REFUSED, ids=described)
def test_values_that_are_refused(value: Any, wanted: str) -> None:
    """When the arguments are made, with what to write."""
    with pytest.raises(ConfigurationError) as caught:
        TrainingArguments("out", fp8=value)
    (problem,) = caught.value.problems
    assert wanted in problem
    assert problem.startswith("You chose fp8=")


def test_options_of_both_packages_are_read() -> None:
    """Each option of a back end, and none of the other's."""
    named = {"backend": "te", "fp8_format": "e4m3", "margin": "2", "override_linear_precision": [False, "true", False]}
    recipe = TrainingArguments("out", fp8=named).fp8_recipe
    assert recipe == Fp8Recipe(
        TRANSFORMER_ENGINE, {"fp8_format": "E4M3", "margin": 2, "override_linear_precision": (False, True, False)}
    )
    assert not OPTIONS[TORCHAO].keys() & OPTIONS[TRANSFORMER_ENGINE].keys()


def test_it_may_come_from_a_command_line_or_a_file(tmp_path: Path) -> None:
    """As a name, as an option without a value, as JSON, and as the path of a JSON file."""
    path = tmp_path / "fp8.json"
    path.write_text('{"backend": "torchao", "recipe": "rowwise"}')
    for words, options in ((["torchao"], {}), ([], {}), ([str(path)], {"recipe": "rowwise"})):
        arguments = parse(TrainingArguments, ["--output_dir", "out", "--fp8", *words])
        assert arguments.fp8_recipe == Fp8Recipe(TORCHAO, options)


def test_one_half_format_beside_it() -> None:
    """bf16 is what fp8 computes in elsewhere; fp16 is not."""
    assert TrainingArguments("out", fp8="torchao", bf16=True).mixed_precision == "fp8"
    with pytest.raises(ConfigurationError, match="beside the layers in fp8, a run computes in bf16"):
        TrainingArguments("out", fp8="torchao", fp16=True)


def test_an_installed_package_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name, it is torchao, or Transformer Engine if that alone is installed."""
    both = (TORCHAO, TRANSFORMER_ENGINE)
    for installed, expected in (((), TORCHAO), (both, TORCHAO), (both[1:], TRANSFORMER_ENGINE)):
        monkeypatch.setattr(formats, "find_spec", lambda name, installed=installed: name if name in installed else None)
        recipe = TrainingArguments("out", fp8=True).fp8_recipe
        assert recipe is not None
        assert recipe.backend == expected
        assert recipe.is_installed == (expected in installed)


LAUNCHED: list[tuple[dict[str, str], Fp8Recipe]] = [
    ({}, Fp8Recipe(TORCHAO)),
    ({"BACKEND": "AO"}, Fp8Recipe(TORCHAO)),
    ({"BACKEND": "NO", "MARGIN": "2"}, Fp8Recipe(TORCHAO)),
    (
        {"BACKEND": "AO", "PAD_INNER_DIM": "False", "ENABLE_FSDP_FLOAT8_ALL_GATHER": "True"},
        Fp8Recipe(TORCHAO, {"pad_inner_dim": False, "enable_fsdp_float8_all_gather": True}),
    ),
    (
        {
            "BACKEND": "TE", "FORMAT": "e4m3", "MARGIN": "1", "INTERVAL": "2", "AMAX_HISTORY_LEN": "16",
            "AMAX_COMPUTE_ALGO": "max", "USE_AUTOCAST_DURING_EVAL": "true", "OVERRIDE_FPROP": "False",
            "OVERRIDE_DGRAD": "False", "OVERRIDE_WGRAD": "True", "USE_MXFP8_BLOCK_SCALING": "False",
        },
        Fp8Recipe(
            TRANSFORMER_ENGINE,
            {
                "fp8_format": "E4M3", "margin": 1, "interval": 2, "amax_history_len": 16, "amax_compute_algo": "max",
                "use_autocast_during_eval": True, "use_mxfp8_block_scaling": False,
                "override_linear_precision": (False, False, True),
            },
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("variables", "recipe"), LAUNCHED, ids=str)
def test_the_variables_of_the_launcher(
    variables: dict[str, str], recipe: Fp8Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count if the launcher asks for fp8 and no argument chooses a precision."""
    for name, value in variables.items():
        monkeypatch.setenv(f"ACCELERATE_FP8_{name}", value)
    assert TrainingArguments("out").fp8_recipe is None
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    assert TrainingArguments("out").fp8_recipe == recipe
    assert TrainingArguments("out", bf16=True).fp8_recipe is None
    assert TrainingArguments("out", fp8=ROWWISE).fp8_recipe == Fp8Recipe(TORCHAO, {"recipe": "rowwise"})


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"BACKEND": "MSAMP"}, "ACCELERATE_FP8_BACKEND='msamp', but MS-AMP is no longer maintained"),
        ({"BACKEND": "TE", "MARGIN": "wide"}, "ACCELERATE_FP8_MARGIN='wide', but at its key margin"),
    ],
    ids=str,
)
def test_variables_that_are_refused(variables: dict[str, str], wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the recipe is needed, with the variable."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    for name, value in variables.items():
        monkeypatch.setenv(f"ACCELERATE_FP8_{name}", value)
    with pytest.raises(ConfigurationError, match=wanted):
        _ = TrainingArguments("out").fp8_recipe
