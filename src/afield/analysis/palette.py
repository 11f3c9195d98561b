"""Colours that people with any colour vision can tell apart (Okabe and Ito's), and how maps and numbers are written."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C", "#7A4FBF")
SYMBOLS = ("circle", "square", "diamond", "x", "triangle-up", "cross")
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("o", "s", "D", "X", "^", "P")
HATCHES = ("", "////", "....")
LINES = ("-", "--", ":", "-.")


def colour(number: int) -> str:
    """The colour of the number-th thing; beyond the last they begin anew, with another symbol or dash."""
    return COLOURS[number % len(COLOURS)]


def of_round(number: int, kinds: tuple[str, ...]) -> str:
    """The symbol or dash that tells apart what has the same colour."""
    return kinds[number // len(COLOURS) % len(kinds)]


def short(count: float) -> str:
    """A large number in three digits.

    >>> short(11_573_000), short(845), short(12_400)
    ('11.6 M', '845', '12.4 k')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g}"
