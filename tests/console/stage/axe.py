"""What axe finds wrong with a page, and whether it fits."""

from __future__ import annotations

from typing import Any

from tests.console.stage.sights import in_each_form

WIDE_WITHIN_MS = 5_000
# Dark differs from light in these alone.
OF_COLOURS = ("color-contrast", "link-in-text-block")
_RUN = """rules => axe.run(document, {
    resultTypes: ['violations'], ...(rules ? { runOnly: { type: 'rule', values: rules } } : {})
})"""
_FITS = "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"


async def found_in_each_form(page: Any, axe: str, name: str) -> dict[str, list[str]]:
    """By page and form. Empty if there is nothing."""
    # Playwright evaluates past the page's policy, which would refuse a script of ours too.
    await page.evaluate(axe)
    problems = {}
    async for form in in_each_form(page):
        # Charts take their new width in one of the next frames.
        await page.wait_for_function(_FITS, timeout=WIDE_WITHIN_MS)
        found = await page.evaluate(_RUN, list(OF_COLOURS) if form.endswith("dark") else None)
        said = [
            f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:200]}"
            for one in found["violations"]
            for node in one["nodes"][:3]
        ]
        if said:
            problems[f"{name} {form}"] = said
    return problems
