"""Programs change as the pages say, and then train on several workers."""

from __future__ import annotations

from pathlib import Path

from tests.docs.snippets import PAGES, snippets
from tests.jobs import run_job


def test_programs_work_after_the_changes(tmp_path: Path) -> None:
    worker = Path(__file__).with_name("snippets_worker.py")
    job = run_job("collective", 2, worker, str(tmp_path), seconds=200)
    assert job.returncode == 0, job.stdout[-4000:]
    assert "AutoGraph" not in job.stdout  # it would warn of what it cannot convert
    for snippet in snippets():
        for rank in range(2):
            assert f"[{rank}] passed {snippet.page}: {snippet.heading}\n" in job.stdout


def test_each_page_has_programs_before_and_after() -> None:
    found = snippets()
    assert sum(snippet.page == "from_horovod" for snippet in found) >= 10
    assert {snippet.page for snippet in found} == set(PAGES)
    for snippet in found:
        for program in (snippet.before, snippet.after):
            compile(program, f"{snippet.page}: {snippet.heading}", "exec")
