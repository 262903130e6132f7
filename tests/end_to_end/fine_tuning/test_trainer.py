"""Fine-tuning with SFTTrainer: every form of data, models by name, adapters, packing, evaluation and resuming."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
from torch.utils.data import IterableDataset

import hexloop
from hexloop import ConfigurationError, SFTConfig, SFTTrainer, Trainer, TrainingArguments
from tests.end_to_end.fine_tuning.small import (
    END,
    PLAIN,
    TEMPLATE,
    TEXTS,
    answers,
    conversations,
    llama,
    prompts,
    texts,
    tokenizer,
)


def config(folder: Path, **given: Any) -> SFTConfig:
    usual: dict[str, Any] = {
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return SFTConfig(str(folder / "run"), **{**usual, **given})


def trainer(folder: Path, data: Any, **given: Any) -> SFTTrainer:
    """Return a Trainer of the tiny model; parts of the Trainer by their names, other keywords are arguments."""
    names = ("model", "eval_dataset", "processing_class", "peft_config", "formatting_func", "data_collator")
    parts: dict[str, Any] = {"model": llama(), "processing_class": tokenizer()}
    parts |= {name: given.pop(name) for name in (*names, "quantization_config", "callbacks") if name in given}
    return SFTTrainer(args=config(folder, **given), train_dataset=data, **parts)


def losses(made: Trainer) -> list[float]:
    made.train()
    return [entry["loss"] for entry in made.state.log_history if "loss" in entry]


def tokens(text: str) -> list[int]:
    found: list[int] = tokenizer()(text)["input_ids"]
    return found


def by_hand(form: str) -> list[dict[str, list[int]]]:
    """Return the rows that samples of a form become."""
    rows = []
    for text, prompt, chat in zip(TEXTS, prompts(), conversations(), strict=True):
        asked = f"<user>{chat['messages'][0]['content']}<assistant>"
        first, rest = {
            "texts": ("", f"{text}{END}"),
            "prompts": (prompt["prompt"], f"{prompt['completion']}{END}"),
            "conversations": ("", f"{asked}{text}{END}"),
            "answers": (asked, f"{text}{END}"),
        }[form]
        ids = tokens(first + rest)
        rows.append({"input_ids": ids, "labels": [-100] * len(tokens(first)) + ids[len(tokens(first)) :]})
    return rows


FORMS = {"texts": texts, "prompts": prompts, "conversations": conversations, "answers": answers}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_trains_on_the_tokens_made_by_hand(form: str, tmp_path: Path) -> None:
    """The losses are those of a Trainer on rows that were tokenized by hand."""
    made = trainer(tmp_path, FORMS[form](), eval_dataset=FORMS[form](3))
    shared = {name: getattr(made.args, name) for name in ("max_steps", "learning_rate", "logging_steps", "use_cpu")}
    plain = Trainer(
        llama(),
        TrainingArguments(
            str(tmp_path / "plain"),
            per_device_train_batch_size=2,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **shared,
        ),
        transformers.DataCollatorForSeq2Seq(tokenizer()),
        by_hand(form),
        by_hand(form)[:3],
        tokenizer(),
    )
    assert losses(made) == pytest.approx(losses(plain), rel=1e-6)
    assert made.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], rel=1e-6)
    assert made.evaluate(FORMS[form](3))["eval_loss"] == made.evaluate()["eval_loss"]


def test_the_loss_is_that_of_the_completions(tmp_path: Path) -> None:
    """eval_loss is the mean over the labels of the completions, as computed from the model's logits."""
    made = trainer(tmp_path, prompts(), eval_dataset=prompts(), per_device_eval_batch_size=6)
    total, count = 0.0, 0
    for row in by_hand("prompts"):
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])
        with torch.no_grad():
            logits = llama()(input_ids=ids).logits[0, :-1]
        kept = labels[1:] != -100
        total += float(torch.nn.functional.cross_entropy(logits[kept], labels[1:][kept], reduction="sum"))
        count += int(kept.sum())
    assert made.evaluate()["eval_loss"] == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"max_length": None},
        {"padding_free": True},
        {"packing": True, "max_length": 64},
        {"packing": True, "max_length": 64, "packing_strategy": "bfd_split", "eval_packing": False},
        {"eval_packing": True, "max_length": 48},
        {"pad_to_multiple_of": 16},
    ],
    ids="-".join,
)
def test_evaluation_does_not_depend_on_how_rows_are_made(options: dict[str, Any], tmp_path: Path) -> None:
    """Padded, joined and packed rows have the same mean loss over the labels."""
    data = conversations(7)
    usual = trainer(tmp_path, data, eval_dataset=data, assistant_only_loss=True, per_device_eval_batch_size=7)
    other = trainer(
        tmp_path, data, eval_dataset=data, assistant_only_loss=True, per_device_eval_batch_size=7, **options
    )
    assert other.evaluate()["eval_loss"] == pytest.approx(usual.evaluate()["eval_loss"], rel=1e-5)
    assert all(loss < 7 for loss in losses(other))


