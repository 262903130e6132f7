"""Training on preferences with trl: DPO, rewards and KTO, as users write it."""

import tiny_chat
from datasets import Dataset
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer

TRAINERS = {
    "dpo": (DPOTrainer, DPOConfig),
    "reward": (RewardTrainer, RewardConfig),
    "kto": (KTOTrainer, KTOConfig),
}

SAVES = {"save_strategy": "steps", "save_steps": 6}
VARIANTS = {
    "plain": {},
    "lora": {},
    "reference": {},
    "sync": {"sync_ref_model": True, "ref_model_sync_steps": 3, "ref_model_mixup_alpha": 0.5},
    "precomputed": {"precompute_ref_log_probs": True},
    "losses": {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]},
    "ipo": {"loss_type": "ipo"},
    "padding_free": {"padding_free": True},
    "best": {"load_best_model_at_end": True, "metric_for_best_model": "loss", **SAVES},
    "dict": {"eval_on_start": True},
    "iterable": {},
    "bf16": {"bf16": True, "gradient_checkpointing": True},
    "resume": SAVES,
    "resume_lora": SAVES,
    "epochs": {"max_steps": -1, "num_train_epochs": 1.5},
    "centered": {"center_rewards_coefficient": 0.1},
    "apo": {"loss_type": "apo_zero_unpaired"},
}


def rows(trainer, number, seed):
    columns = tiny_chat.preferences(number, seed)
    if trainer == "kto":
        labels = [place % 3 != 0 for place in range(number)]
        answers = [columns["chosen" if label else "rejected"][place] for place, label in enumerate(labels)]
        columns = {"prompt": columns["prompt"], "completion": answers, "label": labels}
    return Dataset.from_dict(columns)


def main():
    chosen = tiny_chat.options(VARIANTS, TRAINERS)
    variant = chosen.variant
    trainer_class, config_class = TRAINERS[chosen.trainer]

    settings = {
        **tiny_chat.SETTINGS,
        "max_steps": 12,
        "gradient_accumulation_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 6,
        "max_length": 64,
        **VARIANTS[variant],
    }
    more = {}
    if "lora" in variant:
        task = "SEQ_CLS" if chosen.trainer == "reward" else "CAUSAL_LM"
        more["peft_config"] = LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type=task)
    if variant in ("reference", "sync"):
        more["ref_model"] = tiny_chat.causal_model(seed=3)
    model = tiny_chat.reward_model() if chosen.trainer == "reward" else tiny_chat.causal_model()
    train, held_out = rows(chosen.trainer, 72, 1), rows(chosen.trainer, 14, 2)
    if variant == "iterable":
        train, held_out = train.to_iterable_dataset(), held_out.to_iterable_dataset()
    if variant == "dict":
        held_out = {"first": held_out, "second": rows(chosen.trainer, 9, 3)}
    trainer = trainer_class(
        model=model,
        args=config_class(chosen.output_dir, **settings),
        train_dataset=train,
        eval_dataset=held_out,
        processing_class=tiny_chat.tokenizer(),
        **more,
    )
    trainer.train()
    if variant.startswith("resume"):
        trainer.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-6")
    trainer.save_model()
    trainer.log_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    main()
