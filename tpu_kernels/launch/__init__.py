"""Running a model from the command line."""
