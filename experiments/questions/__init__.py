"""Questions beyond the paper's tables: each trains what it needs and answers with one result file."""
