"""The error that a user can mend: run.py prints its text as one line and exits with 2."""


class ExperimentError(Exception):
    pass
