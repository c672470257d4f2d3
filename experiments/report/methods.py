"""The methods by the names of their configurations, in the order of the tables."""

TITLES = {
    "sparsevd": "SparseVD",
    "bc-gnj": "BC-GNJ",
    "bc-ghs": "BC-GHS",
    "bc-io-gnj": "BC-IO-GNJ",
    "bhc-cx-domain": "BHC c_x, domain",
    "bhc-cx-mixed": "BHC c_x, mixed",
    "bhc-cy": "BHC c_y",
    "bhc-cw": "BHC c_w",
    "per-context": "per context",
}
METHODS = tuple(TITLES)
TABLE_METHODS = METHODS[:7]  # those with a row in the paper's tables
CONDITIONAL = METHODS[4:]  # those with more than one context
PAPER_ROWS = {"bhc-cx-domain": "bhc-cx", "bhc-cx-mixed": "bhc-cx"}  # ours -> the paper's name
