"""What training is: plan, loop, schedules, triggers, order of samples, checkpoint policy. Plain Python, no framework."""
