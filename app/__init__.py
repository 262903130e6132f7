"""What people call: Trainer, TrainingArguments, the command line, and the one place that picks adapters."""
