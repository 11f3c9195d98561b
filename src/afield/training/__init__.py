"""The loop and what it keeps: schedules, evaluation, checkpoints, a run's folder. It knows no method by name."""
