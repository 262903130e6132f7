"""The texts in the help of the commands: descriptions, usages, examples and exit codes."""

TOP = """\
hexloop trains what a recipe describes: a YAML file that names a model, its data
and its metrics by import path, so that code of any project can be trained.

  hexloop init my_run                             write a recipe and a script to start from
  hexloop train recipe.yaml                       train
  hexloop train recipe.yaml --resume              resume after a stop or a crash
  hexloop evaluate recipe.yaml                    evaluate the checkpoint
  hexloop predict recipe.yaml --output out.npz    write its predictions
  hexloop search recipe.yaml                      try different values, and compare
  hexloop run script.py                           run a script written for transformers
  hexloop launch --processes 2 recipe.yaml        train in several processes
  hexloop checkpoints list runs/a                 list checkpoints and whether they are good
  hexloop runs list runs                          list runs, their progress and losses
  hexloop runs diff runs/a runs/b                 find the first step at which two runs differ
  hexloop why runs/a runs/b                       find why they differ: the first step, tensor and sample
  hexloop report runs/a                           write a page that shows a run
  hexloop board runs                              watch the runs of a folder in a browser
  hexloop outbox list runs/a                      list what has not reached the Hub and trackers
  hexloop doctor                                  show what this machine supports"""

EXIT_CODES = """\
exit codes:
  0    success
  1    the run failed; earlier checkpoints are intact
  2    the recipe, an argument or an option is invalid: nothing was trained
  3    stopped before the end (Ctrl-C, SIGTERM, a deadline) and saved: --resume resumes it
  130  interrupted immediately: by a second Ctrl-C, or before there was a run to save
  143  the same by a second SIGTERM; 128 + n by a second signal n
"""

USAGES = {
    "train": "hexloop train RECIPE [--check] [--resume [CHECKPOINT]] [--report] [--any_argument value ...]",
    "evaluate": "hexloop evaluate RECIPE [--checkpoint FOLDER] [--output FILE] [--any_argument value ...]",
    "predict": "hexloop predict RECIPE --output FILE [--checkpoint FOLDER] [--any_argument value ...]",
    "search": "hexloop search RECIPE [--trials N] [--parallel N] [--resume] [--check] [--any_argument value ...]",
    "run": "hexloop run [--check] [--reproduce transformers] SCRIPT.py|-m MODULE [argument ...]",
    "launch": "hexloop launch [--processes N | --tpu N] [--restarts K] [option ...] RECIPE-or-SCRIPT.py [argument ...]",
    "report": "hexloop report RUN [RUN ...] [--out FILE] [--quick]",
    "board": "hexloop board [FOLDER] [--port PORT] [--open] [--export FOLDER]",
}
"""The usages of commands that argparse does not show as they are."""

