"""Starts two processes with a class of the script's own, as scripts for several devices do."""

import torch.multiprocessing as mp
from transformers import Trainer


class OwnTrainer(Trainer):
    pass


def work(rank, cls):
    import transformers

    print(
        cls is OwnTrainer, cls.__mro__[1].__module__.split(".")[0], transformers.Trainer is cls.__mro__[1], flush=True
    )


if __name__ == "__main__":
    mp.spawn(work, (OwnTrainer,), nprocs=2)
