"""Testing your own agent without Docker: the fake is the same service, in memory, and does as it is told."""

from sandlot.testing import FakeSandlot

fake = FakeSandlot()
fake.on("pytest -q", stdout="1 passed\n")

with fake.sync_client() as client:
    session = client.thread("t")
    session.files.write("test_it.py", "def test(): pass")
    result = session.run("pytest -q")
    assert result.ok
    print(result.output, end="")
