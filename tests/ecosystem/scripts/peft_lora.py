"""Adapters of peft with transformers' own Trainer, as users write it: training, saving, resuming, loading the best."""

import tiny_chat
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments, set_seed

SAVES = {"save_strategy": "steps", "save_steps": 5}
VARIANTS = {
    "plain": {},
    "dora": {},
    "modules_to_save": {},
    "prompt": {},
    "several": SAVES,
    "resume": SAVES,
    "best": {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", **SAVES},
    "checkpointing": {"gradient_checkpointing": True},
    "frozen_groups": {"weight_decay": 0.1, "optim": "adafactor"},
}


def adapter(variant):
    if variant == "prompt":
        return PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    saved = ["lm_head"] if variant == "modules_to_save" else None
    return LoraConfig(
        r=4,
        lora_alpha=8,
        lora_dropout=0.1,
        target_modules=["q_proj", "v_proj"],
        modules_to_save=saved,
        use_dora=variant == "dora",
        task_type="CAUSAL_LM",
    )


def main():
    chosen = tiny_chat.options(VARIANTS)
    variant = chosen.variant

    tokenizer = tiny_chat.tokenizer()
    texts = [f"{question} {answer}" for question, answer, _ in tiny_chat.questions(60, 1)]
    rows = [tokenizer(text, return_token_type_ids=False) for text in texts]
    base = tiny_chat.causal_model()
    set_seed(7)
    model = get_peft_model(base, adapter(variant))
    if variant == "several":
        model.add_adapter("second", adapter(variant))
        model.set_adapter("second")
    arguments = TrainingArguments(
        chosen.output_dir,
        max_steps=15,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=5,
        report_to="none",
        use_cpu=True,
        **{"save_strategy": "no", **VARIANTS[variant]},
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=rows[:48],
        eval_dataset=rows[48:],
        processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train()
    if variant in ("resume", "several"):
        trainer.train(resume_from_checkpoint=f"{arguments.output_dir}/checkpoint-10")
    trainer.save_model()
    before = trainer.evaluate()

    # What was saved is the adapter alone; a new base model and the saved adapter give the same loss.
    saved = arguments.output_dir + ("/second" if variant == "several" else "")
    loaded = PeftModel.from_pretrained(tiny_chat.causal_model(), saved)
    again = Trainer(
        model=loaded,
        args=arguments,
        eval_dataset=rows[48:],
        processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    after = again.evaluate()
    assert abs(before["eval_loss"] - after["eval_loss"]) < 1e-6, (before, after)


if __name__ == "__main__":
    main()