def test_long_samples_are_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is beyond max_length is not trained on, and that is reported; bfd_split trains on the rest as well."""
    with caplog.at_level(logging.WARNING, "hexloop"):
        cut = trainer(tmp_path, texts(), max_length=5, include_num_input_tokens_seen="all", max_steps=3)
        cut.train()
    assert "longer than max_length=5" in caplog.text
    assert cut.state.num_input_tokens_seen == 6 * 5
    whole = sum(len(row["input_ids"]) for row in by_hand("texts"))
    split = trainer(
        tmp_path,
        texts(),
        max_length=16,
        packing=True,
        packing_strategy="bfd_split",
        max_steps=-1,
        num_train_epochs=1,
        include_num_input_tokens_seen="all",
    )
    split.train()
    assert whole <= split.state.num_input_tokens_seen < whole + 16 * 6


def test_samples_without_labels_change_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A prompt that fills a row adds nothing to the loss, also if it is a batch of its own."""
    long = {"prompt": " ".join(TEXTS[:2]), "completion": " yes"}
    with caplog.at_level(logging.WARNING, "hexloop"):
        made = trainer(
            tmp_path,
            [long, prompts(1)[0], long, prompts(1)[0]],
            train_sampling_strategy="sequential",
            per_device_train_batch_size=1,
            gradient_accumulation_steps=2,
            max_length=16,
            max_steps=2,
        )
        found = losses(made)
    alone = losses(trainer(tmp_path, prompts(1) * 2, per_device_train_batch_size=1, max_length=16, max_steps=2))
    assert found == pytest.approx(alone, rel=1e-6)
    assert "none that counts in the loss" in caplog.text


class Lines(IterableDataset[Any]):
    """A stream of texts."""

    def __iter__(self) -> Iterator[Any]:
        yield from texts(12)