DESCRIPTIONS = {
    "init": """\
Write a recipe, a script that trains the same, and the code that both name, into a folder.
They train as they are: with data that they make, or with a few samples in data.jsonl.
Without --kind, questions are asked. Files that exist are never overwritten.""",
    "train": """\
Train what RECIPE describes, and write checkpoints to the argument output_dir.

A recipe is a YAML file. The keys model and train_dataset are required; optional are
eval_dataset, test_dataset, data_collator, processing_class, compute_metrics,
compute_loss_func, preprocess_logits_for_metrics, model_init, callbacks (a list),
trainer (a subclass of hexloop.Trainer) and arguments:

  model:
    call: my_project.MyModel             called with the other keys as arguments
    width: 64
  train_dataset:
    call: my_project.read_samples
    split: train
  compute_metrics: my_project.accuracy   the object itself
  arguments:
    output_dir: runs/first
    learning_rate: 1e-3

Among the arguments of a call, a mapping with `call` is called first, and
{object: PATH} is the object itself. Modules are also searched in the recipe's folder.
Everything that can be checked without running your code is checked first, and all
problems are reported together, with their lines.

The arguments below may be given after the recipe and override it. Ctrl-C or SIGTERM
saves a checkpoint and stops; a second one stops immediately. With --resume auto the
same command starts a run, resumes it, or reports that it is finished.""",
    "evaluate": """\
Evaluate a checkpoint on the recipe's eval_dataset. The metrics are written to a file
and printed as JSON; nothing else is written to standard output.

All training arguments may be given too; `hexloop train --help` lists them.""",
    "predict": """\
Write a checkpoint's predictions on the recipe's test_dataset, or on its eval_dataset
if there is none, to a file. The metrics are printed as JSON on standard output.

  .npz    arrays `predictions` and `label_ids` of shape (samples, ...); several
          outputs are predictions_0, predictions_1, ... or predictions_<name>.
          numpy.load reads it without unpickling anything.
  .jsonl  a line {"prediction": ..., "label": ...} per sample

All training arguments may be given too; `hexloop train --help` lists them.""",
    "search": """\
Train what RECIPE describes several times with different values, and compare the results.
Its section search says which values, by what they are compared, and how many trials:

  search:
    trials: 20
    objective: accuracy                  a metric of the evaluation (default: its loss)
    direction: maximize
    space:
      learning_rate: {low: 1e-4, high: 1e-1, log: true}
      per_device_train_batch_size: [16, 32, 64]
      model.width: {low: 8, high: 64, step: 8}     a key of the recipe

Trials run in processes of their own, which share the GPUs and cores of this machine.
Each trains in output_dir/run-<number>, where output.log has what it prints. A trial
that fails counts as failed, and the search goes on. Ctrl-C or SIGTERM saves and stops
the trials; with --resume the search continues.

All training arguments may be given too; `hexloop train --help` lists them.""",
    "run": """\
Run a Python script or module that was written for transformers' Trainer, unmodified:
hexloop's Trainer, arguments, callbacks and argument parser take the place of
transformers' for it and for every library that it imports. Its arguments, output and
exit code are those that it has with `python`.

With --check, it runs twice, once with each library, in new processes and with output
folders of their own; nothing is published or sent to trackers. Losses, learning
rates, gradient norms, metrics and final weights are compared to the last bit. A
program that writes anything outside of its output folder is refused.""",
    "checkpoints": "List, verify, sign, compare, prune and convert checkpoints outside a run.",
    "checkpoints list": """\
List the checkpoints in a folder, and related folders: quarantined and unfinished ones,
and those that have the name of a checkpoint but are not one. Every byte of each
checkpoint is read. Nothing is changed.

Exit code: 0 if no checkpoint is bad, 1 if one is.""",
    "checkpoints verify": """\
Read every byte of each checkpoint and compare it with the manifest. A folder stands
for all checkpoints in it. Nothing is changed. With --key, one that is not signed by the
key is not good.

Exit code: 0 if all are good, 1 if one is not.""",
    "checkpoints sign": """\
Verify each checkpoint by its digests and sign it, whatever its signature was: one of a
run without a key, or an imported one. Sign only what you trust. A folder stands for all
checkpoints in it; no run may write there at the same time.

Exit code: 0 if all are signed, 1 if one is not good.""",
    "checkpoints show": """\
Show which run wrote a checkpoint, at which step, the state of that run, and the files
with their sizes and digests. Of a folder of checkpoints, the newest one is shown. Nothing is
verified: `hexloop checkpoints verify` does that.""",
    "checkpoints diff": """\
Compare two checkpoints: weights, optimizer, other tensors, then every field of the JSON
documents. Both are verified first. Of tensors that differ, one at a time is in memory.

Values that only identify a run are not compared: the names of runs and sessions, time
and memory readings, and the two files that are never read back. --strict compares them too.

Exit code: 0 if they are equal, 1 if they differ, 2 if one of them cannot be compared.""",
    "checkpoints prune": """\
Remove checkpoints of one run: of those that led to its newest one, all but the last N.
The newest is verified first; if it is not good, nothing is removed. Checkpoints of other
runs, of a branch that the run has abandoned, and those that contain a file named
"protected" are never removed. There is no confirmation; what was removed is printed.

--replaced removes the checkpoints that `hexloop checkpoints list` shows as set aside because
a later run in the same folder has saved others of their names; with --run, those of one run.

Do not use --leftovers while the run is training: a save in progress is unfinished too,
and would fail.""",
    "checkpoints consolidate": """\
Write a folder with the model alone: its weights as one model.safetensors, however many
processes saved them, and its configuration and tokenizer if the checkpoint has them.
One tensor at a time is in memory; neither torch nor the engine that trained needs to be
installed. The folder appears when it is complete; the checkpoint is not changed.""",
    "checkpoints import": """\
Convert a checkpoint of transformers' Trainer (version 4 or 5) to a checkpoint of hexloop
in OUTPUT_DIR, from which `hexloop train --resume` resumes.

Only tensors, numbers and strings are read: files that would run code when they are
loaded are refused. training_args.bin is never read: pass the run's arguments again.""",
    "checkpoints export": """\
Write a checkpoint as checkpoint-<step> in OUTPUT_DIR, in the format of transformers'
Trainer, which accepts the folder as resume_from_checkpoint. This is the only place
where hexloop writes pickled files, as transformers requires them.""",
    "checkpoints merge": """\
Merge the adapters of PEFT in a checkpoint into their base, and write the whole model to a
folder, with the tokenizer if the checkpoint has it. from_pretrained loads it without PEFT.

The base is loaded from where the run had it, or from --base: a folder, or a name on the
Hub. It must have the weights that the adapters were trained on, unless it was quantized
then: give the weights before quantization.""",
    "launch": """\
Run a recipe or a Python script in several processes that train together, on one
machine or several. A recipe runs as with `hexloop train`, a file that ends in .py as
with `python`; arguments after its name are passed to it. Each process reads its rank
from the environment variables that torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR, ...).

With --tpu N, each process has one TPU device. A script that has a function _mp_fn(index),
as those for transformers' xla_spawn do, is imported, and the function is called with the
rank; --tpu_num_cores N follows the script's arguments.

When a process dies, all are stopped, and with --restarts they are started again: a
recipe resumes from its newest checkpoint. Options must precede the recipe.""",
    "runs": "Read the journals that runs keep in their output folders.",
    "runs list": """\
List the runs below a folder, as the board does: the state of each, steps and time left,
the loss that it logged last, when it reported last, and its tags. Nothing is changed.

A run is running, paused, finished, stopped, failed, lost (it did not report its end, and
has not reported for 10 minutes) or unknown (it has no journal).""",
    "runs show": """\
Show what is known about a run from its files: state, progress, logged values, checkpoints,
the machine and the code, and the arguments that differ from the defaults. Nothing is
verified: `hexloop checkpoints verify` does that.""",
    "runs diff": """\
Find the step at which two runs diverge, and what diverges first: the data, the random
generators, the learning rate, the loss, the gradients, the weights or the metrics.
Everything that both journals contain is compared: logs and saves, and with
journal='steps' every step.

Exit code: 0 if the runs are equal in everything that was compared, 1 if they diverge.""",
    "outbox": """\
What a run publishes on the Hub or logs to trackers is kept in the outbox of its output
folder until it has arrived. Show what is left there, and finish it or drop it. Tokens are
those of the environment (such as HF_TOKEN) or of the logins of this machine.

Exit code: 0 if nothing is left, 1 otherwise.""",
    "report": """\
Write one HTML page that shows runs, several on the same charts: what was logged over
the steps, the checkpoints and whether they are good, what each save cost, restarts and
preemptions, the arguments that differ, results, and how to reproduce and resume.

The page holds everything that it shows and loads nothing. It is made from the files in
the runs' folders: the journal, the log of report_to=json_lines, and the checkpoints.
Every byte of each checkpoint is read, unless --quick is given.""",
    "board": """\
Show the runs below a folder in a browser, while they train: a list of all, and the
curves, checkpoints, restarts and arguments of one run or several. Pages keep themselves
up to date. Only the runs of the folder are read; of them, commands, tags and notes that
you give are written to the folder of their run.

The address has a token that is new with each start, and can be reached from this machine
only. From another one, forward the port: ssh -L 8377:127.0.0.1:8377 HOST. Checkpoints
are listed but not verified: `hexloop checkpoints verify` does that.

With --export, the pages are written to a folder, as files that open without a server and
can be put on any web server. They show arguments, so look at them before you share them.
Hidden runs are left out.""",
    "doctor": """\
Report what this machine has: devices and the precisions that each supports, the names
that can be chosen for trackers, optimizers, searches and object stores, the adapters of
installed packages, and versions; and what to install for anything missing. Exit code: 1
if something that hexloop needs is missing.""",
    "completion": """\
Print the script by which a shell completes commands, options and their values. Load it in
the configuration of the shell:

  bash   eval "$(hexloop completion bash)"        in ~/.bashrc
  zsh    eval "$(hexloop completion zsh)"         in ~/.zshrc
  fish   hexloop completion fish | source         in ~/.config/fish/config.fish""",
}
"""The descriptions of commands; that of another one is its help as a sentence."""

