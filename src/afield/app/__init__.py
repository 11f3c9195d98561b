"""A person's face of the library: the command line, the demo, evaluation and prediction."""