STREAMS: dict[str, Any] = {
    "torch": Lines,
    "datasets": lambda: datasets.Dataset.from_list(texts(12)).to_iterable_dataset(num_shards=2),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_streams(kind: str, tmp_path: Path) -> None:
    """Their rows become tokens as they come, packed or not."""
    listed = losses(trainer(tmp_path, texts(12), train_sampling_strategy="sequential"))
    assert losses(trainer(tmp_path, STREAMS[kind]())) == pytest.approx(listed, rel=1e-6)
    packed = trainer(tmp_path, STREAMS[kind](), packing=True, max_length=64, max_steps=2)
    assert len(losses(packed)) == 2


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"packing": True, "max_length": 48}, marks=pytest.mark.one_in(2)),
        pytest.param({"dataloader_num_workers": 1}, marks=pytest.mark.one_in(2)),
        pytest.param({"token_cache": "tokens"}, marks=pytest.mark.one_in(2)),
    ],
    ids=lambda options: "-".join(options) or "lazy",
)
@pytest.mark.parametrize("kind", ["list", "datasets"])
def test_resuming_is_exact(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    """A run that is resumed from a checkpoint by a new Trainer has the same weights and losses."""
    options = {**options, "max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    if "token_cache" in options:
        options["token_cache"] = str(tmp_path / "tokens")
    data = conversations(20) if kind == "list" else STREAMS["datasets"]()
    whole = trainer(tmp_path / "a", data, **options)
    expected = losses(whole)
    resumed = trainer(tmp_path / "a", data, model=llama(), **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "run" / "checkpoint-3"))
    found = [entry["loss"] for entry in resumed.state.log_history if "loss" in entry]
    assert found == expected
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("processes", [None, pytest.param(2, marks=pytest.mark.matrix)])
def test_kept_tokens_change_nothing(processes: int | None, tmp_path: Path) -> None:
    """Data that were tokenized before have the same losses, in this run and in the next."""
    expected = losses(trainer(tmp_path, conversations(20), assistant_only_loss=True))
    options: dict[str, Any] = {"assistant_only_loss": True, "token_cache": str(tmp_path / "tokens")}
    for _ in range(2):
        made = trainer(tmp_path, conversations(20), dataset_num_proc=processes, **options)
        assert len(list((tmp_path / "tokens").rglob("*.tokens"))) == 1
        assert losses(made) == expected


def test_given_tokens_are_passed_on(tmp_path: Path) -> None:
    """Rows with input_ids are trained on as they are, with trl's masks."""
    rows = by_hand("prompts")
    masks = [
        {"input_ids": row["input_ids"], "completion_mask": [int(x != -100) for x in row["labels"]]} for row in rows
    ]
    expected = losses(trainer(tmp_path, prompts()))
    assert losses(trainer(tmp_path, rows)) == pytest.approx(expected, rel=1e-6)
    assert losses(trainer(tmp_path, masks)) == pytest.approx(expected, rel=1e-6)


def test_preparation_can_be_skipped(tmp_path: Path) -> None:
    """The collator then receives the samples."""
    seen: list[Any] = []

    def collate(samples: list[Any]) -> Any:
        seen.extend(samples)
        ids = torch.ones(len(samples), 3, dtype=torch.int64)
        return {"input_ids": ids, "labels": ids}

    options: dict[str, Any] = {"dataset_kwargs": {"skip_prepare_dataset": True}, "remove_unused_columns": False}
    made = trainer(tmp_path, texts(), data_collator=collate, **options)
    assert len(losses(made)) == 4
    assert seen
    assert all(set(each) == {"text"} for each in seen)


def test_formatting(tmp_path: Path) -> None:
    """The texts that a function makes of samples are trained on."""
    pairs = [{"title": text.split(" ", 2)[0], "body": text} for text in TEXTS]
    made = trainer(tmp_path, pairs, formatting_func=lambda sample: sample["body"])
    assert losses(made) == losses(trainer(tmp_path, texts()))


def test_several_sets_are_evaluated(tmp_path: Path) -> None:
    """Each is tokenized, and predicted with its labels."""
    made = trainer(
        tmp_path, texts(), eval_dataset={"a": texts(2), "b": prompts(3)}, eval_strategy="steps", eval_steps=4
    )
    made.train()
    last = made.state.log_history[-2:]
    assert {"eval_a_loss", "eval_b_loss"} <= {name for entry in made.state.log_history for name in entry}, last
    predicted = made.predict(prompts(2))
    assert predicted.label_ids.shape[0] == 2
    assert (predicted.metrics or {})["test_loss"] > 0


# Models and tokenizers by name


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """Return a folder with the tiny model and its tokenizer."""
    folder = str(tmp_path / "base")
    llama().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def test_a_model_by_name(saved: str, tmp_path: Path) -> None:
    """It is loaded with its tokenizer, in float32 or as the keywords say; its checkpoints can be loaded in turn."""
    expected = losses(trainer(tmp_path, conversations()))
    made = SFTTrainer(saved, config(tmp_path, save_strategy="steps", save_steps=4), train_dataset=conversations())
    assert losses(made) == pytest.approx(expected, rel=1e-6)
    again = SFTTrainer(str(tmp_path / "run" / "checkpoint-4"), config(tmp_path), train_dataset=conversations())
    assert again.processing_class.chat_template == TEMPLATE
    for one, other in zip(made.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    half = SFTTrainer(saved, config(tmp_path, model_init_kwargs={"dtype": "bfloat16"}), train_dataset=texts())
    assert half.model.dtype is torch.bfloat16
    assert SFTTrainer(saved, train_dataset=texts(), args=None).args.output_dir == "base-SFT"


def test_adapters(saved: str, tmp_path: Path) -> None:
    """Only the adapters are trained, drawn from the seed; with gradient checkpointing as well."""
    peft = pytest.importorskip("peft")
    found = []
    for options in ({}, {}, {"gradient_checkpointing": True}):
        adapters = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
        made = SFTTrainer(saved, config(tmp_path, **options), train_dataset=conversations(), peft_config=adapters)
        before = {name: value.clone() for name, value in made.model.named_parameters()}
        found.append(losses(made))
        changed = {name for name, value in made.model.named_parameters() if not torch.equal(value, before[name])}
        assert changed
        assert all("lora_" in name for name in changed)
    assert found[0] == found[1]
    assert found[2] == pytest.approx(found[0], rel=1e-5)
    assert found[0][-1] < found[0][0]


def four_bits() -> Any:
    quantized: Any = transformers.BitsAndBytesConfig
    return quantized(load_in_4bit=True, bnb_4bit_quant_type="nf4")


def test_a_quantized_base(saved: str, tmp_path: Path) -> None:
    """Its weights are loaded in 4 bits, and adapters around them are trained."""
    peft = pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    made = SFTTrainer(
        saved,
        config(tmp_path, max_steps=2),
        train_dataset=conversations(),
        quantization_config=four_bits(),
        peft_config=peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    assert made.model.is_loaded_in_4bit
    assert all(loss > 0 for loss in losses(made))
    with pytest.raises(ConfigurationError, match="add adapters"):
        SFTTrainer(
            saved,
            config(tmp_path),
            train_dataset=conversations(),
            quantization_config=four_bits(),
        )


def test_end_and_padding_tokens(tmp_path: Path) -> None:
    """Those of the arguments become the tokenizer's; without a padding token it pads with its end token."""
    words = tokenizer()
    words.pad_token = None
    made = trainer(tmp_path, texts(), processing_class=words, eos_token="<user>")
    assert made.train_dataset[0]["input_ids"][-1] == words.convert_tokens_to_ids("<user>")
    assert words.pad_token == "<user>"
    assert losses(made)
    assert made.model.generation_config.eos_token_id[0] == words.eos_token_id
    assert trainer(tmp_path, texts(), pad_token="<system>").processing_class.pad_token == "<system>"


def test_chat_templates_from_files(tmp_path: Path) -> None:
    """A file, or the file in a folder, replaces the template of the tokenizer."""
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE.replace("<assistant>", "<system>"))
    for path in (tmp_path, tmp_path / "chat_template.jinja"):
        made = trainer(tmp_path, conversations(), processing_class=tokenizer(None), chat_template_path=str(path))
        assert str(tokenizer().decode(made.train_dataset[0]["input_ids"])).startswith("<user>What is list?<assistant>A")
    assert made.processing_class.chat_template == (tmp_path / "chat_template.jinja").read_text()


def test_a_chat_template_of_another_model(tmp_path: Path) -> None:
    """Its tokens are added to the tokenizer and the model, and its end token ends what the assistant says."""
    other = tokenizer(TEMPLATE.replace("eos_token", "'<over>'").replace("<assistant>", "<bot>"))
    other.add_tokens(["<over>", "<bot>", "<unused>"], special_tokens=True)
    other.eos_token = "<over>"
    other.save_pretrained(tmp_path / "other")
    made = trainer(tmp_path, conversations(), chat_template_path=str(tmp_path / "other"))
    words = made.processing_class
    assert words.eos_token == "<over>"
    assert len(words) == 342
    assert "<unused>" not in words.get_vocab()
    assert made.model.get_input_embeddings().weight.shape[0] == 342
    assert words.decode(made.train_dataset[0]["input_ids"]).endswith("objects.<over>")
    assert losses(made)
    peft = pytest.importorskip("peft")
    options: dict[str, Any] = {"r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    with pytest.raises(ConfigurationError, match="brings tokens that the model does not know"):
        trainer(
            tmp_path,
            conversations(),
            chat_template_path=str(tmp_path / "other"),
            peft_config=peft.LoraConfig(**options),
        )
    trained = peft.LoraConfig(**options, modules_to_save=["embed_tokens", "lm_head"])
    made = trainer(tmp_path, conversations(), chat_template_path=str(tmp_path / "other"), peft_config=trained)
    assert losses(made)


# Arguments


def test_other_arguments_are_taken_over(tmp_path: Path) -> None:
    """Those of transformers or of a Trainer keep their values, also the defaults that SFTConfig has others of."""
    options: dict[str, Any] = {"max_steps": 3, "use_cpu": True, "report_to": "none"}
    kinds: tuple[Any, ...] = (TrainingArguments, transformers.TrainingArguments)
    for kind in kinds:
        made = SFTTrainer(llama(), kind(str(tmp_path), **options), None, texts(), processing_class=tokenizer())
        args = made.args
        assert isinstance(args, SFTConfig)
        assert (args.max_steps, args.learning_rate, args.logging_steps, args.max_length) == (3, 5e-5, 500, 1024)


def test_a_class_of_other_arguments_is_refused(tmp_path: Path) -> None:
    """It would lose what it adds."""

    @dataclass
    class Mine(TrainingArguments):
        extra: int = 3

    with pytest.raises(ConfigurationError, match="derive that class from SFTConfig"):
        SFTTrainer(llama(), Mine(str(tmp_path)), train_dataset=texts(), processing_class=tokenizer())


def test_defaults_of_trl() -> None:
    """Of the arguments that trl has, the defaults are trl's; those of precision and checkpointing stay."""
    args = SFTConfig("out")
    assert (args.learning_rate, args.logging_steps, args.max_length) == (2e-5, 10, 1024)
    assert (args.dataset_text_field, args.packing_strategy, args.packing) == ("text", "bfd", False)
    assert (args.completion_only_loss, args.assistant_only_loss, args.eval_packing) == (None, False, None)
    assert not args.bf16
    assert not args.gradient_checkpointing
    of_trl: Any = {"pad_to_multiple_of": "auto"}
    assert SFTConfig("out", **of_trl).pad_to_multiple_of is None


def test_lengths_that_are_unset() -> None:
    """Where nothing is cut off, the default length is not in force; another one is."""
    skips = {"skip_prepare_dataset": True}
    assert SFTConfig("out", dataset_kwargs=skips).max_length is None
    assert SFTConfig("out", dataset_kwargs=skips, max_length=9).max_length == 9
    assert SFTConfig("out", reproduce="transformers").max_length is None


def test_tokens_without_embeddings_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A tokenizer with more tokens than the model embeds is named before training."""
    with caplog.at_level(logging.WARNING, "hexloop"):
        trainer(tmp_path, texts(), model=llama(words=339))
    assert "The tokenizer has 340 tokens, and the model has embeddings of 339" in caplog.text


def test_reproduced_fine_tuning(tmp_path: Path) -> None:
    """With `reproduce` the losses are those of transformers' Trainer on the same rows."""
    options: dict[str, Any] = {"max_steps": 3, "per_device_train_batch_size": 2, "learning_rate": 1e-2}
    options |= {"logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True}
    theirs = transformers.Trainer(
        llama(),
        transformers.TrainingArguments(str(tmp_path / "theirs"), **options),
        transformers.DataCollatorForSeq2Seq(tokenizer()),
        by_hand("prompts"),
        processing_class=tokenizer(),
    )
    theirs.train()
    expected = [entry["loss"] for entry in theirs.state.log_history if "loss" in entry]
    assert losses(trainer(tmp_path, prompts(), max_steps=3, reproduce="transformers")) == expected


def test_the_tokenizer_by_its_old_name(tmp_path: Path) -> None:
    """`tokenizer` is processing_class, with a warning."""
    with pytest.warns(FutureWarning, match="processing_class"):
        made = SFTTrainer(llama(), config(tmp_path), train_dataset=texts(), tokenizer=tokenizer())
    assert made.processing_class.eos_token == END


def problems(folder: Path, data: Any, **given: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        trainer(folder, data, **given)
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("data", "given", "expected"),
    [
        (conversations(), {"processing_class": tokenizer(None)}, "set chat_template_path to a file with a template"),
        (texts(), {"completion_only_loss": True}, "pass samples with the columns prompt and completion"),
        (texts(), {"assistant_only_loss": True}, "the samples are no conversations"),
        (conversations(), {"processing_class": tokenizer(PLAIN), "assistant_only_loss": True}, "{% endgeneration %}"),
        ([{"story": "a"}], {}, "none of the forms that fine-tuning knows"),
        (texts(), {"eos_token": "<ende>"}, "the tokenizer has no such token; did you mean '<end>'?"),
        (texts(), {"chat_template_path": "missing.jinja"}, "There is no chat template missing.jinja"),
        (texts(), {"processing_class": 3}, "processing_class is 3, which is not a tokenizer"),
        (texts(), {"processing_class": None}, "The Trainer has no tokenizer"),
        (texts(), {"peft_config": {"r": 3}}, "peft_config is {'r': 3}; pass a configuration of peft"),
        (texts(), {"quantization_config": {"bits": 4}}, "quantization_config says how a model is loaded, but a loaded"),
        (texts(), {"model_init_kwargs": {"dtype": "auto"}}, "model_init_kwargs says how a model is loaded"),
        (texts(), {"model": None}, "SFTTrainer needs a model"),
        (texts(), {"model": "no/such/model", "processing_class": tokenizer()}, "could not be loaded"),
        (texts(), {"dataset_kwargs": {"skip": True}}, "it has no key 'skip'"),
        (
            texts(),
            {"dataset_kwargs": {"skip_prepare_dataset": True}, "token_cache": "x"},
            "token_cache would do nothing",
        ),
    ],
    ids=range(16),
)
def test_bad_input(
    data: Any, given: dict[str, Any], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One clear message each, before anything is trained."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (problem,) = problems(tmp_path, data, **given)
    assert expected in problem


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    """Tokens, parts and data at once."""
    found = problems(
        tmp_path, texts(), eval_dataset={"a": prompts(1)}, eos_token="<x>", assistant_only_loss=True, peft_config=3
    )
    assert len(found) == 4
    assert "no such token" in found[0]
    assert "peft_config is 3" in found[1]


def test_the_front_door() -> None:
    """Both classes can be derived from, as a Trainer and its arguments can."""
    assert issubclass(hexloop.SFTTrainer, hexloop.Trainer)
    assert hexloop.SFTTrainer.arguments_class is hexloop.SFTConfig
