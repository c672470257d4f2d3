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


class NotRegisteredError(BhcError):
    """A layer, format or context of the user's own that is asked for, or that a file holds, and that is not known here.

    The hint says what to import. A file with one is whole: it must not be called damaged.
    """

    def __init__(self, problem: str, register: str, *, instead: str = "") -> None:
        how = f"import the file that calls bhc.{register} for it first, on the command line: bhc --import FILE"
        super().__init__(problem, hint=f"{instead}; for one of your own {how}" if instead else how)
