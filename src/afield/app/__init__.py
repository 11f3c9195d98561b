"""What a user calls: training, prediction, evaluation, the command line and the demo."""
