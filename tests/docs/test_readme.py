"""U9: README's blocks name everything that they need."""

from __future__ import annotations

from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_u9_the_agents_block_names_its_package_and_key() -> None:
    section = README.split("## With your agent")[1].split("\n## ")[0]
    before = section.split("```python")[0]
    assert '"anthropic:' in section
    for needed in ("'.[langchain]'", "langchain-anthropic", "ANTHROPIC_API_KEY", "sandlot serve"):
        assert needed in before, needed
