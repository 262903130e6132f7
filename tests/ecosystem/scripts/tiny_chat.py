"""A tiny causal language model and its chat tokenizer, made on the spot: no network, the same for every run."""

import argparse
import atexit
import random
import tempfile

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    set_seed,
)

COLOURS = ["red", "green", "blue", "yellow", "black", "white", "brown", "pink"]
THINGS = ["apple", "river", "house", "stone", "train", "cloud", "horse", "lamp", "book", "road"]
VERBS = ["sees", "likes", "paints", "moves", "wants", "finds"]
OTHERS = [
    "what",
    "is",
    "the",
    "a",
    "colour",
    "of",
    "it",
    "who",
    "not",
    "and",
    "very",
    "user",
    "assistant",
    "system",
    "?",
    ".",
]
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|> ' + message['role'] + ' ' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + ' <|im_end|> ' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + ' <|im_end|> ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|> assistant ' }}{% endif %}"
)

SETTINGS = {
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "bf16": False,
    "gradient_checkpointing": False,
    "use_cpu": True,
}
"""Arguments of the trainers of trl."""


def options(variants, trainers=()):
    """Return the options of a script: the output folder, the variant, and the trainer if there are several."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--variant", default="plain", choices=variants)
    if trainers:
        parser.add_argument("--trainer", required=True, choices=trainers)
    return parser.parse_args()


def tokenizer():
    words = SPECIAL + OTHERS + COLOURS + THINGS + VERBS
    built = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>"))
    built.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    built.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=built,
        unk_token="<unk>",
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        model_max_length=128,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def config(dropout=0.1, **settings):
    size = len(tokenizer())
    return LlamaConfig(
        vocab_size=size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        attention_dropout=dropout,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=5,
        **settings,
    )


def causal_model(dropout=0.1, seed=0):
    """Return a model that was loaded from a folder, from where trl loads references and tokenizers."""
    set_seed(seed)
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    LlamaForCausalLM(config(dropout)).save_pretrained(folder.name)
    tokenizer().save_pretrained(folder.name)
    return LlamaForCausalLM.from_pretrained(folder.name)


def reward_model(seed=0):
    set_seed(seed)
    return LlamaForSequenceClassification(config(num_labels=1))


def questions(number, seed=0):
    """Pairs of a question and its right answer, and a wrong answer."""
    draw = random.Random(seed)
    rows = []
    for _ in range(number):
        thing, colour, verb = draw.choice(THINGS), draw.choice(COLOURS), draw.choice(VERBS)
        other = draw.choice([name for name in COLOURS if name != colour])
        question = f"what colour is the {thing} ?" if draw.random() < 0.5 else f"who {verb} the {colour} {thing} ?"
        length = draw.randint(0, 4)
        answer = f"the {thing} is {colour}" + " and very" * length + f" {colour} ."
        wrong = (
            f"it is not {other} ." if draw.random() < 0.5 else f"a {other} {thing} {verb} the {draw.choice(THINGS)} ."
        )
        rows.append((question, answer, wrong))
    return rows


def conversation(question, answer):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def preferences(number, seed):
    """Return columns of questions, right answers and wrong answers, each a conversation of one message."""
    pairs = [
        (conversation(question, right), conversation(question, wrong))
        for question, right, wrong in questions(number, seed)
    ]
    return {
        "prompt": [right[:1] for right, _ in pairs],
        "chosen": [right[1:] for right, _ in pairs],
        "rejected": [wrong[1:] for _, wrong in pairs],
    }


def text(completion):
    return completion if isinstance(completion, str) else completion[0]["content"]


def names_a_colour(completions, **kwargs):
    """Reward each colour in a completion."""
    return [float(sum(word in COLOURS for word in text(each).split())) for each in completions]
