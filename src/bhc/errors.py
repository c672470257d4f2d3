"""The one exception the library raises on purpose."""


class BhcError(Exception):
    """Something the caller can mend: what was given, what is allowed, and what to do.

    The first part of the text states the problem; ``hint`` says what to do about it.
    The command line prints both and exits with status 2.
    """

    def __init__(self, problem: str, *, hint: str = "") -> None:
        super().__init__(f"{problem}\n  hint: {hint}" if hint else problem)
        self.problem = problem
        self.hint = hint
