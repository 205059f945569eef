"""What the README shows is what runs."""

from __future__ import annotations

from pathlib import Path


def test_readme_shows_the_example() -> None:
    """The README's block does what the example does, which is run by test_figures.py."""
    root = Path(__file__).parents[2]
    example = (root / "examples" / "first_sandbox.py").read_text()
    block = (root / "README.md").read_text().split("```python\n")[1].split("```")[0]
    calls = [
        line.strip().removeprefix("print((").split(")).stdout")[0]
        for line in example.splitlines()
        if "await sandbox" in line
    ]
    assert len(calls) == 5
    for call in calls:
        assert call in block, call
