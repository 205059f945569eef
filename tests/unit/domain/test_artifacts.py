"""Artifacts: which patterns may be kept, what they find, pages of them, and which ones retention deletes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.artifacts.artifact import MAX_FILES, Artifact, ArtifactPage, media_type_of, surplus
from sandlot.domain.artifacts.finding import find_files
from sandlot.domain.artifacts.listing import artifact_page, merged
from sandlot.domain.artifacts.patterns import check_pattern, check_patterns, path_inside, split_pattern
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.ids import artifact_tag, new_artifact_id
from sandlot.domain.paging import place_of
from sandlot.testing.fake.files import FakeFiles
from sandlot.testing.fake.tree import Tree

# Few names, so that patterns and paths meet.
PARTS = st.sampled_from(["a", "b", "*", "**", "?", "..", ".", "", "workspace", "a*", "\\a", "[ab]"])
PATTERNS = st.builds(
    lambda root, parts: root + "/".join(parts),
    st.sampled_from(["", "/", "/workspace/", "/workspacex/"]),
    st.lists(PARTS, min_size=1, max_size=5),
)


@given(PATTERNS | st.text(max_size=40))
def test_a_checked_pattern_stays_inside_and_is_checked_again_as_itself(pattern: str) -> None:
    try:
        checked = check_pattern(pattern)
    except InvalidRequest:
        return
    parts = checked.split("/")
    assert not {"", ".", ".."} & set(parts)
    assert check_pattern(checked) == checked == check_pattern("/workspace/" + checked)
    folders, glob = split_pattern(checked)
    assert "/".join([*folders, *([] if glob is None else [glob])]) == checked
    assert not any(set(folder) & set("*?[\\") for folder in folders)


@pytest.mark.parametrize(
    ("pattern", "checked"),
    [
        ("out/*.png", "out/*.png"),
        ("/workspace/out", "out"),
        ("out/", "out"),
        ("./a//b/.", "a/b"),
        (".", "**"),
        ("/workspace", "**"),
        ("workspace/a", "workspace/a"),
    ],
)
def test_patterns_become_relative(pattern: str, checked: str) -> None:
    assert check_pattern(pattern) == checked


@pytest.mark.parametrize("pattern", ["", "/", "/etc/passwd", "/workspacex", "..", "a/../b", "a\0b", "\ud800"])
def test_patterns_outside_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest):
        check_pattern(pattern)


def test_a_text_is_no_list_of_patterns() -> None:
    with pytest.raises(InvalidRequest, match="Pass a list"):
        check_patterns("out")
    assert check_patterns(["a", "./a", "b"]) == ("a", "b")


@given(st.text(max_size=30))
def test_paths_of_a_sandbox_are_used_only_below_the_workspace(path: str) -> None:
    inside = path_inside("/workspace/" + path)
    assert inside is None or (inside == path and not {"", ".", ".."} & set(path.split("/")))
    assert path_inside("/" + path) is None or path.startswith("workspace/")


def tree_of(*paths: str) -> Tree:
    tree = Tree()
    for path in paths:
        tree.write(f"/workspace/{path}", b"x", mode=None, parents=True, exclusive=False)
    return tree


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("out/*.png", ["out/a.png"]),
        ("**/*.png", ["out/a.png", "out/deep/b.png"]),
        ("out", ["out/a.png", "out/deep/b.png", "out/notes"]),
        ("out/deep/b.png", ["out/deep/b.png"]),
        ("**", ["out/a.png", "out/deep/b.png", "out/notes", "top"]),
        ("*", ["top"]),
        ("out/notes/*", []),
        ("out/notes/x", []),
        ("none/*", []),
    ],
)
async def test_patterns_find_regular_files(pattern: str, found: list[str]) -> None:
    tree = tree_of("out/a.png", "out/deep/b.png", "out/notes", "top")
    tree.link("/workspace/link", "/workspace/top")
    tree.link("/workspace/folder", "/workspace/out")
    result = await find_files(FakeFiles(lambda: tree), pattern)
    assert (list(result.paths), result.more) == (found, False)


async def test_no_link_leads_a_search_elsewhere() -> None:
    tree = tree_of("out/a")
    tree.link("/workspace/outside", "/etc")
    tree.link("/workspace/inside", "/workspace/out")
    files = FakeFiles(lambda: tree)
    for pattern in ("outside/hostname", "outside/*", "inside/a", "inside/*", "inside"):
        assert (await find_files(files, pattern)).paths == ()


async def test_a_search_has_an_end() -> None:
    tree = tree_of(*(f"many/{number}" for number in range(MAX_FILES + 5)))
    result = await find_files(FakeFiles(lambda: tree), "many/*")
    assert (len(result.paths), result.more) == (MAX_FILES, True)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("a/b.png", "image/png"),
        ("b.PNG", "image/png"),
        ("table.csv", "text/csv"),
        ("x.tar.gz", "application/gzip"),
        ("none", "application/octet-stream"),
        ("data:text/html,x", "application/octet-stream"),
        (".html", "application/octet-stream"),
        ("x.html\r\nSet-Cookie: a", "application/octet-stream"),
    ],
)
def test_the_name_says_the_media_type(path: str, kind: str) -> None:
    assert media_type_of(path) == kind


@given(st.text())
def test_no_name_makes_a_strange_media_type(path: str) -> None:
    kind = media_type_of(path)
    assert kind.isascii()
    assert kind.isprintable()
    assert kind.count("/") == 1


# --- pages and retention --------------------------------------------------------------------------


def artifact(at: float, size: int = 1) -> Artifact:
    return Artifact(new_artifact_id("0a1b2c3d"), "ses_1", at, "a", size, "0" * 64, "text/plain", "default")


def of_worker(times: list[int]) -> list[Artifact]:
    return sorted((artifact(at / 4) for at in times), key=place_of)


def test_workers_that_do_not_answer_are_named() -> None:
    [one] = of_worker([3])
    assert merged({"w2": None, "w1": artifact_page([one], 5), "w0": None}, 5) == ArtifactPage(
        (one,), None, ("w0", "w2")
    )


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 25), st.integers(1, 300))
def test_retention_deletes_the_fewest_of_the_oldest(sizes: list[int], max_count: int, max_bytes: int) -> None:
    owned = [artifact(number, size) for number, size in enumerate(sizes)]
    gone = surplus(owned, count=len(owned), total_bytes=sum(sizes), max_count=max_count, max_bytes=max_bytes)
    left = sizes[gone:]
    assert len(left) <= max_count
    assert sum(left) <= max_bytes
    if gone:
        one_more = sizes[gone - 1 :]
        assert len(one_more) > max_count or sum(one_more) > max_bytes


def test_an_artifacts_id_says_its_worker() -> None:
    assert artifact_tag(new_artifact_id("0a1b2c3d")) == "0a1b2c3d"
    for wrong in (
        "",
        "art_",
        "snp_" + "0" * 32,
        "art_" + "0" * 31,
        "art_" + "G" * 32,
        "art_" + "0" * 32 + "\n",
    ):
        assert artifact_tag(wrong) is None
