"""What training is: plan, loop, schedules, triggers, order of samples, checkpoints. Plain Python, no framework."""
