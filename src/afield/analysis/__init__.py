"""What a model learned, in numbers, and how they are drawn: a page to look at, and figures for a paper."""
