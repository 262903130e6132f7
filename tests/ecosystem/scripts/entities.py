"""Trains a GLiNER model to find entities; --variant selects how."""

from __future__ import annotations

import random
from pathlib import Path

import tiny_sentences as tiny
import torch
from gliner import GLiNER, GLiNERConfig
from gliner.data_processing.collator import UniEncoderSpanDataCollator, UniEncoderTokenDataCollator
from gliner.training import Trainer, TrainingArguments
from transformers import set_seed

parser = tiny.parser("spans")
options = parser.parse_args()
variant = options.variant


def entity_model(seed: int = 0) -> GLiNER:
    """Return a GLiNER model with random weights."""
    set_seed(seed)
    values = {"span_mode": "token_level"} if variant == "tokens" else {"span_mode": "markerV0"}
    configuration = GLiNERConfig(
        model_name=tiny.saved_bert(seed), hidden_size=32, dropout=0.1, max_width=4, max_len=32, max_types=5, **values
    )
    return GLiNER.from_config(configuration)


def sentences(count: int, seed: int) -> list[dict[str, object]]:
    """Return sentences as lists of words, with the places of their entities."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        topic = draw.choice(list(tiny.TOPICS))
        words = tiny.sentence(topic, draw).split()
        place = next(number for number, word in enumerate(words) if word in tiny.TOPICS[topic])
        found.append({"tokenized_text": words, "ner": [[place, place, topic]]})
    return found


settings = {
    "learning_rate": 1e-3,
    "others_lr": 2e-3,
    "others_weight_decay": 0.02,
    "weight_decay": 0.01,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "max_steps": 12,
    "logging_steps": 4,
    "eval_strategy": "steps",
    "eval_steps": 4,
    "save_steps": 4,
    "warmup_ratio": 0.1,
    "lr_scheduler_type": "cosine",
    "dataloader_num_workers": 0,
    "use_cpu": True,
    "report_to": "none",
}
model = entity_model()
train, evaluation = sentences(40, seed=1), sentences(10, seed=2)

if variant == "train_model":
    settings["dataloader_num_workers"] = 1
    trainer = model.train_model(train, evaluation, output_dir=options.output_dir, **settings)
else:
    if variant == "focal":
        settings |= {"focal_loss_alpha": 0.75, "focal_loss_gamma": 2, "gradient_accumulation_steps": 2}
        settings |= {"masking": "none", "loss_reduction": "mean", "label_smoothing": 0.1}
    elif variant == "best":
        settings |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "save_total_limit": 2}
    elif variant == "workers":
        settings |= {"dataloader_num_workers": 2, "dataloader_persistent_workers": True, "others_lr": None}
    elif variant not in ("spans", "tokens"):
        parser.error(f"unknown variant {variant}")
    collator_class = UniEncoderTokenDataCollator if variant == "tokens" else UniEncoderSpanDataCollator
    trainer = Trainer(
        model=model,
        args=TrainingArguments(output_dir=options.output_dir, **settings),
        train_dataset=train,
        eval_dataset=evaluation,
        processing_class=model.data_processor.transformer_tokenizer,
        data_collator=collator_class(model.config, data_processor=model.data_processor, prepare_labels=True),
    )
    trainer.train()
trainer.evaluate()
folder = Path(trainer.args.output_dir, "final")
trainer.save_model(str(folder))

again = GLiNER.from_pretrained(str(folder), local_files_only=True)
labels, text = list(tiny.TOPICS), "the old cat is here"
for one, other in zip(again.model.state_dict().values(), trainer.model.model.state_dict().values(), strict=True):
    assert torch.equal(one, other)
trainer.model.eval()
assert again.predict_entities(text, labels) == trainer.model.predict_entities(text, labels)