EPILOGS = {
    "init": """\
examples:
  hexloop init my_run
  hexloop init my_run --kind text --model distilbert/distilbert-base-uncased --data reviews.jsonl
  hexloop init my_run --kind chat --lora
""",
    "train": """\
examples:
  hexloop train recipe.yaml
  hexloop train recipe.yaml --learning_rate 1e-4 --max_steps 200 --output_dir runs/short
  hexloop train recipe.yaml --bf16 --report_to json_lines tensorboard
  hexloop train recipe.yaml --resume
  hexloop train recipe.yaml --resume auto
  hexloop train recipe.yaml --resume runs/first/checkpoint-500

"""
    + EXIT_CODES,
    "search": """\
examples:
  hexloop search recipe.yaml --check
  hexloop search recipe.yaml --trials 50 --parallel 2
  hexloop search recipe.yaml --resume
  hexloop train recipe.yaml --trial runs/search --output_dir runs/best

"""
    + EXIT_CODES,
    "evaluate": EXIT_CODES,
    "predict": EXIT_CODES,
    "run": """\
examples:
  hexloop run run_glue.py --task_name mrpc --output_dir out
  hexloop run -m my_project.train --output_dir out
  torchrun --nproc-per-node 2 -m hexloop run run_glue.py --output_dir out
  hexloop launch --processes 2 run run_glue.py --output_dir out
  hexloop run --check run_glue.py --max_steps 40 --output_dir out

exit codes:
  those of the program; 2 also if there is no such program.
  With --check: 0 if both libraries agree, 1 if they differ or the program fails,
  2 if they cannot be compared
""",
    "launch": """\
examples:
  hexloop launch --processes 2 recipe.yaml --max_steps 100
  hexloop launch --processes 2 --restarts 3 --log-folder logs recipe.yaml --resume auto
  hexloop launch --processes 8 --nodes 2 --node-rank 0 --rendezvous node0:29400 train.py
  hexloop launch --tpu 8 run_glue.py --task_name mrpc --output_dir out

exit codes:
  0    every process exited with 0
  2    an option is invalid: nothing was started
  n    that of the process that failed first; 128 + n if signal n killed it.
       A process that exits with 2 (invalid configuration) or 3 (stopped and saved)
       is not restarted
""",
    "report": """\
examples:
  hexloop report runs/digits
  hexloop report runs/a runs/b --out comparison.html
  hexloop report runs/shared@3f2a --quick
""",
}
"""Examples and exit codes, after the options."""
