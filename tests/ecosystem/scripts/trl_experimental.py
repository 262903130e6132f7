"""The experimental trainers of trl and its distillation, as users write it."""

import argparse
import importlib

import tiny_chat
from datasets import Dataset
from trl import DistillationConfig, DistillationTrainer

COMMON = {
    **tiny_chat.SETTINGS,
    "max_steps": 6,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "save_strategy": "steps",
    "save_steps": 3,
}
ONLINE = {"num_generations": 4, "max_completion_length": 8}
SHORT = {"max_length": 64}
PAIRWISE = {"max_new_tokens": 8, "eval_strategy": "no", **SHORT}
SETTINGS = {
    "a2po": {"max_completion_length": 8, "num_value_samples": 2},
    "bco": {**SHORT},
    "cpo": {**SHORT, "generate_during_eval": False},
    "distillation": {"max_completion_length": 8},
    "gkd": {**SHORT, "max_new_tokens": 8, "lmbda": 0.5},
    "gmpo": ONLINE,
    "gspo_token": ONLINE,
    "iw_opd": {"max_completion_length": 8, "max_length": 64},
    "minillm": {**ONLINE},
    "nash_md": PAIRWISE,
    "online_dpo": PAIRWISE,
    "orpo": {**SHORT, "generate_during_eval": False},
    "ppo": {},
    "prm": {**SHORT},
    "sdft": {**ONLINE, "distillation_topk": 8},
    "sdpo": {**ONLINE},
    "ssd": {"max_completion_length": 8},
    "tpo": {**SHORT},
    "xpo": PAIRWISE,
}
NAMES = {
    "a2po": "A2PO",
    "bco": "BCO",
    "cpo": "CPO",
    "gkd": "GKD",
    "gmpo": "GMPO",
    "gspo_token": "GRPO",
    "iw_opd": "IWOPD",
    "minillm": "MiniLLM",
    "nash_md": "NashMD",
    "online_dpo": "OnlineDPO",
    "orpo": "ORPO",
    "ppo": "PPO",
    "prm": "PRM",
    "sdft": "SDFT",
    "sdpo": "SDPO",
    "ssd": "SSD",
    "tpo": "TPO",
    "xpo": "XPO",
}
TEACHERS = ("distillation", "gkd", "iw_opd", "minillm")
REWARDED = ("gmpo", "gspo_token", "sdpo", "a2po")
JUDGED = ("nash_md", "online_dpo", "xpo")


def rows(name, number, seed):
    pairs = tiny_chat.questions(number, seed)
    columns = tiny_chat.preferences(number, seed)
    user, right = columns["prompt"], columns["chosen"]
    if name == "bco":
        return Dataset.from_dict(
            {"prompt": user, "completion": right, "label": [place % 3 != 0 for place in range(number)]}
        )
    if name in ("cpo", "orpo"):
        return Dataset.from_dict(columns)
    if name == "tpo":
        reference = [[{"role": "assistant", "content": "the " + each[0]["content"]}] for each in right]
        return Dataset.from_dict({**columns, "reference": reference})
    if name == "prm":
        return Dataset.from_dict(
            {
                "prompt": [question for question, _, _ in pairs],
                "completions": [answer.split(" and ") for _, answer, _ in pairs],
                "labels": [[place % 2 == 0 for place, _ in enumerate(answer.split(" and "))] for _, answer, _ in pairs],
            }
        )
    if name in ("gkd", "iw_opd"):
        return Dataset.from_dict({"messages": [u + r for u, r in zip(user, right, strict=True)]})
    if name == "ppo":
        encode = tiny_chat.tokenizer()
        encode.padding_side = "left"
        ids = encode([question for question, _, _ in pairs], padding="max_length", max_length=10)["input_ids"]
        return Dataset.from_dict({"input_ids": ids})
    if name in ("sdft", "sdpo"):
        return Dataset.from_dict({"prompt": user, "privileged_context": [answer for _, answer, _ in pairs]})
    return Dataset.from_dict({"prompt": user})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--trainer", required=True, choices=SETTINGS)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--resume", action="store_true")
    chosen = parser.parse_args()
    name = chosen.trainer
    if name == "distillation":
        trainer_class, config_class = DistillationTrainer, DistillationConfig
    else:
        module = importlib.import_module(f"trl.experimental.{name}")
        trainer_class = getattr(module, f"{NAMES[name]}Trainer")
        configs = {"gspo_token": "trl", "ppo": "trl.experimental.ppo"}
        config_class = getattr(
            importlib.import_module(configs.get(name, f"trl.experimental.{name}")), f"{NAMES[name]}Config"
        )
    settings = {**COMMON, "bf16": chosen.bf16, **SETTINGS[name]}
    if name == "ppo":
        settings = {
            **{key: settings[key] for key in ("per_device_train_batch_size", "learning_rate", "report_to", "use_cpu")},
            "bf16": False,
            "total_episodes": 24,
            "num_ppo_epochs": 2,
            "num_mini_batches": 1,
            "response_length": 6,
            "num_sample_generations": 0,
            "logging_steps": 1,
        }
    more = {}
    if name in TEACHERS:
        more["teacher_model"] = tiny_chat.causal_model(seed=5)
    if name in REWARDED:
        more["reward_funcs"] = tiny_chat.names_a_colour
    if name in JUDGED:
        more["reward_funcs"] = tiny_chat.reward_model(seed=6)
        more["ref_model"] = tiny_chat.causal_model(seed=0)
        if name != "nash_md":
            more["reward_processing_classes"] = tiny_chat.tokenizer()
    model = tiny_chat.causal_model()
    if name == "bco":
        more["ref_model"] = tiny_chat.causal_model(seed=5)
    if name == "prm":
        from transformers import LlamaForTokenClassification, set_seed

        set_seed(0)
        model = LlamaForTokenClassification(tiny_chat.config(num_labels=2))
    if name == "ppo":
        more["ref_model"] = tiny_chat.causal_model()
        more["reward_model"] = tiny_chat.reward_model(seed=6)
        more["value_model"] = tiny_chat.reward_model(seed=7)
    trainer = trainer_class(
        model=model,
        args=config_class(chosen.output_dir, **settings),
        train_dataset=rows(name, 40, 1),
        eval_dataset=rows(name, 8, 2),
        processing_class=tiny_chat.tokenizer(),
        **more,
    )
    trainer.train()
    if chosen.resume:
        trainer.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-3")
    trainer.save_model()
    if name not in ("ppo", *JUDGED):
        trainer.log_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    main()
