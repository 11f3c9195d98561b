"""Print the words of `afield.analysis.glossary` as a list in Markdown; glossary.md is written by it."""

from afield.analysis.glossary import ALL_WORDS

for word, meaning in ALL_WORDS.items():
    print(f"- **{word}**: {meaning}")
