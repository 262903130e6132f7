"""Starts two processes with a class of the script's own, as scripts for several devices do."""

# A user's script, without types.
# mypy: ignore-errors

import torch.multiprocessing as mp
from transformers import Trainer


class OwnTrainer(Trainer):
    pass


def work(rank, cls):
    import transformers

    base = cls.__mro__[1]
    line = f"{cls is OwnTrainer} {base.__module__.split('.')[0]} {transformers.Trainer is base}\n"
    print(line, end="", flush=True)  # in one piece: both processes print


if __name__ == "__main__":
    mp.spawn(work, (OwnTrainer,), nprocs=2)
