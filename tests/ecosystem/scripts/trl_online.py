"""Reinforcement learning with trl: GRPO and RLOO with reward functions of the user's, as users write it."""

import tiny_chat
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

TRAINERS = {"grpo": (GRPOTrainer, GRPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}

SAVES = {"save_strategy": "steps", "save_steps": 4}
VARIANTS = {
    "plain": {},
    "lora": {"beta": 0.1},
    "beta": {"beta": 0.1},
    "sync": {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 2},
    "several_rewards": {"reward_weights": [1.0, 0.5]},
    "reward_model": {},
    "iterations": {"num_iterations": 2, "gradient_accumulation_steps": 2},
    "steps_per_generation": {"steps_per_generation": 4, "gradient_accumulation_steps": 2},
    "off_policy": {"steps_per_generation": 8, "gradient_accumulation_steps": 2, "num_iterations": 2},
    "eval": {"eval_strategy": "steps", "eval_steps": 4, "num_generations_eval": 2, "eval_on_start": True},
    "iterable": {},
    "resume": SAVES,
    "bf16": {"bf16": True, "gradient_checkpointing": True},
    "completions": {"log_completions": True},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {"loss_type": "dapo", "mask_truncated_completions": True},
    "unshuffled": {"shuffle_dataset": False},
    "epochs": {"max_steps": -1, "num_train_epochs": 0.25},
    "best": {
        "eval_strategy": "steps",
        "eval_steps": 4,
        "load_best_model_at_end": True,
        "metric_for_best_model": "reward",
        **SAVES,
    },
}


def is_short(completions, completion_ids, thing, **kwargs):
    return [
        1.0 - len(ids) / 16 + (name in tiny_chat.text(each))
        for each, ids, name in zip(completions, completion_ids, thing, strict=True)
    ]


def rows(number, seed):
    columns = tiny_chat.preferences(number, seed)
    things = [answer[0]["content"].split()[1] for answer in columns["chosen"]]
    return Dataset.from_dict({"prompt": columns["prompt"], "thing": things})


def main():
    chosen = tiny_chat.options(VARIANTS, TRAINERS)
    variant = chosen.variant
    trainer_class, config_class = TRAINERS[chosen.trainer]

    settings = {
        **tiny_chat.SETTINGS,
        "max_steps": 10,
        "num_generations": 4,
        "max_completion_length": 8,
        **VARIANTS[variant],
    }
    more = {}
    if variant == "lora":
        more["peft_config"] = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    rewards = [tiny_chat.names_a_colour, is_short]
    if variant == "reward_model":
        rewards = [tiny_chat.reward_model(seed=4), tiny_chat.names_a_colour]
        more["reward_processing_classes"] = [tiny_chat.tokenizer(), None]
    elif variant != "several_rewards":
        rewards = tiny_chat.names_a_colour
    train, held_out = rows(40, 1), rows(8, 2)
    if variant == "iterable":
        train = train.to_iterable_dataset()
    trainer = trainer_class(
        model=tiny_chat.causal_model(dropout=0.0),
        args=config_class(chosen.output_dir, **settings),
        reward_funcs=rewards,
        train_dataset=train,
        eval_dataset=held_out,
        processing_class=tiny_chat.tokenizer(),
        **more,
    )
    trainer.train()
    if variant == "resume":
        trainer.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-4")
    trainer.save_model()
    trainer.log_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    main()
