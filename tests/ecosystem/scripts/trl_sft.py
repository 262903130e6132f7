"""Supervised fine-tuning with trl, as users write it."""

import tiny_chat
from datasets import Dataset
from peft import LoraConfig
from trl import BEMACallback, RichProgressCallback, SFTConfig, SFTTrainer

VARIANTS = {
    "plain": {},
    "text": {"dataset_text_field": "text"},
    "packing": {"packing": True, "max_length": 48},
    "packing_wrapped": {"packing": True, "packing_strategy": "wrapped", "max_length": 32},
    "completion": {"completion_only_loss": True},
    "assistant": {"assistant_only_loss": True},
    "lora": {"learning_rate": 1e-3},
    "padding_free": {"padding_free": True, "max_length": None},
    "iterable": {},
    "best": {
        "load_best_model_at_end": True,
        "save_strategy": "steps",
        "save_steps": 5,
        "metric_for_best_model": "loss",
    },
    "dict": {"eval_on_start": True},
    "bf16": {"bf16": True, "gradient_checkpointing": True},
    "nll": {"loss_type": "nll"},
    "dft": {"loss_type": "dft"},
    "neftune": {"neftune_noise_alpha": 5.0},
    "workers": {"dataloader_num_workers": 2},
    "resume": {"save_steps": 6, "save_strategy": "steps"},
    "resume_lora": {"save_steps": 6, "save_strategy": "steps"},
    "only_model": {"save_steps": 6, "save_strategy": "steps", "save_only_model": True},
    "group_by_length": {"train_sampling_strategy": "group_by_length"},
    "sequential": {"train_sampling_strategy": "sequential"},
    "epochs": {"max_steps": -1, "num_train_epochs": 2.5},
    "callable": {},
    "metrics": {"eval_on_start": True, "loss_type": "nll"},
    "batch_metrics": {"loss_type": "nll", "batch_eval_metrics": True, "eval_accumulation_steps": 2},
    "tokens_seen": {
        "include_num_input_tokens_seen": "non_padding",
        "optim": "adafactor",
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": '{"min_lr": 1e-4}',
    },
    "path": {"model_init_kwargs": {"dtype": "float32"}},
    "callbacks": {"disable_tqdm": True},
    "unpacked_evaluation": {"packing": True, "eval_packing": False, "max_length": 48},
    "columns": {"remove_unused_columns": False},
    "epoch_logs": {"logging_strategy": "epoch", "max_steps": -1, "num_train_epochs": 2, "eval_strategy": "epoch"},
    "defaults": {"bf16": None, "gradient_checkpointing": True, "save_strategy": "epoch"},
    "lora_defaults": {"bf16": None, "gradient_checkpointing": True, "learning_rate": 1e-3},
    "scaled": {"max_grad_norm": 0.1, "warmup_steps": 0.2, "weight_decay": 0.1, "average_tokens_across_devices": False},
}


def rows(variant, number, seed):
    pairs = tiny_chat.questions(number, seed)
    if variant in ("text", "packing_wrapped"):
        return Dataset.from_dict({"text": [f"{question} {answer}" for question, answer, _ in pairs]})
    if variant in ("completion", "lora"):
        return Dataset.from_dict(
            {
                "prompt": [[{"role": "user", "content": question}] for question, _, _ in pairs],
                "completion": [[{"role": "assistant", "content": answer}] for _, answer, _ in pairs],
            }
        )
    return Dataset.from_dict({"messages": [tiny_chat.conversation(question, answer) for question, answer, _ in pairs]})


def most_likely(logits, labels):
    return (logits[0] if isinstance(logits, tuple) else logits).argmax(-1)


def accuracy(prediction, compute_result=None):
    right = (prediction.predictions[..., :-1] == prediction.label_ids[..., 1:]) & (
        prediction.label_ids[..., 1:] != -100
    )
    return {"right": float(right.sum())}


def main():
    chosen = tiny_chat.options(VARIANTS)
    variant = chosen.variant

    settings = {
        **tiny_chat.SETTINGS,
        "max_steps": 12,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "eval_strategy": "steps",
        "eval_steps": 5,
        "max_length": 64,
        **VARIANTS[variant],
    }
    train, held_out = rows(variant, 72, 1), rows(variant, 14, 2)
    if variant == "iterable":
        train, held_out = train.to_iterable_dataset(), held_out.to_iterable_dataset()
    if variant == "dict":
        held_out = {"first": held_out, "second": rows(variant, 9, 3)}
    more = {}
    if "lora" in variant:
        more["peft_config"] = LoraConfig(
            r=4, lora_alpha=8, lora_dropout=0.1, target_modules="all-linear", task_type="CAUSAL_LM"
        )
    if "metrics" in variant:
        more["preprocess_logits_for_metrics"] = most_likely
        more["compute_metrics"] = accuracy
    if variant == "callbacks":
        more["callbacks"] = [RichProgressCallback(), BEMACallback(update_freq=2, update_after=2)]
    if variant == "callable":
        more["formatting_func"] = lambda row: f"{row['messages'][0]['content']} {row['messages'][1]['content']}"
    model = tiny_chat.causal_model()
    trainer = SFTTrainer(
        model=model.name_or_path if variant == "path" else model,
        args=SFTConfig(chosen.output_dir, **settings),
        train_dataset=train,
        eval_dataset=held_out,
        processing_class=tiny_chat.tokenizer(),
        **more,
    )
    trainer.train()
    if variant.startswith("resume"):
        trainer.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-6")
    trainer.remove_callback(RichProgressCallback)
    trainer.save_model()
    trainer.log_metrics("eval", trainer.evaluate())
    if "metrics" in variant:
        trainer.log_metrics("test", trainer.predict(trainer.eval_dataset).metrics)


if __name__ == "__main__":
    main()
