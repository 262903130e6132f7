"""What `--help` says besides the options."""

from __future__ import annotations

TOP = """\
hexloop trains what a recipe describes: a YAML file that names a model, its data
and its metrics by import path, so that any project's own code can be trained.

  hexloop train recipe.yaml                       train
  hexloop train recipe.yaml --resume              go on after a stop or a crash
  hexloop evaluate recipe.yaml                    measure the checkpoint
  hexloop predict recipe.yaml --output out.npz    write its predictions
  hexloop launch --processes 2 recipe.yaml        train in several processes
  hexloop checkpoints list runs/a                 see which checkpoints are good
  hexloop runs diff runs/a runs/b                 see at which step two runs part
  hexloop doctor                                  see what this machine can do"""

EXIT_CODES = """\
exit codes:
  0    done
  1    the run failed; what was saved before is intact
  2    the recipe, an argument or an option is wrong: nothing was trained
  3    stopped before the end (Ctrl-C, SIGTERM, a deadline), and saved: --resume goes on
  130  interrupted at once: by a second Ctrl-C, or before there was a run to save
  143  the same by a second SIGTERM; 128 + n by the second coming of signal n
"""

TRAIN = """\
Trains what RECIPE describes, and writes checkpoints to the argument output_dir.

A recipe is a YAML file. The keys model and train_dataset are needed; there may be
eval_dataset, test_dataset, data_collator, processing_class, compute_metrics,
compute_loss_func, preprocess_logits_for_metrics, model_init, callbacks (a list),
trainer (a subclass of hexloop.Trainer) and arguments:

  model:
    call: my_project.MyModel             called with the keys beside it
    width: 64
  train_dataset:
    call: my_project.read_samples
    split: train
  compute_metrics: my_project.accuracy   the object itself
  arguments:
    output_dir: runs/first
    learning_rate: 1e-3

Among what is called, a mapping with `call` is called first, and {object: PATH} is
the object itself. The recipe's folder is searched for modules. Everything that can
be told to be wrong without running your code is told at once, with its line.

Any argument below may be given after the recipe, and counts instead of the recipe's.
Ctrl-C or SIGTERM saves a checkpoint and stops; a second one stops at once. With
--resume auto the same line starts a run, goes on with it, or finds it finished."""

TRAIN_EXAMPLES = """\
examples:
  hexloop train recipe.yaml
  hexloop train recipe.yaml --learning_rate 1e-4 --max_steps 200 --output_dir runs/short
  hexloop train recipe.yaml --bf16 --report_to json_lines tensorboard
  hexloop train recipe.yaml --resume
  hexloop train recipe.yaml --resume auto
  hexloop train recipe.yaml --resume runs/first/checkpoint-500

"""

EVALUATE = """\
Measures a checkpoint on the recipe's eval_dataset. The metrics are printed on
standard output as JSON, and nothing else is, and written to a file.

Any argument of a run may be given too; `hexloop train --help` lists them."""

PREDICT = """\
Writes a checkpoint's predictions on the recipe's test_dataset, or where it has none
on its eval_dataset, to a file. The metrics are printed on standard output as JSON.

  .npz    arrays `predictions` and `label_ids` of shape (samples, ...); several
          outputs are predictions_0, predictions_1, ... or predictions_<name>.
          numpy.load reads it without unpickling anything.
  .jsonl  a line {"prediction": ..., "label": ...} for each sample

Any argument of a run may be given too; `hexloop train --help` lists them."""

DOCTOR = """\
Says what this machine has: devices and the number formats of each, adapters of each
port with those that installed packages bring, versions; and for what is missing,
what to install. Exits with 1 where something that hexloop cannot do without is missing."""

ARGUMENTS_USAGE = {
    "train": "[--resume [CHECKPOINT]] [--any_argument value ...]",
    "evaluate": "[--checkpoint FOLDER] [--output FILE] [--any_argument value ...]",
    "predict": "--output FILE [--checkpoint FOLDER] [--any_argument value ...]",
}
